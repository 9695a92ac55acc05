"""What the package remembers about a graph: its embedding variables, and where the gradients of lookups came from.

Lives as an attribute of the graph, so that it goes when the graph goes. Not exported with a meta graph: variables are found
again through their handle ops (see embedding_variable.from_handle).
"""

_ATTRIBUTE = "_tf_multitier_state"


class GraphState:
    """State of one graph.

    variables: {handle tensor name: EmbeddingVariable}: one object for a handle, however it is reached.
    partitioned: {variable name: PartitionedEmbeddingVariable}.
    counts: {indices tensor name: occurrence counts, int64 of the same length}, for gradients whose keys are unique.
    raw_gradients: {values tensor name: gradients.RawGradient}: the per-occurrence form of a lookup's gradient, with the keys
      and the variable it belongs to. The optimizer takes it where nothing in between changed the values, their indices or
      the variable.
    """

    def __init__(self):
        self.variables = {}
        self.partitioned = {}
        self.counts = {}
        self.raw_gradients = {}


def state_of(graph):
    """The GraphState of `graph`, made on first use."""
    state = getattr(graph, _ATTRIBUTE, None)
    if state is None:
        state = GraphState()
        setattr(graph, _ATTRIBUTE, state)
    return state

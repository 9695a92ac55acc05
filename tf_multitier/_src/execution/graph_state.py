"""The package's state of a graph: its embedding variables, and the origin of the gradients of lookups.

The state is an attribute of the graph and is deleted with it. It is not exported with a meta graph; variables of an imported graph
are found through their handle ops (see embedding_variable.from_proto).
"""

import tensorflow as tf

from tf_multitier._src.tensorflow.internals import control_dependencies_of
from tf_multitier._src.tensorflow.internals import control_flow_context
from tf_multitier._src.tensorflow.internals import FuncGraph

_ATTRIBUTE = "_tf_multitier_state"


class GraphState:
    """State of one graph.

    variables: {handle tensor name: EmbeddingVariable}. Each handle has one object.
    partitioned: {variable name: PartitionedEmbeddingVariable}.
    orders: {indices tensor name: (id of the lookup's op, number of its part, whether it is grouped)} for gradients of lookups. They
      sort gradients by the order in which the lookups were built.
    counts: {indices tensor name: occurrence counts, int64 of the same length} for gradients whose keys are distinct.
    tables: {indices tensor name: table numbers, int64 of the same length} for gradients of lookups with tables (table_numbers.py).
    raw_gradients: {values tensor name: origins.RawGradient}: the unsummed form of a lookup's gradient. The optimizer uses it if
      the values, the indices and the variable are those of the gradient.
    group_sums: {values tensor name: (indices tensor name, keys, sums)}: in a function, the distinct keys and sums of a gradient of
      a grouped lookup, which there has an entry for each occurrence.
    tracked_saves: {name of a handle: number of the last save of its table by an IncrementalSaver, failed ones too}. A save ends the
      changes that another saver could continue.
    shared: {key: tensor}, see `shared`.
    reduced: {name of the values of a gradient of a world: whether they are rows} (processes/reduced_gradients.py).
    restores: {a Saver's prefix: (ops that read parts of embedding variables, ops that read dense variables)}, see saver.py.
    before_broadcast: functions of a session, which rank 0 of a world calls before the others get its dense values.
    """

    def __init__(self):
        self.variables = {}
        self.partitioned = {}
        self.orders = {}
        self.counts = {}
        self.tables = {}
        self.raw_gradients = {}
        self.group_sums = {}
        self.tracked_saves = {}
        self.shared = {}
        self.reduced = {}
        self.restores = {}
        self.before_broadcast = []


def refuse_eager(what):
    """Raises RuntimeError in eager execution and inside a tf.function."""
    if tf.executing_eagerly():
        raise RuntimeError(
            f"{what} works in graphs and Sessions only, not eagerly: call tf.compat.v1.disable_eager_execution() "
            "first, or use it inside `with tf.Graph().as_default():`."
        )
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, FuncGraph):
        if type(graph) is FuncGraph:
            raise RuntimeError(
                f"{what} works in graphs and Sessions only, not inside tf.function ('{graph.name}')."
            )
        graph = graph.outer_graph


def state_of(graph):
    """The GraphState of `graph`, made on first use."""
    state = getattr(graph, _ATTRIBUTE, None)
    if state is None:
        state = GraphState()
        setattr(graph, _ATTRIBUTE, state)
    return state


def shared(key, make):
    """Returns the tensor make() of the default graph. All callers with the same key share it. Eagerly, each call makes another.

    Use it for tensors that hundreds of gradients and updates would otherwise each make. Do not use it for the ops of a variable:
    they stay in the variable's name scope, so that the scope can be exported.

    Each control-flow context and each set of control dependencies has its own tensor. The tensor is therefore computed at the same
    point as one that the caller would make itself. If the device matters, the key must contain it.
    """
    if tf.executing_eagerly():
        return make()
    graph = tf.compat.v1.get_default_graph()
    context = control_flow_context(graph)
    before = frozenset(op.name for op in control_dependencies_of(graph))
    state = state_of(graph)
    key = (key, None if context is None else context.name, before)
    if key not in state.shared:
        state.shared[key] = make()
    return state.shared[key]

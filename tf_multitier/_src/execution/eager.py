"""How eager execution and tf.function differ from v1 graphs.

A variable is created in one of two modes and works only in that mode:

    v1 graph     The variable is a handle op with its options. A Session's resource manager owns the table. The initializer makes it.
    eager        The variable is a handle tensor, which owns the table. The table exists at once. It is deleted with the Python
                 object.

A tf.function has the mode of its caller. If a variable is created while a function is traced, it is created eagerly, outside of the
function.

`check_use` refuses a variable of the other mode. `end_with` deletes the table when the object is deleted. Reads are registered with
TensorFlow. So in a tf.function, lookups of a variable run in parallel. An update waits for the reads before it, and the reads after
it wait for the update.
"""

from __future__ import annotations

import contextlib
import typing
import weakref

import tensorflow as tf

from tf_multitier._src.execution import placement
from tf_multitier._src.tensorflow.internals import eager_mode
from tf_multitier._src.tensorflow.internals import FuncGraph
from tf_multitier._src.tensorflow.internals import is_compiled_by_xla
from tf_multitier._src.tensorflow.internals import keep_from_autograph
from tf_multitier._src.tensorflow.internals import register_reads
from tf_multitier._src.tensorflow.internals import set_handle_shape
from tf_multitier._src.tensorflow.library import ops

# Ops that change no row, frequency or version. Not in this list: queries that write (remove, expire), and queries whose result depends
# on when they run (stats, drain).
_READS = (
    "MultitierLookup",
    "MultitierPeek",
    "MultitierLookupSparse",
    "MultitierLookupSparseGrad",
    "MultitierHbmClipByNorm",
    "MultitierHbmClipByNormGrad",
    *placement.GROUP_LOOKUPS,
    "MultitierServe",
    "MultitierCount",
    "MultitierFrequency",
    "MultitierVersion",
    "MultitierLookupTier",
    "MultitierExport",
    "MultitierExportRows",
    "MultitierIsInitialized",
    "MultitierPrefetch",
)
register_reads(_READS)
keep_from_autograph("tf_multitier")


def is_outside_of_graphs() -> bool:
    """True in eager execution, and in functions that are traced from it. False in v1 graphs and their functions."""
    if tf.executing_eagerly():
        return True
    with tf.init_scope():
        return tf.executing_eagerly()


def refuse_function(what: str) -> None:
    """RuntimeError in a tf.function of a v1 graph."""
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, FuncGraph):
        if type(graph) is FuncGraph:
            raise RuntimeError(
                f"{what} of a v1 graph: expected a use outside of functions, found one in the tf.function '{graph.name}': build "
                "it outside of the function, or work eagerly"
            )
        graph = graph.outer_graph


def check_world(variable: typing.Any, what: str) -> None:
    """RuntimeError if a variable of a v1 graph is used eagerly, or an eager one in a v1 graph."""
    name = variable.variable_name
    if variable._in_graph_mode:
        if tf.executing_eagerly():
            raise RuntimeError(
                f"{what} '{name}' of a tf.Graph: expected a use in that graph, found an eager call: create the variable eagerly, "
                "or make the call inside `with graph.as_default():`"
            )
    elif not is_outside_of_graphs():
        raise RuntimeError(
            f"{what} '{name}', which was created eagerly: expected an eager call or a tf.function, found a call in a tf.Graph: "
            "create the variable in that graph, or call eagerly"
        )


def check_use(variable: typing.Any, what: str) -> None:
    """Checks that a variable is looked up or updated in its own mode, and not in a function that XLA compiles.

    Raises:
      RuntimeError: see check_world; or a variable of a v1 graph in a tf.function.
      NotImplementedError: the function has jit_compile=True.
    """
    check_world(variable, what)
    name = variable.variable_name
    if variable._in_graph_mode:
        refuse_function(f"{what} '{name}'")
    elif not tf.executing_eagerly() and is_compiled_by_xla(tf.compat.v1.get_default_graph()):
        raise NotImplementedError(
            f"{what} '{name}' cannot be compiled by XLA: use tf.function without jit_compile=True (Keras: jit_compile=False), or "
            "look up outside of the compiled function and pass it the values"
        )


def make_handle(name: str, attrs: dict) -> typing.Any:
    """An eager handle that owns its table. Functions that capture it know the shape. attrs: {attribute: value} of HANDLE_ATTRS."""
    handle = placement.owned_handle(name, attrs)
    # float32, as that of a v1 handle: the type of gradients where a branch of tf.cond does not use the variable.
    set_handle_shape(handle, tf.TensorShape(attrs["shape"]), tf.float32)
    return handle


def end_with(owner: typing.Any, handle: typing.Any) -> None:
    """Destroys the table of `handle`, with its memory and files, when `owner` is deleted or the process ends."""
    weakref.finalize(owner, _destroy, handle)


def end_with_process(handle: typing.Any) -> None:
    """Destroys the table of `handle` when the process ends. Before that, it is destroyed with the last use of the handle."""
    weakref.finalize(handle, _destroy_if_used, weakref.ref(handle))


def _destroy_if_used(reference):
    handle = reference()
    if handle is not None:
        _destroy(handle)


def _destroy(handle):
    is_on_server = tf.DeviceSpec.from_string(handle.device).job == "ps"
    # A server that has ended took its tables along.
    with eager_mode(), contextlib.suppress(*[tf.errors.OpError] * is_on_server):
        ops.multitier_destroy(handle)

"""Where eager execution and tf.function differ from v1 graphs.

A variable is made in one of two worlds, and is used in that world only:

    v1 graph     a handle op with the variable's options. The table is in the resource manager of a Session. The initializer makes it.
    eager        a handle tensor that owns the table. It exists at once, and goes with the Python object.

A tf.function belongs to the world of its caller. A variable that is created while a function is traced is lifted out of it.

`check_use` refuses a variable of the other world. `end_with` ends the table with the object. Reads are registered with TensorFlow,
so in a tf.function the lookups of a variable run side by side; an update waits for the reads before it, and reads after it wait for
the update.
"""

from __future__ import annotations

import typing
import weakref

import tensorflow as tf

from tf_multitier._library import ops
from tf_multitier.tensorflow_internals import eager_mode
from tf_multitier.tensorflow_internals import FuncGraph
from tf_multitier.tensorflow_internals import is_compiled_by_xla
from tf_multitier.tensorflow_internals import keep_from_autograph
from tf_multitier.tensorflow_internals import register_reads
from tf_multitier.tensorflow_internals import set_handle_shape

# Ops that change no row, frequency or version. Queries that write (remove, expire), and those whose answer depends on when they run
# (stats, drain), are not among them.
_READS = (
    "MultitierLookup",
    "MultitierPeek",
    "MultitierLookupSparse",
    "MultitierLookupSparseWeightsGrad",
    "MultitierGroupLookup",
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
                f"{what} of a v1 graph works outside of functions only, found it in the tf.function '{graph.name}': build it "
                "outside of the function, or work eagerly"
            )
        graph = graph.outer_graph


def check_world(variable: typing.Any, what: str) -> None:
    """RuntimeError if a variable of a v1 graph is used eagerly, or an eager one in a v1 graph."""
    name = variable.variable_name
    if variable._in_graph_mode:
        if tf.executing_eagerly():
            raise RuntimeError(
                f"{what} '{name}' of a tf.Graph works in that graph and its Sessions only, found an eager call: create the variable "
                "eagerly, or make the call inside `with graph.as_default():`"
            )
    elif not is_outside_of_graphs():
        raise RuntimeError(
            f"{what} '{name}', which was created eagerly, works eagerly and in tf.functions only, found a call in a tf.Graph: create "
            "the variable in that graph, or call eagerly"
        )


def check_use(variable: typing.Any, what: str) -> None:
    """Checks that a variable is looked up or updated in its own world, and not in a function that XLA compiles.

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


def make_handle(name: str, shape: typing.Any, dtype: typing.Any) -> typing.Any:
    """An eager handle that owns its table. Functions that capture it know the shape."""
    handle = ops.multitier_owned_embedding_variable_handle(name, dtype=dtype, shape=shape)
    set_handle_shape(handle, tf.TensorShape(shape), tf.as_dtype(dtype))
    return handle


def end_with(owner: typing.Any, handle: typing.Any) -> None:
    """Destroys the table of `handle`, with its memory and files, when `owner` is deleted or the process ends."""
    weakref.finalize(owner, _destroy, handle)


def _destroy(handle):
    with eager_mode():
        ops.multitier_destroy(handle)

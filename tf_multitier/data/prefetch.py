"""prefetch_embeddings: a stage of an input pipeline that reads rows into DRAM before they are used.

    def ids_of(features, labels):
        return {users: features["user"], items: features["items"]}

    dataset = dataset.batch(1024).apply(tf_multitier.data.prefetch_embeddings(ids_of))
    features, labels = tf.compat.v1.data.make_initializable_iterator(dataset).get_next()

While one batch trains, the stage reads the rows of the next batch from the lower tiers into DRAM. It does not affect results.
"""

from __future__ import annotations

import collections.abc

import tensorflow as tf

from tf_multitier._src.execution import eager
from tf_multitier._src.options.key_types import as_keys
from tf_multitier._src.processes.world_keys import no_world
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.variable.embedding_variable import only_parts
from tf_multitier._src.variable.partitioned import is_embedding_variable
from tf_multitier._src.variable.partitioned import StoredParts
from tf_multitier._src.variable.queries import partition_keys
from tf_multitier._src.variable.queries import timeout_us

__all__ = ["prefetch_embeddings"]


def prefetch_embeddings(
    ids_of: collections.abc.Callable, buffer_size: int = 1, timeout: float = 10.0
) -> collections.abc.Callable:
    """A stage for `Dataset.apply` that prefetches the embeddings of each element before it is used.

    Make it the last stage, after batching. Elements pass through unchanged and in order.

    A prefetched row stays pinned in DRAM, or in HBM, until a lookup or an update uses it, until `timeout` has passed, or until the variable's
    `release_prefetched()` runs. So an abandoned iterator pins no row for longer than that. If several elements need a row, the latest
    timeout counts, and the first use releases the row. At most a quarter of a variable's rows in DRAM are pinned. If a prefetch fails
    (a disk error), the error is ignored, and the step reads the row itself.

    In eager execution, and in Keras' `fit`, nothing else is needed. In v1 graphs:

    - Make the iterator with `tf.compat.v1.data.make_initializable_iterator`: a one-shot iterator cannot hold variables.
    - Make the variables before the stage. If feature columns make them, first build the model with placeholders, in a
      `tf.make_template`.
    - The variables must be on the machine of the input pipeline. For variables of a parameter server, run `ev.prefetch(ids)`.

    Args:
      ids_of: function with the arguments of a function for `Dataset.map`. It returns the ids that the element will look up: a dict
        from variable to ids, or a list of (variable, ids). Ids are integers: a Tensor of any shape, a SparseTensor, a RaggedTensor,
        or a list of these.
      buffer_size: number of elements to prefetch ahead, >= 1.
      timeout: seconds after which an unused row is released, > 0. It should be longer than `buffer_size + 1` steps.

    Returns:
      A function from dataset to dataset.

    Raises:
      RuntimeError: when iterated: a variable of a v1 graph in a dataset that is made eagerly, or the reverse.
      TypeError, ValueError: a bad argument; when applied: ids_of does not return variables and ids, or a variable is on another
        machine.
    """
    if not callable(ids_of):
        raise TypeError(f"ids_of: expected a function of an element, found {ids_of!r}")
    if isinstance(buffer_size, bool) or not isinstance(buffer_size, int):
        raise TypeError(f"buffer_size: expected an integer, found {buffer_size!r}")
    if buffer_size < 1:
        raise ValueError(f"buffer_size: expected at least 1, found {buffer_size}")
    microseconds = timeout_us(timeout)

    def apply(dataset):
        is_eager = eager.is_outside_of_graphs()
        if tf.executing_eagerly():
            here = tf.constant(0).device
        else:
            here = tf.no_op(name="prefetch_embeddings").device

        def prefetch(*element):
            for variable, ids in _pairs(ids_of(*element)):
                _check_world(variable, is_eager)
                _check_place(variable, here)
                no_world(variable, "prefetch_embeddings", "call its prefetch() in the step")
                keys = _flat_keys(variable, ids)
                parts = variable.parts
                split = [keys] if len(parts) == 1 else partition_keys(keys, len(parts)).part_keys
                for part, its_keys in zip(parts, split):
                    ops.multitier_prefetch(
                        part.handle, its_keys, timeout_us=microseconds, best_effort=True
                    )
            return element[0] if len(element) == 1 else element

        return dataset.map(prefetch).prefetch(buffer_size)

    return apply


def _pairs(selected):
    """The result of ids_of as [(variable, ids)]."""
    pairs = list(selected.items()) if isinstance(selected, dict) else selected
    expected = "a dict from embedding variable to ids, or a list of (variable, ids)"
    if not isinstance(pairs, (list, tuple)):
        raise TypeError(f"ids_of: expected {expected}; found {selected!r}")
    found = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise TypeError(f"ids_of: expected {expected}; found {pair!r}")
        variable, ids = pair
        variable = variable.whole if isinstance(variable, StoredParts) else variable
        if not is_embedding_variable(variable):
            raise TypeError(f"ids_of: expected {expected}; found {variable!r} as a variable")
        if not variable.is_partitioned and variable.num_partitions > 1:
            raise ValueError(f"ids_of: {only_parts(variable.variable_name)}")
        found.append((variable, ids))
    return found


def _flat_keys(variable, ids):
    """All ids of a Tensor, SparseTensor or RaggedTensor, or a list of these, as int64 [n]."""
    if isinstance(ids, (list, tuple)) and any(
        isinstance(i, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)) for i in ids
    ):
        return tf.concat([_flat_keys(variable, i) for i in ids], 0)
    if isinstance(ids, tf.SparseTensor):
        ids = ids.values
    elif isinstance(ids, tf.RaggedTensor):
        ids = ids.flat_values
    return tf.reshape(as_keys(variable, ids), [-1])


def _check_world(variable, is_eager):
    """RuntimeError for a variable of a v1 graph in a dataset that is iterated eagerly, or the reverse."""
    if variable._in_graph_mode == is_eager:
        worlds = ("in a v1 graph", "eagerly")
        raise RuntimeError(
            f"embedding variable '{variable.variable_name}': expected a dataset that is made {worlds[not is_eager]}, as the "
            f"variable is, found one that is made {worlds[is_eager]}"
        )


def _check_place(variable, here):
    """ValueError if a part of the variable is placed in another task than the input pipeline."""
    here = tf.DeviceSpec.from_string(here)
    for part in variable.parts:
        there = tf.DeviceSpec.from_string(part.device)
        if there.job and (there.job, there.task or 0) != (here.job, here.task or 0):
            raise ValueError(
                f"embedding variable '{variable.variable_name}' is on {part.device} and the input pipeline is not: "
                "prefetch its ids with ev.prefetch(ids), run in parallel with the training step"
            )

"""Data of a world: all processes make the same number of steps, though their data ends at different ones.

Where all know the numbers of their batches, they tell them once, when the dataset is made. Else they agree for a window of batches at a
time: how many of the next ones each has. A process that has fewer goes on with batches of no examples.
"""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.processes import world as worlds

WINDOW = 8  # batches that a process reads before the others know of them
ENDS = ("all", "shortest")


def agreed(world: typing.Any, dataset: tf.data.Dataset, end: str) -> tf.data.Dataset:
    """See CollectiveStrategy.dataset."""
    if end not in ENDS:
        raise ValueError(f"dataset: end: expected 'all' or 'shortest', found {end!r}")
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"dataset: expected a tf.data.Dataset, found {type(dataset).__name__}")
    if world.size == 1:
        return dataset
    worlds.refuse_v1_graph(
        "dataset",
        "let all ranks make the same number of steps, by data that repeats and tf.train.StopAtStepHook",
    )
    empty = _empty(dataset.element_spec) if end == "all" else None
    counts = world.of_all(dataset.cardinality(), world.new_agreement()).numpy().tolist()
    if tf.data.UNKNOWN_CARDINALITY in counts:
        return _by_windows(world, dataset, empty)
    is_infinite = tf.data.INFINITE_CARDINALITY in counts
    finite = [count for count in counts if count != tf.data.INFINITE_CARDINALITY]
    mine = counts[world.rank]
    if empty is None:
        return dataset.take(min(finite)) if finite else dataset
    if mine == tf.data.INFINITE_CARDINALITY or (not is_infinite and mine == max(finite)):
        return dataset
    return dataset.concatenate(empty.repeat(None if is_infinite else max(finite) - mine))


def _by_windows(world, dataset, empty):
    """The dataset, ended where all agree. empty: a dataset of one batch of no examples; None: all end with the first."""
    key = world.new_agreement()

    def agree(mine):
        counts = world.of_all(mine, key)
        return tf.reduce_min(counts) if empty is None else tf.reduce_max(counts)

    def tensors_of(*batch):
        return tuple(tf.nest.flatten(batch if len(batch) > 1 else batch[0], expand_composites=True))

    def batch_of(*tensors):
        return tf.nest.pack_sequence_as(dataset.element_spec, tensors, expand_composites=True)

    def counted(*parts):
        window = tf.data.Dataset.zip(parts)
        return window.reduce(tf.constant(0, tf.int64), lambda count, *unused: count + 1), window

    def with_length(mine, window):
        length = tf.py_function(agree, [mine], tf.int64)
        return mine, tf.ensure_shape(length, []), window

    def batches(mine, length, window):
        its = window.take(length)
        return (
            its if empty is None else its.concatenate(empty.map(tensors_of).repeat(length - mine))
        )

    flat = dataset.map(tensors_of)
    windows = flat.window(WINDOW).map(counted)
    none = flat.take(0)
    ended = (
        tf.data.Dataset.from_tensors(0)
        .map(lambda unused: (tf.constant(0, tf.int64), none))
        .repeat()
    )
    windows = windows.concatenate(ended).prefetch(1).map(with_length)
    windows = windows.take_while(lambda mine, length, window: length > 0)
    made = windows.flat_map(batches).map(batch_of)
    options = tf.data.Options()
    # A process must not ask for more than the others, which may stop in the middle.
    options.experimental_optimization.inject_prefetch = False
    return made.with_options(options)


def _empty(spec):
    """A dataset of one batch of no examples.

    Raises:
      ValueError: the elements have no dimension of examples.
    """
    parts = tf.nest.map_structure(_empty_part, spec)
    return tf.data.Dataset.from_tensors(parts)


def _empty_part(spec):
    shape = getattr(spec, "shape", None)
    if shape is None or shape.rank in (None, 0):
        raise ValueError(
            f"dataset: expected batches, whose first dimension is that of examples, found {spec}: call batch() first, or end='shortest'"
        )
    its_shape = [0] + [1 if dim is None else dim for dim in shape.as_list()[1:]]
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(
            tf.zeros([0, shape.rank], tf.int64), tf.zeros([0], spec.dtype), its_shape
        )
    if isinstance(spec, tf.RaggedTensorSpec):
        inner = [0] + [1 if dim is None else dim for dim in shape.as_list()[spec.ragged_rank + 1 :]]
        splits = [tf.zeros([1], spec.row_splits_dtype)] * spec.ragged_rank
        return tf.RaggedTensor.from_nested_row_splits(tf.zeros(inner, spec.dtype), splits)
    if isinstance(spec, tf.TensorSpec):
        return tf.zeros(its_shape, spec.dtype)
    raise ValueError(
        f"dataset: expected dense, ragged and sparse tensors, found {spec}: call it with end='shortest'"
    )

"""The ids that layers take, as the tensors of integers that lookups take."""

from __future__ import annotations

import typing

import tensorflow as tf

# From here up, a float type does not have every integer.
_EXACT_BELOW = {tf.float16: 2**11, tf.bfloat16: 2**8, tf.float32: 2**24, tf.float64: 2**53}


def integers(ids: typing.Any, layer: str) -> typing.Any:
    """Ids that are floats or booleans as int64, as keras.layers.Embedding takes them. keras.Input without a dtype makes them float32.

    Raises:
      TypeError: strings.
      InvalidArgumentError, when it runs: a float so large that it may be another id, rounded.
    """
    if isinstance(ids, tf.SparseTensor):
        return ids.with_values(integers(ids.values, layer))
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(integers(ids.flat_values, layer))
    ids = tf.convert_to_tensor(ids)
    if ids.dtype == tf.string:
        raise TypeError(
            f"layer '{layer}': ids: expected integers, found strings: give it the output of keras.layers.StringLookup or Hashing"
        )
    if ids.dtype == tf.bool:
        return tf.cast(ids, tf.int64)
    if ids.dtype not in _EXACT_BELOW:
        return ids
    limit = _EXACT_BELOW[ids.dtype]
    is_exact = tf.debugging.assert_less(
        tf.abs(tf.cast(ids, tf.float64)),
        tf.constant(limit, tf.float64),
        f"layer '{layer}': expected ids below {limit}, because {ids.dtype.name} does not have every integer above: give keras.Input "
        "dtype='int64'",
    )
    with tf.control_dependencies([] if is_exact is None else [is_exact]):
        return tf.cast(ids, tf.int64)


def check_rank(shape: typing.Any, where: str) -> None:
    """ValueError for ids of a combiner that are not [batch] or [batch, ids]."""
    rank = tf.TensorShape(shape).rank
    if rank not in (None, 1, 2):
        found = "a scalar" if rank == 0 else f"shape {tuple(shape)}"
        raise ValueError(
            f"layer '{where}': ids for a combiner: expected shape [batch] or [batch, ids], found {found}: reshape them, or look them up "
            "without a combiner and pool the embeddings"
        )


def pooled_ids(ids: typing.Any, mask_zero: bool, where: str) -> typing.Any:
    """Ids of [batch, ids] as a ragged or sparse tensor, without zeros if mask_zero. where: name of the layer, or of layer and feature."""
    if isinstance(ids, tf.SparseTensor):
        return tf.sparse.retain(ids, tf.not_equal(ids.values, 0)) if mask_zero else ids
    if isinstance(ids, tf.RaggedTensor):
        return tf.ragged.boolean_mask(ids, tf.not_equal(ids, 0)) if mask_zero else ids
    ids = tf.convert_to_tensor(ids)
    check_rank(ids.shape, where)
    if ids.shape.rank == 1:
        ids = ids[:, None]
    if mask_zero:
        return tf.RaggedTensor.from_row_lengths(
            tf.boolean_mask(ids, ids != 0), tf.reduce_sum(tf.cast(ids != 0, tf.int64), 1)
        )
    return tf.RaggedTensor.from_tensor(ids)

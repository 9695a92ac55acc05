"""Sparse and ragged ids of pooled lookups: checks, and one form for both."""

import tensorflow as tf


def from_ragged(ids, weights):
    """Converts ragged ids [batch, (any)] and weights to SparseTensors with the same rows and order. Other ids are returned unchanged."""
    if not isinstance(ids, tf.RaggedTensor):
        return ids, weights
    if weights is not None and not isinstance(weights, tf.RaggedTensor):
        raise TypeError(
            f"weights: expected a RaggedTensor as the ids are, or None, found {type(weights).__name__}"
        )
    if ids.ragged_rank != 1 or ids.flat_values.shape.rank != 1:
        raise ValueError(
            f"ragged ids: expected shape [batch, (any)], found {ids.shape}: merge their inner dimensions, "
            "ids.merge_dims(1, -1)"
        )
    rows = ids.value_rowids()
    columns = tf.range(ids.row_splits[-1]) - tf.gather(ids.row_starts(), rows)
    indices = tf.cast(tf.stack([rows, columns], 1), tf.int64)
    shape = tf.cast(ids.bounding_shape(), tf.int64)
    shape.set_shape([2])
    return (
        tf.SparseTensor(indices, ids.values, shape),
        None if weights is None else tf.SparseTensor(indices, weights.flat_values, shape),
    )


def check_sparse(sp_ids, sp_weights):
    if not isinstance(sp_ids, tf.SparseTensor):
        raise TypeError(f"sp_ids: expected a SparseTensor, found {type(sp_ids).__name__}")
    if sp_weights is None:
        return
    if not isinstance(sp_weights, tf.SparseTensor):
        raise TypeError(
            f"sp_weights: expected a SparseTensor or None, found {type(sp_weights).__name__}"
        )
    if not sp_ids.values.shape.is_compatible_with(sp_weights.values.shape):
        raise ValueError(
            f"sp_weights: expected {sp_ids.values.shape[0]} values, one for each of sp_ids, found "
            f"{sp_weights.values.shape[0]}"
        )


def one_a_key(weights, keys):
    """`weights`, with a check that there is one for each key. When run, a mismatch is InvalidArgument before any use of the weights."""
    if weights.shape.is_fully_defined() and weights.shape == keys.shape:
        return weights
    found, expected = tf.size(weights, tf.int64), tf.size(keys, tf.int64)
    check = tf.raw_ops.Assert(
        condition=tf.equal(found, expected),
        data=["sparse lookup: expected as many weights as keys: ", expected, ", found ", found],
    )
    with tf.control_dependencies([check]):
        return tf.identity(weights)

"""Padding: one id that stands for no id. Lookups leave it out, so it has no row, no count and no gradient.

`padding_idx` of lookups, as in PyTorch; `mask_zero` and `mask_value` of Keras layers.
"""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.options import option_values


def key_of(key_dtype: tf.DType, padding_idx: typing.Any, where: str) -> int | None:
    """The padding id as lookups compare it, with keys that are int64; None for None.

    Raises:
      TypeError, ValueError: it is no integer of key_dtype. where: starts the message.
    """
    if padding_idx is None:
        return None
    key = option_values.integer(where, padding_idx, key_dtype.min, key_dtype.max)
    return key - 2**64 if key > tf.int64.max else key


def is_id(keys: tf.Tensor, padding: int) -> tf.Tensor:
    """Bool of the shape of `keys`, int64 or int32: False for padding."""
    return tf.not_equal(tf.cast(keys, tf.int64), tf.constant(padding, tf.int64))


def without(padding: int, keys: tf.Tensor, *others: tf.Tensor | None) -> list:
    """`keys` [n] and other tensors [n, ...] or None, without the entries whose key is padding."""
    kept = tf.where(is_id(keys, padding))[:, 0]
    return [None if tensor is None else tf.gather(tensor, kept) for tensor in (keys, *others)]

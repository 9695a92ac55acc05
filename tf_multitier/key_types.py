"""The types of keys. A variable's user gives and gets keys of its key_dtype; ops and tables have int64.

    int64    as they are                 uint64   their 64 bits, so that every value is a key
    int32    extended by their sign      uint32   extended by zeros

The type is a property of the variable: of its handle's attribute, and of the manifests of its files. Nothing below the ops knows it.
So what depends on the bits of a key (its partition, its initial value, `key mod N`) takes a uint64 key for the int64 of the same bits,
and messages of the table name that int64. Gradients, too, have int64 keys.
"""

from __future__ import annotations

import typing

import tensorflow as tf

KEY_DTYPES = (tf.int64, tf.int32, tf.uint64, tf.uint32)

# What a variable takes as keys, by its key_dtype: types whose every value it has.
_UNSIGNED = (tf.uint8, tf.uint16, tf.uint32)
_NARROW = (tf.int32, tf.int16, tf.int8, tf.uint8, tf.uint16)
ACCEPTED = {
    tf.int64: (tf.int64, tf.uint32, *_NARROW),
    tf.int32: _NARROW,
    tf.uint64: (tf.uint64, *_UNSIGNED),
    tf.uint32: _UNSIGNED,
}


def to_int64(keys: tf.Tensor) -> tf.Tensor:
    """Keys of any type as the int64 that ops take."""
    if keys.dtype == tf.int64:
        return keys
    return tf.bitcast(keys, tf.int64) if keys.dtype == tf.uint64 else tf.cast(keys, tf.int64)


def from_int64(variable: typing.Any, keys: tf.Tensor) -> tf.Tensor:
    """The int64 keys of an op as the variable's user gets them: uint64 or uint32 if the variable has these, else int64."""
    if variable.key_dtype == tf.uint64:
        return tf.bitcast(keys, tf.uint64)
    return tf.cast(keys, tf.uint32) if variable.key_dtype == tf.uint32 else keys


def in_order(variable: typing.Any, keys: tf.Tensor) -> tf.Tensor:
    """int64 numbers that have the order of the variable's keys, from the int64 keys of an op."""
    return tf.bitwise.bitwise_xor(keys, keys.dtype.min) if variable.key_dtype == tf.uint64 else keys


def name_in_files(variable: typing.Any) -> str:
    """The type of a variable's keys as files say it: "int64" of int32 keys, too."""
    return variable.key_dtype.name if variable.key_dtype.is_unsigned else "int64"

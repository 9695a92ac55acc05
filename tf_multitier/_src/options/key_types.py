"""The types of keys. A variable's user gives and gets keys of its key_dtype; ops and tables have int64.

    int64    as they are                 uint64   their 64 bits, so that every value is a key
    int32    extended by their sign      uint32   extended by zeros

The type is a property of the variable: of its handle's attribute, and of the manifests of its files. Nothing below the ops knows it.
So what depends on the bits of a key (its partition, its initial value, `key mod N`) takes a uint64 key for the int64 of the same bits,
and messages of the table name that int64. Gradients, too, have int64 keys.
"""

from __future__ import annotations

import reprlib
import typing

import numpy as np
import tensorflow as tf

from tf_multitier._src.options.option_values import did_you_mean

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


def key_type(where: str, value: typing.Any) -> tf.DType:
    """A type of keys as a tf.DType. TypeError if it is none. where: starts the message."""
    names = [dtype.name for dtype in KEY_DTYPES]
    try:
        found = tf.as_dtype(value)
    except TypeError:
        found = None
    if found not in KEY_DTYPES:
        said = repr(value) if found is None else found.name
        raise TypeError(
            f"{where}: expected {', '.join(names[:-1])} or {names[-1]}, found {said}{did_you_mean(value, names)}"
        )
    return found


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


def as_tensor(
    where: str, value: typing.Any, expected: str, hint: typing.Any = None, name: str | None = None
) -> tf.Tensor:
    """tf.convert_to_tensor. TypeError, ValueError: what is no tensor, in one sentence. expected: what it should have been."""
    try:
        return tf.convert_to_tensor(value, dtype_hint=hint, name=name)
    except (TypeError, ValueError, OverflowError, tf.errors.InvalidArgumentError) as error:
        why = ""
        if isinstance(value, (list, tuple)):
            why = ": " + str(error).partition("\n")[0]
        elif type(value).__name__ == "KerasTensor":
            why = ": call a layer of Keras with it"
        kind = TypeError if isinstance(error, TypeError) else ValueError
        message = f"{where}: expected {expected}, found {reprlib.repr(value)}{why}"
        raise kind(message) from None


def _is_empty_list(ids):
    return isinstance(ids, (list, tuple)) and all(_is_empty_list(i) for i in ids)


def _are_natural_numbers(ids):
    """Whether it is an integer of Python, or a list of such, without negative ones."""
    if not isinstance(ids, (list, tuple, int)):
        return False
    return all(type(i) is int and i >= 0 for i in tf.nest.flatten(ids))


def checked_keys(variable, ids, what="ids"):
    """`ids` as a tensor of integers that a variable accepts as keys.

    A variable takes the types whose every value is one of its keys (see ACCEPTED): one with int64 keys refuses uint64 ids, one with
    int32 keys int64 ids, one with uint64 keys int64 ids. An empty list is accepted: it has no dtype of its own, and a list of Python's
    integers gets that of the keys.

    Raises:
      TypeError: another dtype. The message names the variable, what was expected and what was found.
      ValueError: an integer of Python that is larger than the largest key of an unsigned type.
    """
    name, key_dtype = variable.variable_name, variable.key_dtype
    if _is_empty_list(ids):
        ids = np.zeros(np.shape(ids), key_dtype.as_numpy_dtype)
    # TensorFlow converts -1, and numbers that are too large, to an unsigned type without an error.
    hint = key_dtype if key_dtype.is_unsigned and _are_natural_numbers(ids) else None
    largest = max(tf.nest.flatten(ids), default=0) if hint is not None else 0
    if hint is not None and largest > key_dtype.max:
        raise ValueError(
            f"embedding variable '{name}': {what}: expected {key_dtype.name}, found {largest}"
        )
    where = f"embedding variable '{name}': {what}"
    ids = as_tensor(where, ids, key_dtype.name, hint, name=what)
    if ids.dtype in ACCEPTED[key_dtype]:
        return ids
    if ids.dtype not in (*ACCEPTED[tf.int64], tf.uint64):
        raise TypeError(
            f"embedding variable '{name}': {what}: expected {key_dtype.name}, found {ids.dtype.name}"
        )
    cure = "cast them" if key_dtype.is_unsigned else f"create it with key_dtype=tf.{ids.dtype.name}"
    if key_dtype == tf.int32 and ids.dtype == tf.uint32:
        cure = "create it with key_dtype=tf.int64"
    raise TypeError(
        f"embedding variable '{name}': {what}: expected {key_dtype.name}, the key_dtype, found {ids.dtype.name}: {cure}"
    )


def as_keys(variable, ids, what="ids"):
    """`ids` as an int64 tensor of the same shape. Errors: see checked_keys."""
    return to_int64(checked_keys(variable, ids, what))

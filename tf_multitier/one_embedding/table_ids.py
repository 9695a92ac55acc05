"""Which table each id asks: checks and shapes of ids and table_ids."""

from __future__ import annotations

import reprlib
import typing

import numpy as np
import tensorflow as tf

from tf_multitier._src.options import key_types


def ids_of_type(where: str, ids: typing.Any, key_type: tf.DType) -> tf.Tensor:
    """Ids as a tensor of key_type. Lists of Python's integers have no type of their own.

    Raises:
      TypeError: ids of another type, or no dense ids.
      ValueError: an integer that key_type does not have.
    """
    if isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            f"{where}: ids: expected a dense tensor, found a {type(ids).__name__}: use to_tensor(padding_idx) and padding_idx"
        )
    if isinstance(ids, (list, tuple, int)):
        numbers = tf.nest.flatten(ids)
        if not any(map(tf.is_tensor, numbers)):
            ids = _array(where, ids, numbers, key_type)
    ids = key_types.as_tensor(f"{where}: ids", ids, key_type.name)
    if ids.dtype != key_type:
        raise TypeError(
            f"{where}: ids: expected {key_type.name}, the key_type, found {ids.dtype.name}"
        )
    return ids


def _array(where, ids, numbers, key_type):
    """A list of Python's or NumPy's integers as an array of key_type."""
    try:
        array = np.asarray(ids)
    except ValueError:
        raise ValueError(
            f"{where}: ids: expected lists of one length, found {reprlib.repr(ids)}"
        ) from None
    if array.dtype.kind in "fO":  # perhaps integers for which NumPy has no common type
        if all(isinstance(number, int) for number in numbers):
            array = np.array(ids, object)
        elif array.dtype.kind == "O":
            raise TypeError(f"{where}: ids: expected integers, found {reprlib.repr(ids)}")
    # NumPy makes an integer of a bool that is next to one.
    if any(isinstance(number, (bool, np.bool_)) for number in numbers):
        raise TypeError(f"{where}: ids: expected integers, found bool")
    if array.size and array.dtype.kind not in "iuO":
        raise TypeError(f"{where}: ids: expected integers, found {array.dtype.name}")
    for number in (array.min(), array.max()) if array.size else ():
        if not key_type.min <= int(number) <= key_type.max:
            raise ValueError(f"{where}: ids: expected {key_type.name}, found {number}")
    return array.astype(key_type.as_numpy_dtype)


def _checked(tensor, checks):
    checks = [check for check in checks if check is not None]
    if not checks:
        return tensor
    with tf.control_dependencies(checks):
        return tf.identity(tensor)


def tables_of(where: str, ids: tf.Tensor, table_ids: typing.Any, num_tables: int) -> typing.Any:
    """The table that each id asks: integers of the shape of ids, which the lookup checks. None: all ask table 0.

    Args:
      where: starts messages.
      ids: integers of any shape.
      table_ids: integers of that shape, or of its trailing dimensions; or None: not needed with one table, or ids of shape
        [batch, num_tables], whose column i asks table i.
      num_tables: their number.

    Raises:
      TypeError: table_ids are no integers.
      ValueError: other shapes.
      tf.errors.InvalidArgumentError, when run: other shapes.
    """
    if table_ids is None:
        return None if num_tables == 1 else _columns(where, ids, num_tables)
    if isinstance(table_ids, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            f"{where}: table_ids: expected a dense tensor, found a {type(table_ids).__name__}"
        )
    table_ids = key_types.as_tensor(f"{where}: table_ids", table_ids, "integers")
    if table_ids.shape.num_elements() == 0 and table_ids.dtype == tf.float32:
        table_ids = tf.cast(table_ids, tf.int64)  # an empty list has no type of its own
    if not table_ids.dtype.is_integer:
        raise TypeError(f"{where}: table_ids: expected integers, found {table_ids.dtype.name}")
    rank = table_ids.shape.rank
    if rank is None or ids.shape.rank is None:
        raise ValueError(
            f"{where}: expected ids and table_ids of known ranks, found shapes {ids.shape} and {table_ids.shape}"
        )
    trailing = ids.shape[ids.shape.rank - rank :] if rank <= ids.shape.rank else None
    message = f"{where}: table_ids: expected the shape of ids or its trailing dimensions"
    if trailing is None or not trailing.is_compatible_with(table_ids.shape):
        raise ValueError(f"{message}: found {table_ids.shape} for ids of shape {ids.shape}")
    same = None
    if not (trailing.is_fully_defined() and table_ids.shape.is_fully_defined()):
        expected = tf.shape(ids)[ids.shape.rank - rank :]
        found = tf.shape(table_ids)
        same = tf.debugging.Assert(
            tf.reduce_all(tf.equal(expected, found)),
            [f"{message}: found ", found, " for ids of shape ", tf.shape(ids)],
        )
    table_ids = _checked(table_ids, [same])
    if rank == ids.shape.rank:
        return table_ids
    which = tf.broadcast_to(table_ids, tf.shape(ids))
    which.set_shape(ids.shape)
    return which


def _columns(where, ids, num_tables):
    if ids.shape.rank != 2 or ids.shape[1] not in (num_tables, None):
        raise ValueError(
            f"{where}: expected ids of shape [batch, {num_tables}], a column for each table, or table_ids; found ids of shape {ids.shape}"
        )
    checks = []
    if ids.shape[1] is None:
        message = f"{where}: expected ids of shape [batch, {num_tables}], found "
        is_width = tf.equal(tf.shape(ids)[1], num_tables)
        checks = [tf.debugging.Assert(is_width, [message, tf.shape(ids)])]
    which = tf.broadcast_to(tf.range(num_tables), _checked(tf.shape(ids), checks))
    which.set_shape(ids.shape)
    return which


def check_repeats(
    where: str, variable: typing.Any, keys: tf.Tensor, tables: tf.Tensor
) -> typing.Any:
    """An op that is InvalidArgument if `keys`, int64 [n], have a key for two of their `tables` [n]. Eagerly it is checked now: None."""
    distinct, place = tf.unique(keys)
    count = tf.size(distinct)
    least = tf.math.unsorted_segment_min(tables, place, count)
    most = tf.math.unsorted_segment_max(tables, place, count)
    differ = tf.not_equal(least, most)
    first = lambda values: tf.boolean_mask(values, differ)[:1]
    message = tf.strings.format(
        f"{where}: on_repeated_id='error': expected each id in one table, found id {{}} in tables {{}} and {{}}",
        (key_types.from_int64(variable, first(distinct)), first(least), first(most)),
    )
    return tf.debugging.Assert(tf.logical_not(tf.reduce_any(differ)), [message])

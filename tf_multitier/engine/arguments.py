"""Converts a caller's arguments to the types that the engine takes. ValueError, with the argument's name, if that is not possible."""

import enum
import numbers
import os
import reprlib

import numpy as np

from tf_multitier._src.options import numpy_types
from tf_multitier._src.options import option_values

_MOST_ELEMENTS = 2**20  # of a column in a row


def integer(name, value, bits=64, signed=True):
    """An int that fits into `bits` bits."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name}: expected an integer, found {value!r}")
    least, end = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    if not least <= value < end:
        raise ValueError(f"{name}: expected an integer from {least} to {end - 1}, found {value!r}")
    return int(value)


def dim(name, value):
    """The number of elements of a column."""
    if not 1 <= integer(name, value) <= _MOST_ELEMENTS:
        raise ValueError(f"{name}: expected 1 to {_MOST_ELEMENTS}, found {value}")
    return int(value)


def boolean(name, value):
    """A bool."""
    return option_values.boolean(name, value, ValueError)


def real(name, value):
    """A float."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected a number, found {value!r}") from None


def real_or_none(name, value):
    """A float, or None."""
    return None if value is None else real(name, value)


def text(name, value):
    """A str. A member of an enum gives its name."""
    value = value.name if isinstance(value, enum.Enum) else value
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected a name, found {value!r}")
    return value


def path(name, value):
    """A str, from a path."""
    try:
        return os.fsdecode(value)
    except TypeError:
        raise ValueError(f"{name}: expected a path, found {value!r}") from None


def sequence(name, value, of):
    """A list of the elements of a sequence. `of` says what they are."""
    try:
        if not isinstance(value, (str, bytes, dict)):
            return list(value)
    except TypeError:
        pass
    raise ValueError(f"{name}: expected a list of {of}, found {reprlib.repr(value)}")


def one_each(name, values, n, of):
    """A list with one element for each of `n` tables. `of` says what they are."""
    values = sequence(name, values, of)
    if len(values) != n:
        raise ValueError(f"{name}: expected one for each of {n} tables, found {len(values)}")
    return values


def names(name, values):
    """A list of str."""
    values = sequence(name, values, "names")
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name}: expected a list of names, found {values!r}")
    return values


def _array(name, values):
    """An array, from a sequence of any depth."""
    try:
        return np.asarray(values)
    except ValueError:  # NumPy's own message does not name the argument
        raise ValueError(
            f"{name}: expected rows of one length, found {reprlib.repr(values)}"
        ) from None


def integers(name, values):
    """int64 [n], from a sequence of integers."""
    array = _array(name, values)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or (
        array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max
    ):
        raise ValueError(f"{name}: expected integers that fit int64, found {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"{name}: expected shape [n], found {list(array.shape)}")
    return np.ascontiguousarray(array, np.int64)


def tables(values, keys, count):
    """uint16 [n], from integers below `count`, one for each of n keys; [0] for None."""
    if values is None and (count == 1 or not len(keys)):
        return np.zeros([0], np.uint16)
    if values is None:
        raise ValueError(
            f"tables: expected a table number for each key, because the initializers are a list of {count}; found none: pass tables="
        )
    values = integers("tables", values)
    if len(values) != len(keys):
        raise ValueError(f"tables: expected shape [{len(keys)}], found [{len(values)}]")
    wrong = np.flatnonzero((values < 0) | (values >= count))
    if len(wrong):
        raise ValueError(
            f"tables: expected 0 to {count - 1}, found tables[{wrong[0]}] = {values[wrong[0]]}"
        )
    return values.astype(np.uint16)


def keys(name, values, key_dtype):
    """Integers [n] of a type of keys (numpy_types.py), as the int64 that the engine has."""
    if key_dtype == "int64":
        return integers(name, values)
    array = _array(name, values)
    exact_list = False
    if array.dtype.kind in "fO" and not isinstance(values, np.ndarray):
        # A list of integers for which NumPy has no common type, or an empty one.
        exact = np.array(values, object)
        exact_list = all(isinstance(value, numbers.Integral) for value in exact.flat)
        array = exact if exact_list else array
    if array.dtype.kind not in ("iuO" if exact_list else "iu"):
        raise ValueError(f"{name}: expected integers that fit {key_dtype}, found {array.dtype}")
    if array.size:
        least, most = int(array.min()), int(array.max())
        if least < 0 or most > np.iinfo(key_dtype).max:
            raise ValueError(
                f"{name}: expected integers that fit {key_dtype}, found {least if least < 0 else most}"
            )
    if array.ndim != 1:
        raise ValueError(f"{name}: expected shape [n], found {list(array.shape)}")
    return np.ascontiguousarray(array, np.uint64).view(np.int64)


def floats(name, values, shape):
    """A float32 array of the given shape."""
    array = _array(name, values)
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise ValueError(f"{name}: expected numbers, found {array.dtype}")
    if list(array.shape) != list(shape):
        raise ValueError(f"{name}: expected shape {list(shape)}, found {list(array.shape)}")
    return np.ascontiguousarray(array, np.float32)


def matrix(name, values, columns):
    """float32 [n, columns]; None for None."""
    if values is None:
        return None
    array = _array(name, values)
    if array.ndim == 0:
        raise ValueError(f"{name}: expected shape [n, {columns}], found {reprlib.repr(values)}")
    return floats(name, array, [len(array), columns])


def columns(name, specs):
    """[(name, dim, initial value)], with checked types."""
    of = "(name, dim, initial value)"
    return [_column(f"{name}[{i}]", spec, of) for i, spec in enumerate(sequence(name, specs, of))]


def _column(name, spec, of):
    if not isinstance(spec, (tuple, list)) or len(spec) != 3:
        raise ValueError(f"{name}: expected {of}, found {spec!r}")
    column, elements, initial_value = spec
    return (
        text("name of a column", column),
        dim(f"dim of column '{column}'", elements),
        real(f"initial value of column '{column}'", initial_value),
    )


def rows(values):
    """A dict of the arrays of a `Rows`, with checked types and sizes."""
    specs = columns("columns", values.columns)
    elements = sum(elements for _, elements, _ in specs)
    arrays = {
        "columns": specs,
        "data": floats("data", values.data, [len(values.keys), elements]),
    }
    for of, others in (
        ("keys", ("frequencies", "versions")),
        ("counted_keys", ("counted_frequencies", "counted_versions")),
    ):
        its_keys = np.asarray(getattr(values, of))
        arrays[of] = keys(of, its_keys, numpy_types.of_keys(its_keys))
        for name in others:
            arrays[name] = integers(name, getattr(values, name))
            if len(arrays[name]) != len(arrays[of]):
                raise ValueError(
                    f"{name}: expected shape [{len(arrays[of])}], found [{len(arrays[name])}]"
                )
    return arrays

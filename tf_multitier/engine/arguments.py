"""Converts a caller's arguments to the types that the engine takes. ValueError, with the argument's name, if that is not possible."""

import enum
import numbers

import numpy as np


def integer(name, value, bits=64, signed=True):
    """An int that fits into `bits` bits."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name}: expected an integer, found {value!r}")
    least, end = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    if not least <= value < end:
        raise ValueError(f"{name}: expected an integer from {least} to {end - 1}, found {value!r}")
    return int(value)


def boolean(name, value):
    """A bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name}: expected True or False, found {value!r}")
    return bool(value)


def real(name, value):
    """A float."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected a number, found {value!r}") from None


def real_or_none(name, value):
    """A float, or None."""
    return None if value is None else real(name, value)


def initializer(name, value):
    """The parameters of an initializer without a matrix, completed; None for None."""
    if value is None:
        return None
    fields = ("kind", "a", "b", "lower", "upper", "seed")
    if not isinstance(value, dict) or "kind" not in value or not set(value) <= set(fields):
        raise ValueError(
            f"{name}: expected a dict with 'kind' and any of {fields}, found {value!r}"
        )
    if value["kind"] == "matrix":
        raise ValueError(f"{name}: expected an initializer other than 'matrix', found 'matrix'")
    return {
        "kind": text(f"{name}['kind']", value["kind"]),
        "a": real(f"{name}['a']", value.get("a", 0.0)),
        "b": real(f"{name}['b']", value.get("b", 0.0)),
        "lower": real_or_none(f"{name}['lower']", value.get("lower")),
        "upper": real_or_none(f"{name}['upper']", value.get("upper")),
        "seed": integer(f"{name}['seed']", value.get("seed", 0), signed=False),
    }


def text(name, value):
    """A str. A member of an enum gives its name."""
    value = value.name if isinstance(value, enum.Enum) else value
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected a name, found {value!r}")
    return value


def names(name, values):
    """A list of str."""
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name}: expected a list of names, found {values!r}")
    return list(values)


def sizes(name, value):
    """A list of ints, from one int, a list of ints, or None (an empty list)."""
    values = (
        []
        if value is None
        else [value]
        if isinstance(value, (str, numbers.Number))
        else list(value)
    )
    return [integer(f"{name}[{i}]", v) for i, v in enumerate(values)]


def integers(name, values):
    """int64 [n], from a sequence of integers."""
    array = np.asarray(values)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or (
        array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max
    ):
        raise ValueError(f"{name}: expected integers that fit int64, found {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"{name}: expected shape [n], found {list(array.shape)}")
    return np.ascontiguousarray(array, np.int64)


def floats(name, values, shape):
    """A float32 array of the given shape."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: expected numbers, found {array.dtype}")
    if list(array.shape) != list(shape):
        raise ValueError(f"{name}: expected shape {list(shape)}, found {list(array.shape)}")
    return np.ascontiguousarray(array, np.float32)


def columns(specs):
    """[(name, dim, initial value)], with checked types."""
    return [
        (
            text("name of a column", name),
            integer(f"dim of column '{name}'", dim, 32),
            real(f"initial value of column '{name}'", initial_value),
        )
        for name, dim, initial_value in specs
    ]


def rows(values):
    """A dict of the arrays of a `Rows`, with checked types and sizes."""
    specs = columns(values.columns)
    elements = sum(dim for _, dim, _ in specs)
    arrays = {
        "columns": specs,
        "data": floats("data", values.data, [len(values.keys), elements]),
    }
    for of, others in (
        ("keys", ("frequencies", "versions")),
        ("counted_keys", ("counted_frequencies", "counted_versions")),
    ):
        arrays[of] = integers(of, getattr(values, of))
        for name in others:
            arrays[name] = integers(name, getattr(values, name))
            if len(arrays[name]) != len(arrays[of]):
                raise ValueError(
                    f"{name}: expected shape [{len(arrays[of])}], found [{len(arrays[name])}]"
                )
    return arrays

"""The types of keys and of values in NumPy, by name. key_types.py has those of tensors.

Keys: int64, or uint64 or uint32, which the engine has as int64: uint64 as its 64 bits, uint32 extended by zeros. Arrays of keys that
leave the engine have the type of the table's keys. So the array says what it has: `Rows.keys` of a table with uint64 keys is uint64.

Values: float32, bfloat16 and float16. Arrays of bfloat16 need the package ml_dtypes.
"""

from __future__ import annotations

import typing

import numpy as np

from tf_multitier._src.options.option_values import did_you_mean

_KEYS = ("int64", "uint64", "uint32")
_VALUES = ("float32", "bfloat16", "float16")


def key_type(argument: str, value: typing.Any) -> str:
    """The name of a type of keys, from its name or an object that is one for NumPy or TensorFlow. ValueError if it is none."""
    return _name_of(argument, value, _KEYS)


def value_type(argument: str, value: typing.Any) -> str:
    """The name of a type of values, likewise."""
    return _name_of(argument, value, _VALUES)


def _name_of(argument, value, names):
    found = value if isinstance(value, str) else getattr(value, "name", None)
    if found is None:
        found = getattr(value, "__name__", None)
    if found not in names:
        raise ValueError(
            f"{argument}: expected one of {', '.join(names)}; found {value!r}{did_you_mean(found, names)}"
        )
    return found


def to_int64(keys: np.ndarray) -> np.ndarray:
    """Keys of one of these types as the engine has them."""
    return keys.view(np.int64) if keys.dtype == np.uint64 else np.ascontiguousarray(keys, np.int64)


def from_int64(keys: np.ndarray, name: str) -> np.ndarray:
    """The engine's keys in the type of that name."""
    return keys.view(np.uint64) if name == "uint64" else keys.astype(name, copy=False)


def of_keys(keys: np.ndarray) -> str:
    """The type that an array of keys says: its own if it is unsigned, else int64."""
    return keys.dtype.name if keys.dtype in (np.uint64, np.uint32) else "int64"


def of_name(name: str) -> typing.Any:
    """NumPy's type of values of that name. ImportError where bfloat16 needs a package that is missing."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(
            "arrays of bfloat16 need ml_dtypes: pip install ml_dtypes, or ask for output_dtype='float32'"
        ) from None
    return np.dtype(ml_dtypes.bfloat16)


def as_type(values: np.ndarray, name: str) -> np.ndarray:
    """float32 values, rounded once to the nearest of another type."""
    if name == "float32":
        return values
    with np.errstate(over="ignore"):  # what is too large becomes infinity, as in a table
        return values.astype(of_name(name))

"""Types of keys in NumPy: int64, or uint64 or uint32, which the engine has as int64: uint64 as its 64 bits, uint32 extended by zeros.

Arrays of keys that leave the engine have the type of the table's keys. So the array says what it has: `Rows.keys` of a table with
uint64 keys is uint64.
"""

from __future__ import annotations

import typing

import numpy as np

from tf_multitier._src.options.option_values import did_you_mean

NAMES = ("int64", "uint64", "uint32")


def name_of(argument: str, value: typing.Any) -> str:
    """The name of a type of keys, from its name or an object that is one for NumPy or TensorFlow. ValueError if it is none."""
    found = value if isinstance(value, str) else getattr(value, "name", None)
    if found is None:
        found = getattr(value, "__name__", None)
    if found not in NAMES:
        raise ValueError(
            f"{argument}: expected one of {', '.join(NAMES)}; found {value!r}{did_you_mean(found, NAMES)}"
        )
    return found


def to_int64(keys: np.ndarray) -> np.ndarray:
    """Keys of one of these types as the engine has them."""
    return keys.view(np.int64) if keys.dtype == np.uint64 else np.ascontiguousarray(keys, np.int64)


def from_int64(keys: np.ndarray, name: str) -> np.ndarray:
    """The engine's keys in the type of that name."""
    return keys.view(np.uint64) if name == "uint64" else keys.astype(name, copy=False)


def of_array(keys: np.ndarray) -> str:
    """The type that an array of keys says: its own if it is unsigned, else int64."""
    return keys.dtype.name if keys.dtype in (np.uint64, np.uint32) else "int64"

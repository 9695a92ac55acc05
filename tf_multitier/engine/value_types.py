"""Types of values, by name: "float32", "bfloat16" and "float16". Arrays of bfloat16 need the package ml_dtypes."""

from __future__ import annotations

import typing

import numpy as np

from tf_multitier._src.options.option_values import did_you_mean

NAMES = ("float32", "bfloat16", "float16")


def name_of(argument: str, value: typing.Any) -> str:
    """The name of a type of values, from its name or an object that is one for NumPy or TensorFlow. ValueError if it is none."""
    found = value if isinstance(value, str) else getattr(value, "name", None)
    if found is None:
        found = getattr(value, "__name__", None)
    if found not in NAMES:
        raise ValueError(
            f"{argument}: expected one of {', '.join(NAMES)}; found {value!r}{did_you_mean(found, NAMES)}"
        )
    return found


def numpy_type(name: str) -> typing.Any:
    """The type of NumPy of that name. ImportError where bfloat16 needs a package that is missing."""
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
        return values.astype(numpy_type(name))

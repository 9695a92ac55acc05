"""What a caller gives, as the arrays and tuples that the engine takes; ValueError where it does not fit."""

import numpy as np


def integers(name, values):
    """int64 [n] of integers."""
    array = np.asarray(values)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or (array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max):
        raise ValueError(f"{name}: expected integers that fit int64, found {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"{name}: expected shape [n], found {list(array.shape)}")
    return np.ascontiguousarray(array, np.int64)


def floats(name, values, shape):
    """float32 of that shape."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: expected numbers, found {array.dtype}")
    if list(array.shape) != list(shape):
        raise ValueError(f"{name}: expected shape {list(shape)}, found {list(array.shape)}")
    return np.ascontiguousarray(array, np.float32)


def columns(specs):
    """[(name, dim, initial value)] of what stands for such tuples."""
    return [(str(name), int(dim), float(initial_value)) for name, dim, initial_value in specs]

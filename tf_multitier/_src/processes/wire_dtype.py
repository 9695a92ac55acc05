"""The type in which rows and their gradients cross between processes. Sums are float32, at both ends."""

from __future__ import annotations

import os
import typing

import tensorflow as tf

from tf_multitier.options import value_type

WIRE_DTYPE = "TF_MULTITIER_WIRE_DTYPE"

_set: typing.Any = None


def set_wire_dtype(dtype: typing.Any) -> None:
    """Says in which type rows and their gradients cross between processes: float32, bfloat16 or float16.

    It is for lookups that are built from now on. All processes of a world set the same.

    Args:
      dtype: or its name. None: what TF_MULTITIER_WIRE_DTYPE says, else float32.

    Raises:
      TypeError: another type.
    """
    global _set
    _set = None if dtype is None else value_type("set_wire_dtype: dtype", dtype)


def wire_dtype() -> tf.DType:
    """The type of the wire. TypeError for a value of TF_MULTITIER_WIRE_DTYPE that is none."""
    return _set or value_type(WIRE_DTYPE, os.environ.get(WIRE_DTYPE) or "float32")

"""The tensors of a checkpoint, through TensorFlow's reader, with the errors of this package."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_multitier import _engine

_ERRORS = {
    tf.errors.NotFoundError: _engine.NotFoundError,
    tf.errors.ResourceExhaustedError: _engine.ResourceExhaustedError,
    tf.errors.DataLossError: _engine.DataLossError,
}


@contextlib.contextmanager
def own_errors(where: str, other: type = _engine.EngineError) -> Iterator[None]:
    """Raises TensorFlow's errors as this package's, `other` for those without a counterpart. Messages begin with `where`."""
    try:
        yield
    except (tf.errors.OpError, RuntimeError, IndexError) as error:  # IndexError: a file that is cut
        text = getattr(error, "message", error)
        raise _ERRORS.get(type(error), other)(f"{where}: {text}") from None


class Bundle:
    """The tensors of the checkpoint of a prefix. Thread-safe.

    Attributes:
      path: the prefix.
      shapes: {name: shape as a list}.
      dtypes: {name: tf.DType}.

    Raises:
      NotFoundError: a file is missing.
      DataLossError: a file is damaged, or TensorFlow cannot read it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        with own_errors(f"checkpoint '{path}'", _engine.DataLossError):
            self._reader = tf.compat.v1.train.NewCheckpointReader(path)
        self.shapes = {n: list(s) for n, s in self._reader.get_variable_to_shape_map().items()}
        self.dtypes = self._reader.get_variable_to_dtype_map()

    def tensor(self, name: str) -> np.ndarray:
        """The value of a tensor, whose checksum is checked."""
        where = f"checkpoint '{self.path}', tensor '{name}'"
        with self._lock, own_errors(where, _engine.DataLossError):
            return self._reader.get_tensor(name)

    def damage(self) -> list[str]:
        """Reads all tensors, one at a time. The errors of those that are damaged."""
        found = []
        for name in sorted(self.shapes):
            try:
                self.tensor(name)
            except _engine.EngineError as error:
                found.append(str(error))
        return found

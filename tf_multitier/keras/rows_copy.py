"""RowsCopy: the rows of one table as they were, for `get_weights` and `set_weights` of Keras' models.

Keras' EarlyStopping(restore_best_weights=True) keeps the weights of the best epoch this way.
"""

from __future__ import annotations

import json
import os
import tempfile
import typing

import numpy as np
import tensorflow as tf

from tf_multitier import object_checkpoint
from tf_multitier._library import ops
from tf_multitier.keras.optimizer_states import OptimizerState

_NAME = "rows"  # of the variable in the checkpoint of a copy


class RowsCopy(np.ndarray):
    """An array of shape [0, dim], like the weight, with a copy of the rows in a file.

    The file is a checkpoint of the table in a temporary folder: slots, frequencies, versions and counts of filters are in it, except
    the counts of a Bloom filter of a partitioned variable. The folder is removed with the last array that refers to it. np.save and
    similar functions would store no rows.
    """

    _folder: typing.Any = None
    _state: typing.Any = None

    @classmethod
    def of(cls, part: typing.Any, state: OptimizerState | None) -> RowsCopy:
        """Copies a table. state: what `state` of the copy returns. Like a save, it first removes expired rows.

        Raises:
          NotImplementedError: the table is kept. Its files would then belong to the copy, not to a checkpoint.
        """
        if part.option_attrs["keep"]:
            raise NotImplementedError(
                f"rows of '{part.name}' cannot be copied by get_weights(), because StorageOption.keep=True: use model.save_weights(path)"
            )
        folder = tempfile.TemporaryDirectory(prefix="tf_multitier_rows_")
        prefix = os.path.join(folder.name, _NAME)
        manifest = json.loads(ops.multitier_save_part(part.handle, prefix).numpy())
        manifest.update(partition_index=0, num_partitions=1)
        text = tf.constant(json.dumps(manifest))
        entries = object_checkpoint.entries_of_part(_NAME, 0, 1, part.embedding_dim, text)
        object_checkpoint.write_bundle(prefix, entries)
        copy = np.empty((0, part.embedding_dim), np.float32).view(cls)
        copy._folder, copy._state = folder, state
        return copy

    def __array_finalize__(self, origin: typing.Any) -> None:
        self._folder = getattr(origin, "_folder", None)
        self._state = getattr(origin, "_state", None)

    @property
    def state(self) -> OptimizerState | None:
        """The state of the row optimizer that `of` got."""
        return self._state

    def restore(self, part: typing.Any) -> None:
        """Replaces the rows of a table by the copy. Everything is checked before a row changes.

        Raises:
          ValueError: the array has no rows: it was made by NumPy, or loaded from a file.
        """
        if self._folder is None:
            raise ValueError(
                f"rows of '{part.name}': expected what get_weights() returned, found an array without rows"
            )
        object_checkpoint.restore(part, tf.constant(os.path.join(self._folder.name, _NAME)), _NAME)

    def __reduce__(self) -> typing.Any:
        raise NotImplementedError(
            "rows that get_weights() returned cannot be pickled: use model.save_weights(path)"
        )

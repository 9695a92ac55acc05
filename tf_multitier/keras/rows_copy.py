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

from tf_multitier import key_types
from tf_multitier import object_checkpoint
from tf_multitier import saver
from tf_multitier._library import ops
from tf_multitier.keras.optimizer_states import OptimizerState

_NAME = "rows"  # of the variable in the checkpoint of a copy


class Layout(typing.NamedTuple):
    """What two tables share if one can have the rows of the other."""

    name: str
    part: tuple  # (partition, partitions, dim)
    keys: str
    values: str

    @classmethod
    def of(cls, table: typing.Any) -> Layout:
        """The layout of an embedding variable that is not partitioned, or of a part."""
        part = (table.partition_index, table.num_partitions, table.embedding_dim)
        return cls(table.name, part, key_types.name_in_files(table), table.dtype.name)

    def check(self, found: Layout, what: str) -> None:
        """ValueError if a table of this layout cannot have the rows of one with the layout `found`. what: starts the message."""
        if found.part != self.part:
            raise ValueError(
                f"{what}: expected (partition, partitions, dim) {self.part}, found {found.part} of '{found.name}'"
            )
        if found.keys != self.keys:
            raise ValueError(
                f"{what}: expected keys of {self.keys}, found {found.keys} of '{found.name}': give both layers one key_dtype"
            )
        if found.values != self.values and not saver.is_converting():
            raise ValueError(
                f"{what}: expected values of {self.values}, found {found.values} of '{found.name}': replace them in "
                "`with tf_multitier.train.convert_on_restore():`"
            )


class RowsCopy(np.ndarray):
    """An array of shape [0, dim], like the weight, with a copy of the rows in a file.

    The file is a checkpoint of the table in a temporary folder: slots, frequencies, versions and counts of filters are in it, except
    the counts of a Bloom filter of a partitioned variable. The folder is removed with the last array that refers to it. np.save and
    similar functions would store no rows.
    """

    _folder: typing.Any = None
    _state: typing.Any = None
    _layout: typing.Any = None

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
        copy._folder, copy._state, copy._layout = folder, state, Layout.of(part)
        return copy

    def __array_finalize__(self, origin: typing.Any) -> None:
        self._folder = getattr(origin, "_folder", None)
        self._state = getattr(origin, "_state", None)
        self._layout = getattr(origin, "_layout", None)

    @property
    def state(self) -> OptimizerState | None:
        """The state of the row optimizer that `of` got."""
        return self._state

    def restore(self, part: typing.Any, what: str) -> None:
        """Replaces the rows of a table by the copy. Everything is checked before a row changes. what: starts messages.

        Raises:
          ValueError: the array has no rows: it was made by NumPy, or loaded from a file. Or the copy is that of another partition, or
            has another dim, or other types of keys or values.
        """
        if self._folder is None:
            raise ValueError(
                f"{what}: expected what get_weights() returned, found an array without rows"
            )
        Layout.of(part).check(self._layout, what)
        object_checkpoint.restore(part, tf.constant(os.path.join(self._folder.name, _NAME)), _NAME)

    def __reduce__(self) -> typing.Any:
        raise NotImplementedError(
            "rows that get_weights() returned cannot be pickled: use model.save_weights(path)"
        )

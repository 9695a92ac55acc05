"""Reads and writes the rows of snapshots as arrays, without an embedding.

A row is one array of storage_dim elements: the value, then the states of the optimizer. The files are those of snapshots.py; a written
one has a table whose value is the whole row, and the tensor STORAGE_DIM.
"""

from __future__ import annotations

import contextlib
import os
import typing
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_multitier import checkpoint
from tf_multitier import options as variable_options
from tf_multitier._src.options import key_types
from tf_multitier._src.options.option_values import integer
from tf_multitier.engine.rows import Rows
from tf_multitier.one_embedding import options
from tf_multitier.one_embedding import snapshots

_MOST_ROWS = 65_536
_FLOAT32 = "float32"


class _Arguments:
    """The checked arguments of a reader or writer."""

    def __init__(self, paths, key_type, value_type, storage_dim, physical_block_size):
        self.paths = options.checked_path([paths] if isinstance(paths, str) else paths)
        if not isinstance(self.paths, list) or not self.paths:
            raise ValueError(
                f"paths: expected a list of the folders of ranks, such as '/ssd/0-1'; found {paths!r}"
            )
        real = [os.path.realpath(path) for path in self.paths]
        if len(set(real)) < len(real):
            raise ValueError(
                f"paths: expected a folder for each rank, found one twice in {paths!r}"
            )
        self.key_type = key_types.key_type("key_type", key_type)
        self.value_type = variable_options.value_type("value_type", value_type)
        self.storage_dim = integer("storage_dim", storage_dim, 1)
        options.checked_row(1, -1, physical_block_size)
        self.keys_in_files = key_types.name_in_files(self)

    key_dtype = property(lambda self: self.key_type)  # as a variable has it


class TableReader(_Arguments):
    """Iterates over the rows of a snapshot: see make_persistent_table_reader."""

    def __init__(
        self,
        paths: typing.Any,
        snapshot_name: str,
        key_type: typing.Any,
        value_type: typing.Any,
        storage_dim: int,
        physical_block_size: int = 4096,
    ) -> None:
        super().__init__(paths, key_type, value_type, storage_dim, physical_block_size)
        folders = [snapshots.existing(path, snapshot_name) for path in self.paths]
        for rank, folder in enumerate(folders):
            what = f"snapshot '{snapshot_name}': paths"
            snapshots.check_place(what, folder, (rank, len(folders)))
        self._tables = [snapshots.saved_table(folder) for folder in folders]
        for folder, table in zip(folders, self._tables):
            self._check(folder, table)

    def _check(self, folder, table):
        width = sum(dim for _, dim, _ in table.columns)
        if width != self.storage_dim:
            parts = " + ".join(f"{dim} of '{name}'" for name, dim, _ in table.columns)
            raise ValueError(
                f"snapshot '{folder}': storage_dim: expected {width} ({parts}), found {self.storage_dim}"
            )
        if table.key_dtype != self.keys_in_files:
            raise ValueError(
                f"snapshot '{folder}': key_type: expected {table.key_dtype}, found {self.key_type.name}"
            )
        # What float32 has in the files, a type of 16 bits does not have.
        if self.value_type != tf.float32 and (
            table.dtype != self.value_type.name or len(table.columns) > 1
        ):
            raise ValueError(
                f"snapshot '{folder}': value_type: expected float32, as its rows have, found {self.value_type.name}"
            )

    def __enter__(self) -> TableReader:
        return self

    def __exit__(self, kind: type | None, error: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the reader: what was not read yet is not read."""
        self._tables = []

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for table in self._tables:
            for block in table.blocks():
                for at in range(0, len(block), _MOST_ROWS):
                    piece = slice(at, at + _MOST_ROWS)
                    yield self._keys(block.keys[piece]), self._values(block.data[piece])

    def _keys(self, keys):
        found = keys.astype(self.key_type.as_numpy_dtype)
        wrong = np.flatnonzero(found != keys)
        if wrong.size:
            raise ValueError(
                f"key_type: expected int64, as key {keys[wrong[0]]} needs, found {self.key_type.name}"
            )
        return found

    def _values(self, values):
        return values.astype(self.value_type.as_numpy_dtype, copy=False)


class TableWriter(_Arguments):
    """Writes rows as a snapshot: see make_persistent_table_writer."""

    def __init__(
        self,
        paths: typing.Any,
        snapshot_name: str,
        key_type: typing.Any,
        value_type: typing.Any,
        storage_dim: int,
        physical_block_size: int = 4096,
    ) -> None:
        super().__init__(paths, key_type, value_type, storage_dim, physical_block_size)
        self._columns = [("value", self.storage_dim, 0.0)]
        self._adds: list | None = []
        with contextlib.ExitStack() as stack:
            for rank, path in enumerate(self.paths):
                prefix = stack.enter_context(snapshots.new_snapshot(path, snapshot_name))
                writer = stack.enter_context(checkpoint.Writer(prefix, latest=False))
                writer.add_tensor(snapshots.STORAGE_DIM, np.int64(self.storage_dim))
                writer.add_tensor(snapshots.PLACE, np.array([rank, len(self.paths)]))
                add = stack.enter_context(
                    writer.open_table(
                        snapshots.TABLE,
                        self._columns,
                        self.keys_in_files,
                        self.value_type.name,
                        repeats="unchecked",
                    )
                )
                self._adds.append(add)
            self._open = stack.pop_all()

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: type | None, error: typing.Any, trace: typing.Any) -> None:
        """Closes the writer. After an error there is no snapshot."""
        if kind is None:
            self.close()
        elif self._adds is not None:
            self._adds = None
            self._open.__exit__(kind, error, trace)

    def close(self) -> None:
        """Completes the snapshot. Without it there is none. A second call does nothing."""
        if self._adds is not None:
            self._adds = None
            self._open.close()

    def write(self, keys: typing.Any, values: typing.Any) -> None:
        """Adds rows, each to the rank that its key belongs to. A snapshot with a key that was written twice cannot be loaded.

        Args:
          keys: integers of key_type [n].
          values: numbers of value_type [n, storage_dim].

        Raises:
          TypeError: keys or values of another type.
          ValueError: other shapes, or a closed writer.
        """
        if self._adds is None:
            raise ValueError("write: expected an open table writer, found a closed one")
        keys, values = np.asarray(keys), np.asarray(values)
        for name, array, expected in (
            ("keys", keys, self.key_type),
            ("values", values, self.value_type),
        ):
            if array.dtype != expected.as_numpy_dtype:
                raise TypeError(f"{name}: expected {expected.name}, found {array.dtype}")
        if keys.ndim != 1 or values.shape != (len(keys), self.storage_dim):
            raise ValueError(
                f"expected keys [n] and values [n, {self.storage_dim}], found {list(keys.shape)} and {list(values.shape)}"
            )
        if self.keys_in_files == "int64":
            keys = keys.astype(np.int64)
        owners = snapshots.owners_of(keys, len(self._adds))
        for rank, add in enumerate(self._adds):
            its = slice(None) if len(self._adds) == 1 else np.flatnonzero(owners == rank)
            zeros = np.zeros(len(keys[its]), np.int64)
            rows = values[its].astype(np.float32, copy=False)
            add(Rows(self._columns, keys[its], zeros, zeros, rows, dtype=self.value_type.name))


def make_persistent_table_reader(
    paths: typing.Any,
    snapshot_name: str,
    key_type: typing.Any,
    value_type: typing.Any,
    storage_dim: int,
    physical_block_size: int = 4096,
) -> TableReader:
    """An iterator over the rows of a snapshot. Its memory is that of a batch.

        with make_persistent_table_reader(["/ssd/0-1"], "day-1", tf.int64, tf.float32, 3 * 16) as reader:
            for keys, rows in reader:

    Args:
      paths: the folders of the ranks, all of a world: "<persistent_path>/0-1".
      snapshot_name: of the snapshot.
      key_type: of the keys: a type of TensorFlow or NumPy.
      value_type: of the rows: float32; of rows of 16 bits without states, their type, too.
      storage_dim: elements of a row: the value, and the states of the optimizer that trained it.
      physical_block_size: 512 or 4096. It has no effect.

    Yields:
      Pairs of keys, key_type [n], and rows, value_type [n, storage_dim], with n from 1 to 65,536.

    Raises:
      FileNotFoundError: there is no such snapshot; the message lists those there are.
      TypeError, ValueError: a bad argument, or the snapshot has others; the message has the right storage_dim.
      DataLossError: while iterating, a file is damaged.
    """
    return TableReader(paths, snapshot_name, key_type, value_type, storage_dim, physical_block_size)


def make_persistent_table_writer(
    paths: typing.Any,
    snapshot_name: str,
    key_type: typing.Any,
    value_type: typing.Any,
    storage_dim: int,
    physical_block_size: int = 4096,
) -> TableWriter:
    """A writer of a snapshot, which `load_snapshot` of an embedding loads. Its memory is that of a batch.

    Args:
      paths: the folders of the ranks. Rows are divided over them by the hash of the key, so that the rows of a reader of n ranks become
        a snapshot of m.
      snapshot_name, key_type, value_type, storage_dim, physical_block_size: see make_persistent_table_reader.

    Returns:
      A context manager with `write(keys, values)` and `close()`, which completes the snapshot.

    Raises:
      FileExistsError: there is a snapshot of that name.
      TypeError, ValueError: a bad argument.
    """
    return TableWriter(paths, snapshot_name, key_type, value_type, storage_dim, physical_block_size)

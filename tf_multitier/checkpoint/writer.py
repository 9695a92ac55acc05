"""Writes checkpoints that a Saver restores (docs/formats/table_part.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_multitier import _engine
from tf_multitier._src.options.option_values import one_of
from tf_multitier.checkpoint.files import CheckpointFiles
from tf_multitier.checkpoint.files import part_file_name
from tf_multitier.checkpoint.source import check_key_type
from tf_multitier.checkpoint.source import key_dtype
from tf_multitier.checkpoint.source import RowSource
from tf_multitier.checkpoint.source import value_dtype
from tf_multitier.engine import arguments
from tf_multitier.engine.rows import Rows

_NUM_BUCKETS = 1024

FROZEN_DTYPES = ("float32", "float16", "bfloat16")


class Writer(CheckpointFiles):
    """Writes a checkpoint from rows and arrays.

        with tf_multitier.checkpoint.Writer("/models/model-0") as writer:
            writer.add_table("user", rows, partitions=2)
            writer.add_tensor("dense/kernel", kernel)

    The checkpoint exists once the `with` block has ended: the part files are synced before the index is written. After an exception
    in the block, or if the index cannot be written, there is no checkpoint, and its files are deleted. The `checkpoint` file of
    the directory then names this checkpoint, and no other, unless `latest` is False. If several Writers have the same prefix,
    the first to end its block writes the checkpoint; the others raise AlreadyExistsError.

    Args:
      path: the checkpoint's prefix. Its directory exists.
      latest: whether the directory's `checkpoint` file then names this checkpoint, and no other.

    Raises:
      AlreadyExistsError: there is a checkpoint of that prefix.
      ValueError: TensorFlow cannot restore from such a path.
      EngineError: at the end of the block, if the index cannot be written. ResourceExhaustedError if the disk is full.
    """

    def __enter__(self) -> Writer:
        super().__enter__()
        return self

    def add_table(
        self,
        name: str,
        rows: RowSource | Rows,
        partitions: int = 1,
        initializer: Mapping | None = None,
        applies: int = 0,
        matrix: np.ndarray | None = None,
        frozen: str | tf.DType | None = None,
        save_ids: Sequence[int] | None = None,
    ) -> int:
        """Writes the rows of an embedding variable.

        Args:
          name: the variable's name.
          rows: a RowSource or an `engine.Rows`. The writer needs memory for one block of it, and 16 bytes for each key.
          partitions: number of part files. A variable of any number of partitions restores them.
          initializer: dict as in `SavedTable.initializer`. None: the variable that restores keeps its own.
          applies: the table's count of updates. Without a global step, it is the version that new updates give to rows.
          matrix: float32 [matrix_rows, dim], as `SavedTable.matrix` returns it, for an initializer of kind "matrix".
          frozen: None, or the dtype of the values: "float32", "float16" or "bfloat16". Then only keys and values are written: no slots,
            frequencies, versions and counted keys.
          save_ids: `SavedTable.save_ids` of the save that has these rows in these partitions, so that deltas may continue the new one.
            None: none may.

        Returns:
          The number of rows written.

        Raises:
          ValueError: the name has been added; a key has two rows, is counted twice, or is counted and has a row; rows have other
            columns than `rows.columns`; the matrix does not fit the initializer; `frozen` is no dtype of these.
        """
        frozen = getattr(frozen, "name", frozen)
        if frozen not in (None, *FROZEN_DTYPES):
            raise ValueError(f"frozen: expected None, {', '.join(FROZEN_DTYPES)}; found {frozen!r}")
        count = 0
        with self.open_table(
            name,
            rows.columns,
            key_dtype(rows),
            frozen or value_dtype(rows),
            partitions,
            initializer=initializer,
            applies=applies,
            matrix=matrix,
            is_frozen=frozen is not None,
            save_ids=save_ids,
        ) as add:
            for block in [rows] if isinstance(rows, Rows) else rows.blocks():
                count += add(block)
        return count

    @contextlib.contextmanager
    def open_table(
        self,
        name: str,
        columns: Sequence,
        key_dtype: str = "int64",
        dtype: str = "float32",
        partitions: int = 1,
        *,
        initializer: Mapping | None = None,
        applies: int = 0,
        matrix: np.ndarray | None = None,
        is_frozen: bool = False,
        save_ids: Sequence[int] | None = None,
        repeats: str = "error",
        arrays: Sequence = (),
    ) -> Iterator[Callable[[Rows], int]]:
        """Writes the rows of an embedding variable a block at a time: gives a function that adds an `engine.Rows`, and returns its size.

        Args:
          name, partitions, initializer, applies, matrix, save_ids: see add_table.
          columns: list of (name, dim, initial value): the value first, then the slots.
          key_dtype, dtype: of the keys and the values, as those of a RowSource.
          is_frozen: whether only keys and values of type `dtype` are written.
          repeats: for a key that is added twice: "error", which takes 16 bytes of memory for each key; or "unchecked": then a restore
            refuses the checkpoint.
          arrays: list of (rows, [(column, file, path, crc32 or None)]): rows that are in files `<prefix>.<file>` already, as
            cc/checkpoint_files/column_rows.h says. `path` is for messages.

        Raises:
          ValueError: see add_table.
        """
        one_of("repeats", repeats, ("error", "unchecked"))
        if not 1 <= partitions <= _NUM_BUCKETS:
            raise ValueError(f"partitions: expected 1 to {_NUM_BUCKETS}, found {partitions}")
        columns = arguments.columns("columns", columns)
        matrix = _checked_matrix(name, initializer, matrix, columns[0][1])
        base = _manifest(columns, key_dtype, dtype, initializer, is_frozen)
        base.update(num_partitions=partitions, applies=applies)
        ids = [0] * partitions if save_ids is None else list(save_ids)
        if len(ids) != partitions:
            raise ValueError(f"save_ids: expected {partitions} numbers, found {len(ids)}")
        manifests = [
            dict(base, partition_index=i, file=part_file_name(), save_id=ids[i])
            for i in range(partitions)
        ]
        tensors = [f"{name}/part_{part}-of-{partitions}/manifest" for part in range(partitions)]
        added = {
            name: np.zeros([0, columns[0][1]], np.float32),
            f"{name}/partition_of_bucket": _partition_of_bucket(partitions),
        }
        for tensor in added:
            self._check_new(tensor)
        keys: list = []
        counted: list = []

        def add(block):
            if [tuple(c[:2]) for c in block.columns] != [tuple(c[:2]) for c in columns]:
                raise ValueError(f"'{name}': expected columns {columns}, found {block.columns}")
            check_key_type(name, block, key_dtype)
            checked = arguments.rows(values_of(block) if is_frozen else block)
            for writer, of_part in zip(writers, _by_part(checked, partitions)):
                writer.add(of_part)
            if repeats == "error":
                keys.append(checked["keys"])
                counted.append(checked["counted_keys"])
            return len(checked["keys"])

        with self._parts(tensors, manifests, matrix) as writers:
            for rows, files in arrays:
                writers[0].add_columns(rows, files)
            yield add
            _check_distinct(name, keys, counted)
        for tensor, value in added.items():
            self.add_tensor(tensor, value)

    def add_tensor(self, name: str, value: np.ndarray) -> None:
        """Adds a dense tensor. It stays in memory until the end of the block.

        Raises:
          ValueError: the name has been added, or `value` has no dtype of TensorFlow.
        """
        self._check_new(name)
        array = np.asarray(value)
        if array.dtype.kind in "SU" and not isinstance(value, np.ndarray):
            array = np.array(value, object)  # NumPy's strings lose zero bytes at their end
        try:
            if array.dtype.kind in "OSU":
                array = np.vectorize(tf.compat.as_bytes, [object])(array)
            tf.as_dtype(array.dtype)
        except TypeError:
            raise ValueError(
                f"tensor '{name}': expected numbers or strings, found {array.dtype}"
            ) from None
        self._add_tensor(name, array.nbytes, lambda: array)


def values_of(rows: Rows) -> Rows:
    """Rows with the first column alone, and without counted keys."""
    dim = rows.columns[0][1]
    return Rows(rows.columns[:1], rows.keys, rows.frequencies, rows.versions, rows.data[:, :dim])


def _manifest(columns, key_dtype, dtype, initializer, is_frozen):
    """What the manifests of all parts have in common, without the numbers of the parts."""
    its_columns = [
        {
            "name": column,
            "dtype": "float32" if i else dtype,
            "dim": dim,
            "initial_value": value,
        }
        for i, (column, dim, value) in enumerate(columns[:1] if is_frozen else columns)
    ]
    manifest = {
        "format_version": 1,
        "key_dtype": key_dtype,
        "dim": columns[0][1],
        "columns": its_columns,
        "num_rows": 0,
        "checksum": 0,
    }
    if is_frozen:
        manifest["frozen"] = 1
    if initializer is not None:
        manifest["initializer"] = dict(initializer)
        if "initializers" in initializer:
            manifest["initializers"] = manifest["initializer"].pop("initializers")
    return manifest


def _checked_matrix(name, initializer, matrix, dim):
    """The initial matrix as float32 [rows, dim]; without one, an empty array."""
    rows = 0
    if initializer is not None and initializer["kind"] == "matrix":
        rows = initializer["matrix_rows"]
    found = np.zeros([0, dim], np.float32) if matrix is None else np.asarray(matrix, np.float32)
    if found.shape != (rows, dim):
        raise ValueError(
            f"'{name}': expected a matrix of initial values of shape {[rows, dim]}, found {list(found.shape)}"
        )
    return np.ascontiguousarray(found)


def _check_distinct(name, keys, counted):
    repeated = repeated_key(keys)
    if repeated is not None:
        raise ValueError(f"'{name}': expected each key once, found key {repeated} again")
    if not any(len(of_block) for of_block in counted):
        return
    repeated = repeated_key(counted)
    if repeated is not None:
        raise ValueError(f"'{name}': expected each counted key once, found key {repeated} again")
    repeated = repeated_key([*keys, *counted])
    if repeated is not None:
        raise ValueError(f"'{name}': expected counted keys without rows, found key {repeated}")


def _partition_of_bucket(partitions):
    owners = np.zeros(_NUM_BUCKETS, np.int32)
    for part in range(partitions):
        owners[part * _NUM_BUCKETS // partitions :] = part
    return owners


def _by_part(rows, partitions):
    """Splits the dict of `arguments.rows` into one for each partition."""
    if partitions == 1:
        return [rows]
    split = [{"columns": rows["columns"]} for _ in range(partitions)]
    for of, others in (
        ("keys", ("frequencies", "versions", "data")),
        ("counted_keys", ("counted_frequencies", "counted_versions")),
    ):
        owners = _engine.partitions_of(rows[of], partitions)
        order = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[order], np.arange(partitions), side="right")
        for name in (of, *others):
            for part, array in zip(split, np.split(rows[name][order], ends[:-1])):
                part[name] = array
    return split


def repeated_key(keys: Iterable) -> int | None:
    """A key that occurs twice in a list of arrays, or None."""
    keys = np.concatenate([np.zeros(0, np.int64), *keys])
    keys.sort()
    again = np.flatnonzero(keys[1:] == keys[:-1])
    return int(keys[again[0]]) if again.size else None

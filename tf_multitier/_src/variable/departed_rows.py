"""DepartedRows: the methods of EmbeddingVariable and PartitionedEmbeddingVariable that tell which rows left, or got no place.

pop_dropped    keys or rows that a full or damaged table dropped
removed_since  keys that had a row at a version, and have none now
last_update    how many rows the last update refused and dropped
"""

from __future__ import annotations

import collections.abc
import typing

import tensorflow as tf

from tf_multitier._src.options import key_types
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.variable.queries import colocated
from tf_multitier._src.variable.queries import Queries
from tf_multitier._src.variable.queries import typed


class UpdateCounts(typing.NamedTuple):
    """What became of rows in an update: int64 scalars.

    Attributes:
      refused: new keys that got no row, because of `StorageOption.on_full` or `refuse_colder`.
      dropped: rows that left the table while the update ran, to make room.
    """

    refused: typing.Any
    dropped: typing.Any


class DroppedRows(typing.NamedTuple):
    """Rows that were dropped: tensors, or, after Session.run, arrays. A row that was damaged is NaN, frequency 0, version -1.

    Attributes:
      keys: int64 [n], or uint64 or uint32 if that is the key_dtype.
      columns: a dict from names of columns to float32 [n, dim of the column]. "value" is the embedding, in the variable's dtype.
      frequencies: int64 [n]: number of occurrences in training.
      versions: int64 [n]: version of the last update.
    """

    keys: typing.Any
    columns: dict
    frequencies: typing.Any
    versions: typing.Any


def column_name(column):
    """The name of a column that a caller gives as a name or as a slot (SlotColumn)."""
    name = getattr(column, "column", column)
    if not isinstance(name, str):
        raise TypeError(f"expected names of columns or slots, found {column!r}")
    return name


def column_names(columns):
    if columns is None:
        return ["value"]
    if isinstance(columns, str) or not isinstance(columns, collections.abc.Iterable):
        raise TypeError(f"columns: expected a list of names, found {columns!r}")
    return [column_name(column) for column in columns]


class DepartedRows(Queries):
    """Methods that build ops; run the result in a Session.

    A class that uses this mixin has what Queries asks for.
    """

    if typing.TYPE_CHECKING:

        @property
        def parts(self) -> list: ...

    def _typed_columns(self, names, columns):
        """{name: column}, of which the value has the variable's type."""
        return {n: typed(self, c) if n == "value" else c for n, c in zip(names, columns)}

    def pop_dropped(
        self,
        name: str = "pop_dropped",
        rows: bool = False,
        columns: collections.abc.Sequence | None = None,
    ) -> typing.Any:
        """What was dropped since the last run of this op, by `StorageOption(drop_coldest=True)` or `on_corruption="drop"`.

        Args:
          name: name of the op.
          rows: False: the keys. True: the rows, for `StorageOption(dropped="rows")`.
          columns: of the rows: names of columns, or slots (`optimizer.get_slot(ev, name)`). None: ["value"].

        Returns:
          The keys [n], or `DroppedRows`, in no particular order: as many of the newest as `StorageOption.dropped_bytes` hold.

        Raises:
          tf.errors.FailedPreconditionError, when run: rows is True, and the variable does not keep them.
          tf.errors.InvalidArgumentError, when run: no such column. Nothing is forgotten.
        """
        rows = boolean("pop_dropped: rows", rows)
        with tf.name_scope(name):
            dropped = []
            names = column_names(columns)
            for part in self.parts:
                with colocated(part):
                    dropped.append(
                        ops.multitier_pop_dropped_rows(
                            part.handle, N=len(names), column_names=names
                        )
                        if rows
                        else ops.multitier_pop_dropped(part.handle)
                    )
            join = lambda tensors: tensors[0] if len(tensors) == 1 else tf.concat(tensors, 0)
            if not rows:
                return key_types.from_int64(self, join(dropped))
            return DroppedRows(
                key_types.from_int64(self, join([d.keys for d in dropped])),
                self._typed_columns(
                    names, [join([d.columns[i] for d in dropped]) for i in range(len(names))]
                ),
                join([d.frequencies for d in dropped]),
                join([d.versions for d in dropped]),
            )

    def removed_since(self, version: typing.Any, name: str = "removed_since") -> tf.Tensor:
        """Keys without a row that had one at this version of the variable or later: removed, expired or dropped since.

        A copy of the variable deletes them, after it has taken the rows of that version and later (`rows` with min_version). Not in
        DeepRec.

        Args:
          version: int64 scalar: the global step when the last update of the copy began; with score="time", the time in microseconds.
          name: name of the op.

        Returns:
          [n], int64, or uint64 or uint32 if that is the key_dtype: each key once, with some that left a little before that version.
          Sorted within a partition, uint64 as int64 of the same bits.

        Raises:
          tf.errors.FailedPreconditionError, when run: removals of that version are not known. The variable was cleared or restored
            at that version or later; or `StorageOption.removed_bytes` is less than 16; or more keys left than it holds, and the
            variable has no files.
        """
        with tf.name_scope(name):
            version = tf.convert_to_tensor(version, tf.int64, name="version")
            removed = []
            for part in self.parts:
                with colocated(part):
                    removed.append(ops.multitier_removed_since(part.handle, version))
            return key_types.from_int64(
                self, removed[0] if len(removed) == 1 else tf.concat(removed, 0)
            )

    def last_update(self, name: str = "last_update") -> UpdateCounts:
        """What became of rows in the last update of the variable, in all its partitions.

        In eager execution, call it after `apply_gradients`. If several threads train, the last update is the one that ended last.
        `stats` has the same numbers as `last_refused` and `last_dropped`. Not in DeepRec.

        Returns:
          `UpdateCounts`: int64 scalars, summed over partitions. Zeros before the first update.
        """
        with tf.name_scope(name):
            counts = []
            for part in self.parts:
                with colocated(part):
                    counts.append(ops.multitier_last_update(part.handle))
            return UpdateCounts(
                tf.add_n([c.refused for c in counts]), tf.add_n([c.dropped for c in counts])
            )

"""Reads a base and the deltas that continue it as one checkpoint (docs/formats/table_part.md, "Deltas").

    model-1000                a base: all rows
    model-1000.delta-0001     what changed since model-1000
    model-1000.delta-0002     what changed since model-1000.delta-0001

The newest save that has a key decides: its row, its count, or that it was removed. So the saves are read from the newest to the
base, and a key is given once. The keys of the deltas that were read are in memory, at most _KEYS_AT_ONCE of them: if there are
more, the files are read several times, each time for a part of the keys.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import struct
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_multitier import _engine
from tf_multitier._engine import DataLossError
from tf_multitier._src.variable.delta_names import DELTA
from tf_multitier._src.variable.delta_names import deltas
from tf_multitier.checkpoint.saved import Checkpoint
from tf_multitier.checkpoint.saved import find_prefix
from tf_multitier.checkpoint.saved import SavedPart
from tf_multitier.checkpoint.saved import SavedTable
from tf_multitier.checkpoint.saved import Tables
from tf_multitier.checkpoint.source import RowSource
from tf_multitier.checkpoint.source import with_keys
from tf_multitier.engine.rows import Rows

_KEYS_AT_ONCE = 4 << 20
_END = struct.Struct("<qqI")  # the end of a part file: rows, counted keys, checksum


@dataclasses.dataclass
class DeltaRows(Rows):
    """Rows of a delta: those that changed, and int64 [k] `removed_keys`."""

    removed_keys: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))

    def all_keys(self) -> np.ndarray:
        """The keys of rows, the counted keys and the removed keys: int64 [n + m + k]."""
        return np.concatenate([self.keys, self.counted_keys, self.removed_keys])


class DeltaTable(SavedTable):
    """An embedding variable in a delta: `blocks` yields DeltaRows. Other attributes: as of SavedTable.

    Attributes:
      num_removed: number of keys that it removes, in all parts.
    """

    rows_of_block = DeltaRows

    def __init__(self, names: list[str], parts: list[SavedPart]) -> None:
        super().__init__(names, parts)
        self.num_removed = sum(part.num_removed for part in parts)


class Delta(Checkpoint):
    """What a delta has: `tables` has DeltaTables; `tensors` are complete."""

    tables: Tables[DeltaTable]
    _manifest = "delta"
    _table_type = DeltaTable


class ChainTable(RowSource):
    """An embedding variable in a chain, as it is after the last delta.

    Attributes:
      name, names: as of SavedTable, in the base.
      columns: list of (name, dim, initial value): the value first, then the optimizer's slots.
      num_rows: None: it is known only after reading.
      base: the SavedTable of the base.
      deltas: list of DeltaTable, in the order in which they continue the base.
      dtype, key_dtype, frozen, initializer, applies, num_partitions, save_ids: as of SavedTable, in the newest save.
    """

    num_rows = None

    def __init__(self, base: SavedTable, deltas: list[DeltaTable]) -> None:
        newest = deltas[-1] if deltas else base
        self.name, self.names = base.name, base.names
        self.base, self.deltas = base, deltas
        self.columns = newest.columns
        self.dtype, self.frozen = newest.dtype, newest.frozen
        self.key_dtype = newest.key_dtype
        self.initializer, self.applies = newest.initializer, newest.applies
        self.num_partitions, self.save_ids = base.num_partitions, newest.save_ids

    def blocks(self) -> Iterator[Rows]:
        """Yields the rows and counted keys of all parts, each key once.

        Raises:
          FileNotFoundError: a part file is missing.
          DataLossError: a part file is damaged, or not of this part. The message has the file.
        """
        for index in range(self.num_partitions):
            for rows in self.part(index).blocks():
                yield with_keys(rows, self.key_dtype)

    def part(self, index: int) -> ChainPart:
        """One part."""
        saves = [table.parts[index] for table in (self.base, *self.deltas)]
        return ChainPart(self, index, saves)

    def matrix(self) -> np.ndarray | None:
        """The initial matrix, float32 [matrix_rows, dim], of an initializer of kind "matrix"; else None."""
        return (self.deltas[-1] if self.deltas else self.base).matrix()

    def verify(self) -> None:
        """Reads and checks every byte of the part files of all saves. Raises what `blocks` raises."""
        for table in (self.base, *self.deltas):
            table.verify()


class ChainPart:
    """The rows of one part after the last delta.

    Attributes:
      manifest: JSON text of the newest save's manifest.
      filter_counters: uint8 [n], the newest state of a Bloom filter, or an empty array. Known once `blocks` has ended.
    """

    def __init__(self, table: ChainTable, index: int, saves: list[SavedPart]) -> None:
        self.manifest = saves[-1].manifest
        self.filter_counters = np.zeros(0, np.uint8)
        self._table, self._index, self._saves = table, index, saves

    def blocks(self) -> Iterator[Rows]:
        """See ChainTable.blocks. Keys are int64, whatever their type."""
        passes = max(1, -(-sum(_num_keys(save) for save in self._saves[1:]) // _KEYS_AT_ONCE))
        for number in range(passes):
            seen = np.zeros(0, np.int64)
            for place in reversed(range(len(self._saves))):
                found = []
                for rows in self._rows(place):
                    if passes > 1:
                        other = functools.partial(_is_of_other_pass, passes=passes, number=number)
                        rows = _without(rows, other)
                    if place:
                        found.append(rows.all_keys())
                    rows = _without(rows, functools.partial(_is_among, sorted_keys=seen))
                    if len(rows) or len(rows.counted_keys):
                        yield _in_columns(rows, self._table.columns, self._saves[place].path)
                if found:
                    seen = _with_distinct(seen, np.concatenate(found), self._saves[place].path)

    def _rows(self, place):
        """The blocks of one save, of which each key is checked to belong to this part."""
        save, partitions = self._saves[place], self._table.num_partitions
        reader = _engine.PartReader(save.path, save.manifest)
        while (block := reader.next()) is not None:
            rows = DeltaRows(**block)
            if partitions > 1:
                keys = rows.all_keys()
                owners = _engine.partitions_of(keys, partitions)
                for foreign in np.flatnonzero(owners != self._index)[:1]:
                    raise DataLossError(
                        f"checkpoint part {save.path}: expected keys of part {self._index} of {partitions}, found key "
                        f"{keys[foreign]} of part {owners[foreign]}"
                    )
            yield rows
        if place == len(self._saves) - 1:
            self.filter_counters = reader.filter_counters()


class Chain:
    """A base and the deltas that continue it, read as one checkpoint: what a restore of the newest delta gives.

    Attributes:
      path: the prefix of the newest save.
      base: the Checkpoint of all rows.
      deltas: list of Delta, in the order in which they continue the base; may be empty.
      tables: {name: ChainTable}, the embedding variables: each once, and by each of its names.
      tensors: {name: (tf.DType, shape as a list)}, all dense tensors, as the newest save has them.

    Raises:
      NotFoundError: a file of a save is missing.
      DataLossError: a save is damaged, or does not continue the one before it. The message has its path.
    """

    def __init__(self, base: str, deltas: list[str]) -> None:
        self.base = Checkpoint(base)
        self.deltas = [Delta(path) for path in deltas]
        self._newest = self.deltas[-1] if self.deltas else self.base
        for previous, delta in zip([self.base, *self.deltas], self.deltas):
            check_continues(delta, previous)
        self.path = self._newest.path
        self.tensors = self._newest.tensors
        self.tables = Tables(
            ChainTable(table, [delta.tables[name] for delta in self.deltas])
            for name, table in self.base.tables.items()
        )

    def tensor(self, name: str) -> np.ndarray:
        """The value of a dense tensor in the newest save. KeyError if there is none of that name."""
        return self._newest.tensor(name)

    def damage(self) -> list[str]:
        """Reads all tensors of all saves, one at a time, but no part files. What is damaged."""
        return [text for save in (self.base, *self.deltas) for text in save.damage()]


def load(path: str | os.PathLike) -> Checkpoint | Chain:
    """Reads what a checkpoint has. Rows are read later, by the tables' methods.

    Args:
      path: a checkpoint's prefix, a directory with a `checkpoint` file (its newest checkpoint), or a SavedModel's directory. The
        prefix of a delta (`<base>.delta-<number>`) gives the base with the deltas up to that one.

    Returns:
      A Checkpoint; of the prefix of a delta, a Chain, which has the same attributes.

    Raises:
      FileNotFoundError: there is no checkpoint.
      DataLossError: the checkpoint lacks a part, or a manifest or TensorFlow's index is damaged; a delta is missing, or of another
        chain.
      NotImplementedError: a part has another format version.
    """
    prefix = find_prefix(path)
    return _chain_to(prefix) if _is_delta(prefix) else Checkpoint(prefix)


def load_chain(path: str | os.PathLike) -> Chain:
    """Reads a checkpoint and all deltas that continue it, as one: what IncrementalSaver.restore gives.

    Args:
      path: as for `load`.

    Returns:
      A Chain. Its `deltas` are empty if none continues the checkpoint.

    It raises what `load` raises.
    """
    prefix = find_prefix(path)
    return _chain_to(prefix) if _is_delta(prefix) else Chain(prefix, delta_prefixes(prefix))


def delta_prefixes(base: str) -> list[str]:
    """The prefixes of the deltas that continue the checkpoint `base`, in order. DataLossError if one is missing between two others."""
    try:
        return deltas(base)
    except tf.errors.DataLossError as error:
        raise DataLossError(error.message) from None


def _is_delta(prefix):
    """Whether it has the name of a delta, and a base: a checkpoint of all rows may have such a name, too."""
    match = DELTA.match(prefix)
    return bool(match) and not Checkpoint(prefix).tables and bool(Delta(prefix).tables)


def _chain_to(prefix):
    match = DELTA.match(prefix)
    chain = delta_prefixes(match[1])
    return Chain(find_prefix(match[1]), chain[: chain.index(prefix) + 1])


def check_continues(delta: Delta, previous: Checkpoint) -> None:
    """DataLossError unless the delta continues the save."""
    if sorted(delta.tables) != sorted(previous.tables):
        raise DataLossError(
            f"delta '{delta.path}': expected the variables {', '.join(sorted(previous.tables))} of '{previous.path}', found "
            f"{', '.join(sorted(delta.tables)) or 'none'}"
        )
    for name, table in delta.tables.items():
        before = previous.tables[name].save_ids
        if not all(before) or [part.since for part in table.parts] != before:
            raise DataLossError(
                f"delta '{delta.path}', variable '{name}': expected one that continues '{previous.path}', found one that "
                "continues another save: a delta is missing or of another chain"
            )


def _num_keys(part):
    """The keys of a delta's part: of rows, removed, and counted, whose number only the file's last block has."""
    with open(part.path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END.size))
        end = file.read(_END.size)
    counted = _END.unpack(end)[1] if len(end) == _END.size else 0
    # A damaged number is found when the file is read.
    return part.num_rows + part.num_removed + min(max(counted, 0), size)


def _is_of_other_pass(keys, passes, number):
    """Each key is of one pass, a number in [0, passes). The hash differs from that of partitions."""
    hashed = keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    return hashed % np.uint64(passes) != number


def _is_among(keys, sorted_keys):
    if not len(sorted_keys):
        return np.zeros(len(keys), bool)
    at = np.searchsorted(sorted_keys, keys)
    return sorted_keys[np.minimum(at, len(sorted_keys) - 1)] == keys


def _with_distinct(seen, keys, path):
    """`seen` and `keys`, sorted. `keys` are of one file, in which each occurs once."""
    keys.sort()
    again = np.flatnonzero(keys[1:] == keys[:-1])
    if again.size:
        raise DataLossError(
            f"checkpoint part {path}: expected each key once, found key {keys[again[0]]} again"
        )
    return np.union1d(seen, keys)


def _without(rows, dropped):
    """DeltaRows without the keys for which dropped(keys) is true."""
    kept, counted, removed = (
        ~dropped(keys) for keys in (rows.keys, rows.counted_keys, rows.removed_keys)
    )
    if kept.all() and counted.all() and removed.all():
        return rows
    return DeltaRows(
        rows.columns,
        *(getattr(rows, n)[kept] for n in ("keys", "frequencies", "versions", "data")),
        *(
            getattr(rows, n)[counted]
            for n in ("counted_keys", "counted_frequencies", "counted_versions")
        ),
        rows.removed_keys[removed],
    )


def _in_columns(rows, columns, path):
    """Rows with these columns: a slot that was added after they were saved has its initial value."""
    data = rows.data
    if [tuple(c[:2]) for c in rows.columns] != [tuple(c[:2]) for c in columns]:
        dims = {name: dim for name, dim, _ in columns}
        for name, dim, _ in rows.columns:
            if dims.get(name) != dim:
                raise DataLossError(
                    f"checkpoint part {path}: expected column '{name}' of dim {dim} in the deltas after it, found "
                    f"{'none' if name not in dims else f'dim {dims[name]}'}"
                )
        names = [name for name, _, _ in rows.columns]
        data = np.concatenate(
            [
                rows.column(name)
                if name in names
                else np.full((len(rows), dim), initial_value, np.float32)
                for name, dim, initial_value in columns
            ],
            axis=1,
        )
    counted = (rows.counted_keys, rows.counted_frequencies, rows.counted_versions)
    return Rows(columns, rows.keys, rows.frequencies, rows.versions, data, *counted)

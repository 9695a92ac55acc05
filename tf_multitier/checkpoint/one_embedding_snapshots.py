"""Snapshots of OneEmbedding (one_embedding/snapshots.py) as rows, and rows as a snapshot of a world of one rank."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np

from tf_multitier.checkpoint.chain import load
from tf_multitier.checkpoint.source import RowSource
from tf_multitier.checkpoint.writer import Writer
from tf_multitier.engine.rows import Rows
from tf_multitier.one_embedding import snapshots

_FOLDER = re.compile(r"(.*?)([^/]+)/snapshots/([^/]+)")


class _AllRanks(RowSource):
    """The rows of a snapshot, of all ranks."""

    def __init__(self, folders):
        self._tables = [snapshots.saved_table(folder) for folder in folders]
        first = self._tables[0]
        self.columns, self.dtype, self.key_dtype = first.columns, first.dtype, first.key_dtype
        self.num_rows = sum(table.num_rows for table in self._tables)
        self.applies = max(table.applies for table in self._tables)
        for folder, table in zip(folders, self._tables):
            found = (table.columns, table.dtype, table.key_dtype)
            if found != (self.columns, self.dtype, self.key_dtype):
                raise ValueError(
                    f"'{folder}': expected the columns and types of '{folders[0]}', found {found}"
                )

    def blocks(self) -> Iterator[Rows]:
        for table in self._tables:
            yield from table.blocks()


def tables_in(folder: str) -> dict[str, RowSource]:
    """{"rows": the rows of all ranks} of a snapshot, whose folder is `<rank>-<size>/snapshots/<name>` of any rank.

    Raises:
      ValueError: it is no snapshot, or the folder of a rank is that of another.
      NotFoundError: there is no snapshot, or a rank has none of that name.
    """
    folder = os.path.normpath(folder)
    saved = load(snapshots.prefix_of(folder))
    if snapshots.PLACE not in saved.tensors:
        raise ValueError(
            f"'{folder}': expected a snapshot of OneEmbedding, found a checkpoint: pass --from=checkpoint"
        )
    _, size = (int(number) for number in saved.tensor(snapshots.PLACE))
    folders = [folder]
    if size > 1:
        match = _FOLDER.fullmatch(folder)
        if match is None:
            raise ValueError(
                f"'{folder}': expected <rank>-{size}/snapshots/<name>, next to the folders of all {size} ranks, found another path"
            )
        folders = [f"{match[1]}{rank}-{size}/snapshots/{match[3]}" for rank in range(size)]
    for rank, each in enumerate(folders):
        snapshots.check_place("snapshot", each, (rank, size))
    return {snapshots.TABLE: _AllRanks(folders)}


def save(tables: Mapping[str, RowSource | Rows], folder: str) -> dict[str, int]:
    """Writes the rows of one table as a snapshot, whole or not at all. folder: `0-1/snapshots/<name>`. Returns {table: rows}.

    Raises:
      ValueError: there are several tables, or another folder.
      FileExistsError: there is such a snapshot.
    """
    match = _FOLDER.fullmatch(os.path.normpath(folder))
    if match is None or match[2] != "0-1":
        raise ValueError(
            f"'{folder}': expected <persistent_path>/0-1/snapshots/<name>, found another path"
        )
    if len(tables) != 1:
        raise ValueError(
            f"'{folder}': expected one table, found {', '.join(tables) or 'none'}: pass --tables"
        )
    [(name, rows)] = tables.items()
    with (
        snapshots.new_snapshot(f"{match[1]}{match[2]}", match[3]) as prefix,
        Writer(prefix, latest=False) as writer,
    ):
        count = writer.add_table(snapshots.TABLE, rows, applies=getattr(rows, "applies", 0))
        writer.add_tensor(snapshots.PLACE, np.array([0, 1]))
    return {name: count}

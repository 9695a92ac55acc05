"""Rows in files that are bare arrays, as TFRA and dynamicemb write them: the dims follow from the sizes of the files."""

from __future__ import annotations

import os
import sys
import typing
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from tf_multitier.checkpoint.source import RowSource
from tf_multitier.dynamicemb import dump_files as files
from tf_multitier.engine.rows import Rows

BLOCK_ROWS = 65_536


class Shard(typing.NamedTuple):
    """The files of some rows of a table. Row i of each is of key i.

    Attributes:
      keys: RawReader of int64 [n].
      floats: RawReaders of float32 [n, elements], the value first.
      scores: RawReader of int64 [n, numbers of a row], or None.
    """

    keys: typing.Any
    floats: list
    scores: typing.Any = None


class ArrayRows(RowSource):
    """The rows of all shards.

    Args:
      columns: list of (name, dim, initial value).
      shards: list of Shard.
      facts: (keys, scores) to (frequencies, versions), int64 [n]. scores: int64 [n, numbers of a row], or None.
      others: keys to float32 [n, elements] of the columns that the shards lack, the last ones. None: they lack none.
    """

    def __init__(
        self,
        columns: list,
        shards: Sequence[Shard],
        facts: Callable,
        others: Callable | None = None,
    ) -> None:
        self.columns = columns
        self.num_rows = sum(shard.keys.rows for shard in shards)
        self._shards, self._facts, self._others = shards, facts, others
        for keys, floats, scores in shards:
            for reader in [*floats, *([] if scores is None else [scores])]:
                if reader.rows != keys.rows:
                    raise ValueError(
                        f"{reader.path}: expected {keys.rows} rows, as {os.path.basename(keys.path)} has, found {reader.rows}"
                    )

    def blocks(self) -> Iterator[Rows]:
        for keys, floats, scores in self._shards:
            readers = [keys, *floats, *([] if scores is None else [scores])]
            # strict: so that each reader comes to the end of its file, where it compares the checksum.
            for pieces in zip(*(reader.pieces(BLOCK_ROWS) for reader in readers), strict=True):
                its_keys = pieces[0][:, 0]
                data = list(pieces[1 : 1 + len(floats)])
                if self._others is not None:
                    data.append(self._others(its_keys))
                its_scores = None if scores is None else pieces[-1]
                frequencies, versions = self._facts(its_keys, its_scores)
                yield Rows(self.columns, its_keys, frequencies, versions, np.concatenate(data, 1))


def dim_of(what: str, keys: Sequence[str], values: Sequence[str], dim: int | None) -> int:
    """The elements of a value in float32 files. dim: what the caller says, or None.

    Raises:
      ValueError: the sizes of the files do not fit, or there are no rows and `dim` is None.
    """
    rows = sum(files.size_of(path) for path in keys) // 8
    found, rest = divmod(sum(files.size_of(path) for path in values), 4 * max(rows, 1))
    if rows == 0:
        if dim is None:
            raise ValueError(f"{what}: expected --dim, because the files have no rows, found none")
        return dim
    if rest or not found or dim not in (None, found):
        expected = "whole numbers" if dim is None else dim
        raise ValueError(
            f"{what}: expected {expected} of float32 for each of {rows} keys, found {found + rest / (4 * rows):g}: only keys of int64 and "
            "values of float32 are read"
        )
    return found


def left_out(path: str, what: str) -> None:
    """Says on the standard error what a file has and nothing here takes."""
    print(f"{path}: left out: {what}", file=sys.stderr)


def dim_in(dims: Mapping[str, int], table: str) -> int | None:
    """What the option --dim says of a table: "" stands for those that it does not name. None: nothing."""
    return dims.get(table, dims.get(""))


def last_name(column: str) -> str:
    """The name of a slot without that of its variable: Adagrad of users/Adagrad."""
    return column.rpartition("/")[2]

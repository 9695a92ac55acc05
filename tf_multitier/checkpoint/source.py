"""RowSource: rows that are read in blocks, wherever they come from. Everything that reads rows here is one, and every writer takes one."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from urllib.parse import quote

import numpy as np

from tf_multitier._src.options import numpy_types
from tf_multitier.engine.rows import Rows


class RowSource(abc.ABC):
    """Rows of one table that can be read again and again, a block at a time.

    Attributes:
      columns: list of (name, dim, initial value): the value first, then the optimizer's slots.
      num_rows: number of rows, or None if that is known only after reading them.
      dtype: of the values: "float32", "bfloat16" or "float16". Blocks have them as float32, which is exact.
      key_dtype: of the keys, in blocks too: "int64", "uint64" or "uint32".
    """

    columns: list
    num_rows: int | None
    dtype: str = "float32"
    key_dtype: str = "int64"

    @property
    def dim(self) -> int:
        """Elements of a row's value."""
        return self.columns[0][1]

    @abc.abstractmethod
    def blocks(self) -> Iterator[Rows]:
        """Yields all rows, each key once, in blocks of `engine.Rows`."""

    def read(self) -> Rows:
        """All rows in memory, as one `engine.Rows`. The values of frozen rows are float32 in it."""
        return dataclasses.replace(
            concatenate(self.columns, self.blocks(), self.key_dtype), dtype=value_dtype(self)
        )


def value_dtype(rows: RowSource | Rows) -> str:
    """The type of the values of rows that are copied. Those for serving were rounded: what is made of them has float32."""
    return "float32" if getattr(rows, "frozen", False) else rows.dtype


def key_dtype(rows: RowSource | Rows) -> str:
    """The type of the keys of rows that are written."""
    return numpy_types.of_keys(rows.keys) if isinstance(rows, Rows) else rows.key_dtype


def check_key_type(name: str, block: Rows, expected: str) -> None:
    """ValueError if a block of rows has other keys than its source says."""
    found = numpy_types.of_keys(np.asarray(block.keys))
    if found != expected:
        raise ValueError(
            f"'{name}': expected keys of {expected}, as its source says, found {found}"
        )


def with_keys(rows: Rows, key_dtype: str) -> Rows:
    """The engine's rows, changed to have keys of that type."""
    for name in ("keys", "counted_keys", "removed_keys"):
        if hasattr(rows, name):
            setattr(rows, name, numpy_types.from_int64(getattr(rows, name), key_dtype))
    return rows


def concatenate(columns: list, blocks: Iterator[Rows], key_dtype: str) -> Rows:
    """The rows of all blocks as one Rows. The blocks have these columns and this type of keys."""
    width = sum(dim for _, dim, _ in columns)
    empty, no_keys = np.zeros(0, np.int64), np.zeros(0, key_dtype)
    nothing = np.zeros((0, width), np.float32)
    found = [Rows(columns, no_keys, empty, empty, nothing, counted_keys=no_keys), *blocks]
    return Rows(
        columns,
        *(
            np.concatenate([getattr(rows, name) for rows in found])
            for name in (
                "keys",
                "frequencies",
                "versions",
                "data",
                "counted_keys",
                "counted_frequencies",
                "counted_versions",
            )
        ),
    )


def file_name(table: str) -> str:
    """The name of a table's file: `/` and other characters as %2F; "." and ".." are names of directories."""
    name = quote(table, safe="")
    return name.replace(".", "%2E") if name in (".", "..") else name


def blocks_of(rows: RowSource | Rows) -> Iterable[Rows]:
    """The blocks of rows that are in memory or in files."""
    return [rows] if isinstance(rows, Rows) else rows.blocks()

"""Rows: a copy of rows outside a table."""

from __future__ import annotations

import dataclasses

import numpy as np


def _no_keys():
    return np.zeros(0, np.int64)


@dataclasses.dataclass
class Rows:
    """A copy of rows outside a table. `Table.export` and `Table.scan` return it, and `Table.import_rows` takes it.

    Attributes:
      columns: list of (name, dim, initial value). The value column comes first.
      keys: int64 [n]; uint64 or uint32 of a table that has such keys, as counted_keys.
      frequencies: int64 [n]: number of occurrences in training.
      versions: int64 [n]: global step of the last update.
      data: float32 [n, sum of the columns' dims]: the columns, concatenated in order.
      counted_keys: int64 [m]: keys that a counter filter counts and has not admitted.
      counted_frequencies: int64 [m]: their counts.
      counted_versions: int64 [m]: their versions.
      dtype: of the values in the table: "float32", "bfloat16" or "float16". `data` has them as float32, which is exact.
    """

    columns: list
    keys: np.ndarray
    frequencies: np.ndarray
    versions: np.ndarray
    data: np.ndarray
    counted_keys: np.ndarray = dataclasses.field(default_factory=_no_keys)
    counted_frequencies: np.ndarray = dataclasses.field(default_factory=_no_keys)
    counted_versions: np.ndarray = dataclasses.field(default_factory=_no_keys)
    dtype: str = dataclasses.field(default="float32", kw_only=True)

    def __len__(self):
        return len(self.keys)

    def column(self, name: str) -> np.ndarray:
        """The column `name` of every row: a float32 view [n, its dim]. KeyError if there is no such column."""
        begin = 0
        for column, dim, _ in self.columns:
            if column == name:
                return self.data[:, begin : begin + dim]
            begin += dim
        raise KeyError(
            f"column: expected one of {[column for column, _, _ in self.columns]}, found {name!r}"
        )

"""Rows outside a table."""

from __future__ import annotations

import dataclasses

import numpy as np


def _no_keys():
    return np.zeros(0, np.int64)


@dataclasses.dataclass
class Rows:
    """Rows outside a table: what `Table.export` and `Table.scan` give and `Table.import_rows` takes.

    Attributes:
      columns: list of (name, dim, initial value), the value column first.
      keys: int64 [n].
      frequencies: int64 [n], occurrences trained on.
      versions: int64 [n], step of the last update.
      data: float32 [n, sum of the columns' dims], columns side by side.
      counted_keys: int64 [m], keys that a counter filter counts and has not admitted.
      counted_frequencies: int64 [m].
      counted_versions: int64 [m].
    """

    columns: list
    keys: np.ndarray
    frequencies: np.ndarray
    versions: np.ndarray
    data: np.ndarray
    counted_keys: np.ndarray = dataclasses.field(default_factory=_no_keys)
    counted_frequencies: np.ndarray = dataclasses.field(default_factory=_no_keys)
    counted_versions: np.ndarray = dataclasses.field(default_factory=_no_keys)

    def __len__(self):
        return len(self.keys)

    def column(self, name: str) -> np.ndarray:
        """The named column of every row: float32 [n, its dim], a view. KeyError where there is none such."""
        begin = 0
        for column, dim, _ in self.columns:
            if column == name:
                return self.data[:, begin : begin + dim]
            begin += dim
        raise KeyError(f"no column {name!r} among {[column for column, _, _ in self.columns]}")

"""RowTransfer: the methods of Table that copy many rows out of a table and into it.

export   all rows, as of one moment                 import_rows   what export or scan returned
scan     some rows per call, by a cursor            upsert        rows of the caller, all of them or none
pop_dropped, removed_since   what has left the table
"""

from __future__ import annotations

import collections.abc
import typing

import numpy as np
import numpy.typing as npt

from tf_multitier._src.options import numpy_types
from tf_multitier._src.options.option_values import check_upsert
from tf_multitier.engine import arguments
from tf_multitier.engine.rows import Rows


class RowTransfer:
    """Base class of Table. REQUIRES: `_table`, the engine's table, `columns`, `key_dtype`, and `_keys`, which checks keys."""

    _table: typing.Any
    columns: typing.Any
    key_dtype: typing.Any
    _keys: typing.Callable

    def _rows(self, found):
        """The engine's rows, with keys of the table's type."""
        for name in ("keys", "counted_keys"):
            found[name] = numpy_types.from_int64(found[name], self.key_dtype)
        return Rows(**found)

    def export(self, all_columns: bool = True) -> Rows:
        """Copies all rows and counted keys, as of one moment, in any order.

        Args:
          all_columns: False: copy the value column only.

        Returns:
          `Rows`.
        """
        return self._rows(self._table.export(arguments.boolean("all_columns", all_columns)))

    def scan(
        self,
        cursor: int = 0,
        max_rows: int = 65536,
        columns: collections.abc.Sequence[str] | None = None,
        min_version: int | None = None,
        min_frequency: int | None = None,
    ) -> tuple[Rows, int]:
        """Copies the table in steps, while other operations run.

        A key that is present during the whole scan is returned exactly once. A key that is added or removed during the scan may be
        returned once or not at all. A key that is removed and added again may be returned by two calls, and a key that a filter
        admits during the scan as a counted key and then as a row.

        Args:
          cursor: 0 for the first call, then the cursor that the previous call returned.
          max_rows: rows per call, >= 1. A call may return up to one bucket of rows more.
          columns: names of the columns to copy. None: all.
          min_version: rows and counted keys whose last update was at an earlier step are left out. None: none is.
          min_frequency: rows and counted keys with fewer occurrences are left out.

        Returns:
          (`Rows`, next cursor). The next cursor is 0 at the end.

        Raises:
          ValueError: no such column, or a bad cursor or max_rows.
        """
        rows, following = self._table.scan(
            arguments.integer("cursor", cursor, signed=False),
            arguments.integer("max_rows", max_rows),
            [] if columns is None else self._known_columns(arguments.names("columns", columns)),
            -(2**63) if min_version is None else arguments.integer("min_version", min_version),
            0 if min_frequency is None else arguments.integer("min_frequency", min_frequency),
        )
        return self._rows(rows), following

    def _known_columns(self, names):
        """`names`, at least one of them."""
        if not names:
            raise ValueError(
                f"columns: expected names among {[c[0] for c in self.columns]}, found none"
            )
        return names

    def upsert(
        self,
        keys: npt.ArrayLike,
        columns: dict[str, npt.ArrayLike],
        frequencies: npt.ArrayLike | None = None,
        versions: npt.ArrayLike | None = None,
        if_exists: str = "replace",
        repeats: str = "error",
        check_finite: bool = False,
    ) -> int:
        """Writes rows: all of them, or none. Keys without a row get one, whatever the filter says.

        In a row that exists, what is not given stays as it is. In a new row, it is the initial value, frequency 0 (or the count that
        the filter has), and the newest step that the table knows.

        Args:
          keys: integers [n].
          columns: a dict from names of columns to floats [n, dim of the column].
          frequencies: integers [n], 0 to 2**32 - 1, or None.
          versions: integers [n], or None.
          if_exists: for a key that has a row: "replace" what is given, "keep" the row, or "error".
          repeats: for a key that `keys` has twice: "error", or "last", which writes the last of its rows.
          check_finite: True: infinities and NaN are an error.

        Returns:
          The number of rows written.

        Raises:
          ValueError: a bad argument; the message says what was expected and found.
          AlreadyExistsError: a key has a row, and if_exists is "error".
          ResourceExhaustedError: no room for the rows.
        """
        check_upsert(if_exists, repeats)
        checked = self._keys(keys)
        dims = {name: dim for name, dim, _ in self.columns}
        if not isinstance(columns, collections.abc.Mapping):
            raise ValueError(f"columns: expected a dict from names to values, found {columns!r}")
        data = []
        for name, values in columns.items():
            if name not in dims:
                raise ValueError(f"columns: expected names among {list(dims)}, found {name!r}")
            data.append((name, arguments.floats(name, values, [len(checked), dims[name]])))
            if (
                arguments.boolean("check_finite", check_finite)
                and not np.isfinite(data[-1][1]).all()
            ):
                raise ValueError(f"{name}: expected finite numbers, found infinities or NaN")
        facts = [
            arguments.integers(what, () if given is None else given)
            for what, given in (("frequencies", frequencies), ("versions", versions))
        ]
        for what, given, fact in zip(
            ("frequencies", "versions"), (frequencies, versions), facts, strict=True
        ):
            if given is not None and len(fact) != len(checked):
                raise ValueError(f"{what}: expected shape [{len(checked)}], found [{len(fact)}]")
        return self._table.upsert(checked, data, *facts, if_exists, repeats == "last")

    def import_rows(self, rows: Rows) -> None:
        """Writes rows and counted keys into the table. They replace existing rows of the same keys.

        Columns that `rows` lacks get their initial value. Columns that the table lacks are added.

        Raises:
          ValueError: keys have another type, the value column has another dim, or the sizes of the arrays do not match.
        """
        if not isinstance(rows, Rows):
            raise ValueError(f"rows: expected Rows, found {rows!r}")
        found = numpy_types.of_keys(np.asarray(rows.keys))
        if found != self.key_dtype:
            raise ValueError(f"rows: expected keys of {self.key_dtype}, found {found}")
        counted = np.asarray(rows.counted_keys)
        if counted.size and numpy_types.of_keys(counted) not in (self.key_dtype, "int64"):
            raise ValueError(
                f"rows: expected counted keys of {self.key_dtype}, found {numpy_types.of_keys(counted)}"
            )
        self._table.import_rows(arguments.rows(rows))

    def removed_since(self, version: int) -> typing.Any:
        """Keys without a row that had one at this version of the table or later: removed, expired or dropped since.

        What a copy of the table must delete, after it has taken the rows of that version and later (`scan` with min_version).

        Args:
          version: the newest version (`global_step` of updates) when the last update of the copy began.

        Returns:
          The keys [n], sorted (uint64 as int64 of the same bits), each once, with those that left at the newest version before it.

        Raises:
          FailedPreconditionError: removals of that version are not known: the table was cleared, filled by `import_rows`, or opened
            since, more keys left than `removed_bytes` and the table's file hold, or `removed_bytes` is 0.
        """
        removed = self._table.removed_since(arguments.integer("version", version))
        return numpy_types.from_int64(removed, self.key_dtype)

    def pop_dropped(self, rows: bool = False) -> typing.Any:
        """What was dropped since the last call (see drop_coldest, on_corruption), the oldest first.

        Args:
          rows: False: the keys. True: `Rows` with all columns, for dropped="rows". A damaged row is NaN, frequency 0, version -1.

        Returns:
          The keys [n], or `Rows`: as many of the newest as `dropped_bytes` hold.

        Raises:
          FailedPreconditionError: rows is True, and the table does not keep them.
        """
        if arguments.boolean("rows", rows):
            return self._rows(self._table.pop_dropped_rows())
        return numpy_types.from_int64(self._table.pop_dropped(), self.key_dtype)

"""TierControl: the methods of Table that say where rows lie, and how much a tier may hold.

lookup_tier                    the tier of a row       flush                 writes rows to the last tier
prefetch, release_prefetched   rows come to DRAM       compact               frees disk space
drain                          background work ends    reserve, set_budget   memory and its bound
"""

from __future__ import annotations

import numbers
import typing

import numpy.typing as npt

import numpy as np

from tf_multitier.engine import arguments


class TierControl:
    """Base class of Table. REQUIRES: `_table`, the engine's table, and `_keys`, which checks keys."""

    _table: typing.Any
    _keys: typing.Callable

    def lookup_tier(self, keys: npt.ArrayLike) -> np.ndarray:
        """The tier of each key's row: int32 [n]. 0 is the first tier that the storage type names; -1 without a row."""
        return self._table.lookup_tier(self._keys(keys))

    def prefetch(self, keys: npt.ArrayLike, timeout: float = 10.0) -> int:
        """Reads the rows of `keys` into the first tier, DRAM or HBM, and pins them there until their next use.

        It creates no key, and pins at most a quarter of the rows of the DRAM budget. With HBM, at most a quarter of its rows are pinned
        there, and further rows in DRAM. If a row is pinned already, the later timeout counts.

        Args:
          keys: integers [n].
          timeout: seconds after which the rows are released, 0 to 1e9.

        Returns:
          The number of rows that are pinned now and were not pinned before.

        Raises:
          ValueError: timeout is out of range.
        """
        timeout = arguments.real("timeout", timeout)
        if not 0 <= timeout <= 1e9:
            raise ValueError(f"timeout: expected 0 to 1e9 seconds, found {timeout}")
        return self._table.prefetch(self._keys(keys), int(timeout * 1e6))

    def release_prefetched(self) -> None:
        """Releases all rows that `prefetch` pinned."""
        self._table.release_prefetched()

    def drain(self) -> None:
        """Waits until the background work that is due now has finished. Raises its error if it failed."""
        self._table.drain()

    def flush(self) -> None:
        """Makes all earlier changes durable: writes the rows that are only in memory to the last tier, and syncs it.

        The rows stay in memory. Other operations continue, unless the last tier has a size.

        Raises:
          FailedPreconditionError: the last tier is not durable: DRAM, PMEM or LEVELDB.
          ResourceExhaustedError: the disk is full. No row is lost.
        """
        self._table.flush()

    def compact(self) -> None:
        """Frees the disk space of removed and superseded rows now. Without this call, tiers do so only when they write.

        It may read and write all stored data. Other operations continue.

        Raises:
          ResourceExhaustedError: the disk has no room for the rows that must be moved first. No row is lost.
        """
        self._table.compact()

    def reserve(self, rows: int) -> None:
        """Takes the memory of index and DRAM for this number of rows in all, at most for what the tiers hold.

        Raises:
          ValueError: rows is not an integer of at least 0.
          ResourceExhaustedError: memory is short.
        """
        self._table.reserve(arguments.integer("rows", rows, 63, signed=False))

    def set_budget(self, size: typing.Any = None, rows: int | None = None) -> None:
        """Changes what DRAM, or PMEM alone, may hold: storage_size[0] or storage_rows[0], or [1] if HBM is above DRAM.

        A larger budget applies at once. A smaller one is reached in the background while training continues; `drain` waits for it,
        and the tier's entry in `stats()["tiers"]` shows the progress. The table keeps the memory and uses it again. `Table.open`
        begins with the size with which the table was made.

        Args:
          size: bytes of row data, an integer, at least the size of one row.
          rows: in place of size: a number of rows, which stays when slots are added.

        Raises:
          TypeError: size is not an integer, or not one of size and rows is given.
          ValueError: size is less than one row, or more than 2**63 - 1.
          FailedPreconditionError: the table was made without a size for DRAM.
          ResourceExhaustedError: the rows do not fit: there is no lower tier, or all lower tiers have sizes and do not drop rows.
        """
        if (size is None) == (rows is None):
            raise TypeError(
                f"set_budget: expected either size or rows, found size={size}, rows={rows}"
            )
        if rows is not None:
            rows = arguments.integer("rows", rows, 32, signed=False)
            if rows == 0:
                raise ValueError("rows: expected at least 1, found 0")
            self._table.set_budget(rows, True)
            return
        if isinstance(size, bool) or not isinstance(size, numbers.Integral):
            raise TypeError(f"size: expected an integer number of bytes, found {size!r}")
        size = int(size)
        if not 0 < size < 2**63:
            raise ValueError(f"size: expected 1 to 2**63 - 1 bytes, found {size}")
        self._table.set_budget(size, False)

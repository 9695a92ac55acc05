"""Rows by key, the hottest rows, and the differences between two tables."""

from __future__ import annotations

import numpy as np

from tf_multitier._src.options.numpy_types import to_int64
from tf_multitier.checkpoint import RowSource


def of_keys(table: RowSource, keys: list[int]) -> list[dict]:
    """The rows of these keys, in their order. A key without a row has only "key"."""
    least, most = np.iinfo(table.key_dtype).min, np.iinfo(table.key_dtype).max
    wanted = np.array([key for key in keys if least <= key <= most], table.key_dtype)
    found = {}
    for block in table.blocks():
        for i in np.flatnonzero(np.isin(block.keys, wanted)):
            found[int(block.keys[i])] = _row(table, block, i)
    return [found.get(key, {"key": key}) for key in keys]


def hottest(table: RowSource, count: int) -> list[dict]:
    """The rows of the highest frequencies, hottest first; rows of one frequency in the order of their keys."""
    kept: list[dict] = []
    for block in table.blocks():
        order = np.lexsort((block.keys, -block.frequencies))[:count]
        kept += [_row(table, block, i) for i in order]
        kept.sort(key=lambda row: (-row["frequency"], row["key"]))
        del kept[count:]
    return kept


def _row(table, block, i):
    row = {
        "key": int(block.keys[i]),
        "frequency": int(block.frequencies[i]),
        "version": int(block.versions[i]),
    }
    begin = 0
    for name, dim, _ in table.columns:
        row[name] = [float(v) for v in block.data[i, begin : begin + dim]]
        begin += dim
    return row


def difference(table: RowSource, other: RowSource) -> dict:
    """How two tables differ. About 50 bytes of memory for each row of both.

    Returns:
      dict: "rows" of both, "only_here", "only_there", and of the keys in both "other_value" (another value) and "other_row" (the
      same value, but another slot, frequency or version). None for these two if the columns' dims differ. Where the types of the
      keys differ, "key_dtype" of both: then two keys of the same bits count as one key.
    """
    # Random factors: two rows that differ have one digest with a probability below 2**-32.
    widest = max(sum(dim for _, dim, _ in t.columns) for t in (table, other))
    factors = np.random.default_rng().integers(0, 2**64 - 1, widest + 3, np.uint64)
    here, there = _digests(table, factors), _digests(other, factors)
    common, at_here, at_there = np.intersect1d(here[0], there[0], True, return_indices=True)
    result = {
        "rows": [len(here[0]), len(there[0])],
        "only_here": len(here[0]) - len(common),
        "only_there": len(there[0]) - len(common),
        "other_value": None,
        "other_row": None,
    }
    if table.key_dtype != other.key_dtype:
        result["key_dtype"] = [table.key_dtype, other.key_dtype]
    if [c[1] for c in table.columns] == [c[1] for c in other.columns]:
        values = here[1][at_here] != there[1][at_there]
        rows = here[2][at_here] != there[2][at_there]
        result["other_value"] = int(values.sum())
        result["other_row"] = int((rows & ~values).sum())
    return result


def _digests(table, factors):
    """Keys, and 64-bit digests of their values and of their whole rows."""
    width = sum(dim for _, dim, _ in table.columns)
    keys, values, rows = [], [], []
    for block in table.blocks():
        bits = block.data.view(np.uint32).astype(np.uint64) * factors[:width]
        value = bits[:, : table.dim].sum(axis=1, dtype=np.uint64)
        keys.append(to_int64(block.keys))
        values.append(value)
        rows.append(
            bits.sum(axis=1, dtype=np.uint64)
            + block.frequencies.astype(np.uint64) * factors[-1]
            + (block.versions.view(np.uint64) & np.uint64(0xFFFFFFFF)) * factors[-2]
            + (block.versions.view(np.uint64) >> np.uint64(32)) * factors[-3]
        )
    empty = np.zeros(0, np.uint64)
    return (
        np.concatenate([np.zeros(0, np.int64), *keys]),
        np.concatenate([empty, *values]),
        np.concatenate([empty, *rows]),
    )

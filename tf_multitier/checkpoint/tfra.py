"""Files of TFRA's dynamic embedding, as `save_to_file_system` and FileSystemSaver write them.

    <table>_mht_<i>of<n>_rank<r>_size<s>-keys      int64 [rows] of shard i of n, of process r of s
    <table>_mht_<i>of<n>_rank<r>_size<s>-values    float32 [rows, dim]

Each slot of an optimizer is a table of its own, `<table>_<optimizer>_<slot>`, and so are the frequencies that FrequencyRestrictPolicy
counts, `status_<table>_frequency`, int32 [rows]. Each has rows in an order of its own. `/` in a name is `_` in that of a file.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping

import numpy as np

from tf_multitier.checkpoint.array_rows import ArrayRows
from tf_multitier.checkpoint.source import blocks_of
from tf_multitier.checkpoint.array_rows import dim_of
from tf_multitier.checkpoint.array_rows import dim_in
from tf_multitier.checkpoint.array_rows import last_name
from tf_multitier.checkpoint.array_rows import left_out
from tf_multitier.checkpoint.array_rows import Shard
from tf_multitier.checkpoint.source import RowSource
from tf_multitier.dynamicemb import dump_files as files
from tf_multitier._src.options import numpy_types
from tf_multitier.engine.rows import Rows

_KEYS = re.compile(r"(.+?)(?:_mht_(\d+)of(\d+)(?:_rank(\d+)_size(\d+))?)?-keys", re.DOTALL)

# TFRA's names of slots: ours, and what a new row's begins with.
_SLOTS = {
    "Adagrad_accumulator": ("Adagrad", 0.1),
    "Adam_m": ("Adam", 0.0),
    "Adam_v": ("Adam_1", 0.0),
    "Ftrl_accum": ("Ftrl", 0.1),
    "Ftrl_accumulator": ("Ftrl", 0.1),
    "Ftrl_linear": ("Ftrl_1", 0.0),
    "Momentum_momentum": ("Momentum", 0.0),
    "RMSProp_rms": ("RMSProp", 1.0),
    "RMSProp_momentum": ("RMSProp_1", 0.0),
}
_THEIRS = {ours: theirs for theirs, (ours, _) in reversed(_SLOTS.items())}
_MOST = np.iinfo(np.int32).max
_STATUS = ("status_{}_frequency", "status_{}_timestamp")


def tables_in(folder: str, dims: Mapping[str, int]) -> dict[str, Callable[[], RowSource]]:
    """{table: a function that gives its rows} of a folder.

    dims: see dim_in. Each table needs one: half values of 2 n elements have files of the sizes of n elements of float32.

    Raises, also in the functions:
      ValueError: there are no such files, one is missing, their sizes do not fit, or there is no dim.
    """
    found = _prefixes(folder)
    if not found:
        raise ValueError(f"'{folder}': expected files <table>-keys and <table>-values, found none")
    slots = {
        f"{table}_{slot}": (table, *_SLOTS[slot])
        for table in found
        for slot in _SLOTS
        if f"{table}_{slot}" in found
    }
    status = {name.format(table): table for table in found for name in _STATUS}
    tables: dict[str, Callable[[], RowSource]] = {}
    for table, prefixes in found.items():
        if table in slots or any(table.endswith(name) for name in status):
            continue
        its = [(name, *of[1:]) for name, of in slots.items() if of[0] == table]
        counted, timed = (
            next((name for name in found if name.endswith(form.format(table))), None)
            for form in _STATUS
        )
        tables[table] = functools.partial(
            _table, folder, table, prefixes, found, its, counted, timed, dim_in(dims, table)
        )
    return tables


def _prefixes(folder):
    """{table: the paths of its shards, without -keys}. ValueError: a shard is missing."""
    found: dict = {}
    for name in sorted(os.listdir(folder)):
        if match := _KEYS.fullmatch(name):
            shards, size = (int(match[3] or 1), int(match[5] or 1))
            its = found.setdefault(match[1], {})
            its.setdefault((shards, size), []).append(os.path.join(folder, name[: -len("-keys")]))
    for table, its in found.items():
        if len(its) > 1:
            raise ValueError(
                f"'{folder}', table '{table}': expected one number of shards and processes, found {sorted(its)}"
            )
        [((shards, size), paths)] = its.items()
        if len(paths) != shards * size:
            raise ValueError(
                f"'{folder}', table '{table}': expected files of {shards} shards of {size} processes, found {len(paths)} of keys: copy "
                "the files of all processes into one folder"
            )
        found[table] = paths
    return found


def _table(folder, table, prefixes, found, slots, counted, timed, dim):
    where = f"'{folder}', table '{table}'"
    width = _dim(where, prefixes, dim)
    if dim is None:
        raise ValueError(
            f"{where}: expected --dim, found none: if the values are float32, pass --dim={width} or --dim={table}={width},..."
        )
    if timed is not None:
        left_out(f"{found[timed][0]}-values", "timestamps")
    columns = [("value", width, 0.0)]
    columns += [(f"{table}/{ours}", width, initial) for _, ours, initial in slots]
    shards = [
        Shard(
            files.RawReader(path + "-keys", files.KEYS, 1, None),
            [files.RawReader(path + "-values", files.VALUES, width, None)],
        )
        for path in prefixes
    ]
    others = [
        _ByKey(found[name], np.float32, _dim(where, found[name], width), initial)
        for name, _, initial in slots
    ]
    frequencies = None if counted is None else _ByKey(found[counted], np.int32, 1, 0)

    def facts(keys, _):
        counts = np.zeros(len(keys), np.int64)
        if frequencies is not None:
            counts = np.maximum(frequencies(keys)[:, 0], 0).astype(np.int64)
        return counts, np.full(len(keys), -1, np.int64)

    its_others = lambda keys: np.concatenate([each(keys) for each in others], 1)
    return ArrayRows(columns, shards, facts, its_others if others else None)


def _dim(where, prefixes, dim):
    return dim_of(where, [p + "-keys" for p in prefixes], [p + "-values" for p in prefixes], dim)


class _ByKey:
    """The values of some keys of a table. Takes 16 bytes of memory for each of its keys.

    Args:
      prefixes: of the files of all shards.
      dtype, dim: of a row.
      initial: what keys without a row have.
    """

    def __init__(self, prefixes, dtype, dim, initial):
        keys = [np.fromfile(path + "-keys", np.int64) for path in prefixes]
        self._initial, self._dim = initial, dim
        self._begins = np.cumsum([0, *(len(each) for each in keys)])
        self._values = []
        for path, its in zip(prefixes, keys):
            expected, found = len(its) * dim * 4, files.size_of(path + "-values")
            if found != expected:
                raise ValueError(f"{path}-values: expected {expected} bytes, found {found}")
            shape = (len(its), dim)
            self._values.append(
                np.memmap(path + "-values", dtype, "r", shape=shape)
                if len(its)
                else np.zeros(shape, dtype)
            )
        whole = np.concatenate(keys)
        self._order = np.argsort(whole, kind="stable")
        self._keys = whole[self._order]
        again = np.flatnonzero(self._keys[1:] == self._keys[:-1])
        if again.size:
            raise ValueError(
                f"{prefixes[0]}-keys: expected each key once, found key {self._keys[again[0]]} again: remove one of its rows from the "
                "source"
            )

    def __call__(self, keys):
        at = np.searchsorted(self._keys, keys)
        is_there = at < len(self._keys)
        is_there[is_there] = self._keys[at[is_there]] == keys[is_there]
        rows = self._order[at[is_there]]
        found = np.full((len(keys), self._dim), self._initial, self._values[0].dtype)
        shard = np.searchsorted(self._begins, rows, side="right") - 1
        places = np.flatnonzero(is_there)
        for number, values in enumerate(self._values):
            its = shard == number
            found[places[its]] = values[rows[its] - self._begins[number]]
        return found


def slots_left_out(rows: RowSource | Rows) -> list[str]:
    """The slots that `save` leaves out: of other optimizers than TFRA's, or with another number of elements than the value."""
    kept = _slots_kept(rows)
    return [name for name, _, _ in rows.columns[1:] if name not in kept]


def _slots_kept(rows):
    dim = rows.columns[0][1]
    return [name for name, its, _ in rows.columns[1:] if its == dim and last_name(name) in _THEIRS]


def check_tables(tables: Iterable[str]) -> None:
    """ValueError: files of a table would be read as a slot, the frequencies or the timestamps of another."""
    names = {table.replace("/", "_"): table for table in tables}
    for other, its in names.items():
        slots = {f"{other}_{slot}" for slot in _SLOTS}
        status = tuple(form.format(other) for form in _STATUS)
        for name, table in names.items():
            if name in slots or name.endswith(status):
                raise ValueError(
                    f"table '{table}': expected another name, because TFRA reads its files as those of table '{its}', found it: pass "
                    "--tables with one of them"
                )


def save(rows: RowSource | Rows, folder: str, table: str) -> int:
    """Writes a table, its slots and its frequencies into new files of a folder, as one shard. Returns the number of rows."""
    table = table.replace("/", "_")
    dims = [dim for _, dim, _ in rows.columns]
    kept = {rows.columns[0][0], *_slots_kept(rows)}
    names = [f"{table}_{_THEIRS[last_name(name)]}" for name in _slots_kept(rows)]
    names = [table, *names, _STATUS[0].format(table)]
    writers = [[_writer(folder, name, item) for item in ("keys", "values")] for name in names]
    count = 0
    for block in blocks_of(rows):
        keys = numpy_types.to_int64(block.keys)
        columns = np.split(block.data, np.cumsum(dims)[:-1], 1)
        arrays = [array for array, column in zip(columns, rows.columns) if column[0] in kept]
        arrays.append(np.minimum(block.frequencies, _MOST).astype(np.int32))
        for (of_keys, of_values), array in zip(writers, arrays, strict=True):
            of_keys.add(keys)
            of_values.add(array)
        count += len(block)
    for writer in (writer for pair in writers for writer in pair):
        writer.close()
    return count


def _writer(folder, name, item):
    path = os.path.join(folder, f"{name}_mht_1of1_rank0_size1-{item}")
    if os.path.exists(path):
        raise ValueError(f"'{name}': expected a table of another name, found two: pass --tables")
    return files.RawWriter(path)

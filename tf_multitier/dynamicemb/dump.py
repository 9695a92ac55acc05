"""DynamicEmbDump: writes the tables of a model as dynamicemb's files (dump_files.py).

The rows of all tables are those of one moment. They are written into a working folder as arrays, while other threads may train. Most of
the arrays are files of the dump; scores are made of others. When all are on the disk, they are moved to their place, and then the
manifest is written.

In a world, each rank writes the files of its rows, and rank 0 moves those of all.
"""

from __future__ import annotations

import os
import typing

import numpy as np
import tensorflow as tf

from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.variable import object_checkpoint
from tf_multitier._src.variable.working_folders import working_folder
from tf_multitier.distribute import saving
from tf_multitier.dynamicemb import dump_files as files
from tf_multitier.dynamicemb import dump_tables as tables

_BLOCK = 16384  # rows


def DynamicEmbDump(
    path: typing.Any,
    model: typing.Any,
    table_names: dict | None = None,
    optim: bool = False,
    counter: bool = False,
    pg: typing.Any = None,
    allow_overwrite: bool = False,
) -> None:
    """Writes keys, values and scores of the tables of a model, as of one moment. Other threads may train meanwhile.

        DynamicEmbDump("/models/day-1", model, optim=True)

    In a world all processes call it, with a folder that all see. Each writes the files of its rank.

    Its memory is that of a block of rows. If it fails or is killed, the folder has no manifest, and no table of a dump that is not whole.

    Args:
      path: a folder, new or empty.
      model: a collection, or a module, layer, list or dict that has some.
      table_names: {collection: [table]}, with collections as "model" or "model.embedding_module". None: all. Static tables are left out.
      optim: also the states of the optimizer.
      counter: also the keys that an admission counter counts.
      pg: no effect: the processes are those of the strategy in whose scope the tables were made.
      allow_overwrite: the folder may have files. Those of the same tables are replaced.

    Raises:
      FileExistsError: the folder has files, and allow_overwrite is false.
      NotADirectoryError: path is a file.
      TypeError, ValueError: a bad model or table_names; or a folder that a process does not see.
      tf.errors.AbortedError: another process failed.
      RuntimeError: in a tf.function.
    """
    what = "DynamicEmbDump"
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{what}: expected eager execution, found a graph: call it outside of tf.functions"
        )
    for name, value in (
        ("optim", optim),
        ("counter", counter),
        ("allow_overwrite", allow_overwrite),
    ):
        boolean(f"{what}: {name}", value)
    path = files.folder(what, path)
    dumped = tables.tables_of(model, table_names, what)
    names = [(table.path, table.name) for table in dumped]
    check = lambda: files.check_target(path, allow_overwrite)
    world = tables.world_of(dumped, what)
    if world is None:
        check()
        with working_folder(path) as made:
            files.publish(made, path, names, _write(made, dumped, optim, counter, (0, 1)))
        return
    with saving.working_folder_of_all(world, path, f"{what}: path", check) as (made, together):
        its = _write(made, dumped, optim, counter, (world.rank, world.size))
        together.done(entries=its)
        if world.rank == 0:
            reports = together.wait_for_others()
            entries = {name: e for report in reports for name, e in report["entries"].items()}
            files.publish(made, path, names, entries)
        else:
            together.wait_for_end()


def _write(made, dumped, optim, counter, place):
    """Writes the files of a rank into a working folder. Returns {file: its entry}. place: (rank, size of the world)."""
    prefix = os.path.join(made, f"moment-{place[0]}")
    written = object_checkpoint.write_columns([t.variable for t in dumped], prefix, slots=optim)
    time_of_dump = tables.now()  # no version is newer
    entries: dict = {}
    for table, columns in zip(dumped, written, strict=True):
        os.makedirs(os.path.join(made, table.path), exist_ok=True)
        its = _TableDump(made, table, columns, optim, counter, place).write(time_of_dump)
        entries.update({f"{table.path}/{name}": entry for name, entry in its.items()})
    return entries


class _TableDump:
    """Makes the files of one table from its rows, which are written as arrays.

    Args:
      made: the working folder.
      table: a ModelTable.
      columns: the arrays; see object_checkpoint.write_columns.
      optim, counter: see DynamicEmbDump.
      place: (rank, size of the world).
    """

    def __init__(self, made, table, columns, optim, counter, place):
        self._place, self._table, self._columns = place, table, columns
        self._folder = os.path.join(made, table.path)
        self._rows = columns["files"]["keys"]["size"] // np.dtype(np.int64).itemsize
        self._slots = table.slots if optim else []
        self._counts = counter and table.table.options.admit_strategy is not None
        self._entries: dict = {}

    def write(self, time_of_dump):
        """Makes all files. Returns {name: its entry}."""
        self._move(files.KEYS, "keys")
        self._move(files.VALUES, "values")
        self._make(files.SCORES, lambda at, n: self._scores(at, n, time_of_dump))
        if self._slots:
            found = [(slot["name"], slot["dim"]) for slot in self._columns["slots"]]
            if found == [slot[:2] for slot in self._slots]:
                self._move(files.STATES, "slots")
            else:
                self._make(files.STATES, self._states)
        if self._counts:
            self._move(files.COUNTED, "counted_keys")
            self._move(files.COUNTS, "counted_frequencies")
        if self._place[0] == 0:
            name = f"{self._table.name}_{files.ARGUMENTS}"
            arguments = tables.arguments_of(self._table)
            self._entries[name] = files.write_json(os.path.join(self._folder, name), arguments)
        return self._entries

    def _name(self, item):
        return files.file_name(self._table.name, item, *self._place)

    def _move(self, item, column):
        """Takes an array as the file of an item."""
        name = self._name(item)
        os.rename(f"{self._columns['path']}.{column}", os.path.join(self._folder, name))
        self._entries[name] = self._columns["files"][column]

    def _make(self, item, rows):
        """Writes the file of an item. rows(at, n): n rows from `at`."""
        name = self._name(item)
        writer = files.RawWriter(os.path.join(self._folder, name))
        for at in range(0, self._rows, _BLOCK):
            writer.add(rows(at, min(_BLOCK, self._rows - at)))
        writer.close()
        self._entries[name] = {"size": writer.size, "crc32": writer.checksum}

    def _read(self, column, dtype, width, at, n):
        path, bytes_of_row = f"{self._columns['path']}.{column}", width * np.dtype(dtype).itemsize
        return np.fromfile(path, dtype, n * width, offset=at * bytes_of_row).reshape(n, width)

    def _scores(self, at, n, time_of_dump):
        frequencies, versions = (
            self._read(column, np.int64, 1, at, n)[:, 0] for column in ("frequencies", "versions")
        )
        return self._table.score.in_file(frequencies, versions, time_of_dump)

    def _states(self, at, n):
        """float32 [n, sum of the slots' dims]. Of a table without states yet: what an update would find."""
        dims = [slot["dim"] for slot in self._columns["slots"]]
        found = self._read("slots", np.float32, sum(dims), at, n)
        found = np.split(found, np.cumsum(dims)[:-1], 1) if dims else []
        by_name = dict(zip((slot["name"] for slot in self._columns["slots"]), found))
        states = [
            by_name[name] if name in by_name else np.full((n, dim), initial, np.float32)
            for name, dim, initial in self._slots
        ]
        return np.concatenate(states, 1)

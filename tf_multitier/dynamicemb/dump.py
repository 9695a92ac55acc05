"""DynamicEmbDump: writes the tables of a model as dynamicemb's files (dump_files.py).

The rows of all tables are those of one moment: a checkpoint of them is written into a working folder, while other threads may train.
It becomes the raw files a block at a time. They are moved to their place when all are on the disk, and then the manifest is written.

In a world, each rank writes the files of its rows, and rank 0 moves those of all.
"""

from __future__ import annotations

import os
import typing

import numpy as np
import tensorflow as tf

from tf_multitier import checkpoint
from tf_multitier import object_checkpoint
from tf_multitier.distribute import saving
from tf_multitier.dynamicemb import dump_files as files
from tf_multitier.dynamicemb import dump_tables as tables
from tf_multitier.option_values import boolean
from tf_multitier.working_folders import working_folder


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

    Its memory is that of a block of rows. Until it ends, the folder needs room for the rows twice. If it fails or is killed, the folder
    has no manifest, and no table of a dump that is not whole.

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
    prefix, time_of_dump = _save(dumped, made, place[0])
    saved = checkpoint.load(prefix).tables
    entries: dict = {}
    for i, table in enumerate(dumped):
        os.makedirs(os.path.join(made, table.path), exist_ok=True)
        its = _TableDump(made, table, saved[str(i)], optim, counter, place).write(time_of_dump)
        entries.update({f"{table.path}/{name}": entry for name, entry in its.items()})
    return entries


def _save(dumped, made, rank):
    """A checkpoint of the rows of this process, and its time: no version is newer."""
    prefix = os.path.join(made, f"moment-{rank}")
    object_checkpoint.save_own({str(i): t.variable for i, t in enumerate(dumped)}, prefix)
    return prefix, tables.now()


class _TableDump:
    """Writes the files of one table from its checkpoint.

    Args:
      made: the working folder.
      table: a ModelTable.
      saved: the SavedTable.
      optim, counter: see DynamicEmbDump.
      place: (rank, size of the world).
    """

    def __init__(self, made, table, saved, optim, counter, place):
        self._place = place
        self._folder, self._table, self._saved = os.path.join(made, table.path), table, saved
        items = [files.KEYS, files.VALUES, files.SCORES]
        self._slots = table.slots if optim else []
        items += [files.STATES] if self._slots else []
        if counter and table.table.options.admit_strategy is not None:
            items += [files.COUNTED, files.COUNTS]
        self._writers = {item: files.RawWriter(self._path(item)) for item in items}

    def _path(self, item):
        return os.path.join(self._folder, files.file_name(self._table.name, item, *self._place))

    def write(self, time_of_dump):
        """Writes all files. Returns {name: its entry}."""
        for block in self._saved.blocks():
            self._add(block, time_of_dump)
        entries = {}
        for item, writer in self._writers.items():
            writer.close()
            name = files.file_name(self._table.name, item, *self._place)
            entries[name] = {"size": writer.size, "crc32": writer.checksum}
        if self._place[0] == 0:
            name = f"{self._table.name}_{files.ARGUMENTS}"
            arguments = tables.arguments_of(self._table)
            entries[name] = files.write_json(os.path.join(self._folder, name), arguments)
        for part in self._saved.parts:
            for file in part.files:
                os.remove(file)
        return entries

    def _add(self, block, time_of_dump):
        add = lambda item, array: self._writers[item].add(array)
        if files.COUNTED in self._writers:
            add(files.COUNTED, block.counted_keys.view(np.int64))
            add(files.COUNTS, block.counted_frequencies)
        if not len(block):
            return
        scores = self._table.score.in_file(block.frequencies, block.versions, time_of_dump)
        add(files.KEYS, block.keys.view(np.int64))
        add(files.VALUES, block.column("value"))
        add(files.SCORES, scores)
        if self._slots:
            add(files.STATES, self._states(block))

    def _states(self, block):
        """float32 [n, sum of the slots' dims]. Of a table without states yet: what an update would find."""
        names = {name for name, _, _ in block.columns}
        states = [
            block.column(name) if name in names else np.full((len(block), dim), initial, np.float32)
            for name, dim, initial in self._slots
        ]
        return np.concatenate(states, 1)

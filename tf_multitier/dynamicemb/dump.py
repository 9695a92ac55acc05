"""DynamicEmbDump: writes the tables of a model as dynamicemb's files (dump_files.py).

The rows of all tables are those of one moment: a checkpoint of them is written into a working folder, while other threads may train.
It becomes the raw files a block at a time. They are moved to their place when all are on the disk, and then the manifest is written.
"""

from __future__ import annotations

import os
import typing

import numpy as np
import tensorflow as tf

from tf_multitier import checkpoint
from tf_multitier import object_checkpoint
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

    Its memory is that of a block of rows. Until it ends, the folder needs room for the rows twice. If it fails or is killed, the folder
    has no manifest, and no table of a dump that is not whole.

    Args:
      path: a folder, new or empty.
      model: a collection, or a module, layer, list or dict that has some.
      table_names: {collection: [table]}, with collections as "model" or "model.embedding_module". None: all. Static tables are left out.
      optim: also the states of the optimizer.
      counter: also the keys that an admission counter counts.
      pg: no effect: the world is one process.
      allow_overwrite: the folder may have files. Those of the same tables are replaced.

    Raises:
      FileExistsError: the folder has files, and allow_overwrite is false.
      NotADirectoryError: path is a file.
      TypeError, ValueError: a bad model or table_names.
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
    files.check_target(path, allow_overwrite)
    with working_folder(path) as made:
        prefix, time_of_dump = _save(dumped, made)
        saved = checkpoint.load(prefix).tables
        entries: dict = {}
        for i, table in enumerate(dumped):
            os.makedirs(os.path.join(made, table.path), exist_ok=True)
            its = _TableDump(made, table, saved[str(i)], optim, counter).write(time_of_dump)
            entries.update({f"{table.path}/{name}": entry for name, entry in its.items()})
        files.publish(made, path, [(table.path, table.name) for table in dumped], entries)


def _save(dumped, made):
    """A checkpoint of the variables, and its time: no version is newer."""
    prefix = os.path.join(made, "moment")
    object_checkpoint.save({str(i): t.variable for i, t in enumerate(dumped)}, tf.constant(prefix))
    return prefix, tables.now()


class _TableDump:
    """Writes the files of one table from its checkpoint.

    Args:
      made: the working folder.
      table: a ModelTable.
      saved: the SavedTable.
      optim, counter: see DynamicEmbDump.
    """

    def __init__(self, made, table, saved, optim, counter):
        self._folder, self._table, self._saved = os.path.join(made, table.path), table, saved
        items = [files.KEYS, files.VALUES, files.SCORES]
        self._slots = table.slots if optim else []
        items += [files.STATES] if self._slots else []
        if counter and table.table.options.admit_strategy is not None:
            items += [files.COUNTED, files.COUNTS]
        self._writers = {item: files.RawWriter(self._path(item)) for item in items}

    def _path(self, item):
        return os.path.join(self._folder, files.file_name(self._table.name, item))

    def write(self, time_of_dump):
        """Writes all files. Returns {name: its entry}."""
        for block in self._saved.blocks():
            self._add(block, time_of_dump)
        entries = {}
        for item, writer in self._writers.items():
            writer.close()
            name = files.file_name(self._table.name, item)
            entries[name] = {"size": writer.size, "crc32": writer.checksum}
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

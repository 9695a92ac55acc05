"""DynamicEmbLoad: reads dynamicemb's files (dump_files.py) into the tables of a model.

The files of all ranks become a checkpoint in a temporary folder: it links those of keys, values and states. Then all variables are
restored together, wholly or not at all. All files are checked before a variable changes: values and states by the restore. It reads
them twice, so they are kept open: who removes them meanwhile does no harm.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import tempfile
import typing
import warnings

import numpy as np
import tensorflow as tf

from tf_multitier import checkpoint
from tf_multitier._src.options import key_types
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.variable import object_checkpoint
from tf_multitier._src.variable import saver
from tf_multitier.distribute import saving
from tf_multitier.dynamicemb import dump_files as files
from tf_multitier.dynamicemb import dump_tables as tables
from tf_multitier.engine.rows import Rows

_PIECE_BYTES = 16 << 20
_OF_TENSORFLOW = re.compile(r"^\{\{function_node .*?\}\} | \[Op:.*$")  # around the message of an op
_BY_STEP = ("step", "frequency")  # kinds of scores whose tables have steps as versions


def DynamicEmbLoad(
    path: typing.Any,
    model: typing.Any,
    table_names: dict | None = None,
    optim: bool = False,
    counter: bool = False,
    pg: typing.Any = None,
) -> None:
    """Replaces the rows of the tables of a model by those of a dump, of this package or of dynamicemb, of any number of ranks.

    Scores come with the rows: those that TIMESTAMP gives keep their ages, and STEP goes on from the step of the dump. A row that has no
    frequency in the dump gets 1. All files are read and checked before anything changes. The folder for temporary files (TMPDIR) needs
    16 bytes for each row.

    Args:
      path: the folder of the dump.
      model: a collection, or a module, layer, list or dict that has some. It need not have trained.
      table_names: {collection: [table]}. None: all.
      optim: also the states of the optimizer, and what the dump has of its learning rate and the updates that Adam counts. If the
        dump is of another optimizer, the rows alone: a warning says so once.
      counter: also the keys that an admission counter counts. False: it counts none afterwards.
      pg: no effect: in a world all processes call it, and each takes the rows that it owns.

    Raises:
      ValueError: a file is missing or damaged, or does not fit the table, and the message has the file; or, with optim, learning rate
        or updates are not those of the optimizer, which has also trained tables that are not loaded. Nothing has changed.
      TypeError: a bad table_names.
      RuntimeError: in a tf.function.
      tf.errors.AbortedError: another process failed. Nothing has changed.
    """
    what = "DynamicEmbLoad"
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{what}: expected eager execution, found a graph: call it outside of tf.functions"
        )
    for name, value in (("optim", optim), ("counter", counter)):
        boolean(f"{what}: {name}", value)
    path = files.folder(what, path)
    loaded = tables.tables_of(model, table_names, what)
    world = tables.world_of(loaded, what)
    with tempfile.TemporaryDirectory(prefix="tf_multitier_load_") as made, _OpenFiles() as kept:
        with saving.all_or_none(world, f"{what} of '{path}'"):
            try:
                manifest = files.manifest_of(path) or {}
                loads = [_TableLoad(path, manifest, table, optim, counter) for table in loaded]
                _check_others(loads, what)
                reads = _reads(loads, os.path.join(made, "rows"), kept)
            except FileNotFoundError as error:
                raise ValueError(
                    f"{error.filename}: expected the file of a dump, found none: it was removed during the load"
                ) from None
        reads.replace()
    _go_on(loads)
    others = [f"'{load.table.name}': {load.opt_type}" for load in loads if load.is_of_another]
    if others:
        warnings.warn(
            f"{what}: expected states of the optimizer of the model, found those of others ({', '.join(others)}): the rows are loaded, "
            "without states",
            stacklevel=2,
        )


class _OpenFiles(contextlib.ExitStack):
    """Files that are open, and so can be read when they are removed: up to half of those that the process may open."""

    def __init__(self) -> None:
        super().__init__()
        self._left = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2

    def add(self, path: str) -> str:
        """Opens a file. Returns a path of it for this process."""
        if self._left == 0:
            return os.path.abspath(path)
        self._left -= 1
        file = os.open(path, os.O_RDONLY)
        self.callback(os.close, file)
        return f"/proc/self/fd/{file}"


def _reads(loads, prefix, kept):
    """The rows, read and checked. prefix: of a checkpoint to write. kept: _OpenFiles."""
    with checkpoint.Writer(prefix, latest=False) as writer:
        for i, load in enumerate(loads):
            load.write(writer, str(i), kept)
    for load in loads:
        if load.slots:
            load.table.collection.row_optimizer.build([load.table.variable])
    parts = [(str(i), p) for i, load in enumerate(loads) for p in load.table.variable.parts]
    with saver.convert_on_restore():  # to values of 16 bits, from float32
        try:
            return object_checkpoint.Reads(parts, tf.constant(prefix))
        except tf.errors.DataLossError as error:
            raise ValueError(_OF_TENSORFLOW.sub("", error.message)) from None


def _by_collection(loads):
    """[(collection, its loads, its other tables)]."""
    found: dict = {}
    for load in loads:
        collection = load.table.collection
        found.setdefault(id(collection), (collection, []))[1].append(load)
    for collection, its in found.values():
        names = {load.table.name for load in its}
        yield (
            collection,
            its,
            [table for name, table in collection.tables_by_name.items() if name not in names],
        )


def _check_others(loads, what):
    """ValueError: the load would change the learning rate or the updates of an optimizer that has trained other tables."""
    for _, its, others in _by_collection(loads):
        trained = [
            table.config.name
            for table in others
            if not table.is_static and table.trains and int(table.variable.total_count())
        ]
        if not trained:
            continue
        own = tables.arguments_of(its[0].table)
        for load in its:
            for name in load.arguments.keys() & {"lr", "iters"} if load.has_states else ():
                if name in own and np.float32(load.arguments[name]) != np.float32(own[name]):
                    raise ValueError(
                        f"{what}: table '{load.table.name}': optim: expected {name} {own[name]} in the dump, that of the optimizer, which "
                        f"also trains the tables {trained}, found {load.arguments[name]}: load these tables too, or pass optim=False"
                    )


def _go_on(loads):
    """Sets the steps of the optimizers."""
    for collection, its, rest in _by_collection(loads):
        optimizer = collection.row_optimizer
        steps = [load.step for load in its if load.table.score.kind in _BY_STEP]
        if steps:
            steps += [int(optimizer.iterations.numpy())] if rest else []
            optimizer.iterations.assign(max(steps))
        with_states = [load.arguments for load in its if load.has_states]
        rates = [found["lr"] for found in with_states if "lr" in found]
        if rates:
            collection.set_learning_rate(rates[0])
        updates = [found["iters"] for found in with_states if "iters" in found]
        if hasattr(optimizer, "beta_2_power") and updates:
            tables.set_updates(optimizer, max(updates))


class _TableLoad:
    """The files of one table, all checked except the arrays.

    Args:
      path: the folder of the dump.
      manifest: {file: its entry}.
      table: a ModelTable.
      optim, counter: see DynamicEmbLoad.

    Attributes:
      arguments: the file of arguments.
      step: the next step.
      has_states: whether the optimizer goes on.
      is_of_another: whether states were asked for, and the dump is of another optimizer, `opt_type`.
      slots: [(column, dim, initial value)] that the dump has.
    """

    def __init__(self, path, manifest, table, optim, counter):
        self.table, self._path, self._manifest = table, path, manifest
        self._folder = os.path.join(path, table.path)
        self._world = self._found_world()
        self.arguments = self._checked_arguments(optim)
        self.opt_type = self.arguments.get("opt_type")
        is_same = tables.same_optimizer(self.opt_type, table.collection)
        self.has_states = optim and is_same and table.table.trains
        self.is_of_another = optim and not is_same
        self.slots = table.slots if self.has_states else []
        self._counts = counter and table.table.options.admit_strategy is not None
        self.step = 0
        self._ranks = [self._readers(rank) for rank in range(self._world)]
        found = self.arguments.get("step_score")
        self.step = found if isinstance(found, int) and found > 0 else 1 + self._newest()

    def _checked_arguments(self, optim):
        name = os.path.join(self._folder, f"{self.table.name}_{files.ARGUMENTS}")
        self._check_bytes(name)
        found = files.read_json(name)
        expected = self.table.score.eviction
        if "evict_strategy" in found and not tables.same_eviction(
            found["evict_strategy"], expected
        ):
            raise ValueError(
                f"{name}: evict_strategy: expected {expected}, as the score_strategy of table '{self.table.name}' has, found "
                f"{found['evict_strategy']}: its scores say something else"
            )
        if optim and tables.same_optimizer(found.get("opt_type"), self.table.collection):
            own = tables.arguments_of(self.table)
            for argument, least in (("lr", -math.inf), ("iters", 0)):
                kind = (int, float) if argument == "lr" else int
                value = found.get(argument)  # a converted dump has none
                is_number = isinstance(value, kind) and math.isfinite(value) and value >= least
                if argument in own and argument in found and not is_number:
                    expected = "a number" if argument == "lr" else "an integer, at least 0"
                    raise ValueError(f"{name}: {argument}: expected {expected}, found {value!r}")
        return found

    def _entry(self, path):
        return self._manifest.get(os.path.relpath(path, self._path).replace(os.sep, "/"))

    def _check_bytes(self, path):
        if self._entry(path) is not None:
            for _ in files.RawReader(path, files.BYTES, 1, self._entry(path)).pieces(_PIECE_BYTES):
                pass

    def _found_world(self):
        """The number of ranks, all of which have keys."""
        worlds = files.ranks_of(self._folder, self.table.name, files.KEYS)
        if len(worlds) != 1:
            found = ", ".join(f"world size {world}" for world in sorted(worlds)) or "none"
            raise ValueError(
                f"{self._file(files.KEYS, 0, 1)}: expected keys of table '{self.table.name}', of one world size, found {found}"
            )
        [(world, paths)] = worlds.items()
        for rank in range(world):
            if rank not in paths:
                raise ValueError(
                    f"{self._file(files.KEYS, rank, world)}: expected the keys of all {world} ranks, found {len(paths)} files"
                )
        if len(paths) != world:
            raise ValueError(
                f"{paths[max(paths)]}: expected ranks below {world}, found {max(paths)}"
            )
        return world

    def _file(self, item, rank, world):
        return os.path.join(self._folder, files.file_name(self.table.name, item, rank, world))

    def _readers(self, rank):
        """{item: RawReader} of a rank."""
        reader = lambda item, width: self._reader(item, width, rank)
        found = {
            files.KEYS: reader(files.KEYS, 1),
            files.VALUES: reader(files.VALUES, self.table.variable.embedding_dim),
        }
        # A table without eviction needs no scores.
        has_scores = os.path.exists(self._file(files.SCORES, rank, self._world))
        if has_scores or self.table.table.strategy.evicts:
            found[files.SCORES] = reader(files.SCORES, len(self.table.score.columns))
        if self.slots:
            found[files.STATES] = reader(files.STATES, sum(dim for _, dim, _ in self.slots))
        self._check_alike(found)
        if self._counts:
            counted = {item: reader(item, 1) for item in (files.COUNTED, files.COUNTS)}
            self._check_alike(counted)
            found.update(counted)
        return found

    def _reader(self, item, width, rank):
        path = self._file(item, rank, self._world)
        return files.RawReader(path, item, width, self._entry(path))

    def _check_alike(self, readers):
        first, *others = readers.values()
        for reader in others:
            if reader.rows != first.rows:
                raise ValueError(
                    f"{reader.path}: expected {first.rows} rows, as {os.path.basename(first.path)} has, found {reader.rows}"
                )

    def _newest(self):
        """The newest version of a table whose versions are steps, or 0."""
        if self.table.score.kind != "step":
            return 0
        pieces = [
            piece.max()
            for rank in self._ranks
            if files.SCORES in rank
            for piece in rank[files.SCORES].pieces(_PIECE_BYTES)
        ]
        return int(max(pieces, default=0))

    def write(self, writer, name, kept):
        """Writes the rows as a table of a checkpoint: values and states stay where they are. ValueError: a file is damaged, or has a
        key twice. The restore checks values and states."""
        variable = self.table.variable
        columns = [("value", variable.embedding_dim, 0.0), *self.slots]
        key_dtype = key_types.name_in_files(variable)
        keys = [np.zeros(0, np.int64)]
        for rank in self._ranks:
            keys += [piece[:, 0] for piece in rank[files.KEYS].pieces(_PIECE_BYTES)]
        whole = np.sort(np.concatenate(keys))
        self._check_distinct(whole, files.KEYS)
        time_of_load = tables.now()
        arrays = [
            (
                rank[files.KEYS].rows,
                self._arrays(rank, writer.path, f"{name}-{i}", time_of_load, kept),
            )
            for i, rank in enumerate(self._ranks)
            if rank[files.KEYS].rows
        ]
        with writer.open_table(name, columns, key_dtype, repeats="unchecked", arrays=arrays) as add:
            if self._counts:
                add(self._counted(whole, columns, key_dtype))

    def _arrays(self, rank, prefix, name, time_of_load, kept):
        """[(column, file, path, checksum)] of a rank, next to the checkpoint: links, and what the scores say."""
        of_scores = rank[files.SCORES].path if files.SCORES in rank else rank[files.KEYS].path
        found = [
            ("keys", rank[files.KEYS]),
            ("frequencies", None),
            ("versions", None),
            ("values", rank[files.VALUES]),
        ]
        found += [("slots", rank[files.STATES])] if self.slots else []
        for column, reader in found:
            if reader is not None:
                os.symlink(kept.add(reader.path), f"{prefix}.{name}-{column}")
        paths = [f"{prefix}.{name}-{column}" for column in ("frequencies", "versions")]
        with open(paths[0], "xb") as frequencies, open(paths[1], "xb") as versions:
            for of_rows in self._heads(rank, time_of_load):
                for array, file in zip(of_rows, (frequencies, versions)):
                    file.write(np.ascontiguousarray(array, np.int64))
        return [
            (
                column,
                f"{name}-{column}",
                reader.path if reader else of_scores,
                reader and reader.checksum,
            )
            for column, reader in found
        ]

    def _heads(self, rank, time_of_load):
        """Yields (frequencies, versions) of the rows of a rank."""
        if files.SCORES not in rank:
            count = rank[files.KEYS].rows
            yield np.ones(count, np.int64), np.full(count, self.step, np.int64)
            return
        for scores in rank[files.SCORES].pieces(_PIECE_BYTES // 16):
            try:
                yield self.table.score.of_rows(scores, time_of_load, self.step)
            except ValueError as error:
                raise ValueError(f"{rank[files.SCORES].path}: {error}") from None

    def _counted(self, keys, columns, key_dtype):
        """The counted keys of all ranks, without those that have rows."""
        read = lambda item: np.concatenate(
            [piece[:, 0] for rank in self._ranks for piece in rank[item].pieces(_PIECE_BYTES)]
            or [np.zeros(0, np.int64)]
        )
        counted, counts = read(files.COUNTED), read(files.COUNTS)
        self._check_distinct(np.sort(counted), files.COUNTED)
        if len(counts) and counts.min() < 1:
            raise ValueError(
                f"{self._ranks[0][files.COUNTS].path}: expected counts of at least 1, found {counts.min()}"
            )
        is_new = ~np.isin(counted, keys)
        no_rows = np.zeros(0, np.int64)
        return Rows(
            columns,
            no_rows.view(key_dtype),
            no_rows,
            no_rows,
            np.zeros((0, sum(dim for _, dim, _ in columns)), np.float32),
            counted[is_new].view(key_dtype),
            np.minimum(counts[is_new], 2**32 - 1),
            np.full(int(is_new.sum()), self.step, np.int64),
        )

    def _check_distinct(self, keys, item):
        again = np.flatnonzero(keys[1:] == keys[:-1])
        if again.size:
            raise ValueError(
                f"{self._ranks[0][item].path}: expected each key once in all ranks, found key {keys[again[0]]} again"
            )

"""CheckpointManager: checkpoints of a world of processes.

    <directory>/ckpt-10.*             a checkpoint, as one process with as many partitions writes it (saver.py)
    <directory>/ckpt-10.delta-0001.*  a delta: the rows that changed since, and all dense variables; -0002 continues that one, and so on
    <directory>/.saving-<run>-<n>/    save n of a run, until it is committed (saving.py)
        rank-1.*                      the bundle of rank 1: the manifests of its parts; of rank 0 the dense variables, too

Each process writes its rows next to the checkpoint's prefix, under random names. Rank 0 makes one bundle of all, without reading rows, and
moves it there, its index last. The others wait for that, and not in a collective: a save may take longer than a step may.

A delta is a checkpoint of the form that IncrementalSaver writes, with parts of all processes. Its prefix stands for its base with the deltas
up to it: worlds of any size, one process, and what reads files restore it. All parts of a save are of one kind. Only the tables of a process
know whether they know what has changed: not after a start, a restore, `clear` or too many changes. So a save has two rounds:

    1. each process writes the delta of its part, or says that it cannot. Rank 0 commits if all could, else it refuses
    2. if it refused, each deletes its delta and writes all rows

An error in a save ends the chain in each process that sees it. The next save is then one of all rows, in all.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import typing
import zlib

import tensorflow as tf

from tf_multitier._src.processes import world as worlds
from tf_multitier._src.tensorflow import internals
from tf_multitier._src.variable import object_checkpoint
from tf_multitier._src.variable import saver
from tf_multitier._src.variable.delta_names import DELTA
from tf_multitier.distribute import saving
from tf_multitier.distribute.keras_names import paths_as_names

v1 = tf.compat.v1

_runs: dict = {}  # of this process: [the number of their saves, that of the last committed one]


class _Nothing(tf.train.experimental.ShardingCallback):
    """Keeps dense variables out of the bundle of a process: rank 0 writes them."""

    @property
    def description(self):
        return "no dense variables"

    def __call__(self, shardable_tensors):
        return []


def check_directory(what: str, directory: str | os.PathLike) -> None:
    """ValueError for an empty path, which would be the working directory. what: starts the message."""
    if not os.fspath(directory):
        raise ValueError(f"{what}: directory: expected a path, found {directory!r}")


class CheckpointManager:
    """Saves and restores the checkpoints of all processes of a strategy.

        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
        manager = tf_multitier.distribute.CheckpointManager(strategy, checkpoint, "/shared/run")
        manager.restore_or_initialize()
        ...
        manager.save(step)

    All processes make it and call its methods, at the same step. A checkpoint has the rows of all of them and the dense variables of
    rank 0. Trainable ones have the same bits in all processes, or it is not saved; others, such as metrics, may differ. A world of any size restores it, and so does one process by `tf.train.Checkpoint.restore`; a world restores the checkpoints
    of one process and of parameter servers. Only one manager at a time may save in a directory.

    Args:
      strategy: a CollectiveStrategy.
      checkpoint: tf.train.Checkpoint, with the same objects in all processes.
      directory: of the checkpoints, `ckpt-<step>`. All processes must see it. It is made if it does not exist.
      max_to_keep: number of checkpoints that stay; None: all. Deltas stay and go with the one that they continue.
      max_deltas: number of saves after one of all rows that are deltas: they have the rows that changed since the save before. Their names
        are `ckpt-<step of all rows>.delta-<number>`. The first save after a start or a restore has all rows. Tables then track what changes:
        see IncrementalSaver for the memory.

    Raises:
      ValueError: a process does not see the directory of rank 0, it is empty, max_to_keep < 1, or max_deltas < 0.
      NotImplementedError: in a program of graphs and Sessions.
    """

    def __init__(
        self,
        strategy: typing.Any,
        checkpoint: tf.train.Checkpoint,
        directory: str | os.PathLike,
        max_to_keep: int | None = 5,
        max_deltas: int = 0,
    ) -> None:
        worlds.refuse_v1_graph(
            "CheckpointManager",
            "save by tf.train.MonitoredTrainingSession, or by tf.compat.v1.train.Saver on rank 0",
        )
        check_directory("CheckpointManager", directory)
        if max_to_keep is not None and max_to_keep < 1:
            raise ValueError(
                f"CheckpointManager: max_to_keep: expected at least 1 or None, found {max_to_keep}"
            )
        if max_deltas < 0:
            raise ValueError(
                f"CheckpointManager: max_deltas: expected at least 0, found {max_deltas}"
            )
        self._world, self._checkpoint = strategy._world, checkpoint
        self._base: str | None = (
            None  # what the next delta continues; None: the next save has all rows
        )
        self._deltas, self._max_deltas = 0, max_deltas
        self._chain = object()
        self._directory, self._max_to_keep = os.path.abspath(directory), max_to_keep
        if self._is_first():
            os.makedirs(self._directory, exist_ok=True)
        if self._world.size > 1:
            self._run = saving.agreed_run(
                self._world, self._directory, "CheckpointManager: directory"
            )
            _runs[self._run] = [0, 0]

    @property
    def directory(self) -> str:
        """The directory of the checkpoints."""
        return self._directory

    @property
    def latest_checkpoint(self) -> str | None:
        """The prefix of the newest checkpoint, or delta, in the directory, or None."""
        return tf.train.latest_checkpoint(self._directory)

    @property
    def checkpoints(self) -> list:
        """The prefixes of the checkpoints and deltas that are kept, the oldest first."""
        state = tf.train.get_checkpoint_state(self._directory)
        paths = [] if state is None else state.all_model_checkpoint_paths
        return [path for path in paths if os.path.exists(path + ".index")]

    def save(self, step: typing.Any = None) -> str:
        """Writes a checkpoint, or a delta (see max_deltas). Returns its prefix once it exists, in all processes.

        A process that ends before leaves the previous checkpoint as the newest. The next save deletes what is left of this one.

        Args:
          step: integer of the name. None: the checkpoint's `save_counter`, which each save increases. A checkpoint of the same step is
            replaced, with its deltas.

        Raises:
          tf.errors.DeadlineExceededError: a process has not begun its save, or shows no life, for the strategy's timeout.
          tf.errors.AbortedError: the save of another process failed.
          ValueError: processes save different steps or variables, or a trainable dense variable differs.
          NotImplementedError: an embedding variable was made outside of the strategy's scope.
        """
        counter = self._checkpoint.save_counter
        counter.assign_add(1)
        step = int(counter if step is None else step)
        return (self._max_deltas and self._save_delta(step)) or self._save_all(step)

    def _save_all(self, step):
        self._base = None
        prefix = os.path.join(self._directory, f"ckpt-{step}")
        self._save("base" if self._max_deltas else "full", prefix, step)
        if self._max_deltas:
            self._base, self._deltas = prefix, 0
        return prefix

    def _save_delta(self, step):
        """The prefix of the delta; None if a process cannot write it."""
        base, number = self._base, self._deltas + 1
        is_known = all(part.chain is self._chain for part in self._parts())
        can = base is not None and number <= self._max_deltas and is_known
        prefix = f"{base}.delta-{number:04d}" if can else ""
        self._base = None
        if not self._save("delta", prefix, step):
            return None
        self._base, self._deltas = base, number
        return prefix

    def _parts(self):
        variables = object_checkpoint.variables_of(self._checkpoint)
        return [part for variable in variables for part in variable.parts]

    def _save(self, kind, prefix, step):
        """Whether there is a checkpoint then. prefix: empty if this process cannot write it."""
        with saver.kind_of_save(kind):
            if self._world.size > 1:
                return self._save_together(prefix, step)
            if kind != "delta":
                self._remove_deltas(prefix)
            is_written = self._try_to_write(prefix, prefix)
            if is_written:
                self._record(prefix)
            return is_written

    def restore(self, path: str | None = None) -> str | None:
        """Restores a checkpoint in all processes.

        Args:
          path: its prefix; None: the newest one that rank 0 sees.

        Returns:
          The prefix; None where there is no checkpoint.

        Raises:
          AssertionError: the checkpoint has no value for an object.
          tf.errors.OpError: it is damaged.
          tf.errors.AbortedError: another process cannot restore it. End all processes: this one has restored it.
        """
        path = path or self.latest_checkpoint or ""
        if self._world.size > 1:
            path = self._world.text_of_first(path)
        if not path:
            return None
        self._base = None
        with saving.all_or_none(self._world, f"restore of '{path}'"):
            self._checkpoint.restore(path).assert_existing_objects_matched()
        return path

    def restore_or_initialize(self) -> str | None:
        """The same as `restore()`."""
        return self.restore()

    def _is_first(self):
        return self._world.rank == 0

    def _folder(self, run, number):
        return f"{saving.folder_of(self._directory, run)}-{number}"

    def _save_together(self, prefix, step):
        run = _runs[self._run]
        run[0] += 1
        folder = self._folder(self._run, run[0])
        what = f"checkpoint '{prefix or os.path.join(self._directory, str(step))}'"
        with saving.Together(self._world, folder, step, what) as together:
            if self._is_first():
                self._remove_leftovers()
            with object_checkpoint.part_of_world(prefix) as part:
                try:
                    bundle = os.path.join(folder, f"rank-{self._world.rank}")
                    can = self._try_to_write(bundle, prefix)
                    trainable = checksums(self._checkpoint) if can else []
                    together.done(can=can, variables=part.names, trainable=trainable)
                    if self._is_first():
                        reports = together.wait_for_others()
                        is_committed = all(report["can"] for report in reports)
                        if is_committed:
                            self._commit(together, folder, reports, prefix, what)
                        else:
                            together.refuse()
                    else:
                        is_committed = together.wait_for_end()
                    if not is_committed:
                        part.remove()
                        return False
                except BaseException:
                    if together.is_undone():
                        part.remove()
                    raise
        if self._is_first():
            committed = folder + "-committed"
            os.rename(folder, committed)  # at once, for those who look
            # The others are not in the saves before it.
            before = [self._folder(self._run, n) for n in range(run[1] + 1, run[0])]
            for each in (committed, *before):
                shutil.rmtree(each, ignore_errors=True)
            run[1] = run[0]
        return True

    def _commit(self, together, folder, reports, prefix, what):
        bundles = self._bundles(folder, reports, what)
        together.commits()
        if saver.current_kind() != "delta":
            self._remove_deltas(prefix)
        merge(bundles, prefix)
        self._record(prefix)

    def _try_to_write(self, bundle, prefix):
        """Whether the bundle of this process, and its rows, are written. False if the tables do not know what has changed."""
        kind = saver.current_kind()
        if kind != "delta":
            self._write(bundle)
        elif not prefix:
            return False
        else:
            try:
                self._write(bundle)
            except tf.errors.FailedPreconditionError as error:
                v1.logging.info("all rows are saved: %s", error.message)
                return False
        if kind != "full":
            for part in self._parts():
                part.chain = self._chain
        return True

    def _write(self, bundle):
        """Writes the bundle of this process, and its rows."""
        if self._is_first():
            with paths_as_names(self._checkpoint):
                self._checkpoint.write(bundle)
        elif object_checkpoint.variables_of(self._checkpoint):
            options = tf.train.CheckpointOptions(experimental_sharding_callback=_Nothing())
            self._checkpoint.write(bundle, options)

    def _bundles(self, folder, reports, what):
        """The prefixes of the bundles of all processes."""
        expected = reports[0]["variables"]
        saving.check_alike(what, [report["variables"] for report in reports])
        check_trainable(what, [report["trainable"] for report in reports])
        count = self._world.size if expected else 1
        return [os.path.join(folder, f"rank-{rank}") for rank in range(count)]

    def _remove_deltas(self, base):
        """Deletes the deltas of a checkpoint that is about to be replaced. Until then it is the newest, if it is there."""
        index = ".index"
        found = glob.glob(f"{glob.escape(base)}.delta-*{index}")
        found = [path.removesuffix(index) for path in found]
        if found and os.path.exists(base + index):
            self._record(base, found)
        for delta in found:
            v1.train.remove_checkpoint(delta)

    def _record(self, prefix, left_out=()):
        """Makes a checkpoint the newest, and deletes the oldest with their deltas."""
        paths = [path for path in self.checkpoints if path not in (prefix, *left_out)] + [prefix]
        bases = list(dict.fromkeys(map(_base_of, paths)))
        bases = bases[-self._max_to_keep :] if self._max_to_keep else bases
        kept = [path for path in paths if _base_of(path) in bases]
        with internals.deprecations_silenced():
            v1.train.update_checkpoint_state(
                self._directory,
                os.path.basename(prefix),
                [os.path.relpath(path, self._directory) for path in kept],
                all_model_checkpoint_timestamps=[os.path.getmtime(p + ".index") for p in kept],
            )
            for path in reversed(paths):
                if path not in kept:
                    v1.train.remove_checkpoint(path)

    def _remove_leftovers(self):
        """Deletes the folders of saves that were not committed.

        Of its own runs it leaves the reports since the last one that was: another process may be about to learn from them that they
        failed, or may have failed already and be in the next save. Where they are missing, it takes the save for committed.
        """
        own = {saving.folder_of(self._directory, run): numbers for run, numbers in _runs.items()}
        for folder in glob.glob(os.path.join(glob.escape(self._directory), ".saving-*")):
            run, _, number = folder.rpartition("-")
            begun, committed = own.get(run, (0, 0))
            if run not in own or int(number) <= committed:
                shutil.rmtree(folder, ignore_errors=True)
            elif int(number) < begun - 1:
                saving.remove_all_but_reports(folder)


def _base_of(prefix):
    match = DELTA.match(prefix)
    return match[1] if match else prefix


def checksums(checkpoint: tf.train.Checkpoint) -> list:
    """[[name, CRC-32]] of the dense variables that are trainable. JSON has it."""
    found = object_checkpoint.dense_variables(object_checkpoint.objects_of(checkpoint._saver))
    return [
        [getattr(one, "path", None) or one.name, zlib.crc32(variable.numpy().tobytes())]
        for one, variable in found
        if one.trainable and variable.dtype.is_floating
    ]


def check_trainable(what: str, checksums: list) -> None:
    """ValueError unless the trainable dense variables of all ranks have those of rank 0. checksums: of each rank."""
    expected = checksums[0]
    for rank, found in enumerate(checksums):
        if len(found) != len(expected):
            raise ValueError(
                f"{what}: expected the {len(expected)} trainable dense variables of rank 0 in all processes, found {len(found)} in rank "
                f"{rank}"
            )
        others = [name for (name, its), (_, first) in zip(found, expected) if its != first]
        if others:
            raise ValueError(
                f"{what}: expected the values of rank 0 in all trainable dense variables, found {len(others)} others in rank {rank}, the "
                f"first '{others[0]}': pass their gradients through strategy.reduce_gradients, and make layers in strategy.scope(). For "
                "variables that are meant to differ, call strategy.broadcast_variables before the save, or make them with "
                "trainable=False: the checkpoint has those of rank 0"
            )


def merge(bundles: list, prefix: str) -> None:
    """Makes one bundle of several, its index last. They are in a folder of the same file system, and do not exist afterwards."""
    merged = os.path.join(os.path.dirname(bundles[-1]), "merged")
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=bundles, destination_prefix=merged, delete_old_dirs=False
    )
    with contextlib.suppress(FileNotFoundError):
        os.remove(prefix + ".index")
    for data in glob.glob(glob.escape(merged) + ".data-*"):
        os.rename(data, prefix + data.removeprefix(merged))
    os.rename(merged + ".index", prefix + ".index")

"""Together: a folder by which the processes of a world do one save, without a collective.

    <folder>/rank-1.json    what rank 1 does: its step, a count that rises while it works, and how that ended

Rank 0 ends the save and removes the folder: the others write nothing there after "done", unless they fail. A process is late when it has
not begun, or its count has not risen, for as long as a collective waits. So a save may take any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import threading
import time
import typing
from collections.abc import Iterator

import tensorflow as tf

from tf_multitier._src.variable.working_folders import working_folder

_BEATS = 8  # of the count, in the time after which a process is late
_LONGEST_PAUSE = 0.5  # seconds between two looks at the others


def folder_of(directory: str, run: str) -> str:
    """The beginning of the paths of a run's folders."""
    return os.path.join(directory, f".saving-{run}")


def remove_all_but_reports(folder: str) -> None:
    """Deletes what a save that failed has written in its folder."""
    for each in os.scandir(folder):
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
        elif ".json" not in each.name:
            with contextlib.suppress(OSError):
                os.remove(each)


def agreed_run(world: typing.Any, directory: str, what: str) -> str:
    """A random name, the same in all processes. ValueError unless all see the same directory. what: begins the message."""
    run = world.text_of_first(secrets.token_hex(8))
    folder = folder_of(directory, run)
    if world.rank == 0:
        os.makedirs(folder)
    world.ranks_with(False)  # the folder is there
    blind = world.ranks_with(not os.path.isdir(folder))
    if world.rank == 0:
        os.rmdir(folder)
    if blind:
        raise ValueError(_not_shared(what, directory, blind))
    return run


@contextlib.contextmanager
def all_or_none(world: typing.Any, what: str) -> Iterator[None]:
    """An error of one process in the block is one of all: AbortedError names the ranks. world: None, or of one process: has no effect."""
    is_alone = world is None or world.size == 1
    try:
        yield
    except BaseException:
        if not is_alone:
            world.ranks_with(True)
        raise
    failed = [] if is_alone else world.ranks_with(False)
    if failed:
        raise tf.errors.AbortedError(
            None,
            None,
            f"{what}: expected it in all processes, found an error in rank {', '.join(map(str, failed))}, which says why",
        )


@contextlib.contextmanager
def working_folder_of_all(
    world: typing.Any, parent: str, what: str, check: typing.Callable
) -> Iterator[tuple]:
    """Gives a new folder in `parent`, deleted at the end, and the Together of the processes, which do one save in it.

    Args:
      world: the World.
      parent: all processes see it.
      what: begins messages.
      check: rank 0 calls it first. Its errors are those of all.

    Raises:
      ValueError: a process does not see the folder.
    """
    with all_or_none(world, what), contextlib.ExitStack() as stack:
        made = ""
        with all_or_none(world, what):
            if world.rank == 0:
                check()
                made = stack.enter_context(working_folder(parent))
        made = os.path.join(parent, world.text_of_first(os.path.relpath(made or parent, parent)))
        blind = world.ranks_with(not os.path.isdir(made))
        if blind:
            raise ValueError(_not_shared(what, parent, blind))
        yield made, stack.enter_context(Together(world, os.path.dirname(made), 0, what))


def _not_shared(what, directory, blind):
    return (
        f"{what}: expected one that all processes share, found '{directory}', in which rank {', '.join(map(str, blind))} does not see the "
        "files of rank 0: use a shared file system"
    )


def check_alike(what: str, names: list) -> None:
    """ValueError unless all ranks have the same names of embedding variables. names: of each rank."""
    for rank, found in enumerate(names):
        if found != names[0]:
            raise ValueError(
                f"{what}: expected the embedding variables {', '.join(names[0]) or 'none'} of rank 0 in all processes, found "
                f"{', '.join(found) or 'none'} in rank {rank}"
            )


class Together:
    """One save of all processes. Used in a `with` block: an error in it ends the save in the other processes, too.

    Args:
      world: the World.
      folder: that of the save. Each save has another one.
      step: of the save.
      what: begins messages.
    """

    def __init__(self, world: typing.Any, folder: str, step: int, what: str) -> None:
        self._world, self._folder, self._what = world, folder, what
        self._report: dict = {"step": step, "count": 0}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> Together:
        os.makedirs(self._folder, exist_ok=True)
        self.says()
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self._stop_counting()
        if error is None:
            if self._world.rank == 0:
                with contextlib.suppress(OSError):
                    self._say(ended=True)
        else:
            text = getattr(error, "message", None) or str(error)
            with contextlib.suppress(OSError):
                self._say(failed=f"{type(error).__name__}: {text}"[:2000])

    def done(self, **said: typing.Any) -> None:
        """This process has written all its files. said: for `wait_for_others`."""
        if self._world.rank > 0:
            self._stop_counting()
        self.says(done=True, **said)

    def commits(self) -> None:
        """Rank 0 begins to give the checkpoint its name."""
        self.says(committed=True)

    def is_undone(self) -> bool:
        """Whether it is known that there is and will be no checkpoint, so that the files of this process may be deleted."""
        if self._world.rank == 0:
            return "committed" not in self._report
        first = self._read(0)
        is_of_other_step = first.get("step", self._report["step"]) != self._report["step"]
        has_failed = "failed" in first and "committed" not in first
        return "done" not in self._report or is_of_other_step or has_failed

    def says(self, **said: typing.Any) -> None:
        """Tells the others. AbortedError if the folder of the save is missing."""
        try:
            self._say(**said)
        except FileNotFoundError as error:
            raise tf.errors.AbortedError(
                None,
                None,
                f"{self._what}: expected '{self._folder}' until the save ends, found it deleted: rank 0 has begun a later save, or another "
                "program saves in this directory",
            ) from error

    def wait_for_others(self) -> list:
        """Waits until all processes are done. Returns what they said, in order of rank.

        Raises:
          tf.errors.DeadlineExceededError: one is late.
          tf.errors.AbortedError: one has failed.
          ValueError: one saves another step.
        """
        others = [rank for rank in range(self._world.size) if rank != self._world.rank]
        self._wait(others, lambda report: "done" in report)
        return [self._read(rank) for rank in range(self._world.size)]

    def wait_for_end(self) -> bool:
        """Waits until rank 0 has ended the save. Returns False if it refuses it: the folder is there until the next save.

        Raises: as `wait_for_others`.
        """
        self._wait([0], lambda report: "ended" in report or not os.path.isdir(self._folder))
        return "refused" not in self._read(0)

    def refuse(self) -> None:
        """Rank 0 ends the save without a checkpoint, and without an error."""
        self.says(refused=True)

    def _wait(self, ranks, is_ended):
        pause, seen = 0.005, {rank: (None, time.monotonic()) for rank in ranks}
        while seen:
            for rank in list(seen):
                report, now = self._read(rank), time.monotonic()
                self._check(rank, report)
                if is_ended(report):
                    del seen[rank]
                elif report != seen[rank][0]:
                    seen[rank] = report, now
                elif now - seen[rank][1] > self._world.timeout:
                    raise tf.errors.DeadlineExceededError(None, None, self._late(rank, report))
            if seen:
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE, 1.2 * pause)

    def _check(self, rank, report):
        if "failed" in report:
            raise tf.errors.AbortedError(
                None, None, f"{self._what}: rank {rank} failed: {report['failed']}"
            )
        step = self._report["step"]
        if report.get("step", step) != step:
            raise ValueError(
                f"{self._what}: expected step {step} in all processes, found step {report['step']} in rank {rank}: call save at the "
                "same step in all"
            )

    def _late(self, rank, report):
        found = "nothing more" if report else "none"
        return (
            f"{self._what}: expected rank {rank} to save within {self._world.timeout:g} seconds, found {found} from it: it has ended or "
            "hangs, or it does not call save at this step, as all processes do"
        )

    def _read(self, rank):
        with contextlib.suppress(OSError, ValueError):
            with open(self._file(rank), encoding="utf-8") as file:
                return json.load(file)
        return {}

    def _say(self, **said):
        with self._lock:
            self._report |= said | {"count": self._report["count"] + 1}
            path = self._file(self._world.rank)
            with open(path + ".new", "w", encoding="utf-8") as file:
                json.dump(self._report, file)
            os.replace(path + ".new", path)

    def _file(self, rank):
        return os.path.join(self._folder, f"rank-{rank}.json")

    def _stop_counting(self):
        self._ended.set()
        self._thread.join()

    def _count(self):
        while not self._ended.wait(self._world.timeout / _BEATS):
            with contextlib.suppress(OSError):
                self._say()

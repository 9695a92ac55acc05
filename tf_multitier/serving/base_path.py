"""BasePath: keeps a Model at the newest version below a folder.

  click/7/saved_model.pb                   version 7
  click/8/saved_model.pb                   version 8
  click/8/rows/model-1000                  with the variables of this checkpoint,
  click/8/rows/model-1000.delta-0001       and of its deltas

A version that cannot be loaded is tried again when its files change, and after a wait that doubles: files or memory may have been
short.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import stat
import threading
import time
import typing
from collections.abc import Callable

import tensorflow as tf

from tf_multitier import _engine
from tf_multitier.checkpoint.chain import delta_prefixes
from tf_multitier.serving.model import Model
from tf_multitier.serving.model import Version

_LOG = logging.getLogger(__name__)

_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # seconds


class _Failed(typing.NamedTuple):
    """A version that could not be loaded."""

    files: object
    error: str
    wait: float
    next_try: float


class BasePath:
    """The versions below a folder, and the Model that serves one of them.

    Attributes:
      path: the folder.
      failures: number of versions and deltas that could not be loaded.
      current: (number, definitions) of the version that is served. Who reads it is no user of the version, and never frees tables.

    Threading: one thread calls `watch`; the others may be called from any thread.
    """

    def __init__(
        self, path: str, storage_path: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.failures = 0
        self._clock = clock
        self.path, self._storage_path = path, storage_path
        self._model: Model | None = None
        self.current: tuple[int, dict[str, typing.Any]]
        self._failed: dict[int, _Failed] = {}
        self._ended = threading.Event()
        self.check()
        if self._model is None:
            found = "; ".join(each.error for each in self._failed.values()) or "none"
            raise _engine.NotFoundError(
                f"'{path}': expected folders such as 1/ with a SavedModel, found {found}"
            )

    @property
    def model(self) -> Model:
        assert self._model is not None
        return self._model

    def version_of(self, version: Version) -> int:
        """The number of a version of `model`."""
        return self._number(version.path)

    def errors(self) -> dict[int, str]:
        """{version: why it could not be loaded}."""
        return {number: each.error for number, each in self._failed.copy().items()}

    def watch(self, poll_seconds: float) -> None:
        """Loads what appears, until `end`."""
        while not self._ended.wait(poll_seconds):
            try:
                self.check()
            except Exception:  # noqa: BLE001  files or memory are short
                _LOG.exception("'%s' could not be read", self.path)

    def check(self) -> None:
        """Loads the newest version that can be loaded, unless it is the current one."""
        folders = {
            int(name): os.path.join(self.path, name)
            for name in os.listdir(self.path)
            if name.isascii() and name.isdecimal()
        }
        for number in self._failed.keys() - folders:
            del self._failed[number]
        current = self._model and self.current[0]
        for number in sorted(folders, reverse=True):
            if self._load(number, folders[number]) or number == current:
                return

    def end(self) -> None:
        """Ends `watch`."""
        self._ended.set()

    def _number(self, path):
        return int(os.path.relpath(path, self.path).split(os.sep)[0])

    def _load(self, number, folder):
        """Whether the version is the current one afterwards."""
        files, failed = _files(folder), self._failed.get(number)
        changed = failed is None or failed.files != files
        if not changed and self._clock() < failed.next_try:
            return False
        try:
            _expect_regular(files)
            rows = _newest_rows(os.path.join(folder, "rows"))
            if rows is None and self._serves_rows_of(folder):
                raise _engine.NotFoundError(
                    f"'{folder}/rows': expected the checkpoint that is served, found none: rename a version away before you delete it"
                )
            if self._model is None or self._model.path != (rows or folder):
                _touch(files)
                self._reload(folder, rows)
                with self.model.pin() as version:
                    self.current = number, version.definitions
                _LOG.info("version %d is served from '%s'", number, self.model.path)
        except Exception as error:  # noqa: BLE001  of any file of the version
            _LOG.exception("version %d of '%s' could not be loaded", number, self.path)
            self.failures += changed
            wait = _FIRST_WAIT if changed else min(2 * failed.wait, _LONGEST_WAIT)
            self._failed[number] = _Failed(files, str(error), wait, self._clock() + wait)
            return False
        self._failed.pop(number, None)
        return True

    def _serves_rows_of(self, folder):
        return self._model is not None and self._model.path.startswith(
            os.path.join(folder, "rows", "")
        )

    def _reload(self, folder, rows):
        if not tf.saved_model.contains_saved_model(folder):
            raise _engine.NotFoundError(f"'{folder}': expected a SavedModel, found none")
        if self._model is not None:
            same = rows and self._number(self._model.path) == self._number(folder)
            return self._model.reload(rows) if same else self._model.reload(folder, rows)
        model = Model(folder, storage_path=self._storage_path)
        try:
            if rows:
                model.reload(rows)
        except BaseException:
            model.close()
            raise
        self._model = model


def _newest_rows(folder):
    """The prefix of the newest delta in a folder, or of its checkpoint; None if there is none."""
    state = tf.train.get_checkpoint_state(folder)
    if state is None:
        if glob.glob(os.path.join(glob.escape(folder), "*.index")):
            raise _engine.NotFoundError(
                f"'{folder}': expected a file `checkpoint`, which names the newest save; found none"
            )
        return None
    # The file has the path of the folder at the time of the save.
    base = os.path.join(folder, os.path.basename(state.model_checkpoint_path))
    if not os.path.exists(base + ".index"):
        raise _engine.NotFoundError(
            f"'{folder}': expected '{os.path.basename(base)}.index', which its file `checkpoint` names; found none"
        )
    return [base, *delta_prefixes(base)][-1]


def _files(folder):
    """What tells whether the files below a folder have changed."""
    found = []
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.stat(os.path.join(path, name))
            except OSError:
                continue  # removed since it was listed
            found.append((path, name, status.st_mode, status.st_size, status.st_mtime_ns))
    return sorted(found)


def _expect_regular(files):
    """ValueError if a file is something that could block its reader without end, such as a FIFO."""
    for folder, name, mode, *_ in files:
        if not stat.S_ISREG(mode):
            raise ValueError(
                f"'{os.path.join(folder, name)}': expected a regular file, found a FIFO, a socket or a device: remove it from the version"
            )


def _touch(files):
    """Reads a byte of each. Where a disk hangs, this thread hangs here; TensorFlow would with Python's lock, which all threads need."""
    for folder, name, *_ in files:
        with contextlib.suppress(OSError):  # who needs the file will say so
            with open(os.path.join(folder, name), "rb", buffering=0) as file:
                file.read(1)

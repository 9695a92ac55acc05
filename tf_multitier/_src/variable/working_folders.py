"""Folders for the files of a save, load or deletion that runs, next to what it changes.

    <parent>/.tf_multitier-<hex>/new/     the next user of the parent deletes those of killed processes

A process holds a lock on its folder, which ends with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator

_PREFIX = ".tf_multitier-"  # digits alone may be the name of a folder of another program


@contextlib.contextmanager
def _locked(folder, is_waiting=True):
    """Holds the lock of a folder, which ends with the process. Gives whether it does."""
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if is_waiting else fcntl.LOCK_NB))
        is_held = True
    except BlockingIOError:
        is_held = False
    try:
        yield is_held
    finally:
        os.close(file)


@contextlib.contextmanager
def working_folder(parent: str) -> Iterator[str]:
    """Gives a new folder in `parent`, and deletes those that killed processes left. At the end it is deleted, if it is there."""
    os.makedirs(parent, exist_ok=True)
    with contextlib.ExitStack() as stack:
        with _locked(parent):  # so that no other process takes the new one for one that was left
            for name in os.listdir(parent):
                left = os.path.join(parent, name)
                if is_working_folder(name) and os.path.isdir(left):
                    # PermissionError: another user has it. FileNotFoundError: its process deletes it.
                    with contextlib.suppress(PermissionError, FileNotFoundError):
                        with _locked(left, is_waiting=False) as is_held:
                            if is_held:
                                shutil.rmtree(left)
            made = os.path.join(parent, _PREFIX + uuid.uuid4().hex)
            os.mkdir(made)
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            stack.enter_context(_locked(made))
        inner = os.path.join(made, "new")  # a checkpoint.Writer locks its folder, too
        os.mkdir(inner)
        yield inner


def is_working_folder(name: str) -> bool:
    """Whether a name in the parent is that of a working folder."""
    return re.fullmatch(re.escape(_PREFIX) + "[0-9a-f]{32}", name) is not None


def sync(path: str) -> None:
    """Writes a file or a folder to its disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)

"""Part files: rows that are too large for an archive of Keras are in files next to it.

    m.keras                          the archive. Of a table it has the rows, or name and size of a part file
    m.keras.data-itsia-of-zrpqq      a part file: rows as a checkpoint has them

A save to the same path removes the part files of the save before, unless a copy of the archive in the same folder names them.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import pathlib
import re
import typing
import weakref
import zipfile
import zlib

import h5py
import numpy as np

from tf_multitier.keras.keras_internals import SAVING_MODULE

# Bytes of rows that an archive has itself, all tables together. Keras holds an archive in memory while it saves and loads it.
MAX_BYTES_IN_ARCHIVE = 2**30

_NAME = re.compile(r".*\.(data-[a-z]{5}-of-[a-z]{5})", re.DOTALL)
_KEY = re.compile(r"(?:.*/)?file_\d+")
_WEIGHTS = "model.weights.h5"  # in a .keras file
_CHUNK = 2**23


class Archive:
    """The archive that a store of Keras writes or reads: where it is, and its part files.

    `of(store)` returns the one object of a store. Keras passes the same store to all layers of a model.
    """

    _of: typing.ClassVar[weakref.WeakKeyDictionary] = weakref.WeakKeyDictionary()

    @classmethod
    def of(cls, store: typing.Any) -> Archive:
        found = cls._of.get(store)
        if found is None:
            found = cls._of[store] = cls(store)
        return found

    def __init__(self, store: typing.Any) -> None:
        self.path = _path_of(store)
        self._store: typing.Any = weakref.ref(store)
        self._room = MAX_BYTES_IN_ARCHIVE
        self._failure: Exception | None = None
        self._is_checked = False
        self._done: set = set()
        if self.path is not None and store.mode == "w":
            _remove_unused(self.path)

    def new(self, rows: list) -> list:
        """Those of the Rows that are not done: the archive has a table once, in the first of the layers that have it."""
        return [one for one in rows if id(one) not in self._done]

    def done(self, rows: list) -> None:
        """These Rows are written or read. Keras tries a layer that could not be read again, if it has it at another place."""
        self._done.update(map(id, rows))

    def takes(self, path: str) -> bool:
        """Whether the rows of the file at `path` go into the archive. Each call takes up room."""
        size = os.path.getsize(path)
        if size > self._room or size > getattr(self._store(), "max_shard_size", size):
            return False
        self._room -= size
        return True

    def part_file(self, entry: bytes) -> str:
        """The path of the part file of an entry. ValueError: there is none, or it has another size."""
        name, size = (json.loads(entry)[member] for member in ("name", "bytes"))
        if self.path is None or os.path.basename(name) != name or not _NAME.fullmatch(name):
            raise ValueError(
                f"rows in file {name!r}: expected an archive in a local folder that has this file next to it"
            )
        path = os.path.abspath(self.path.parent / name)
        found = os.path.getsize(path) if os.path.isfile(path) else None
        if found != size:
            raise ValueError(
                f"'{self.path}': expected part file '{path}' of {size} bytes, found {'no file' if found is None else f'{found} bytes'}"
            )
        return path

    def check(self) -> None:
        """Checks the checksum of the weights in a `.keras` file, once: Keras reads them without it.

        Raises:
          ValueError: it is wrong. Then each call raises.
        """
        if not self._is_checked:
            self._is_checked = True
            try:
                self._check_weights()
            except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
                self._failure = ValueError(f"'{self.path}' is damaged: {error}")
        if self._failure is not None:
            raise self._failure

    def _check_weights(self):
        if self.path is None or not zipfile.is_zipfile(self.path):
            return
        with zipfile.ZipFile(self.path) as archive:
            if _WEIGHTS in archive.namelist():
                with archive.open(_WEIGHTS) as file:
                    while file.read(_CHUNK):
                        pass


def entry(path: str) -> bytes:
    """What an archive has of the part file at `path`: its name and size. The manifest of the rows has its checksum."""
    return json.dumps({"name": os.path.basename(path), "bytes": os.path.getsize(path)}).encode()


def _path_of(store):
    """The path of the archive behind a store; None if it is in memory or a copy of a remote one.

    A store of a `.keras` archive does not always know it. Then Keras' functions among the callers do.
    """
    archive, frame = store.archive, typing.cast(typing.Any, inspect.currentframe())
    while frame is not None:
        if frame.f_globals.get("__name__") == SAVING_MODULE:
            if frame.f_locals.get("tmp_dir") is not None:
                return None  # Keras copies the archive from or to another system
            archive = archive or frame.f_locals.get("zf") or frame.f_locals.get("archive")
        frame = frame.f_back
    if isinstance(archive, zipfile.ZipFile):
        path = archive.filename
    else:
        path = getattr(store, "path", None) or store.path_or_io
    return pathlib.Path(path) if isinstance(path, (str, os.PathLike)) else None


def _remove_unused(archive):
    """Removes the part files of an archive that is written anew, except those that a copy in the same folder names.

    Removes none if a checkpoint has the archive's name, or if a file of the folder cannot be read: they may be in use.
    """
    if pathlib.Path(f"{archive}.index").exists():
        return
    others = [path for path in archive.parent.iterdir() if path.is_file() and path != archive]
    prefix = archive.name + "."
    unused = {p.name for p in others if p.name.startswith(prefix) and _NAME.fullmatch(p.name)}
    for path in others:
        if unused and path.name not in unused:
            try:
                unused -= _names_in(path)
            except (
                OSError,
                KeyError,
                RuntimeError,
                ValueError,
                TypeError,
                zipfile.BadZipFile,
                zlib.error,
            ):
                return
    for name in unused:
        (archive.parent / name).unlink()


def _names_in(path):
    """The names of the part files of the archive at `path`. Other files have none."""
    with open(path, "rb") as file:
        magic = file.read(4)
    if magic == b"\x89HDF":
        with h5py.File(path) as weights:
            entries = _entries_in(weights)
    elif magic == b"PK\x03\x04":
        with zipfile.ZipFile(path) as archive:
            if _WEIGHTS not in archive.namelist():
                return set()
            with h5py.File(io.BytesIO(archive.read(_WEIGHTS))) as weights:
                entries = _entries_in(weights)
    else:
        return set()
    return {json.loads(entry)["name"] for entry in entries}


def _entries_in(weights):
    """The entries of all part files in an HDF5 file, each a bytes object."""
    found: list = []

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and _KEY.fullmatch(name):
            found.append(np.asarray(item).tobytes())

    if weights is not None:
        weights.visititems(visit)
    return found

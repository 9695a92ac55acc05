"""Part files: rows that are too large for an archive of Keras are in files next to it.

    m.keras                          the archive. Of a table it has the rows, or name, size and checksum of a part file
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
import tqdm

from tf_multitier.keras.keras_internals import SAVING_MODULE

# Bytes of rows that an archive has itself, all tables together. Keras holds an archive in memory while it saves and loads it.
MAX_BYTES_IN_ARCHIVE = 2**30

_NAME = re.compile(r".*\.(data-[a-z]{5}-of-[a-z]{5})", re.DOTALL)
_KEY = re.compile(r"(?:.*/)?file_\d+")
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

    def entry(self, path: str) -> bytes:
        """What the archive has of the part file at `path`: its name, size and checksum."""
        size = os.path.getsize(path)
        with _bar("save", size) as bar:
            entry = {"name": os.path.basename(path), "bytes": size, "crc32": _checksum(path, bar)}
        return json.dumps(entry).encode()

    def part_file(self, entry: bytes) -> str:
        """The path of the part file of an entry."""
        name = json.loads(entry)["name"]
        if self.path is None or os.path.basename(name) != name or not _NAME.fullmatch(name):
            raise ValueError(
                f"rows in file {name!r}: expected an archive in a local folder that has this file next to it"
            )
        return str(self.path.parent / name)

    def check(self) -> None:
        """Checks all part files that the archive names, once.

        Raises:
          ValueError: one is missing, or has another size or checksum. Then each call raises.
        """
        if not self._is_checked:
            self._is_checked = True
            try:
                self._check_files(_entries_in(getattr(self._store(), "h5_file", None)))
            except (ValueError, OSError) as error:
                self._failure = ValueError(f"{error}. No row was changed")
        if self._failure is not None:
            raise self._failure

    def _check_files(self, entries):
        wanted = [(self.part_file(entry), json.loads(entry)) for entry in entries]
        for path, entry in wanted:
            size = os.path.getsize(path) if os.path.isfile(path) else None
            if size != entry["bytes"]:
                found = "no file" if size is None else f"{size} bytes"
                raise ValueError(
                    f"'{self.path}': expected part file '{path}' of {entry['bytes']} bytes, found {found}"
                )
        with _bar("check", sum(entry["bytes"] for _, entry in wanted)) as bar:
            for path, entry in wanted:
                found = _checksum(path, bar)
                if found != entry["crc32"]:
                    raise ValueError(
                        f"'{self.path}': expected part file '{path}' with checksum {entry['crc32']:08x}, found {found:08x}"
                    )


def _bar(verb, total):
    """A progress bar of bytes, if standard error is a terminal."""
    return tqdm.tqdm(
        desc=verb, total=total, unit="B", unit_scale=True, disable=None if total else True
    )


def _checksum(path, bar):
    """The CRC-32 of a file."""
    crc = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
            bar.update(len(chunk))
    return crc


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
            if "model.weights.h5" not in archive.namelist():
                return set()
            with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as weights:
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

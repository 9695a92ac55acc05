"""The files of a dump, as dynamicemb has them. Here is what they are called and how their bytes are; dump.py and load.py say what is in them.

    <path>/
      manifest.json                                    ours, written last: sizes and checksums of all files
      <collection>/<table>_emb_keys.rank_R.world_size_W      int64 [n]; the other items are next to it: ITEMS
      <collection>/<table>_opt_args.json               one for all ranks

A file is its array, in the order of C, little-endian, without a header. Row i of each item of a rank is of key i.
"""

from __future__ import annotations

import json
import os
import re
import typing

import numpy as np

from tf_multitier import _engine
from tf_multitier._src.options.option_values import each_once
from tf_multitier._src.options.option_values import path_text
from tf_multitier._src.variable.working_folders import is_working_folder
from tf_multitier._src.variable.working_folders import sync

KEYS, VALUES, SCORES, STATES = "emb_keys", "emb_values", "emb_scores", "emb_opt_values"
COUNTED, COUNTS = "counter_keys", "counter_frequencies"
BYTES = "bytes"  # of a file that is no array
ITEMS = {
    KEYS: np.int64,
    VALUES: np.float32,
    SCORES: np.int64,
    STATES: np.float32,
    COUNTED: np.int64,
    COUNTS: np.int64,
}
ARGUMENTS = "opt_args.json"
MANIFEST = "manifest.json"
_FORMAT = 1


def file_name(table: str, item: str, rank: int = 0, world: int = 1) -> str:
    """The name of a file of one rank."""
    return f"{table}_{item}.rank_{rank}.world_size_{world}"


def ranks_of(folder: str, table: str, item: str) -> dict:
    """{world size: {rank: path}} of the files of an item that a folder has."""
    pattern = re.compile(re.escape(f"{table}_{item}") + r"\.rank_(\d+)\.world_size_(\d+)")
    found: dict = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if match := pattern.fullmatch(name):
            found.setdefault(int(match[2]), {})[int(match[1])] = os.path.join(folder, name)
    return found


def _bytes_of(array: typing.Any) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


class RawWriter:
    """Writes arrays into a new file, one after the other. `close` writes it to the disk.

    Attributes:
      size, checksum: bytes so far, and their CRC-32.
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115  close ends it
        self.size = self.checksum = 0

    def add(self, array: np.ndarray) -> None:
        """Appends an array of the item's type."""
        data = _bytes_of(np.ascontiguousarray(array))
        while data:
            written = self._file.write(data)
            self.checksum = _engine.crc32(data[:written], self.checksum)
            self.size += written
            data = data[written:]

    def close(self) -> None:
        """Ends the file."""
        os.fsync(self._file.fileno())
        self._file.close()


class RawReader:
    """Reads an item of one rank from its begin to its end, and checks it.

    Args:
      path: the file.
      item: its key in ITEMS.
      width: numbers of a row.
      entry: its entry of the manifest, or None.

    Attributes:
      rows: their number.
      checksum: that the manifest says, or None.

    Raises:
      ValueError: there is no such file, or its size is not that of whole rows, or of the manifest.
    """

    def __init__(self, path: str, item: str, width: int, entry: dict | None) -> None:
        self.path, self._width, self.checksum = (
            path,
            width,
            None if entry is None else entry["crc32"],
        )
        self._dtype = np.dtype(ITEMS.get(item, np.uint8))
        size = size_of(path)
        if entry is not None and size != entry["size"]:
            raise ValueError(
                f"{path}: expected {entry['size']} bytes, as {MANIFEST} says, found {size}"
            )
        self.rows, rest = divmod(size, width * self._dtype.itemsize)
        if rest:
            raise ValueError(
                f"{path}: expected rows of {width} {self._dtype.name} ({width * self._dtype.itemsize} bytes), found {size} bytes"
            )

    def pieces(self, rows: int) -> typing.Iterator[np.ndarray]:
        """Yields [n, width], n up to `rows`. ValueError, at the end: other bytes than the manifest says."""
        checksum, left = 0, self.rows
        with open(self.path, "rb", buffering=0) as file:
            while left:
                piece = np.empty((min(rows, left), self._width), self._dtype)
                data = _bytes_of(piece)
                at = 0
                while at < len(data):
                    read = file.readinto(data[at:])
                    if not read:
                        raise ValueError(
                            f"{self.path}: expected {self.rows} rows, found the end of the file: it changed while it was read"
                        )
                    at += read
                if self.checksum is not None:
                    checksum = _engine.crc32(data, checksum)
                left -= len(piece)
                yield piece
        if self.checksum not in (None, checksum):
            raise ValueError(
                f"{self.path}: expected checksum {self.checksum:08x}, as {MANIFEST} says, found {checksum:08x}: it is damaged"
            )


def size_of(path: str) -> int:
    """The bytes of a file. ValueError: there is none."""
    if not os.path.isfile(path):
        raise ValueError(f"{path}: expected a file of the dump, found none")
    return os.path.getsize(path)


def read_json(path: str) -> dict:
    """The object in a file. ValueError: there is no such file, or none in it."""
    size_of(path)
    with open(path, encoding="utf-8") as file:
        try:
            found = json.load(file, object_pairs_hook=each_once)
        except ValueError as error:
            raise ValueError(f"{path}: expected JSON, found {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(found).__name__}")
    return found


def write_json(path: str, content: dict) -> dict:
    """Writes a new file, and its entry for the manifest."""
    writer = RawWriter(path)
    writer.add(np.frombuffer(json.dumps(content, indent=1).encode() + b"\n", np.uint8))
    writer.close()
    return {"size": writer.size, "crc32": writer.checksum}


def manifest_of(path: str) -> dict | None:
    """{file: its entry} of the dump in a folder; None where it has no manifest, as dumps of other programs.

    Raises:
      ValueError: the manifest is damaged.
    """
    name = os.path.join(path, MANIFEST)
    if not os.path.exists(name):
        return None
    found = read_json(name)
    files = found.get("files")
    is_whole = isinstance(files, dict) and all(
        isinstance(e, dict)
        and {type(e.get("size")), type(e.get("crc32"))} == {int}
        and 0 <= e["crc32"] < 1 << 32
        for e in files.values()
    )
    if found.get("format_version") != _FORMAT or not is_whole:
        raise ValueError(
            f"{name}: expected the manifest of a dump, format_version {_FORMAT}, found another file: delete it if it is none"
        )
    return files


def folder(where: str, path: typing.Any) -> str:
    """A path as a str. TypeError, ValueError: it is none."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{where}: path: expected a folder's path, found {path!r}")
    return path_text(f"{where}: path", path)


def check_target(path: str, allow_overwrite: bool) -> None:
    """Checks the folder of a new dump.

    Raises:
      NotADirectoryError: it is a file.
      FileExistsError: it has files, and allow_overwrite is false.
      ValueError: the manifest of the dump that is there is damaged.
    """
    if os.path.lexists(path) and not os.path.isdir(path):
        raise NotADirectoryError(
            f"DynamicEmbDump: path: expected a folder, found the file '{path}'"
        )
    names = _files_in(path)
    if names and not allow_overwrite:
        raise FileExistsError(
            f"DynamicEmbDump: path: expected an empty or new folder, found '{names[0]}' in '{path}': choose another, or pass "
            "allow_overwrite=True"
        )
    manifest_of(path)


def _files_in(path):
    """The files of a folder and its folders, without working folders."""
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not is_working_folder(name)]
        found += [os.path.relpath(os.path.join(folder, name), path) for name in names]
    return found


def publish(made: str, path: str, tables: list, entries: dict) -> None:
    """Moves the files of a dump from a working folder to their place, and writes the manifest.

    Files of the same tables that were there go first. A file of keys goes first and comes last: a table of a killed dump has none, so
    it is no table. What other tables have in the folder stays, and so do their entries.

    Args:
      made: the working folder, as the dump will be.
      path: the folder of the dump.
      tables: [(collection, table)].
      entries: {file: its entry} of the new files.
    """
    old = dict(manifest_of(path) or {})
    for collection, _ in tables:
        os.makedirs(os.path.join(path, collection), exist_ok=True)
    _remove(os.path.join(path, MANIFEST))
    for is_keys in (True, False):
        for collection, table in tables:
            for name in _names_of(os.path.join(path, collection), table):
                if name.startswith(f"{table}_{KEYS}.") == is_keys:
                    _remove(os.path.join(path, collection, name))
                    old.pop(f"{collection}/{name}", None)
        _sync_folders(path, tables)
    for is_keys in (False, True):
        for collection, table in tables:
            for name in _names_of(os.path.join(made, collection), table):
                if name.startswith(f"{table}_{KEYS}.") == is_keys:
                    to = os.path.join(path, collection, name)
                    os.rename(os.path.join(made, collection, name), to)
        _sync_folders(path, tables)
    content = {"format_version": _FORMAT, "files": {**old, **entries}}
    write_json(os.path.join(made, MANIFEST), content)
    os.rename(os.path.join(made, MANIFEST), os.path.join(path, MANIFEST))
    sync(path)


def _remove(path):
    if os.path.exists(path):
        os.remove(path)


def _names_of(folder, table):
    """The files of a table in the folder of its collection, of any rank and world size."""
    items = "|".join(map(re.escape, ITEMS))
    pattern = re.compile(
        re.escape(table) + rf"_(({items})\.rank_\d+\.world_size_\d+|{re.escape(ARGUMENTS)})"
    )
    return sorted(name for name in os.listdir(folder) if pattern.fullmatch(name))


def _sync_folders(path, tables):
    for collection in dict.fromkeys(collection for collection, _ in tables):
        sync(os.path.join(path, collection))
    sync(path)

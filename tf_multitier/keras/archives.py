"""How the rows of a layer go into Keras' archives (`.keras`, `.weights.h5`) and back.

    manifest_<i>   uint8: the manifest of part i, JSON
    rows_<i>       uint8: the file of part i, as a checkpoint has it: rows with slots, frequencies, versions, counts
    file_<i>       uint8: in place of rows_<i>: name and size of the part file that has the rows, JSON
    tables         uint8: format version, and names of the tables, JSON
    optimizer_<i>  uint8: class of the row optimizer of table i, and the names of its variables, JSON
    state_<i>_<j>  variable j of it: its steps, hyperparameters and beta powers
    checksums      uint8: CRC-32 of each of these but rows_<i>, which have their own in the manifest, JSON

Rows above part_files.MAX_BYTES_IN_ARCHIVE go into files next to the archive (part_files.py).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import typing
import zlib

import numpy as np
import tensorflow as tf

from tf_multitier import checkpoint
from tf_multitier._src.options import key_types
from tf_multitier._src.processes.world_keys import no_save_alone
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.variable import object_checkpoint
from tf_multitier._src.variable import saver
from tf_multitier.keras import loads
from tf_multitier.keras import part_files
from tf_multitier.keras.optimizer_states import OptimizerState

_FORMAT_VERSION = 1
_FILE = re.compile(r"data-[a-z]{5}-of-[a-z]{5}")
_KEY = re.compile(r"tables|checksums|(manifest|rows|file|optimizer)_\d+|state_\d+_\d+")


def _bytes(data):
    return np.frombuffer(data, np.uint8)


def is_of_rows(key: str) -> bool:
    """Whether `save` writes such a key."""
    return _KEY.fullmatch(key) is not None


class _Checked:
    """A store of Keras that knows the checksums of what is written, and checks them when it is read.

    Raises:
      ValueError: a dataset is missing, or has another checksum.
    """

    def __init__(self, store, layer):
        self._store, self._layer = store, layer
        self._checksums = {}

    def write(self, name, array):
        self._store[name] = array
        self._checksums[name] = zlib.crc32(np.ascontiguousarray(array).tobytes())

    def end(self):
        self._store["checksums"] = _bytes(json.dumps(self._checksums).encode())

    def begin(self):
        try:
            self._checksums = json.loads(np.asarray(self._store["checksums"]).tobytes())
            self._checksums.items()
        except (ValueError, AttributeError) as error:
            raise self._damaged("checksums", error) from None

    def __contains__(self, name):
        return name in self._checksums

    def read(self, name):
        if name not in self._store:
            raise self._damaged(name, "none")
        array = np.asarray(self._store[name])
        found = zlib.crc32(np.ascontiguousarray(array).tobytes())
        if found != self._checksums.get(name):
            raise self._damaged(name, f"one with checksum {found}")
        return array

    def json(self, name):
        return json.loads(self.read(name).tobytes())

    def _damaged(self, name, found):
        return ValueError(
            f"layer '{self._layer}': the archive is damaged: expected '{name}' as it was saved, found {found}"
        )


def save(rows: list, store: typing.Any, layer: str) -> None:
    """Writes the tables of a layer into `store`, or into part files next to its archive. Those of several layers are written once.

    Raises:
      ValueError: the rows are too large for the archive, and it is not a local file.
      NotImplementedError: a table is divided among processes.
    """
    for one in rows:
        no_save_alone(one.embedding_variable.variable_name, one.embedding_variable.of_world)
    archive, checked = part_files.Archive.of(store), _Checked(store, layer)
    rows = archive.new(rows)
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(archive.path or os.path.join(folder, "rows"))
        for i, one in enumerate(rows):
            manifest = ops.multitier_save_part(one.embedding_variable.handle, prefix).numpy()
            path = f"{prefix}.{json.loads(manifest)['file']}"
            if archive.takes(path):
                with open(path, "rb") as file:
                    store[f"rows_{i}"] = _bytes(file.read())
                os.remove(path)
            elif archive.path is None:
                raise ValueError(
                    f"layer '{layer}': the rows of '{one.embedding_variable.name}' have {os.path.getsize(path)} bytes and need a file "
                    f"next to the archive, because it has room for {part_files.MAX_BYTES_IN_ARCHIVE} bytes of rows: save to a local path"
                )
            else:
                checked.write(f"file_{i}", _bytes(part_files.entry(path)))
            checked.write(f"manifest_{i}", _bytes(manifest))
            state = OptimizerState.of(one.row_optimizer)
            if state is not None:
                said = {"class": state.optimizer, "variables": list(state.variables)}
                checked.write(f"optimizer_{i}", _bytes(json.dumps(said).encode()))
                for j, array in enumerate(state.variables.values()):
                    checked.write(f"state_{i}_{j}", array)
    names = [one.embedding_variable.variable_name for one in rows]
    tables = {"format_version": _FORMAT_VERSION, "names": names}
    checked.write("tables", _bytes(json.dumps(tables).encode()))
    checked.end()
    archive.done(rows)


def _part_of(one):
    variable = one.embedding_variable
    return variable.partition_index, variable.num_partitions, variable.embedding_dim


def load(rows: list, store: typing.Any, layer: str) -> None:
    """Replaces the rows of a layer's tables by those of an archive. Everything is checked before a row changes (loads.py).

    Raises:
      ValueError: the archive has other tables, or other partitions, dims, or types of keys or values; or it or a part file is damaged
        or missing.
    """
    archive = part_files.Archive.of(store)
    archive.check()
    rows = archive.new(rows)
    _load(rows, _Checked(store, layer), store, layer, archive)


def _load(rows, checked, store, layer, archive):
    if "checksums" not in store:
        raise ValueError(
            f"layer '{layer}': expected rows of embedding variables in the archive, found none"
        )
    checked.begin()
    tables = checked.json("tables")
    if tables["format_version"] != _FORMAT_VERSION:
        raise ValueError(
            f"layer '{layer}': expected an archive of format version {_FORMAT_VERSION}, found {tables['format_version']}: "
            "use the release that wrote it"
        )
    names = tables["names"]
    if not names and not rows:
        return  # a layer that was never called
    if len(names) != len(rows):
        raise ValueError(
            f"layer '{layer}': expected {len(rows)} tables in the archive, found {len(names)}"
        )
    manifests = [checked.read(f"manifest_{i}").tobytes() for i in range(len(rows))]
    for name, one, text in zip(names, rows, manifests):
        _check_fits(one, json.loads(text), f"layer '{layer}', table '{name}'")
    with loads.together() as load:
        folder = load.files.enter_context(tempfile.TemporaryDirectory())
        prefix = os.path.join(folder, "rows")
        for i, text in enumerate(manifests):
            _write_part(prefix, text, checked, store, i, archive)
        _write_bundle(prefix, names, rows, manifests)
        parts = [(name, one.embedding_variable) for name, one in zip(names, rows)]
        try:
            with checkpoint.progress():
                reads = object_checkpoint.Reads(parts, tf.constant(prefix))
        except tf.errors.OpError as error:
            raise ValueError(
                f"layer '{layer}': rows in '{archive.path}' ({', '.join(names)}): {error.message}"
            ) from None
        for i, one in enumerate(rows):
            if f"optimizer_{i}" in checked:
                said = checked.json(f"optimizer_{i}")
                arrays = [checked.read(f"state_{i}_{j}") for j in range(len(said["variables"]))]
                state = OptimizerState(said["class"], dict(zip(said["variables"], arrays)))
                state.assign_to(one.row_optimizer, f"layer '{layer}', table '{names[i]}'")
        load.changes.append(reads.replace)
    archive.done(rows)


def _check_fits(one, manifest, where):
    """ValueError if a table cannot have the rows of a manifest. where: starts the message."""
    expected = _part_of(one)
    found = (manifest["partition_index"], manifest["num_partitions"], manifest["dim"])
    if found != expected:
        raise ValueError(
            f"{where}: expected (partition, partitions, dim) {expected}, found {found}"
        )
    its_keys = manifest.get("key_dtype", "int64")
    own = key_types.name_in_files(one.embedding_variable)
    if its_keys != own:
        raise ValueError(
            f"{where}: expected keys of {own}, found {its_keys}: give the layer that key_dtype"
        )
    saved, own = manifest["columns"][0]["dtype"], one.embedding_variable.dtype.name
    if saved != own and not manifest.get("frozen") and not saver.is_converting():
        raise ValueError(
            f"{where}: expected values of {own}, found {saved}: load it in "
            "`with tf_multitier.train.convert_on_restore():`"
        )


def _write_part(prefix, manifest, checked, store, number, archive):
    """Writes the rows of a table as the part file of a checkpoint, or a link to its part file next to the archive."""
    name = json.loads(manifest)["file"]
    if not _FILE.fullmatch(name):
        raise ValueError(f"expected the end of the name of a checkpoint's file, found {name!r}")
    path = f"{prefix}.{name}"
    if f"file_{number}" in checked:
        os.symlink(archive.part_file(checked.read(f"file_{number}").tobytes()), path)
        return
    with open(path, "wb") as file:
        file.write(np.asarray(store[f"rows_{number}"]).tobytes())


def _write_bundle(prefix, names, rows, manifests):
    entries: list = []
    for name, one, text in zip(names, rows, manifests):
        index, count, dim = _part_of(one)
        entries += object_checkpoint.entries_of_part(name, index, count, dim, tf.constant(text))
    object_checkpoint.write_bundle(prefix, entries)

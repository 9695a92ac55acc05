"""How the rows of a layer go into Keras' archives (`.keras`, `.weights.h5`) and back.

    manifest_<i>   uint8: the manifest of part i, JSON
    rows_<i>       uint8: the file of part i, as a checkpoint has it: rows with slots, frequencies, versions, counts
    suffix_<i>     uint8: the end of that file's name, which the manifest mentions
    tables         uint8: names of the tables, JSON
    state_<i>_<j>  variable j of the row optimizer of table i: its steps, hyperparameters and beta powers

The bytes go through memory, so a table may have at most MAX_BYTES. tf.train.Checkpoint saves larger tables.
"""

from __future__ import annotations

import glob
import json
import os
import re
import tempfile
import typing

import numpy as np
import tensorflow as tf

from tf_multitier import object_checkpoint
from tf_multitier._library import ops

MAX_BYTES = 2**31
_SUFFIX = re.compile(r"\.data-[a-z]{5}-of-[a-z]{5}")


def _bytes(data):
    return np.frombuffer(data, np.uint8)


def save(rows: list, store: typing.Any, layer: str) -> None:
    """Writes the tables of a layer into `store`.

    Raises:
      ValueError: the rows have more than MAX_BYTES.
    """
    with tempfile.TemporaryDirectory() as folder:
        for i, one in enumerate(rows):
            prefix = os.path.join(folder, str(i))
            manifest = ops.multitier_save_part(one.embedding_variable.handle, prefix).numpy()
            [path] = glob.glob(prefix + ".data-*")
            if os.path.getsize(path) > MAX_BYTES:
                raise ValueError(
                    f"layer '{layer}': the rows of '{one.embedding_variable.name}' have {os.path.getsize(path)} bytes, expected at "
                    f"most {MAX_BYTES} for an archive of Keras: save the model by tf.train.Checkpoint"
                )
            with open(path, "rb") as file:
                store[f"rows_{i}"] = _bytes(file.read())
            store[f"manifest_{i}"] = _bytes(manifest)
            store[f"suffix_{i}"] = _bytes(path[len(prefix) :].encode())
            for j, variable in enumerate(_state(one)):
                store[f"state_{i}_{j}"] = variable.numpy()
    names = [one.embedding_variable.variable_name for one in rows]
    store["tables"] = _bytes(json.dumps(names).encode())


def _state(rows):
    return () if rows.row_optimizer is None else rows.row_optimizer.variables


def _part_of(one):
    variable = one.embedding_variable
    return variable.partition_index, variable.num_partitions, variable.embedding_dim


def load(rows: list, store: typing.Any, layer: str) -> None:
    """Replaces the rows of a layer's tables by those of an archive. Checks everything before a row changes.

    Raises:
      ValueError: the archive has other tables, or other partitions or dims.
    """
    if "tables" not in store:
        raise ValueError(
            f"layer '{layer}': expected rows of embedding variables in the archive, found none"
        )
    names = json.loads(np.asarray(store["tables"]).tobytes())
    if len(names) != len(rows):
        raise ValueError(
            f"layer '{layer}': expected {len(rows)} tables in the archive, found {len(names)}"
        )
    manifests = [np.asarray(store[f"manifest_{i}"]).tobytes() for i in range(len(rows))]
    for name, one, text in zip(names, rows, manifests):
        manifest = json.loads(text)
        expected = _part_of(one)
        found = (manifest["partition_index"], manifest["num_partitions"], manifest["dim"])
        if found != expected:
            raise ValueError(
                f"layer '{layer}', table '{name}': expected (partition, partitions, dim) {expected}, found {found}"
            )
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "rows")
        _write_checkpoint(prefix, names, rows, manifests, store)
        for name in dict.fromkeys(names):
            its = [one for n, one in zip(names, rows) if n == name]
            for one in its:
                object_checkpoint.restore(one.embedding_variable, tf.constant(prefix), name)
    for i, one in enumerate(rows):
        for j, variable in enumerate(_state(one)):
            if f"state_{i}_{j}" in store:
                variable.assign(np.asarray(store[f"state_{i}_{j}"]))


def _write_checkpoint(prefix, names, rows, manifests, store):
    entries: list = []
    for i, (name, one, text) in enumerate(zip(names, rows, manifests)):
        index, count, dim = _part_of(one)
        suffix = np.asarray(store[f"suffix_{i}"]).tobytes().decode()
        if not _SUFFIX.fullmatch(suffix):
            raise ValueError(
                f"expected the end of the name of a checkpoint's file, found {suffix!r}"
            )
        with open(prefix + suffix, "wb") as file:
            file.write(np.asarray(store[f"rows_{i}"]).tobytes())
        entries += object_checkpoint.entries_of_part(name, index, count, dim, tf.constant(text))
    object_checkpoint.write_bundle(prefix, entries)

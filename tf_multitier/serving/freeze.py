"""freeze, freeze_delta: write a SavedModel, a checkpoint or a delta that has only what serving needs."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tf_multitier import _engine
from tf_multitier import checkpoint
from tf_multitier._src.options.numpy_types import to_int64
from tf_multitier._src.tensorflow.internals import saved_model_pb2
from tf_multitier.checkpoint.chain import check_continues
from tf_multitier.checkpoint.files import CheckpointFiles
from tf_multitier.checkpoint.files import part_file_name
from tf_multitier.checkpoint.saved import find_prefix
from tf_multitier.checkpoint.writer import values_of
from tf_multitier.serving.graphs import make_read_only


def freeze(
    source: str | os.PathLike, target: str | os.PathLike, dtype: str | tf.DType = "float32"
) -> int:
    """Writes a SavedModel or a checkpoint for serving.

    Its embedding variables have only keys and values. They have no optimizer slots, frequencies or versions, and no keys that a filter
    has not admitted. In a SavedModel they are read-only (see `read_only`). Dense tensors are copied as they are.

    Args:
      source: directory of a SavedModel, prefix of a checkpoint, or directory with a `checkpoint` file. The prefix of a delta gives the
        rows of its base with the deltas up to that one.
      target: the new SavedModel's directory, or the new checkpoint's prefix. A directory appears under its name when it is complete.
      dtype: of the values in the files: "float32", "float16" or "bfloat16", rounded to the nearest. A table in memory has the variable's value_dtype.

    Returns:
      Number of rows written.

    Raises:
      AlreadyExistsError: the target exists.
      NotFoundError: there is no SavedModel or checkpoint at `source`.
      DataLossError: a file of the source is damaged.
      ValueError: `dtype` is none of these.
    """
    source, target = os.fspath(source), os.fspath(target).rstrip("/")
    if not os.path.exists(os.path.join(source, "saved_model.pb")):
        return _freeze_checkpoint(find_prefix(source), target, dtype)
    if os.path.lexists(target):
        raise _engine.AlreadyExistsError(f"'{target}' exists")
    parent = os.path.dirname(os.path.abspath(target))
    unfinished = tempfile.mkdtemp(prefix=f".{os.path.basename(target)}.", dir=parent)
    try:
        rows = _freeze_saved_model(source, unfinished, dtype)
        os.chmod(unfinished, os.stat(source).st_mode)
        os.rename(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return rows


def _freeze_checkpoint(prefix, target, dtype):
    saved, rows = checkpoint.load(prefix), 0
    tables: Mapping[str, checkpoint.SavedTable | checkpoint.ChainTable] = saved.tables
    with checkpoint.Writer(target) as writer:
        for name, table in tables.items():
            rows += writer.add_table(
                name,
                table,
                table.num_partitions,
                table.initializer,
                table.applies,
                table.matrix(),
                frozen=dtype,
                save_ids=table.save_ids,
            )
            for other in table.names[1:]:
                writer.add_name(other, name)
        for name in saved.tensors:
            writer.add_tensor(name, saved.tensor(name))
    return rows


def freeze_delta(source: str | os.PathLike, base: str | os.PathLike) -> str:
    """Writes a delta for serving: the values of the rows that changed, and the keys that were removed.

    `freeze` of the training's base gives the base for serving; each delta of the training is then one call. `Model.reload` of the
    result changes a model that answers requests. Values have the dtype of the frozen base.

    Args:
      source: prefix of a delta of IncrementalSaver.
      base: prefix of the frozen checkpoint. The new delta continues it, or its newest frozen delta.

    Returns:
      The new delta's prefix, `<base>.delta-<number>`.

    Raises:
      NotFoundError: there is no delta at `source`, or no checkpoint at `base`.
      ValueError: `source` is no delta, or `base` is not frozen.
      DataLossError: a file is damaged, or the delta does not continue the newest frozen save: one between them is missing, or this
        one is already there.
    """
    source, base = os.fspath(source), os.fspath(base)
    delta = checkpoint.Delta(source)
    frozen = checkpoint.load_chain(base)
    newest = frozen.deltas[-1] if frozen.deltas else frozen.base
    dtypes = {name: table.dtype for name, table in newest.tables.items() if table.frozen}
    if not delta.tables:
        raise ValueError(f"'{source}': expected the prefix of a delta, found none")
    if len(dtypes) < len(newest.tables):
        raise ValueError(f"'{base}': expected a frozen checkpoint, found one with slots")
    check_continues(delta, newest)
    target = f"{frozen.base.path}.delta-{len(frozen.deltas) + 1:04d}"
    with _FrozenDelta(target, latest=False) as files:
        files.add_delta(delta, dtypes)
    return target


class _FrozenDelta(CheckpointFiles):
    def __enter__(self):
        return self

    def add_delta(self, delta, dtypes):
        for name, table in delta.tables.items():
            self._add_table(table, dtypes[name])
        for name, (dtype, shape) in delta.all_tensors().items():
            size = int(np.prod(shape)) * (dtype.size or 64)
            self._add_tensor(name, size, lambda name=name: delta.all_tensor(name))

    def _add_table(self, table, dtype):
        def write(writers):
            for index, writer in enumerate(writers):
                for rows in table.part_blocks(index):
                    # A key that is counted now has no row any more.
                    removed = np.concatenate([rows.removed_keys, rows.counted_keys])
                    keys = {"keys": to_int64(rows.keys), "removed_keys": to_int64(removed)}
                    writer.add(vars(values_of(rows)) | keys)

        matrix = table.matrix()
        self._add_parts(
            [f"{table.name}/part_{i}-of-{len(table.parts)}/delta" for i in range(len(table.parts))],
            [_frozen_manifest(part, dtype) for part in table.parts],
            np.zeros([0, table.dim], np.float32) if matrix is None else matrix,
            write,
        )


def _frozen_manifest(part, dtype):
    manifest = json.loads(part.manifest)
    manifest.pop("linked", None)  # it gets all rows
    columns = [manifest["columns"][0] | {"dtype": dtype}]
    file = part_file_name()
    return manifest | {"frozen": 1, "columns": columns, "file": file, "num_rows": 0}


def _freeze_saved_model(source, target, dtype):
    model = saved_model_pb2.SavedModel()
    with open(os.path.join(source, "saved_model.pb"), "rb") as file:
        model.ParseFromString(file.read())
    for meta_graph in model.meta_graphs:
        make_read_only(meta_graph)
    shutil.copytree(
        source,
        target,
        dirs_exist_ok=True,
        ignore=lambda directory, names: (
            {"saved_model.pb", "fingerprint.pb", "variables"} & set(names)
            if directory == source
            else set()
        ),
    )
    os.mkdir(os.path.join(target, "variables"))
    prefix = os.path.join("variables", "variables")
    rows = 0
    if os.path.exists(os.path.join(source, prefix + ".index")):
        rows = _freeze_checkpoint(os.path.join(source, prefix), os.path.join(target, prefix), dtype)
        os.remove(os.path.join(target, "variables", "checkpoint"))
    with open(os.path.join(target, "saved_model.pb"), "wb") as file:
        file.write(model.SerializeToString())
    return rows

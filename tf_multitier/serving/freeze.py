"""freeze: writes a SavedModel or a checkpoint that has only what serving needs."""

from __future__ import annotations

import os
import shutil
import tempfile

from tf_multitier import _engine
from tf_multitier import checkpoint
from tf_multitier.checkpoint.saved import find_prefix
from tf_multitier.serving.graphs import make_read_only
from tf_multitier.tensorflow_internals import saved_model_pb2


def freeze(source: str | os.PathLike, target: str | os.PathLike, dtype: str = "float32") -> int:
    """Writes a SavedModel or a checkpoint for serving.

    Its embedding variables have only keys and values. They have no optimizer slots, frequencies or versions, and no keys that a filter
    has not admitted. In a SavedModel they are read-only (see `read_only`). Dense tensors are copied as they are.

    Args:
      source: directory of a SavedModel, prefix of a checkpoint, or directory with a `checkpoint` file.
      target: the new SavedModel's directory, or the new checkpoint's prefix. A directory appears under its name when it is complete.
      dtype: of the values in the files: "float32", "float16" or "bfloat16", rounded to the nearest. A table in memory has float32.

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
    with checkpoint.Writer(target) as writer:
        for name, table in saved.tables.items():
            rows += writer.add_table(
                name,
                table,
                len(table.parts),
                table.initializer,
                table.applies,
                table.matrix(),
                frozen=dtype,
            )
        for name in saved.tensors:
            writer.add_tensor(name, saved.tensor(name))
    return rows


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

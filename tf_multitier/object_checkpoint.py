"""Embedding variables in `tf.train.Checkpoint` and `tf.train.CheckpointManager`, by TensorFlow's registered checkpoint savers.

The files are those of a v1 Saver (saver.py). The checkpoint's bundle has small tensors. The op that returns the manifest of a part
writes the part's rows to a file `<prefix>.data-?????-of-?????`. TensorFlow deletes such files with the checkpoint.

Each tensor is saved under two names. The first is the key that TensorFlow gives the object, so that a variable with another name can
be restored. The second is the variable's name, so that v1 Savers, `restore_from` and `tf_multitier.checkpoint` find it.
"""

from __future__ import annotations

import json
import typing

import numpy as np
import tensorflow as tf

from tf_multitier import saver
from tf_multitier._library import ops
from tf_multitier.embedding_variable import EmbeddingVariable
from tf_multitier.partitioned import OwnedPartitions
from tf_multitier.tensorflow_internals import colocate_with
from tf_multitier.tensorflow_internals import register_checkpoint_saver

_PACKAGE, _NAME = "tf_multitier", "ev"
# What TensorFlow adds to a checkpoint's prefix for our savers.
_SUFFIX = f"-{_PACKAGE}.{_NAME}"


def _is_ours(trackable):
    if isinstance(trackable, OwnedPartitions):
        return True
    return (
        isinstance(trackable, EmbeddingVariable)
        and not trackable._in_graph_mode
        and trackable.num_partitions == 1
    )


def tensors_of(variable: typing.Any, names: typing.Any, prefix: typing.Any) -> list:
    """Writes the rows of a variable next to a checkpoint. Returns what the checkpoint's bundle must have.

    Args:
      variable: an eager embedding variable.
      names: the names that the variable gets in the checkpoint.
      prefix: string scalar: the checkpoint's path.

    Returns:
      A list of (name, slice, tensor).
    """
    entries: list = []
    for part in variable.parts:
        with colocate_with(part.handle, ignore_existing=True):
            manifest = ops.multitier_save_part(part.handle, prefix)
        for name in names:
            entries += entries_of_part(
                name, part.partition_index, part.num_partitions, part.embedding_dim, manifest
            )
    return entries


def entries_of_part(name: str, index: int, count: int, dim: int, manifest: typing.Any) -> list:
    """The (name, slice, tensor) of part `index` of `count` of variable `name` in a checkpoint's bundle."""
    begin, end = (p * saver.NUM_BUCKETS // count for p in (index, index + 1))
    owners = tf.constant(np.full(end - begin, index, np.int32))
    entries = [
        (f"{name}/partition_of_bucket", f"{saver.NUM_BUCKETS} {begin},{end - begin}", owners),
        (f"{name}/part_{index}-of-{count}/manifest", "", manifest),
    ]
    return entries + ([(name, "", tf.zeros([0, dim]))] if index == 0 else [])


def _save(trackables, file_prefix):
    prefix = tf.strings.regex_replace(file_prefix, f"{_SUFFIX}$".replace(".", r"\."), "")
    own = [variable.variable_name for variable in trackables.values()]
    entries: list = []
    for key, variable in sorted(trackables.items()):
        name = variable.variable_name
        is_free = own.count(name) == 1 and name not in trackables
        entries += tensors_of(variable, [key, name] if is_free else [key], prefix)
    write_bundle(file_prefix, entries)
    return file_prefix


def write_bundle(prefix: typing.Any, entries: list) -> None:
    """Writes a list of (name, slice, tensor) as the bundle of a checkpoint."""
    names, slices, tensors = zip(*entries)
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(names),
        shape_and_slices=list(slices),
        tensors=list(tensors),
    )


def restore(variable: typing.Any, prefix: typing.Any, name: str) -> None:
    """Replaces the rows of a variable by those of variable `name` of a checkpoint. The numbers of parts may differ.

    Slot columns keep the names that they were saved with. Optimizers find them by `column_owner`.
    """
    for part in variable.parts:
        saver.restore_op(part, prefix, name)
    if not tf.executing_eagerly():
        return  # the function of a SavedModel that restores
    owner = _column_owner(tf.train.load_checkpoint(tf.get_static_value(prefix).decode()), name)
    for part in variable.parts:
        part.column_owner = owner or part.variable_name


def _column_owner(reader, name):
    """The name of the variable for which the slots of saved variable `name` were made; None if it has no slots."""
    for key in reader.get_variable_to_shape_map():
        if key.startswith(f"{name}/part_0-of-") and key.endswith("/manifest"):
            columns = json.loads(reader.get_tensor(key))["columns"][1:]
            return columns[0]["name"].rpartition("/")[0] if columns else None
    return None


def _restore(trackables, merged_prefix):
    for key, variable in sorted(trackables.items()):
        restore(variable, merged_prefix, key)


register_checkpoint_saver(
    package=_PACKAGE, name=_NAME, predicate=_is_ours, save_fn=_save, restore_fn=_restore
)

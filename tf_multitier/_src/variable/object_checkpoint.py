"""Embedding variables in `tf.train.Checkpoint` and `tf.train.CheckpointManager`, by TensorFlow's registered checkpoint savers.

The files are those of a v1 Saver (saver.py). The checkpoint's bundle has small tensors. The op that returns the manifest of a part
writes the part's rows to a file `<prefix>.data-?????-of-?????`. TensorFlow deletes such files with the checkpoint.

All variables of a checkpoint in one process are saved as of one moment, while other threads train.

Manifests are saved under two names. The first is the key that TensorFlow gives the object, so that a variable with another name can
be restored. The second is the variable's name, so that v1 Savers, `restore_from` and `tf_multitier.checkpoint` find it. The tensor
that lists the variable has this name alone, or the key, if two variables have the name.

Of a variable of a world, each process writes its part, in `part_of_world` (distribute/checkpoints.py). `saver.kind_of_save` has effect.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import os
import typing
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_multitier._src.execution.placement import process_of
from tf_multitier._src.processes.world_keys import no_save_alone
from tf_multitier._src.tensorflow import internals
from tf_multitier._src.tensorflow.internals import colocate_with
from tf_multitier._src.tensorflow.internals import register_checkpoint_saver
from tf_multitier._src.tensorflow.internals import TrackableObjectGraph
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.variable import keras_tracking
from tf_multitier._src.variable import saver
from tf_multitier._src.variable.embedding_variable import EmbeddingVariable
from tf_multitier._src.variable.partitioned import OwnedPartitions

_PACKAGE, _NAME = "tf_multitier", "ev"
OBJECT_GRAPH = (
    "_CHECKPOINTABLE_OBJECT_GRAPH"  # the tensor that describes the objects of a checkpoint
)
# What TensorFlow adds to a checkpoint's prefix for our savers.
_SUFFIX = f"-{_PACKAGE}.{_NAME}"

_written: typing.Any = contextvars.ContextVar("{id of a part: its manifest}", default=None)
_part_of_world: typing.Any = contextvars.ContextVar("what this process writes", default=None)


class PartOfWorld:
    """What this process writes of a checkpoint of a world.

    Attributes:
      prefix: that of the checkpoint, next to which the rows are.
      names: those of the variables, once their rows are written.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.names: list = []
        self._files: list = []

    def wrote(self, names: list, manifests: list) -> None:
        """Takes note of the variables and of the manifests of their parts."""
        self.names += names
        for manifest in map(json.loads, (each.numpy() for each in manifests)):
            files = [manifest["file"], *(each["file"] for each in manifest.get("linked", []))]
            self._files += [f"{self.prefix}.{file}" for file in files]

    def remove(self) -> None:
        """Deletes the files of the rows."""
        for file in self._files:
            with contextlib.suppress(OSError):
                os.remove(file)


@contextlib.contextmanager
def part_of_world(prefix: str) -> Iterator[PartOfWorld]:
    """A `tf.train.Checkpoint` that writes in the block writes this process' part of the checkpoint `prefix`."""
    part = PartOfWorld(prefix)
    token = _part_of_world.set(part)
    try:
        yield part
    finally:
        _part_of_world.reset(token)


def check_of_world(variables: list) -> None:
    """NotImplementedError unless the variables are divided among the processes of a world."""
    for variable in variables:
        if variable.world is None:
            raise NotImplementedError(
                f"embedding variable '{variable.variable_name}': expected one that is divided among the processes in a checkpoint of theirs, "
                "found one of this process alone: make it in `with strategy.scope():`"
            )


def _check_world(variables, part):
    """NotImplementedError unless the variables are divided among the processes where, and only where, each process writes its part."""
    if part is not None:
        check_of_world(variables)
        return
    for variable in variables:
        no_save_alone(variable.variable_name, variable.world)


def _is_ours(trackable):
    if isinstance(trackable, OwnedPartitions):
        return True
    return isinstance(trackable, EmbeddingVariable) and not trackable._in_graph_mode


def objects_of(saver: typing.Any) -> list:
    """The objects that a TrackableSaver, of tf.train.Checkpoint, saves and restores, with those in lists of layers."""
    keras_tracking.find_listed(internals.root_of(saver))
    return internals.objects_of(saver)


def variables_of(root: typing.Any) -> list:
    """The embedding variables that a `tf.train.Checkpoint` saves."""
    return [each for each in objects_of(root._saver) if _is_ours(each)]


def dense_variables(objects: list) -> list:
    """[(object, its tf.Variable)] of the dense variables among the objects of a checkpoint. A variable of Keras has its tf.Variable."""
    found = [(one, getattr(one, "_value", one)) for one in objects if not _is_ours(one)]
    return [
        (one, v)
        for one, v in found
        if isinstance(v, tf.Variable) and not isinstance(v, EmbeddingVariable)
    ]


def _whole_variables(trackables):
    """{key: variable} without the parts of partitioned variables, which SavedModels list next to the whole ones.

    Raises:
      NotImplementedError: a part without its variable.
    """
    found = {
        k: v for k, v in sorted(trackables.items()) if v.is_partitioned or v.num_partitions == 1
    }
    parts = {id(part) for variable in found.values() for part in variable.parts}
    for variable in trackables.values():
        if not variable.is_partitioned and id(variable) not in parts:
            raise NotImplementedError(
                f"'{variable.name}' is partition {variable.partition_index} of {variable.num_partitions} of an embedding variable and "
                "cannot be saved by tf.train.Checkpoint alone: give the checkpoint the whole variable"
            )
    return found


def _parts_of(trackables):
    """[(key of its variable, part)] of the variables, for Reads."""
    variables = _whole_variables(trackables)
    return [(key, part) for key, variable in variables.items() for part in variable.parts]


@contextlib.contextmanager
def written_already(manifests: dict) -> Iterator[None]:
    """An eager save in the block finds the rows of parts in the folder. manifests: {id of a part: its manifest}."""
    token = _written.set(manifests)
    try:
        yield
    finally:
        _written.reset(token)


def write_parts(variables: list, prefix: str) -> list:
    """Writes the rows of the parts of this process next to a checkpoint that is to be. Eagerly. Returns the manifest of each."""
    parts = [part for variable in variables for part in variable.parts]
    return [manifest.numpy().decode() for manifest in _manifests(parts, tf.constant(prefix))]


def write_columns(variables: list, prefix: str, slots: bool) -> list:
    """Writes the rows of variables of one part each, as of one moment, as arrays. Eagerly. Returns what ColumnFiles describes.

    The files are those of cc/checkpoint_files/column_files.h. On an error some may be there. slots: those of the slots, too.
    """
    parts = [part for variable in variables for part in variable.parts]
    described = _manifests(parts, tf.constant(prefix), columns="all" if slots else "value")
    return [json.loads(text.numpy()) for text in described]


def _manifests(parts, prefix, columns="", write_down=False):
    """Writes the rows of the parts next to a checkpoint, those of one process as of one moment. Returns the manifest of each."""
    written = None if columns else _written.get()
    if written is not None and tf.executing_eagerly():
        return [tf.constant(written[id(part)]) for part in parts]
    manifests = {}
    for process in dict.fromkeys(process_of(part.handle.device) for part in parts):
        its = [part for part in parts if process_of(part.handle.device) == process]
        with colocate_with(its[0].handle, ignore_existing=True):
            group = ops.multitier_save_group()
            joined = [ops.multitier_join_save_group(group, part.handle) for part in its]
            with tf.control_dependencies(joined):
                kind = "full" if columns else saver.current_kind()
                write = ops.multitier_write_save_group(
                    group, prefix, kind=kind, columns=columns, write_down=write_down
                )
            with tf.control_dependencies([write]):
                for part in its:
                    manifests[id(part)] = ops.multitier_saved_part(group, part.handle)
    return [manifests[id(part)] for part in parts]


def entries_of_part(
    name: str, index: int, count: int, dim: int, manifest: typing.Any, is_listed: bool = True
) -> list:
    """The (name, slice, tensor) of part `index` of `count` of variable `name` in a checkpoint's bundle."""
    begin, end = (p * saver.NUM_BUCKETS // count for p in (index, index + 1))
    owners = tf.constant(np.full(end - begin, index, np.int32))
    entries = [
        (f"{name}/partition_of_bucket", f"{saver.NUM_BUCKETS} {begin},{end - begin}", owners),
        (f"{name}/part_{index}-of-{count}/{saver.part_tensor()}", "", manifest),
    ]
    return entries + ([(name, "", tf.zeros([0, dim]))] if index == 0 and is_listed else [])


def save(trackables: dict, file_prefix: typing.Any) -> typing.Any:
    """Writes {key: variable} as a checkpoint of that prefix, or as a part of one. Returns `file_prefix`, once it is written."""
    variables = _whole_variables(trackables)
    part_of_world = _part_of_world.get()
    _check_world(variables.values(), part_of_world)
    if part_of_world is None:
        prefix = tf.strings.regex_replace(file_prefix, f"{_SUFFIX}$".replace(".", r"\."), "")
    else:
        prefix = tf.constant(part_of_world.prefix)
    own = [variable.variable_name for variable in variables.values()]
    parts = [part for variable in variables.values() for part in variable.parts]
    found = _manifests(parts, prefix)
    if part_of_world is not None:
        part_of_world.wrote(own, found)
    manifests = dict(zip(map(id, parts), found))
    entries: list = []
    for key, variable in variables.items():
        name = variable.variable_name
        is_free = own.count(name) == 1 and name not in variables
        for part in variable.parts:
            index, count, dim = part.partition_index, part.num_partitions, part.embedding_dim
            for of_name in [key, name] if is_free else [key]:
                is_listed = not is_free or of_name == name
                manifest = manifests[id(part)]
                entries += entries_of_part(of_name, index, count, dim, manifest, is_listed)
    written = write_bundle(file_prefix, entries)
    # TensorFlow merges the bundles of a checkpoint, perhaps in another process than this.
    with tf.control_dependencies([] if written is None else [written]):
        return tf.identity(file_prefix)


def save_own(variables: dict, prefix: str, tensors: dict | None = None) -> None:
    """Writes {name: variable} as a checkpoint of the rows of this process. Eagerly. A part of a world becomes a variable of one part.

    Rows of DRAM above an SSD are written to the SSD first, so that their files are linked, now and by later saves.

    tensors: {name: array} that it also has.
    """
    parts = [(name, part, len(v.parts)) for name, v in variables.items() for part in v.parts]
    manifests = _manifests([part for _, part, _ in parts], tf.constant(prefix), write_down=True)
    entries = [(name, "", tf.constant(array)) for name, array in (tensors or {}).items()]
    for (name, part, count), manifest in zip(parts, manifests):
        index = part.partition_index if count > 1 else 0
        place = {"partition_index": index, "num_partitions": count}
        manifest = json.dumps(json.loads(manifest.numpy()) | place)
        entries += entries_of_part(name, index, count, part.embedding_dim, manifest)
    write_bundle(prefix, entries)


def write_bundle(prefix: typing.Any, entries: list) -> typing.Any:
    """Writes a list of (name, slice, tensor) as the bundle of a checkpoint. Returns the op; None eagerly."""
    names, slices, tensors = zip(*entries)
    return tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(names),
        shape_and_slices=list(slices),
        tensors=list(tensors),
    )


class Reads:
    """Tables that are restored together: all are read, and then all are replaced. An error of one leaves all as they were.

    Args:
      parts: [(name in the checkpoint, EmbeddingVariable)]. The numbers of parts of a variable may differ.
      prefix: string scalar: the checkpoint's prefix.
      check_only: read and check all files, to replace nothing.

    Raises:
      tf.errors.OpError: as EmbeddingVariable.restore_from.
    """

    def __init__(self, parts: list, prefix: typing.Any, check_only: bool = False) -> None:
        convert = saver.is_converting()
        self._parts = [part for _, part in parts]
        self._tables = [
            saver.read_op(part, prefix, name, convert=convert, check_only=check_only)
            for name, part in parts
        ]

    def replace(self) -> None:
        """Replaces the rows."""
        saver.replace_ops(self._parts, self._tables)


def _restore(trackables, merged_prefix):
    Reads(_parts_of(trackables), merged_prefix).replace()


def has_objects(reader: typing.Any) -> bool:
    """Whether a checkpoint, of which this is a reader of TensorFlow's, is one of tf.train.Checkpoint."""
    return reader.has_tensor(OBJECT_GRAPH)


def variable_names(reader: typing.Any) -> dict[str, str]:
    """{name of a tensor: the variable's own name} of the dense variables of a checkpoint of tf.train.Checkpoint."""
    graph = TrackableObjectGraph.FromString(reader.get_tensor(OBJECT_GRAPH))
    found = [each for node in graph.nodes for each in node.attributes]
    return {each.checkpoint_key: each.full_name for each in found if each.full_name}


@contextlib.contextmanager
def wholly_or_not_at_all(objects: list, path: str) -> Iterator[None]:
    """TensorFlow restores these objects from a checkpoint in the block. If it fails, dense variables and rows are as before.

    TensorFlow changes dense variables before it restores rows. A checkpoint without objects, of a v1 Saver or checkpoint.Writer, is
    restored object by object, so it is checked first.
    """
    ours = [one for one in objects if _is_ours(one)]
    if not ours:
        yield
        return
    reader = tf.compat.v1.train.NewCheckpointReader(path)
    if not has_objects(reader):
        names = reader.get_variable_to_shape_map()
        for name in names:
            reader.get_tensor(name)
        found = [(v.variable_name, p) for v in ours if saver.lists(names, v) for p in v.parts]
        Reads(found, tf.constant(path), check_only=True)
    dense = [variable for _, variable in dense_variables(objects)]
    before = [variable.read_value() for variable in dense]
    try:
        yield
    except BaseException:
        for variable, value in zip(dense, before):
            variable.assign(value)
        raise


register_checkpoint_saver(
    package=_PACKAGE, name=_NAME, predicate=_is_ours, save_fn=save, restore_fn=_restore
)

"""The SaveableObject through which TensorFlow's own Saver saves and restores an embedding variable.

A checkpoint has, for a variable `<name>` in n parts (n = 1: not partitioned):

    <name>/partition_of_bucket              int32 [1024], saved in n slices: the part that owns each bucket of keys
    <name>                                  float32 [0, dim]: lists the variable
    <name>/part_<i>-of-<n>/manifest         string (of a delta: .../delta): format version, columns, number of rows, initializer, name of the file (JSON)
    <prefix>.data-<5 letters>-of-<5 letters>  one file per part: the rows, with slots, frequencies, versions, counts

Saving: one op writes the files of all parts of the Saver in one process, as of one moment (cc/table/snapshot/snapshot_together.h). A Saver asks
for one part after the other, so each part joins that op's group while the graph is built, and reads its manifest afterwards. Memory
grows neither with the tables nor with their number. TensorFlow's own clean-up, copies and SavedModels include the file because of its name. The
checkpoint exists once TensorFlow has written its index. The machine that holds a variable must see the checkpoint's directory, as
for TensorFlow's sharded savers.

Restoring: an op of ours reads the checkpoint's parts, whatever their number, and keeps the keys of the part that is restored. Then one
RestoreV2 op of the Saver reads every tensor in its list of specs, those of dense variables too. Then all variables are replaced: a
damaged or missing file leaves all of them as they were. When restoring, the list may only have a tensor that
is small and that every checkpoint of the variable has, in any partitioning: the slices of `partition_of_bucket`. TensorFlow's reader
slices them again. When saving, the same list has more specs: see SaveSpecs.

A SaveableObject names its own tensors. `Saver({"other": ev})` ignores the name "other". `init_from_checkpoint` and `warm_start`
restore a variable under another name.
"""

import contextlib
import contextvars
import re
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_multitier._src.execution import eager
from tf_multitier._src.execution import graph_state
from tf_multitier._src.execution.placement import process_of
from tf_multitier._src.tensorflow.internals import add_control_input
from tf_multitier._src.tensorflow.internals import colocate_with
from tf_multitier._src.tensorflow.internals import saver_prefix
from tf_multitier._src.tensorflow.internals import SaveSpec
from tf_multitier._src.tensorflow.library import ops

# Partitions own ranges of this many buckets of keys.
NUM_BUCKETS = 1024

FROZEN_DTYPES = ("float32", "float16", "bfloat16")

_INDEX = "partition_of_bucket"
_OWN_SUFFIX = re.compile(rf"/({_INDEX}|part_\d+-of-\d+/manifest)$")


_kind = contextvars.ContextVar("kind of save", default=("full", None))
_resize = contextvars.ContextVar("whether a restore accepts another dim", default=False)
_convert = contextvars.ContextVar("whether a restore accepts another value_dtype", default=False)


@contextlib.contextmanager
def resize_on_restore() -> Iterator[None]:
    """Savers that are built in the `with` block restore embedding variables from checkpoints with another embedding_dim.

        with tf_multitier.train.resize_on_restore():
            saver = tf.compat.v1.train.Saver()
        saver.restore(session, prefix)

    Each value is cut, or filled with the elements that the key's initial value has there. A slot with as many elements as the value is
    cut, or filled with its initial value. Variables of other kinds keep their shapes: TensorFlow refuses another one.
    `restore_from(prefix, resize=True)` does this for one variable.
    """
    token = _resize.set(True)
    try:
        yield
    finally:
        _resize.reset(token)


@contextlib.contextmanager
def convert_on_restore() -> Iterator[None]:
    """Savers that are built in the `with` block restore embedding variables from checkpoints with another value_dtype.

        with tf_multitier.train.convert_on_restore():
            saver = tf.compat.v1.train.Saver()
        saver.restore(session, prefix)

    Values are rounded to the nearest of the variable's type, ties to even. Slots are float32 in every checkpoint. A
    `tf.train.Checkpoint` that restores in the block does the same. A layer that is built later restores when it is built: call it
    for the first time in such a block.
    `restore_from(prefix, convert=True)` does this for one variable.
    """
    token = _convert.set(True)
    try:
        yield
    finally:
        _convert.reset(token)


def is_converting() -> bool:
    """Whether this runs in `convert_on_restore`."""
    return _convert.get()


@contextlib.contextmanager
def kind_of_save(kind, previous=None):
    """Savers that are built in the block save as MultitierWriteSaveGroup's `kind` says.

    previous: of kind "delta", a string tensor: the prefix of the save before, when the delta is restored.
    """
    token = _kind.set((kind, previous))
    try:
        yield
    finally:
        _kind.reset(token)


def current_kind() -> str:
    """The kind of a save that is made here, see kind_of_save."""
    return _kind.get()[0]


def part_tensor() -> str:
    """The name of a part's tensor in such a save."""
    return "delta" if current_kind() == "delta" else "manifest"


class SaveSpecs(list):
    """The SaveSpecs of one table: one spec for a restore, all specs for a save.

    A saver iterates over the specs. Only when it saves, it reads the tensor of each spec during the iteration. So the iterator
    returns the first spec, and returns the others only if the first spec's tensor was read.
    """

    def __init__(self, variable):
        self._taken = False
        self._variable = variable
        begin, end = (
            p * NUM_BUCKETS // variable.num_partitions
            for p in (variable.partition_index, variable.partition_index + 1)
        )
        super().__init__(
            [
                self._spec(
                    lambda: self._index(end - begin),
                    f"{variable.variable_name}/{_INDEX}",
                    tf.int32,
                    f"{NUM_BUCKETS} {begin},{end - begin}",
                )
            ]
        )

    def __iter__(self):
        yield self[0]
        if not self._taken:
            return
        variable = self._variable
        prefix = (
            f"{variable.variable_name}/part_{variable.partition_index}-of-{variable.num_partitions}"
        )
        yield self._spec(self._manifest, f"{prefix}/{part_tensor()}", tf.string)
        if variable.partition_index == 0:
            yield self._spec(self._empty, variable.variable_name, tf.float32)

    def _spec(self, read, name, dtype, slice_spec=""):
        return SaveSpec(read, slice_spec, name, dtype=dtype, device=self._variable.device)

    def _index(self, size):
        self._taken = True
        with tf.device(self._variable.device):
            return tf.constant(np.full(size, self._variable.partition_index, np.int32))

    def _empty(self):
        with tf.device(self._variable.device):
            return tf.zeros([0, self._variable.embedding_dim], tf.float32)

    def _manifest(self):
        with colocate_with(self._variable.handle, ignore_existing=True):
            return _saved_part(self._variable.handle, _save_prefix(self._variable))


class PartsSpecs(list):
    """The SaveSpecs of all parts of a partitioned variable.

    Raises:
      ValueError: the parts are on several devices. A saver uses one device for all specs of an object.
    """

    def __init__(self, variable):
        devices = sorted({part.device for part in variable.parts})
        if len(devices) > 1:
            raise ValueError(
                f"embedding variable '{variable.variable_name}': expected all parts on one device, found them on "
                f"{', '.join(devices)}: give list(variable) in a Saver's dict, not the variable"
            )
        self._of_parts = [SaveSpecs(part) for part in variable.parts]
        super().__init__([specs[0] for specs in self._of_parts])

    def __iter__(self):
        for specs in self._of_parts:
            yield from specs


def _save_prefix(variable):
    """The prefix of the checkpoint that the Saver in the current name scope writes. Called while that Saver is built.

    Raises:
      NotImplementedError: the current name scope is not that of a `tf.compat.v1.train.Saver`.
    """
    prefix = saver_prefix()
    if prefix is None:
        raise NotImplementedError(
            f"embedding variable '{variable.variable_name}': expected a tf.compat.v1.train.Saver, found none in the current "
            "name scope: no other saver can save it"
        )
    return prefix


def _saved_part(handle, prefix):
    """The manifest of a part, which is saved as of one moment with all other parts of this Saver in its process."""
    write = next(
        (
            op
            for op in prefix.consumers()
            if op.type == "MultitierWriteSaveGroup"
            and process_of(op.device) == process_of(handle.op.device)
        ),
        None,
    )
    if write is None:
        write = ops.multitier_write_save_group(
            ops.multitier_save_group(), prefix, kind=current_kind()
        )
    group = write.inputs[0]
    add_control_input(write, ops.multitier_join_save_group(group, handle))
    with tf.control_dependencies([write]):
        return ops.multitier_saved_part(group, handle)


def freeze_op(parts, variable_name, prefix, dtype, name="freeze"):
    """The op that writes all parts of a variable as a checkpoint of its own, with keys and values alone.

    Each device has a group of its own. A group that is not kept deletes its files at the end of the run. So if one device fails, or
    the index cannot be written, no file of the others stays.
    """
    eager.check_world(parts[0], "freeze of embedding variable")
    groups: list = []
    try:
        return _freeze_groups(groups, parts, variable_name, prefix, dtype, name)
    finally:
        groups.clear()  # eagerly, a traceback would keep them, and so the files of a failed save


def _freeze_groups(groups, parts, variable_name, prefix, dtype, name):
    with tf.name_scope(name):
        prefix, count = tf.convert_to_tensor(prefix, tf.string), len(parts)
        manifests, writes = {}, []
        for device in dict.fromkeys(part.device for part in parts):
            here = [part for part in parts if part.device == device]
            with colocate_with(here[0].handle, ignore_existing=True):
                groups.append(ops.multitier_save_group())
                joined = [ops.multitier_join_save_group(groups[-1], part.handle) for part in here]
                with tf.control_dependencies([op for op in joined if op is not None]):
                    write = ops.multitier_write_save_group(
                        groups[-1], prefix, frozen=dtype, until_kept=True
                    )
                writes += [] if write is None else [write]
                with tf.control_dependencies(writes):
                    for part in here:
                        manifests[part.partition_index] = ops.multitier_saved_part(
                            groups[-1], part.handle
                        )
        buckets = np.arange(NUM_BUCKETS)
        ends = np.array([(p + 1) * NUM_BUCKETS // count for p in range(count)])
        tensors = {
            variable_name: tf.zeros([0, parts[0].embedding_dim], tf.float32),
            f"{variable_name}/{_INDEX}": np.searchsorted(ends, buckets, "right").astype(np.int32),
        }
        for i, manifest in manifests.items():
            tensors[f"{variable_name}/part_{i}-of-{count}/manifest"] = manifest
        index = tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=list(tensors.values()),
        )
        with tf.control_dependencies([] if index is None else [index]):
            kept = []
            for group in groups:
                with colocate_with(group, ignore_existing=True):
                    kept.append(ops.multitier_keep_save_group(group))
        return None if index is None else tf.group(*kept)


def restore_op(variable, prefix, variable_name, name="restore", resize=False, convert=False):
    """The op that replaces a table's content by the content of `variable_name` in the checkpoint at `prefix`."""
    eager.check_world(variable, "a restore of embedding variable")
    with colocate_with(variable.handle, ignore_existing=True):
        return ops.multitier_restore(
            variable.handle,
            prefix,
            variable_name=variable_name,
            resize=resize,
            convert=convert,
            rename_slots=not variable._in_graph_mode,
            name=name,
            **variable.handle_attrs,
        )


def lists(names, variable):
    """Whether a checkpoint with tensors of these names has the variable."""
    return f"{variable.variable_name}/{_INDEX}" in names


def restore_by_name(variable, checkpoint):
    """Restores an eager variable as tf.train.Checkpoint does from a checkpoint without objects, of a v1 Saver or checkpoint.Writer.

    checkpoint: TensorFlow's coordinator of such a restore.
    """
    if variable._update_uid >= checkpoint.restore_uid:
        return
    if lists(checkpoint.dtype_map, variable):
        variable.restore_from(checkpoint.save_path, convert=is_converting())
    else:
        unused = checkpoint.unused_attributes.setdefault(variable, [])
        unused.append(variable.variable_name)
    variable._update_uid = checkpoint.restore_uid


def read_op(part, prefix, variable_name, resize=False, convert=False, check_only=False):
    """The op that reads a part, for replace_ops. Returns its output, a variant. check_only: checks the files alone."""
    with colocate_with(part.handle, ignore_existing=True):
        return ops.multitier_read_part(
            part.handle,
            prefix,
            variable_name=variable_name,
            resize=resize,
            convert=convert,
            check_only=check_only,
            rename_slots=not part._in_graph_mode,
            name="read",
            **part.handle_attrs,
        )


def replace_ops(parts, tables):
    """The ops that give each part the table that read_op read, once all tables have been read."""
    with tf.control_dependencies(tables):
        replaced = []
        for part, table in zip(parts, tables):
            with colocate_with(part.handle, ignore_existing=True):
                replaced.append(ops.multitier_replace_table(part.handle, table, name="replace"))
        return replaced


def restore_parts(parts, prefix, variable_name, name="restore", resize=False, convert=False):
    """restore_op for all parts of a variable together. An error of one leaves all parts as they were."""
    eager.check_world(parts[0], "a restore of embedding variable")
    tables = [read_op(part, prefix, variable_name, resize, convert) for part in parts]
    return tf.group(*replace_ops(parts, tables), name=name)


def _restore_with_the_others(part, read_dense, base, variable_name):
    """The op by which a Saver restores a part: it runs once the Saver has read all parts and all dense variables.

    read_dense: the RestoreV2 op of the Saver for the part's device. It reads after all parts, so nothing changes before that.
    base: the Saver's prefix, from which that of each device's files is made.
    """
    reads, dense = graph_state.state_of(part.graph).restores.setdefault(base.name, ([], []))
    with tf.control_dependencies(None):  # not after what the Saver restores sequentially
        prefix = read_dense.inputs[0]
        table = read_op(part, prefix, variable_name, _resize.get(), _convert.get())
    if read_dense not in dense:
        for read in reads:
            add_control_input(read_dense, read)
        dense.append(read_dense)
    for op in dense:
        add_control_input(op, table.op)
    reads.append(table.op)
    with tf.control_dependencies([read_dense]):
        [replaced] = replace_ops([part], [table])
    return replaced


def _save_ops(prefix):
    """The ops of a v1 Saver that write to the same prefix tensor. An empty list if there is no Saver (init_from_checkpoint)."""
    found, seen, queue = [], set(), [prefix]
    while queue:
        for op in queue.pop().consumers():
            if op in seen:
                continue
            seen.add(op)
            if op.type in ("Save", "SaveSlices", "SaveV2"):
                found.append(op)
            elif op.type in ("ShardedFilename", "StringJoin"):
                queue.append(op.outputs[0])
    return found


def _is_of_saver(variable, base):
    """Whether a Saver restores the variable, with all its parts. Refuses a Saver that could not restore what it writes.

    A Saver makes its restore ops after all its save ops. `init_from_checkpoint` has none: it restores each part by itself.
    """
    tensor, name, parts = part_tensor(), variable.variable_name, variable.num_partitions
    save_ops = _save_ops(base)
    if any(op.type != "SaveV2" for op in save_ops):
        raise NotImplementedError(
            f"embedding variable '{name}' is saved in checkpoints of format V2 only: expected "
            "Saver(write_version=tf.compat.v1.train.SaverDef.V2), found V1"
        )
    written = [tf.get_static_value(op.inputs[1]) for op in save_ops]
    if not written or any(names is None for names in written):
        return False
    written = {tensor.decode() for names in written for tensor in names}
    found = [i for i in range(parts) if f"{name}/part_{i}-of-{parts}/{tensor}" in written]
    if len(found) < parts:
        raise ValueError(
            f"embedding variable '{name}': expected a Saver of all {parts} parts, found one of "
            f"{', '.join(f'part_{i}' for i in found)}: give it the variable or list(variable)"
        )
    return True


def restore(variable, restored_tensors):
    """Implements SaveableObject.restore. Prefix and name come from the RestoreV2 op that a v1 Saver made.

    Raises:
      NotImplementedError: used by `tf.train.Checkpoint`, whose restore op has neither; or by a Saver of format V1.
      ValueError: the Saver has only some parts of a partitioned variable.
    """
    op = restored_tensors[0].op
    if op.type != "RestoreV2":
        raise NotImplementedError(
            f"embedding variable '{variable.variable_name}' cannot be restored by {op.type}: use tf.compat.v1.train.Saver, or "
            "run its restore_from(prefix)"
        )
    names = tf.get_static_value(op.inputs[1])
    if names is None:
        saved = variable.variable_name
    else:
        saved = _OWN_SUFFIX.sub("", names[restored_tensors[0].value_index].decode())
    prefix = op.inputs[0]
    base = prefix.op.inputs[0] if prefix.op.type == "ShardedFilename" else prefix
    is_of_saver = _is_of_saver(variable, base)
    kind, previous = _kind.get()
    if kind == "delta":
        with colocate_with(variable.handle, ignore_existing=True):
            return ops.multitier_apply_delta(
                variable.handle, prefix, previous, variable_name=saved, convert=_convert.get()
            )
    if is_of_saver:
        return _restore_with_the_others(variable, op, base, saved)
    return restore_op(variable, prefix, saved, resize=_resize.get(), convert=_convert.get())

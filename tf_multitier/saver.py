"""How TensorFlow's own Saver saves and restores an embedding variable: the SaveableObject part.

In the checkpoint, for a variable `<name>` in n parts (n = 1: not partitioned):

    <name>/partition_of_bucket              int32 [1024], saved in n slices: the part that owns each bucket of keys
    <name>                                  float32 [0, dim]: lists the variable
    <name>/part_<i>-of-<n>/manifest         string: format version, columns, number of rows, initializer, name of the file (JSON)
    <prefix>.data-<5 letters>-of-<5 letters>  a file for each part: the rows, with slots, frequencies, versions, counts

The rows of a part are streamed to its file by the op that gives the manifest, as of one moment, so that memory does not grow with
the table. The file's name is one that TensorFlow's own clean-up, copies and SavedModels take along. The checkpoint exists once
TensorFlow has written its index. Where a variable is on another machine, that machine must see the checkpoint's directory,
as for TensorFlow's sharded savers.

Restoring reads the checkpoint's parts in its own op, whatever their number, and keeps the keys that belong to the part being
restored. The Saver itself reads every tensor it knows of before that, in one RestoreV2 op, so it must know only of one that
every checkpoint of the variable has in any partitioning, and that is small: the slices of `partition_of_bucket`, which
TensorFlow's reader re-cuts. SaveSpecs below is how the same list of specs says more when saving.

A SaveableObject names its own tensors: in `Saver({"other": ev})` the name "other" is not used. `init_from_checkpoint` and
`warm_start` restore a variable under another name.
"""

import re

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.framework import tensor_util
from tensorflow.python.training.saving import saveable_object

from tf_multitier._library import ops

# Partitions own ranges of this many buckets of keys.
NUM_BUCKETS = 1024

_INDEX = "partition_of_bucket"
_OWN_SUFFIX = re.compile(rf"/({_INDEX}|part_\d+-of-\d+/manifest)$")


class SaveSpecs(list):
    """The SaveSpecs of one table: one for a restore, all for a save.

    A saver walks the specs; when it saves it takes each one's tensor on the way. Iteration gives the first spec, and the others
    only if the first one's tensor was taken.
    """

    def __init__(self, variable):
        self._taken = False
        self._variable = variable
        begin, end = (p * NUM_BUCKETS // variable.num_partitions
                      for p in (variable.partition_index, variable.partition_index + 1))
        super().__init__([self._spec(lambda: self._index(end - begin), f"{variable.variable_name}/{_INDEX}", tf.int32,
                                     f"{NUM_BUCKETS} {begin},{end - begin}")])

    def __iter__(self):
        yield self[0]
        if not self._taken:
            return
        variable = self._variable
        prefix = f"{variable.variable_name}/part_{variable.partition_index}-of-{variable.num_partitions}"
        yield self._spec(self._manifest, f"{prefix}/manifest", tf.string)
        if variable.partition_index == 0:
            yield self._spec(self._empty, variable.variable_name, variable.dtype)

    def _spec(self, read, name, dtype, slice_spec=""):
        return saveable_object.SaveSpec(read, slice_spec, name, dtype=dtype, device=self._variable.device)

    def _index(self, size):
        self._taken = True
        with tf.device(self._variable.device):
            return tf.constant(np.full(size, self._variable.partition_index, np.int32))

    def _empty(self):
        with tf.device(self._variable.device):
            return tf.zeros([0, self._variable.embedding_dim], self._variable.dtype)

    def _manifest(self):
        with tf_ops.colocate_with(self._variable.handle, ignore_existing=True):
            return ops.multitier_save_part(self._variable.handle, _save_prefix(self._variable))


class PartsSpecs(list):
    """The SaveSpecs of all parts of a partitioned variable.

    Raises:
      ValueError: where its parts are on several devices, of which a saver takes one for all specs of an object.
    """

    def __init__(self, variable):
        if len({part.device for part in variable.parts}) > 1:
            raise ValueError(f"the parts of embedding variable '{variable.variable_name}' are on several devices: give list(variable) "
                             "in a Saver's dict, not the variable")
        self._of_parts = [SaveSpecs(part) for part in variable.parts]
        super().__init__([specs[0] for specs in self._of_parts])

    def __iter__(self):
        for specs in self._of_parts:
            yield from specs


def _save_prefix(variable):
    """The prefix of the checkpoint that the Saver being built in the current name scope writes.

    Raises:
      NotImplementedError: this is no `tf.compat.v1.train.Saver`.
    """
    graph = tf_ops.get_default_graph()
    scope = graph.get_name_scope()
    while scope:
        try:
            # What a v1 Saver calls the tensor of its file name, for compatibility with itself.
            return graph.get_tensor_by_name(f"{scope}/Const:0")
        except KeyError:
            scope = scope.rpartition("/")[0]
    raise NotImplementedError(f"embedding variable '{variable.variable_name}' is saved by tf.compat.v1.train.Saver only: no file "
                              "name of a Saver in the current name scope")


def restore_op(variable, prefix, variable_name, name="restore"):
    """The op that replaces a table's content by what the checkpoint at `prefix` has for `variable_name`."""
    with tf_ops.colocate_with(variable.handle, ignore_existing=True):
        return ops.multitier_restore(variable.handle, prefix, variable_name=variable_name, name=name, **variable.option_attrs)


def _save_ops(prefix):
    """The ops of a v1 Saver that write to the prefix that it also restores from. None elsewhere, in init_from_checkpoint."""
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


def _check_saver(variable, prefix):
    """Refuses a Saver that would write what it cannot restore. A Saver makes its restore ops after all its save ops."""
    name, parts = variable.variable_name, variable.num_partitions
    save_ops = _save_ops(prefix.op.inputs[0] if prefix.op.type == "ShardedFilename" else prefix)
    if any(op.type != "SaveV2" for op in save_ops):
        raise NotImplementedError(f"embedding variable '{name}' is saved in checkpoints of format V2 only: expected "
                                  "Saver(write_version=tf.compat.v1.train.SaverDef.V2), found V1")
    written = [tensor_util.constant_value(op.inputs[1]) for op in save_ops]
    if not written or any(names is None for names in written):
        return
    written = {tensor.decode() for names in written for tensor in names}
    found = [i for i in range(parts) if f"{name}/part_{i}-of-{parts}/manifest" in written]
    if len(found) < parts:
        raise ValueError(f"embedding variable '{name}' can be restored from all of its {parts} parts only, found a Saver of "
                         f"{', '.join(f'part_{i}' for i in found)}: give it the variable or list(variable)")


def restore(variable, restored_tensors):
    """SaveableObject.restore: takes prefix and name from the RestoreV2 op that a v1 Saver made.

    Raises:
      NotImplementedError: under `tf.train.Checkpoint`, whose restore op tells neither; for a Saver of format V1.
      ValueError: for a Saver of some parts of a partitioned variable.
    """
    op = restored_tensors[0].op
    if op.type == "RestoreV2":
        _check_saver(variable, op.inputs[0])
    else:
        raise NotImplementedError(
            f"embedding variable '{variable.variable_name}' cannot be restored by {op.type}: use tf.compat.v1.train.Saver, or "
            "run its restore_from(prefix)")
    names = tensor_util.constant_value(op.inputs[1])
    if names is None:
        saved = variable.variable_name
    else:
        saved = _OWN_SUFFIX.sub("", names[restored_tensors[0].value_index].decode())
    return restore_op(variable, op.inputs[0], saved)

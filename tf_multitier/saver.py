"""How TensorFlow's own Saver saves and restores an embedding variable: the SaveableObject part.

In the checkpoint, for a variable `<name>` in n parts (n = 1: not partitioned):

    <name>/partition_of_bucket              int32 [1024], saved in n slices: the part that owns each bucket of keys
    <name>                                  float32 [0, dim]: lists the variable
    <name>/part_<i>-of-<n>/manifest         string: format version, columns, number of rows, initializer (JSON)
    <name>/part_<i>-of-<n>/keys             int64 [rows]
    <name>/part_<i>-of-<n>/rows             float32 [rows, sum of the columns' dims]: value and slots, back to back
    <name>/part_<i>-of-<n>/frequencies      int64 [rows]
    <name>/part_<i>-of-<n>/versions         int64 [rows]
    <name>/part_<i>-of-<n>/counted          int64 [keys counted and not admitted, 3]: key, count, version
    <name>/part_<i>-of-<n>/initial_matrix   float32 [default_value_dim, dim], or [0, dim]
    <name>/part_<i>-of-<n>/filter_counters  uint8 [bytes of the Bloom filter], or [0]

All tensors of a part come from one op, as of one moment.

Restoring reads the checkpoint's parts in its own op, whatever their number, and keeps the keys that belong to the part being
restored. The Saver itself reads every tensor it knows of before that, in one RestoreV2 op, so it must know only of one that
every checkpoint of the variable has in any partitioning, and that is small: the slices of `partition_of_bucket`, which
TensorFlow's reader re-cuts. SaveSpecs below is how the same list of specs says more when saving.

A SaveableObject names its own tensors: in `Saver({"other": ev})` the name "other" is not used. `init_from_checkpoint` restores a
variable under another name.
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

PART_TENSORS = (("manifest", tf.string), ("keys", tf.int64), ("rows", tf.float32), ("frequencies", tf.int64),
                ("versions", tf.int64), ("counted", tf.int64), ("initial_matrix", tf.float32),
                ("filter_counters", tf.uint8))

_INDEX = "partition_of_bucket"
_OWN_SUFFIX = re.compile(rf"/({_INDEX}|part_\d+-of-\d+/[a-z_]+)$")


class SaveSpecs(list):
    """The SaveSpecs of one table: one for a restore, all for a save.

    A saver walks the specs; when it saves it takes each one's tensor on the way. Iteration gives the first spec, and the others
    only if the first one's tensor was taken.
    """

    def __init__(self, variable):
        self._taken = False
        self._variable = variable
        self._saved = None
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
        for i, (name, dtype) in enumerate(PART_TENSORS):
            yield self._spec(lambda i=i: self._output(i), f"{prefix}/{name}", dtype)
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

    def _output(self, index):
        if self._saved is None:
            with tf_ops.colocate_with(self._variable.handle, ignore_existing=True):
                self._saved = ops.multitier_save_slice(self._variable.handle, dtype=self._variable.dtype, expire=True)
        return self._saved[index]


def restore_op(variable, prefix, variable_name, name="restore"):
    """The op that replaces a table's content by what the checkpoint at `prefix` has for `variable_name`."""
    with tf_ops.colocate_with(variable.handle, ignore_existing=True):
        return ops.multitier_restore(variable.handle, prefix, variable_name=variable_name, name=name, **variable.option_attrs)


def restore(variable, restored_tensors):
    """SaveableObject.restore: takes prefix and name from the RestoreV2 op that a v1 Saver made.

    Raises:
      NotImplementedError: under `tf.train.Checkpoint`, whose restore op tells neither.
    """
    op = restored_tensors[0].op
    if op.type != "RestoreV2":
        raise NotImplementedError(
            f"embedding variable '{variable.variable_name}' cannot be restored by {op.type}: use tf.compat.v1.train.Saver, or "
            "run its restore_from(prefix)")
    names = tensor_util.constant_value(op.inputs[1])
    if names is None:
        saved = variable.variable_name
    else:
        saved = _OWN_SUFFIX.sub("", names[restored_tensors[0].value_index].decode())
    return restore_op(variable, op.inputs[0], saved)

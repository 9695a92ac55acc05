"""How TensorFlow's own Saver saves and restores an embedding variable: the SaveableObject part.

In the checkpoint, for a variable `<name>` in n parts (n = 1: not partitioned):

    <name>                                  float32 [0, dim]: lists the variable, refuses another dim
    <name>/part_<i>-of-<n>/manifest         string: format version, columns, number of rows, initializer (JSON)
    <name>/part_<i>-of-<n>/keys             int64 [rows]
    <name>/part_<i>-of-<n>/rows             float32 [rows, sum of the columns' dims]: value and slots, back to back
    <name>/part_<i>-of-<n>/frequencies      int64 [rows]
    <name>/part_<i>-of-<n>/versions         int64 [rows]
    <name>/part_<i>-of-<n>/counted          int64 [keys counted and not admitted, 3]: key, count, version
    <name>/part_<i>-of-<n>/initial_matrix   float32 [default_value_dim, dim], or [0, dim]

All tensors of a part come from one op, as of one moment. Restoring reads the checkpoint's parts in its own op, whatever their
number, and keeps the keys that belong to the part being restored; the RestoreV2 ops that the Saver adds are never run.
"""

import re

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.framework import tensor_util
from tensorflow.python.training.saving import saveable_object

from tf_multitier._library import ops

PART_TENSORS = (("manifest", tf.string), ("keys", tf.int64), ("rows", tf.float32), ("frequencies", tf.int64),
                ("versions", tf.int64), ("counted", tf.int64), ("initial_matrix", tf.float32))

_PART_SUFFIX = re.compile(r"/part_\d+-of-\d+/[a-z_]+$")


def specs(variable):
    """The SaveSpecs of one table. The save op is made when the Saver asks for the first tensor, once for one list of specs."""
    prefix = f"{variable.variable_name}/part_{variable.partition_index}-of-{variable.num_partitions}"
    made = []

    def output(index):
        def read():
            if not made:
                with tf_ops.colocate_with(variable.handle, ignore_existing=True):
                    made.append(ops.multitier_save_slice(variable.handle, dtype=variable.dtype))
            return made[0][index]

        return read

    def shape_tensor():
        with tf.device(variable.device):
            return tf.zeros([0, variable.embedding_dim], variable.dtype)

    spec = lambda read, name, dtype: saveable_object.SaveSpec(read, "", name, dtype=dtype, device=variable.device)
    result = [spec(output(i), f"{prefix}/{name}", dtype) for i, (name, dtype) in enumerate(PART_TENSORS)]
    if variable.partition_index == 0:
        result.append(spec(shape_tensor, variable.variable_name, variable.dtype))
    return result


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
    saved = variable.variable_name if names is None else _PART_SUFFIX.sub("", names[restored_tensors[0].value_index].decode())
    return restore_op(variable, op.inputs[0], saved)

"""Users in a variable of dynamic dimension: those who are seen often get more blocks, in a DIEN."""

import tensorflow as tf
from tensorflow.python.framework import dtypes
from tensorflow.python.framework import ops
from tensorflow.python.ops import math_ops

import fed_dien

DIM = fed_dien.EMBEDDING_DIM


def blocks_of(seen, bounds, decay=0.9):
    """[batch] int32: how many of the bounds each user's counts have reached, of which seen is [batch, 2]."""
    resets = tf.get_variable(
        "cnt_reset_num",
        shape=[1],
        initializer=tf.constant_initializer([0.0]),
        dtype=tf.float32,
        collections=[ops.GraphKeys.GLOBAL_VARIABLES, ops.GraphKeys.MODEL_VARIABLES],
    )
    all_time = seen[:, 0] / tf.maximum(tf.abs(1.0 - tf.pow(decay, resets)), 1e-8)
    lately = (decay * seen[:, 0] + (1 - decay) * seen[:, 1]) / tf.abs(
        1.0 - tf.pow(decay, resets + 1.0)
    )
    count = tf.maximum(lately, all_time)
    reached = [
        tf.cast(tf.greater_equal(count, bounds[i]), dtype=tf.int32)
        for i in range(bounds.get_shape().as_list()[0])
    ]
    return tf.stop_gradient(tf.add_n(reached))


def look_up_uid(users, ids):
    collections = [ops.GraphKeys.GLOBAL_VARIABLES, ops.GraphKeys.MODEL_VARIABLES]
    counts = tf.get_variable("uid_cnt", [users, 2], initializer=tf.zeros_initializer)
    bounds = tf.get_variable(
        name="uid_bnd",
        shape=[2],
        initializer=tf.constant_initializer([1, 2]),
        dtype=tf.float32,
        collections=collections,
    )
    table = tf.get_dynamic_dimension_embedding_variable(
        "uid_embedding_var", embedding_block_dimension=DIM / 2, embedding_block_num=2
    )
    ids = math_ops.cast(ids, dtypes.int64)
    blocks = blocks_of(tf.nn.embedding_lookup(counts, ids), bounds)
    once = tf.reshape(tf.tile(input=tf.constant([0.0, 1.0]), multiples=tf.shape(ids)), [-1, 2])
    with tf.control_dependencies([tf.scatter_add(counts, ids, once)]):
        return tf.reshape(tf.nn.embedding_lookup(table, ids, blocknums=blocks), [-1, DIM])


if __name__ == "__main__":
    fed_dien.run(
        lambda counts: fed_dien.Model(counts, look_up_uid=lambda ids: look_up_uid(counts[0], ids))
    )

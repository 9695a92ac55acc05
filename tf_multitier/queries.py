"""What an embedding variable answers about its keys and rows, whole or partitioned: methods shared by both classes."""

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from tf_multitier._library import ops

_KEY_TYPES = (tf.int64, tf.int32, tf.int16, tf.int8, tf.uint8, tf.uint16, tf.uint32)


def _is_empty_list(ids):
    return isinstance(ids, (list, tuple)) and all(_is_empty_list(i) for i in ids)


def as_keys(variable, ids, what="ids"):
    """`ids` as a tensor of int64 keys, of the same shape.

    Integers are widened (uint64 is refused: it does not fit). A variable with int32 keys takes no int64 ids. An empty list has
    no dtype of its own and is fine.

    Raises:
      TypeError: for another dtype, naming the variable, what was expected and what was found.
    """
    if _is_empty_list(ids):
        ids = np.zeros(np.shape(ids), np.int32)
    ids = tf.convert_to_tensor(ids, name=what)
    name, key_dtype = variable.variable_name, variable.key_dtype
    if ids.dtype not in _KEY_TYPES:
        raise TypeError(f"embedding variable '{name}': {what} must be {key_dtype.name}, found {ids.dtype.name}")
    if key_dtype == tf.int32 and ids.dtype in (tf.int64, tf.uint32):
        raise TypeError(f"embedding variable '{name}' has int32 keys: {what} must be int32, found {ids.dtype.name}; create it "
                        "with key_dtype=tf.int64")
    return ids if ids.dtype == tf.int64 else tf.cast(ids, tf.int64)


def colocated(part):
    """Places ops on the device of a part and frees them from where the caller is."""
    return tf_ops.colocate_with(part.handle, ignore_existing=True)


def partition_keys(keys, num_partitions):
    """Splits int64 keys [n] by owner: ([int32 positions], [int64 keys]), a list entry for each partition."""
    return ops.multitier_partition_keys(keys, num_partitions=num_partitions)


def route(parts, keys, read, tail_shape=()):
    """Calls `read(part, keys of that part)` for each part and puts the answers back in the order of `keys`.

    Args:
      parts: list of EmbeddingVariable.
      keys: int64, any shape.
      read: function of a part and int64 keys [m] (any shape where there is one part), giving keys.shape + tail_shape.
      tail_shape: static shape of one answer.

    Returns:
      A tensor of shape keys.shape + tail_shape.
    """
    if len(parts) == 1:
        with colocated(parts[0]):
            return read(parts[0], keys)
    flat = tf.reshape(keys, [-1])
    positions, part_keys = partition_keys(flat, len(parts))
    answers = []
    for part, its_keys in zip(parts, part_keys):
        with colocated(part):
            answers.append(read(part, its_keys))
    merged = tf.dynamic_stitch(positions, answers)
    merged = tf.reshape(merged, tf.concat([tf.shape(keys), tf.constant(tail_shape, tf.int32, [len(tail_shape)])], 0))
    merged.set_shape(keys.shape.concatenate(tail_shape))
    return merged


class Queries:
    """Methods of EmbeddingVariable and PartitionedEmbeddingVariable.

    All of them build ops: run the result in a Session. None of them needs an optimizer. A class that mixes this in has
    `parts`, `variable_name`, `key_dtype`, `embedding_dim`, `handle`.
    """

    def _sum_over_parts(self, make, name):
        with tf.name_scope(name):
            answers = []
            for part in self.parts:
                with colocated(part):
                    answers.append(make(part))
            return answers[0] if len(answers) == 1 else tf.add_n(answers)

    def _ask_keys(self, make, ids, name):
        with tf.name_scope(name):
            return route(self.parts, as_keys(self, ids), make)

    def total_count(self, name="total_count"):
        """Number of keys that have a row: int64 scalar. Source: DeepRec's `EmbeddingVariable.total_count`."""
        return self._sum_over_parts(lambda p: ops.multitier_count(p.handle), name)

    def get_dynamic_shape(self, name="dynamic_shape"):
        """[total_count(), embedding_dim]: int64 [2]. Source: DeepRec's `get_dynamic_shape`."""
        return tf.stack([self.total_count(name), tf.constant(self.embedding_dim, tf.int64)])

    def get_frequency(self, ids, name="frequency"):
        """Occurrences of each id that were trained on: int64, shaped as `ids`. 0 for a key without a row, or its count where a
        filter counts it. Source: DeepRec's `get_frequency`."""
        return self._ask_keys(lambda p, k: ops.multitier_frequency(p.handle, k), ids, name)

    def get_version(self, ids, name="version"):
        """Global step of the last update of each id: int64, shaped as `ids`; -1 for a key without a row. Without a global step
        in the graph, the number of the update. Source: DeepRec's `get_version`."""
        return self._ask_keys(lambda p, k: ops.multitier_version(p.handle, k), ids, name)

    def lookup_tier(self, ids, name="tier"):
        """The tier that holds each id, 0 the fastest: int32, shaped as `ids`; -1 for a key without a row. Source: DeepRec's
        `lookup_tier`."""
        return self._ask_keys(lambda p, k: ops.multitier_lookup_tier(p.handle, k), ids, name)

    def export(self, name="export"):
        """Everything that has a row, in increasing order of keys. Source: DeepRec's `export`.

        Returns:
          keys int64 [n], values float32 [n, embedding_dim], versions int64 [n], frequencies int64 [n]. Each partition is as
          of one moment.
        """
        with tf.name_scope(name):
            exports = []
            for part in self.parts:
                with colocated(part):
                    exports.append(ops.multitier_export(part.handle, dtype=self.dtype))
            if len(exports) == 1:
                return tuple(exports[0])
            columns = [tf.concat(column, 0) for column in zip(*exports)]
            order = tf.argsort(columns[0])
            return tuple(tf.gather(column, order) for column in columns)

    def remove(self, ids, name="remove"):
        """Forgets keys with their slots, frequency and version. Returns how many of them had a row: int64 scalar."""
        with tf.name_scope(name):
            keys = tf.reshape(as_keys(self, ids), [-1])
            if len(self.parts) == 1:
                with colocated(self.parts[0]):
                    return ops.multitier_remove(self.handle, keys)
            removed = []
            for part, its_keys in zip(self.parts, partition_keys(keys, len(self.parts)).part_keys):
                with colocated(part):
                    removed.append(ops.multitier_remove(part.handle, its_keys))
            return tf.add_n(removed)

    def expire(self, step, name="expire"):
        """Removes what GlobalStepEvict and L2WeightEvict call expired at `step` (an integer or int64 scalar).

        Returns how many rows went: int64 scalar. Without either option nothing does.
        """
        step = tf.cast(step, tf.int64)
        return self._sum_over_parts(lambda p: ops.multitier_expire(p.handle, step), name)

    def stats(self, name="stats"):
        """Statistics of the table and its tiers: a string scalar holding a JSON object, or, of a partitioned variable, a JSON
        list of them in the order of its parts."""
        with tf.name_scope(name):
            texts = []
            for part in self.parts:
                with colocated(part):
                    texts.append(ops.multitier_stats(part.handle))
            if not self.is_partitioned:
                return texts[0]
            return tf.strings.join(["[", tf.strings.join(texts, ","), "]"])

    def drain(self, name="drain"):
        """An op that waits until the background work due when it runs is done, and fails with its error where it failed."""
        with tf.name_scope(name):
            drains = []
            for part in self.parts:
                with colocated(part):
                    drains.append(ops.multitier_drain(part.handle))
            return drains[0] if len(drains) == 1 else tf.group(*drains)

    def sparse_read(self, indices, name=None):
        """The values of keys: indices.shape + [embedding_dim]. What `tf.gather` and TensorFlow's own lookups call."""
        from tf_multitier import lookup  # lookup.py needs this class

        return lookup.embedding_lookup(self, indices, name=name)

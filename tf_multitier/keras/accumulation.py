"""The gradients of rows over the steps of `gradient_accumulation_steps` of an optimizer of `with_rows`.

    steps 1 .. k-1    the entries of the step's gradient, keys and values, are appended to those that are kept
    step k            all entries divided by k are the gradient of one update, and none are kept

So one update has the mean of k gradients, as Keras' dense variables have. Memory: the entries of k - 1 batches for each table. Rows
are counted as often as they occur in the k batches. An archive and a checkpoint of the optimizer have the entries, too.
"""

from __future__ import annotations

import tensorflow as tf


class KeptGradients(tf.Module):
    """The entries of each of several tables. Threads: one step at a time."""

    def __init__(self, rows: list) -> None:
        """rows: the Rows that an optimizer trains."""
        super().__init__(name="kept_gradients")
        self._places = {id(one): i for i, one in enumerate(rows)}
        with tf.init_scope():
            self.keys = [
                tf.Variable(tf.zeros([0], tf.int64), shape=[None], trainable=False) for _ in rows
            ]
            self.values = [
                tf.Variable(tf.zeros(shape), shape=[None, shape[1]], trainable=False)
                for shape in ([0, one.embedding_variable.embedding_dim] for one in rows)
            ]

    def with_step(self, gradients: list, rows: list) -> list:
        """[(keys, values)] that are kept and those of a step."""
        found = []
        for gradient, one in zip(gradients, rows):
            i = self._places[id(one)]
            keys, values = tf.cast(gradient.indices, tf.int64), tf.cast(gradient.values, tf.float32)
            found.append(
                (tf.concat([self.keys[i], keys], 0), tf.concat([self.values[i], values], 0))
            )
        return found

    def keep(self, entries: list, rows: list) -> None:
        """Keeps what `with_step` returned."""
        for (keys, values), one in zip(entries, rows):
            i = self._places[id(one)]
            self.keys[i].assign(keys)
            self.values[i].assign(values)

    def clear(self) -> None:
        """Keeps nothing."""
        # A slice, not zeros: of a static shape, Grappler takes it for the variable's shape outside of a branch, too (TensorFlow 2.21).
        for variable in (*self.keys, *self.values):
            variable.assign(variable[:0])

    def arrays(self) -> dict:
        """{name: array} of what is kept."""
        every = {f"keys_{i}": v for i, v in enumerate(self.keys)}
        every |= {f"values_{i}": v for i, v in enumerate(self.values)}
        return {name: v.numpy() for name, v in every.items()}

    def assign(self, arrays: dict) -> None:
        """Keeps what `arrays` of as many tables returned."""
        for i, (keys, values) in enumerate(zip(self.keys, self.values)):
            keys.assign(arrays[f"keys_{i}"])
            values.assign(arrays[f"values_{i}"])


def mean(keys: tf.Tensor, values: tf.Tensor, steps: int) -> tf.IndexedSlices:
    """The mean of the gradients of the steps. The first entry of a key has the sum and the others have zeros, so that clipping sees sums."""
    unique, index = tf.unique(keys, out_idx=tf.int64)
    sums = tf.math.unsorted_segment_sum(values, index, tf.size(unique))
    first = tf.math.unsorted_segment_min(tf.range(tf.size(keys)), index, tf.size(unique))
    of_first = tf.scatter_nd(first[:, None], sums, tf.shape(values))
    return tf.IndexedSlices(of_first / float(steps), tf.identity(keys))

"""The gradients of rows over the steps of `gradient_accumulation_steps` of an optimizer of `with_rows`.

    steps 1 .. k-1    the entries of the step's gradient, keys and values, are appended to those that are kept
    step k            all entries divided by k are the gradient of one update, and none are kept

So one update has the mean of k gradients, as Keras' dense variables have. Entries are appended in place: their room, which doubles when
it is full, stays. Memory: for each table at most twice the entries of k - 1 batches. Rows are counted as often as they occur in the k
batches. An archive and a checkpoint of the optimizer have the entries, too.
"""

from __future__ import annotations

import functools
import typing

import tensorflow as tf

from tf_multitier.keras import loads


class _Kept(tf.Module):
    """The entries of one table, and the room for them."""

    def __init__(self, dim: int) -> None:
        super().__init__(name="kept")
        self.count = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.keys = tf.Variable(tf.zeros([0], tf.int64), shape=[None], trainable=False)
        self.values = tf.Variable(tf.zeros([0, dim]), shape=[None, dim], trainable=False)

    def append(self, keys: tf.Tensor, values: tf.Tensor) -> None:
        end = self.count + tf.size(keys, tf.int64)
        room = tf.size(self.keys, tf.int64)

        def grow():
            more = tf.maximum(end, 2 * room) - room
            self.keys.assign(tf.pad(self.keys, [[0, more]]))
            self.values.assign(tf.pad(self.values, [[0, more], [0, 0]]))

        tf.cond(end > room, grow, lambda: None)
        self.keys[self.count : end].assign(keys)
        self.values[self.count : end].assign(values)
        self.count.assign(end)

    def entries(self) -> tuple:
        """(keys, values)."""
        return self.keys[: self.count], self.values[: self.count]

    def assign(self, keys: typing.Any, values: typing.Any) -> None:
        self.keys.assign(keys)
        self.values.assign(values)
        self.count.assign(len(keys))


class KeptGradients(tf.Module):
    """The entries of each of several tables. Threads: one step at a time."""

    def __init__(self, rows: list) -> None:
        """rows: the Rows that an optimizer trains."""
        super().__init__(name="kept_gradients")
        self._places = {id(one): i for i, one in enumerate(rows)}
        with tf.init_scope():
            self.tables = [_Kept(one.embedding_variable.embedding_dim) for one in rows]

    def keep(self, gradients: list, rows: list) -> None:
        """Keeps the gradients of a step."""
        for gradient, one in zip(gradients, rows):
            self.tables[self._places[id(one)]].append(*_entries(gradient))

    def means(self, gradients: list, rows: list, steps: int) -> list:
        """The means of the gradients of the steps, of which those of the last step are `gradients`."""
        found = []
        for gradient, one in zip(gradients, rows):
            kept_keys, kept_values = self.tables[self._places[id(one)]].entries()
            keys, values = _entries(gradient)
            keys, values = tf.concat([kept_keys, keys], 0), tf.concat([kept_values, values], 0)
            found.append(_mean(keys, values, steps))
        return found

    def clear(self) -> None:
        """Keeps nothing."""
        for table in self.tables:
            table.count.assign(0)

    def arrays(self) -> dict:
        """{name: array} of what is kept."""
        found: dict = {}
        for i, table in enumerate(self.tables):
            keys, values = table.entries()
            found |= {f"keys_{i}": keys.numpy(), f"values_{i}": values.numpy()}
        return found

    def load(self, arrays: dict, where: str) -> None:
        """Keeps what `arrays` of equal tables returned, at the end of the load that runs (loads.py); nothing for no arrays.

        Raises:
          ValueError: of other tables.
        """
        with loads.together() as load:
            if not arrays:
                load.changes.append(self.clear)
                return
            dims = [table.values.shape[1] for table in self.tables]
            found = [
                arrays[name].shape[1] for name in sorted(arrays, key=_place) if "values" in name
            ]
            if found != dims:
                raise ValueError(
                    f"{where}: gradients that are kept: expected those of tables with the dims {dims}, found {found}: load them into "
                    "an optimizer for the same layers"
                )
            load.changes += [
                functools.partial(table.assign, arrays[f"keys_{i}"], arrays[f"values_{i}"])
                for i, table in enumerate(self.tables)
            ]


def _place(name):
    return int(name.split("_")[1])


def _entries(gradient):
    """(keys, values) of the gradient of a step."""
    return tf.cast(gradient.indices, tf.int64), tf.cast(gradient.values, tf.float32)


def _mean(keys, values, steps):
    """The mean of the gradients of the steps. The first entry of a key has the sum and the others have zeros, so that clipping sees sums."""
    unique, index = tf.unique(keys, out_idx=tf.int64)
    sums = tf.math.unsorted_segment_sum(values, index, tf.size(unique))
    first = tf.math.unsorted_segment_min(tf.range(tf.size(keys)), index, tf.size(unique))
    of_first = tf.scatter_nd(first[:, None], sums, tf.shape(values))
    return tf.IndexedSlices(of_first / float(steps), tf.identity(keys))

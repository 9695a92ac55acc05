"""A search over the rows of all processes of a world: each searches its own rows for the queries of all, and the asker merges."""

from __future__ import annotations

import collections.abc
import typing

import tensorflow as tf

from tf_multitier._src.processes import world as worlds


def best_of_all(
    variable: typing.Any,
    queries: tf.Tensor,
    excluded: tf.RaggedTensor | None,
    search: collections.abc.Callable,
) -> tuple[tf.Tensor, tf.Tensor]:
    """(scores float32, ids int64), each [batch, world * k]: what every process finds. All processes call it, with any batch.

    Args:
      variable: of a world.
      queries: float32 [batch, dim].
      excluded: int64 [batch, (ids)] or None, which is the same in all processes.
      search: function of such queries and excluded ids: (scores [batch, k], ids [batch, k]) among the rows of this process.
    """
    world, dim = variable.world, variable.embedding_dim
    exchange = world.new_exchange()
    own = tf.shape(queries)[0]
    words, values = tf.cast(own, tf.int64)[None], tf.reshape(queries, [-1])
    if excluded is not None:
        words = tf.concat([words, excluded.row_lengths(), excluded.flat_values], 0)
    what = f"'{variable.variable_name}' by a search with{'out' * (excluded is None)} excluded ids"
    sizes = [tf.size(words, tf.int64), tf.size(values, tf.int64)]
    largest, batch = world.agreed(sizes, words[0], what, what, exchange)
    asked = world.swap([words] * world.size, largest, worlds.REQUESTS, exchange)
    given = world.swap([values] * world.size, largest, worlds.ROWS, exchange)
    counts = [each[0] for each in asked]
    every = [each[: n * dim] for each, n in zip(given, counts)]
    scores, ids = search(
        tf.reshape(tf.concat(every, 0), [-1, dim]), None if excluded is None else _joined(asked)
    )
    k = scores.shape[1]

    def merged(found):
        answers = [tf.reshape(each, [-1]) for each in tf.split(found, tf.stack(counts))]
        swapped = world.swap(answers, batch * k, worlds.ANSWERS, exchange)
        return tf.concat([tf.reshape(each[: own * k], [-1, k]) for each in swapped], 1)

    return merged(scores), merged(ids)


def _joined(asked):
    """The excluded ids of all processes: int64 [all batches, (ids)]."""
    lengths = [each[1 : 1 + each[0]] for each in asked]
    ids = [
        each[1 + each[0] : 1 + each[0] + tf.reduce_sum(its)] for each, its in zip(asked, lengths)
    ]
    return tf.RaggedTensor.from_row_lengths(
        tf.concat(ids, 0), tf.concat(lengths, 0), validate=False
    )

"""Retrieval: a Keras layer that finds, for each query, the ids whose rows have the largest dot products with it.

A step of the loop has two pieces of the table in memory. It scores one while it reads the next one.

    scores of the piece     queries x rows, and their top k, without ids to exclude
    ties at the k-th place  the piece is sorted by id and scored again: TensorFlow's top_k prefers the first of equal scores
    the best so far         the k best of those and of the piece's k, again sorted by id first

In a world of processes each searches its rows for the queries of all (world_search.py), and k of what they find are the best.
"""

from __future__ import annotations

import typing

import keras
import numpy as np
import tensorflow as tf

from tf_multitier._src.options import key_types
from tf_multitier._src.options import option_values
from tf_multitier._src.processes.world_search import best_of_all
from tf_multitier.keras import keras_versions
from tf_multitier.keras import layer_ids
from tf_multitier.keras.group_embedding import GroupEmbedding
from tf_multitier.keras.layers import Embedding
from tf_multitier.keras.layers import SERIALIZABLE

_WORST = -np.inf


@SERIALIZABLE
class Retrieval(keras.layers.Layer):
    """Exact top k of queries over all rows of a table: a search by dot product that reads the rows where they are, in blocks.

    Items are the ids that have a row: those that were trained and admitted. The search changes nothing in the table and moves no row
    between tiers. It sees each row as it is when its block is read. It has no gradient.

    In a world of processes (CollectiveStrategy) all search together, as they train: each has queries of its own, or none, and gets the
    best of the rows of all.

    Args:
      layer: a tf_multitier.keras.Embedding or GroupEmbedding, which a model may use, too.
      k: number of items for each query.
      feature: of a GroupEmbedding: the feature whose table is searched.
      return_scores: False: only the ids.
      block_rows: rows that are read at a time. Memory beyond the table is 2 * block_rows rows and batch * block_rows scores.

    Call arguments:
      inputs: queries: floats [batch, output_dim].
      exclude: ids that are no result of a query, for example those that a user has seen: a RaggedTensor or SparseTensor
        [batch, (ids)], or integers [batch, ids]. None: all are.

    Returns:
      (scores float32 [batch, k], ids [batch, k]), the best first, equal scores in increasing order of ids. Ids are uint64 or uint32
      if that is the key_dtype, else int64. Where a query has fewer than k items, as in an empty table, the score is -inf and the
      id is -1, or the largest one of an unsigned type.
    """

    def __init__(
        self,
        layer: typing.Any,
        k: int = 10,
        feature: str | None = None,
        return_scores: bool = True,
        block_rows: int = 16384,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(**kwargs)
        self.supports_jit = False  # else Keras gives our ops to XLA
        self.autocast = False
        where = f"layer '{self.name}'"
        keras_versions.refuse(f"{where}: layer", layer)
        if isinstance(layer, dict):
            layer = keras.saving.deserialize_keras_object(layer)
        if not isinstance(layer, (Embedding, GroupEmbedding)):
            raise TypeError(
                f"{where}: layer: expected a tf_multitier.keras.Embedding or GroupEmbedding, found {layer!r}"
            )
        features = (
            list(layer.get_config()["features"]) if isinstance(layer, GroupEmbedding) else [None]
        )
        if feature not in features:
            raise ValueError(
                f"{where}: feature: expected {' or '.join(map(repr, features))}, found {feature!r}"
                f"{option_values.did_you_mean(feature, [name for name in features if name])}"
            )
        self.layer, self.feature = layer, feature
        self.k = option_values.integer(f"{where}: k", k, 1)
        self.return_scores = option_values.boolean(f"{where}: return_scores", return_scores)
        self.block_rows = option_values.integer(f"{where}: block_rows", block_rows, 1)

    def build(self, input_shape: typing.Any = None) -> None:
        """Builds the layer whose table is searched."""
        if not self.layer.built:
            self.layer.build(None)
        self.built = True

    @property
    def _table(self):
        found = self.layer.embeddings
        return found if self.feature is None else found[self.feature]

    def call(self, inputs: typing.Any, exclude: typing.Any = None) -> typing.Any:
        """Searches all rows. See the class for arguments and shapes.

        Raises:
          ValueError: queries of another shape than [batch, output_dim].
          tf.errors.InvalidArgumentError, when it runs: `exclude` has another batch size.
        """
        table = self._table
        queries = tf.cast(tf.convert_to_tensor(inputs), tf.float32)
        if not queries.shape.is_compatible_with([None, table.embedding_dim]):
            raise ValueError(
                f"layer '{self.name}': queries: expected shape [batch, {table.embedding_dim}], found {tuple(queries.shape)}"
            )
        queries = tf.stop_gradient(queries)
        excluded = None if exclude is None else _excluded(table, exclude, queries, self.name)
        if table.world is None:
            scores, ranks = self._search(queries, excluded)
        else:
            scores, ranks = _k_best(*best_of_all(table, queries, excluded, self._search), self.k)
        keys = tf.where(scores == _WORST, tf.constant(-1, tf.int64), _ranks(table, ranks))
        scores, ids = map(tf.stop_gradient, (scores, key_types.from_int64(table, keys)))
        return (scores, ids) if self.return_scores else ids

    def _search(self, queries, excluded):
        """(scores, ranks), each [batch, k], of the rows of this process. excluded: ranks [batch, (ids)], or None."""
        excluded = None if excluded is None else _Excluded.of(excluded)
        return _Search(self._table, queries, excluded, self.k, self.block_rows).run()

    def compute_output_spec(self, inputs: typing.Any, exclude: typing.Any = None) -> typing.Any:
        """keras.KerasTensors of the shapes and types of the results."""
        if not self.built:
            self.build()
        shape = (inputs.shape[0], self.k)
        ids = keras.KerasTensor(shape, key_types.name_in_files(self._table))
        return (keras.KerasTensor(shape, "float32"), ids) if self.return_scores else ids

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "layer": keras.saving.serialize_keras_object(self.layer),
            "k": self.k,
            "feature": self.feature,
            "return_scores": self.return_scores,
            "block_rows": self.block_rows,
        }


class _Excluded(typing.NamedTuple):
    """What each query excludes."""

    ranks: tf.Tensor  # [batch, most + 1], sorted; at the end padding
    counts: tf.Tensor  # int32 [batch, 1]
    most: tf.Tensor

    @classmethod
    def of(cls, ranks):
        """Those of a RaggedTensor [batch, (ids)]."""
        counts = tf.cast(ranks.row_lengths(), tf.int32)
        most = tf.reduce_max(tf.concat([[0], counts], 0))
        largest = tf.int64.max
        dense = tf.pad(ranks.to_tensor(largest), [[0, 0], [0, 1]], constant_values=largest)
        return cls(tf.sort(dense, 1), counts[:, None], most)

    def has(self, ranks):
        """Which of [batch, n] are excluded."""
        at = tf.searchsorted(self.ranks, ranks)
        return (tf.gather(self.ranks, at, batch_dims=1) == ranks) & (at < self.counts)


def _excluded(table, exclude, queries, layer):
    """The ranks of the argument `exclude`: a RaggedTensor [batch, (ids)]."""
    ids = layer_ids.pooled_ids(layer_ids.integers(exclude, layer), f"{layer}/exclude")
    if isinstance(ids, tf.SparseTensor):
        ids = tf.RaggedTensor.from_sparse(ids)
    known = tf.debugging.assert_equal(
        ids.nrows(out_type=tf.int64),
        tf.shape(queries, tf.int64)[0],
        f"layer '{layer}': exclude: expected a row for each query",
    )
    with tf.control_dependencies([] if known is None else [known]):
        return ids.with_flat_values(_ranks(table, key_types.as_keys(table, ids.flat_values)))


class _Search(typing.NamedTuple):
    """One search. Ids are ranks in it: int64 with the order of the ids."""

    table: typing.Any
    queries: tf.Tensor
    excluded: _Excluded | None
    k: int
    block_rows: int

    def run(self):
        """(scores, ranks), each [batch, k]. A place without an item has the score _WORST."""
        ranks, values, cursor = self._piece(tf.constant(0, tf.int64))
        shape = tf.stack([tf.shape(self.queries)[0], self.k])
        best = tf.fill(shape, np.float32(_WORST)), tf.fill(shape, np.int64(-1))
        shapes = [tensor.shape for tensor in (ranks, values, cursor)]
        shapes += [tf.TensorShape([])] + [tf.TensorShape([self.queries.shape[0], self.k])] * 2
        *_, scores, ranks = tf.while_loop(
            lambda ranks, values, cursor, is_piece, *best: is_piece,
            self._step,
            (ranks, values, cursor, tf.constant(True), *best),
            shape_invariants=tuple(shapes),
        )
        return scores, ranks

    def _piece(self, cursor):
        found = self.table.scan(cursor, self.block_rows)
        values = tf.cast(found.columns["value"], tf.float32)
        return _ranks(self.table, key_types.to_int64(found.keys)), values, found.next_cursor

    def _step(self, ranks, values, cursor, _, best_scores, best_ranks):
        is_more = tf.not_equal(cursor, 0)
        following = tf.cond(
            is_more, lambda: self._piece(cursor), lambda: (ranks[:0], values[:0], cursor)
        )
        scores, found = self._of_piece(ranks, values)
        scores, found = tf.concat([best_scores, scores], 1), tf.concat([best_ranks, found], 1)
        return (*following, is_more, *_k_best(scores, found, self.k))

    def _of_piece(self, ranks, values):
        """The best scores and ranks of a piece: [batch, at most k]."""
        scores, found = self._best(ranks, values)
        kth, following = scores[:, self.k - 1 : self.k], scores[:, self.k :]
        is_tie = tf.reduce_any((kth == following) & (kth > _WORST))

        def in_order():
            order = tf.argsort(ranks)
            return self._best(tf.gather(ranks, order), tf.gather(values, order))

        scores, found = tf.cond(is_tie, in_order, lambda: (scores, found))
        return scores[:, : self.k], found[:, : self.k]

    def _best(self, ranks, values):
        """One more than k, if there are as many, so that a tie shows."""
        rows, count = tf.shape(ranks)[0], self.k + 1
        scores = tf.matmul(self.queries, values, transpose_b=True)
        if self.excluded is not None:
            scores, at = tf.math.top_k(scores, tf.minimum(count + self.excluded.most, rows))
            ranks = tf.gather(ranks, at)
            scores = tf.where(self.excluded.has(ranks), np.float32(_WORST), scores)
            scores, at = tf.math.top_k(scores, tf.minimum(count, rows))
            return scores, tf.gather(ranks, at, batch_dims=1)
        scores, at = tf.math.top_k(scores, tf.minimum(count, rows))
        return scores, tf.gather(ranks, at)


def _k_best(scores, ranks, k):
    """The k best of [batch, n], equal scores by rank."""
    order = tf.argsort(ranks, 1)
    scores, at = tf.math.top_k(tf.gather(scores, order, batch_dims=1), k)
    return scores, tf.gather(tf.gather(ranks, order, batch_dims=1), at, batch_dims=1)


def _ranks(table, keys):
    """Ranks of int64 keys, and the reverse."""
    return key_types.in_order(table, keys)

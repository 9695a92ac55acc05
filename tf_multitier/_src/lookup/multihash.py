"""Multihash variables: the embedding of an id is combined from two small static tables, by quotient and remainder.

    table = tf_multitier.get_multihash_variable("users", [[1000, 16], [1000, 16]], operation="add")  # a million ids
    pooled = tf.nn.embedding_lookup_sparse(table, sparse_ids, None, combiner="mean")

The quotient table has q rows, the remainder table r rows. An id uses row (id // r) mod q of the first and row id mod r of the
second. Each id below q * r has an embedding of its own; larger ids repeat them. The tables are TensorFlow variables,
`<name>/quotient` and `<name>/remainder`, and are trained and saved as such. One grouped lookup reads both.

Source: DeepRec's `tf.get_multihash_variable`. If q equals r, ids have the same rows there. Otherwise DeepRec divides by q instead
of r, and ids share embeddings or have no row.
"""

import collections.abc
import typing

import tensorflow as tf

from tf_multitier import lookup
from tf_multitier import nn
from tf_multitier._src.execution import graph_state
from tf_multitier._src.lookup import lookup_routes
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier._src.tensorflow.internals import register_dispatchable_type

_OPERATIONS = ("concat", "add", "mul")


@register_dispatchable_type
class MultiHashVariable:
    """A multihash variable. `get_multihash_variable` makes it.

    Attributes:
      name: its name.
      operation: "concat", "add" or "mul".
      parts: [quotient table, remainder table].
      embedding_dim: elements of an embedding that a lookup returns.
    """

    def __init__(self, name: str, parts: collections.abc.Sequence, operation: str) -> None:
        self.name = name
        self.parts = list(parts)
        self.operation = operation
        dims = [part.shape.as_list()[1] for part in parts]
        self.embedding_dim = sum(dims) if operation == "concat" else dims[0]

    def __repr__(self):
        return f"<tf_multitier.MultiHashVariable '{self.name}' {[p.shape.as_list() for p in self.parts]} by {self.operation}>"

    def checked(self, ids: typing.Any, what: str = "ids") -> typing.Any:
        """`ids` as a tensor of integers. TypeError if they have another dtype."""
        ids = tf.convert_to_tensor(ids)
        if not ids.dtype.is_integer or ids.dtype == tf.uint64:
            raise TypeError(
                f"multihash variable '{self.name}': {what}: expected integers, found {ids.dtype.name}"
            )
        return ids

    def rows_of(self, ids: typing.Any) -> tuple[tf.Tensor, tf.Tensor]:
        """The row of each id in the quotient table and in the remainder table: two int64 tensors, shaped as ids."""
        ids = tf.cast(self.checked(ids), tf.int64)
        quotients, remainders = (part.shape.as_list()[0] for part in self.parts)
        return tf.math.floormod(tf.math.floordiv(ids, remainders), quotients), tf.math.floormod(
            ids, remainders
        )

    def combine(self, values: typing.Any) -> tf.Tensor:
        """Combines the values of both tables by `operation`."""
        if self.operation == "concat":
            return tf.concat(values, -1)
        return values[0] + values[1] if self.operation == "add" else values[0] * values[1]


def check_kind(where, complementary_strategy, operation):
    """ValueError for an unknown strategy or operation."""
    if complementary_strategy != "Q-R":
        raise ValueError(
            f"{where}: complementary_strategy: expected 'Q-R', found {complementary_strategy!r}"
        )
    if operation not in _OPERATIONS:
        raise ValueError(
            f"{where}: operation: expected one of {', '.join(_OPERATIONS)}, found {operation!r}{did_you_mean(operation, _OPERATIONS)}"
        )


def get_multihash_variable(
    name: str,
    dims: typing.Any,
    complementary_strategy: str = "Q-R",
    operation: str = "concat",
    dtype: typing.Any = tf.float32,
    initializer: typing.Any = None,
    regularizer: typing.Any = None,
    trainable: bool = True,
    collections: collections.abc.Sequence[str] | None = None,
    partitioner: collections.abc.Callable | None = None,
) -> MultiHashVariable:
    """Creates a multihash variable, or returns the existing one of that name in a reusing scope.

    Args:
      name: name of the variable. Its tables are `<name>/quotient` and `<name>/remainder`.
      dims: [[rows, dim], [rows, dim]] of the quotient table and the remainder table. "add" and "mul" need equal dims.
      complementary_strategy: must be "Q-R".
      operation: how the two embeddings of an id are combined: "concat", "add" or "mul".
      dtype: must be float32.
      initializer, regularizer, trainable, collections, partitioner: as for tf.compat.v1.get_variable, for both tables.

    Returns:
      A MultiHashVariable.

    Raises:
      RuntimeError: called in eager mode or in a tf.function.
      ValueError: a bad argument.
    """
    graph_state.refuse_eager("a multihash variable")
    check_kind(f"multihash variable '{name}'", complementary_strategy, operation)
    shapes = [tuple(int(n) for n in shape) for shape in dims]
    trainable = boolean(f"multihash variable '{name}': trainable", trainable)
    if len(shapes) != 2 or any(len(shape) != 2 or min(shape) < 1 for shape in shapes):
        raise ValueError(
            f"multihash variable '{name}': dims: expected [[rows, dim], [rows, dim]], found {dims!r}"
        )
    if operation != "concat" and shapes[0][1] != shapes[1][1]:
        raise ValueError(
            f"multihash variable '{name}': dims: expected equal dims for operation {operation!r}, found {shapes[0][1]} and "
            f"{shapes[1][1]}"
        )
    if tf.as_dtype(dtype) != tf.float32:
        raise ValueError(
            f"multihash variable '{name}': dtype: expected float32, found {tf.as_dtype(dtype).name}"
        )
    with tf.compat.v1.variable_scope(name, reuse=tf.compat.v1.get_variable_scope().reuse):
        parts = [
            tf.compat.v1.get_variable(
                part,
                shape,
                tf.float32,
                initializer,
                regularizer,
                trainable,
                collections,
                partitioner=partitioner,
                use_resource=True,
            )
            for part, shape in zip(("quotient", "remainder"), shapes)
        ]
    return MultiHashVariable(name, parts, operation)


def embedding_lookup(variable, ids, max_norm=None, name=None):
    """Looks up integers of any shape: float32 ids.shape + [embedding_dim]. max_norm applies to the rows of each table."""
    with tf.name_scope(name or "embedding_lookup"):
        return variable.combine(
            nn.group_embedding_lookup(
                variable.parts, variable.rows_of(ids), partition_strategy="div", max_norms=max_norm
            )
        )


def embedding_lookup_sparse(
    variable, sp_ids, sp_weights=None, combiner="mean", max_norm=None, name=None
):
    """Looks up sparse or ragged ids and pools by row: float32 [batch, embedding_dim]. See `nn.group_embedding_lookup_sparse`."""
    with tf.name_scope(name or "embedding_lookup_sparse"):
        sp_ids, sp_weights = lookup.from_ragged(sp_ids, sp_weights)
        make = lambda values: tf.SparseTensor(sp_ids.indices, values, sp_ids.dense_shape)
        if variable.operation != "mul":  # pooling commutes with the others
            ids = [make(rows) for rows in variable.rows_of(sp_ids.values)]
            return variable.combine(
                nn.group_embedding_lookup_sparse(
                    variable.parts,
                    ids,
                    combiner or "mean",
                    [sp_weights] * 2,
                    partition_strategy="div",
                    max_norms=max_norm,
                )
            )
        values = embedding_lookup(variable, sp_ids.values, max_norm)
        entries = make(tf.range(tf.size(sp_ids.values), dtype=tf.int64))
        return nn.group_embedding_lookup_sparse(
            [values], [entries], combiner or "mean", [sp_weights]
        )[0]


def safe_embedding_lookup_sparse(
    variable, sp_ids, sp_weights=None, combiner="mean", default_id=None, max_norm=None, name=None
):
    """Looks up sparse ids of any rank and pools over the last dimension.

    Every integer is a valid id, negative ones too. Entries with a weight <= 0 are dropped, unless the combiner is "sum". A row
    without entries is zeros, or the embedding of `default_id` if it is given.

    Args:
      variable: a multihash variable.
      sp_ids: SparseTensor of integers [d_0, ..., d_n], or a RaggedTensor [batch, (any)].
      sp_weights: floats with the same indices as sp_ids, in the same type of tensor. None: all weights are 1.
      others: see `tf.nn.safe_embedding_lookup_sparse`.

    Returns:
      float32 [d_0, ..., d_(n-1), embedding_dim].
    """
    with tf.name_scope(name or "embedding_lookup"):
        sp_ids, sp_weights = lookup.from_ragged(sp_ids, sp_weights)
        outer, rank = sp_ids.dense_shape[:-1], sp_ids.dense_shape.shape.num_elements()
        if rank != 2:
            sp_ids = tf.sparse.reshape(
                sp_ids, tf.stack([tf.reduce_prod(outer), sp_ids.dense_shape[-1]])
            )
        ids, rows = sp_ids.values, sp_ids.indices[:, 0]
        weights = None if sp_weights is None else lookup.one_a_key(sp_weights.values, ids)
        if weights is not None and combiner != "sum":
            kept = weights > 0
            ids, rows, weights = (tf.boolean_mask(x, kept) for x in (ids, rows, weights))
        if default_id is not None:
            default_key = lookup.one_key(
                variable.checked(default_id, "default_id"),
                f"multihash variable '{variable.name}': default_id",
            )
            ids, rows, weights = lookup.fill_empty_rows(
                ids, rows, weights, sp_ids.dense_shape[0], tf.cast(default_key, ids.dtype)
            )
        indices = tf.stack([rows, tf.zeros_like(rows)], 1)
        make = lambda values: tf.SparseTensor(indices, values, sp_ids.dense_shape)
        sp_ids, sp_weights = make(ids), None if weights is None else make(weights)
        pooled = embedding_lookup_sparse(variable, sp_ids, sp_weights, combiner, max_norm)
        if rank != 2:
            pooled = tf.reshape(pooled, tf.concat([outer, [variable.embedding_dim]], 0))
            pooled.set_shape(
                [None] * (rank - 1) + [variable.embedding_dim] if rank is not None else None
            )
        return pooled


lookup_routes.route(
    MultiHashVariable, embedding_lookup, embedding_lookup_sparse, safe_embedding_lookup_sparse
)

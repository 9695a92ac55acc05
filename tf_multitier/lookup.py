"""Lookups of embedding variables.

TensorFlow's public dispatch (`tf.experimental.dispatch_for_api`) routes these functions here, for embedding variables only:
`tf.nn.embedding_lookup`, `embedding_lookup_sparse`, `safe_embedding_lookup_sparse`, and their `tf.compat.v1` forms.

Every integer is a key of an embedding variable. So some semantics differ from TensorFlow's:

* Negative ids are keys and are kept. `safe_embedding_lookup_sparse` drops entries by weight only (weight <= 0, unless the combiner
  is "sum"), as TensorFlow does.
* A row without ids is zeros, or the embedding of `default_id` if one is given. It touches no other key.
* The result has one row for each row of the sparse ids, including trailing empty rows.
* `padding_idx` of our functions is one id that stands for no id (padding.py). TensorFlow's have no such argument.
* RaggedTensors [batch, (any)] are pooled like sparse ids. TensorFlow's v1 functions have their own handler of ragged ids: with it,
  `embedding_lookup_sparse` runs TensorFlow's code, and `safe_embedding_lookup_sparse` is refused.
* `partition_strategy`, `validate_indices` and `allow_fast_lookup` have no effect.

Frequencies count occurrences: a key that occurs three times in a batch adds three. Values are pooled in the order of occurrence.
Set TF_MULTITIER_LOG=1 to print on stderr which calls were routed here.
"""

import typing

import tensorflow as tf

from tf_multitier._src.execution import placement
from tf_multitier._src.lookup import exchange
from tf_multitier._src.lookup import gradients
from tf_multitier._src.lookup import lookup_routes
from tf_multitier._src.lookup import padding
from tf_multitier._src.lookup.sparse_ids import check_sparse
from tf_multitier._src.lookup.sparse_ids import from_ragged
from tf_multitier._src.lookup.sparse_ids import one_a_key
from tf_multitier._src.options.key_types import as_keys
from tf_multitier._src.options.option_values import one_of
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.variable import table_numbers
from tf_multitier._src.variable.embedding_variable import EmbeddingVariable
from tf_multitier._src.variable.embedding_variable import only_parts
from tf_multitier._src.variable.partitioned import is_embedding_variable
from tf_multitier._src.variable.partitioned import PartitionedEmbeddingVariable
from tf_multitier._src.variable.partitioned import StoredParts
from tf_multitier._src.variable.queries import accessed
from tf_multitier._src.variable.queries import colocated
from tf_multitier._src.variable.queries import output_type
from tf_multitier._src.variable.queries import training_attribute
from tf_multitier._src.variable.queries import values_of_keys

COMBINERS = ("sum", "mean", "sqrtn")


__all__ = [
    "embedding_lookup",
    "embedding_lookup_sparse",
    "safe_embedding_lookup_sparse",
]


def __dir__():
    return sorted(__all__)


def one_variable(params):
    """The embedding variable in `params`.

    Raises:
      ValueError: params is a list of parts or of several variables. The message names the object to pass.
    """
    if is_embedding_variable(params):
        return params
    if isinstance(params, StoredParts):
        return params.whole
    if len(params) == 1 and (params[0].is_partitioned or params[0].num_partitions == 1):
        return params[0]
    names = sorted({p.variable_name for p in params})
    if len(names) == 1 and params[0].num_partitions > 1:
        raise ValueError(f"params: {only_parts(names[0])}")
    raise ValueError(
        f"params: expected one embedding variable, found a list of {len(params)}: {', '.join(names)}"
    )


def max_norm_attribute(max_norm):
    """A max_norm argument as the op attribute: -1 for None."""
    if max_norm is None:
        return -1.0
    try:
        value = float(max_norm)
    except (TypeError, ValueError):
        raise TypeError(f"max_norm: expected None or a Python number, found {max_norm!r}") from None
    if not value >= 0:
        raise ValueError(f"max_norm: expected None or at least 0, found {value}")
    return value


def embedding_lookup(
    variable: typing.Any,
    ids: typing.Any,
    max_norm: float | None = None,
    name: str | None = None,
    training: bool = True,
    output_dtype: typing.Any = None,
    padding_idx: int | None = None,
    tables: typing.Any = None,
) -> typing.Any:
    """Looks up the values of keys. Source: `tf.nn.embedding_lookup`.

    Args:
      variable: an embedding variable.
      ids: integers of any shape. Every integer is a key.
      max_norm: None, or a number >= 0: embeddings with a larger L2 norm are scaled down to it.
      name: name of the op.
      training: False: for evaluation: a key without a row reads as `InitializerOption.eval_initializer` says, if it is given.
      output_dtype: of the result: tf.float32, tf.bfloat16 or tf.float16. None: the variable's.
      padding_idx: an id that is padding, for example -1: it reads as zeros, and has no row, no count and no gradient. None: every
        id is a key.
      tables: integers of the shape of the ids: which entry of the list that is the variable's `initializer` each id has. A variable
        with more than one entry needs them. An id without a row that occurs twice has that of its first occurrence.

    Returns:
      ids.shape + [embedding_dim], in output_dtype. A key without a row reads as its initial value. The lookup creates no key.

    Raises:
      RuntimeError: the variable belongs to a v1 graph and the call is eager, or the reverse.
      NotImplementedError: the call is in a tf.function with jit_compile=True.
      TypeError: the ids or tables are not integers, max_norm is not a number, training is no bool, padding_idx is no integer, or
        output_dtype is no type of values.
      ValueError: variable is a list of parts, max_norm is negative, padding_idx is no key of the key_dtype, or tables are missing or of
        another shape.
      tf.errors.InvalidArgumentError, when run: a table number is out of range.
    """
    variable = one_variable(variable)
    max_norm = max_norm_attribute(max_norm)
    output_dtype = output_type(variable, output_dtype)
    padding_key = _padding_key(variable, padding_idx)
    with tf.name_scope(name or "embedding_lookup"):
        if padding_key is not None:
            values = _padded_values(variable, ids, padding_key, max_norm, training, tables)
            return as_type(values, output_dtype)
        values = values_of_keys(variable, as_keys(variable, ids), training, tables)
        if max_norm >= 0:
            values = placement.clip_by_norm(variable, values, max_norm)
        return as_type(values, output_dtype)


def _padding_key(variable, padding_idx):
    where = f"embedding variable '{variable.variable_name}': padding_idx"
    return padding.key_of(variable.key_dtype, padding_idx, where)


def _padded_values(variable, ids, padding_key, max_norm, training, tables):
    """float32 values of ids of any shape, with zeros for padding: sums over rows that have one id or none."""
    accessed(variable)
    keys = as_keys(variable, ids)
    tables = [tf.reshape(each, [-1]) for each in table_numbers.checked(variable, keys, tables)]
    flat = tf.reshape(keys, [-1])
    count = tf.size(flat, tf.int64)
    its_keys, rows, *tables = padding.without(padding_key, flat, tf.range(count), *tables)
    max_norm = None if max_norm < 0 else max_norm
    values = _pool(variable, its_keys, rows, None, count, "sum", max_norm, training, tables)
    values = tf.reshape(values, tf.concat([tf.shape(keys), [variable.embedding_dim]], 0))
    values.set_shape(keys.shape.concatenate([variable.embedding_dim]))
    return values


def as_type(values, dtype):
    """float32 values, rounded once to another type of values."""
    return values if dtype == tf.float32 else tf.cast(values, dtype)


def _pool(variable, keys, rows, weights, batch, combiner, max_norm, training, tables):
    """Pools the values of keys by row: float32 [batch, dim].

    Args:
      keys: int64 [n].
      rows: int64 [n], nondecreasing: the row of each key.
      weights: float32 [n] or None.
      batch: int64 scalar: number of rows.
      tables: a list with the table numbers, int64 [n], or without.
    """
    one_of("combiner", combiner, COMBINERS)
    max_norm = max_norm_attribute(max_norm)
    training = training_attribute(training)
    parts = variable.parts
    if not tables and exchange.is_needed(variable):
        return exchange.pool(variable, keys, rows, weights, batch, combiner, max_norm, training)
    if not tables:
        with colocated(parts[0]):
            no_weights = tf.zeros([0], tf.float32) if weights is None else weights
            return ops.multitier_lookup_sparse(
                [part.handle for part in parts],
                keys,
                rows,
                no_weights,
                batch,
                dim=variable.embedding_dim,
                combiner=combiner,
                has_weights=weights is not None,
                max_norm=max_norm,
                training=training,
            )
    # That op takes no tables. Unsorted segment sums also add in order of occurrence.
    if weights is not None:
        weights = one_a_key(weights, keys)
    values = values_of_keys(variable, keys, training, tables[0])
    if max_norm >= 0:
        values = placement.clip_by_norm(variable, values, max_norm)
    factors = tf.ones(tf.shape(keys), tf.float32) if weights is None else weights
    if weights is not None:
        values *= weights[:, None]
    pooled = tf.math.unsorted_segment_sum(values, rows, batch)
    if combiner == "sum":
        return pooled
    if combiner == "mean":
        divisor = tf.math.unsorted_segment_sum(factors, rows, batch)
    else:
        divisor = tf.sqrt(tf.math.unsorted_segment_sum(factors * factors, rows, batch))
    return tf.math.divide_no_nan(pooled, divisor[:, None])


def embedding_lookup_sparse(
    variable: typing.Any,
    sp_ids: typing.Any,
    sp_weights: typing.Any = None,
    combiner: str | None = "mean",
    max_norm: float | None = None,
    name: str | None = None,
    training: bool = True,
    output_dtype: typing.Any = None,
    padding_idx: int | None = None,
    tables: typing.Any = None,
) -> typing.Any:
    """Looks up sparse ids and pools their embeddings by row.

    Source: `tf.nn.embedding_lookup_sparse`. The text at the top of this module lists the differences.

    Args:
      variable: an embedding variable.
      sp_ids: SparseTensor of integers [batch, any], indices in row-major order; or a RaggedTensor [batch, (any)].
      sp_weights: floats with the same indices as sp_ids, in the same type of tensor. None: all weights are 1.
      combiner: "sum", "mean" (divides by the sum of the weights) or "sqrtn" (divides by the square root of the sum of the squared
        weights).
      max_norm: None, or a number >= 0: embeddings with a larger L2 norm are scaled down to it before pooling.
      name: name of the op.
      training: False: for evaluation: a key without a row reads as `InitializerOption.eval_initializer` says, if it is given.
      output_dtype: of the result: tf.float32, tf.bfloat16 or tf.float16. None: the variable's. The sums are float32, and are rounded
        once.
      padding_idx: an id that is padding, for example -1: its entries, with their weights, count as absent. None: every id is a key.
      tables: integers [n], one for each of the n values of sp_ids: see embedding_lookup.

    Returns:
      [batch, embedding_dim], in output_dtype. A row without ids is zeros.

    Raises:
      RuntimeError: the variable belongs to a v1 graph and the call is eager, or the reverse.
      NotImplementedError: the call is in a tf.function with jit_compile=True.
      TypeError: the ids or padding_idx are not integers, or sp_ids or sp_weights has the wrong type.
      ValueError: the rank is not 2, sp_weights has another length than sp_ids, padding_idx is no key of the key_dtype, or the combiner
        is unknown.
      tf.errors.InvalidArgumentError, when run: lengths differ, or row indices are out of order or out of range.
    """
    variable = one_variable(variable)
    output_dtype = output_type(variable, output_dtype)
    padding_key = _padding_key(variable, padding_idx)
    accessed(variable)
    sp_ids, sp_weights = from_ragged(sp_ids, sp_weights)
    check_sparse(sp_ids, sp_weights)
    rank = sp_ids.dense_shape.shape.num_elements()
    if rank not in (None, 2):
        raise ValueError(f"sp_ids: expected rank 2, found rank {rank}")
    with tf.name_scope(name or "embedding_lookup_sparse"):
        keys, rows = as_keys(variable, sp_ids.values), sp_ids.indices[:, 0]
        weights = None if sp_weights is None else tf.cast(sp_weights.values, tf.float32)
        tables = table_numbers.checked(variable, keys, tables)
        keys, rows, weights, *tables = _without_padding(padding_key, keys, rows, weights, *tables)
        pooled = _pool(
            variable,
            keys,
            rows,
            weights,
            sp_ids.dense_shape[0],
            combiner or "mean",
            max_norm,
            training,
            tables,
        )
        return as_type(pooled, output_dtype)


def _without_padding(padding_key, keys, rows, weights, *tables):
    """Keys [n], their rows [n], weights [n] or None, and perhaps tables [n], without padding."""
    if padding_key is None:
        return keys, rows, weights, *tables
    if weights is not None:
        weights = one_a_key(weights, keys)  # before a choice among keys
    return padding.without(padding_key, keys, rows, weights, *tables)


def safe_embedding_lookup_sparse(
    variable: typing.Any,
    sp_ids: typing.Any,
    sp_weights: typing.Any = None,
    combiner: str | None = "mean",
    default_id: typing.Any = None,
    max_norm: float | None = None,
    name: str | None = None,
    training: bool = True,
    output_dtype: typing.Any = None,
    padding_idx: int | None = None,
    tables: typing.Any = None,
) -> typing.Any:
    """Looks up sparse ids of any rank, pools over the last dimension, and fills empty rows with a default key.

    Source: `tf.nn.safe_embedding_lookup_sparse`. Unlike there, every id is valid: negative ids are keys and are kept. A row without
    entries is zeros and trains no key, unless `default_id` is given.

    Args:
      variable: an embedding variable.
      sp_ids: SparseTensor of integers [d_0, ..., d_n], indices in row-major order; or a RaggedTensor [batch, (any)].
      sp_weights: floats with the same indices as sp_ids, in the same type of tensor. None: all weights are 1. Entries with a weight
        <= 0 are dropped, unless the combiner is "sum".
      combiner, max_norm, name, training, output_dtype, padding_idx, tables: see embedding_lookup_sparse.
      default_id: one integer: the key whose embedding an empty row gets and trains. A row of padding is empty. None: zeros.

    Returns:
      [d_0, ..., d_(n-1), embedding_dim], in output_dtype.

    Raises:
      TypeError, ValueError: as embedding_lookup_sparse; default_id is not one integer, or is given with tables.
      tf.errors.InvalidArgumentError: default_id is padding_idx.
    """
    variable = one_variable(variable)
    if default_id is not None and tables is not None:
        raise ValueError(
            f"embedding variable '{variable.variable_name}': default_id: expected None with tables, found {default_id!r}: it has no "
            "table number; fill empty rows before the lookup"
        )
    output_dtype = output_type(variable, output_dtype)
    padding_key = _padding_key(variable, padding_idx)
    accessed(variable)
    sp_ids, sp_weights = from_ragged(sp_ids, sp_weights)
    check_sparse(sp_ids, sp_weights)
    combiner = combiner or "mean"
    with tf.name_scope(name or "embedding_lookup"):
        shape = sp_ids.dense_shape
        rank = shape.shape.num_elements()
        keys = as_keys(variable, sp_ids.values)
        weights = None if sp_weights is None else tf.cast(sp_weights.values, tf.float32)
        if rank == 2:
            rows, batch = sp_ids.indices[:, 0], shape[0]
        else:
            batch = tf.reduce_prod(shape[:-1])
            flat = tf.sparse.reshape(
                tf.SparseTensor(sp_ids.indices, keys, shape), tf.stack([batch, shape[-1]])
            )
            rows = flat.indices[:, 0]
        if weights is not None:
            weights = one_a_key(weights, keys)  # before a mask of weights would choose among keys
        tables = table_numbers.checked(variable, keys, tables)
        keys, rows, weights, *tables = _without_padding(padding_key, keys, rows, weights, *tables)
        if weights is not None and combiner != "sum":
            kept = weights > 0
            keys, rows, weights, *tables = (
                tf.boolean_mask(x, kept) for x in (keys, rows, weights, *tables)
            )
        if default_id is not None:
            default_key = one_key(
                as_keys(variable, default_id, "default_id"),
                f"embedding variable '{variable.variable_name}': default_id",
            )
            if padding_key is not None:
                default_key = _other_than_padding(default_key, padding_key, variable)
            keys, rows, weights = fill_empty_rows(keys, rows, weights, batch, default_key)
        pooled = _pool(variable, keys, rows, weights, batch, combiner, max_norm, training, tables)
        pooled = as_type(pooled, output_dtype)
        if rank == 2:
            return pooled
        pooled = tf.reshape(pooled, tf.concat([shape[:-1], [variable.embedding_dim]], 0))
        pooled.set_shape(
            [None] * (rank - 1) + [variable.embedding_dim] if rank is not None else None
        )
        return pooled


def _other_than_padding(default_key, padding_key, variable):
    """A default key, with a check that it is not padding."""
    where = f"embedding variable '{variable.variable_name}': default_id: expected another id than padding_idx"
    check = tf.debugging.assert_none_equal(
        default_key, tf.constant(padding_key, tf.int64), message=where
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(default_key)


def one_key(ids, what):
    """A tensor with one integer, as a scalar.

    Raises:
      ValueError: its static shape is not a scalar.
    """
    if ids.shape.rank not in (None, 0):
        raise ValueError(f"{what}: expected one key, found shape {ids.shape}")
    return tf.reshape(ids, [])


def fill_empty_rows(keys, rows, weights, batch, default_key):
    """Adds one entry to each row without entries: the default key, with weight 1.

    TensorFlow's op of the same name is not used: it ends the process if a dense shape is too large for memory.

    Args:
      keys: integers [n].
      rows: int64 [n], nondecreasing, below batch.
      weights: floats [n] or None.
      batch: int64 scalar.
      default_key: scalar of the dtype of keys.

    Returns:
      (keys, rows, weights or None) with the added entries, in order of rows.

    Raises:
      tf.errors.InvalidArgumentError, when run: rows are out of order or out of range.
      tf.errors.ResourceExhaustedError, when run: memory cannot hold that many rows.
    """
    rows, entries = ops.multitier_fill_empty_rows(rows, batch)
    keys = tf.gather(tf.concat([keys, default_key[None]], 0), entries)
    if weights is not None:
        weights = tf.gather(tf.concat([weights, tf.ones([1], weights.dtype)], 0), entries)
    return keys, rows, weights


# ---- TensorFlow's own lookups, for embedding variables

_Params = typing.Union[
    EmbeddingVariable,
    PartitionedEmbeddingVariable,
    typing.List[typing.Union[EmbeddingVariable, PartitionedEmbeddingVariable]],
]
lookup_routes.route(
    _Params, embedding_lookup, embedding_lookup_sparse, safe_embedding_lookup_sparse
)


def _refuse_ragged(
    embedding_weights: _Params,
    sparse_ids: tf.RaggedTensor,
    sparse_weights=None,
    combiner="mean",
    default_id=None,
    name=None,
    partition_strategy="div",
    max_norm=None,
    allow_fast_lookup=False,
):
    raise AssertionError(
        "never called: TensorFlow's own handler of ragged ids matches the same arguments"
    )


# TensorFlow has its own handler of ragged ids for the v1 function. It would drop negative ids and train key 0 for empty rows. If
# two handlers match a call, TensorFlow refuses the call and prints the names of the handlers. This handler is the second one; its
# name is the message that the user reads.
_refuse_ragged.__qualname__ = (
    "tf_multitier: tf.compat.v1.nn.safe_embedding_lookup_sparse takes no RaggedTensor for an embedding variable, use "
    "tf.nn.safe_embedding_lookup_sparse of TensorFlow 2 or tf_multitier.lookup.safe_embedding_lookup_sparse,"
)
tf.experimental.dispatch_for_api(tf.compat.v1.nn.safe_embedding_lookup_sparse)(_refuse_ragged)

gradients.register()

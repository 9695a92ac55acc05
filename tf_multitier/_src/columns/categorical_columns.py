"""Categorical columns over embedding variables. TensorFlow's own dense columns wrap them unchanged.

A categorical column turns a feature into ids. These columns have no number of buckets, because
every 64-bit integer is a key of an embedding variable.

How TensorFlow's dense column gets an embedding variable:

1. It reads `_num_buckets` of the categorical column. Ours returns 0 and arms the current variable
   scope.
2. In the same scope it calls `get_variable` with that many rows. If this call asks for 0 rows, under
   a name that columns give their variables, the armed scope makes an embedding variable.
3. After that one call the scope is as before, whatever the call asked for.

`linear_model` makes its variables in another way: see `prepare_linear_weights`.

Threads: one thread at a time builds a graph, as everywhere in TensorFlow.
"""

from __future__ import annotations

import collections
import functools
import threading
import typing

import tensorflow as tf

from tf_multitier import options
from tf_multitier._src import patches
from tf_multitier._src.execution.graph_state import refuse_eager
from tf_multitier._src.tensorflow.internals import constant_value_as_shape
from tf_multitier._src.tensorflow.internals import feature_column_v1
from tf_multitier._src.tensorflow.internals import feature_column_v2
from tf_multitier._src.variable.variable_scope import get_embedding_variable

_stock = tf.compat.v1.feature_column

# Strings become ids in [0, 2**63 - 1).
_HASH_BUCKETS = 2**63 - 1

# Default of ignore_value: drop what TensorFlow drops from dense features, -1 and "".
_TENSORFLOW_PADDING = object()


def categorical_column_with_embedding(
    key: str,
    dtype: typing.Any = tf.string,
    partition_num: int | None = None,
    ev_option: typing.Any = None,
    ignore_value: typing.Any = _TENSORFLOW_PADDING,
) -> typing.Any:
    """A categorical column whose ids are keys of an embedding variable. It has no vocabulary and no bucket count.

    Source: DeepRec's `tf.feature_column.categorical_column_with_embedding`. Unlike there, every
    int64 is a valid id. The column can be used in `embedding_column`, `shared_embedding_columns`,
    `weighted_categorical_column`, `crossed_column` and `linear_model`, but not in
    `indicator_column`.

    The feature is a `SparseTensor`, or a dense tensor [batch] or [batch, n]. In a SparseTensor every
    id counts, also -1. From a dense tensor, `ignore_value` is dropped as padding.

    Strings are hashed to 64 bits (`tf.strings.to_hash_bucket_fast` with 2**63 - 1 buckets). So a
    string has the same id in every process and release.

    Args:
      key: name of the feature in `features`, and of the column.
      dtype: dtype of the feature: tf.string, or an integer type whose values are the ids. tf.uint64: the variable has uint64
        keys; of an int64 feature, as tf.Example has them, the 64 bits count.
      partition_num: number of partitions of the variable. None: the variable scope's partitioner,
        or one partition.
      ev_option: an `EmbeddingVariableOption`, or None for the defaults. For embeddings, an
        initializer in its `InitializerOption` takes precedence over that of the dense column.
        `linear_model` starts its weights at 0, as TensorFlow does.
      ignore_value: the value that is dropped from dense features. Default: TensorFlow's, -1 or "".
        With dtype tf.uint64, -1 of an int64 feature is dropped, too, though its bits are the key 2**64 - 1: None keeps it. None
        drops nothing. It has no effect on sparse features.

    Returns:
      A categorical column.

    Raises:
      ValueError: `key` is not a string, `dtype` is neither string nor integer, or `partition_num`
        is below 1.
    """
    dtype = tf.as_dtype(dtype)
    if not isinstance(key, str) or not key:
        raise ValueError(f"key: expected a non-empty string, found {key!r}")
    if dtype != tf.string and not dtype.is_integer:
        raise ValueError(
            f"column {key!r}: dtype: expected tf.string or an integer type, found {dtype.name}"
        )
    if partition_num is not None and partition_num < 1:
        raise ValueError(
            f"column {key!r}: partition_num: expected at least 1, found {partition_num}"
        )
    return EmbeddingCategoricalColumn(key, dtype, partition_num, ev_option, ignore_value)


def sequence_categorical_column_with_embedding(
    key: str,
    dtype: typing.Any = tf.string,
    partition_num: int | None = None,
    ev_option: typing.Any = None,
    ignore_value: typing.Any = _TENSORFLOW_PADDING,
) -> typing.Any:
    """`categorical_column_with_embedding` for features with a sequence of ids per example.

    Use it in `embedding_column` or `shared_embedding_columns`, with `sequence_input_layer`. The
    feature is a `SparseTensor` [batch, time] or [batch, time, ids per step], or a dense tensor
    [batch, time] with padding at the end.

    Args and Raises: see `categorical_column_with_embedding`.

    Returns:
      TensorFlow's sequence column over one of ours.
    """
    return feature_column_v2.SequenceCategoricalColumn(
        categorical_column_with_embedding(key, dtype, partition_num, ev_option, ignore_value)
    )


class EmbeddingCategoricalColumn(
    feature_column_v1._CategoricalColumn,
    collections.namedtuple(
        "EmbeddingCategoricalColumn", ("key", "dtype", "partition_num", "ev_option", "ignore_value")
    ),
):
    """The column that `categorical_column_with_embedding` returns. It is immutable and holds no tensor or variable."""

    def __hash__(self):  # options need not be hashable
        return hash((self.key, self.dtype, self.partition_num))

    def __eq__(self, other):
        return isinstance(other, EmbeddingCategoricalColumn) and tuple(self) == tuple(other)

    def __ne__(self, other):
        return not self == other

    @property
    def _is_v2_column(self):
        return False  # Keras' DenseFeatures would make a dense variable: let it refuse

    @property
    def name(self):
        return self.key

    @property
    def parse_example_spec(self):
        """`{key: VarLenFeature}`. Integers are read as int64, the only integer type of tf.Example."""
        return {self.key: tf.io.VarLenFeature(tf.string if self.dtype == tf.string else tf.int64)}

    @property
    def _parse_example_spec(self):
        return self.parse_example_spec

    @property
    def _num_buckets(self):
        if not tf.executing_eagerly():
            _asked.column = self
            _arm(tf.compat.v1.get_variable_scope())
        return 0

    @property
    def num_buckets(self):
        """NotImplementedError. TensorFlow's newer columns, which are not supported, read this property."""
        raise NotImplementedError(
            f"column {self.key!r} takes every 64-bit id and has no number of buckets: use it with "
            "input_layer, linear_model or sequence_input_layer; tf.feature_column."
            "shared_embeddings and Keras' DenseFeatures are not supported"
        )

    def _transform_feature(self, inputs):
        """The feature as a SparseTensor of int64 ids, or uint64 ids if that is the column's dtype."""
        feature = inputs.get(self.key)
        if (feature.dtype == tf.string) != (self.dtype == tf.string) or not (
            feature.dtype == tf.string or feature.dtype.is_integer
        ):
            raise ValueError(
                f"column {self.key!r}: expected {self.dtype.name} features, "
                f"found {feature.dtype.name}"
            )
        if not isinstance(feature, tf.SparseTensor):
            feature = self._to_sparse(feature)
        if self.dtype == tf.string:
            ids = tf.strings.to_hash_bucket_fast(feature.values, _HASH_BUCKETS, name="hash")
        elif self.dtype == tf.uint64:
            # The only integers of tf.Example are int64: a uint64 is there as its bits.
            ids = feature.values
            as_bits = ids.dtype in (tf.int64, tf.uint64)
            ids = tf.bitcast(ids, tf.uint64) if as_bits else tf.cast(ids, tf.uint64)
        else:
            ids = tf.cast(feature.values, tf.int64)
        return tf.SparseTensor(feature.indices, ids, feature.dense_shape)

    def _to_sparse(self, feature):
        if self.ignore_value is _TENSORFLOW_PADDING:
            padding = "" if self.dtype == tf.string else -1
        else:
            padding = self.ignore_value
        if padding is None or (padding == -1 and feature.dtype.is_unsigned):
            kept = tf.ones_like(feature, tf.bool)
        else:
            kept = tf.not_equal(feature, tf.constant(padding, feature.dtype))
        indices = tf.where(kept)
        return tf.SparseTensor(
            indices, tf.gather_nd(feature, indices), tf.shape(feature, out_type=tf.int64)
        )

    def _get_sparse_tensors(self, inputs, weight_collections=None, trainable=None):
        del weight_collections, trainable  # ids need no variables
        refuse_eager(f"column {self.key!r} of an embedding variable")
        return feature_column_v1._CategoricalColumn.IdWeightPair(inputs.get(self), None)


def weighted_categorical_column(
    categorical_column: typing.Any, weight_feature_key: str, dtype: typing.Any = tf.float32
) -> typing.Any:
    """TensorFlow's `weighted_categorical_column`, with a fix for dense weights over our columns.

    Over TensorFlow's own columns it is TensorFlow's function. Over ours, each id gets the weight at
    its place in a dense weight tensor, zero included. TensorFlow's column drops zero weights, which
    shifts the weights that follow.

    Args:
      categorical_column: a categorical column.
      weight_feature_key: name of the weights in `features`. They are a SparseTensor with the
        indices of the ids, or a dense tensor of the shape of the ids. For sparse ids they may also
        be a dense tensor of another shape with one element per id, in the order of the ids.
      dtype: dtype of the weights, floating or integer.

    Returns:
      A categorical column named `<key>_weighted_by_<weight_feature_key>`.

    Raises:
      ValueError: `dtype` does not convert to float.
    """
    column = _stock.weighted_categorical_column(categorical_column, weight_feature_key, dtype)
    if isinstance(categorical_column, EmbeddingCategoricalColumn):
        return WeightedEmbeddingCategoricalColumn(*column)
    return column


class WeightedEmbeddingCategoricalColumn(feature_column_v2.WeightedCategoricalColumn):
    """The column that `weighted_categorical_column` returns over one of our columns."""

    def _get_sparse_tensors(self, inputs, weight_collections=None, trainable=None):
        refuse_eager(f"column {self.name!r} of an embedding variable")
        return super()._get_sparse_tensors(inputs, weight_collections, trainable)

    def _transform_feature(self, inputs):
        ids = inputs.get(self.categorical_column)
        weights = inputs.get(self.weight_feature_key)
        if weights.dtype.base_dtype != self.dtype:
            raise ValueError(
                f"column {self.name!r}: expected {self.dtype.name} weights, "
                f"found {weights.dtype.name}"
            )
        if isinstance(weights, tf.SparseTensor):
            values = weights.values
            indices, shape = weights.indices, weights.dense_shape
        else:
            ids_are_dense = not isinstance(inputs.get(self.categorical_column.key), tf.SparseTensor)
            values = (
                tf.gather_nd(weights, ids.indices)
                if ids_are_dense
                else _weights_of_sparse_ids(weights, ids)
            )
            indices, shape = ids.indices, ids.dense_shape
        return ids, tf.SparseTensor(indices, tf.cast(values, tf.float32), shape)


def _weights_of_sparse_ids(weights, ids):
    """The weights of n sparse ids, as [n].

    If `weights` has the shape of the ids, each id has the weight at its place. Otherwise `weights` has one element per id, in order.
    """
    shape = constant_value_as_shape(ids.dense_shape)
    if not weights.shape.is_compatible_with(shape):
        return tf.reshape(weights, [-1])
    at_places = lambda: tf.gather_nd(weights, ids.indices)
    if weights.shape.is_fully_defined() and shape.is_fully_defined():
        return at_places()
    same = tf.reduce_all(tf.equal(tf.shape(weights, tf.int64), ids.dense_shape))
    return tf.cond(same, at_places, lambda: tf.reshape(weights, [-1]))


# --- From a dense variable of 0 rows to an embedding variable ------------------------------------


def embedding_base(column):
    """The `EmbeddingCategoricalColumn` under weighted and sequence columns, or None."""
    while not isinstance(column, EmbeddingCategoricalColumn):
        column = getattr(column, "categorical_column", None)
        if column is None:
            return None
    return column


def prepare_linear_weights(column, scope):
    """Arms `scope` if `column` is ours. Called before `linear_model` makes the weights of `column`.

    `linear_model` captures the scope of its variable before it reads `_num_buckets` of the column.
    So arming at that read would be too late; see patches.py.
    """
    base = embedding_base(column)
    if base is not None:
        refuse_eager(f"column {base.key!r} of an embedding variable")
        _arm(scope)


# .column: the column whose `_num_buckets` this thread read last. A request for 0 rows belongs to that column.
_asked = threading.local()


# Names that TensorFlow's dense columns and linear_model give the variable of a column.
_COLUMN_VARIABLES = ("embedding_weights", "weights")


class _ArmedGetter:
    """A custom getter that replaces a variable scope's own getter for one call, and then calls that getter."""

    def __init__(self, scope):
        self._scope = scope
        self._outer = (
            scope.custom_getter
        )  # may be an armed getter too, if no variable was made since

    def __call__(self, getter, *args, **kwargs):
        if self._scope.custom_getter is self:
            self._scope.set_custom_getter(self._outer)
        shape, name = kwargs.get("shape"), args[0] if args else kwargs.get("name")
        if (
            name.rpartition("/")[2] in _COLUMN_VARIABLES
            and shape is not None
            and tf.TensorShape(shape)[:1].as_list() == [0]
        ):
            getter = functools.partial(_embedding_weights, _asked.column)
        if self._outer is not None:
            return self._outer(getter, *args, **kwargs)
        return getter(*args, **kwargs)


def _arm(scope):
    """Makes the next `get_variable` of `scope` create an embedding variable if it asks for 0 rows."""
    scope.set_custom_getter(_ArmedGetter(scope))


def _embedding_weights(
    column,
    name,
    shape=None,
    initializer=None,
    reuse=None,
    trainable=True,
    collections=None,
    partitioner=None,
    **unused_kwargs,
):
    """Creates the embedding variable with the absolute name `name`. Arguments are those that TensorFlow passes to a getter."""
    ev_option = column.ev_option
    if name.endswith("/weights"):  # linear_model
        ev_option = _without_initializer(ev_option)
    if column.partition_num is not None:
        partitioner = tf.compat.v1.fixed_size_partitioner(column.partition_num)
    root = tf.compat.v1.VariableScope(reuse=reuse, name="")
    with tf.compat.v1.variable_scope(root, auxiliary_name_scope=False):
        variable = get_embedding_variable(
            name,
            embedding_dim=tf.TensorShape(shape).as_list()[1],
            key_dtype=tf.uint64 if column.dtype == tf.uint64 else tf.int64,
            initializer=initializer,
            trainable=trainable,
            collections=collections,
            partitioner=partitioner,
            ev_option=ev_option,
        )
    variable.lookup_dtype = tf.float32  # layers of columns add and concatenate float32
    return variable


def _without_initializer(ev_option):
    """A copy of the options without an initializer, so that the caller's initializer applies."""
    if ev_option is None or ev_option.init_option.initializer is None:
        return ev_option
    init = ev_option.init_option
    return options.EmbeddingVariableOption(
        evict_option=ev_option.evict_option,
        filter_option=ev_option.filter_option,
        storage_option=ev_option.storage_option,
        init_option=options.InitializerOption(
            default_value_dim=init.default_value_dim,
            default_value_no_permission=init.default_value_no_permission,
            eval_initializer=init.eval_initializer,
        ),
        score=ev_option.score,
        value_dtype=ev_option.value_dtype,
        stochastic_rounding=ev_option.stochastic_rounding,
    )


patches.on_linear_weights(prepare_linear_weights)

"""Feature columns that only DeepRec has, and its arguments of TensorFlow's columns.

    categorical_column_with_multihash           ids of a multihash variable (multihash.py)
    categorical_column_with_adaptive_embedding  ids of two tables: a static variable for cold ids, an embedding variable for hot ones

Both need `embedding_column` and `input_layer` of this module.
"""

import collections
import math
import numbers

import tensorflow as tf

from tf_multitier import feature_column as fc
from tf_multitier._src.columns import fused_linear_model
from tf_multitier._src.execution.graph_state import refuse_eager
from tf_multitier._src.lookup import multihash
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.tensorflow.internals import feature_column_v1
from tf_multitier._src.variable.variable_scope import get_embedding_variable

_v1 = tf.compat.v1

COLUMNS = ("categorical_column_with_adaptive_embedding", "categorical_column_with_multihash")


# ---- Categorical columns


class _Categorical(feature_column_v1._CategoricalColumn):
    """Base class of both: ids as in `categorical_column_with_embedding`."""

    _is_v2_column = False

    @property
    def ids(self):
        return fc.categorical_column_with_embedding(self.key, self.dtype)

    @property
    def name(self):
        return self.key

    @property
    def _parse_example_spec(self):
        return self.ids.parse_example_spec

    @property
    def _num_buckets(self):
        raise NotImplementedError(
            f"column {self.key!r} has no number of buckets: use it under "
            "tf_multitier.deeprec.columns.embedding_column"
        )

    def _transform_feature(self, inputs):
        return inputs.get(self.ids)

    def _get_sparse_tensors(self, inputs, weight_collections=None, trainable=None):
        del weight_collections, trainable  # ids need no variables
        return feature_column_v1._CategoricalColumn.IdWeightPair(inputs.get(self), None)


class MultiHashCategoricalColumn(
    _Categorical,
    collections.namedtuple(
        "MultiHashCategoricalColumn", ("key", "dims", "operation", "dtype", "partition_num")
    ),
):
    """The column that `categorical_column_with_multihash` returns."""


class AdaptiveCategoricalColumn(
    _Categorical,
    collections.namedtuple(
        "AdaptiveCategoricalColumn",
        ("key", "hash_bucket_size", "dtype", "partition_num", "ev_option"),
    ),
):
    """The column that `categorical_column_with_adaptive_embedding` returns."""

    def __hash__(self):  # options need not be hashable
        return hash(self[:-1])

    @property
    def mask_key(self):
        """The name in `features` of the mask of hot examples."""
        return f"{self.key}/adaptive_mask"


def categorical_column_with_multihash(
    key, dims, complementary_strategy="Q-R", operation="concat", dtype=tf.int64, partition_num=None
):
    """A categorical column of ids of a multihash variable. dims[0] * dims[1] ids have an embedding of their own.

    Use it in `embedding_column` of this module, with a tuple as `dimension`: the dim of the quotient table and that of the remainder
    table. Source: DeepRec's function of that name.

    Args:
      key: name of the feature, a SparseTensor or dense tensor of integers, and of the column.
      dims: (rows of the quotient table, rows of the remainder table).
      complementary_strategy, operation: see `get_multihash_variable`.
      dtype: an integer type.
      partition_num: number of partitions of each table, or None.

    Raises:
      ValueError: an unknown strategy or operation, or bad dims or dtype.
    """
    where = f"column {key!r}"
    multihash.check_kind(where, complementary_strategy, operation)
    if (
        not isinstance(dims, (list, tuple))
        or len(dims) != 2
        or not all(isinstance(n, numbers.Integral) and n > 0 for n in dims)
    ):
        raise ValueError(
            f"{where}: dims: expected two numbers of rows, each at least 1, found {dims!r}"
        )
    dtype = tf.as_dtype(dtype)
    if not dtype.is_integer:
        raise ValueError(f"{where}: dtype: expected an integer type, found {dtype.name}")
    return MultiHashCategoricalColumn(key, tuple(dims), operation, dtype, partition_num)


def categorical_column_with_adaptive_embedding(
    key, hash_bucket_size, dtype=tf.string, partition_num=None, ev_option=None
):
    """A categorical column of ids of a static variable and an embedding variable.

    `input_layer(..., adaptive_mask_tensors={key: mask})` marks the hot examples. Their ids use and train the embedding variable. The
    ids of other examples use row id mod `hash_bucket_size` of the static variable. A key's row in the embedding variable starts from
    the initializer; in DeepRec, it starts from the static variable's row. Source: DeepRec's function of that name.

    Args:
      key, dtype, partition_num, ev_option: see `categorical_column_with_embedding`.
      hash_bucket_size: rows of the static variable, at least 1.

    Raises:
      ValueError: hash_bucket_size is below 1; or see `categorical_column_with_embedding`.
    """
    if hash_bucket_size < 1:
        raise ValueError(
            f"column {key!r}: hash_bucket_size: expected at least 1, found {hash_bucket_size}"
        )
    ids = fc.categorical_column_with_embedding(key, dtype, partition_num, ev_option)
    return AdaptiveCategoricalColumn(
        key, int(hash_bucket_size), ids.dtype, partition_num, ev_option
    )


# ---- Dense columns


class _Dense(
    feature_column_v1._DenseColumn,
    collections.namedtuple(
        "_Dense",
        ("categorical_column", "dimension", "combiner", "initializer", "max_norm", "trainable"),
    ),
):
    """Base class of both dense columns."""

    def __hash__(self):
        return hash(self[:3])

    @property
    def name(self):
        return f"{self.categorical_column.name}_embedding"

    @property
    def _parse_example_spec(self):
        return self.categorical_column._parse_example_spec

    def _transform_feature(self, inputs):
        return inputs.get(self.categorical_column)

    def _partitioner(self):
        parts = self.categorical_column.partition_num
        return None if parts is None else _v1.fixed_size_partitioner(parts)


class MultiHashEmbeddingColumn(_Dense):
    """Pooled rows of a multihash variable."""

    @property
    def _variable_shape(self):
        return tf.TensorShape(
            [
                sum(self.dimension)
                if self.categorical_column.operation == "concat"
                else self.dimension[0]
            ]
        )

    def _get_dense_tensor(self, inputs, weight_collections=None, trainable=None):
        column = self.categorical_column
        table = multihash.get_multihash_variable(
            "embedding_weights",
            list(zip(column.dims, self.dimension)),
            operation=column.operation,
            initializer=self.initializer,
            trainable=self.trainable and trainable is not False,
            collections=weight_collections,
            partitioner=self._partitioner(),
        )
        return multihash.embedding_lookup_sparse(
            table, inputs.get(self), None, self.combiner, self.max_norm
        )


class AdaptiveEmbeddingColumn(_Dense):
    """Pooled rows of an embedding variable (hot examples) and of a static variable (other examples)."""

    @property
    def _variable_shape(self):
        return tf.TensorShape([self.dimension])

    def _get_dense_tensor(self, inputs, weight_collections=None, trainable=None):
        refuse_eager(f"column {self.name!r} of an embedding variable")
        column, trained = self.categorical_column, self.trainable and trainable is not False
        sp_ids = inputs.get(self)
        static = _v1.get_variable(
            "hash_embedding_weights",
            [column.hash_bucket_size, self.dimension],
            initializer=self.initializer,
            trainable=trained,
            collections=weight_collections,
        )
        table = get_embedding_variable(
            "embedding_weights",
            self.dimension,
            initializer=self.initializer,
            trainable=trained,
            collections=weight_collections,
            partitioner=self._partitioner(),
            ev_option=column.ev_option,
        )
        try:
            mask = tf.reshape(inputs.get(column.mask_key), [-1])
        except ValueError:
            raise ValueError(
                f"column {column.key!r}: mask: expected a tensor that marks the hot examples, found none: "
                f"input_layer(..., adaptive_mask_tensors={{{column.key!r}: mask}})"
            ) from None
        is_hot = tf.cast(tf.not_equal(tf.gather(mask, sp_ids.indices[:, 0]), 0), tf.int32)
        cold, hot = tf.dynamic_partition(sp_ids.values, is_hot, 2)
        places = tf.dynamic_partition(tf.range(tf.size(sp_ids.values)), is_hot, 2)
        rows = [
            _v1.nn.embedding_lookup(
                static, cold % column.hash_bucket_size, partition_strategy="div"
            ),
            tf.nn.embedding_lookup(table, hot),
        ]
        values = tf.dynamic_stitch(places, rows)
        values = tf.concat(
            [values, tf.zeros([1, self.dimension])], 0
        )  # TensorFlow looks up an id for empty rows
        positions = tf.SparseTensor(
            sp_ids.indices, tf.range(tf.size(sp_ids.values, tf.int64)), sp_ids.dense_shape
        )
        pooled = tf.nn.safe_embedding_lookup_sparse(
            values, positions, combiner=self.combiner, max_norm=self.max_norm
        )
        pooled.set_shape([None, self.dimension])
        return pooled


# ---- TensorFlow's functions with DeepRec's arguments


def embedding_column(
    categorical_column,
    dimension,
    combiner="mean",
    initializer=None,
    ckpt_to_load_from=None,
    tensor_name_in_ckpt=None,
    max_norm=None,
    trainable=True,
    coalesced_scope=None,
    do_fusion=False,
):
    """`tf.feature_column.embedding_column`, also for DeepRec's own categorical columns.

    Args:
      dimension: elements of the embedding. For a multihash column a tuple of two, which must be equal for "add" and "mul".
      coalesced_scope: must be None.
      do_fusion: has no effect. A lookup of an embedding variable is always one op.
      others: see TensorFlow's function.

    Raises:
      ValueError: the reasons of TensorFlow's function, a dimension that does not fit the column, or ckpt_to_load_from with one of
        DeepRec's own columns.
    """
    del do_fusion
    if coalesced_scope is not None:
        raise ValueError(
            f"embedding_column: coalesced_scope: expected None, found {coalesced_scope!r}: use "
            "tf.feature_column.group_embedding_column_scope"
        )
    if not isinstance(categorical_column, _Categorical):
        return fc.embedding_column(
            categorical_column,
            dimension,
            combiner,
            initializer,
            ckpt_to_load_from,
            tensor_name_in_ckpt,
            max_norm,
            trainable,
        )
    where = f"embedding_column over {categorical_column.key!r}"
    for name, value in (
        ("ckpt_to_load_from", ckpt_to_load_from),
        ("tensor_name_in_ckpt", tensor_name_in_ckpt),
    ):
        if value is not None:
            raise ValueError(
                f"{where}: {name}: expected None, found {value!r}: restore the variable with "
                "tf.compat.v1.train.Saver"
            )
    is_dim = lambda n: isinstance(n, numbers.Integral) and n > 0
    if isinstance(categorical_column, AdaptiveCategoricalColumn):
        if not is_dim(dimension):
            raise ValueError(
                f"{where}: dimension: expected an integer, at least 1, found {dimension!r}"
            )
        kind, total = AdaptiveEmbeddingColumn, dimension
    else:
        if (
            not isinstance(dimension, (list, tuple))
            or len(dimension) != 2
            or not all(map(is_dim, dimension))
        ):
            raise ValueError(
                f"{where}: dimension: expected two integers, each at least 1, found {dimension!r}"
            )
        if categorical_column.operation != "concat" and dimension[0] != dimension[1]:
            raise ValueError(
                f"{where}: dimension: expected equal ones for operation {categorical_column.operation!r}, found {dimension!r}"
            )
        kind, dimension, total = MultiHashEmbeddingColumn, tuple(dimension), sum(dimension)
    initializer = initializer or _v1.truncated_normal_initializer(stddev=1 / math.sqrt(total))
    return kind(categorical_column, dimension, combiner, initializer, max_norm, trainable)


def shared_embedding_columns(
    categorical_columns,
    dimension,
    combiner="mean",
    initializer=None,
    shared_embedding_collection_name=None,
    ckpt_to_load_from=None,
    tensor_name_in_ckpt=None,
    max_norm=None,
    trainable=True,
    do_fusion=False,
):
    """`tf.feature_column.shared_embedding_columns`. `do_fusion` has no effect."""
    del do_fusion
    return fc.shared_embedding_columns(
        categorical_columns,
        dimension,
        combiner=combiner,
        initializer=initializer,
        shared_embedding_collection_name=shared_embedding_collection_name,
        ckpt_to_load_from=ckpt_to_load_from,
        tensor_name_in_ckpt=tensor_name_in_ckpt,
        max_norm=max_norm,
        trainable=trainable,
    )


def input_layer(
    features,
    feature_columns,
    weight_collections=None,
    trainable=True,
    cols_to_vars=None,
    cols_to_output_tensors=None,
    adaptive_mask_tensors=None,
):
    """`tf.feature_column.input_layer`, with masks for adaptive columns.

    Args:
      adaptive_mask_tensors: {key of an adaptive column: integers [batch]}. Examples with a number other than 0 are hot.
      others: see TensorFlow's function.
    """
    features = dict(features)
    feature_columns = (
        [feature_columns]
        if isinstance(feature_columns, feature_column_v1._FeatureColumn)
        else list(feature_columns)
    )
    for column in feature_columns:
        base = getattr(column, "categorical_column", None)
        if isinstance(base, AdaptiveCategoricalColumn) and base.key in (
            adaptive_mask_tensors or {}
        ):
            features[base.mask_key] = adaptive_mask_tensors[base.key]
    return fc.input_layer(
        features,
        feature_columns,
        weight_collections,
        trainable,
        cols_to_vars,
        cols_to_output_tensors,
    )


def linear_model(
    features,
    feature_columns,
    units=1,
    sparse_combiner="sum",
    weight_collections=None,
    trainable=True,
    cols_to_vars=None,
    do_fusion=False,
):
    """`tf.feature_column.linear_model`.

    Args:
      do_fusion: whether the weights of all categorical columns are looked up by one op: faster; results are the same up to rounding.
      others: as TensorFlow's.
    """
    is_fused = boolean("linear_model: do_fusion", do_fusion)
    make = fused_linear_model.linear_model if is_fused else fc.linear_model
    return make(
        features,
        feature_columns,
        units,
        sparse_combiner,
        weight_collections,
        trainable,
        cols_to_vars,
    )

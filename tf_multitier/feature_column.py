"""Feature columns over embedding variables. The module also has TensorFlow's own columns, under their names.

A *categorical* column turns a feature into ids. Ours (`categorical_column_with_embedding`) has no
number of buckets, because every 64-bit integer is a key of an embedding variable. A *dense* column
turns ids into numbers. TensorFlow's own dense columns work unchanged, in TensorFlow's `input_layer`
and `linear_model`:

    ids = fc.categorical_column_with_embedding("item", dtype=tf.int64)
    net = tf.compat.v1.feature_column.input_layer(features, [
        fc.embedding_column(ids, dimension=16), fc.numeric_column("price")])

Variables are named as TensorFlow names them: `<input layer>/<key>_embedding/embedding_weights`,
`<linear model>/<key>/weights`.

categorical_columns.py has the categorical columns. column_groups.py has the layers, and the groups of columns that share a lookup.
"""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.columns.categorical_columns import categorical_column_with_embedding
from tf_multitier._src.columns.categorical_columns import embedding_base
from tf_multitier._src.columns.categorical_columns import sequence_categorical_column_with_embedding
from tf_multitier._src.columns.categorical_columns import weighted_categorical_column
from tf_multitier._src.columns.column_groups import group_embedding_column_scope
from tf_multitier._src.columns.column_groups import input_layer
from tf_multitier._src.columns.column_groups import sequence_input_layer

_stock = tf.compat.v1.feature_column

# TensorFlow's functions, unchanged. They accept our columns.
bucketized_column = _stock.bucketized_column
categorical_column_with_hash_bucket = _stock.categorical_column_with_hash_bucket
categorical_column_with_identity = _stock.categorical_column_with_identity
categorical_column_with_vocabulary_file = _stock.categorical_column_with_vocabulary_file
categorical_column_with_vocabulary_list = _stock.categorical_column_with_vocabulary_list
crossed_column = _stock.crossed_column
embedding_column = _stock.embedding_column
linear_model = _stock.linear_model
make_parse_example_spec = _stock.make_parse_example_spec
numeric_column = _stock.numeric_column
sequence_categorical_column_with_hash_bucket = _stock.sequence_categorical_column_with_hash_bucket
sequence_categorical_column_with_identity = _stock.sequence_categorical_column_with_identity
sequence_categorical_column_with_vocabulary_file = (
    _stock.sequence_categorical_column_with_vocabulary_file
)
sequence_categorical_column_with_vocabulary_list = (
    _stock.sequence_categorical_column_with_vocabulary_list
)
sequence_numeric_column = _stock.sequence_numeric_column

__all__ = [
    "bucketized_column",
    "categorical_column_with_embedding",
    "categorical_column_with_hash_bucket",
    "categorical_column_with_identity",
    "categorical_column_with_vocabulary_file",
    "categorical_column_with_vocabulary_list",
    "crossed_column",
    "embedding_column",
    "group_embedding_column_scope",
    "indicator_column",
    "input_layer",
    "linear_model",
    "make_parse_example_spec",
    "numeric_column",
    "sequence_categorical_column_with_embedding",
    "sequence_categorical_column_with_hash_bucket",
    "sequence_categorical_column_with_identity",
    "sequence_categorical_column_with_vocabulary_file",
    "sequence_categorical_column_with_vocabulary_list",
    "sequence_input_layer",
    "sequence_numeric_column",
    "shared_embedding_columns",
    "weighted_categorical_column",
]


def __dir__():
    return sorted(__all__)


def shared_embedding_columns(
    categorical_columns: typing.Any, dimension: int, *args: typing.Any, **kwargs: typing.Any
) -> list:
    """TensorFlow's `shared_embedding_columns`, with a check that our columns have equal options.

    All columns read and train one embedding variable.

    Args:
      categorical_columns: list of categorical columns of one kind. A weighted or sequence column
        has the kind of the column that it wraps.
      dimension: elements of the embedding, at least 1.
      *args, **kwargs: TensorFlow's arguments: combiner, initializer,
        shared_embedding_collection_name, ckpt_to_load_from, tensor_name_in_ckpt, max_norm,
        trainable, ...

    Returns:
      A list of dense columns in the order of `categorical_columns`.

    Raises:
      ValueError: our columns have different options; or for the reasons of TensorFlow's function.
    """
    categorical_columns = list(categorical_columns)
    ours = [base for base in map(embedding_base, categorical_columns) if base is not None]
    for column in ours[1:]:
        if (column.ev_option, column.partition_num) != (ours[0].ev_option, ours[0].partition_num):
            raise ValueError(
                f"shared embedding column {column.key!r}: expected ev_option and partition_num of {ours[0].key!r}, "
                f"{ours[0].ev_option!r} and {ours[0].partition_num}, found {column.ev_option!r} and "
                f"{column.partition_num}: pass the same objects"
            )
    return _stock.shared_embedding_columns(categorical_columns, dimension, *args, **kwargs)


def indicator_column(categorical_column: typing.Any) -> typing.Any:
    """TensorFlow's `indicator_column`. ValueError over our columns, which have no number of buckets."""
    base = embedding_base(categorical_column)
    if base is not None:
        raise ValueError(
            f"indicator_column: expected a column with a fixed number of ids, found {base.key!r}, which takes "
            "every 64-bit id: use embedding_column"
        )
    return _stock.indicator_column(categorical_column)

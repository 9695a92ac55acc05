"""The part of `tf.contrib` that DeepRec's embedding columns need: contrib's names for the columns of `tf.feature_column`.

TensorFlow 2 has no contrib. If a contrib column has an equivalent in `tf.feature_column`, these functions make the equivalent. So
their columns also work in `tf.feature_column.input_layer`, and variables have the names that `input_layer` gives them.
"""

import tensorflow as tf

from tf_multitier import feature_column as fc
from tf_multitier._src.variable.variable_scope import option_in_force

LAYERS = (
    "create_feature_spec_for_parsing",
    "embedding_column",
    "input_from_feature_columns",
    "real_valued_column",
    "safe_embedding_lookup_sparse",
    "shared_embedding_columns",
    "sparse_column_with_embedding",
    "sparse_column_with_hash_bucket",
    "sparse_column_wth_embedding",
    "weighted_sparse_column",
    "weighted_sum_from_feature_columns",
)
FEATURE_COLUMN = (
    "sequence_categorical_column_with_embedding",
    "sequence_categorical_column_with_hash_bucket",
    "sequence_categorical_column_with_identity",
    "sequence_categorical_column_with_vocabulary_file",
    "sequence_categorical_column_with_vocabulary_list",
    "sequence_input_layer",
    "sequence_numeric_column",
)
EMBEDDING_OPS = ("safe_embedding_lookup_sparse",)

globals().update({name: getattr(fc, name) for name in FEATURE_COLUMN})


def sparse_column_with_embedding(
    column_name,
    dtype=tf.string,
    partition_num=None,
    steps_to_live=None,
    init_data_source=None,
    ht_partition_num=1000,
    evconfig=None,
    ev_option=None,
):
    """DeepRec's `tf.contrib.layers` name for `tf.feature_column.categorical_column_with_embedding`.

    Args:
      column_name, dtype, partition_num: see there.
      steps_to_live: older form of `GlobalStepEvict`, in steps.
      init_data_source: must be None.
      ht_partition_num: has no effect.
      evconfig, ev_option: two names of the EmbeddingVariableOption. Give one of them.

    Raises:
      ValueError: both evconfig and ev_option, both steps_to_live and an evict_option, or init_data_source are given.
    """
    del ht_partition_num
    if init_data_source is not None:
        raise ValueError(
            f"column {column_name!r}: init_data_source: expected None, found {init_data_source!r}: restore "
            "the variable with tf.compat.v1.train.Saver"
        )
    if evconfig is not None and ev_option is not None:
        raise ValueError(
            f"column {column_name!r}: expected ev_option or evconfig, found both: they mean the same"
        )
    option = evconfig if ev_option is None else ev_option
    return fc.categorical_column_with_embedding(
        column_name, dtype, partition_num, option_in_force(column_name, option, steps_to_live)
    )


# The spelling of DeepRec's manual.
sparse_column_wth_embedding = sparse_column_with_embedding


def sparse_column_with_hash_bucket(
    column_name, hash_bucket_size, combiner="sum", dtype=tf.string, hash_keys=None
):
    """`tf.feature_column.categorical_column_with_hash_bucket`. `combiner` has no effect; hash_keys must be None."""
    del combiner
    if hash_keys is not None:
        raise ValueError(
            f"column {column_name!r}: hash_keys: expected None, found {hash_keys!r}: it is not supported"
        )
    return fc.categorical_column_with_hash_bucket(column_name, hash_bucket_size, dtype)


def weighted_sparse_column(sparse_id_column, weight_column_name, dtype=tf.float32):
    """`tf.feature_column.weighted_categorical_column`."""
    return fc.weighted_categorical_column(sparse_id_column, weight_column_name, dtype)


def real_valued_column(
    column_name, dimension=1, default_value=None, dtype=tf.float32, normalizer=None
):
    """`tf.feature_column.numeric_column`."""
    return fc.numeric_column(column_name, (dimension,), default_value, dtype, normalizer)


def embedding_column(
    sparse_id_column,
    dimension,
    combiner="mean",
    initializer=None,
    ckpt_to_load_from=None,
    tensor_name_in_ckpt=None,
    max_norm=None,
    trainable=True,
    do_fusion=False,
):
    """`tf.feature_column.embedding_column`. `do_fusion` has no effect."""
    del do_fusion
    return fc.embedding_column(
        sparse_id_column,
        dimension,
        combiner,
        initializer,
        ckpt_to_load_from,
        tensor_name_in_ckpt,
        max_norm,
        trainable,
    )


def shared_embedding_columns(
    sparse_id_columns,
    dimension,
    combiner="mean",
    initializer=None,
    shared_embedding_name=None,
    ckpt_to_load_from=None,
    tensor_name_in_ckpt=None,
    max_norm=None,
    trainable=True,
    do_fusion=False,
):
    """`tf.feature_column.shared_embedding_columns`. `do_fusion` has no effect."""
    del do_fusion
    return fc.shared_embedding_columns(
        sparse_id_columns,
        dimension,
        combiner=combiner,
        initializer=initializer,
        shared_embedding_collection_name=shared_embedding_name,
        ckpt_to_load_from=ckpt_to_load_from,
        tensor_name_in_ckpt=tensor_name_in_ckpt,
        max_norm=max_norm,
        trainable=trainable,
    )


def create_feature_spec_for_parsing(feature_columns):
    """`tf.feature_column.make_parse_example_spec`."""
    return fc.make_parse_example_spec(feature_columns)


def input_from_feature_columns(
    columns_to_tensors, feature_columns, weight_collections=None, trainable=True, scope=None
):
    """`tf.feature_column.input_layer`, in a variable scope named `input_from_feature_columns` or `scope`."""
    with tf.compat.v1.variable_scope(scope, default_name="input_from_feature_columns"):
        return fc.input_layer(columns_to_tensors, feature_columns, weight_collections, trainable)


def weighted_sum_from_feature_columns(
    columns_to_tensors,
    feature_columns,
    num_outputs,
    weight_collections=None,
    trainable=True,
    scope=None,
):
    """`tf.feature_column.linear_model`, in a variable scope named `weighted_sum_from_feature_columns` or `scope`.

    Returns:
      (float32 [batch, num_outputs], {column: its variables}, the bias).
    """
    variables = {}
    with tf.compat.v1.variable_scope(scope, default_name="weighted_sum_from_feature_columns"):
        output = fc.linear_model(
            columns_to_tensors,
            feature_columns,
            num_outputs,
            "sum",
            weight_collections,
            trainable,
            variables,
        )
    return output, variables, variables.pop("bias")[0]


def safe_embedding_lookup_sparse(
    embedding_weights,
    sparse_ids,
    sparse_weights=None,
    combiner=None,
    default_id=None,
    name=None,
    partition_strategy="div",
    max_norm=None,
):
    """`tf.compat.v1.nn.safe_embedding_lookup_sparse`. The default combiner is "mean"."""
    return tf.compat.v1.nn.safe_embedding_lookup_sparse(
        embedding_weights,
        sparse_ids,
        sparse_weights,
        combiner or "mean",
        default_id,
        name,
        partition_strategy,
        max_norm,
    )

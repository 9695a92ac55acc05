"""linear_model over embedding variables, alone and together with a deep part."""

import numpy as np
import pytest
import tensorflow as tf
from column_util import count
from column_util import embedded
from column_util import ints
from column_util import only_variable
from column_util import rows_by_hand
from column_util import run
from column_util import train
from group_util import sparse

import tf_multitier
from tf_multitier import feature_column as fc

v1 = tf.compat.v1
stock = v1.feature_column


def test_linear_model_trains_weights_that_start_at_zero(session):
    option = tf_multitier.EmbeddingVariableOption(
        init_option=tf_multitier.InitializerOption(initializer=v1.ones_initializer())
    )
    features = {"a": sparse([[3, 3], [-1]]), "x": tf.constant([1.0, 2.0])}
    columns_to_variables = {}
    column = ints("a", ev_option=option)
    logits = stock.linear_model(
        features, [column, fc.numeric_column("x")], cols_to_vars=columns_to_variables
    )
    variable = only_variable()
    assert variable.variable_name == "linear_model/a/weights"
    assert columns_to_variables[column] == [variable]
    assert variable in v1.trainable_variables()
    np.testing.assert_array_equal(run(session, logits), [[0], [0]])
    train(session, -tf.reduce_sum(logits))  # a: 2 for id 3, 1 for -1; x: 3; bias: 2
    np.testing.assert_array_equal(session.run(logits), [[4 + 3 + 2], [1 + 6 + 2]])
    np.testing.assert_array_equal(rows_by_hand(session, variable, [3, -1, 4]), [[2], [1], [0]])


@pytest.mark.parametrize(
    "make", [fc.weighted_categorical_column, stock.weighted_categorical_column]
)
def test_linear_model_takes_weighted_and_partitioned_columns_and_several_units(session, make):
    ids = sparse([[3], [5]])
    weights = tf.SparseTensor(ids.indices, [2.0, 0.5], ids.dense_shape)
    logits = stock.linear_model(
        {"a": ids, "w": weights}, [make(ints("a", partition_num=2), "w")], units=2
    )
    assert only_variable().num_partitions == 2
    session.run(v1.global_variables_initializer())
    train(session, -tf.reduce_sum(logits))
    np.testing.assert_array_equal(session.run(logits), [[4 + 2] * 2, [0.25 + 2] * 2])


def test_wide_and_deep_over_one_column_with_two_optimizers(session):
    column, features = ints("a"), {"a": sparse([[1], [2]])}
    wide = stock.linear_model(features, [column])
    deep = stock.input_layer(features, [embedded(column, 2)])
    names = {v.variable_name: v for v in tf_multitier.embedding_variables()}
    assert sorted(names) == ["input_layer/a_embedding/embedding_weights", "linear_model/a/weights"]
    loss = tf.reduce_sum(wide) + tf.reduce_sum(deep)
    step = tf.group(
        v1.train.FtrlOptimizer(0.1).minimize(
            loss, var_list=v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, "linear_model")
        ),
        v1.train.AdagradOptimizer(0.1).minimize(
            loss, var_list=v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, "input_layer")
        ),
    )
    session.run(v1.global_variables_initializer())
    session.run(step)
    assert [count(session, names[name]) for name in sorted(names)] == [2, 2]

"""The functions behind DeepRec's names: arguments, strategies, contrib's columns and lookups."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import feature_column as fc
from tf_multitier.deeprec import contrib
from tf_multitier.deeprec import names
from tf_multitier.deeprec import options

v1 = tf.compat.v1


def test_get_embedding_variable_takes_arguments_in_deeprecs_order(graph):
    table = names.get_embedding_variable(
        "t",
        3,
        tf.int32,
        None,
        v1.zeros_initializer(),
        None,
        False,
        ["mine"],
        None,
        v1.fixed_size_partitioner(2),
    )
    assert table.key_dtype == tf.int32 and not table.trainable and table.num_partitions == 2
    assert tf.compat.v1.get_collection("mine") == list(table)


def test_strategies_of_one_process(monkeypatch):
    names.enable_distributed_strategy()
    names.enable_distributed_strategy(strategy="collective")
    names.enable_group_embedding(fusion_type="localized")
    with pytest.raises(ValueError, match="or 'parameter_server', found 'ring'"):
        names.enable_distributed_strategy("ring")
    names.enable_distributed_strategy("parameter_server")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    names.enable_distributed_strategy("localized")
    with pytest.raises(ValueError, match="OMPI_COMM_WORLD_SIZE=4 says that there are several"):
        names.enable_distributed_strategy("collective")


def test_lookup_tier_and_resource_of_a_variable(graph):
    table = tf_multitier.get_embedding_variable("t", 2)
    with v1.Session() as session:
        session.run(table.initializer)
        assert session.run(names.lookup_tier(table, [5])).tolist() == [-1]
    with pytest.raises(TypeError, match="var: expected an embedding variable, found ndarray"):
        names.lookup_tier(np.ones(2), [5])
    with pytest.raises(NotImplementedError, match="has no address"):
        names.lookup_resource(table)


def _features():
    return {
        "a": tf.constant([[1, 2], [3, -1]], tf.int64),
        "b": tf.constant([[5], [6]], tf.int64),
        "x": tf.constant([[0.5], [2.0]]),
    }


def test_contrib_columns_are_those_of_feature_column(graph):
    option = tf_multitier.EmbeddingVariableOption(filter_option=tf_multitier.CounterFilter(2))
    assert contrib.sparse_column_with_embedding(
        "a", tf.int64, 3, ev_option=option
    ) == fc.categorical_column_with_embedding("a", tf.int64, 3, option)
    assert contrib.sparse_column_wth_embedding("a", evconfig=option).ev_option is option
    column = contrib.sparse_column_with_embedding("a", tf.int64, steps_to_live=7)
    assert column.ev_option.evict_option[0].steps_to_live == 7
    with pytest.raises(ValueError, match="found both"):
        contrib.sparse_column_with_embedding("a", ev_option=option, evconfig=option)
    with pytest.raises(ValueError, match="init_data_source"):
        contrib.sparse_column_with_embedding("a", init_data_source="somewhere")
    with pytest.raises(ValueError, match="hash_keys"):
        contrib.sparse_column_with_hash_bucket("a", 10, hash_keys=[1])
    spec = contrib.create_feature_spec_for_parsing([contrib.embedding_column(column, 2)])
    assert list(spec) == ["a"]


def test_contrib_input_is_that_of_input_layer(graph):
    a = contrib.sparse_column_with_embedding("a", tf.int64)
    b = contrib.sparse_column_with_embedding("b", tf.int64)
    hashed = contrib.sparse_column_with_hash_bucket("b", 10, dtype=tf.int64)
    columns = [
        contrib.embedding_column(a, 2, initializer=v1.ones_initializer()),
        contrib.real_valued_column("x"),
        contrib.embedding_column(hashed, 3, "sum", v1.ones_initializer()),
        *contrib.shared_embedding_columns(
            [contrib.weighted_sparse_column(b, "x"), contrib.weighted_sparse_column(a, "w")],
            2,
            "sum",
            v1.ones_initializer(),
            "shared",
        ),
    ]
    features = dict(_features(), w=tf.ones([2, 2]))
    net = contrib.input_from_feature_columns(features, columns)
    assert [v.variable_name for v in tf_multitier.embedding_variables()] == [
        "input_from_feature_columns/input_layer/a_embedding/embedding_weights",
        "input_from_feature_columns/input_layer/shared/embedding_weights",
    ]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        values = session.run(net)
    # By name: a, a weighted by w, b (hashed), b weighted by x, x.
    np.testing.assert_array_equal(
        values, [[1, 1, 2, 2, 1, 1, 1, 0.5, 0.5, 0.5], [1, 1, 1, 1, 1, 1, 1, 2, 2, 2]]
    )


def test_contrib_weighted_sum_is_that_of_linear_model(graph):
    a = contrib.sparse_column_with_embedding("a", tf.int64)
    output, variables, bias = contrib.weighted_sum_from_feature_columns(
        _features(), [a, contrib.real_valued_column("x")], 1
    )
    assert output.shape.as_list() == [2, 1] and len(variables) == 2
    step = v1.train.GradientDescentOptimizer(1.0).minimize(-tf.reduce_sum(output))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert session.run(output).tolist() == [[0], [0]]
        session.run(step)
        # bias 2; ids of a: two in the first row, one in the second; x moves its weight by 2.5.
        np.testing.assert_allclose(session.run(output), [[2 + 2 + 0.5 * 2.5], [2 + 1 + 2 * 2.5]])
        assert session.run(bias).tolist() == [2]


def test_contrib_safe_lookup_means_where_no_combiner_is_given(graph):
    table = tf_multitier.get_embedding_variable("t", 2, initializer=v1.ones_initializer())
    ids = tf.SparseTensor([[0, 0], [0, 1]], tf.constant([1, 2], tf.int64), [2, 2])
    with v1.Session() as session:
        session.run(table.initializer)
        assert session.run(contrib.safe_embedding_lookup_sparse(table, ids)).tolist() == [
            [1, 1],
            [0, 0],
        ]


def test_options_are_attributes_by_deeprecs_names():
    option, evict = options.EmbeddingVariableOption(), tf_multitier.L2WeightEvict(0.5)
    option.filter_strategy = tf_multitier.CounterFilter(3)
    option.evict, option.ht_type = evict, "dense"
    assert option.filter_option == option.filter_strategy == tf_multitier.CounterFilter(3)
    assert option == options.EmbeddingVariableOption(
        evict_option=evict, filter_option=tf_multitier.CounterFilter(3)
    )
    for name, value, error in (
        ("filter_strategies", None, AttributeError),
        ("filter_strategy", evict, TypeError),
        ("ckpt", options.CheckpointOption("x"), ValueError),
    ):
        with pytest.raises(error, match=name if name != "filter_strategy" else "filter_option"):
            setattr(option, name, value)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = option.other

"""The variables behind feature columns: partitions, scopes, reuse, names, checkpoints."""

import numpy as np
import pytest
import tensorflow as tf
from column_util import count
from column_util import embedded
from column_util import ints
from column_util import only_variable
from column_util import run
from column_util import sequence
from column_util import train
from group_util import sparse

import tf_multitier
from tf_multitier import feature_column as fc

v1 = tf.compat.v1
stock = v1.feature_column


def test_partitioned_column_trains_to_the_same_bits_as_a_whole_one(session):
    rng = np.random.default_rng(3)
    ids = v1.placeholder(tf.int64, [None, 4])
    outputs, steps = [], []
    for name, partitions in (("whole", None), ("parts", 3)):
        with v1.variable_scope(name):
            net = stock.input_layer({"a": ids}, [embedded(ints("a", partition_num=partitions), 4)])
        outputs.append(net)
        steps.append(v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(net * net)))
    assert sorted(v.num_partitions for v in tf_multitier.embedding_variables()) == [1, 3]
    session.run(v1.global_variables_initializer())
    for _ in range(10):
        batch = {ids: rng.integers(0, 30, (16, 4))}
        session.run(steps, batch)
        whole, parts = session.run(outputs, batch)
        np.testing.assert_array_equal(whole, parts)


def test_partitioner_of_the_variable_scope_cuts_the_variable(session):
    with v1.variable_scope("m", partitioner=v1.fixed_size_partitioner(2)):
        net = stock.input_layer({"a": sparse([[1]])}, [embedded(ints("a"))])
    assert only_variable().num_partitions == 2
    assert sorted(v.op.name for v in v1.global_variables()) == [
        f"m/input_layer/a_embedding/embedding_weights/part_{i}" for i in (0, 1)
    ]
    assert run(session, net).shape == (1, 3)


def test_variable_names_are_tensorflows_and_stay_the_same(session):
    features = {"a": sparse([[1]]), "b": sparse([[1]])}
    with v1.variable_scope("model"):
        stock.input_layer(features, [embedded(ints("b")), embedded(ints("a"))])
        stock.input_layer(features, [embedded(ints("a"))])
        stock.linear_model(features, [ints("a")])
        fc.sequence_input_layer(features, [embedded(sequence("a"))])
    assert [v.variable_name for v in tf_multitier.embedding_variables()] == [
        "model/input_layer/a_embedding/embedding_weights",
        "model/input_layer/b_embedding/embedding_weights",
        "model/input_layer_1/a_embedding/embedding_weights",
        "model/linear_model/a/weights",
        "model/sequence_input_layer/a_embedding/embedding_weights",
    ]


def test_template_and_reused_scope_share_the_variable(session):
    def model(ids):
        return stock.input_layer({"a": ids}, [embedded(ints("a"))])

    template = v1.make_template("model", model)
    first, second = template(sparse([[1]])), template(sparse([[1], [2]]))
    only_variable()
    session.run(v1.global_variables_initializer())
    train(session, tf.reduce_sum(first))
    first, second = session.run([first, second])
    np.testing.assert_array_equal(first[0], second[0])

    with (
        v1.variable_scope("model", reuse=True),
        v1.variable_scope("input_layer"),
        v1.variable_scope("a_embedding"),
    ):
        again = tf_multitier.get_embedding_variable("embedding_weights", 3)
    assert again is only_variable()


def test_reuse_of_a_variable_that_does_not_exist_is_refused(session):
    with v1.variable_scope("model", reuse=True):
        with pytest.raises(ValueError, match="a_embedding/embedding_weights does not exist"):
            stock.input_layer({"a": sparse([[1]])}, [embedded(ints("a"))])


def test_reuse_with_another_dimension_is_refused(session):
    def model(dimension):
        return stock.input_layer({"a": sparse([[1]])}, [embedded(ints("a"), dimension)])

    template = v1.make_template("model", model)
    template(dimension=3)
    with pytest.raises(ValueError, match="shape"):
        template(dimension=4)


def test_custom_getter_of_an_outer_scope_sees_our_variable(session):
    seen = []

    def see(getter, name, *args, **kwargs):
        seen.append(name)
        return getter(name, *args, **kwargs)

    with v1.variable_scope("m", custom_getter=see):
        stock.input_layer({"a": sparse([[1]])}, [embedded(ints("a"))])
        stock.linear_model({"a": sparse([[1]])}, [ints("a")])
    assert seen[0] == "m/input_layer/a_embedding/embedding_weights"
    assert "m/linear_model/a/weights" in seen
    assert len(tf_multitier.embedding_variables()) == 2


def test_trainable_false_keeps_the_variable_out_of_training(session):
    stock.input_layer({"a": sparse([[1]])}, [embedded(ints("a"), trainable=False)])
    assert only_variable() not in v1.trainable_variables()
    assert only_variable() in v1.global_variables()
    assert only_variable() in v1.model_variables()


def test_options_reach_the_variable(session):
    option = tf_multitier.EmbeddingVariableOption(filter_option=tf_multitier.CounterFilter(2))
    net = stock.input_layer({"a": sparse([[1]])}, [embedded(ints("a", ev_option=option))])
    session.run(v1.global_variables_initializer())
    train(session, tf.reduce_sum(net))
    assert count(session, only_variable()) == 0  # seen once, not yet admitted
    train(session, tf.reduce_sum(net))
    assert count(session, only_variable()) == 1


def test_saver_restores_columns_by_name_in_another_graph(session, tmp_path):
    def build():
        features = {"a": sparse([[1, 2], [3]])}
        return stock.input_layer(features, [embedded(ints("a"))]) + stock.linear_model(
            features, [ints("a")]
        )

    net = build()
    session.run(v1.global_variables_initializer())
    train(session, tf.reduce_sum(net * net), steps=3, learning_rate=0.1)
    expected = session.run(net)
    path = v1.train.Saver().save(session, str(tmp_path / "model"))
    with tf.Graph().as_default(), v1.Session() as other:
        net = build()
        v1.train.Saver().restore(other, path)
        np.testing.assert_array_equal(other.run(net), expected)


def test_embedding_column_starts_from_a_checkpoint_it_names(session, tmp_path):
    net = stock.input_layer({"a": sparse([[1], [2]])}, [embedded(ints("a"))])
    session.run(v1.global_variables_initializer())
    train(session, tf.reduce_sum(net))
    expected = session.run(net)
    path = v1.train.Saver().save(session, str(tmp_path / "model"))
    with tf.Graph().as_default(), v1.Session() as other:
        column = fc.embedding_column(
            ints("a"),
            3,
            ckpt_to_load_from=path,
            tensor_name_in_ckpt="input_layer/a_embedding/embedding_weights",
        )
        net = stock.input_layer({"a": sparse([[1], [2]])}, [column])
        np.testing.assert_array_equal(run(other, net), expected)

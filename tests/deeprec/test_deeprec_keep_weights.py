"""keep_weights: weights in float32, computation in bfloat16."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier.deeprec.keep_weights import keep_weights

v1 = tf.compat.v1


def _scope(name="dnn", kept=tf.float32, **kwargs):
    return keep_weights(v1.variable_scope(name, reuse=v1.AUTO_REUSE, **kwargs), dtype=kept)


def _dense(net, units, name):
    with v1.variable_scope(name):
        kernel = v1.get_variable(
            "kernel", [net.shape[1], units], net.dtype, v1.random_normal_initializer(seed=1)
        )
        bias = v1.get_variable("bias", units, net.dtype, v1.zeros_initializer())
        return tf.nn.relu(tf.nn.bias_add(tf.matmul(net, kernel), bias))


def _types(graph, op):
    return [o.get_attr("T") for o in graph.get_operations() if o.type == op]


@pytest.mark.parametrize("parts", [1, 2])
def test_weights_are_float32_and_the_ops_bfloat16(graph, parts):
    x = tf.constant(np.random.RandomState(0).rand(4, 6).astype(np.float32))
    with _scope(partitioner=v1.fixed_size_partitioner(parts)):
        net = _dense(_dense(tf.cast(x, tf.bfloat16), 8, "one"), 8, "two")
        assert net.dtype == tf.bfloat16
    loss = tf.reduce_mean(tf.square(tf.cast(net, tf.float32) - 1))
    step = v1.train.AdamOptimizer(0.1).minimize(loss)
    variables = v1.trainable_variables()
    assert len(variables) == 4 * parts and all(
        v.dtype.base_dtype == tf.float32 for v in v1.global_variables()
    )
    assert (
        set(_types(graph, "MatMul")) == {tf.bfloat16} and len(_types(graph, "MatMul")) == 6
    )  # two forward, four backward
    assert set(_types(graph, "BiasAdd")) == set(_types(graph, "Relu")) == {tf.bfloat16}
    assert set(_types(graph, "ResourceApplyAdam")) == {tf.float32}
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        losses = [session.run([loss, step])[0] for _ in range(5)]
    assert losses[-1] < losses[0]


def test_weights_move_by_less_than_bfloat16_can_tell(graph):
    with _scope():
        weight = v1.get_variable("w", [1], tf.bfloat16, v1.ones_initializer())
    step = v1.train.GradientDescentOptimizer(1e-4).minimize(
        tf.reduce_sum(tf.cast(weight, tf.float32))
    )
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(step)
        assert session.run(v1.trainable_variables()[0])[0] == np.float32(1) - np.float32(1e-4)
        assert session.run(weight)[0] == 1  # 1 - 1e-4 rounds to 1


def test_variables_asked_for_in_float32_are_as_ever(graph):
    with _scope():
        assert isinstance(v1.get_variable("w", [2], use_resource=True), tf.Variable)


def test_scopes_inside_and_captured_ones_keep_weights_too(graph):
    with _scope() as captured:
        pass
    with v1.variable_scope(captured), v1.variable_scope("inner"):
        assert v1.get_variable("w", [2], tf.float16).dtype == tf.float16
    assert [v.dtype.base_dtype for v in v1.global_variables()] == [tf.float32]


def test_a_custom_getter_of_the_program_is_called_first(graph):
    asked = []

    def getter(getter, name, *args, **kwargs):
        asked.append((name, kwargs["dtype"]))
        return getter(name, *args, **kwargs)

    with _scope(custom_getter=getter):
        v1.get_variable("w", [2], tf.bfloat16)
    assert asked == [("dnn/w", tf.float32)]


@pytest.mark.parametrize("kept", [tf.bfloat16, tf.int32])
def test_types_that_cannot_keep_weights_are_refused(graph, kept):
    with pytest.raises(ValueError, match=f"tf.float32 or tf.float64, found {kept.name}"):
        _scope(kept=kept)


def test_a_scope_that_was_entered_is_refused(graph):
    scope = v1.variable_scope("a")
    with scope:
        pass
    with pytest.raises(ValueError, match="not entered yet"):
        keep_weights(scope)


def test_an_embedding_variable_has_its_own_type(graph):
    with _scope():
        ev = tf_multitier.get_embedding_variable("ev", 4, value_dtype=tf.bfloat16)
    assert ev.dtype == tf.bfloat16 and ev.embedding_dim == 4

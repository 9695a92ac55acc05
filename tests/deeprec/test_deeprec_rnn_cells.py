"""tf.contrib.rnn, as DIN and DIEN use it."""

import numpy as np
import pytest
import tensorflow as tf

from tf_multitier.deeprec import rnn_cells

v1 = tf.compat.v1


@pytest.mark.parametrize("parts", [1, 2])
def test_linear_is_a_matrix_product_with_bias(graph, parts):
    inputs, state = (
        np.random.RandomState(i).rand(5, n).astype(np.float32) for i, n in enumerate((3, 4))
    )
    with v1.variable_scope(
        "gates", partitioner=v1.fixed_size_partitioner(2) if parts == 2 else None
    ):
        linear = rnn_cells._Linear(
            [tf.constant(inputs), tf.constant(state)],
            6,
            True,
            v1.constant_initializer(2.0),
            v1.random_normal_initializer(seed=3),
        )
    outputs = linear([inputs, state])
    names = [v.op.name for v in v1.global_variables()]
    assert names == (
        ["gates/kernel", "gates/bias"]
        if parts == 1
        else ["gates/kernel/part_0", "gates/kernel/part_1", "gates/bias"]
    )
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        found = session.run(outputs)
        matrix = np.concatenate(
            session.run([v for v in v1.global_variables() if "kernel" in v.name])
        )
    np.testing.assert_allclose(found, np.concatenate([inputs, state], 1) @ matrix + 2, rtol=1e-5)


def test_linear_of_one_tensor_without_bias_in_bfloat16(graph):
    x = tf.ones([2, 3], tf.bfloat16)
    linear = rnn_cells._Linear(x, 1, False, kernel_initializer=v1.ones_initializer())
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(tf.cast(linear(x), tf.float32)), [[3], [3]])
    assert [v.op.name for v in v1.global_variables()] == ["kernel"]


@pytest.mark.parametrize("args, found", [([], r"\[\]"), ([np.ones(3, np.float32)], r"\[\(3,\)\]")])
def test_linear_says_which_shapes_it_cannot_take(graph, args, found):
    with pytest.raises(ValueError, match=rf"tensors \[batch, n\] of known n, found shapes {found}"):
        rnn_cells._Linear(args, 2, True)


def test_cells_run(graph):
    cell = rnn_cells.GRUCell(4)
    outputs, _ = v1.nn.dynamic_rnn(
        cell, tf.ones([2, 3, 5]), sequence_length=[3, 1], dtype=tf.float32
    )
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert session.run(outputs).shape == (2, 3, 4)

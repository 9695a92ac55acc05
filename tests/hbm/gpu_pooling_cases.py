"""Cases of pooled lookups, of max_norm, and of gradients, on a device of type GPU, as gpu_cases.py."""

import numpy as np
import pytest
import tensorflow as tf
from gpu_cases import ON_GPU
from gpu_cases import assert_equal
from gpu_cases import devices_of
from gpu_cases import placed
from gpu_cases import soft_session
from gpu_cases import variable
from variable_util import sparse

from tf_multitier import nn
from tf_multitier._src.tensorflow.library import ops

v1 = tf.compat.v1


def pooled(path, kind, device, combiner, weighted, max_norm):
    """Trained steps of a pooled and a dense lookup: the values, the weights and the table. Also the ops' devices."""
    with tf.Graph().as_default() as graph:
        with tf.device(device):
            ev = variable("ev", kind, path)
            ids = sparse([0, 0, 1, 1, 3], [5, -6, 5, 5, 9], [5, 2])
            factors = v1.get_variable(
                "w", initializer=[0.5, 2.0, 1.5, -1.0, 0.0], use_resource=True
            )
            weights = tf.SparseTensor(ids.indices, factors, ids.dense_shape)
            outputs = [
                v1.nn.embedding_lookup_sparse(
                    ev, ids, weights if weighted else None, combiner=combiner, max_norm=max_norm
                ),
                v1.nn.embedding_lookup(ev, [[5, 5], [7, -6]], max_norm=max_norm),
            ]
        loss = tf.add_n([tf.reduce_sum(out * out * out) for out in outputs])
        train = v1.train.AdagradOptimizer(0.5).minimize(loss)
        export = ev.export()
        with soft_session(graph) as session:
            session.run(v1.global_variables_initializer())
            seen = []
            for _ in range(3):
                seen += session.run([*outputs, factors])
                session.run(train)
            nodes = placed(session, train)
            rows = session.run(tuple(export))
    order = np.argsort(rows[0])
    return seen + [column[order] for column in rows], devices_of(nodes)


@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_gradients_of_pooled_lookups_stay_on_the_gpu_and_have_the_bits_of_the_cpu(
    combiner, weighted, max_norm, tmp_path
):
    found, devices = pooled(tmp_path, "HBM_DRAM", "/GPU:0", combiner, weighted, max_norm)
    assert devices == {ON_GPU}
    assert_equal(found, pooled(tmp_path, "DRAM", "/CPU:0", combiner, weighted, max_norm)[0])


@pytest.mark.parametrize(
    "rows, weights, grad, message",
    [
        ([1, 0], [1, 1], [2, 4], "'ev'.*order"),
        ([0, 2], [1, 1], [2, 4], "'ev'.*rows in .0, 2."),
        ([0], [1, 1], [2, 4], "expected one row index for each of 2 keys, found 1"),
        ([0, 1], [1], [2, 4], "expected 2 weights .one for each key., found 1"),
        ([0, 1], [1, 1], [2, 3], r"grad: expected shape .batch,4., found .2,3."),
    ],
)
def test_bad_input_of_the_gradient_of_a_pooled_lookup_is_refused(
    rows, weights, grad, message, graph, tmp_path
):
    inputs = [
        v1.placeholder_with_default(value, None)
        for value in (np.int64(rows), np.float32(weights), np.ones(grad, np.float32))
    ]
    with tf.device("/GPU:0"):
        ev = variable("ev", "HBM_DRAM", tmp_path)
        grads = ops.multitier_lookup_sparse_grad(
            [ev.handle], np.int64([1, 2]), *inputs, "mean", 4, has_weights=True
        )
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(grads)


def test_clipping_refuses_values_of_another_dim_or_shape(graph, tmp_path):
    unknown = lambda shape: v1.placeholder_with_default(np.ones(shape, np.float32), None)
    with tf.device("/GPU:0"):
        ev = variable("ev", "HBM_DRAM", tmp_path)
        wrong = {
            "expected dim 4, found 3": ops.multitier_hbm_clip_by_norm(
                ev.handle, unknown([2, 3]), max_norm=1.0
            ),
            "rank 1 or more": ops.multitier_hbm_clip_by_norm(ev.handle, unknown([]), max_norm=1.0),
            "grad: expected the shape of values": ops.multitier_hbm_clip_by_norm_grad(
                ev.handle, unknown([2, 4]), unknown([3, 4]), max_norm=1.0
            ),
        }
        empty = ops.multitier_hbm_clip_by_norm(ev.handle, unknown([0, 4]), max_norm=1.0)
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        for message, op in wrong.items():
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                session.run(op)
        assert session.run(empty).shape == (0, 4)


@pytest.mark.parametrize(
    "rows, weights, batch, message",
    [
        ([1, 0], [], 2, "'ev'.*order"),
        ([0, 2], [], 2, "'ev'.*2"),
        ([0], [], 2, "expected one row index for each of 2 keys, found 1"),
        ([0, 1], [1.0], 2, "expected 0 weights .has_weights is false., found 1"),
        ([0, 1], [], -1, "batch: expected at least 0, found -1"),
    ],
)
def test_bad_input_of_a_pooled_lookup_is_refused(rows, weights, batch, message, graph, tmp_path):
    rows = v1.placeholder_with_default(np.int64(rows), None)
    weights = v1.placeholder_with_default(np.float32(weights), None)
    batch = v1.placeholder_with_default(np.int64(batch), None)
    with tf.device("/GPU:0"):
        ev = variable("ev", "HBM_DRAM", tmp_path)
        pooled = ops.multitier_lookup_sparse(
            [ev.handle], np.int64([1, 2]), rows, weights, batch, "sum", 4, has_weights=False
        )
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(pooled)


def gradients_of_steps(kind, device, path):
    """The gradients, and the values of a grouped lookup, of an eager step and of the same step in a function."""
    with tf.device(device):
        ev = variable("ev", kind, path)
    assert ev.handle.device.endswith(device[1:])
    keys = tf.constant([3, 4, 3], tf.int64)
    ids = tf.RaggedTensor.from_row_splits(keys, [0, 1, 3])

    def step():
        with tf.GradientTape() as tape:
            (pooled,) = nn.group_embedding_lookup_sparse([ev], [ids], ["sum"])
            values = tf.nn.embedding_lookup(ev, keys)
            loss = tf.reduce_sum(tf.square(values)) + tf.reduce_sum(tf.square(pooled))
        return tape.gradient(loss, ev).values, pooled

    return [tensor.numpy() for run in (step, tf.function(step)) for tensor in run()]


def test_gradients_of_eager_steps_and_functions_equal_those_of_the_cpu(tmp_path):
    found = gradients_of_steps("HBM_DRAM", "/GPU:0", tmp_path)
    assert_equal(found, gradients_of_steps("DRAM", "/CPU:0", tmp_path))


def test_a_variable_with_hbm_on_the_cpu_has_gradients_in_steps_outside_of_its_device(tmp_path):
    found = gradients_of_steps("HBM_DRAM", "/CPU:0", tmp_path)
    assert_equal(found, gradients_of_steps("DRAM", "/CPU:0", tmp_path))


def test_a_variable_on_a_gpu_has_gradients_in_steps_on_the_cpu(tmp_path):
    with tf.device("/CPU:0"):
        found = gradients_of_steps("HBM_DRAM", "/GPU:0", tmp_path)
    assert_equal(found, gradients_of_steps("DRAM", "/CPU:0", tmp_path))

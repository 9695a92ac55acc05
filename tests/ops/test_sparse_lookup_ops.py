"""The ops of pooled lookups and their gradients, and of the routing of keys to partitions."""

import numpy as np
import pytest
import tensorflow as tf
from op_util import DIM
from op_util import handle
from op_util import initialize
from op_util import initialized
from op_util import keys64
from op_util import ops
from op_util import sgd
from op_util import sparse
from op_util import sparse_grad
from op_util import unknown

tf1 = tf.compat.v1
errors = tf.errors


@pytest.fixture(name="ev")
def fixture_ev(session):
    return initialized(session)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_lookup_equals_stock_pooling(session, ev, combiner, weighted):
    random = np.random.default_rng(4)
    rows = np.sort(random.choice(np.array([0, 1, 3, 4, 6]), 30))
    keys = random.integers(0, 20, 30)
    weights = random.uniform(0.1, 1.0, 30).astype(np.float32) if weighted else []
    found = session.run(sparse(ev, keys, rows, 8, weights, combiner))
    table = session.run(ops.multitier_lookup(ev, keys64(np.arange(20)), []))
    ids = tf.SparseTensor(np.stack([rows, np.arange(30)], 1), keys, [8, 30])
    sp_weights = tf.SparseTensor(ids.indices, weights, [8, 30]) if weighted else None
    stock = tf.nn.safe_embedding_lookup_sparse(
        tf.constant(table), ids, sp_weights, combiner=combiner, default_id=None
    )
    expected = session.run(stock)
    filled = np.isin(np.arange(8), rows)
    np.testing.assert_allclose(found[filled], expected[filled], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found[~filled], 0.0)


def test_sparse_lookup_of_nothing_is_zeros(session, ev):
    np.testing.assert_array_equal(
        session.run(sparse(ev, [], [], 3, combiner="mean")), np.zeros((3, DIM))
    )
    assert session.run(sparse(ev, [], [], 0)).shape == (0, DIM)
    assert session.run(ops.multitier_count(ev)) == 0


def test_sparse_lookup_clips_each_value(session, ev):
    values = session.run(ops.multitier_lookup(ev, keys64([1, 2]), []))
    found = session.run(sparse(ev, [1, 2], [0, 0], 1, max_norm=0.5))
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    np.testing.assert_allclose(found[0], (values * np.minimum(1, 0.5 / norms)).sum(0), rtol=1e-5)


def test_sparse_lookup_routes_keys_to_partitions(session, ev):
    parts = [handle(f"part_{i}", partition_index=i, num_partitions=3) for i in range(3)]
    session.run([initialize(p) for p in parts])
    keys, rows = np.arange(100) - 50, np.arange(100) // 3
    positions, part_keys = session.run(ops.multitier_partition_keys(keys64(keys), num_partitions=3))
    grads = np.random.default_rng(5).standard_normal((100, DIM)).astype(np.float32)
    session.run(sgd(ev, keys, grads))
    for part, position, owned in zip(parts, positions, part_keys):
        session.run(sgd(part, owned, grads[position]))
    np.testing.assert_array_equal(
        session.run(sparse(parts, keys, rows, 40, combiner="mean")),
        session.run(sparse(ev, keys, rows, 40, combiner="mean")),
    )


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_partition_keys_splits_in_order(session, dtype):
    keys = np.array([5, -1, 5, 0, 99, 7], dtype)
    positions, parts = session.run(
        ops.multitier_partition_keys(tf.constant(keys), num_partitions=3)
    )
    assert sorted(np.concatenate(positions)) == list(range(6))
    for position, part in zip(positions, parts):
        assert part.dtype == dtype and (np.diff(position) > 0).all()
        np.testing.assert_array_equal(keys[position], part)


@pytest.mark.parametrize(
    "rows, batch, weights, message",
    [
        ([0, 3], 3, [], r"\[0, 3\), found indices\[1\] = 3"),
        ([-1, 0], 3, [], r"found indices\[0\] = -1"),
        ([1, 0], 3, [], "nondecreasing"),
        ([0, 0], 3, [1.0], "expected 2 weights"),
        ([0, 0], -1, [], "batch: expected at least 0, found -1"),
        ([0], 3, [], "one row index for each of 2 keys, found 1"),
        ([[0, 0]], 3, [], r"indices: expected rank 1, found shape \[1,2\]"),
    ],
)
def test_sparse_lookups_that_do_not_fit_are_refused(session, ev, rows, batch, weights, message):
    feeds = {unknown(): [1, 2], unknown(): rows, unknown(tf.float32): weights, unknown(): batch}
    with pytest.raises(errors.InvalidArgumentError, match=message):
        session.run(
            ops.multitier_lookup_sparse(
                [ev], *feeds, combiner="sum", dim=DIM, has_weights=len(weights) > 0
            ),
            feeds,
        )


@pytest.mark.parametrize(
    "has_weights, weights, message",
    [
        (True, [], r"expected 3 weights \(one for each key\), found 0"),
        (True, [1.0], r"expected 3 weights \(one for each key\), found 1"),
        (True, [1.0] * 4, r"expected 3 weights \(one for each key\), found 4"),
        (False, [1.0] * 3, r"expected 0 weights \(has_weights is false\), found 3"),
    ],
)
def test_weights_of_another_number_than_the_keys_are_refused(
    session, ev, has_weights, weights, message
):
    weights = tf.constant(weights, tf.float32, [len(weights)])
    keys, rows, grad = keys64([1, 2, 3]), keys64([0, 0, 1]), tf.ones([2, DIM])
    args = dict(combiner="mean", has_weights=has_weights, dim=DIM)
    unchecked = tf1.placeholder_with_default(weights, None)
    calls = [
        ops.multitier_lookup_sparse([ev], keys, rows, unchecked, keys64(2), **args),
        ops.multitier_lookup_sparse_grad([ev], keys, rows, unchecked, grad, **args).entry_grads,
    ]
    for call in calls:
        with pytest.raises(errors.InvalidArgumentError, match=message):
            session.run(call)


def test_clip_by_norm_is_the_arithmetic_of_max_norm(session, ev):
    values = np.random.default_rng(3).standard_normal((5, 3, DIM)).astype(np.float32)
    values[0, 0] = 0
    clipped = ops.multitier_clip_by_norm(tf.constant(values), max_norm=0.5)
    assert clipped.shape.as_list() == [5, 3, DIM]
    np.testing.assert_allclose(
        *session.run([clipped, tf.clip_by_norm(values, 0.5, axes=[-1])]), rtol=1e-6
    )
    looked_up = ops.multitier_lookup(ev, keys64([1, 2, 3]), [])
    one_by_one = sparse(ev, [1, 2, 3], [0, 1, 2], 3, max_norm=0.5)
    np.testing.assert_array_equal(
        *session.run([ops.multitier_clip_by_norm(looked_up, max_norm=0.5), one_by_one])
    )
    assert session.run(ops.multitier_clip_by_norm(tf.zeros([0, DIM]), max_norm=0.0)).shape == (
        0,
        DIM,
    )
    for wrong in (
        lambda: ops.multitier_clip_by_norm(tf.constant(1.0), max_norm=0.5),
        lambda: ops.multitier_clip_by_norm(values, max_norm=-1.0),
        lambda: ops.multitier_clip_by_norm_grad(values, values[:2], max_norm=1.0),
    ):
        with pytest.raises(ValueError, match="rank 1|max_norm|must be equal"):
            wrong()


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_gradients_equal_stock(session, ev, combiner, weighted):
    random = np.random.default_rng(6)
    rows = np.array([0, 0, 0, 2, 2, 3])
    keys = np.arange(6)
    weights = random.uniform(0.1, 1.0, 6).astype(np.float32)
    grad = random.standard_normal((5, DIM)).astype(np.float32)
    w = weights if weighted else np.zeros(0, np.float32)
    found = session.run(sparse_grad(ev, keys, rows, grad, w, combiner))
    values = tf.constant(session.run(ops.multitier_lookup(ev, keys64(keys), [])))
    factors = tf.constant(weights) if weighted else tf.ones([6])
    total = tf.math.unsorted_segment_sum(values * factors[:, None], rows, 5)
    power = {"sum": 0, "mean": 1, "sqrtn": 2}[combiner]
    divisor = tf.math.unsorted_segment_sum(factors**power if power else factors, rows, 5)
    divisor = {"sum": tf.ones_like(divisor), "mean": divisor, "sqrtn": tf.sqrt(divisor)}[combiner]
    pooled = tf.math.divide_no_nan(total, divisor[:, None])
    value_grad, weight_grad = tf.gradients(pooled, [values, factors], grad)
    np.testing.assert_allclose(found[0], session.run(value_grad), rtol=1e-5, atol=1e-6)
    if weighted:
        np.testing.assert_allclose(found[1], session.run(weight_grad), rtol=1e-4, atol=1e-5)

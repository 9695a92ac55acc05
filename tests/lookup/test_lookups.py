"""Lookups of embedding variables under TensorFlow's names: stock results and gradients, and the differences in the treatment of ids."""

import numpy as np
import pytest
from pairs import WORLDS
from pairs import pairwise
import tensorflow as tf
from variable_util import make
from variable_util import sparse

from tf_multitier import lookup

v1 = tf.compat.v1


@pairwise(
    world=WORLDS,
    max_norm=[None, 0.7],
    combiner=["sum", "mean", "sqrtn"],
    weighted=[False, True],
    parts=[1, 3],
)
def test_pooled_lookup_and_its_gradients_equal_stock(world, combiner, weighted, max_norm, parts):
    ev = make(dim=5, parts=parts)
    rows = world.run(lambda: tf.nn.embedding_lookup(ev, np.arange(12)))
    target = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)

    def gradients(table, variables, weights):
        """(pooled values, gradient of the whole table, gradient of the weights)"""
        ids = sparse([0, 0, 0, 1, 2, 2], [3, 4, 3, 11, 0, 7], [3, 3])

        def look_up():
            sp_weights = tf.SparseTensor(ids.indices, weights, ids.dense_shape)
            out = tf.nn.embedding_lookup_sparse(
                table, ids, sp_weights if weighted else None, combiner=combiner, max_norm=max_norm
            )
            return out, tf.reduce_sum(out * target)

        out, (*of_rows, of_weights) = world.with_gradients(look_up, [*variables, weights])
        dense = [tf.math.unsorted_segment_sum(g.values, g.indices, 12) for g in of_rows]
        return out, tf.add_n(dense), *([of_weights] if weighted else [])

    weights = np.array([0.5, 2, 1, 3, 0.25, 1], np.float32)
    ours = world.run(lambda w: gradients(ev, [part.handle for part in ev.parts], w), weights)
    stock = world.run(lambda w, table: gradients(table, [table], w), weights, rows)
    np.testing.assert_allclose(ours[0], stock[0], rtol=2e-6, atol=1e-7)
    for x, y in zip(ours[1:], stock[1:], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def on_two_devices(**kwargs):
    """A variable of three parts on two devices: no op can take all their handles."""
    made = []

    def device(op):
        made.extend([op.name] if op.type == "MultitierEmbeddingVariableHandle" else [])
        return (
            f"/cpu:{len(made) % 2}" if op.type == "MultitierEmbeddingVariableHandle" else "/cpu:0"
        )

    with v1.device(device):
        ev = make("spread", parts=3, **kwargs)
    assert len({part.device for part in ev}) == 2
    return ev


@pairwise(combiner=["sum", "mean", "sqrtn"], weighted=[False, True], max_norm=[None, 0.7])
def test_pooling_is_the_same_on_every_path(graph, combiner, weighted, max_norm):
    evs = [make(dim=19), make("parted", dim=19, parts=3), on_two_devices(dim=19)]
    rng = np.random.default_rng(1)
    rows = np.sort(rng.integers(0, 9, 300))
    ids = tf.SparseTensor(
        np.stack([rows, np.arange(300)], 1), rng.integers(-50, 50, 300), [10, 300]
    )
    weights = tf.SparseTensor(
        ids.indices, rng.uniform(0.1, 2, 300).astype(np.float32), ids.dense_shape
    )
    outs = [
        tf.nn.embedding_lookup_sparse(
            e, ids, weights if weighted else None, combiner=combiner, max_norm=max_norm
        )
        for e in evs
    ]
    assert [out.op.type == "MultitierLookupSparse" for out in outs][:2] == [True, True]
    assert not any(
        "spread" in i.name
        for op in graph.get_operations()
        if op.type == "MultitierLookupSparse"
        for i in op.inputs
    )
    grads = [
        tf.gradients(tf.reduce_sum(out * tf.range(19.0)), list(e.parts))
        for out, e in zip(outs, evs)
    ]
    sums = [
        tf.math.unsorted_segment_sum(
            tf.concat([g.values for g in some], 0),
            50 + tf.concat([g.indices for g in some], 0),
            100,
        )
        for some in grads
    ]
    with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
        session.run(v1.global_variables_initializer())
        fused, routed, spread = session.run(outs)
        np.testing.assert_array_equal(fused, routed)
        np.testing.assert_array_equal(fused, spread)
        assert (fused[9] == 0).all() and np.isfinite(fused).all() and fused.any()
        for other in session.run(sums)[1:]:
            np.testing.assert_allclose(other, session.run(sums[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parts", [1, 3])
def test_max_norm_of_a_dense_lookup_and_its_gradient_equal_stock(world, parts):
    ev, ids, keys = make(dim=6, parts=parts), np.array([[3, -4], [3, 5]]), np.arange(-4, 6)
    rows = lambda: tf.nn.embedding_lookup(ev, keys)
    stock = world.run(rows)
    look_up = lambda table, at: tf.nn.embedding_lookup(table, at, max_norm=0.7)

    def stock_step(table):
        def forward():
            values = look_up(table, ids + 4)
            return values, tf.reduce_sum(values * tf.range(6.0))

        values, [gradient] = world.with_gradients(forward, [table])
        return values, table - tf.convert_to_tensor(gradient)

    values, trained = world.run(stock_step, stock)
    np.testing.assert_allclose(world.run(lambda: look_up(ev, ids)), values, rtol=1e-6)
    world.step(lambda: tf.reduce_sum(look_up(ev, ids) * tf.range(6.0)), [ev], "sgd", 1.0)()
    np.testing.assert_allclose(world.run(rows), trained, rtol=1e-5, atol=1e-6)


def test_empty_rows_are_zeros_and_touch_no_key(world):
    ev = make()
    ids = sparse([1], [8], [3, 4])
    nothing = tf.SparseTensor(np.zeros((0, 2), np.int64), np.zeros(0, np.int64), [2, 2])

    def look_up():
        return (
            tf.nn.safe_embedding_lookup_sparse(ev, ids),
            tf.nn.embedding_lookup_sparse(ev, nothing, None),
        )

    values, none = world.run(look_up)
    assert values.shape == (3, 4) and (values[[0, 2]] == 0).all() and (none == 0).all()
    world.step(lambda: sum(tf.reduce_sum(out) for out in look_up()), [ev], "sgd", 1.0)()
    assert world.run(ev.export)[0].tolist() == [8]


def test_default_id_negative_ids_and_weights_of_a_safe_lookup(world):
    ev = make()
    ids = sparse([0, 0, 2], [-5, 6, 7], [3, 2])
    weights = tf.SparseTensor(ids.indices, np.array([1, -1, 1], np.float32), ids.dense_shape)
    cube = tf.SparseTensor(
        [[0, 1, 0], [1, 0, 0], [1, 0, 1]], tf.constant([1, 2, 3], tf.int64), [2, 2, 2]
    )
    look_up = tf.nn.safe_embedding_lookup_sparse
    got, want, deep, e = world.run(
        lambda: (
            look_up(ev, ids, weights, combiner="mean", default_id=99),
            tf.nn.embedding_lookup(ev, [-5, 99, 7]),
            look_up(ev, cube, combiner="sum"),
            tf.nn.embedding_lookup(ev, [1, 2, 3]),
        )
    )
    np.testing.assert_array_equal(got, want)
    assert deep.shape == (2, 2, 4)
    np.testing.assert_array_equal(deep[0, 1], e[0])
    np.testing.assert_array_equal(deep[1, 0], e[1] + e[2])
    assert (deep[0, 0] == 0).all() and (deep[1, 1] == 0).all()


@pytest.mark.parametrize("parts", [1, 2])
def test_other_ways_to_read(world, parts):
    ev = make(parts=parts)
    a, b, c, d = world.run(
        lambda: [
            tf.nn.embedding_lookup(ev, [[1, 2], [3, 1]]),
            tf.gather(ev, [1, 2, 3]),
            lookup.embedding_lookup(ev, np.array([1, 2, 3])),
            ev.sparse_read(tf.constant([1, 2, 3])),
        ]
    )
    assert a.shape == (2, 2, 4)
    np.testing.assert_array_equal(b, c)
    np.testing.assert_array_equal(b, d)
    np.testing.assert_array_equal(a.reshape(-1, 4)[[0, 1, 2]], b)


@pytest.mark.parametrize("parts", [1, 2])
def test_tensorflows_own_ragged_lookup_pools_and_counts(world, parts):
    ev = make(parts=parts, initializer=v1.ones_initializer())
    ragged = tf.ragged.constant([[3, 3, 4], [3]], dtype=tf.int64)
    look_up = lambda: v1.nn.embedding_lookup_sparse(ev, ragged, None, combiner="sum")
    if parts > 1 and not world.is_graph:  # docs/limitations.md
        with pytest.raises(NotImplementedError, match="'ev' .* no dense value"):
            world.run(look_up)
        return
    assert world.run(look_up)[:, 0].tolist() == [3, 1]
    world.step(lambda: tf.reduce_sum(look_up()), [ev], "sgd", 1.0)()
    values = world.run(lambda: tf.nn.embedding_lookup(ev, [3, 4]))
    np.testing.assert_array_equal(values[:, 0], [1 - 3, 1 - 1])
    # Eagerly, TensorFlow's code hands over each key once (docs/limitations.md).
    expected = [1, 1] if world.is_eager else [3, 1]
    assert world.run(lambda: ev.get_frequency([3, 4])).tolist() == expected


def test_two_thousand_ids_of_int32_widen(world):
    ev = make()
    ids = np.arange(-1000, 1000)
    look_up = lambda ids: tf.nn.embedding_lookup(ev, ids)
    np.testing.assert_array_equal(world.run(look_up, ids.astype(np.int32)), world.run(look_up, ids))

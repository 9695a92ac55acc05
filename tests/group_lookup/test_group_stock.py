"""Grouped lookups against stock TensorFlow and finite differences."""

import numpy as np
import pytest
import tensorflow as tf
from group_util import VOCABULARY
from group_util import matrix
from group_util import sparse
from group_util import static
from group_util import table

import tf_multitier
from tf_multitier import nn

v1 = tf.compat.v1


def test_a_planned_step_is_the_step_of_an_ungrouped_stock_lookup(world):
    """Stock names go to the ungrouped op; values, frequencies and slots agree to the bit."""
    ids = sparse([[1, 2, 1], [], [2, 2**40, -5]])
    tables, steps = [], []
    for name, look_up in (
        ("grouped", lambda v: nn.group_embedding_lookup_sparse([v], [ids], ["mean"])[0]),
        ("stock", lambda v: tf.nn.embedding_lookup_sparse(v, ids, None, combiner="mean")),
    ):
        variable = table(name, 8)
        loss = lambda variable=variable, look_up=look_up: tf.reduce_sum(look_up(variable) ** 2)
        tables.append(variable)
        steps.append(world.step(loss, [variable], "adagrad"))
    for _ in range(20):
        steps[0](counts=False)
        steps[1]()
    exports = [world.run(variable.export_rows) for variable in tables]
    order = [np.argsort(e.keys) for e in exports]
    for field in ("rows", "frequencies", "versions", "keys"):
        np.testing.assert_array_equal(
            getattr(exports[0], field)[order[0]], getattr(exports[1], field)[order[1]]
        )


@pytest.mark.parametrize(
    ("combiner", "weighted"), [("sum", False), ("mean", True), ("sqrtn", True)]
)
def test_a_group_of_tables_and_static_variables_agrees_with_stock(world, combiner, weighted):
    rng = np.random.default_rng(3)
    rows = [
        rng.integers(0, VOCABULARY, n).tolist() for n in (3, 1, 25, 4)
    ]  # stock has no empty rows
    ids = sparse(rows)
    weights = (
        sparse([rng.uniform(0.2, 2, len(r)).tolist() for r in rows], np.float32)
        if weighted
        else None
    )
    initial = matrix(5)
    option = tf_multitier.InitializerOption(v1.constant_initializer(initial), VOCABULARY)
    options = tf_multitier.EmbeddingVariableOption(init_option=option)
    ev = tf_multitier.get_embedding_variable("ev", 5, ev_option=options)
    clipped = tf_multitier.get_embedding_variable("clipped", 5, ev_option=options)

    def ours(given):
        parts = [given[:7], given[7:14], given[14:]]  # "div": 20 rows in three parts
        arguments = [ev, clipped, given, parts], [ids] * 4, [combiner] * 4, [weights] * 4
        norms = [None, 0.8, None, 0.8]
        return nn.group_embedding_lookup_sparse(
            *arguments, partition_strategy="div", max_norms=norms
        )

    def stock(given):
        look_up = tf.nn.embedding_lookup_sparse
        plain = look_up(given, ids, weights, combiner)
        return [plain, look_up(given, ids, weights, combiner, max_norm=0.8)]

    def gradients(of):
        def both():
            given = tf.constant(initial)
            values, [slope] = world.with_gradients(lambda: _loss(of(given)), [given])
            return values, tf.convert_to_tensor(slope)

        return both

    found, slope = world.run(gradients(ours))
    (plain, cut), expected = world.run(gradients(stock))
    for got, want in zip(found, (plain, cut, plain, cut)):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(slope, expected, rtol=2e-5, atol=2e-6)
    # The tables train as the static rows would.
    world.step(lambda: _loss(ours(tf.constant(initial)))[1], [ev, clipped], "sgd", 1.0)()
    halves = [
        world.run(lambda v=v: tf.nn.embedding_lookup(v, np.arange(VOCABULARY)))
        for v in (ev, clipped)
    ]
    np.testing.assert_allclose(2 * initial - sum(halves), expected, rtol=2e-4, atol=2e-5)


def _loss(values):
    return values, tf.add_n([tf.reduce_sum(tf.square(v - 1.0)) for v in values])


def test_dense_ids_of_any_shape(world):
    given = matrix(2)
    params = [table("ev", 3), table("parts", 3, parts=2)]
    ids = [
        np.array([[1, -2], [3, 1]], np.int64),
        np.array(4, np.int32),
        np.array([0, 19, 7], np.int64),
        np.zeros([0, 2], np.int64),
    ]

    def look_up(static):
        parts = [static[:7], static[7:14], static[14:]]
        every = [params[0], static, parts, params[1]]
        return nn.group_embedding_lookup(every, ids, partition_strategy="div")

    def values_and_gradient():
        static = tf.constant(given)

        def both():
            out = look_up(static)
            return out, tf.reduce_sum(out[0]) + tf.reduce_sum(out[2])

        values, [slope] = world.with_gradients(both, [static])
        return values, tf.convert_to_tensor(slope)

    got, slope = world.run(values_and_gradient)
    assert [o.shape for o in got] == [(2, 2, 3), (2,), (3, 2), (0, 2, 3)]
    expected = world.run(lambda: tf.nn.embedding_lookup(params[0], ids[0]))
    np.testing.assert_array_equal(got[0], expected)
    np.testing.assert_array_equal(got[1], given[4])
    np.testing.assert_array_equal(got[2], given[[0, 19, 7]])
    np.testing.assert_array_equal(np.flatnonzero(slope[:, 0]), [0, 7, 19])
    loss = lambda: tf.reduce_sum(look_up(tf.constant(given))[0])
    world.step(loss, params[:1], "sgd", 1.0)()
    keys, _, _, counts = world.run(params[0].export)
    assert dict(zip(keys.tolist(), counts.tolist())) == {1: 2, -2: 1, 3: 1}


@pytest.mark.parametrize(
    "combiner, max_norm, is_sequence",
    [
        ("sum", 0.7, False),
        ("mean", None, False),
        ("sqrtn", 0.7, False),
        ("sum", None, True),
        ("mean", 0.7, True),
    ],
)
def test_gradients_of_weights_and_values_are_finite_differences(
    world, combiner, max_norm, is_sequence
):
    rng = np.random.default_rng(9)
    rows = [[3, 1, 3], [], [0, 2]]
    start = rng.uniform(0.5, 2.0, 5).astype(np.float32)
    variable, ev = static("var", 3, seed=4), table("ev", 3)
    target = rng.normal(size=(3, 3, 3) if is_sequence else (3, 3)).astype(np.float32)

    def loss_of(param):
        def loss(weights):
            ids = sparse(rows)
            [out] = nn.group_embedding_lookup_sparse(
                [param],
                [ids],
                [combiner],
                [tf.SparseTensor(ids.indices, weights, ids.dense_shape)],
                is_sequence=is_sequence,
                max_norms=max_norm,
            )
            return tf.reduce_sum(out * target)

        return loss

    def gradient_of(loss, *sources):
        def gradient(weights):
            value = lambda: (tf.zeros([]), loss(weights))
            [found] = world.with_gradients(value, list(sources) or [weights])[1]
            return tf.convert_to_tensor(found)

        return gradient

    slope = lambda f: (f(1e-2) - f(-1e-2)) / 2e-2
    losses = [loss_of(variable), loss_of(ev)]
    for loss in losses:
        found = world.run(gradient_of(loss), start)
        for i in range(5):
            moved = lambda step: world.run(loss, start + np.float32(step) * (np.arange(5) == i))
            assert found[i] == pytest.approx(slope(moved), abs=2e-2)
    dense = world.run(gradient_of(losses[0], variable), start)
    initial = world.run(lambda: tf.convert_to_tensor(variable))
    assign = lambda value: tf.convert_to_tensor(variable.assign(value))
    for row, column in np.ndindex(4, 3):

        def moved(step):
            value = initial.copy()
            value[row, column] += step
            world.run(assign, value)
            return world.run(losses[0], start)

        assert dense[row, column] == pytest.approx(slope(moved), abs=2e-2)

"""Lookups and gradients under tf.GradientTape. For each path: that the gradient is there, and what it trains."""

import gc
import types

import numpy as np
import pytest
from pairs import pairwise
import tensorflow as tf

import tf_multitier
from tf_multitier._src.execution import origins
from worlds import WORLDS
from worlds import make_world
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
v1 = tf.compat.v1
nn = tf_multitier.nn


def make(name="ev", dim=4, parts=1, **kwargs):
    return tf_multitier.get_embedding_variable(
        name,
        dim,
        initializer=tf.random_uniform_initializer(-1, 1, seed=3),
        partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
        **kwargs,
    )


SPARSE = tf.sparse.from_dense([[1, 2, 0], [3, 3, 0], [1, 1, 1]])
RAGGED = tf.ragged.constant([[1, 2], [3, 3], [1, 1, 1]], dtype=tf.int64)
WEIGHTS = SPARSE.with_values(tf.constant([1.0, 2.0, 0.5, 1.5, 1.0, 3.0, 2.0]))

# {path: (function of variable -> values, occurrences of keys 1, 2 and 3)}
PATHS = {
    "dense": (lambda ev: tf.nn.embedding_lookup(ev, [[1, 2], [3, 3]]), [1, 1, 2]),
    "dense v1": (lambda ev: v1.nn.embedding_lookup(ev, [1, 2, 3]), [1, 1, 1]),
    "dense max_norm": (lambda ev: tf.nn.embedding_lookup(ev, [1, 2, 3], max_norm=0.5), [1, 1, 1]),
    "gather": (lambda ev: tf.gather(ev, [1, 1, 2, 3]), [2, 1, 1]),
    "sparse_read": (lambda ev: ev.sparse_read([1, 2, 3]), [1, 1, 1]),
    "sparse": (lambda ev: tf.nn.embedding_lookup_sparse(ev, SPARSE, None), [4, 1, 2]),
    "sparse weights": (
        lambda ev: tf.nn.embedding_lookup_sparse(ev, SPARSE, WEIGHTS, "sqrtn", 0.5),
        [4, 1, 2],
    ),
    "sparse v1": (lambda ev: v1.nn.embedding_lookup_sparse(ev, SPARSE, None), [4, 1, 2]),
    "ragged": (lambda ev: tf.nn.embedding_lookup_sparse(ev, RAGGED, None, "sum"), [4, 1, 2]),
    "ragged v1": (lambda ev: v1.nn.embedding_lookup_sparse(ev, RAGGED, None), [4, 1, 2]),
    "safe": (lambda ev: tf.nn.safe_embedding_lookup_sparse(ev, SPARSE, default_id=7), [4, 1, 2]),
    "group": (lambda ev: nn.group_embedding_lookup([ev], [[1, 2, 2]])[0], [1, 2, 0]),
    "group sparse": (
        lambda ev: nn.group_embedding_lookup_sparse([ev, ev], [SPARSE, RAGGED], "sum", concat=True),
        [8, 2, 4],
    ),
    "group weights": (
        lambda ev: nn.group_embedding_lookup_sparse([ev], [SPARSE], "mean", [WEIGHTS])[0],
        [4, 1, 2],
    ),
    "twice": (
        lambda ev: tf.nn.embedding_lookup(ev, [1, 2]) + tf.nn.embedding_lookup(ev, [1, 3]),
        [2, 1, 1],
    ),
}
path = pytest.mark.parametrize("path", PATHS)


def loss_of(path, ev):
    values = PATHS[path][0](ev)
    return tf.reduce_sum(values * values * tf.range(1.0, values.shape[-1] + 1))


def numeric(path, ev, gradient):
    """The loss after a small step against `gradient`, and the loss that its square predicts."""
    before = loss_of(path, ev)
    tf_multitier.optimizers.SGD(1e-4).apply_gradients([(gradient, ev)])
    squares = tf.convert_to_tensor(sum_by_key(gradient) ** 2)
    return loss_of(path, ev) - before, -1e-4 * tf.reduce_sum(squares)


def sum_by_key(gradient):
    keys, where = tf.unique(gradient.indices)
    return tf.math.unsorted_segment_sum(gradient.values, where, tf.size(keys))


@path
def test_the_tape_has_the_gradient_of_each_path_and_it_descends(path):
    ev = make()
    with tf.GradientTape() as tape:
        loss = loss_of(path, ev)
    assert [v is ev for v in tape.watched_variables()] == [True]
    gradient = tape.gradient(loss, ev)
    assert isinstance(gradient, tf.IndexedSlices) and set(gradient.indices.numpy()) <= {1, 2, 3, 7}
    found, predicted = numeric(path, ev, gradient)
    assert predicted < 0
    np.testing.assert_allclose(found, predicted, rtol=0.05)


@path
@pytest.mark.parametrize("where", ["eager", "inside", "around"])
def test_each_path_counts_occurrences_wherever_the_tape_is(path, where):
    ev, optimizer = make(), tf_multitier.optimizers.SGD(0.1)
    forward = lambda: loss_of(path, ev)
    if where == "around":
        forward = tf.function(forward)

    def step():
        with tf.GradientTape() as tape:
            loss = forward()
        optimizer.apply_gradients([(tape.gradient(loss, ev), ev)])

    (tf.function(step) if where == "inside" else step)()
    if (
        path == "ragged v1" and where != "inside"
    ):  # TensorFlow's own code: it looks up distinct keys
        assert ev.get_frequency([1, 2, 3]).numpy().tolist() == [1, 1, 1]
        return
    assert ev.get_frequency([1, 2, 3]).numpy().tolist() == PATHS[path][1]
    assert set(ev.get_version([1, 2]).numpy()) == {
        0
    }  # one update, also of a key in several lookups


def test_gradients_of_several_batches_are_concatenated():
    ev, gradients = make(), []
    before = tf.nn.embedding_lookup(ev, [1, 2, 3]).numpy()
    for ids in ([1, 2], [2, 3]):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, ids))
        gradients.append(tape.gradient(loss, ev))
    values, indices = (
        tf.concat([getattr(g, part) for g in gradients], 0) for part in ("values", "indices")
    )
    tf_multitier.optimizers.SGD(1.0).apply_gradients([(tf.IndexedSlices(values, indices), ev)])
    after = tf.nn.embedding_lookup(ev, [1, 2, 3]).numpy()
    np.testing.assert_allclose(before - after, np.outer([1, 2, 1], np.ones(4)), rtol=1e-6)


def test_jacobians_are_those_of_the_values():
    ev = make()
    with tf.GradientTape(persistent=True) as tape:
        values = tf.nn.embedding_lookup(ev, [1, 2])
        loss = tf.reduce_sum(values * values, 1)
        column = loss[:, None]
    expected = 2 * np.eye(2)[:, :, None] * values.numpy()
    np.testing.assert_allclose(tape.jacobian(loss, values), expected, rtol=1e-6)
    np.testing.assert_allclose(tape.batch_jacobian(column, values)[:, 0], 2 * values, rtol=1e-6)


@path
@pytest.mark.parametrize("nested", [False, True])
def test_a_tape_around_a_function_has_the_gradient_of_each_call(path, nested):
    ev = make()
    inner = tf.function(lambda: loss_of(path, ev))
    forward = tf.function(lambda: 2.0 * inner()) if nested else inner
    for _ in range(3):  # the first call traces the function, the others do not
        with tf.GradientTape() as tape:
            loss = forward()
        assert [v is ev for v in tape.watched_variables()] == [True]
        assert tape.gradient(loss, ev) is not None


def test_a_tape_around_a_function_trains_all_parts_of_a_variable():
    ev = make(parts=3)
    forward = tf.function(lambda: tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 2, 3])))
    optimizer = tf_multitier.optimizers.SGD(0.25)
    before = tf.nn.embedding_lookup(ev, [1, 2, 3]).numpy()
    for _ in range(4):
        with tf.GradientTape() as tape:
            loss = forward()
        optimizer.apply_gradients([(tape.gradient(loss, ev), ev)])
    after = tf.nn.embedding_lookup(ev, [1, 2, 3]).numpy()
    np.testing.assert_allclose(after, before - 1, rtol=1e-6)


@pairwise(rule=["sgd", "adagrad", "adam"], grouped=[False, True], parts=[1, 3])
def test_each_world_trains_the_same_bits(rule, grouped, parts):
    rng = np.random.default_rng(5)
    batches = [[rng.integers(0, 40, (16, 3)), rng.integers(0, 40, (16, 2))] for _ in range(20)]

    def loss(variables, batch):
        a, b = (tf.RaggedTensor.from_tensor(ids) for ids in batch)
        if grouped:
            x, y = nn.group_embedding_lookup_sparse(variables, [a, b], ["mean", "sum"])
        else:
            x = tf_multitier.lookup.embedding_lookup_sparse(variables[0], a, combiner="mean")
            y = tf_multitier.lookup.embedding_lookup_sparse(variables[1], b, combiner="sum")
        return tf.reduce_sum((x * y + x) ** 2) / 100

    results = []
    for name in WORLDS:
        world = make_world(name)
        world.variables(lambda: [make("a", parts=parts), make("b", parts=parts)])
        world.train(loss, rule, batches)
        results.append(world.ask(lambda variables: [v.export() for v in variables]))
    assert results[0][0][0].size > 20
    same_bits(results[0], results[1])
    same_bits(results[0], results[2])


def test_each_group_of_an_eager_step_trains_its_own_keys():
    tables, optimizer = [make(f"t{i}") for i in range(4)], tf_multitier.optimizers.SGD(0.1)
    for step in range(50):
        with tf.GradientTape() as tape:
            losses = []
            for i, ev in enumerate(tables):  # a group of one table each
                ids = tf.RaggedTensor.from_tensor([[1000 * i + step, 1000 * i + step + 1]])
                losses += nn.group_embedding_lookup_sparse([ev], [ids], ["sum"])
            loss = tf.add_n([tf.reduce_sum(value) for value in losses])
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
    for i, ev in enumerate(tables):
        keys, _, _, frequencies = ev.export()
        assert keys.numpy().tolist() == list(range(1000 * i, 1000 * i + 51))
        assert frequencies.numpy().tolist() == [1] + [2] * 49 + [1]


def test_groups_keep_apart_when_the_tensors_of_their_gradients_are_deleted():
    """A new tensor may have the id of a deleted one: two groups once shared an update, with the keys of the first."""
    result = lambda i: types.SimpleNamespace(keys=[tf.constant([i])])
    groups = [origins.GroupGradient.of_result(result(i), None, [], [], []) for i in range(100)]
    assert len({group.key for group in groups}) == 100


def test_a_persistent_tape_gives_the_gradient_of_each_target():
    a, b = make("a"), make("b")
    with tf.GradientTape(persistent=True) as tape:
        x, y = nn.group_embedding_lookup([a, b], [[1], [2]])
        first, second = tf.reduce_sum(x), tf.reduce_sum(2 * y)
    assert tape.gradient(first, [a, b])[1] is None
    assert tape.gradient(second, [a, b])[0] is None
    assert tape.gradient(second, b).values.numpy().tolist() == [[2.0] * 4]
    assert tape.gradient(first, a).values.numpy().tolist() == [[1.0] * 4]


def test_nested_tapes_give_second_derivatives_of_dense_lookups():
    ev = make()
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            values = tf.nn.embedding_lookup(ev, [1, 2])
            loss = tf.reduce_sum(values**3)
        slope = tf.reduce_sum(inner.gradient(loss, ev).values)
    expected = 6 * tf.nn.embedding_lookup(ev, [1, 2])
    np.testing.assert_allclose(outer.gradient(slope, ev).values, expected, rtol=1e-6)


@pytest.mark.parametrize("path", ["group", "sparse", "ragged"])
def test_second_derivatives_of_pooled_lookups_are_refused(path):
    ev = make()
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum(PATHS[path][0](ev) ** 3)
        slope = tf.reduce_sum(inner.gradient(loss, ev).values)
    with pytest.raises(LookupError, match="second derivatives work through tf.nn.embedding_lookup"):
        outer.gradient(slope, ev)


def test_a_member_that_the_loss_does_not_use_is_not_trained():
    for compiled in (lambda f: f, tf.function):
        a, b, optimizer = make("a"), make("b"), tf_multitier.optimizers.Adam(0.1)

        def step():
            with tf.GradientTape() as tape:
                x, _ = nn.group_embedding_lookup([a, b], [[1], [2]])
                loss = tf.reduce_sum(x)
            optimizer.apply_gradients(zip(tape.gradient(loss, [a, b]), [a, b]))

        compiled(step)()
        assert (a.total_count(), b.total_count()) == (1, 0)


def test_weights_get_their_gradient():
    ev, factors = make(), tf.Variable(tf.ones([7]))
    for compiled in (lambda f: f, tf.function):

        def gradients():
            with tf.GradientTape() as tape:
                weights = SPARSE.with_values(factors * 1.0)
                single = tf.nn.embedding_lookup_sparse(ev, SPARSE, weights, "sum")
                [grouped] = nn.group_embedding_lookup_sparse([ev], [SPARSE], "sum", [weights])
                loss = tf.reduce_sum(single) + tf.reduce_sum(grouped)
            return tape.gradient(loss, factors)

        expected = 2 * tf.reduce_sum(tf.nn.embedding_lookup(ev, SPARSE.values), 1)
        np.testing.assert_allclose(compiled(gradients)(), expected, rtol=1e-5)


def test_a_static_variable_in_a_group_gets_its_gradient():
    ev, static = make(), tf.Variable(tf.ones([5, 3]))
    with tf.GradientTape() as tape:
        x, y = nn.group_embedding_lookup([ev, static], [[1], [2, 2]])
        loss = tf.reduce_sum(x) + tf.reduce_sum(y)
    _, gradient = tape.gradient(loss, [ev, static])
    assert tf.convert_to_tensor(gradient).numpy().tolist()[2] == [2.0] * 3


def test_a_partitioned_variable_is_a_source_of_gradients():
    ev = make(parts=3)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, list(range(10))))
    gradients = tape.gradient(loss, ev)
    assert [type(g) for g in gradients] == [tf.IndexedSlices] * 3
    tf_multitier.optimizers.SGD(1.0).apply_gradients([(gradients, ev)])
    assert ev.total_count() == 10


# ---- TensorFlow's own wrappers, and loops


def custom_loss(ev):
    @tf.custom_gradient
    def doubled(x):
        def grad(dy, variables):
            assert variables[0] is ev
            return tf.reduce_sum(dy), [tf.IndexedSlices(2 * dy, tf.constant([1], tf.int64))]

        return tf.nn.embedding_lookup(ev, [1]) * x, grad

    return tf.reduce_sum(doubled(tf.constant(1.0)))


@pytest.mark.parametrize("where", ["eager", "inside", "around"])
def test_custom_gradient_around_a_lookup_trains_the_variable(where):
    ev = make()

    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.function(lambda: custom_loss(ev))() if where == "around" else custom_loss(ev)
        found = tape.gradient(loss, ev)
        return found.indices, found.values

    keys, values = (tf.function(gradient) if where == "inside" else gradient)()
    assert keys.numpy().tolist() == [1] and values.numpy().tolist() == [[2.0] * 4]


@pytest.mark.parametrize("grouped", [False, True])
def test_training_through_a_loop_is_refused(grouped):
    ev = make()

    @tf.function
    def through(n):
        with tf.GradientTape() as tape:
            total = tf.constant(0.0)
            for i in tf.range(n):
                if grouped:
                    total += tf.reduce_sum(nn.group_embedding_lookup([ev], [[i]])[0])
                else:
                    total += tf.reduce_sum(tf.nn.embedding_lookup(ev, [i]))
        return tape.gradient(total, ev)

    with pytest.raises(NotImplementedError, match="inside a loop is not supported"):
        through(tf.constant(3))


def test_a_loop_of_steps_trains_each_step():
    a, b, optimizer = make("a"), make("b"), tf_multitier.optimizers.Adagrad(0.1)

    @tf.function
    def inner(i):
        return tf.reduce_sum(tf.nn.embedding_lookup(a, [i]))

    @tf.function
    def steps(n):
        for i in tf.range(n):
            with tf.GradientTape() as tape:
                [x] = nn.group_embedding_lookup([b], [[i, i]])
                loss = inner(i) + tf.reduce_sum(x)
            optimizer.apply_gradients(zip(tape.gradient(loss, [a, b]), [a, b]))

    steps(tf.constant(3))
    assert a.get_version([0, 1, 2]).numpy().tolist() == [0, 1, 2]
    assert b.get_frequency([0, 1, 2]).numpy().tolist() == [2, 2, 2]


def test_loops_in_evaluation_work():
    ev = make()
    expected = tf.nn.embedding_lookup(ev, [4, 5])
    mapped = tf.map_fn(
        lambda i: tf.nn.embedding_lookup(ev, i), tf.constant([4, 5]), fn_output_signature=tf.float32
    )
    same_bits(mapped, expected)

    @tf.function
    def loop():
        total = tf.zeros([4])
        for i in tf.range(4, 6):
            total += tf.nn.embedding_lookup(ev, i)
        return total

    same_bits(loop(), expected[0] + expected[1])


def test_a_branch_of_cond_trains_its_lookup():
    ev, optimizer = make(), tf_multitier.optimizers.SGD(1.0)

    @tf.function
    def step(flag):
        with tf.GradientTape() as tape:
            if flag:
                loss = tf.reduce_sum(tf.nn.embedding_lookup_sparse(ev, SPARSE, None))
            else:
                loss = tf.reduce_sum(nn.group_embedding_lookup([ev], [[8, 8]])[0])
        optimizer.apply_gradients([(tape.gradient(loss, ev), ev)])

    step(tf.constant(False))
    step(tf.constant(True))
    assert ev.get_frequency([1, 2, 3, 8]).numpy().tolist() == [4, 1, 2, 2]


# ---- the order of ops in a function, and growth


def test_lookups_of_a_function_do_not_wait_for_each_other():
    ev, optimizer = make(), tf_multitier.optimizers.SGD(1.0)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            a, b = tf.nn.embedding_lookup(ev, [1]), tf.nn.embedding_lookup(ev, [2])
            loss = tf.reduce_sum(a + b)
        optimizer.apply_gradients([(tape.gradient(loss, ev), ev)])
        return tf.nn.embedding_lookup(ev, [1])

    ops = step.get_concrete_function().graph.get_operations()
    a, b, after = (op for op in ops if op.type == "MultitierLookup")
    [update] = (op for op in ops if op.type == "MultitierApply")
    assert not a.control_inputs and not b.control_inputs
    assert {a, b} <= set(update.control_inputs) and update in after.control_inputs
    before = tf.nn.embedding_lookup(ev, [1])
    same_bits(step(), before - 1)  # a read after the update sees it


def test_eager_steps_leave_nothing_behind():
    a, b, optimizer = make("a"), make("b"), tf_multitier.optimizers.Adagrad(0.1)

    def step():
        with tf.GradientTape() as tape:
            x, y = nn.group_embedding_lookup_sparse([a, b], [SPARSE, RAGGED], "sum")
            loss = tf.reduce_sum(x * y) + tf.reduce_sum(
                tf.nn.embedding_lookup_sparse(a, SPARSE, None)
            )
        optimizer.apply_gradients(zip(tape.gradient(loss, [a, b]), [a, b]))

    for _ in range(5):
        step()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200):
        step()
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert not v1.get_default_graph().get_operations()

"""Lookups and updates in branches: each counts the occurrences that it would count outside."""

import numpy as np
import pytest
from pairs import pairwise
import tensorflow as tf
from column_util import embedded
from column_util import ints
from group_util import sparse
from group_util import table
from variable_util import initialized_session

from tf_multitier import feature_column as fc
from tf_multitier import nn

v1 = tf.compat.v1
STEPS = 2


@pytest.fixture
def branches(graph):
    """A graph with control flow v2, in which lookups of a branch can be trained."""
    was = v1.control_flow_v2_enabled()
    v1.enable_control_flow_v2()
    yield graph
    (v1.enable_control_flow_v2 if was else v1.disable_control_flow_v2)()


def one(ev):
    return tf.nn.embedding_lookup_sparse(ev, sparse([[1, 1, 2], [], [2, -5]]), None, combiner="sum")


def dense(ev):
    return tf.nn.embedding_lookup(ev, [1, 1, 2, 2, -5])


def safe(ev):
    return tf.nn.safe_embedding_lookup_sparse(
        ev, sparse([[1, 1, 2], [], [2]]), None, combiner="sum", default_id=-5
    )


def group(ev):
    return sum(
        nn.group_embedding_lookup_sparse([ev, ev], [sparse([[1, 1, 2]]), sparse([[2, -5]])], "sum")
    )


def plain(ev, lookup, taken):
    return tf.reduce_sum(lookup(ev))


def cond(ev, lookup, taken):
    return tf.cond(taken, lambda: tf.reduce_sum(lookup(ev)), lambda: 0.0)


def nested(ev, lookup, taken):
    return tf.cond(taken, lambda: cond(ev, lookup, taken), lambda: 0.0)


def both_branches(ev, lookup, taken):
    return tf.cond(
        taken, lambda: tf.reduce_sum(lookup(ev)), lambda: tf.reduce_sum(2.0 * lookup(ev))
    )


def switch_case(ev, lookup, taken):
    return tf.switch_case(
        tf.cast(taken, tf.int32), [lambda: 0.0, lambda: tf.reduce_sum(lookup(ev))]
    )


def inside_and_outside(ev, lookup, taken):
    return (cond(ev, lookup, taken) + plain(ev, lookup, taken)) / 2.0


def trained(make_step, parts):
    """[(key, first element, frequency)] after STEPS steps of learning rate 1 from zero."""
    ev = table("ev", 4, parts)
    step = make_step(ev, v1.placeholder_with_default(True, []))
    with initialized_session() as session:
        before = session.run(ev.peek([1, 2, -5]))
        for _ in range(STEPS):
            session.run(step)
        keys, _, _, frequencies = session.run(ev.export())
        moved = before - session.run(ev.peek([1, 2, -5]))
    return dict(zip(keys.tolist(), frequencies.tolist())), moved[:, 0].round(5).tolist()


@pairwise(
    loss=[plain, cond, nested, both_branches, switch_case],
    lookup=[one, dense, safe, group],
    parts=[1, 2],
)
def test_a_lookup_in_a_branch_counts_occurrences(branches, loss, lookup, parts):
    def step(ev, taken):
        return v1.train.GradientDescentOptimizer(1.0).minimize(loss(ev, lookup, taken))

    assert trained(step, parts) == (
        {1: 2 * STEPS, 2: 2 * STEPS, -5: STEPS},
        [2.0 * STEPS, 2.0 * STEPS, 1.0 * STEPS],
    )


@pytest.mark.parametrize("lookup", [one, group])
def test_lookups_in_a_branch_and_outside_of_it_both_count(branches, lookup):
    def step(ev, taken):
        return v1.train.GradientDescentOptimizer(1.0).minimize(
            inside_and_outside(ev, lookup, taken)
        )

    assert trained(step, 2) == (
        {1: 4 * STEPS, 2: 4 * STEPS, -5: 2 * STEPS},
        [2.0 * STEPS, 2.0 * STEPS, 1.0 * STEPS],
    )


@pairwise(gradients_inside=[False, True], lookup=[one, dense, group], parts=[1, 2])
def test_an_update_in_a_branch_counts_occurrences(branches, gradients_inside, lookup, parts):
    """Programs that accumulate gradients or skip a step update in a branch."""

    def step(ev, taken):
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        make = lambda: optimizer.compute_gradients(tf.reduce_sum(lookup(ev)), list(ev.parts))
        pairs = None if gradients_inside else make()
        return tf.cond(
            taken, lambda: tf.group(optimizer.apply_gradients(pairs or make())), tf.no_op
        )

    assert trained(step, parts) == (
        {1: 2 * STEPS, 2: 2 * STEPS, -5: STEPS},
        [2.0 * STEPS, 2.0 * STEPS, 1.0 * STEPS],
    )


def test_columns_in_a_branch_count_occurrences(branches):
    features = {"a": sparse([[1, 1, 2]]), "b": sparse([[1, 1, 1]])}
    columns = [embedded(ints(key), combiner="sum") for key in ("a", "b")]
    layer = v1.make_template("net", lambda: tf.reduce_sum(fc.input_layer(features, columns)))
    layer()  # makes the variables
    step = v1.train.GradientDescentOptimizer(1.0).minimize(
        tf.cond(v1.placeholder_with_default(True, []), layer, lambda: 0.0)
    )
    frequencies = [
        v.get_frequency([1, 2]) for v in sorted(v1.trainable_variables(), key=lambda v: v.name)
    ]
    with initialized_session() as session:
        session.run(step)
        np.testing.assert_array_equal(session.run(frequencies), [[2, 1], [3, 0]])


@pytest.mark.parametrize(
    "lookup",
    [
        lambda ev, ids: nn.group_embedding_lookup_sparse([ev], [ids], "sum")[0],
        lambda ev, ids: tf.nn.embedding_lookup_sparse(ev, ids, None, combiner="sum"),
    ],
)
def test_an_empty_batch_in_a_branch_trains_nothing(branches, lookup):
    ev, ids = table("ev", 4), v1.sparse_placeholder(tf.int64)
    loss = tf.cond(
        v1.placeholder_with_default(True, []), lambda: tf.reduce_sum(lookup(ev, ids)), lambda: 0.0
    )
    step = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
    with initialized_session() as session:
        session.run(
            step,
            {ids: v1.SparseTensorValue(np.zeros((0, 2), np.int64), np.zeros(0, np.int64), [2, 1])},
        )
        assert session.run(ev.total_count()) == 0


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("lookup", [one, safe, dense, group])
def test_clipping_by_norm_means_the_same_in_a_branch(branches, lookup, parts):
    """The norm is that of a gradient with one sum for each key of a pooled lookup, as for a tf.Variable."""

    def norm_and_step(ev, loss, taken):
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        gradients, variables = zip(
            *optimizer.compute_gradients(loss(ev, lookup, taken), list(ev.parts))
        )
        clipped, norm = tf.clip_by_global_norm(gradients, 1.0)
        return norm, optimizer.apply_gradients(zip(clipped, variables))

    def run(name, loss):
        ev = table(name, 4, parts)
        norm, step = norm_and_step(ev, loss, v1.placeholder_with_default(True, []))
        with initialized_session() as session:
            before, found = session.run(ev.peek([1, 2, -5])), session.run([norm, step])[0]
            return found, before - session.run(ev.peek([1, 2, -5]))

    (outside, moved_outside), (inside, moved_inside) = run("outside", plain), run("inside", cond)
    assert inside == pytest.approx(outside, rel=1e-6)
    np.testing.assert_allclose(moved_inside, moved_outside, rtol=1e-6)

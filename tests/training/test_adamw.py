"""AdamW: which variables decay, and by how much."""

import numpy as np
import pytest
import tensorflow as tf

import reference_rules
import tf_multitier
from variable_util import make
import worlds

v1 = tf.compat.v1
F = np.float32
ADAM = dict(
    learning_rate=0.1,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-8,
    beta1_power=F(0.9),
    beta2_power=F(0.999),
)


def _adamw(decay=0.01):
    return tf_multitier.train.AdamWOptimizer(decay, learning_rate=0.1)


def _trained(step):
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(step)
        return session.run(v1.trainable_variables())


def _stepped(value, grad, decay):
    """Decay that is not scaled by the learning rate, then Adam's step."""
    value = value - F(decay) * value
    slots = reference_rules.make_slots("adam", *value.shape, {})
    reference_rules.apply_rule("adam", value, slots, grad, ADAM)
    return value


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("use_resource", [False, True])
def test_ordinary_variables_decay_before_the_step_and_not_times_the_rate(
    graph, sparse, use_resource
):
    initial = np.random.default_rng(1).standard_normal((6, 3)).astype(F)
    table = v1.get_variable("t", initializer=initial, use_resource=use_resource)
    rows = [1, 4] if sparse else list(range(6))
    read = tf.gather(table, rows) if sparse else table
    [found] = _trained(_adamw(lambda: 0.01).minimize(tf.reduce_sum(read * 2)))
    expected = initial.copy()
    expected[rows] = _stepped(initial[rows], np.full((len(rows), 3), 2, F), 0.01)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("how", ["minimize", "apply_gradients"])
@pytest.mark.parametrize("chosen", [None, [], ["a"], ["parted"]])
def test_decay_var_list_chooses_ordinary_variables(graph, how, chosen):
    variables = {
        "a": v1.get_variable("a", [2, 2], initializer=v1.ones_initializer()),
        "parted": v1.get_variable(
            "parted",
            [4, 2],
            initializer=v1.ones_initializer(),
            partitioner=v1.fixed_size_partitioner(2),
        ),
    }
    loss = tf.reduce_sum(variables["a"]) + tf.reduce_sum(tf.convert_to_tensor(variables["parted"]))
    chosen_variables = None if chosen is None else [variables[name] for name in chosen]
    optimizer = _adamw(0.25)
    if how == "minimize":
        step = optimizer.minimize(loss, decay_var_list=chosen_variables)
    else:
        step = optimizer.apply_gradients(
            optimizer.compute_gradients(loss), decay_var_list=chosen_variables
        )
    for variable, value in zip(v1.trainable_variables(), _trained(step)):
        decays = chosen is None or variable.op.name.split("/")[0] in chosen
        np.testing.assert_array_equal(
            value,
            _stepped(np.ones((2, 2), F), np.ones((2, 2), F), 0.25 if decays else 0),
            variable.name,
        )


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("decays", [True, False])
def test_decay_var_list_chooses_embedding_variables(graph, parts, decays):
    chosen, other = (
        make(name, 2, parts, initializer=v1.ones_initializer()) for name in ("chosen", "other")
    )
    rows = [tf.nn.embedding_lookup(table, tf.range(5, dtype=tf.int64)) for table in (chosen, other)]
    step = _adamw(0.25).minimize(tf.reduce_sum(rows), decay_var_list=[chosen] if decays else [])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(step)
        found = session.run(rows)
    for values, decay in zip(found, (0.25 if decays else 0.0, 0.0)):
        expected = np.ones((5, 2), F)
        reference_rules.apply_rule(
            "adamw",
            expected,
            reference_rules.make_slots("adamw", 5, 2, {}),
            np.ones((5, 2), F),
            dict(ADAM, weight_decay=decay),
        )
        np.testing.assert_array_equal(values, expected)


def test_a_list_holds_for_its_own_call(graph):
    variable = v1.get_variable("v", [2], initializer=v1.ones_initializer())
    optimizer, loss = _adamw(0.5), tf.reduce_sum(variable)
    optimizer.minimize(loss, decay_var_list=[])
    [found] = _trained(optimizer.minimize(loss))
    assert found.max() < 0.5


def test_rows_decay_in_every_world(world, monkeypatch):
    """As the rule adamw in v1. TensorFlow 2's optimizer subtracts rate * decay before the step, as Keras does."""
    pair = (
        lambda rate: tf_multitier.train.AdamWOptimizer(0.25, learning_rate=rate, epsilon=1e-8),
        lambda rate: tf_multitier.optimizers.AdamW(rate, weight_decay=0.5, epsilon=1e-8),
    )
    monkeypatch.setitem(worlds.OPTIMIZERS, "adamw", pair)
    tables = [
        make(name, 2, parts, initializer=v1.ones_initializer())
        for name, parts in (("one", 1), ("parted", 2))
    ]
    look_up = lambda: [
        tf.nn.embedding_lookup(table, tf.range(5, dtype=tf.int64)) for table in tables
    ]
    step = world.step(lambda: tf.reduce_sum(look_up()), tables, "adamw", 0.5)
    expected, slots = np.ones((5, 2), F), reference_rules.make_slots("adamw", 5, 2, {})
    for count in (1, 2):
        step()
        powers = dict(beta1_power=F(0.9) ** F(count), beta2_power=F(0.999) ** F(count))
        hyper, grad = dict(ADAM, learning_rate=0.5, **powers), np.ones((5, 2), F)
        if world.is_graph:
            hyper["weight_decay"] = 0.25
            reference_rules.apply_rule("adamw", expected, slots, grad, hyper)
        else:
            expected -= F(0.5 * 0.5) * expected
            reference_rules.apply_rule("adam", expected, slots, grad, hyper)
        for found in world.run(look_up):
            np.testing.assert_allclose(found, expected, rtol=1e-6)

"""The one op that trains the variables of a grouped lookup: the bits of separate ops, and updates that do not share the op."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import nn
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.training import group_updates
from tf_multitier._src.training import updates as our_optimizer
from group_util import RandomMember, initialized, kind, one_op_of_each_kind, sparse, table, v1
from worlds import make_world
from worlds import needs_eager
from worlds import same_bits
from worlds import WORLDS

OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.01),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.01, centered=True),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
    "adadelta": lambda: v1.train.AdadeltaOptimizer(0.5),
    "adam_async": lambda: tf_multitier.train.AdamAsyncOptimizer(0.01),
    "adamw": lambda: tf_multitier.train.AdamWOptimizer(0.01, 0.01),
    "rowwise_adagrad": lambda: tf_multitier.train.RowwiseAdagradOptimizer(0.1),
}


def apply_ops():
    return [
        op for op in v1.get_default_graph().get_operations() if kind(op) == "MultitierGroupApply"
    ]


def trained(monkeypatch, seed, name, change, alone):
    """(rows of the tables after 20 steps, update ops) of a random group; alone: an op a variable, which gets its sums."""
    rng = np.random.default_rng(seed)
    with monkeypatch.context() as patch, tf.Graph().as_default(), v1.Session() as session:
        if alone:
            key, find = group_updates._key, our_optimizer.group_unit_of
            patch.setattr(group_updates, "_key", lambda update: (key(update), update.variable.name))
            patch.setattr(
                our_optimizer,
                "group_unit_of",
                lambda g, handle: (lambda found: found and found._replace(unchanged=False))(
                    find(g, handle)
                ),
            )
        members = [RandomMember(rng, number) for number in range(6)]
        for member in members:
            member.kind = "table"
        variables = [member.variable("v") for member in members]
        ids, weights = zip(*[member.feeds() for member in members])
        out = nn.group_embedding_lookup_sparse(
            variables,
            ids,
            [m.combiner for m in members],
            weights,
            max_norms=[m.max_norm for m in members],
        )
        loss = sum(tf.reduce_sum(tf.square(o - 0.5)) for o in out)
        optimizer = OPTIMIZERS[name]()
        pairs = optimizer.compute_gradients(loss)
        if change == "clip":
            grads, given = zip(*pairs)
            pairs = list(zip(tf.clip_by_global_norm(grads, 0.5)[0], given))
        elif change == "some":
            pairs = [
                (g if i % 2 else tf.IndexedSlices(g.values * 0.5, g.indices, g.dense_shape), v)
                for i, (g, v) in enumerate(pairs)
            ]
        train = optimizer.apply_gradients(pairs, v1.train.get_or_create_global_step())
        initialized(session)
        for _ in range(20):
            session.run(train, {k: v for member in members for k, v in member.batch(rng).items()})
        rows = [
            session.run(part.export_rows()) for variable in variables for part in variable.parts
        ]
        return rows, apply_ops()


@pytest.mark.parametrize("change", ["none", "clip", "some"])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_groups_update_has_the_bits_of_an_update_each(monkeypatch, name, change):
    seed = int(np.random.default_rng().integers(1 << 30))
    print("seed", seed)
    (together, updates), (apart, updates_apart) = (
        trained(monkeypatch, seed, name, change, alone) for alone in (False, True)
    )
    assert len(updates_apart) == len(together)
    assert updates and one_op_of_each_kind([op.type for op in updates])
    for ours, other in zip(together, apart):
        assert len(ours) == len(other)
        for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(other)):
            np.testing.assert_array_equal(a, b)


def group(names=("a", "b", "c")):
    variables = [table(name, 4) for name in names]
    out = nn.group_embedding_lookup_sparse(
        variables, [sparse([[1, 2], [3]])] * len(variables), "sum"
    )
    return variables, tf.add_n([tf.reduce_sum(tf.square(o)) for o in out])


def test_sums_that_nothing_else_takes_are_not_asked_for(session):
    _, loss = group()
    v1.train.AdagradOptimizer(0.1).minimize(loss)
    (op,) = apply_ops()
    assert not any(op.get_attr("summed")) and "MultitierGroupLookupGrad" not in {
        kind(tensor.op) for tensor in op.inputs
    }


def test_two_optimizers_are_ops_of_their_own(session):
    variables, loss = group(("a", "b", "c", "d"))
    rate = tf.constant(0.1)
    steps = [
        v1.train.AdagradOptimizer(rate).minimize(loss, var_list=variables[:2]),
        v1.train.FtrlOptimizer(rate).minimize(loss, var_list=variables[2:]),
    ]
    assert sorted(op.get_attr("U") for op in apply_ops()) == [2, 2]
    initialized(session)
    session.run(steps)
    assert session.run([v.total_count() for v in variables]) == [3] * 4


def test_beta_powers_of_each_variable_go_into_one_op_and_one_out_of_range_names_its_variable(
    session,
):
    variables, loss = group()
    optimizer = tf_multitier.train.AdamAsyncOptimizer(0.1)
    train = optimizer.minimize(loss)
    (op,) = apply_ops()
    assert (op.get_attr("U"), op.get_attr("H")) == (3, 3 * 7)
    initialized(session)
    powers = {power.op.name: power for power in optimizer.variables()}
    session.run(powers["b/beta1_power"].assign(np.nan))
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match="variable 'b': optimizer adam_async: beta1_power: expected",
    ):
        session.run(train)
    assert session.run([v.total_count() for v in variables]) == [0] * 3
    session.run([powers["b/beta1_power"].assign(0.5), powers["c/beta1_power"].assign(0.25)])
    session.run(train)
    np.testing.assert_allclose(
        session.run([powers[f"{name}/beta1_power"] for name in "abc"]),
        [0.9 * 0.9, 0.5 * 0.9, 0.25 * 0.9],
        rtol=1e-6,
    )


def test_hyperparameters_are_once_those_of_the_rule_or_those_of_each_variable(session):
    variables, loss = group()
    v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    (op,) = apply_ops()
    handles, (plan, *grads, step, _) = list(op.inputs[:3]), op.inputs[3:]
    attributes = {
        name: op.get_attr(name)
        for name in (
            "units",
            "summed",
            "members",
            "joins",
            "rule",
            "slot_names",
            "slot_initial_values",
        )
    }
    apply = lambda rates: ops.multitier_group_apply(
        handles, plan, [], grads, step, [tf.constant(rate) for rate in rates], **attributes
    )
    initialized(session)
    for rates in ([], [0.1, 0.1], [0.1] * 4):
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=f"rule sgd: expected 1 hyperparameters, found {len(rates)}",
        ):
            session.run(apply(rates))
    values = [tf.nn.embedding_lookup(variable, [1, 2]) for variable in variables]
    for rates, steps in (([0.5], [0.5] * 3), ([0.0, 0.25, 0.125], [0.0, 0.25, 0.125])):
        before = session.run(values)
        slope = [2 * sum(v) for v in before]  # of the square of their sum
        session.run(apply(rates))
        for was, now, s, rate in zip(before, session.run(values), slope, steps):
            np.testing.assert_allclose(now, was - rate * s, rtol=1e-5, atol=1e-6)


def test_updates_of_two_graphs_of_the_same_names_share_no_op(monkeypatch):
    noted = []
    monkeypatch.setattr(
        group_updates, "later", lambda optimizer, update: noted.append(update) or tf.no_op()
    )
    for _ in range(2):
        with tf.Graph().as_default():
            _, loss = group()
            v1.train.AdagradOptimizer(0.1).minimize(loss)
    assert [u.variable.handle.name for u in noted[:3]] == [
        u.variable.handle.name for u in noted[3:]
    ]
    monkeypatch.setattr(group_updates, "_one_op", lambda updates: [u.variable for u in updates])
    some = [noted[0], noted[4], noted[2]]
    a, b_of_another, c = [update.variable for update in some]
    assert group_updates.made(some) == [[a, c], [b_of_another], [a, c]]


def test_a_variable_that_is_given_twice_is_in_no_op_twice(world):
    variables, ids = [table(name, 4) for name in "abc"], sparse([[1, 2], [3]])

    def loss():
        out = nn.group_embedding_lookup_sparse(variables, [ids] * 3, "sum")
        return tf.add_n([tf.reduce_sum(tf.square(o)) for o in out])

    world.step(loss, variables, change=lambda pairs: pairs + pairs[:1])()
    if world.is_graph:
        assert sorted(op.get_attr("U") for op in apply_ops()) == [1, 3]
    keys, _, _, counts = world.run(variables[0].export)
    assert sorted(zip(keys, counts)) == [(1, 2), (2, 2), (3, 2)]


def test_what_ends_the_step_gets_an_op_for_each_variable_and_the_optimizer_stays_as_it_was(session):
    variables, loss = group()
    given = []

    class Watching(v1.train.AdagradOptimizer):
        def _finish(self, update_ops, name_scope):
            given.append(list(update_ops))
            return super()._finish(update_ops, name_scope)

    optimizer = Watching(0.1)
    optimizer.minimize(loss)
    assert [type(op) for op in given[0]] == [tf.Operation] * 3 and "_finish" not in vars(optimizer)
    # A step that could not be built leaves no recorded update for the next step.
    pairs = optimizer.compute_gradients(loss)
    with pytest.raises(TypeError, match="expected IndexedSlices"):
        optimizer.apply_gradients([pairs[0], (tf.zeros([3, 4]), variables[1])])
    before = len(apply_ops())
    optimizer.apply_gradients(pairs[1:])
    assert [op.get_attr("U") for op in apply_ops()[before:]] == [2] and "_finish" not in vars(
        optimizer
    )


def test_what_depends_on_a_variables_update_runs_behind_it(session):
    variables, loss = group()

    class Counting(v1.train.GradientDescentOptimizer):
        def _finish(self, update_ops, name_scope):
            with tf.control_dependencies([update_ops[1]]):
                self.count = variables[1].total_count() + 0
            return super()._finish(update_ops, name_scope)

    optimizer = Counting(0.1)
    train = optimizer.minimize(loss)
    initialized(session)
    assert session.run([train, optimizer.count])[1] == 3


@pytest.mark.parametrize("lookups", ["grouped", "grouped twice", "ungrouped", "ungrouped twice"])
@pytest.mark.parametrize("behind", ["values", "indices", "indices joined anew"])
def test_a_control_input_on_the_way_to_the_update_is_kept(session, lookups, behind):
    variable, ids = table("a", 4), sparse([[1, 2], [3]])
    look_up = lambda: (
        nn.group_embedding_lookup_sparse([variable], [ids], "sum")[0]
        if lookups.startswith("grouped")
        else tf.nn.embedding_lookup_sparse(variable, ids, None, combiner="sum")
    )
    loss = tf.add_n(
        [tf.reduce_sum(tf.square(look_up())) for _ in range(1 + lookups.endswith("twice"))]
    )
    ran = v1.get_variable("ran", [], initializer=v1.zeros_initializer(), use_resource=True)
    optimizer = v1.train.AdagradOptimizer(0.1)
    ((g, _),) = optimizer.compute_gradients(loss, [variable])
    with tf.control_dependencies([ran.assign_add(1.0)]):
        values = tf.identity(g.values) if behind == "values" else g.values
        indices = tf.identity(g.indices) if behind == "indices" else g.indices
        if behind == "indices joined anew" and kind(g.indices.op) == "ConcatV2":
            indices = tf.concat(g.indices.op.inputs[:-1], 0)
        elif behind == "indices joined anew":
            indices = tf.identity(tf.identity(g.indices))
    train = optimizer.apply_gradients(
        [(tf.IndexedSlices(values, indices, g.dense_shape), variable)]
    )
    initialized(session)
    session.run(train)
    assert session.run([ran, variable.total_count()]) == [1.0, 3]


def test_what_waits_for_a_control_input_still_sums_by_itself(session):
    variables, loss = group()
    optimizer = v1.train.AdagradOptimizer(0.1)
    (g, variable), *rest = optimizer.compute_gradients(loss, variables)
    with tf.control_dependencies([tf.no_op("first")]):
        g = tf.IndexedSlices(tf.identity(g.values), tf.identity(g.indices), g.dense_shape)
    optimizer.apply_gradients([(g, variable), *rest])
    (op,) = apply_ops()
    assert op.get_attr("summed") == [False] * 3 and [
        control.name for control in op.control_inputs
    ] == ["first"]


def in_a_group(check, slices):
    with tf.name_scope("train"):
        barrier = tf.group(check)
    with tf.control_dependencies([barrier]):
        return tf.IndexedSlices(tf.identity(slices.values), slices.indices, slices.dense_shape)


def in_a_tuple(check, slices):
    return tf.tuple([slices], control_inputs=[check])[0]


def in_a_tuple_that_has_a_gates_name(check, slices):
    with tf.name_scope("check_grad"):
        return in_a_tuple(check, slices)


@pytest.mark.parametrize("wait", [in_a_group, in_a_tuple, in_a_tuple_that_has_a_gates_name])
@pytest.mark.parametrize("grouped", [True, False])
def test_a_check_that_the_caller_puts_before_an_update_is_not_taken_for_tensorflows_gate(
    session, grouped, wait
):
    variable, ids = table("a", 4), sparse([[1, 2], [3]])
    if grouped:
        out = nn.group_embedding_lookup_sparse([variable], [ids], "sum")[0]
    else:
        out = tf.nn.embedding_lookup_sparse(variable, ids, None, combiner="sum")
    optimizer = v1.train.AdagradOptimizer(0.1)
    ((g, _),) = optimizer.compute_gradients(tf.reduce_sum(tf.square(out)))
    good = v1.placeholder(tf.bool, [])
    train = optimizer.apply_gradients([(wait(v1.Assert(good, ["bad batch"]), g), variable)])
    initialized(session)
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad batch"):
        session.run(train, {good: False})
    assert session.run(variable.total_count()) == 0
    session.run(train, {good: True})
    assert session.run(variable.total_count()) == 3


def test_the_gate_of_all_gradients_is_waited_for(session):
    _, loss = group()
    v1.train.AdagradOptimizer(0.1).minimize(loss, gate_gradients=v1.train.Optimizer.GATE_GRAPH)
    (op,) = apply_ops()
    assert "tuple/group_deps" in {gate.name for gate in op.control_inputs}


def test_a_hyperparameter_out_of_range_is_refused_before_anything_changes(world):
    variables, ids = [table(name, 4) for name in "abc"], sparse([[1, 2], [3]])

    def loss():
        out = nn.group_embedding_lookup_sparse(variables, [ids] * 3, "sum")
        return tf.add_n([tf.reduce_sum(tf.square(o)) for o in out])

    counts = lambda: [v.total_count() for v in variables]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="learning_rate: expected a finite number"
    ):
        world.step(loss, variables, "adagrad", np.nan)()
    assert world.run(counts) == [0] * 3
    world.step(loss, variables, "adagrad")()
    assert world.run(counts) == [3] * 3


def _clipped(pairs):
    grads, variables = zip(*pairs)
    return list(zip(tf.clip_by_global_norm(grads, 0.5)[0], variables))


def _some_halved(pairs):
    halved = lambda g: tf.IndexedSlices(g.values * 0.5, g.indices, g.dense_shape)
    return [(g if i % 2 else halved(g), v) for i, (g, v) in enumerate(pairs)]


@needs_eager
@pytest.mark.parametrize(
    ("rule", "change"), [("momentum", None), ("ftrl", _clipped), ("adadelta", _some_halved)]
)
def test_a_group_is_trained_as_in_a_session(rule, change):
    rng = np.random.default_rng(11)
    members = [RandomMember(rng, number) for number in range(4)]
    for member in members:
        member.kind = "table"
    batches = [[array for m in members for array in m.arrays(rng, 6)] for _ in range(8)]
    results = []
    for name in WORLDS:
        with make_world(name) as world:
            variables = [member.variable("v") for member in members]

            def loss(*fed, variables=variables):
                given = [m.ids_and_weights(*fed[3 * i : 3 * i + 3]) for i, m in enumerate(members)]
                ids, weights = zip(*given)
                combiners = [m.combiner for m in members]
                norms = [m.max_norm for m in members]
                out = nn.group_embedding_lookup_sparse(
                    variables, ids, combiners, weights, max_norms=norms
                )
                return sum(tf.reduce_sum(tf.square(o - 0.5)) for o in out)

            step = world.step(loss, variables, rule, 0.1, change)
            for batch in batches:
                step(*batch)
            parts = [part for variable in variables for part in variable.parts]
            export = lambda parts=parts: [part.export_rows()[1:5] for part in parts]
            results.append(world.run(export))
    session, *others = results
    assert sum(keys.size for keys, *_ in session) > 20
    for other in others:
        for (keys, rows, *counts), (its_keys, its_rows, *its_counts) in zip(session, other):
            same_bits([keys, counts], [its_keys, its_counts])
            np.testing.assert_allclose(its_rows, rows, rtol=1e-4, atol=1e-6)

"""Grouped lookups train and read as separate lookups do, bit for bit."""

import random

import numpy as np
import pytest
import tensorflow as tf
from group_util import RandomMember
from group_util import initialized
from group_util import kind
from group_util import one_op_of_each_kind
from group_util import sparse
from group_util import table

from tf_multitier import nn
import worlds

v1 = tf.compat.v1


def alone(params, sp_ids, combiners, sp_weights=None, **kwargs):
    """Each member in a separate group."""
    weights = sp_weights or [None] * len(params)
    norms = kwargs.pop("max_norms", None) or [None] * len(params)
    return [
        nn.group_embedding_lookup_sparse([p], [i], [c], [w], max_norms=[n], **kwargs)[0]
        for p, i, c, w, n in zip(params, sp_ids, combiners, weights, norms)
    ]


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.parametrize("is_sequence", [False, True])
def test_a_group_has_the_bits_of_its_members_alone_also_after_training(
    session, is_sequence, optimizer
):
    seed = random.randrange(2**31)
    print("seed", seed)
    rng = random.Random(seed)
    members = [RandomMember(rng, i) for i in range(rng.randint(3, 6))]
    entries = [m.feeds() for m in members]
    # One variable twice, or three times: its gradients come together.
    twice = rng.randrange(len(members))
    order = list(range(len(members))) + [twice] * rng.randint(1, 2)
    make = {
        "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
        "adam": lambda: v1.train.AdamOptimizer(0.01),
    }[optimizer]
    outputs, steps, variables = [], [], []
    for scope, look_up in (("group", nn.group_embedding_lookup_sparse), ("alone", alone)):
        params = [m.variable(scope) for m in members]
        out = look_up(
            [params[i] for i in order],
            [entries[i][0] for i in order],
            [members[i].combiner for i in order],
            [entries[i][1] for i in order],
            is_sequence=is_sequence,
            max_norms=[members[i].max_norm for i in order],
        )
        # Members share shapes of ragged and sparse ids but not sizes: a sum of squares each, of unlike weights.
        loss = tf.add_n([tf.reduce_sum(tf.square(o - 0.3 * i)) for i, o in enumerate(out)])
        steps.append(make().minimize(loss))
        outputs.append(out)
        variables.append(params)
    initialized(session)
    data = np.random.default_rng(seed)
    for step in range(20):
        feed = {}
        for m in members:
            feed.update(m.batch(data))
        ours, theirs = session.run(outputs, feed)
        for i, (a, b) in enumerate(zip(ours, theirs)):
            np.testing.assert_array_equal(a, b, err_msg=f"member {i}, step {step}, seed {seed}")
            assert np.all(np.isfinite(a))
        session.run(steps, feed)
    for m, a, b in zip(members, *variables):
        if m.kind == "table":
            (keys, values, versions, counts), other = session.run([a.export(), b.export()])
            np.testing.assert_array_equal(keys, other[0])
            np.testing.assert_array_equal(values, other[1], err_msg=f"seed {seed}")
            np.testing.assert_array_equal(versions, other[2])
            np.testing.assert_array_equal(counts, other[3])
        else:
            a, b = (session.run(list(p) if m.parts > 1 else [p]) for p in (a, b))
            for x, y in zip(a, b):
                np.testing.assert_array_equal(x, y, err_msg=f"seed {seed}")


def trained_in(world, seed, look_up, **options):
    """(values of the last step, content of each table) after 20 steps of a random group of tables."""
    rng, data = random.Random(seed), np.random.default_rng(seed)
    members = [RandomMember(rng, number) for number in range(4)]
    for member in members:
        member.kind = "table"
    tables = [member.variable("v") for member in members]

    def values(*tensors):
        entries = [
            member.ids_and_weights(*tensors[3 * i : 3 * i + 3]) for i, member in enumerate(members)
        ]
        out = look_up(
            tables,
            [ids for ids, _ in entries],
            [member.combiner for member in members],
            [weights for _, weights in entries],
            max_norms=[member.max_norm for member in members],
            **options,
        )
        return tf.concat(out, 1) if isinstance(out, list) else out

    factors = np.random.default_rng(1).uniform(-1, 1, sum(member.dim for member in members))
    loss = lambda *tensors: tf.reduce_sum(tf.square(values(*tensors) - factors.astype(np.float32)))
    step = world.step(loss, tables, "adam")
    for _ in range(20):
        rows = data.integers(0, 12)
        batch = [array for member in members for array in member.arrays(data, rows)]
        step(*batch)
    return world.run(values, *batch), [world.run(table.export) for table in tables]


def test_a_group_trains_the_bits_of_its_members_alone_and_joined_in_each_world():
    seed = random.randrange(2**31)
    print("seed", seed)
    found = []
    for name in worlds.WORLDS if worlds.has_eager() else worlds.WORLDS[:1]:
        for look_up, options in (
            (nn.group_embedding_lookup_sparse, {}),
            (nn.group_embedding_lookup_sparse, {"concat": True}),
            (alone, {}),
        ):
            with worlds.make_world(name) as world:
                found.append(trained_in(world, seed, look_up, **options))
    for other in found[1:]:
        worlds.same_bits(found[0], other)


def test_params_num_per_group_cuts_the_group_and_changes_nothing(session):
    params = [table(f"t{i}", 4, seed=i) for i in range(5)]
    ids = [sparse([[i, 2], [], [7]]) for i in range(5)]
    before = len(session.graph.get_operations())
    cut = nn.group_embedding_lookup_sparse(params, ids, "mean", params_num_per_group=2)
    made = [kind(op) for op in session.graph.get_operations()[before:]]
    assert made.count("MultitierGroupLookup") == 3
    whole = nn.group_embedding_lookup_sparse(params, ids, "mean")
    initialized(session)
    for a, b in zip(*session.run([cut, whole])):
        np.testing.assert_array_equal(a, b)


def test_the_update_takes_the_keys_that_the_lookup_found(graph):
    variables = [table("a", 4), table("b", 4, parts=2)]
    out = nn.group_embedding_lookup_sparse(variables, [sparse([[1], [2]])] * 2, "sum")
    optimizer = v1.train.AdagradOptimizer(0.1)
    gradients = optimizer.compute_gradients(tf.add_n([tf.reduce_sum(o) for o in out]))
    clipped, _ = tf.clip_by_global_norm([g for g, _ in gradients], 0.1)
    optimizer.apply_gradients(zip(clipped, [v for _, v in gradients]))
    types = [kind(op) for op in graph.get_operations()]
    grouped = [op.type for op in graph.get_operations() if "Group" in op.type]
    assert one_op_of_each_kind(grouped)  # of all tables, clipped gradients included
    assert {"MultitierGroupLookup", "MultitierGroupLookupGrad", "MultitierGroupApply"} <= set(types)
    assert not {
        "MultitierApply",
        "Unique",
        "UniqueWithCounts",
        "UniqueWithCountsV2",
        "UnsortedSegmentSum",
    } & set(types)


def test_a_member_the_loss_does_not_use_is_not_trained(world):
    used, unused = table("used", 4), table("unused", 4)
    ids = [sparse([[1]]), sparse([[2]]), sparse([[3]])]
    look_up = lambda: nn.group_embedding_lookup_sparse([used, unused, used], ids, "sum")
    world.step(lambda: tf.reduce_sum(look_up()[0]), [used, unused], "adam")()
    assert [world.run(used.total_count), world.run(unused.total_count)] == [1, 0]
    # A gradient of zeros that comes from the loss is a gradient.
    world.step(lambda: 0.0 * tf.reduce_sum(look_up()[1]), [unused])()
    assert world.run(unused.total_count) == 1


def test_a_branch_trains_only_the_members_that_its_value_uses():
    was = v1.control_flow_v2_enabled()
    v1.enable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            used, unused, weighted = table("used", 4), table("unused", 4), table("weighted", 4)
            weights = tf.SparseTensor(
                [[0, 0]], tf.square(v1.get_variable("weight", [1], use_resource=True)), [1, 1]
            )

            def branch():
                out = nn.group_embedding_lookup_sparse(
                    [used, unused, weighted], [sparse([[1]])] * 3, "sum", [None, None, weights]
                )
                return tf.reduce_sum(out[0]) + tf.reduce_sum(out[2])

            taken = v1.placeholder(tf.bool, [])
            train = v1.train.AdagradOptimizer(0.1).minimize(tf.cond(taken, branch, lambda: 0.0))
            initialized(session)
            for value, rows in ((False, [0, 0, 0]), (True, [1, 0, 1])):
                session.run(train, {taken: value})
                assert session.run([v.total_count() for v in (used, unused, weighted)]) == rows
    finally:
        (v1.enable_control_flow_v2 if was else v1.disable_control_flow_v2)()


@pytest.mark.parametrize("scales", [False, True])
def test_gradients_of_one_variable_are_added_in_one_order_however_it_is_grouped(scales):
    """Several members, with ungrouped lookups of the same variables, and values that change before the update."""
    results = []
    for limit in (100, 2, 1):
        with tf.Graph().as_default(), v1.Session() as session:
            ev, other = table("ev", 8), table("other", 8)
            a, b, c = sparse([[1, 1, 2], [3, 1]]), sparse([[2, 1], [], [1]]), sparse([[1, 9], [2]])
            out = nn.group_embedding_lookup_sparse(
                [ev, other, ev, ev],
                [a, a, b, c],
                ["sum", "mean", "sqrtn", "mean"],
                params_num_per_group=limit,
            )
            out += [
                tf.nn.embedding_lookup(ev, [1, 2, 77]),
                tf.nn.embedding_lookup_sparse(ev, b, None, combiner="mean"),
            ]
            loss = sum(tf.reduce_sum(tf.square(o - 0.3 * i)) for i, o in enumerate(out))
            optimizer = v1.train.AdagradOptimizer(0.1)
            pairs = optimizer.compute_gradients(loss)
            if scales:
                pairs = [
                    (tf.IndexedSlices(g.values * 0.7, g.indices, g.dense_shape), v)
                    for g, v in pairs
                ]
            train = optimizer.apply_gradients(pairs)
            initialized(session)
            for _ in range(10):
                session.run(train)
            results.append(session.run(ev.export()))
    for other in results[1:]:
        for x, y in zip(results[0], other):
            np.testing.assert_array_equal(x, y)

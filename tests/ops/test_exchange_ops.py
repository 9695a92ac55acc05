"""The ops of the exchange: a step over homes reads and trains the bits of the grouped lookup in one process."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from group_util import table
from tf_multitier._src.tensorflow.library import ops
from worlds import same_bits

HOMES = [0, 1, 0, 1]  # of the parts of `a`, then of `b`
MEMBERS = dict(
    members=["a sparse", "b ragged", "a dense"],
    units=[3, 1, 3],
    forms=["sparse", "ragged", "dense"],
    combiners=["mean", "sum", "sum"],
    dims=[4, 8, 4],
    weighted=[True, False, False],
    max_norms=[-1.0, -1.0, 0.5],
)
JOINS = [2, 1]
IDS = np.array([5, -7, 5, 2**40, -(2**63), 3], np.int64)


def inputs():
    """Of the three members; 60 distinct keys in 2 rows of `b`, which fewer bytes pool at home."""
    indices = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    bags = tf.constant(np.concatenate([np.arange(60), [7, 7, 9]]), tf.int64)
    return dict(
        keys=[tf.constant(IDS), bags, tf.constant([[1, 5], [5, 9]], tf.int32)],
        indices=[tf.constant(indices, tf.int64), tf.constant([0, 40, 63], tf.int64)],
        shapes=[tf.constant([2, 3], tf.int64)],
        weights=[tf.constant([1.0, 0.5, -2.0, 1.0, 0.25, 3.0])],
    )


def grads(values):
    return [tf.reshape(tf.range(tf.size(v), dtype=tf.float32) / 7 - 2, tf.shape(v)) for v in values]


def variables(suffix=""):
    return table("a" + suffix, 4, 3), table("b" + suffix, 8)


def look_up(a, b):
    handles = [part.handle for part in (*a.parts, *b.parts, *a.parts)]
    attrs = dict(sources=["table"] * 3, strategies=["mod"] * 3, joins=JOINS, N=2, **MEMBERS)
    return ops.multitier_group_lookup(handles=handles, matrices=[], **inputs(), **attrs)


def by_home(a, b):
    parts = [(part, 4) for part in a.parts] + [(b.parts[0], 8)] + [(part, 4) for part in a.parts]
    homes = HOMES + HOMES[:3]
    return [[unit for unit, home in zip(parts, homes) if home == h] for h in range(2)], homes


def exchange(a, b, wire=tf.float32, padding=0):
    """(values, finished, [(requests, plan, dims) of each home])"""
    units, homes = by_home(a, b)
    given = inputs()
    routed = ops.multitier_route(**given, tables=[], homes=homes, H=2, T=wire, **MEMBERS)
    rows, served = [], []
    for request, its in zip(routed.requests, units):
        request = tf.pad(request, [[0, padding]], constant_values=-1)
        dims = [dim for _, dim in its]
        answer = ops.multitier_serve(
            handles=[part.handle for part, _ in its],
            requests=[request],
            names=[part.name for part, _ in its],
            dims=dims,
            T=wire,
        )
        rows.append(tf.pad(answer.rows[0], [[0, padding]]))
        served.append((request, answer.plan, dims))
    members = {name: MEMBERS[name] for name in ("members", "forms", "dims")}
    pooled = ops.multitier_pool(routed.plan, rows, **given, joins=JOINS, N=2, **members)
    return pooled.values, pooled.finished, served


def sums_of(finished, gradients, wire=tf.float32):
    attrs = dict(members=[0, 1, 2], weighted=MEMBERS["weighted"], joins=JOINS)
    return ops.multitier_pool_grad(finished, gradients, H=2, W=1, T=wire, **attrs)


def test_values_have_the_bits_and_the_shapes_of_the_grouped_lookup(world):
    a, b = variables()

    def both():
        local, ours = look_up(a, b).values, exchange(a, b, padding=5)[0]
        assert [v.shape.as_list() for v in ours] == [v.shape.as_list() for v in local]
        return local, ours

    local, ours = world.run(both)
    assert [v.shape for v in ours] == [(2, 12), (2, 2, 4)]
    same_bits(local, ours)


def test_training_at_the_homes_leaves_the_rows_of_the_grouped_update(world):
    a, b = variables()
    c, d = variables("_by_homes")
    sgd = dict(rule="sgd", slot_names=[], slot_initial_values=[])

    def apply(handles, plan, its, units, members, joins):
        attrs = {**sgd, "summed": [False] * len(handles)}
        step = tf.constant(0, tf.int64)
        return ops.multitier_group_apply(
            handles, plan, [], its, step, [0.5], units=units, members=members, joins=joins, **attrs
        )

    def train_locally():
        looked = look_up(a, b)
        handles = [part.handle for part in (*a.parts, *b.parts)]
        return apply(handles, looked.plan, grads(looked.values), [0, 1, 2, 3], [0, 1, 2], JOINS)

    def train_at_homes():
        values, finished, served = exchange(c, d)
        result = sums_of(finished, grads(values))
        done = []
        for home, (request, plan, dims) in enumerate(served):
            its = ops.multitier_serve_grad([request], [result.sums[home]], U=len(dims), dims=dims)
            units, first = (
                by_home(c, d)[0][home],
                [0, 1],
            )  # of the first two members: each variable once
            handles = [units[unit][0].handle for unit in first]
            done.append(apply(handles, plan, its, first, list(range(len(dims))), []))
        with tf.control_dependencies([op for op in done if op is not None]):
            return tf.identity(result.weights_grads[0])

    world.run(train_locally)
    world.run(train_at_homes)
    rows = lambda ev: world.run(ev.export)
    for local, ours in ((a, c), (b, d)):
        for first, second in zip(local.parts, ours.parts):
            order = lambda exported: [np.asarray(x)[np.argsort(exported[0])] for x in exported[:3]]
            same_bits(order(rows(first)), order(rows(second)))
    assert len(rows(d.parts[0])[0]) == 60


def test_gradients_at_the_homes_are_those_of_the_grouped_gradient(world):
    a, b = variables()
    attrs = dict(members=[0, 1, 2], units=MEMBERS["units"], weighted=MEMBERS["weighted"])

    def local():
        looked = look_up(a, b)
        found = ops.multitier_group_lookup_grad(
            looked.plan, grads(looked.values), U=7, W=1, joins=JOINS, **attrs
        )
        return found.keys, found.sums, found.counts, found.weights_grads

    def at_homes():
        values, finished, served = exchange(a, b, padding=3)
        result, found = sums_of(finished, grads(values)), [[], [], []]
        for (request, plan, dims), sums in zip(served, result.sums):
            its = ops.multitier_serve_grad(
                [request], [tf.pad(sums, [[0, 4]])], U=len(dims), dims=dims
            )
            n = len(dims)
            its = ops.multitier_group_lookup_grad(
                plan, its, U=n, W=0, members=list(range(n)), units=[1] * n, weighted=[False] * n
            )
            for to, given in zip(found, (its.keys, its.sums, its.counts)):
                to.append(given)
        return *found, result.weights_grads

    *expected, weights = world.run(local)
    *found, its_weights = world.run(at_homes)
    same_bits(weights, its_weights)
    taken = [0, 0]
    for unit, home in enumerate(by_home(a, b)[1]):
        place, taken[home] = taken[home], taken[home] + 1
        orders = [np.argsort(expected[0][unit]), np.argsort(found[0][home][place])]
        for ours, theirs in zip(found, expected):
            same_bits(ours[home][place][orders[1]], theirs[unit][orders[0]])


def test_a_home_answers_and_trains_two_askers_at_once(world):
    c = table("c", 4)
    one = dict(units=[1], homes=[0], forms=["dense"], combiners=["sum"], weighted=[False], H=1)
    one |= dict(indices=[], shapes=[], weights=[], tables=[], max_norms=[-1.0])

    def both():
        asked = [
            ops.multitier_route(keys=[tf.constant(keys)], members=["m"], dims=[4], **one)
            for keys in ([3, 1, 3], [3, 8])
        ]
        requests = [request for routed in asked for request in routed.requests]
        served = ops.multitier_serve([c.parts[0].handle], requests, names=["c"], dims=[4])
        sums = [tf.ones([8]), tf.fill([8], 2.0)]
        its = ops.multitier_serve_grad(requests, sums, U=1, dims=[4])
        found = ops.multitier_group_lookup_grad(
            served.plan, its, U=1, W=0, members=[0], units=[1], weighted=[False]
        )
        local = [tf.reshape(tf.nn.embedding_lookup(c, keys), [-1]) for keys in ([3, 1], [3, 8])]
        return served.rows, local, found.keys[0], found.counts[0], found.sums[0]

    rows, local, keys, counts, sums = world.run(both)
    same_bits(rows, local)
    assert keys.tolist() == [3, 1, 8] and counts.tolist() == [3, 1, 1]
    assert sums[:, 0].tolist() == [3.0, 1.0, 2.0]


def test_the_table_of_a_key_is_that_of_its_first_occurrence(world):
    a = tf_multitier.get_embedding_variable("a", 2, initializer=[0.5, 1.5, 2.5])
    attrs = dict(members=["a"], forms=["dense"], dims=[2])
    more = dict(units=[1], homes=[0], combiners=["sum"], weighted=[False], max_norms=[-1.0], H=1)

    def ask(keys, tables):
        given = [keys], [], [], []
        routed = ops.multitier_route(*given, [tables], num_tables=[3], **attrs, **more)
        handles = [part.handle for part in a.parts]
        served = ops.multitier_serve(handles, routed.requests, names=["a"], dims=[2])
        pooled = ops.multitier_pool(routed.plan, served.rows, *given, N=1, **attrs)
        plan_tables = ops.multitier_plan_tables(served.plan, N=1, units=[0])
        assert plan_tables[0].shape.rank == 1
        return pooled.values[0], plan_tables[0]

    keys = np.array([[5, 7], [5, 5]])
    values, tables = world.run(ask, keys, [[2, 1], [0, 1]])
    assert (values[..., 1].tolist(), tables.tolist()) == ([[2.5, 1.5], [2.5, 2.5]], [2, 1])
    for wrong, message in (
        ([[0, 1], [2, 3]], r"group lookup, a: tables: expected 0 to 2, found tables\[3\] = 3"),
        ([[0, 1]], r"a: tables: expected the shape of the keys, \[2,2\], found \[1,2\]"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            world.run(ask, keys, wrong)


@pytest.mark.parametrize("wire", [tf.bfloat16, tf.half])
def test_shorter_wire_rounds_rows(world, wire):
    a, b = variables()
    exact, ours = world.run(lambda: (look_up(a, b).values, exchange(a, b, wire)[0]))
    for one, other in zip(exact, ours):
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.05)
        assert not np.array_equal(one, other)


def test_plans_and_requests_that_do_not_fit_are_refused(world):
    a, b = variables()
    units, homes = by_home(a, b)
    error = tf.errors.InvalidArgumentError

    def serve(request, names=units[0]):
        return ops.multitier_serve(
            handles=[part.handle for part, _ in names],
            requests=[request],
            names=[part.name for part, _ in names],
            dims=[dim for _, dim in names],
        ).rows

    def route():
        return ops.multitier_route(**inputs(), tables=[], homes=homes, H=2, **MEMBERS)

    request = world.run(lambda: route().requests)[0]
    for wrong, message in (
        (request[:-1], "expected all of its words"),
        (request[:1], "expected a header"),
        (np.append(request[1:], 0), "expected format 1"),
    ):
        with pytest.raises(error, match=f"request of an exchange: {message}.* same version"):
            world.run(lambda wrong=wrong: serve(tf.constant(wrong)))
    with pytest.raises(error, match="request of an exchange: expected 3 parts, found 4"):
        world.run(lambda: serve(tf.constant(request), units[1]))

    def pool(times, rows):
        routed, given = route(), inputs()
        members = {name: MEMBERS[name] for name in ("members", "forms", "dims")}
        out = []
        for _ in range(times):
            with tf.control_dependencies(out):
                pooled = ops.multitier_pool(
                    routed.plan, [tf.zeros([rows])] * 2, **given, joins=JOINS, N=2, **members
                )
            out = pooled.values
        return out

    assert len(world.run(lambda: pool(1, 10000))) == 2
    with pytest.raises(error, match="MultitierPool: expected at least .* elements of home 0"):
        world.run(lambda: pool(1, 3))
    with pytest.raises(tf.errors.InternalError, match="expected a plan whose rows are not pooled"):
        world.run(lambda: pool(2, 10000))

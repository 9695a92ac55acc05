"""Grouped lookups with concatenated values: the bits of tf.concat of separate values, also in training."""

import random

import numpy as np
import pytest
import tensorflow as tf
from group_util import RandomMember
from group_util import initialized
from group_util import kind
from group_util import sparse
from group_util import static
from group_util import table

from tf_multitier import engine
from tf_multitier import nn
from tf_multitier._src.tensorflow.library import ops

v1 = tf.compat.v1
F = np.float32


def cut(rng, count):
    """Random numbers of together `count`."""
    runs = []
    while sum(runs) < count:
        runs.append(rng.randint(1, count - sum(runs)))
    return runs


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.parametrize("runs", ["one", "some"])
def test_joined_values_have_the_bits_of_a_concat_also_after_training(session, optimizer, runs):
    seed = random.randrange(2**31)
    print("seed", seed)
    rng = random.Random(seed)
    members = [RandomMember(rng, i) for i in range(rng.randint(3, 6))]
    entries = [m.feeds() for m in members]
    order = list(range(len(members))) + [rng.randrange(len(members))]  # one variable twice
    concat = True if runs == "one" else cut(rng, len(order))
    make = {
        "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
        "adam": lambda: v1.train.AdamOptimizer(0.01),
    }[optimizer]
    outputs, steps, variables = [], [], []
    for scope in ("joined", "apart"):
        params = [m.variable(scope) for m in members]
        out = nn.group_embedding_lookup_sparse(
            [params[i] for i in order],
            [entries[i][0] for i in order],
            [members[i].combiner for i in order],
            [entries[i][1] for i in order],
            max_norms=[members[i].max_norm for i in order],
            params_num_per_group=rng.choice([100, 2]),
            concat=concat if scope == "joined" else False,
        )
        if scope == "joined":
            assert (
                isinstance(out, tf.Tensor)
                if runs == "one"
                else [o.shape.as_list()[1] for o in out]
                == [
                    sum(members[i].dim for i in order[sum(concat[:r]) : sum(concat[: r + 1])])
                    for r in range(len(concat))
                ]
            )
        whole = out if isinstance(out, tf.Tensor) else tf.concat(out, 1)
        factors = np.random.default_rng(seed).uniform(-1, 1, whole.shape.as_list()[1])
        steps.append(make().minimize(tf.reduce_sum(tf.square(whole - factors.astype(np.float32)))))
        outputs.append(whole)
        variables.append(params)
    initialized(session)
    data = np.random.default_rng(seed)
    for step in range(20):
        feed, rows = {}, data.integers(0, 12)
        for m in members:
            feed.update(m.batch(data, rows))
        np.testing.assert_array_equal(
            *session.run(outputs, feed), err_msg=f"step {step}, seed {seed}"
        )
        session.run(steps, feed)
    for m, joined, apart in zip(members, *variables):
        if m.kind == "table":
            for a, b in zip(*session.run([joined.export(), apart.export()])):
                np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}")
        else:
            for a, b in zip(
                *session.run([list(v) if m.parts > 1 else [v] for v in (joined, apart)])
            ):
                np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}")


@pytest.mark.parametrize(
    "combiner, max_norm", [("sum", 0.7), ("mean", None), ("mean", 0.7), ("sqrtn", None)]
)
def test_gradients_of_joined_values_are_finite_differences(world, combiner, max_norm):
    rng = np.random.default_rng(9)
    rows, start = [[3, 1, 3], [], [0, 2]], rng.uniform(0.5, 2.0, 5).astype(np.float32)
    factors = rng.normal(size=(3, 9)).astype(np.float32)
    first, variable, last = table("ev", 2), static("var", 3, seed=4), table("other", 4)

    def loss(weights):
        ids = sparse(rows)
        weighted = tf.SparseTensor(ids.indices, weights, ids.dense_shape)
        out = nn.group_embedding_lookup_sparse(
            [first, variable, last],
            [ids] * 3,
            combiner,
            [weighted, weighted, None],
            max_norms=[None, max_norm, None],
            concat=True,
        )
        return tf.reduce_sum(out * factors)

    def gradients(weights):
        value = lambda: (tf.zeros([]), loss(weights))
        _, (for_weights, for_rows) = world.with_gradients(value, [weights, variable])
        return for_weights, tf.convert_to_tensor(for_rows)

    slope = lambda f: (f(1e-2) - f(-1e-2)) / 2e-2
    found, dense = world.run(gradients, start)
    initial = world.run(lambda: tf.convert_to_tensor(variable))
    for i in range(5):
        moved = lambda step, i=i: world.run(loss, start + F(step) * (np.arange(5) == i))
        assert found[i] == pytest.approx(slope(moved), abs=3e-2)
    assign = lambda value: tf.convert_to_tensor(variable.assign(value))
    for row, column in np.ndindex(4, 3):

        def moved(step):
            value = initial.copy()
            value[row, column] += step
            world.run(assign, value)
            return world.run(loss, start)

        assert dense[row, column] == pytest.approx(slope(moved), abs=3e-2)


def test_a_joined_group_is_one_op_each_way_and_copies_nothing(graph):
    variables = [table("a", 4), table("b", 6, parts=2), static("c", 2)]
    out = nn.group_embedding_lookup_sparse(variables, [sparse([[1], [2]])] * 3, "sum", concat=True)
    assert out.shape.as_list() == [2, 12] and kind(out.op) == "MultitierGroupLookup"
    v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(out)))
    types = [kind(op) for op in graph.get_operations()]
    assert types.count("MultitierGroupLookup") == types.count("MultitierGroupLookupGrad") == 1
    assert types.count("MultitierGroupApply") == 1
    assert not {"ConcatV2", "Split", "SplitV", "Slice", "ConcatOffset"} & set(types)


def test_runs_that_the_loss_does_not_use_are_not_trained(world):
    used, unused = table("used", 4), table("unused", 4)
    ids = [sparse([[key]]) for key in range(4)]

    def loss():
        out = nn.group_embedding_lookup_sparse(
            [used, used, unused, used], ids, "sum", concat=[2, 1, 1]
        )
        return tf.reduce_sum(out[0]) + tf.reduce_sum(out[2])

    world.step(loss, [used, unused], "adagrad")()
    assert [world.run(used.total_count), world.run(unused.total_count)] == [3, 0]


def test_dense_ids_are_joined_along_the_last_dimension(world):
    params = [table("ev", 3), static("var", 2), table("parts", 1, parts=2)]

    def look_up(concat):
        ids = [
            np.array([[1, 4, 3], [3, 1, 0]]),
            tf.constant([[0, 19, 7], [7, 7, 7]]),
            np.arange(6).reshape(2, 3),
        ]
        return nn.group_embedding_lookup(params, ids, concat=concat)

    def joined_and_apart():
        whole = look_up(True)
        assert whole.shape.as_list() == [2, 3, 6]
        return whole, look_up(False)

    def slope():
        loss = lambda: (tf.zeros([]), tf.reduce_sum(look_up(True) * [1.0, 1, 1, 2, 2, 1]))
        return tf.convert_to_tensor(world.with_gradients(loss, [params[1]])[1][0])

    joined, values = world.run(joined_and_apart)
    np.testing.assert_array_equal(joined, np.concatenate(values, 2))
    np.testing.assert_allclose(
        world.run(slope)[[0, 19, 7, 1]], [[2, 2], [2, 2], [8, 8], [0, 0]], rtol=1e-6
    )


def test_groups_on_several_devices_keep_the_order_of_members(graph):
    def on(number, make):
        with v1.device(f"/cpu:{number}"):
            return make()

    params = [
        on(0, lambda: table("a", 2)),
        on(1, lambda: table("b", 3)),
        on(1, lambda: table("c", 1)),
        on(0, lambda: table("d", 4)),
    ]
    ids = [sparse([[1, 2], [], [number]]) for number in range(4)]
    whole = nn.group_embedding_lookup_sparse(params, ids, "mean", concat=True)
    apart = nn.group_embedding_lookup_sparse(params, ids, "mean")
    assert sorted(
        tuple(op.get_attr("joins"))
        for op in graph.get_operations()
        if kind(op) == "MultitierGroupLookup"
    ) == [(), (), (), (2,)]
    with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
        initialized(session)
        joined, values = session.run([whole, apart])
        np.testing.assert_array_equal(joined, np.concatenate(values, 1))


def test_training_through_a_joined_lookup_in_a_branch(world):
    was = v1.control_flow_v2_enabled()
    v1.enable_control_flow_v2()
    try:
        params = [table("a", 2), table("b", 3)]
        branch = lambda: tf.reduce_sum(
            nn.group_embedding_lookup_sparse(params, [sparse([[1]])] * 2, "sum", concat=True)
        )
        loss = lambda taken: tf.cond(taken, branch, lambda: 0.0)
        if world.is_eager:  # eagerly there is no gradient where the branch is not taken
            loss = lambda taken: branch() if taken else 0.0 * branch()
        train = world.step(loss, params, "adagrad")
        for value in (False, True) if not world.is_eager else (True,):
            train(np.bool_(value))
            assert [world.run(p.total_count) for p in params] == [int(value)] * 2
    finally:
        (v1.enable_control_flow_v2 if was else v1.disable_control_flow_v2)()


def test_no_rows_and_no_ids(world):
    params = [table("a", 2), table("b", 3)]

    def look_up(lengths):
        ids = tf.RaggedTensor.from_row_lengths(tf.constant([], tf.int64), lengths)
        return nn.group_embedding_lookup_sparse(params, [ids, ids], "mean", concat=True)

    train = world.step(lambda lengths: tf.reduce_sum(look_up(lengths)), params, "adagrad")
    for rows in (0, 3):
        lengths = np.zeros(rows, np.int64)
        np.testing.assert_array_equal(world.run(look_up, lengths), np.zeros((rows, 5), np.float32))
        train(lengths)
    assert [world.run(param.total_count) for param in params] == [0, 0]


def test_what_can_not_be_joined_is_refused_by_name(world):
    params, three, two = [table("a", 2), table("b", 3)], sparse([[1], [2], [3]]), sparse([[1], [2]])
    with pytest.raises(ValueError, match="concat: expected False for sequences, found"):
        nn.group_embedding_lookup_sparse(
            params, [three, three], "sum", is_sequence=True, concat=True
        )
    for bad in ([1], [3, -1], [1.0, 1.0], "yes", 2):
        with pytest.raises(
            ValueError, match="concat: expected True, False, or a list of numbers whose sum is 2"
        ):
            nn.group_embedding_lookup_sparse(params, [three, three], "sum", concat=bad)
    with pytest.raises(
        ValueError,
        match=r"member 1 \('b'\): concat: expected values of shape \(3, (None|\?)\) to match member 0 \('a'\), "
        r"found \(2, (None|\?)\)",
    ):
        nn.group_embedding_lookup_sparse(params, [three, two], "sum", concat=True)
    with pytest.raises(
        ValueError, match=r"member 1 \('b'\): concat: expected values of shape \(3, (None|\?)\)"
    ):
        nn.group_embedding_lookup(params, [[1, 2, 3], [[1, 2, 3]]], concat=True)

    def late(count):  # how many rows there are is known when it runs
        first = tf.cast(tf.range(count), tf.int64)
        ids = tf.SparseTensor(tf.stack([first, 0 * first], 1), first, [tf.cast(count, tf.int64), 1])
        return nn.group_embedding_lookup_sparse(params, [three, ids], "sum", concat=True)

    with pytest.raises(
        (tf.errors.InvalidArgumentError, ValueError),
        match=r"member 1 \('b'\): (concat: )?expected .* to match member 0 \('a'\)",
    ):
        world.run(late, np.int64(2))


def test_joined_members_of_several_ops_are_named_where_their_batch_sizes_differ(session):
    variables = [table(name, 2) for name in "abc"]
    ids = [v1.sparse_placeholder(tf.int64, [None, None]) for _ in variables]
    out = nn.group_embedding_lookup_sparse(
        variables, ids, "sum", params_num_per_group=1, concat=True
    )
    dense = [v1.placeholder(tf.int64, [None, None]) for _ in variables]
    out_dense = nn.group_embedding_lookup(variables, dense, params_num_per_group=2, concat=True)
    initialized(session)
    value = lambda rows: v1.SparseTensorValue(
        np.zeros([0, 2], np.int64), np.zeros([0], np.int64), [rows, 1]
    )
    assert session.run(out, dict(zip(ids, map(value, [2, 2, 2])))).shape == (2, 6)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"member 2 \('c'\): expected batch size 2 to match member 0 \('a'\), .* found batch size 3",
    ):
        session.run(out, dict(zip(ids, map(value, [2, 2, 3]))))
    feeds = [np.zeros(shape, np.int64) for shape in ([2, 3], [2, 3], [2, 4])]
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"member 2 \('c'\): expected shape \[2,3,...\] to match member 0 \('a'\), .* found shape \[2,4,...\]",
    ):
        session.run(out_dense, dict(zip(dense, feeds)))


def test_joins_of_the_ops_cover_their_members(graph):
    handle = table("a", 2).handle

    def look_up(joins, count, forms=("sparse", "ragged")):
        return ops.multitier_group_lookup(
            handles=[handle] * 2,
            matrices=[],
            keys=[[1], [2]],
            indices=[[[0, 0]], [0, 1]],
            shapes=[[1, 1]],
            weights=[],
            N=count,
            members=["x", "y"],
            sources=["table"] * 2,
            strategies=["mod"] * 2,
            units=[1, 1],
            forms=forms,
            combiners=["sum"] * 2,
            dims=[2, 3],
            weighted=[False] * 2,
            max_norms=[-1.0] * 2,
            joins=joins,
        )

    values, plan = look_up([2], 1)
    assert [v.shape.as_list() for v in values] == [[1, 5]] and plan.shape.rank == 0
    assert [v.shape.as_list() for v in look_up([], 2).values] == [[1, 2], [1, 3]]
    for joins, count in (([1], 1), ([3], 1), ([2], 2), ([1, 1], 1), ([2, 0], 2), ([3, -1], 2)):
        with pytest.raises(ValueError, match="joins"):
            look_up(joins, count)
    with pytest.raises(
        ValueError,
        match="y: expected pooled or dense values where members are joined, found a ragged_sequence",
    ):
        look_up([2], 1, ["sparse", "ragged_sequence"])
    grad = lambda joins, grads: ops.multitier_group_lookup_grad(
        plan, grads, members=[0, 1], units=[1, 1], weighted=[False, True], U=2, W=1, joins=joins
    )
    whole, apart = grad([2], [tf.zeros([1, 5])]), grad([], [tf.zeros([1, 2]), tf.zeros([1, 3])])
    assert [s.shape.as_list() for s in apart.sums] == [[None, 2], [None, 3]] and len(
        whole.sums
    ) == 2
    with pytest.raises(ValueError, match="joins: expected 2 members in 1 tensors, found 3 in 1"):
        grad([3], [tf.zeros([1, 5])])


def test_a_joined_gradient_of_another_size_is_refused(session):
    whole = nn.group_embedding_lookup_sparse(
        [table("a", 2), table("b", 3)], [sparse([[1], [2]])] * 2, "sum", concat=True
    )
    plan = whole.op.outputs[1]
    result = ops.multitier_group_lookup_grad(
        plan,
        [whole[:, :4]],
        members=[0, 1],
        units=[1, 1],
        weighted=[False] * 2,
        U=2,
        W=0,
        joins=[2],
    )
    initialized(session)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"gradient of member 0: expected 2 rows of dim 5, found shape \[2,4\]",
    ):
        session.run(result.sums)


# ---- from NumPy


@pytest.mark.parametrize("weighted", [False, True])
def test_an_engine_group_joined_has_the_bits_of_one_apart(weighted):
    make = lambda: [
        engine.Table(dim=dim, initializer="uniform", a=-1, b=1, seed=dim) for dim in (3, 8, 1)
    ]
    ours, others, rng = make(), make(), np.random.default_rng(0)
    for _ in range(5):
        splits = [np.concatenate([[0], np.cumsum(rng.integers(0, 4, 9))]) for _ in range(4)]
        keys = [rng.integers(0, 20, s[-1]) for s in splits]
        weights = [rng.uniform(0.5, 2.0, len(k)) if weighted else None for k in keys]
        groups = [
            engine.Group(
                [*tables, tables[0]],
                keys,
                splits,
                ["sum", "mean", "sqrtn", "mean"],
                weights,
                train=True,
                concat=concat,
            )
            for tables, concat in ((ours, True), (others, False))
        ]
        assert groups[0].values.shape == (9, 15)
        np.testing.assert_array_equal(groups[0].values, np.concatenate(groups[1].values, 1))
        grads = rng.normal(size=(9, 15)).astype(np.float32)
        apart = [np.ascontiguousarray(g) for g in np.split(grads, [3, 11, 12], 1)]
        for a, b in zip(groups[0].weights_gradients(grads), groups[1].weights_gradients(apart)):
            np.testing.assert_array_equal(a, b)
        groups[0].apply("adagrad", grads, hyper={"learning_rate": 0.1})
        groups[1].apply("adagrad", apart, hyper={"learning_rate": 0.1})
    for a, b in zip(ours, others):
        np.testing.assert_array_equal(a.lookup(np.arange(20)), b.lookup(np.arange(20)))


def test_an_engine_group_that_can_not_be_joined_is_refused_by_name():
    tables = [engine.Table(dim=2), engine.Table(dim=3)]
    with pytest.raises(
        ValueError,
        match="row_splits of member 1: expected 2 rows to match member 0, because of concat, found 1",
    ):
        engine.Group(tables, [[1, 2], [1]], concat=True)
    with pytest.raises(
        ValueError, match="is_sequence of member 1: expected False with concat, found True"
    ):
        engine.Group(tables, [[1], [1]], is_sequence=[False, True], concat=True)
    for bad in ([1, 1], np.array([True, False]), "no", None):
        with pytest.raises(ValueError, match="concat: expected True or False, found"):
            engine.Group(tables, [[1], [1]], concat=bad)
    with pytest.raises(ValueError, match="expected at least one with concat"):
        engine.Group([], [], concat=True)
    with pytest.raises(ValueError, match=r"grads: expected shape \[1, 5\], found \[1, 2\]"):
        engine.Group(tables, [[1], [1]], train=True, concat=True).apply(
            "sgd", np.zeros((1, 2)), hyper={"learning_rate": 1}
        )

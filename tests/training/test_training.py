"""Training embedding variables with TensorFlow's optimizers: gradients, parameter servers, filters, expiry, meta graphs, control flow."""

import json

import numpy as np
import pytest
import tensorflow as tf
from ports import free_ports
from variable_util import initialized_session
from variable_util import make
from variable_util import sparse

import tf_multitier

v1 = tf.compat.v1


@pytest.mark.parametrize("parts", [1, 2])
def test_clipping_by_norm_equals_stock(world, parts):
    ev = make(parts=parts, initializer=v1.zeros_initializer())
    ids, factors = sparse([0, 0, 1, 1], [3, 3, 4, 3], [2, 2]), [1.0, 2.0, 3.0, 4.0]

    def loss(table=ev):
        pooled = tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")
        return tf.reduce_sum(pooled * factors)

    def clipped(pairs):
        gradients, variables = zip(*pairs)
        return list(zip(tf.clip_by_global_norm(gradients, 2.0)[0], variables))

    def stock_step(table):
        _, [gradient] = world.with_gradients(lambda: (0.0, loss(table)), [table])
        return -tf.convert_to_tensor(tf.clip_by_global_norm([gradient], 2.0)[0][0])

    world.step(loss, [ev], "sgd", 1.0, change=clipped)()
    values = world.run(lambda: tf.nn.embedding_lookup(ev, [3, 4]))
    stock = world.run(stock_step, np.zeros([10, 4], np.float32))[[3, 4]]
    np.testing.assert_allclose(values, stock, rtol=1e-6)
    # Counts survive clipping.
    assert world.run(lambda: ev.get_frequency([3, 4])).tolist() == [3, 1]


@pytest.mark.parametrize(("parts", "combiner"), [(1, "sum"), (2, "mean"), (1, "sqrtn")])
def test_weights_of_a_pooled_lookup_train_with_it(world, parts, combiner):
    ev, start = make(parts=parts), np.array([1, 2, 0.5, 3], np.float32)
    ids = sparse([0, 0, 1, 1], [3, 3, 8, 1], [2, 2])
    everything = lambda: tf.nn.embedding_lookup(ev, np.arange(9))

    def loss(weights, table=ev):
        weighted = tf.SparseTensor(ids.indices, weights, ids.dense_shape)
        pooled = tf.nn.embedding_lookup_sparse(table, ids, weighted, combiner=combiner)
        return tf.reduce_sum(pooled**2)

    def slope(weights):
        return world.with_gradients(lambda: (weights, loss(weights)), [weights])[1]

    def stock_step(weights, table):
        _, slopes = world.with_gradients(lambda: (0.0, loss(weights, table)), [weights, table])
        return [w - 0.1 * tf.convert_to_tensor(g) for w, g in zip((weights, table), slopes)]

    step = world.step(loss, [ev], "sgd", 0.1)
    ours, theirs = start, (start, world.run(everything))
    for _ in range(10):
        [found] = world.run(slope, ours)
        step(ours)
        ours, theirs = ours - np.float32(0.1) * found, world.run(stock_step, *theirs)
    np.testing.assert_allclose(ours, theirs[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(world.run(everything), theirs[1], rtol=1e-4, atol=1e-5)
    assert not np.allclose(ours, start)


def test_the_summed_gradient_is_not_computed_for_an_optimizer_that_takes_it_unchanged(graph):
    ev = make(initializer=v1.zeros_initializer())
    out = tf.nn.embedding_lookup_sparse(ev, sparse([0, 0], [3, 3], [1, 2]), None)
    train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(out))
    needed, queue = set(), [train]
    while queue:
        op = queue.pop()
        if op not in needed:
            needed.add(op)
            queue += [t.op for t in op.inputs] + list(op.control_inputs)
    assert "MultitierApply" in {op.type for op in needed}
    assert not {"UnsortedSegmentSum", "UniqueWithCounts"} & {op.type for op in needed}


def test_parameter_servers(tmp_path):
    ports = free_ports(3)
    cluster = tf.train.ClusterSpec(
        {"ps": [f"localhost:{p}" for p in ports[:2]], "worker": [f"localhost:{ports[2]}"]}
    )
    servers = [
        tf.distribute.Server(cluster, job, i, start=True)
        for job, i in (("ps", 0), ("ps", 1), ("worker", 0))
    ]
    with tf.Graph().as_default():
        with v1.device(
            v1.train.replica_device_setter(cluster=cluster, worker_device="/job:worker/task:0")
        ):
            step = v1.train.get_or_create_global_step()
            ev, local = make(parts=2), make("whole", parts=1)
            assert [p.device for p in ev] != [ev[0].device] * 2 and "/job:ps" in ev[0].device
            ids = sparse([0, 0, 1], [-4, 6, 7], [3, 2])
            loss = sum(
                tf.reduce_sum(tf.nn.embedding_lookup_sparse(e, ids, None, combiner=c))
                for e in (ev, local)
                for c in ("sum", "mean", "sqrtn")
            )
            train = v1.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
            same = [
                tf.nn.embedding_lookup_sparse(e, ids, None, combiner=c)
                for c in ("sum", "mean", "sqrtn")
                for e in (ev, local)
            ]
        for _ in range(2):
            with v1.train.MonitoredTrainingSession(
                servers[2].target,
                checkpoint_dir=str(tmp_path),
                save_checkpoint_steps=1,
                log_step_count_steps=None,
                save_summaries_steps=None,
            ) as session:
                session.run(train)
                outs = session.run(same)
        for routed, fused in zip(outs[::2], outs[1::2]):
            np.testing.assert_array_equal(routed, fused)


def test_two_optimizers_in_one_graph_and_two_on_one_variable(graph):
    wide, deep = make("wide", 1), make("deep", 4)
    loss = tf.reduce_sum(tf.nn.embedding_lookup(wide, [1, 2])) + tf.reduce_sum(
        tf.nn.embedding_lookup(deep, [1, 2])
    )
    ftrl, adagrad = v1.train.FtrlOptimizer(0.1), v1.train.AdagradOptimizer(0.1)
    other = v1.train.AdagradOptimizer(0.1)
    train = tf.group(ftrl.minimize(loss, var_list=[wide]), adagrad.minimize(loss, var_list=[deep]))
    second = other.minimize(loss, var_list=[deep])
    assert {
        s.column
        for s in (adagrad.get_slot(deep, "accumulator"), other.get_slot(deep, "accumulator"))
    } == {"deep/Adagrad", "deep/Adagrad_1"}
    with initialized_session() as session:
        session.run(train)
        session.run(second)
        columns = [
            c["name"] for c in json.loads(session.run(deep.export_rows()).manifest)["columns"]
        ]
        assert columns[1:] == ["deep/Adagrad", "deep/Adagrad_1"]
        rows = session.run(deep.export_rows()).rows
        np.testing.assert_allclose(rows[:, 4:], 1.1)


def test_a_slot_added_to_rows_that_exist_holds_its_initial_value(world):
    ev = make()
    loss = lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids))
    world.step(loss, [ev], "sgd", 1.0)([1, 2])
    before = world.run(ev.export)[1]
    world.step(loss, [ev], "adagrad", 1.0)([2])
    rows = world.run(ev.export_rows).rows
    np.testing.assert_array_equal(rows[0, :4], before[0])
    np.testing.assert_array_equal(rows[:, 4:], np.float32([[0.1] * 4, [1.1] * 4]))


def test_learning_rate_decay_and_versions_follow_the_global_step(graph):
    ev = make(initializer=v1.zeros_initializer())
    step = v1.train.get_or_create_global_step()
    rate = v1.train.exponential_decay(1.0, step, 1, 0.5, staircase=True)
    train = v1.train.GradientDescentOptimizer(rate).minimize(
        tf.reduce_sum(tf.nn.embedding_lookup(ev, [1])), global_step=step
    )
    with initialized_session() as session:
        for expected in (-1.0, -1.5, -1.75):
            session.run(train)
            np.testing.assert_array_equal(session.run(tf.nn.embedding_lookup(ev, [1]))[0], expected)
        assert session.run(ev.get_version([1, 2])).tolist() == [2, -1]


def test_expiry_by_steps_removal_and_queries(world):
    option = tf_multitier.EmbeddingVariableOption(evict_option=tf_multitier.GlobalStepEvict(2))
    ev = make(parts=2, ev_option=option)
    step = world.step(lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)), [ev], "adagrad")
    for batch in ([1, 2, 3], [2], [3], [4]):  # versions 0, 1, 2, 3
        step(batch)
    assert world.run(lambda: ev.lookup_tier([1, 99])).tolist() == [0, -1]
    assert world.run(lambda: ev.expire(4)) == 2
    assert world.run(ev.export)[0].tolist() == [3, 4]
    assert world.run(lambda: ev.remove([3, 77])) == 1
    assert world.run(ev.total_count) == 1
    assert world.run(ev.get_dynamic_shape).tolist() == [1, 4]
    world.run(ev.drain)
    stats = world.stats(ev)
    assert stats["rows"] == sum(part["rows"] for part in stats["parts"]) == 1
    assert len(stats["parts"]) == 2 and stats["row_bytes"] == stats["parts"][0]["row_bytes"]


def test_counter_filter_admits_after_so_many_occurrences(world):
    option = tf_multitier.EmbeddingVariableOption(
        filter_option=tf_multitier.CounterFilter(3),
        init_option=tf_multitier.InitializerOption(
            v1.ones_initializer(), default_value_no_permission=0.25
        ),
    )
    ev = make(initializer=None, ev_option=option)
    look_up = lambda ids: tf.nn.embedding_lookup(ev, ids)
    train = world.step(lambda ids: tf.reduce_sum(look_up(ids)), [ev], "sgd", 1.0)
    train([5, 5])
    np.testing.assert_array_equal(world.run(look_up, [5]), 0.25)
    assert world.run(ev.total_count) == 0
    assert world.run(lambda: ev.get_frequency([5])).tolist() == [2]
    train([5])
    assert world.run(ev.total_count) == 1
    np.testing.assert_array_equal(world.run(look_up, [5]), 0.0)


@pytest.mark.parametrize("parts", [1, 2])
def test_monitored_training_session(graph, parts, tmp_path):
    ev = make(parts=parts, initializer=v1.zeros_initializer())
    step = v1.train.get_or_create_global_step()
    train = v1.train.AdamOptimizer(0.1).minimize(
        tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 2])), global_step=step
    )
    read = ev.export()
    for _ in range(2):  # the second session restores what the first saved
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path),
            save_checkpoint_steps=2,
            log_step_count_steps=None,
            save_summaries_steps=None,
        ) as session:
            for _ in range(3):
                session.run(train)
            frequencies = session.run(read)[3]
    assert frequencies.tolist() == [6, 6]


def test_meta_graph_round_trip(graph):
    make("a", parts=1)
    parted = make("b", parts=2)
    ids = v1.placeholder(tf.int64, [None], name="ids")
    loss = sum(
        tf.reduce_sum(tf.nn.embedding_lookup(e, ids)) for e in tf_multitier.embedding_variables()
    )
    v1.train.AdagradOptimizer(0.1).minimize(loss, name="train")
    v1.global_variables_initializer()
    initial = tf.nn.embedding_lookup(parted, [4])
    v1.add_to_collection("read", initial)
    meta_graph = v1.train.export_meta_graph()
    with v1.Session() as session:
        session.run([e.initializer for e in parted])
        value = session.run(initial)
    with tf.Graph().as_default():
        v1.train.import_meta_graph(meta_graph)
        a, b = tf_multitier.embedding_variables()
        assert a.variable_name == "a" and b.num_partitions == 2
        assert v1.trainable_variables() == [a, *b]
        with v1.Session() as session:
            session.run("init")
            np.testing.assert_array_equal(session.run(v1.get_collection("read")[0]), value)
            np.testing.assert_array_equal(session.run(tf.nn.embedding_lookup(b, [4])), value)
            session.run("train", {"ids:0": [1, 2, 2]})
            assert session.run([a.total_count(), b.total_count()]) == [2, 2]
            columns = [
                c["name"] for c in json.loads(session.run(a.export_rows()).manifest)["columns"]
            ]
            assert columns[1:] == ["a/Adagrad"]


@pytest.fixture
def control_flow_v2():
    """Switches control flow v2 on or off, and back afterwards."""
    before = v1.control_flow_v2_enabled()
    switch = lambda on: v1.enable_control_flow_v2() if on else v1.disable_control_flow_v2()
    yield switch
    switch(before)


@pytest.mark.parametrize("enabled", [True, False])
def test_training_through_cond_needs_control_flow_v2(graph, control_flow_v2, enabled):
    control_flow_v2(enabled)
    ev = make(initializer=v1.zeros_initializer())
    flag = v1.placeholder(tf.bool, [])
    loss = tf.cond(flag, lambda: tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 1])), lambda: 0.0)
    optimizer = v1.train.GradientDescentOptimizer(1.0)
    if not enabled:
        with pytest.raises(NotImplementedError, match="inside tf.cond needs control flow v2"):
            optimizer.minimize(loss)
        return
    train = optimizer.minimize(loss)
    with initialized_session() as session:
        session.run(train, {flag: True})
        np.testing.assert_array_equal(session.run(tf.nn.embedding_lookup(ev, [1])), -2)
        session.run(train, {flag: False})
        assert session.run(ev.get_frequency([1])).tolist() == [2]

"""What an embedding variable promises, through TensorFlow: contracts 1, 2, 3, 8 and 11, lookups, training, scopes."""

import json
import socket
import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import lookup

v1 = tf.compat.v1
KEYS = np.array([-7, -1, 0, np.iinfo(np.int64).min, np.iinfo(np.int64).max, 1, 2**40], np.int64)


def make(name="ev", dim=4, parts=1, **kwargs):
    kwargs.setdefault("initializer", v1.random_uniform_initializer(-1, 1, seed=3))
    return tf_multitier.get_embedding_variable(name, dim, partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
                                               **kwargs)


def initialized_session():
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    return session


def sparse(rows, ids, shape):
    """SparseTensor of ids, each in its row, in order of occurrence."""
    columns = [sum(r == row for r in rows[:i]) for i, row in enumerate(rows)]
    return tf.SparseTensor(np.stack([rows, columns], axis=1).astype(np.int64), np.asarray(ids, np.int64), shape)


@pytest.mark.parametrize("parts", [1, 3])
def test_an_unseen_key_reads_the_same_everywhere_and_trains_from_that_value(graph, parts):
    ev = make(parts=parts)
    again = make("again", parts=4 - parts)  # same initializer and seed, other tables
    dense = tf.nn.embedding_lookup(ev, KEYS)
    in_batch = tf.nn.embedding_lookup(ev, tf.constant(np.tile(KEYS, (3, 1))))
    pooled = tf.nn.embedding_lookup_sparse(ev, sparse(np.arange(len(KEYS)), KEYS, [len(KEYS), 1]), None, combiner="sum")
    train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(dense), var_list=[ev])
    with initialized_session() as session:
        first = session.run(dense)
        assert len(np.unique(first, axis=0)) == len(KEYS)
        for same in session.run([tf.nn.embedding_lookup(again, KEYS), pooled, in_batch[0], in_batch[2]]):
            np.testing.assert_array_equal(same, first)
        assert session.run(ev) == 0
        session.run(train)
        np.testing.assert_array_equal(session.run(dense), first - np.float32(1))
        assert session.run(ev) == len(KEYS)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_repeated_key_is_updated_once_with_the_sum_of_its_gradients(graph, parts):
    ev = make(parts=parts, initializer=v1.zeros_initializer())
    loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, tf.constant([1, 1, 1], tf.int64)))
    train = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
    with initialized_session() as session:
        session.run(train)
        np.testing.assert_array_equal(session.run(tf.nn.embedding_lookup(ev, [1])), np.full((1, 4), -3, np.float32))
        assert session.run(ev.get_frequency([1, 2])).tolist() == [3, 0]


@pytest.mark.parametrize("parts", [1, 2])
def test_several_lookups_in_a_step_are_one_update(graph, parts):
    ev = make(parts=parts, initializer=v1.zeros_initializer())
    loss = (tf.reduce_sum(tf.nn.embedding_lookup(ev, tf.constant([5, 6], tf.int64))) +
            tf.reduce_sum(tf.nn.embedding_lookup_sparse(ev, sparse([0, 0, 1], [5, 5, 6], [2, 2]), None, combiner="sum")) +
            tf.reduce_sum(tf.nn.safe_embedding_lookup_sparse(ev, sparse([0], [5], [1, 1]), combiner="mean")))
    # A second update of the same key in the step would apply its momentum twice.
    train = v1.train.MomentumOptimizer(1.0, 0.5).minimize(loss)
    with initialized_session() as session:
        session.run(train)
        values = session.run(tf.nn.embedding_lookup(ev, [5, 6]))
        np.testing.assert_array_equal(values, np.array([[-4] * 4, [-2] * 4], np.float32))
        assert session.run(ev.get_frequency([5, 6])).tolist() == [4, 2]
        assert session.run(ev.get_version([5, 6])).tolist() == [1, 1]  # no global step: the table counts its applies


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("key_dtype", [tf.int64, tf.int32])
def test_every_integer_is_a_key(graph, key_dtype, parts):
    ev = make(parts=parts, initializer=v1.zeros_initializer(), key_dtype=key_dtype)
    limits = np.iinfo(key_dtype.as_numpy_dtype)
    keys = np.array([-7, -1, 0, limits.min, limits.max], key_dtype.as_numpy_dtype)
    out = tf.nn.embedding_lookup_sparse(ev, tf.SparseTensor([[i, 0] for i in range(5)], keys, [5, 1]), None)
    train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(out * np.arange(1, 6, dtype=np.float32)[:, None]))
    with initialized_session() as session:
        session.run(train)
        exported, values, versions, frequencies = session.run(ev.export())
        assert exported.tolist() == sorted(keys.tolist())
        assert frequencies.tolist() == [1] * 5 and (versions >= 0).all()
        order = np.argsort(keys)
        np.testing.assert_array_equal(values[:, 0], -(order + 1).astype(np.float32))


@pytest.mark.parametrize("parts", [1, 2])
def test_four_threads_lose_no_update(graph, parts):
    ev = make(dim=2, parts=parts, initializer=v1.zeros_initializer())
    ids = v1.placeholder(tf.int64, [None])
    train = v1.train.GradientDescentOptimizer(1.0).minimize(-tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)))
    read = tf.nn.embedding_lookup(ev, np.arange(50))
    with initialized_session() as session:
        rng = np.random.default_rng(7)
        batches = rng.integers(0, 50, (4, 500, 8))
        step = session.make_callable(train, [ids])

        def run(mine):
            for batch in mine:
                step(batch)

        threads = [threading.Thread(target=run, args=(batches[i],)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = np.bincount(batches.ravel(), minlength=50)
        np.testing.assert_array_equal(session.run(read)[:, 0], expected.astype(np.float32))
        np.testing.assert_array_equal(session.run(ev.get_frequency(np.arange(50))), expected)


def test_sessions_of_one_server_share_the_table_and_lose_no_update(graph):
    server = tf.distribute.Server.create_local_server()
    ev = make(dim=2, initializer=v1.zeros_initializer())
    train = v1.train.GradientDescentOptimizer(1.0).minimize(-tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 2, 2])))
    sessions = [v1.Session(server.target) for _ in range(2)]
    sessions[0].run(ev.initializer)
    threads = [threading.Thread(target=lambda s=s: [s.run(train) for _ in range(200)]) for s in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions:
        assert session.run(tf.nn.embedding_lookup(ev, [1, 2])[:, 0]).tolist() == [400, 800]
        session.close()


@pytest.mark.parametrize("parts", [1, 2])
def test_evaluation_changes_nothing(graph, parts):
    ev = make(parts=parts)
    ids = v1.placeholder(tf.int64, [None])
    out = tf.nn.embedding_lookup(ev, ids)
    train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(out))
    with initialized_session() as session:
        session.run(train, {ids: [1, 2, 3]})
        before = session.run(ev.export())
        for _ in range(3):
            session.run(out, {ids: [2, 3, 4, 5, -9]})
            session.run(tf.nn.embedding_lookup_sparse(ev, sparse([0, 0], [9, 1], [1, 2]), None))
        for x, y in zip(before, session.run(ev.export())):
            np.testing.assert_array_equal(x, y)


def test_a_refused_apply_changes_nothing(graph):
    ev = make(parts=1)
    lr = v1.placeholder(tf.float32, [])
    train = v1.train.GradientDescentOptimizer(lr).minimize(tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 2])))
    with initialized_session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="learning_rate"):
            session.run(train, {lr: np.inf})
        assert session.run(ev.total_count()) == 0


# ---- lookups


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("max_norm", [None, 0.7])
def test_pooled_lookup_and_its_gradients_equal_stock(graph, combiner, weighted, max_norm, parts):
    ev = make(dim=5, parts=parts)
    everything = tf.nn.embedding_lookup(ev, np.arange(12))
    with v1.Session() as session:
        session.run([p.initializer for p in ev.parts])
        table = session.run(everything)
    stock = v1.get_variable("stock", initializer=table, use_resource=True)
    ids = sparse([0, 0, 0, 1, 2, 2], [3, 4, 3, 11, 0, 7], [3, 3])
    weights = v1.get_variable("w", initializer=np.array([0.5, 2, 1, 3, 0.25, 1], np.float32), use_resource=True)
    sp_weights = tf.SparseTensor(ids.indices, weights.read_value(), ids.dense_shape) if weighted else None
    target = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    outs, grads = [], []
    for table_var in (stock, ev):
        out = tf.nn.embedding_lookup_sparse(table_var, ids, sp_weights, combiner=combiner, max_norm=max_norm)
        loss = tf.reduce_sum(out * target)
        outs.append(out)
        var_list = list(ev) if table_var is ev and parts > 1 else [table_var]
        slices = tf.gradients(loss, [getattr(v, "handle", v) for v in var_list])
        dense = tf.add_n([tf.math.unsorted_segment_sum(s.values, s.indices, 12) for s in slices])
        grads.append([dense] + (tf.gradients(loss, [weights]) if weighted else []))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        stock_out, our_out = session.run(outs)
        np.testing.assert_allclose(our_out, stock_out, rtol=2e-6, atol=1e-7)
        for x, y in zip(*session.run(grads)):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def on_two_devices(**kwargs):
    """A variable of three parts on two devices: no op can take all their handles."""
    made = []

    def device(op):
        made.extend([op.name] if op.type == "MultitierEmbeddingVariableHandle" else [])
        return f"/cpu:{len(made) % 2}" if op.type == "MultitierEmbeddingVariableHandle" else "/cpu:0"

    with v1.device(device):
        ev = make("spread", parts=3, **kwargs)
    assert len({part.device for part in ev}) == 2
    return ev


@pytest.mark.parametrize("max_norm", [None, 0.7])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_pooling_is_the_same_on_every_path(graph, combiner, weighted, max_norm):
    evs = [make(dim=19), make("parted", dim=19, parts=3), on_two_devices(dim=19)]
    rng = np.random.default_rng(1)
    rows = np.sort(rng.integers(0, 9, 300))
    ids = tf.SparseTensor(np.stack([rows, np.arange(300)], 1), rng.integers(-50, 50, 300), [10, 300])
    weights = tf.SparseTensor(ids.indices, rng.uniform(0.1, 2, 300).astype(np.float32), ids.dense_shape)
    outs = [tf.nn.embedding_lookup_sparse(e, ids, weights if weighted else None, combiner=combiner, max_norm=max_norm) for e in evs]
    assert [out.op.type == "MultitierLookupSparse" for out in outs][:2] == [True, True]
    assert not any("spread" in i.name for op in graph.get_operations() if op.type == "MultitierLookupSparse" for i in op.inputs)
    grads = [tf.gradients(tf.reduce_sum(out * tf.range(19.0)), list(e.parts)) for out, e in zip(outs, evs)]
    sums = [tf.math.unsorted_segment_sum(tf.concat([g.values for g in some], 0), 50 + tf.concat([g.indices for g in some], 0), 100)
            for some in grads]
    with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
        session.run(v1.global_variables_initializer())
        fused, routed, spread = session.run(outs)
        np.testing.assert_array_equal(fused, routed)
        np.testing.assert_array_equal(fused, spread)
        assert (fused[9] == 0).all() and np.isfinite(fused).all() and fused.any()
        for other in session.run(sums)[1:]:
            np.testing.assert_allclose(other, session.run(sums[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parts", [1, 3])
def test_max_norm_of_a_dense_lookup_and_its_gradient_equal_stock(graph, parts):
    ev = make(dim=6, parts=parts)
    ids = np.array([[3, -4], [3, 5]])
    table = v1.get_variable("table", [10, 6], use_resource=True)
    stock = tf.nn.embedding_lookup(table, ids + 4, max_norm=0.7)
    ours = tf.nn.embedding_lookup(ev, ids, max_norm=0.7)
    train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum((stock + ours) * tf.range(6.0)))
    rows = tf.nn.embedding_lookup(ev, np.arange(-4, 6))
    with initialized_session() as session:
        session.run(table.assign(rows))
        np.testing.assert_allclose(*session.run([ours, stock]), rtol=1e-6)
        session.run(train)
        np.testing.assert_allclose(*session.run([rows, table]), rtol=1e-5, atol=1e-6)


def test_empty_rows_are_zeros_and_touch_no_key(graph):
    ev = make()
    ids = sparse([1], [8], [3, 4])
    out = tf.nn.safe_embedding_lookup_sparse(ev, ids)
    empty = tf.nn.embedding_lookup_sparse(ev, tf.SparseTensor(np.zeros((0, 2), np.int64), np.zeros(0, np.int64), [2, 2]), None)
    train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(out) + tf.reduce_sum(empty))
    with initialized_session() as session:
        values, none, _ = session.run([out, empty, train])
        assert values.shape == (3, 4) and (values[[0, 2]] == 0).all() and (none == 0).all()
        assert session.run(ev.export())[0].tolist() == [8]


def test_default_id_negative_ids_and_weights_of_a_safe_lookup(graph):
    ev = make()
    ids = sparse([0, 0, 2], [-5, 6, 7], [3, 2])
    weights = tf.SparseTensor(ids.indices, np.array([1, -1, 1], np.float32), ids.dense_shape)
    out = tf.nn.safe_embedding_lookup_sparse(ev, ids, weights, combiner="mean", default_id=99)
    expected = tf.nn.embedding_lookup(ev, [-5, 99, 7])
    cube = tf.SparseTensor([[0, 1, 0], [1, 0, 0], [1, 0, 1]], tf.constant([1, 2, 3], tf.int64), [2, 2, 2])
    deep = tf.nn.safe_embedding_lookup_sparse(ev, cube, combiner="sum")
    with initialized_session() as session:
        got, want, got_deep = session.run([out, expected, deep])
        np.testing.assert_array_equal(got, want)
        e = session.run(tf.nn.embedding_lookup(ev, [1, 2, 3]))
        assert got_deep.shape == (2, 2, 4)
        np.testing.assert_array_equal(got_deep[0, 1], e[0])
        np.testing.assert_array_equal(got_deep[1, 0], e[1] + e[2])
        assert (got_deep[0, 0] == 0).all() and (got_deep[1, 1] == 0).all()


@pytest.mark.parametrize("parts", [1, 2])
def test_other_ways_to_read(graph, parts):
    ev = make(parts=parts)
    ragged = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64)
    with initialized_session() as session:
        a, b, c, d = session.run([tf.nn.embedding_lookup(ev, [[1, 2], [3, 1]]), tf.gather(ev, [1, 2, 3]),
                                  lookup.embedding_lookup(ev, np.array([1, 2, 3])), ev.sparse_read(tf.constant([1, 2, 3]))])
        assert a.shape == (2, 2, 4)
        np.testing.assert_array_equal(b, c)
        np.testing.assert_array_equal(b, d)
        np.testing.assert_array_equal(a.reshape(-1, 4)[[0, 1, 2]], b)
        pooled = session.run(v1.nn.embedding_lookup_sparse(ev, ragged[0:1], None, combiner="sum"))
        np.testing.assert_array_equal(pooled[0], b[0] + b[1])


@pytest.mark.parametrize("parts", [1, 2])
def test_occurrences_are_counted_through_tensorflows_own_ragged_lookup(graph, parts):
    ev = make(parts=parts, initializer=v1.zeros_initializer())
    ragged = tf.ragged.constant([[3, 3, 4], [3]], dtype=tf.int64)
    out = v1.nn.embedding_lookup_sparse(ev, ragged, None, combiner="sum")
    train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(out))
    with initialized_session() as session:
        session.run(train)
        np.testing.assert_array_equal(session.run(tf.nn.embedding_lookup(ev, [3, 4]))[:, 0], [-3, -1])
        assert session.run(ev.get_frequency([3, 4])).tolist() == [3, 1]


def test_two_thousand_ids_of_int32_widen(graph):
    ev = make()
    ids = np.arange(-1000, 1000)
    with initialized_session() as session:
        a, b = session.run([tf.nn.embedding_lookup(ev, ids.astype(np.int32)), tf.nn.embedding_lookup(ev, ids)])
        np.testing.assert_array_equal(a, b)


# ---- training


@pytest.mark.parametrize("parts", [1, 2])
def test_clipping_by_norm_equals_stock(graph, parts):
    ev = make(parts=parts, initializer=v1.zeros_initializer())
    stock = v1.get_variable("stock", [10, 4], initializer=v1.zeros_initializer(), use_resource=True)
    ids = sparse([0, 0, 1, 1], [3, 3, 4, 3], [2, 2])
    results = []
    for table, var_list in ((stock, [stock]), (ev, list(ev.parts))):
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        loss = tf.reduce_sum(tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum") * [1.0, 2.0, 3.0, 4.0])
        grads, variables = zip(*optimizer.compute_gradients(loss, var_list))
        clipped, norm = tf.clip_by_global_norm(grads, 2.0)
        results.append((optimizer.apply_gradients(zip(clipped, variables)), norm))
    with initialized_session() as session:
        (_, stock_norm), (_, norm) = session.run(results)
        np.testing.assert_allclose(norm, stock_norm, rtol=1e-6)
        np.testing.assert_allclose(session.run(tf.nn.embedding_lookup(ev, [3, 4])), session.run(stock)[[3, 4]], rtol=1e-6)
        assert session.run(ev.get_frequency([3, 4])).tolist() == [3, 1]  # counts survive clipping


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("parts", [1, 2])
def test_weights_of_a_pooled_lookup_train_with_it(graph, parts, combiner):
    ev = make(parts=parts)
    with v1.Session() as session:
        everything = tf.nn.embedding_lookup(ev, np.arange(9))
        session.run([p.initializer for p in ev.parts])
        initial = session.run(everything)
    stock = v1.get_variable("stock", initializer=initial, use_resource=True)
    ids = sparse([0, 0, 1, 1], [3, 3, 8, 1], [2, 2])
    weights, train = [], []
    for i, table in enumerate((stock, ev)):
        weights.append(v1.get_variable(f"w{i}", initializer=np.array([1, 2, 0.5, 3], np.float32), use_resource=True))
        sp_weights = tf.SparseTensor(ids.indices, weights[i].read_value(), ids.dense_shape)
        loss = tf.reduce_sum(tf.nn.embedding_lookup_sparse(table, ids, sp_weights, combiner=combiner) ** 2)
        train.append(v1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[table, weights[i]]))
    with initialized_session() as session:
        for _ in range(30):
            session.run(train)
        ours, theirs = session.run([everything, stock])
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        ours, theirs = session.run(weights[::-1])
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        assert not np.allclose(ours, [1, 2, 0.5, 3])


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
    ports = [_free_port() for _ in range(3)]
    cluster = tf.train.ClusterSpec({"ps": [f"localhost:{p}" for p in ports[:2]], "worker": [f"localhost:{ports[2]}"]})
    servers = [tf.distribute.Server(cluster, job, i, start=True) for job, i in (("ps", 0), ("ps", 1), ("worker", 0))]
    with tf.Graph().as_default():
        with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device="/job:worker/task:0")):
            step = v1.train.get_or_create_global_step()
            ev, local = make(parts=2), make("whole", parts=1)
            assert [p.device for p in ev] != [ev[0].device] * 2 and "/job:ps" in ev[0].device
            ids = sparse([0, 0, 1], [-4, 6, 7], [3, 2])
            loss = sum(tf.reduce_sum(tf.nn.embedding_lookup_sparse(e, ids, None, combiner=c)) for e in (ev, local)
                       for c in ("sum", "mean", "sqrtn"))
            train = v1.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
            same = [tf.nn.embedding_lookup_sparse(e, ids, None, combiner=c) for c in ("sum", "mean", "sqrtn") for e in (ev, local)]
        for _ in range(2):
            with v1.train.MonitoredTrainingSession(servers[2].target, checkpoint_dir=str(tmp_path), save_checkpoint_steps=1,
                                                   log_step_count_steps=None, save_summaries_steps=None) as session:
                session.run(train)
                outs = session.run(same)
        for routed, fused in zip(outs[::2], outs[1::2]):
            np.testing.assert_array_equal(routed, fused)


def _free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def test_two_optimizers_in_one_graph_and_two_on_one_variable(graph):
    wide, deep = make("wide", 1), make("deep", 4)
    loss = tf.reduce_sum(tf.nn.embedding_lookup(wide, [1, 2])) + tf.reduce_sum(tf.nn.embedding_lookup(deep, [1, 2]))
    ftrl, adagrad = v1.train.FtrlOptimizer(0.1), v1.train.AdagradOptimizer(0.1)
    other = v1.train.AdagradOptimizer(0.1)
    train = tf.group(ftrl.minimize(loss, var_list=[wide]), adagrad.minimize(loss, var_list=[deep]))
    second = other.minimize(loss, var_list=[deep])
    assert {s.column for s in (adagrad.get_slot(deep, "accumulator"), other.get_slot(deep, "accumulator"))} == {
        "deep/Adagrad", "deep/Adagrad_1"}
    with initialized_session() as session:
        session.run(train)
        session.run(second)
        columns = [c["name"] for c in json.loads(session.run(deep.export_rows()).manifest)["columns"]]
        assert columns[1:] == ["deep/Adagrad", "deep/Adagrad_1"]
        rows = session.run(deep.export_rows()).rows
        np.testing.assert_allclose(rows[:, 4:], 1.1)


def test_a_slot_added_to_rows_that_exist_holds_its_initial_value(graph):
    ev = make()
    loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 2]))
    sgd = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
    with initialized_session() as session:
        session.run(sgd)
        before = session.run(ev.export())[1]
        momentum = v1.train.MomentumOptimizer(1.0, 0.9).minimize(loss)  # after the initializer ran
        session.run(momentum)
        rows = session.run(ev.export_rows()).rows
        np.testing.assert_array_equal(rows[:, :4], before - np.float32(1))
        np.testing.assert_array_equal(rows[:, 4:], 1)


def test_learning_rate_decay_and_versions_follow_the_global_step(graph):
    ev = make(initializer=v1.zeros_initializer())
    step = v1.train.get_or_create_global_step()
    rate = v1.train.exponential_decay(1.0, step, 1, 0.5, staircase=True)
    train = v1.train.GradientDescentOptimizer(rate).minimize(tf.reduce_sum(tf.nn.embedding_lookup(ev, [1])), global_step=step)
    with initialized_session() as session:
        for expected in (-1.0, -1.5, -1.75):
            session.run(train)
            np.testing.assert_array_equal(session.run(tf.nn.embedding_lookup(ev, [1]))[0], expected)
        assert session.run(ev.get_version([1, 2])).tolist() == [2, -1]


def test_expiry_by_steps_removal_and_queries(graph):
    ev = make(parts=2, ev_option=tf_multitier.EmbeddingVariableOption(evict_option=tf_multitier.GlobalStepEvict(2)))
    step = v1.train.get_or_create_global_step()
    ids = v1.placeholder(tf.int64, [None])
    train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)), global_step=step)
    with initialized_session() as session:
        for batch in ([1, 2, 3], [2], [3], [4]):  # versions 0, 1, 2, 3
            session.run(train, {ids: batch})
        assert session.run(ev.lookup_tier([1, 99])).tolist() == [0, -1]
        assert session.run(ev.expire(4)) == 2
        assert session.run(ev.export())[0].tolist() == [3, 4]
        assert session.run(ev.remove([3, 77])) == 1
        assert session.run(ev.total_count()) == 1
        assert session.run(ev.get_dynamic_shape()).tolist() == [1, 4]
        session.run(ev.drain())
        stats = json.loads(session.run(ev.stats()))
        assert len(stats) == 2 and sum(s["rows"] for s in stats) == 1


def test_counter_filter_admits_after_so_many_occurrences(graph):
    option = tf_multitier.EmbeddingVariableOption(
        filter_option=tf_multitier.CounterFilter(3),
        init_option=tf_multitier.InitializerOption(v1.ones_initializer(), default_value_no_permission=0.25))
    ev = make(initializer=None, ev_option=option)
    ids = v1.placeholder(tf.int64, [None])
    out = tf.nn.embedding_lookup(ev, ids)
    train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(out))
    with initialized_session() as session:
        session.run(train, {ids: [5, 5]})
        np.testing.assert_array_equal(session.run(out, {ids: [5]}), 0.25)
        assert session.run(ev.total_count()) == 0 and session.run(ev.get_frequency([5])).tolist() == [2]
        session.run(train, {ids: [5]})
        assert session.run(ev.total_count()) == 1
        np.testing.assert_array_equal(session.run(out, {ids: [5]}), 0.0)


@pytest.mark.parametrize("parts", [1, 2])
def test_monitored_training_session(graph, parts, tmp_path):
    ev = make(parts=parts, initializer=v1.zeros_initializer())
    step = v1.train.get_or_create_global_step()
    train = v1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 2])), global_step=step)
    read = ev.export()
    for _ in range(2):  # the second session restores what the first saved
        with v1.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_checkpoint_steps=2,
                                               log_step_count_steps=None, save_summaries_steps=None) as session:
            for _ in range(3):
                session.run(train)
            frequencies = session.run(read)[3]
    assert frequencies.tolist() == [6, 6]


def test_meta_graph_round_trip(graph):
    make("a", parts=1)
    parted = make("b", parts=2)
    ids = v1.placeholder(tf.int64, [None], name="ids")
    loss = sum(tf.reduce_sum(tf.nn.embedding_lookup(e, ids)) for e in tf_multitier.embedding_variables())
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
            columns = [c["name"] for c in json.loads(session.run(a.export_rows()).manifest)["columns"]]
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


# ---- scopes, seeds, initializers


def test_scopes_reuse_and_partitioners(graph):
    with v1.variable_scope("outer", partitioner=v1.fixed_size_partitioner(2)):
        ev = tf_multitier.get_embedding_variable("ev", 4)
        assert isinstance(ev, tf_multitier.PartitionedEmbeddingVariable) and ev.name == "outer/ev"
        assert [p.name for p in ev] == ["outer/ev/part_0:0", "outer/ev/part_1:0"]
    with v1.variable_scope("outer", reuse=True):
        assert tf_multitier.get_embedding_variable("ev", 4) is ev
    with v1.variable_scope("outer", reuse=v1.AUTO_REUSE):
        assert tf_multitier.get_embedding_variable("ev", 4) is ev
        assert tf_multitier.get_embedding_variable("new", 4).name == "outer/new:0"
    template = v1.make_template("template", lambda: tf_multitier.get_embedding_variable("t", 2))
    assert template() is template() and template().name == "template/t:0"
    assert v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES) == v1.global_variables()
    frozen = make("frozen", trainable=False, collections=["mine"])
    assert frozen not in v1.trainable_variables() and v1.get_collection("mine") == [frozen]


def test_initial_values_follow_seed_and_name_in_every_process_and_partitioning():
    def read(name, graph_seed, op_seed, parts):
        with tf.Graph().as_default():
            v1.set_random_seed(graph_seed)
            ev = make(name, parts=parts, initializer=v1.random_normal_initializer(0, 1, seed=op_seed))
            with initialized_session() as session:
                return session.run(tf.nn.embedding_lookup(ev, KEYS))

    base = read("a", 1, None, 1)
    np.testing.assert_array_equal(base, read("a", 1, None, 3))
    assert not np.array_equal(base, read("b", 1, None, 1))
    assert not np.array_equal(base, read("a", 2, None, 1))
    np.testing.assert_array_equal(read("a", 1, 5, 1), read("b", 2, 5, 2))


@pytest.mark.parametrize("parts", [1, 2])
def test_other_initializers_draw_a_matrix_once(graph, parts):
    ev = make("m", parts=parts, initializer=v1.variance_scaling_initializer(),
              ev_option=tf_multitier.EmbeddingVariableOption(init_option=tf_multitier.InitializerOption(default_value_dim=5)))
    given = make("given", dim=2, initializer=np.array([[1, 2], [3, 4]], np.float32))
    with initialized_session() as session:
        values = session.run(tf.nn.embedding_lookup(ev, [0, 5, -5, 4, -1, 1]))
        np.testing.assert_array_equal(values[0], values[1])
        np.testing.assert_array_equal(values[0], values[2])
        np.testing.assert_array_equal(values[3], values[4])  # -1 mod 5 is 4
        assert not np.array_equal(values[0], values[5])
        np.testing.assert_array_equal(session.run(tf.nn.embedding_lookup(given, [-1, 2])), [[3, 4], [1, 2]])


@pytest.mark.parametrize("initializer, low, high, mean, deviation", [
    (v1.random_uniform_initializer(-2, 2), -2, 2, 0, 4 / 12**0.5), (v1.random_normal_initializer(1, 2), -12, 14, 1, 2),
    (v1.truncated_normal_initializer(0, 1), -2, 2, 0, 0.88), (tf.random_normal_initializer(1, 2), -12, 14, 1, 2),
    (None, -2, 2, 0, 0.88), (v1.zeros_initializer, 0, 0, 0, 0), (tf.ones_initializer(), 1, 1, 1, 0),
    (v1.constant_initializer(3), 3, 3, 3, 0), (2.5, 2.5, 2.5, 2.5, 0)])
def test_initializers_have_their_distribution(graph, initializer, low, high, mean, deviation):
    ev = make(dim=16, initializer=initializer)
    with initialized_session() as session:
        values = session.run(tf.nn.embedding_lookup(ev, np.arange(4000)))
    assert low <= values.min() and values.max() <= high
    assert abs(values.mean() - mean) < 0.05 and abs(values.std() - deviation) < 0.05
    assert deviation == 0 or len(np.unique(values, axis=0)) == 4000


def test_a_thousand_variables_in_one_graph(graph):
    evs = [make(f"ev{i}", dim=2, initializer=v1.zeros_initializer()) for i in range(1000)]
    total = tf.add_n([e.total_count() for e in evs])
    with initialized_session() as session:
        assert session.run(total) == 0


def test_facade_adds_our_names_to_v1():
    import tf_multitier.v1 as facade

    assert facade.get_embedding_variable is tf_multitier.get_embedding_variable
    assert facade.placeholder is v1.placeholder and facade.train.AdamOptimizer is v1.train.AdamOptimizer
    assert facade.train.AdagradDecayOptimizer is tf_multitier.train.AdagradDecayOptimizer
    assert facade.nn.embedding_lookup is v1.nn.embedding_lookup
    assert "get_embedding_variable" in dir(facade) and "placeholder" in dir(facade)
    assert facade.EmbeddingVariableOption is tf_multitier.EmbeddingVariableOption

"""Lookups of variables on parameter servers: one exchange with each, and the bits of one process (exchange.py).

The servers are in the process of the test, as TensorFlow's own tests have them.
"""

import collections
import contextlib
import functools
import socket

import numpy as np
import pytest
import tensorflow as tf
from ports import free_ports

import tf_multitier

v1 = tf.compat.v1
FORMS = (
    "sparse",
    "ragged",
    "dense",
    "sequence",
    "weighted",
    "clipped",
    "single",
    "pooled",
    "small",
    "tables",
    "pooled_tables",
    "small_tables",
)
DIMS = (8, 3, 16, 5, 4, 1, 16, 4, 2, 4, 4, 2)


@pytest.fixture(scope="module")
def cluster():
    addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]
    cluster = {"ps": addresses[:3], "worker": addresses[3:]}
    servers = [tf.distribute.Server(cluster, "ps", i, start=True) for i in range(3)]
    servers.append(tf.distribute.Server(cluster, "worker", 0, start=True))
    return cluster, servers


def test_a_port_of_a_test_is_no_other_programs():
    [port] = free_ports(1)
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(("127.0.0.1", port))


@contextlib.contextmanager
def _placed(cluster, servers):
    """A graph whose variables are on the first of the servers; 0: everything in a session of this process."""
    with tf.Graph().as_default():
        if servers == 0:
            yield lambda: v1.Session()
            return
        some = {"ps": cluster[0]["ps"][:servers], "worker": cluster[0]["worker"]}
        setter = v1.train.replica_device_setter(cluster=some, worker_device="/job:worker/task:0")
        with v1.device(setter):
            yield lambda: v1.Session(cluster[1][3].target)


def _ids(rng, form, batch=24):
    """Ids of a member; a few keys occur often, one is the smallest int64, and a row is empty."""
    if form == "dense":
        return tf.constant(rng.zipf(1.5, (batch, 2)) % 50)
    lengths = rng.integers(0, 6, batch)
    lengths[3] = 0
    values = rng.zipf(1.5, lengths.sum()) % 50
    values[0] = np.iinfo(np.int64).min
    ragged = tf.RaggedTensor.from_row_lengths(values, lengths)
    return ragged if form == "ragged" else ragged.to_sparse()


def _looked_up(tables, rng, clip):
    """The values of all forms, in groups and by single lookups, each of a table of its own.

    clip: without the dense single lookups, whose gradient in one process has an entry, and so a norm, for each occurrence.
    """
    nn = tf_multitier.nn
    ids = [_ids(rng, form) for form in FORMS[:6]]
    weights = ids[4].with_values(
        tf.constant(rng.random(1000), tf.float32)[: tf.size(ids[4].values)]
    )
    values = nn.group_embedding_lookup_sparse(
        [tables[0], tables[1], tables[4], tables[5], tables[8]],
        [ids[0], ids[1], ids[4], ids[5], ids[5]],
        ["mean", "sum", "sqrtn", "sum", "mean"],
        [None, None, weights, None, None],
        max_norms=[None, None, None, 0.01, None],
    )
    values += nn.group_embedding_lookup([tables[2]], [ids[2]])
    values += nn.group_embedding_lookup_sparse([tables[3]], [ids[3]], ["sum"], is_sequence=True)
    if not clip:
        values.append(tf.nn.embedding_lookup(tables[6], ids[2]))
        numbers = rng.integers(0, 3, ids[2].shape)
        values.append(tf_multitier.lookup.embedding_lookup(tables[9], ids[2], tables=numbers))
        numbers = tf.math.floormod(ids[4].values, 3)
        pool = tf_multitier.lookup.embedding_lookup_sparse
        values.append(pool(tables[10], ids[4], weights, "mean", tables=numbers))
        values.append(pool(tables[11], ids[4], combiner="sqrtn", tables=numbers))
    values.append(tf.nn.embedding_lookup_sparse(tables[7], ids[4], weights, combiner="mean"))
    return values


def _tables(name, parts):
    return [
        tf_multitier.get_embedding_variable(
            f"{name}_{form}",
            dim,
            initializer=[0.5, tf.random_normal_initializer(seed=2), -0.5]
            if form.endswith("tables")
            else tf.random_uniform_initializer(-0.1, 0.1, seed=1),
            partitioner=None
            if form in ("sparse", "small", "small_tables")
            else tf.compat.v1.fixed_size_partitioner(parts),
        )
        for form, dim in zip(FORMS, DIMS)
    ]


def _trained(cluster, servers, name, optimizer, clip, parts=3, steps=3):
    with _placed(cluster, servers) as session_of:
        tables = _tables(name, parts)
        v1.train.get_or_create_global_step()
        rng = np.random.default_rng(5)
        values = _looked_up(tables, rng, clip)
        loss = tf.add_n([tf.reduce_sum(tf.square(v + 0.5) * 0.1) for v in values])
        grads = optimizer().compute_gradients(loss)
        if clip:
            clipped, _ = tf.clip_by_global_norm([g for g, _ in grads], 0.5)
            grads = [(g, v) for g, (_, v) in zip(clipped, grads)]
        train = optimizer().apply_gradients(grads)
        its_rows = [table.export() for table in tables]
        with session_of() as session:
            session.run(v1.global_variables_initializer())
            found = session.run(values)
            for _ in range(steps):
                session.run(train)
            return found, session.run(values), session.run(its_rows)


def _assert_same(one, other):
    tf.nest.map_structure(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize(
    "rule, clip, numbers",
    [
        ("AdagradOptimizer", False, (1, 2, 3)),
        ("AdamOptimizer", True, (2,)),
        ("FtrlOptimizer", False, (3,)),
    ],
)
def test_any_number_of_servers_trains_the_bits_of_one_process(cluster, rule, clip, numbers):
    optimizer = lambda: getattr(v1.train, rule)(0.1)
    name = f"{rule}_{clip}"
    alone = _trained(cluster, 0, name, optimizer, clip)
    for servers in numbers:
        _assert_same(_trained(cluster, servers, f"{name}_{servers}", optimizer, clip), alone)


def _trained_columns(cluster, servers):
    """Values of feature columns, those after training, what queries by key say of an id that is removed and others, and whether lookups
    are exchanges."""
    with _placed(cluster, servers) as session_of:
        columns = tf_multitier.feature_column
        embedded = [
            columns.embedding_column(
                columns.categorical_column_with_embedding(key, tf.int64),
                dim,
                combiner,
                initializer=tf.random_uniform_initializer(-0.1, 0.1, seed=1),
            )
            for key, dim, combiner in (("a", 4, "mean"), ("b", 3, "sqrtn"))
        ]
        step, rng = v1.train.get_or_create_global_step(), np.random.default_rng(6)
        features = {key: _ids(rng, "sparse") for key in ("a", "b")}
        with v1.variable_scope("columns", partitioner=v1.fixed_size_partitioner(2)):
            values = v1.feature_column.input_layer(features, embedded)
        loss = tf.reduce_sum(tf.square(values + 0.5))
        train = v1.train.AdagradOptimizer(0.1).minimize(loss, step)
        exchanges = any(op.type == "MultitierRoute" for op in step.graph.get_operations())
        table = tf_multitier.embedding_variables()[0]
        keys = np.arange(8)
        asked = [table.get_frequency(keys), table.get_version(keys), table.peek(keys)]
        asked.append(table.lookup_tier(keys))
        assert len(table.parts) == 2 and len({part.device for part in table.parts}) == max(
            servers, 1
        )
        with session_of() as session:
            session.run(v1.global_variables_initializer())
            found = [session.run(values)]
            for _ in range(3):
                session.run(train)
            found += [session.run(values), session.run(asked)]
            found += [session.run(table.remove(keys[1:7])), session.run(asked)]
    return found, exchanges


def test_feature_columns_train_the_bits_of_one_process_and_queries_reach_all_servers(cluster):
    alone, is_exchange = _trained_columns(cluster, 0)
    assert not is_exchange
    assert alone[3] == 6 and alone[2][0][1:7].min() > 0 and not alone[4][0][1:7].any()
    for servers in (1, 2):
        found, is_exchange = _trained_columns(cluster, servers)
        assert is_exchange
        _assert_same(found, alone)


def _crossings(session, fetches):
    """{(from, to): types of the ops whose tensors, or ends, cross between processes in a step, sorted}."""
    metadata = v1.RunMetadata()
    options = v1.RunOptions(output_partition_graphs=True)
    session.run(fetches, options=options, run_metadata=metadata)
    process = lambda device: device.decode().partition("/device")[0].replace("/replica:0", "")
    found = collections.defaultdict(list)
    for graph in metadata.partition_graphs:
        for node in graph.node:
            ends = [process(node.attr[end].s) for end in ("send_device", "recv_device")]
            if node.op == "_Send" and ends[0] != ends[1]:
                name = node.attr["tensor_name"].s.decode().rpartition("/")[2]
                found[tuple(ends)].append(name)
    return {ends: sorted(names) for ends, names in found.items()}


def test_a_server_is_sent_one_request_and_one_gradient_whatever_the_number_of_tables(cluster):
    with _placed(cluster, 2) as session_of:
        tables = [
            tf_multitier.get_embedding_variable(
                f"crossing{i}", 4, partitioner=v1.fixed_size_partitioner(2)
            )
            for i in range(10)
        ]
        ids = [v1.placeholder_with_default(np.arange(i + 2), [None]) for i in range(10)]
        values = tf_multitier.nn.group_embedding_lookup(tables, ids)
        loss = tf.add_n([tf.reduce_sum(v) for v in values])
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        with session_of() as session:
            session.run(v1.global_variables_initializer())
            looked = _crossings(session, values)
            trained = _crossings(session, train)
    worker = "/job:worker/task:0"
    for i, suffix in enumerate(["", "_1"]):
        server = f"/job:ps/task:{i}"
        assert looked[worker, server] == ["MultitierRoute"]
        assert looked[server, worker] == [f"MultitierServe{suffix}"]
        assert trained[worker, server] == ["MultitierPoolGrad", "MultitierRoute"]
        # And that the update has ended.
        assert trained[server, worker] == ["MultitierGroupApply", f"MultitierServe{suffix}"]


@pytest.mark.parametrize("servers", [0, 2])
def test_weights_have_their_gradient_and_unused_members_none(cluster, servers):
    with _placed(cluster, servers) as session_of:
        tables = [
            tf_multitier.get_embedding_variable(
                f"weights{servers}_{i}",
                4,
                initializer=tf.constant_initializer(0.25 + i),
                partitioner=v1.fixed_size_partitioner(2),
            )
            for i in range(2)
        ]
        ids = tf.RaggedTensor.from_row_lengths([7, 7, -1, 9], [3, 0, 1])
        weights = v1.placeholder_with_default([1.0, 2.0, 3.0, 4.0], [4])
        values = tf_multitier.nn.group_embedding_lookup_sparse(
            tables, [ids, ids], ["mean", "sum"], [ids.with_values(weights), None]
        )
        scale = tf.constant([[1.0, 2.0, 3.0, 4.0]])
        of_weights, *of_rows = tf.gradients(
            tf.reduce_sum(scale * tf.square(values[0])),
            [weights, *tables[0], *tables[1]],
        )
        assert of_rows[2:] == [None, None]
        with session_of() as session:
            session.run(v1.global_variables_initializer())
            np.testing.assert_allclose(session.run(of_weights), [0, 0, 0, 0], atol=1e-6)
            found, keys = session.run([of_rows[:2], tables[0].get_frequency([7, 9])])
        assert sorted(k for each in found for k in each.indices) == [-1, 7, 9]
        assert keys.tolist() == [0, 0]


@pytest.fixture
def set_wire_dtype():
    yield tf_multitier.distribute.set_wire_dtype
    tf_multitier.distribute.set_wire_dtype(None)


@pytest.mark.parametrize("wire", ["bfloat16", "half"])
def test_rows_and_gradients_are_rounded_to_the_type_of_the_wire(
    cluster, wire, monkeypatch, set_wire_dtype
):
    with _placed(cluster, 2) as session_of:
        make = functools.partial(
            tf_multitier.get_embedding_variable,
            embedding_dim=3,
            initializer=tf.random_uniform_initializer(-1, 1, seed=3),
            partitioner=v1.fixed_size_partitioner(2),
        )
        if wire == "half":
            monkeypatch.setenv("TF_MULTITIER_WIRE_DTYPE", wire)
        else:
            set_wire_dtype(tf.bfloat16)
        table = make(f"rounded_{wire}")
        values = tf.nn.embedding_lookup(table, [1, 2, 1])
        factors = tf.constant([[0.1, 1.2, 2.3]])
        train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(values * factors))
        rows = table.peek([1, 2])
        with session_of() as session:
            session.run(v1.global_variables_initializer())
            before = session.run(rows)
            rounded = lambda x: tf.cast(tf.cast(x, wire), tf.float32)
            found = session.run([values, rounded(before)])
            np.testing.assert_array_equal(found[0], found[1][[0, 1, 0]])
            session.run(train)
            step = session.run(rounded(factors * [[2.0], [1.0]]))
            np.testing.assert_array_equal(session.run(rows), before - step)
            assert (found[1] != before).any()


def test_an_unknown_type_of_the_wire_is_refused(cluster, monkeypatch):
    monkeypatch.setenv("TF_MULTITIER_WIRE_DTYPE", "int8")
    with _placed(cluster, 2):
        table = tf_multitier.get_embedding_variable("unknown_wire", 3)
        with pytest.raises(
            TypeError, match="TF_MULTITIER_WIRE_DTYPE.*expected.*bfloat16.*found int8"
        ):
            tf.nn.embedding_lookup(table, [1])
    with pytest.raises(TypeError, match="set_wire_dtype.*expected.*bfloat16.*found int8"):
        tf_multitier.distribute.set_wire_dtype("int8")


@pytest.fixture
def control_flow_v2():
    was = v1.control_flow_v2_enabled()
    v1.enable_control_flow_v2()
    yield
    if not was:
        v1.disable_control_flow_v2()


def test_a_branch_trains(cluster, control_flow_v2):
    with _placed(cluster, 2) as session_of:
        table = tf_multitier.get_embedding_variable(
            "branch",
            2,
            initializer=tf.constant_initializer(0.0),
            partitioner=v1.fixed_size_partitioner(2),
        )
        taken = v1.placeholder(tf.bool, [])
        value = tf.cond(
            taken,
            lambda: tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 2, 1])),
            lambda: 0.0,
        )
        train = v1.train.GradientDescentOptimizer(1.0).minimize(value)
        rows = [table.get_frequency([1, 2]), table.peek([1, 2])]
        with session_of() as session:
            session.run(v1.global_variables_initializer())
            for each in (True, False, True):
                session.run(train, {taken: each})
            frequencies, values = session.run(rows)
    assert frequencies.tolist() == [4, 2]
    assert values.tolist() == [[-4.0, -4.0], [-2.0, -2.0]]


def _route_devices(of_rows, of_lookup):
    """The devices of the ops of the asker; none if there is no exchange."""
    with tf.Graph().as_default() as graph:
        with v1.device(of_rows):
            table = tf_multitier.get_embedding_variable("placed", 4)
        before = len(graph.get_operations())
        with v1.device(of_lookup):
            value = tf.nn.embedding_lookup(table, [1])
            tf.gradients(value, [table])
        made = graph.get_operations()[before:]
        assert not any(op.type == "NoOp" for op in made)
        return {op.device for op in made if op.type in ("MultitierRoute", "MultitierPoolGrad")}


def test_lookups_in_the_process_of_the_rows_use_no_exchange():
    for device in ("", "/cpu:0", "/job:worker/task:0", "/job:ps/task:1/cpu:0"):
        assert _route_devices(device, device) == set()


def test_the_caller_asks_on_its_cpu():
    for device in ("/job:worker/task:0", "/job:worker/task:0/gpu:0"):
        assert _route_devices("/job:ps/task:0", device) == {"/job:worker/task:0/device:CPU:0"}

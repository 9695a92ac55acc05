"""Cases that need a device of type GPU: the job `gpu` of tier 3 gives them one (build_tools/suites.py)."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from variable_util import make
from variable_util import sparse

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import lookup
from tf_multitier import nn
from tf_multitier._src.tensorflow.library import ops

v1 = tf.compat.v1
KINDS = ["HBM", "HBM_DRAM", "HBM_DRAM_SSDHASH"]
SIZES = {"HBM": [], "HBM_DRAM": [2048], "HBM_DRAM_SSDHASH": [2048, 4096], "DRAM": []}
ON_GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
ON_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def variable(name, kind, path, **kwargs):
    storage = tf_multitier.StorageOption(
        storage_type=kind, storage_path=str(path), storage_size=SIZES[kind]
    )
    return make(
        name, ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage), **kwargs
    )


def soft_session(graph):
    return v1.Session(graph=graph, config=v1.ConfigProto(allow_soft_placement=True))


def placed(session, fetches, **kwargs):
    """{name of a node: its device} of a run."""
    metadata = v1.RunMetadata()
    options = v1.RunOptions(output_partition_graphs=True)
    session.run(fetches, options=options, run_metadata=metadata, **kwargs)
    return {
        node.name: (node.op, node.device)
        for graph in metadata.partition_graphs
        for node in graph.node
    }


def devices_of(nodes, ops="Multitier"):
    return {device for op, device in nodes.values() if ops in op}


def group_lookups(nodes):
    """[(type, device)] of each grouped lookup."""
    return sorted(where for where in nodes.values() if "GroupLookup" in where[0])


def model(kind, path, device="/GPU:0", optimizer=None, **kwargs):
    """(outputs, training op, input, variables) of plain, pooled and grouped lookups of two variables."""
    with tf.device(device):
        first = variable("first", kind, path, **kwargs)
        second = variable("second", kind, path, dim=3, **kwargs)
        keys = v1.placeholder(tf.int64, [None])
        ids = sparse([0, 0, 1, 3], [7, -8, 7, 9], [4, 2])
        outputs = [
            v1.nn.embedding_lookup(first, keys),
            v1.nn.embedding_lookup_sparse(second, ids, None, combiner="mean"),
            *nn.group_embedding_lookup_sparse(
                [first, second], [ids, tf.sparse.reorder(ids)], ["sum", "sqrtn"]
            ),
        ]
    loss = tf.add_n([tf.reduce_sum(out * out) for out in outputs])
    optimizer = optimizer or v1.train.AdagradOptimizer(0.1)
    return outputs, optimizer.minimize(loss), keys, [first, second]


def trained(kind, path, device="/GPU:0", optimizer=None, steps=6):
    """The outputs after each step, and the tables at the end."""
    with tf.Graph().as_default() as graph:
        outputs, train, keys, tables = model(kind, path, device, optimizer and optimizer())
        exports = [table.export() for table in tables]
        seen = []
        rng = np.random.default_rng(5)
        with soft_session(graph) as session:
            session.run(v1.global_variables_initializer())
            for _ in range(steps):
                batch = {keys: rng.integers(-40, 40, 30)}
                session.run(train, batch)
                seen += session.run(outputs, batch)
            for export in session.run([tuple(e) for e in exports]):
                order = np.argsort(export[0])
                seen += [column[order] for column in export]
    return seen


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("device", ["/GPU:0", None])
@pytest.mark.parametrize("kind", KINDS)
def test_the_ops_of_a_variable_with_hbm_run_on_the_gpu(kind, device, graph, tmp_path):
    outputs, train, keys, _ = model(kind, tmp_path, device)
    saver = v1.train.Saver()
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        nodes = placed(session, [outputs, train], feed_dict={keys: [1, 2]})
        saver.save(session, str(tmp_path / "ck"))
        saver.restore(session, str(tmp_path / "ck"))
    found = {(op, where) for op, where in nodes.values() if "Multitier" in op}
    assert len(found) >= 5 and {where for _, where in found} == {ON_GPU}, found


@pytest.mark.parametrize("kind, parts", [("DRAM", 1), ("HBM_DRAM", 2)])
def test_a_variable_in_dram_or_in_parts_stays_on_the_cpu(kind, parts, graph, tmp_path):
    outputs, train, keys, _ = model(kind, tmp_path, parts=parts)
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        nodes = placed(session, [outputs, train], feed_dict={keys: [1, 2]})
    assert devices_of(nodes) == {ON_CPU}


@pytest.mark.parametrize("scopes", [("/GPU:0", "/CPU:0"), ("/GPU:0", None), (None, "/CPU:0")])
def test_a_saver_has_one_moment_for_variables_on_a_gpu_and_on_the_cpu(scopes, graph, tmp_path):
    for name, kind, scope in zip("ab", ["HBM_DRAM", "DRAM"], scopes):
        with tf.device(scope):
            variable(name, kind, tmp_path)
    saver = v1.train.Saver()
    types = [op.type for op in graph.get_operations()]
    assert types.count("MultitierWriteSaveGroup") == 1
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "ck"))
        saver.restore(session, path)
    assert sorted(checkpoint.load(path).tables) == ["a", "b"]


def test_an_eager_save_is_one_moment_of_variables_on_a_gpu_and_on_the_cpu(tmp_path):
    with tf.device("/GPU:0"):
        first = variable("first", "HBM_DRAM", tmp_path, initializer=tf.zeros_initializer())
    with tf.device("/CPU:0"):
        second = variable("second", "DRAM", tmp_path, initializer=tf.zeros_initializer())
    assert (first.handle.device, second.handle.device) == (ON_GPU, ON_CPU)
    optimizer = tf_multitier.optimizers.SGD(1.0)
    keys = tf.range(8, dtype=tf.int64)
    done, steps = threading.Event(), threading.Semaphore(0)

    def step():
        for each in (first, second):  # in this order
            with tf.GradientTape() as tape:
                loss = -tf.reduce_sum(tf.nn.embedding_lookup(each, keys))
            optimizer.apply_gradients([(tape.gradient(loss, each), each)])

    def train():
        while not done.is_set():
            step()
            steps.release()

    step()
    thread = threading.Thread(target=train)
    thread.start()
    try:
        saves = tf.train.Checkpoint(a=first, b=second)
        for i in range(60):
            assert steps.acquire(timeout=60)
            tables = checkpoint.load(saves.write(str(tmp_path / f"ck-{i}"))).tables
            a, b = (np.unique(tables[name].read().data) for name in ("first", "second"))
            assert a.shape == b.shape == (1,)  # every key has had as many updates
            assert 0 <= a[0] - b[0] <= 1
    finally:
        done.set()
        thread.join()


def test_a_group_with_dram_and_hbm_is_two_ops_on_two_devices(graph, tmp_path):
    tables = [variable("a", "HBM_DRAM", tmp_path), variable("b", "DRAM", tmp_path)]
    ids = sparse([0, 1], [1, 2], [2, 1])
    looked_up = nn.group_embedding_lookup_sparse(tables, [ids, ids], ["sum", "sum"])
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        nodes = placed(session, looked_up)
    assert group_lookups(nodes) == [
        ("MultitierGroupLookup", ON_CPU),
        ("MultitierHbmGroupLookup", ON_GPU),
    ]


def test_a_group_with_a_tensorflow_variable_is_two_ops(graph, tmp_path):
    dense = v1.get_variable("dense", [5, 4], use_resource=True)
    ids = sparse([0, 1], [1, 2], [2, 1])
    looked_up = nn.group_embedding_lookup_sparse(
        [variable("a", "HBM_DRAM", tmp_path), dense], [ids, ids], ["sum", "sum"]
    )
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        nodes = placed(session, looked_up)
        values, rows = session.run([looked_up[1], dense])
    assert group_lookups(nodes) == [
        ("MultitierGroupLookup", ON_CPU),
        ("MultitierHbmGroupLookup", ON_GPU),
    ]
    np.testing.assert_array_equal(values, rows[1:3])


OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.1),
    "centered": lambda: v1.train.RMSPropOptimizer(0.1, centered=True),
    "ftrl": lambda: v1.train.FtrlOptimizer(
        0.1, l1_regularization_strength=0.5, l2_regularization_strength=0.1
    ),
    "adamw": lambda: tf_multitier.train.AdamWOptimizer(0.01, learning_rate=0.1),
    "adam_async": lambda: tf_multitier.train.AdamAsyncOptimizer(0.1),
    "rowwise": lambda: tf_multitier.train.RowwiseAdagradOptimizer(0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_rule_of_the_device_gives_the_bits_of_the_cpu(name, tmp_path):
    found = trained("HBM_DRAM", tmp_path, "/GPU:0", OPTIMIZERS[name])
    assert_equal(found, trained("DRAM", tmp_path, "/CPU:0", OPTIMIZERS[name]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_bits_of_the_cpu(kind, tmp_path):
    assert_equal(trained(kind, tmp_path), trained("DRAM", tmp_path, "/CPU:0"))


def every_form(path, kind, device, steps=4):
    """The outputs of grouped lookups of every form, trained, with each output's gradient of the weights."""
    with tf.Graph().as_default() as graph:
        with tf.device(device):
            tables = [variable(name, kind, path) for name in "abcd"]
            ragged = tf.RaggedTensor.from_row_splits(
                [5, -6, 7, 5, 5], tf.constant([0, 2, 2, 5], tf.int64)
            )
            ids = sparse([0, 0, 2, 2], [1, 2, 2, 3], [3, 2])
            factors = v1.get_variable("w", initializer=[0.5, 2.0, 1.5, -1.0], use_resource=True)
            weights = tf.SparseTensor(ids.indices, factors, ids.dense_shape)
            outputs = [
                *nn.group_embedding_lookup_sparse(
                    tables[:2], [ids, ids], ["sum", "mean"], sp_weights=[weights, weights]
                ),
                nn.group_embedding_lookup_sparse(
                    tables, [ragged] * 4, ["sum", "mean", "sqrtn", "sum"], concat=True
                ),
                *nn.group_embedding_lookup_sparse(
                    tables[:2], [ragged, ids], ["sum", "sum"], is_sequence=True
                ),
                *nn.group_embedding_lookup(tables[2:], [[[1, 2], [2, 9]], [[4], [4]]]),
                *nn.group_embedding_lookup_sparse(tables[:1], [ids], ["sum"], max_norms=[0.5]),
            ]
        loss = tf.add_n([tf.reduce_sum(out * out) for out in outputs])
        train = v1.train.AdamOptimizer(0.1).minimize(loss)
        with soft_session(graph) as session:
            session.run(v1.global_variables_initializer())
            seen = []
            for _ in range(steps):
                seen += session.run([*outputs, factors])
                session.run(train)
    return seen


def test_every_form_of_a_group_gives_the_bits_of_the_cpu(tmp_path):
    found = every_form(tmp_path, "HBM_DRAM", "/GPU:0")
    assert_equal(found, every_form(tmp_path, "DRAM", "/CPU:0"))


def test_int32_keys_widen_on_the_gpu(graph, tmp_path):
    with tf.device("/GPU:0"):
        ev = variable("ev", "HBM_DRAM", tmp_path)
        keys = tf.constant([7, -7, 7], tf.int32)
        values = ops.multitier_lookup(ev.handle, keys, [])
        same = ops.multitier_lookup(ev.handle, tf.constant([7, -7, 7], tf.int64), [])
        grads, counts = tf.ones([3, 4]), tf.zeros([0], tf.int64)
        step, rate = tf.constant(1, tf.int64), [tf.constant(0.5)]
        update = ops.multitier_apply(
            ev.handle,
            keys,
            grads,
            counts,
            step,
            rate,
            [],
            "sgd",
            slot_names=[],
            slot_initial_values=[],
        )
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        before = session.run([values, same])
        np.testing.assert_array_equal(*before)
        session.run(update)
        after = session.run(same)
        np.testing.assert_array_equal(after, before[0] - np.float32([[1.0], [0.5], [1.0]]))
        assert session.run(ev.get_frequency([7, -7, 8])).tolist() == [2, 1, 0]


def test_empty_batches_change_nothing(graph, tmp_path):
    with tf.device("/GPU:0"):
        ev = variable("ev", "HBM_DRAM", tmp_path)
        keys = tf.zeros([0, 3], tf.int64)
        none = tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), [2, 1])
        outputs = [
            v1.nn.embedding_lookup(ev, keys),
            v1.nn.embedding_lookup_sparse(ev, none, None, combiner="sum"),
            *nn.group_embedding_lookup_sparse([ev], [none], ["mean"]),
        ]
    train = v1.train.AdagradOptimizer(0.1).minimize(tf.add_n([tf.reduce_sum(o) for o in outputs]))
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        found = session.run(outputs)
        session.run(train)
        assert [value.shape for value in found] == [(0, 3, 4), (2, 4), (2, 4)]
        assert not found[1].any() and not found[2].any()
        assert session.run(ev.total_count()) == 0


def test_a_sequence_without_a_step_has_empty_values(graph, tmp_path):
    none = tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), [3, 0])
    ragged = tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.int64), np.int64([0, 0, 0]))
    with tf.device("/GPU:0"):
        tables = [variable("a", "HBM_DRAM", tmp_path), variable("b", "HBM_DRAM", tmp_path)]
        outputs = nn.group_embedding_lookup_sparse(
            tables, [none, ragged], ["sum", "sum"], is_sequence=True
        )
    train = v1.train.AdagradOptimizer(0.1).minimize(tf.add_n([tf.reduce_sum(o) for o in outputs]))
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        found, _ = session.run([outputs, train])
    assert [value.shape for value in found] == [(3, 0, 4), (2, 0, 4)]


def applied(ev, keys, grads, counts, rate=0.5):
    """An update by SGD. Inputs whose shapes are known when it runs."""
    placed = [v1.placeholder_with_default(value, None) for value in (keys, grads, counts)]
    step = tf.constant(1, tf.int64)
    return ops.multitier_apply(
        ev.handle,
        *placed,
        step,
        [tf.constant(rate)],
        [],
        "sgd",
        slot_names=[],
        slot_initial_values=[],
    )


@pytest.mark.parametrize(
    "keys, grads, counts, message",
    [
        (np.int64([[1]]), np.ones([1, 4]), [], "keys: expected"),
        (np.int64([1, 2]), np.ones([1, 4]), [], r"expected grads of shape .2,4., found .1,4."),
        (np.int64([1, 2]), np.ones([2, 3]), [], r"expected grads of shape .2,4., found .2,3."),
        (np.int64([1, 2]), np.ones([2, 4]), [1], r"expected counts of shape .2. or .0., found .1."),
    ],
)
def test_bad_input_of_an_update_is_refused(keys, grads, counts, message, graph, tmp_path):
    with tf.device("/GPU:0"):
        ev = variable("ev", "HBM_DRAM", tmp_path)
        update = applied(ev, keys, np.float32(grads), np.int64(counts))
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(update)
        assert session.run(ev.total_count()) == 0


def test_counts_are_added_to_the_frequency(graph, tmp_path):
    with tf.device("/GPU:0"):
        ev = variable("ev", "HBM_DRAM", tmp_path)
        update = applied(ev, np.int64([5, 6, 5]), np.ones([3, 4], np.float32), np.int64([2, 0, 3]))
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        session.run(update)
        assert session.run(ev.get_frequency([5, 6])).tolist() == [5, 0]


def test_splits_that_do_not_fit_are_refused(graph, tmp_path):
    splits = v1.placeholder_with_default(np.int64([0, 3]), [None])
    with tf.device("/GPU:0"):
        tables = [variable("a", "HBM_DRAM", tmp_path), variable("b", "HBM_DRAM", tmp_path)]
        ids = tf.RaggedTensor.from_row_splits(np.int64([1, 2]), splits, validate=False)
        pooled = nn.group_embedding_lookup_sparse(tables, [ids, ids], ["sum", "sum"])
        steps = nn.group_embedding_lookup_sparse(
            tables, [ids, ids], ["sum", "sum"], is_sequence=True
        )
    with soft_session(graph) as session:
        session.run(v1.global_variables_initializer())
        for outputs in (pooled, steps):
            with pytest.raises(tf.errors.InvalidArgumentError, match="splits"):
                session.run(outputs)
        assert session.run(pooled, {splits: np.int64([0, 2])})[0].shape == (1, 4)


def test_a_table_without_hbm_is_refused_by_a_kernel_for_gpus(graph):
    with tf.device("/GPU:0"):
        attrs = dict(shape=[0, 4])
        handle = ops.multitier_hbm_embedding_variable_handle(shared_name="ev", **attrs)
        initialize = ops.multitier_initialize(handle, tf.zeros([0, 4]), **attrs)
        values = ops.multitier_lookup(handle, np.int64([1]), [])
    with soft_session(graph) as session:
        session.run(initialize)
        with pytest.raises(
            tf.errors.FailedPreconditionError,
            match="'ev' on .*GPU:0: expected a table in the memory of this GPU, found one without HBM",
        ):
            session.run(values)


@pytest.mark.parametrize("device", ["/GPU:0", "/CPU:0"])
def test_a_table_takes_the_memory_of_tensorflow(device, graph):
    storage = tf_multitier.StorageOption(storage_type="HBM_DRAM", storage_size=[2**30])
    option = tf_multitier.EmbeddingVariableOption(storage_option=storage)
    with tf.device(device):
        ev = make("ev", ev_option=option)
    with soft_session(graph) as session:
        with pytest.raises(tf.errors.ResourceExhaustedError, match="_bfc has no memory for"):
            session.run(ev.initializer)


def evaluated(kind, device, path):
    """The values of absent keys in lookups for evaluation and for training, plain, pooled and grouped."""
    storage = tf_multitier.StorageOption(
        storage_type=kind, storage_path=str(path), storage_size=SIZES[kind]
    )
    with tf.Graph().as_default() as graph, tf.device(device):
        option = tf_multitier.EmbeddingVariableOption(
            init_option=tf_multitier.InitializerOption(eval_initializer=7.0), storage_option=storage
        )
        ev = make("ev", initializer=v1.ones_initializer(), ev_option=option)
        ids = sparse([0, 0, 1], [1, 2, 1], [2, 2])
        outputs = []
        for training in (False, True):
            outputs += [
                lookup.embedding_lookup(ev, np.int64([3, 4]), training=training),
                lookup.embedding_lookup_sparse(ev, ids, combiner="sum", training=training),
                *nn.group_embedding_lookup_sparse([ev], [ids], ["sum"], training=training),
            ]
        with soft_session(graph) as session:
            session.run(v1.global_variables_initializer())
            return session.run(outputs)


def test_absent_keys_of_an_evaluation_read_the_eval_initializer(tmp_path):
    found = evaluated("HBM_DRAM", "/GPU:0", tmp_path)
    assert found[0].max() == 7 and found[3].max() == 1
    assert_equal(found, evaluated("DRAM", "/CPU:0", tmp_path))


def alone(op):
    """The colocation groups of an op that is colocated with no other."""
    return [f"loc:@{op.name}".encode()]


def test_what_the_optimizer_adds_keeps_the_callers_device(graph, tmp_path):
    with tf.device("/GPU:0"):
        tables = [variable("a", "HBM_DRAM", tmp_path), variable("b", "HBM_DRAM", tmp_path)]
    ids = sparse([0, 1], [1, 2], [2, 1])
    outputs = [
        v1.nn.embedding_lookup(tables[0], np.int64([1, 2])),
        v1.nn.embedding_lookup_sparse(tables[1], ids, None, combiner="mean", max_norm=2.0),
        *nn.group_embedding_lookup_sparse(tables, [ids, ids], ["sum", "sum"]),
    ]
    loss = tf.add_n([tf.reduce_sum(out) for out in outputs])
    before = {op.name for op in graph.get_operations()}
    with tf.device("/job:worker/task:3"):
        v1.train.AdagradOptimizer(tf.constant(0.1)).minimize(loss)
    added = [op for op in graph.get_operations() if op.name not in before]
    free = [op for op in added if op.outputs and op.colocation_groups() == alone(op)]
    assert len(free) > 20
    elsewhere = {op.name: op.device for op in free if op.device != "/job:worker/task:3"}
    assert not elsewhere

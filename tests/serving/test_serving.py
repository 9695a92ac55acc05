"""Serving: read-only variables, shared tables, models that are reloaded under load, frozen files."""

import gc
import os
import re
import threading

import numpy as np
import pytest
from pairs import pairwise
import serving_util
import tensorflow as tf
from serving_util import DIM
from serving_util import check
from serving_util import export
from variable_util import initialized_session

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import serving
from tf_multitier._src.tensorflow import library

v1 = tf.compat.v1
IDS = [3, 99, 3, 42]


@pytest.fixture(autouse=True)
def nothing_stays_shared():
    yield
    gc.collect()
    assert serving.shared_tables() == []


def test_a_read_only_variable_refuses_training_when_the_graph_is_built():
    with tf.Graph().as_default(), serving.read_only():
        ev = tf_multitier.get_embedding_variable("ev", DIM)
        assert ev.read_only and not ev.trainable and v1.trainable_variables() == []
        loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 2]))
        for optimizer in (v1.train.AdagradOptimizer(0.1), v1.train.GradientDescentOptimizer(0.1)):
            with pytest.raises(
                ValueError, match="'ev': expected a trainable variable, found a read-only one"
            ):
                optimizer.minimize(loss, var_list=[ev])
    with tf.Graph().as_default():
        assert not tf_multitier.get_embedding_variable("ev", DIM).read_only


@pytest.mark.parametrize("grouped", [False, True])
def test_the_update_ops_of_a_training_graph_fail_once_it_is_read_only(tmp_path, grouped):
    with tf.Graph().as_default():
        light = tf_multitier.EmbeddingVariableOption(evict_option=tf_multitier.L2WeightEvict(1e-9))
        ev = tf_multitier.get_embedding_variable("ev", DIM, ev_option=light)
        if grouped:
            ids = tf.sparse.from_dense([[1, 2]])
            looked_up = tf_multitier.nn.group_embedding_lookup_sparse([ev], [ids], ["sum"])[0]
        else:
            looked_up = tf.nn.embedding_lookup(ev, [1, 2])
        train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(looked_up))
        v1.add_to_collection("train", train)
        for op in (ev.remove([1]), ev.expire(7)):
            v1.add_to_collection("others", op)
        with initialized_session() as session:
            session.run(train)
            path = str(tmp_path / "model")
            v1.saved_model.simple_save(session, path, {"in": tf.constant(0)}, {"out": looked_up})
    serving.freeze(path, tmp_path / "frozen")
    with tf.Graph().as_default(), v1.Session() as session:
        v1.saved_model.load(session, ["serve"], str(tmp_path / "frozen"))
        [ev] = tf_multitier.embedding_variables()
        assert ev.read_only
        before = session.run(ev.export())
        for op in v1.get_collection("train") + v1.get_collection("others"):
            with pytest.raises(tf.errors.FailedPreconditionError, match="'ev' is read-only"):
                session.run(op)
        after = session.run(ev.export())
        assert all(np.array_equal(x, y) for x, y in zip(before, after))
        assert list(session.run(ev.export_rows()).rows.shape) == [2, DIM]


@pytest.mark.parametrize("storage", ["DRAM", "DRAM_SSDHASH", "DRAM_LEVELDB"])
def test_sessions_of_one_process_share_the_rows(tmp_path, storage):
    path = export(tmp_path, 1, storage=storage, read_only=True)
    sessions = []
    for count in range(1, 4):
        sessions.append(v1.Session(graph=tf.Graph()))
        loaded = v1.saved_model.load(sessions[-1], ["serve"], path)
        tables = serving.shared_tables()
        assert [(t.variable, t.users) for t in tables] == [
            ("a", count),
            ("b/part_0", count),
            ("b/part_1", count),
        ]
        assert tables[0].rows == 100 and tables[1].rows + tables[2].rows == 100
        assert {t.checkpoint for t in tables} == {os.path.join(path, "variables", "variables")}
    if storage != "DRAM":
        instances = [f for _, folders, _ in os.walk(tmp_path / "storage") for f in folders]
        assert sum(f.startswith("instance-") for f in instances) == 3
    names = {k: info.name for k, info in loaded.signature_def["serving_default"].outputs.items()}
    while sessions:
        assert check(sessions[-1].run(names, {"ids:0": IDS}), IDS) == 1
        sessions.pop().close()
        gc.collect()
        assert [t.users for t in serving.shared_tables()] == [len(sessions)] * 3 * bool(sessions)


def read_only_session(prefix, version, frequency=0):
    """A Session with a read-only variable that was restored."""
    with tf.Graph().as_default(), serving.read_only():
        option = tf_multitier.EmbeddingVariableOption(
            filter_option=tf_multitier.CounterFilter(frequency) if frequency else None
        )
        ev = tf_multitier.get_embedding_variable("ev", DIM, ev_option=option)
        session = v1.Session()
        session.run(ev.restore_from(prefix))
        assert session.run(tf.nn.embedding_lookup(ev, [4]))[0, 0] == version * 1000 + 4
        return session


def test_a_rewritten_checkpoint_and_other_options_are_not_shared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sessions = []
    for version in (1, 2):
        for file in os.listdir(tmp_path):
            os.remove(tmp_path / file)
        with checkpoint.Writer("rows") as writer:
            writer.add_table("ev", serving_util.rows_of(version, range(10)))
        sessions.append(read_only_session("rows", version))
        assert [t.users for t in serving.shared_tables()] == [1] * version
    sessions.append(read_only_session(str(tmp_path / "rows"), 2))
    sessions.append(read_only_session("rows", 2, frequency=3))
    assert sorted(t.users for t in serving.shared_tables()) == [1, 1, 2]
    for session in sessions:
        session.close()


def test_threads_that_restore_at_once_read_the_rows_once(tmp_path):
    path = export(tmp_path, 1, read_only=True)
    models = [None] * 8

    def load(i):
        models[i] = serving.Model(path)

    threads = [threading.Thread(target=load, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [t.users for t in serving.shared_tables()] == [8, 8, 8]
    for model in models:
        assert check(model.run({"ids": IDS}), IDS) == 1
        model.close()


@pytest.mark.parametrize("form, storage", [("SavedModel", "DRAM"), ("checkpoint", "DRAM_SSDHASH")])
def test_requests_see_one_version_each_during_reloads(tmp_path, storage, form):
    paths = [export(tmp_path, version, storage=storage) for version in (1, 2, 3)]
    if form == "checkpoint":
        paths = [str(tmp_path / f"rows-{version}") for version in (1, 2, 3)]
    seen, errors, ended = set(), [], threading.Event()
    with serving.Model(str(tmp_path / "model-1")) as model:

        def ask(seed):
            random = np.random.default_rng(seed)
            try:
                while not ended.is_set():
                    ids = random.integers(0, 100, 20)
                    seen.add(check(model.run({"ids": ids}), ids))
                    with model.pin() as version:
                        answers = [check(version.run({"ids": ids}), ids) for _ in range(3)]
                    assert len(set(answers)) == 1
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for i in range(20):
            model.reload(paths[i % 3])
            assert model.path == paths[i % 3]
            assert check(model.run({"ids": IDS}), IDS) == i % 3 + 1
        ended.set()
        for thread in threads:
            thread.join()
        assert not errors and seen == {1, 2, 3}
        assert len(serving.shared_tables()) == 3  # those of the current version alone


def test_a_reload_that_fails_leaves_the_current_version(tmp_path):
    path, other = export(tmp_path, 1), export(tmp_path, 2)
    [part] = [p.path for p in checkpoint.load(other).tables["a"].parts]
    with open(part, "r+b") as file:
        file.seek(60)
        file.write(b"\xff\xff\xff")
    with serving.Model(path, "serve") as model:
        with pytest.raises(tf.errors.DataLossError, match=os.path.basename(part)):
            model.reload(other)
        with pytest.raises(tf_multitier.engine.NotFoundError, match="nothing"):
            model.reload(str(tmp_path / "nothing"))
        assert check(model.run({"ids": IDS}), IDS) == 1 and model.path == path
        with pytest.raises(ValueError, match="expected the inputs"):
            model.run({})
        with pytest.raises(ValueError, match="found 'default': did you mean 'serving_default'"):
            model.run({"ids": IDS}, "default")
    for call in (lambda: model.run({"ids": IDS}), lambda: model.reload(path)):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_a_request_that_would_wait_for_ever_or_ask_for_other_ids_is_refused(tmp_path, monkeypatch):
    with serving.Model(export(tmp_path, 1)) as model:
        assert check(model.run({"ids": np.array(IDS, np.uint8)}), IDS) == 1
        for ids, error, found in [
            ([1.5], TypeError, "found float64"),
            ([True], TypeError, "found bool"),
            ([2**63], ValueError, f"to {2**63 - 1}, found {2**63}"),
        ]:
            with pytest.raises(error, match=rf"input 'ids': expected integers .*{found}"):
                model.run({"ids": ids})
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            with pytest.raises(RuntimeError, match="found a fork of it: load it after"):
                model.run({"ids": IDS})


def test_closing_waits_for_no_request_and_cuts_none(tmp_path):
    path = export(tmp_path, 1)
    model = serving.Model(path)
    with model.pin() as version:
        model.reload(export(tmp_path, 2))
        model.close()
        assert check(version.run({"ids": IDS}), IDS) == 1
        assert len(serving.shared_tables()) == 3
    assert serving.shared_tables() == []


@pytest.mark.parametrize("dtype, size", [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_frozen_files_have_keys_and_values_alone(tmp_path, dtype, size):
    random = np.random.default_rng(0)
    n, path = 1000, str(tmp_path / "rows")
    values = random.standard_normal((n, DIM)).astype(np.float32)
    rows = serving_util.rows_of(0, range(n))
    rows.columns = [("value", DIM, 0.0), ("a/Adam", DIM, 0.0), ("a/Adam_1", DIM, 0.0)]
    rows.data = np.concatenate([values, values, values], axis=1)
    rows.counted_keys = np.array([n + 1])
    rows.counted_frequencies = rows.counted_versions = np.array([2])
    with checkpoint.Writer(path) as writer:
        writer.add_table("a", rows, partitions=2)
        writer.add_tensor("dense", np.arange(3.0))
    assert serving.freeze(path, str(tmp_path / "frozen"), tf.as_dtype(dtype)) == n
    saved = checkpoint.load(str(tmp_path / "frozen"))
    table = saved.tables["a"]
    assert table.frozen and table.dtype == dtype and len(table.parts) == 2
    assert sum(part.bytes for part in table.parts) < n * (8 + size * DIM) + 300
    assert saved.tensor("dense").tolist() == [0, 1, 2]
    expected = rounded(values, dtype)
    read = table.read()
    order = np.argsort(read.keys)
    np.testing.assert_array_equal(read.data[order], expected)
    assert set(read.frequencies) == {0} and set(read.versions) == {-1}
    with tf.Graph().as_default(), serving.read_only(), v1.Session() as session:
        ev = tf_multitier.get_embedding_variable("a", DIM)
        session.run(ev.restore_from(str(tmp_path / "frozen")))
        np.testing.assert_array_equal(
            session.run(tf.nn.embedding_lookup(ev, np.arange(n))), expected
        )
    with tf.Graph().as_default(), v1.Session() as session:
        ev = tf_multitier.get_embedding_variable("a", DIM, steps_to_live=9)
        with pytest.raises(tf.errors.InvalidArgumentError, match="frozen.*steps_to_live"):
            session.run(ev.restore_from(str(tmp_path / "frozen")))


@pairwise(parts=[1, 3], dtype=["float32", "float16", "bfloat16"], storage=["DRAM", "DRAM_SSDHASH"])
def test_a_variable_freezes_itself(tmp_path, parts, dtype, storage):
    keys, path = np.arange(300), str(tmp_path / "frozen")
    with tf.Graph().as_default():
        ev = tf_multitier.get_embedding_variable(
            "scope/ev",
            DIM,
            partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
            ev_option=serving_util.option(tmp_path, storage),
        )
        rows = tf.nn.embedding_lookup(ev, keys)
        train = v1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(rows**2))
        freeze = ev.freeze(path, tf.as_dtype(dtype))
        with pytest.raises(ValueError, match="dtype: expected float32.*found 'int8'"):
            ev.freeze(path, "int8")
        with initialized_session() as session:
            session.run(train)
            session.run(freeze)
            expected = rounded(session.run(rows), dtype)
    table = checkpoint.load(path).tables["scope/ev"]
    assert table.frozen and table.dtype == dtype and table.num_rows == 300
    assert len(table.columns) == 1 and table.num_partitions == parts
    size = 4 if dtype == "float32" else 2
    assert sum(part.bytes for part in table.parts) < 300 * (8 + size * DIM) + 200 * parts
    with tf.Graph().as_default(), serving.read_only(), v1.Session() as session:
        ev = tf_multitier.get_embedding_variable("scope/ev", DIM)
        session.run(ev.restore_from(path))
        np.testing.assert_array_equal(session.run(tf.nn.embedding_lookup(ev, keys)), expected)
    with tf.Graph().as_default(), v1.Session() as session:
        ev = tf_multitier.get_embedding_variable("scope/ev", DIM)
        v1.train.Saver().restore(session, path)
        np.testing.assert_array_equal(session.run(tf.nn.embedding_lookup(ev, keys)), expected)


@pytest.mark.parametrize("fails", ["a part", "the index"])
def test_a_failed_freeze_across_devices_leaves_no_file(tmp_path, fails):
    """A device fails when its rows are read: they are damaged. The files of the other one are complete by then, or not yet."""
    made = []

    def alternate(op):
        if op.type == "MultitierEmbeddingVariableHandle":
            made.append(op.name)
            return f"/cpu:{len(made) % 2}"
        return "/cpu:0"

    target = tmp_path / "out" / "frozen"
    target.parent.mkdir()
    with tf.Graph().as_default():
        with v1.device(alternate):
            ev = tf_multitier.get_embedding_variable(
                "ev",
                DIM,
                partitioner=v1.fixed_size_partitioner(2),
                ev_option=serving_util.option(tmp_path, "DRAM_PMEM"),
            )
            rows = tf.nn.embedding_lookup(ev, np.arange(3000))
            train = v1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(rows**2))
        path = v1.placeholder(tf.string, [])
        freeze, drain = ev.freeze(path), ev.drain()
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(v1.global_variables_initializer())
            session.run(train)
            session.run(drain)
            session.run(freeze, {path: str(target)})
            whole = part_files(target.parent)
            assert len(whole) == 2
            if fails == "a part":
                damage(tmp_path / "storage" / "ev%2Fpart_1")
                error = tf.errors.DataLossError
            else:
                error = tf.errors.OpError
            for number in range(10):
                other = target.parent / str(number)
                if fails == "the index":
                    os.mkdir(f"{other}.index")
                with pytest.raises(error):
                    session.run(freeze, {path: str(other)})
                assert part_files(target.parent) == whole
    assert checkpoint.load(str(target)).tables["ev"].num_rows == 3000


def test_a_failed_freeze_leaves_no_file_eagerly_and_in_a_function(tmp_path):
    ev = tf_multitier.get_embedding_variable("ev", DIM, partitioner=v1.fixed_size_partitioner(2))
    grads = tf.IndexedSlices(tf.ones([9, DIM]), tf.range(9, dtype=tf.int64))
    tf_multitier.optimizers.SGD(0.1).apply_gradients([(grads, part) for part in ev.parts])

    @tf.function
    def in_function(path):
        ev.freeze(path)

    for number, freeze in enumerate((ev.freeze, in_function)):
        os.mkdir(tmp_path / f"{number}.index")
        with pytest.raises(tf.errors.OpError):
            freeze(tf.constant(str(tmp_path / str(number))))
        assert part_files(tmp_path) == []
        freeze(tf.constant(str(tmp_path / f"good-{number}")))
        assert checkpoint.load(str(tmp_path / f"good-{number}")).tables["ev"].num_rows > 0
        for file in tmp_path.glob(f"good-{number}*"):
            file.unlink()


def test_a_freeze_that_ends_after_its_index_is_a_checkpoint(tmp_path):
    """As if the run was stopped between the index and MultitierKeepSaveGroup: in place of that, an op that fails has the group."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        ev = tf_multitier.get_embedding_variable("ev", DIM)
        rows = tf.nn.embedding_lookup(ev, np.arange(30))
        train = v1.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(rows**2))
        path = str(tmp_path / "frozen")
        ev.freeze(path)
        ops = {op.type: op for op in graph.get_operations()}
        with tf.control_dependencies([ops["SaveV2"]]):
            joined = library.ops.multitier_join_save_group(
                ops["MultitierKeepSaveGroup"].inputs[0], ev.handle
            )
        session.run(v1.global_variables_initializer())
        session.run(train)
        with pytest.raises(tf.errors.FailedPreconditionError, match="written before"):
            session.run(joined)
    gc.collect()
    assert len(part_files(tmp_path)) == 1
    assert checkpoint.load(path).tables["ev"].num_rows == 30


def part_files(folder):
    """Those with rows, without TensorFlow's own files."""
    names = os.listdir(folder)
    return sorted(name for name in names if re.search(r"\.data-[a-z]{5}-of-[a-z]{5}$", name))


def damage(folder):
    """Changes a byte in each block of the files of a part."""
    files = list(folder.rglob("*.pmem"))
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        content[4096 + 40 :: 256] = [byte ^ 8 for byte in content[4096 + 40 :: 256]]
        with open(file, "r+b") as written:
            written.write(content)


def rounded(values, dtype):
    with tf.Graph().as_default(), v1.Session() as session:
        return session.run(tf.cast(tf.cast(values, dtype), tf.float32))


def test_a_frozen_model_answers_as_the_whole_one(tmp_path):
    path, frozen = export(tmp_path, 3), str(tmp_path / "frozen")
    assert serving.freeze(path, frozen) == 200
    assert sorted(os.listdir(frozen)) == ["saved_model.pb", "variables"]
    with serving.Model(frozen) as model:
        assert check(model.run({"ids": IDS}), IDS) == 3
    with pytest.raises(tf_multitier.engine.AlreadyExistsError, match="frozen"):
        serving.freeze(path, frozen)
    with pytest.raises(ValueError, match="int8"):
        serving.freeze(path, str(tmp_path / "other"), "int8")
    assert not [name for name in os.listdir(tmp_path) if "other" in name]


def test_initial_values_of_a_matrix_and_a_filter_are_served(tmp_path):
    matrix = np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM)
    option = tf_multitier.EmbeddingVariableOption(
        init_option=tf_multitier.InitializerOption(
            v1.constant_initializer(matrix), default_value_dim=3
        ),
    )
    with tf.Graph().as_default():
        ids = v1.placeholder(tf.int64, [None])
        ev = tf_multitier.get_embedding_variable("ev", DIM, ev_option=option)
        out = tf.nn.embedding_lookup(ev, ids)
        train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(out))
        with initialized_session() as session:
            session.run(train, {ids: [3]})
            path = str(tmp_path / "model")
            v1.saved_model.simple_save(session, path, {"ids": ids}, {"out": out})
            expected = session.run(out, {ids: [3, 4, 5]})
    serving.freeze(path, str(tmp_path / "frozen"))
    with serving.Model(str(tmp_path / "frozen")) as model:
        np.testing.assert_array_equal(model.run({"ids": [3, 4, 5]})["out"], expected)
    np.testing.assert_array_equal(expected, [matrix[0] - 1, matrix[1], matrix[2]])

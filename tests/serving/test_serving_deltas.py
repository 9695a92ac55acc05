"""Serving with deltas: a model takes them while it answers requests, and each request sees one version."""

import gc
import os
import threading

import numpy as np
import pytest
import serving_util
import tensorflow as tf

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import engine
from tf_multitier import serving

v1 = tf.compat.v1
DIM, KEYS = serving_util.DIM, 200
ABSENT = -0.5


@pytest.fixture(autouse=True)
def nothing_stays_shared():
    yield
    gc.collect()
    assert serving.shared_tables() == []


class Training:
    """Writes versions 1, 2, ... of a model: of bases and deltas, whole and frozen. `expected[v]` is what its keys read."""

    def __init__(self, tmp_path, storage="DRAM", max_deltas=24):
        self.path, self.expected, self.random = tmp_path, {}, np.random.default_rng(3)
        self.now = np.full(KEYS, ABSENT, np.float32)
        self.tables = [
            tf_multitier.get_embedding_variable(
                name,
                DIM,
                initializer=v1.constant_initializer(ABSENT),
                partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
                ev_option=serving_util.option(tmp_path, storage),
            )
            for name, parts in (("a", 1), ("b", 3))
        ]
        self.ids = v1.placeholder(tf.int64, [None], "ids")
        self.value = v1.placeholder(tf.float32, [])
        self.version = v1.get_variable("version", [], initializer=v1.zeros_initializer())
        self.outputs = {t.variable_name: tf.nn.embedding_lookup(t, self.ids) for t in self.tables}
        self.outputs["version"] = tf.identity(self.version)
        rows = tf.repeat((self.value + tf.cast(self.ids, tf.float32))[:, None], DIM, axis=1)
        self.set = [t.upsert(self.ids, rows) for t in self.tables]
        self.next = v1.assign_add(self.version, 1.0)
        self.remove = [t.remove(self.ids) for t in self.tables]
        self.saver = tf_multitier.train.IncrementalSaver(max_deltas=max_deltas, max_to_keep=100)
        self.session = v1.Session()
        self.session.run(v1.global_variables_initializer())

    def model(self):
        """A SavedModel with the present rows."""
        path = str(self.path / "graph")
        v1.saved_model.simple_save(self.session, path, {"ids": self.ids}, self.outputs)
        return path

    def save(self):
        """Trains one version and saves what changed. Returns the prefix of the save."""
        version = len(self.expected) + 1
        changed = self.random.choice(KEYS, 30, replace=False)
        removed = changed[:7]
        self.session.run(self.set, {self.ids: changed, self.value: version * 1000})
        self.session.run([self.remove, self.next], {self.ids: removed})
        self.now[changed] = version * 1000 + changed
        self.now[removed] = ABSENT
        self.expected[version] = self.now.copy()
        return self.saver.save_incremental(self.session, str(self.path / "train"), version)

    def check(self, answer, ids):
        """Asserts that an answer is of one version. Returns the version."""
        version = int(answer["version"])
        expected = np.repeat(self.expected[version][ids][:, None], DIM, axis=1)
        for name in "ab":
            np.testing.assert_array_equal(answer[name], expected)
        return version


def asked_by_threads(training, model, reloads):
    """Reloads the paths while threads ask. Returns the versions that they saw."""
    seen, errors, ended = set(), [], threading.Event()

    def ask(seed):
        random = np.random.default_rng(seed)
        try:
            while not ended.is_set():
                ids = random.integers(0, KEYS, 50)
                seen.add(training.check(model.run({"ids": ids}), ids))
                with model.pin() as version:
                    answers = [training.check(version.run({"ids": ids}), ids) for _ in range(2)]
                assert len(set(answers)) == 1
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        for path, version in reloads:
            model.reload(path)
            assert training.check(model.run({"ids": range(KEYS)}), np.arange(KEYS)) == version
            ids = np.arange(KEYS)
            while version not in seen and not errors:
                seen.add(training.check(model.run({"ids": ids}), ids))
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not errors
    return seen


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("storage", ["DRAM", "DRAM_SSDHASH", "DRAM_LEVELDB"])
def test_requests_see_one_version_each_while_deltas_are_reloaded(tmp_path, storage, frozen):
    rounds = 50 if os.environ.get("TF_MULTITIER_STRESS") else 9
    with tf.Graph().as_default():
        training = Training(tmp_path, storage, max_deltas=5)
        reloads, base = [], None
        for version in range(1, rounds + 1):
            path = training.save()
            if version == 1:
                graph = training.model()
            if frozen and ".delta-" in path:
                path = serving.freeze_delta(path, base)
            elif frozen:
                base = path.replace("train", "frozen")
                serving.freeze(path, base)
                path = base
            reloads.append((path, version))
        with serving.Model(graph) as model:
            assert asked_by_threads(training, model, reloads) == set(range(1, rounds + 1))
            model.reload(reloads[2][0])
            tables = {(t.variable, os.path.basename(t.checkpoint)) for t in serving.shared_tables()}
            assert len(tables) == 8  # of four parts: the base, and what the deltas changed
            model.reload(reloads[3][0])
            left = {(t.variable, os.path.basename(t.checkpoint)) for t in serving.shared_tables()}
            assert len(left & tables) == 4 and len(left) == 8
        training.session.close()


def test_a_delta_reads_only_what_changed(tmp_path):
    """The base's files may be gone: only their manifests are read."""
    with tf.Graph().as_default():
        training = Training(tmp_path)
        base, graph = training.save(), None
        graph = training.model()
        deltas = [training.save() for _ in range(2)]
        with serving.Model(graph) as model:
            model.reload(base)
            for table in checkpoint.load(base).tables.values():
                for part in table.parts:
                    os.rename(part.path, part.path + "x")
            for version, delta in enumerate(deltas, 2):
                model.reload(delta)
                ids = np.arange(KEYS)
                assert training.check(model.run({"ids": ids}), ids) == version
            model.reload(graph)
            assert training.check(model.run({"ids": ids}), ids) == 1
            with pytest.raises(tf.errors.NotFoundError, match="train-1.data-"):
                model.reload(deltas[0])
            assert training.check(model.run({"ids": ids}), ids) == 1
        training.session.close()


def test_variables_with_deltas_answer_all_queries(tmp_path):
    with tf.Graph().as_default():
        training = Training(tmp_path)
        paths = [training.save() for _ in range(4)]
        training.session.close()
    found = []
    for read_only in (False, True):
        with tf.Graph().as_default(), v1.Session() as session:
            with serving.read_only() if read_only else v1.name_scope(""):
                ev = tf_multitier.get_embedding_variable(
                    "b", DIM, partitioner=v1.fixed_size_partitioner(2)
                )
            session.run(ev.restore_from(paths[-1]))
            keys = np.arange(KEYS)
            found.append(
                [
                    *session.run(ev.export()),
                    *session.run([ev.get_frequency(keys), ev.get_version(keys), ev.total_count()]),
                ]
            )
            scanned = [rows.keys for rows in ev.rows(session, max_rows=16)]
            found[-1].append(np.sort(np.concatenate(scanned)))
            if read_only:
                saved = v1.train.Saver().save(session, str(tmp_path / "again"))
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)
    expected = {key for key, value in enumerate(training.now) if value != ABSENT}
    rows = checkpoint.load(saved).tables["b"].read()
    assert set(found[0][0]) == set(rows.keys) == expected


def test_frozen_deltas_are_small_and_continue_a_frozen_base(tmp_path):
    with tf.Graph().as_default():
        training = Training(tmp_path)
        base, *deltas = [training.save() for _ in range(4)]
        training.session.close()
    frozen = str(tmp_path / "frozen")
    with pytest.raises(ValueError, match="expected a frozen checkpoint"):
        serving.freeze_delta(deltas[0], base)
    serving.freeze(base, frozen, "bfloat16")
    with pytest.raises(engine.DataLossError, match="delta-0002.*continues another save"):
        serving.freeze_delta(deltas[1], frozen)
    with pytest.raises(ValueError, match="expected the prefix of a delta"):
        serving.freeze_delta(base, frozen)
    prefixes = [serving.freeze_delta(delta, frozen) for delta in deltas]
    assert prefixes == [f"{frozen}.delta-000{i}" for i in (1, 2, 3)]
    with pytest.raises(engine.DataLossError, match="continues another save"):
        serving.freeze_delta(deltas[-1], frozen)
    for path, whole in zip(prefixes, deltas):
        tables = zip(
            checkpoint.Delta(path).tables.values(), checkpoint.Delta(whole).tables.values()
        )
        for table, other in tables:
            assert table.frozen and table.dtype == "bfloat16" and len(table.columns) == 1
            size = 8 * other.num_removed + (8 + 2 * DIM) * other.num_rows
            assert sum(part.bytes for part in table.parts) < size + 200 * len(table.parts)
    serving.freeze(deltas[-1], str(tmp_path / "whole"), "bfloat16")
    checkpoint.merge(frozen, tmp_path / "merged")
    found = [checkpoint.load(tmp_path / name).tables["b"].read() for name in ("whole", "merged")]
    found.append(checkpoint.load_chain(frozen).tables["b"].read())
    orders = [np.argsort(rows.keys) for rows in found]
    for name in ("keys", "data", "frequencies", "versions"):
        arrays = [getattr(rows, name)[order] for rows, order in zip(found, orders)]
        np.testing.assert_array_equal(arrays[0], arrays[1])
        np.testing.assert_array_equal(arrays[0], arrays[2])


def test_a_reload_of_a_broken_chain_leaves_the_current_version(tmp_path):
    with tf.Graph().as_default():
        training = Training(tmp_path)
        base = training.save()
        graph, ids = training.model(), np.arange(KEYS)
        deltas = [training.save() for _ in range(3)]
        with serving.Model(graph) as model:
            model.reload(deltas[0])
            os.rename(deltas[1] + ".index", tmp_path / "kept")
            with pytest.raises(tf.errors.DataLossError, match="deltas from 1 to 3.*delta-0002"):
                model.reload(deltas[2])
            os.rename(tmp_path / "kept", deltas[1] + ".index")
            part = checkpoint.Delta(deltas[1]).tables["b"].parts[2].path
            os.truncate(part, 100)
            with pytest.raises(tf.errors.DataLossError, match=os.path.basename(part)):
                model.reload(deltas[2])
            assert training.check(model.run({"ids": ids}), ids) == 2 and model.path == deltas[0]
            model.reload(base)
            assert training.check(model.run({"ids": ids}), ids) == 1
        training.session.close()

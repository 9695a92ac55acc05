"""Checkpoints of what changed: a base and its deltas are the model, whatever happens between them."""

import glob
import os
import threading

import numpy as np
import pytest
import tensorflow as tf
from chain_util import Model
from chain_util import STORAGE_TYPES
from lives import KILLS
from lives import Lives

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier.deeprec import incremental
from tf_multitier.train import incremental_saver

v1 = tf.compat.v1


@pytest.mark.parametrize("counter", [0, 2])
@pytest.mark.parametrize("storage_type", STORAGE_TYPES)
def test_a_base_and_its_deltas_are_the_model_in_any_partitions(
    tmp_path, storage_type, counter, emulated_device
):
    rng, contents, paths = np.random.default_rng(7), [], []
    full, merged = str(tmp_path / "full"), str(tmp_path / "merged")
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(tmp_path, storage_type, counter=counter)
        session.run(model.init)
        model.work(session, rng, 30)
        for step in range(5):
            paths.append(model.saver.save_incremental(session, str(tmp_path / "model"), step))
            contents.append(model.content(session))
            if step < 4:
                model.work(session, rng)
        v1.train.Saver().save(session, full)
    assert paths == [paths[0], *incremental_saver.deltas(paths[0])] and len(paths) == 5
    checkpoint.merge(paths[0], merged)
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(tmp_path, storage_type="DRAM_SSDHASH", parts=3, counter=counter)
        for path, content in zip(paths[1:], contents[1:]):
            model.saver.restore(session, path)
            assert model.content(session) == content
        for prefix in (full, merged):
            v1.train.Saver().restore(session, prefix)
            assert model.content(session) == contents[-1]
        model.saver.restore(session, paths[0])
        assert model.content(session) == contents[-1]
        model.work(session, rng)
        assert model.saver.save_incremental(session, str(tmp_path / "next")).endswith("next")


def test_a_delta_has_what_changed_alone(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(tmp_path)
        session.run(model.init)
        session.run(model.train, {model.ids: np.arange(50_000)})
        base = model.saver.save(session, str(tmp_path / "model"))
        session.run(model.train, {model.ids: np.arange(500)})
        delta = model.saver.save_incremental(session, str(tmp_path / "model"))

        def size(prefix):
            return sum(os.path.getsize(p) for p in glob.glob(prefix + ".data-[a-z]*"))

        assert size(delta) < 0.011 * size(base)


def test_gaps_and_foreign_deltas_are_errors(tmp_path):
    rng = np.random.default_rng(1)
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(tmp_path)
        session.run(model.init)
        for _ in range(4):
            model.work(session, rng)
            newest = model.saver.save_incremental(session, str(tmp_path / "model"))
        base = str(tmp_path / "model")
        os.rename(base + ".delta-0002.index", tmp_path / "kept")
        with pytest.raises(
            tf.errors.DataLossError, match="expected delta-0002, found .*delta-0003"
        ):
            model.saver.restore(session, base)
        os.rename(tmp_path / "kept", base + ".delta-0002.index")
        os.remove(base + ".delta-0002.index")
        for path in glob.glob(newest + "*"):
            os.rename(path, path.replace("delta-0003", "delta-0002"))
        with pytest.raises(tf.errors.DataLossError, match="a delta is missing"):
            model.saver.restore(session, base)
        with pytest.raises(ValueError, match="expected delta .*, found none"):
            model.saver.restore(session, base + ".delta-0009")


def test_a_damaged_delta_is_an_error_before_anything_changes(tmp_path):
    rng = np.random.default_rng(1)
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(tmp_path, parts=1)
        session.run(model.init)
        model.work(session, rng)
        base = model.saver.save(session, str(tmp_path / "model"))
        model.work(session, rng)
        saved = model.content(session)
        delta = model.saver.save_incremental(session, str(tmp_path / "model"))
        for path in glob.glob(delta + ".data-[a-z]*"):
            with open(path, "r+b") as file:
                file.seek(60)
                byte = file.read(1)[0] ^ 4
                file.seek(60)
                file.write(bytes([byte]))
        with pytest.raises(tf.errors.DataLossError, match="delta-0001.*wrong checksum"):
            model.saver.restore(session, base)
        assert model.content(session)[0] == saved[0]


def test_the_next_save_has_all_rows_where_changes_are_not_known(tmp_path, monkeypatch):
    rng, prefix = np.random.default_rng(2), str(tmp_path / "model")
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(tmp_path, max_deltas=2)
        session.run(model.init)
        names = []

        def save(step):
            model.work(session, rng, 2)
            names.append(os.path.basename(model.saver.save_incremental(session, prefix, step)))

        for step in range(4):
            save(step)
        assert names == ["model-0", "model-0.delta-0001", "model-0.delta-0002", "model-3"]
        session.run(model.init)  # new tables
        save(4)
        with monkeypatch.context() as patch:
            patch.setattr(model.saver._delta, "save", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                save(5)
        save(6)
        save(7)
        assert names[4:] == ["model-4", "model-6", "model-6.delta-0001"]
        v1.train.Saver().save(
            session, str(tmp_path / "other")
        )  # an ordinary save in between changes nothing
        save(8)
        content = model.content(session)
        assert names[-1] == "model-6.delta-0002"
        model.saver.restore(session, str(tmp_path / "model-6"))
        assert model.content(session) == content


@pytest.mark.parametrize("how", ["save", "save_incremental"])
def test_a_save_of_another_saver_makes_the_next_one_save_all_rows(tmp_path, how):
    rng = np.random.default_rng(3)
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(tmp_path)
        other = tf_multitier.train.IncrementalSaver()
        session.run(model.init)
        prefixes = {model.saver: str(tmp_path / "a"), other: str(tmp_path / "b")}
        names = []

        def save(saver, step):
            model.work(session, rng, 2)
            names.append(os.path.basename(saver.save_incremental(session, prefixes[saver], step)))

        save(model.saver, 1)
        save(model.saver, 2)
        model.work(session, rng, 2)
        getattr(other, how)(session, prefixes[other], 3)
        save(model.saver, 4)
        save(other, 5)
        save(other, 6)
        content = model.content(session)
        assert names == ["a-1", "a-1.delta-0001", "a-4", "b-5", "b-5.delta-0001"]
        model.work(session, rng, 2)
        other.restore(session, str(tmp_path / "b-5"))
        assert model.content(session) == content


def test_savers_of_different_variables_have_chains_of_their_own(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        evs = [tf_multitier.get_embedding_variable(name, 4) for name in "ab"]
        loss = tf.add_n([tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 2])) for ev in evs])
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        savers = [tf_multitier.train.IncrementalSaver([ev]) for ev in evs]
        session.run(v1.global_variables_initializer())
        names = []
        for step in range(2):
            session.run(train)
            for saver, ev in zip(savers, evs):
                path = str(tmp_path / ev.variable_name)
                names.append(os.path.basename(saver.save_incremental(session, path, step)))
    assert names == ["a-0", "b-0", "a-0.delta-0001", "b-0.delta-0001"]


def test_old_bases_go_with_their_deltas(tmp_path):
    rng, prefix = np.random.default_rng(3), str(tmp_path / "model")
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(tmp_path, max_to_keep=2, max_deltas=1)
        session.run(model.init)
        for step in range(7):
            model.work(session, rng, 2)
            model.saver.save_incremental(session, prefix, step)
    left = {os.path.basename(p).split(".data")[0] for p in glob.glob(prefix + "*.data*")}
    assert left == {"model-4", "model-4.delta-0001", "model-6"}


def test_deltas_while_threads_train_are_the_model(tmp_path):
    prefix, stop = str(tmp_path / "model"), threading.Event()
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(tmp_path, "DRAM_SSDHASH", max_deltas=1000)
        session.run(model.init)

        def train(seed):
            rng = np.random.default_rng(seed)
            while not stop.is_set():
                model.work(session, rng, 1)

        threads = [threading.Thread(target=train, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(100 if os.environ.get("TF_MULTITIER_STRESS") else 15):
            model.saver.save_incremental(session, prefix)
        stop.set()
        for thread in threads:
            thread.join()
        model.saver.save_incremental(session, prefix)
        content = model.content(session)
        model.saver.restore(session, prefix)
        assert model.content(session) == content


def test_the_hook_saves_and_restores_deltas(tmp_path):
    directory = str(tmp_path / "run")

    def run(steps, restored=directory):
        with tf.Graph().as_default():
            model = Model(tmp_path)
            hook = tf_multitier.train.IncrementalSaverHook(
                directory, save_steps=20, save_incremental_steps=4
            )
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=restored,
                save_checkpoint_secs=None,
                save_checkpoint_steps=None,
                save_summaries_steps=None,
                save_summaries_secs=None,
                hooks=[hook],
            ) as session:
                before = session._tf_sess().run(v1.train.get_global_step())
                for i in range(steps):
                    session.run(model.train, {model.ids: [i, 1, 2]})
                raw = session._tf_sess()
                return before, model.content(raw), model.content

    first, content, _ = run(10)
    assert first == 0
    assert len(glob.glob(directory + "/*.delta-*.index")) >= 2
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(tmp_path)
        model.saver.restore(session, v1.train.latest_checkpoint(directory))
        assert model.content(session) == content
    with pytest.raises(ValueError, match="IncrementalSaverHook: expected a session that has rest"):
        run(1, restored=None)
    assert run(1)[0] == 10


def test_deeprecs_hook_saves_on_rank_0_of_a_world_alone(tmp_path):
    hook = incremental._Hook(str(tmp_path), save_steps=1, save_incremental_steps=1)
    hook._saves = False
    hook.end(session=None)


_KILLED = """
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    model = test.Model(pathlib.Path({folder!r}), max_deltas=5, max_to_keep=2)
    session.run(model.init)
    rng = np.random.default_rng(0)
    step = 0
    while True:
        model.work(session, rng, 1)
        model.saver.save_incremental(session, {folder!r} + "/model", step)
        step += 1
        say(step)
"""


def test_a_killed_program_leaves_a_chain_that_restores(tmp_path):
    imports = "import pathlib, numpy as np, tensorflow as tf, test_incremental_saver as test"
    with (
        Lives(imports, _KILLED, folder=str(tmp_path)) as lives,
        tf.Graph().as_default(),
        v1.Session() as session,
    ):
        model = Model(tmp_path)
        for seed in range(KILLS):
            random = np.random.default_rng(seed)
            with lives.begin() as life:
                done = [life.line() for _ in range(1 + random.integers(8))][-1]
                life.wait(random.random() * 0.02)  # somewhere in the next step or save
            done = ([done] + life.rest())[-1]
            model.saver.restore(session, v1.train.latest_checkpoint(tmp_path))
            assert session.run(v1.train.get_global_step()) >= int(done)
            assert model.content(session)[0]
            for file in os.listdir(tmp_path):  # the next life begins at step 0
                if file.startswith(("model", "checkpoint")):
                    os.remove(tmp_path / file)


def test_columns_that_come_within_a_chain_are_in_its_rows(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        variable = tf_multitier.get_embedding_variable("v", 4)
        ids = v1.placeholder(tf.int64, [None])
        rows = tf.nn.embedding_lookup(variable, ids)
        loss = tf.reduce_sum(tf.square(rows - 1.0))
        plain = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        saver, full = tf_multitier.train.IncrementalSaver(), v1.train.Saver()
        session.run(v1.global_variables_initializer())
        session.run(plain, {ids: np.arange(100)})
        base = saver.save(session, str(tmp_path / "model"))
        with_slot = v1.train.AdagradOptimizer(0.1, initial_accumulator_value=0.5).minimize(loss)
        session.run(with_slot, {ids: np.arange(10)})
        delta = saver.save_incremental(session, str(tmp_path / "model"))
        expected = _rows_of(checkpoint.load(full.save(session, str(tmp_path / "full"))))
        saver.restore(session, delta)
        restored = _rows_of(checkpoint.load(full.save(session, str(tmp_path / "restored"))))
    checkpoint.merge(base, str(tmp_path / "merged"))
    assert len(checkpoint.load(base).tables["v"].columns) == 1
    assert len(expected) == 100 and len(expected[50][0]) == 8 * 4
    assert np.frombuffer(expected[50][0], np.float32)[4:].tolist() == [0.5] * 4
    assert restored == expected
    assert _rows_of(checkpoint.load(str(tmp_path / "merged"))) == expected
    assert _rows_of(checkpoint.load_chain(delta)) == expected


def _rows_of(saved):
    """{key: (columns as bytes, frequency, version)} of the variable v."""
    return {
        key: (block.data[i].tobytes(), block.frequencies[i], block.versions[i])
        for block in saved.tables["v"].blocks()
        for i, key in enumerate(block.keys.tolist())
    }

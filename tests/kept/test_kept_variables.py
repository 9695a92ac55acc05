"""Variables with StorageOption(keep=True): what the next process finds, with a checkpoint and without one."""

import os
import threading

import numpy as np
import pytest
import tensorflow as tf
from kept_util import DIM
from kept_util import instances
from kept_util import KEYS
from kept_util import Program
from kept_util import storage

import tf_multitier
from tf_multitier import options
from tf_multitier._src.options import storage_option
from tf_multitier.inspect import __main__ as inspect

TYPES = ["SSDHASH", "DRAM_SSDHASH", "DRAM_PMEM_SSDHASH"]


@pytest.mark.parametrize("kind", TYPES)
def test_the_next_session_goes_on_from_the_rows(tmp_path, kind):
    with Program(tmp_path / "rows", kind) as first:
        first.session.run(first.init)
        for n in (500, 300, 100):
            first.run(first.train, KEYS[:n])
        trained = first.table(KEYS)
        frequencies = first.frequencies(KEYS)
    with Program(tmp_path / "rows", kind) as second:
        second.session.run(second.init)
        assert second.session.run(second.count) == 500
        np.testing.assert_array_equal(second.table(KEYS), trained)
        np.testing.assert_array_equal(second.frequencies(KEYS), frequencies)


@pytest.mark.parametrize("kind", TYPES)
def test_rows_of_the_checkpoint_stay_in_place(tmp_path, kind):
    prefix = str(tmp_path / "model")
    with Program(tmp_path / "rows", kind) as first:
        first.session.run(first.init)
        first.run(first.train, KEYS)
        saved = first.save(prefix)
        trained = first.table(KEYS)
    before = instances(tmp_path / "rows")
    data = [f for f in os.listdir(tmp_path) if "data-" in f and "00000" not in f]
    assert len(data) == 1
    # The rows in the checkpoint are not read: without them the restore works all the same.
    os.rename(tmp_path / data[0], tmp_path / "elsewhere")
    with Program(tmp_path / "rows", kind) as second:
        second.restore(saved)
        np.testing.assert_array_equal(second.table(KEYS), trained)
    with Program(tmp_path / "rows", kind) as third:
        third.session.run(third.init)
        third.restore(saved)
        np.testing.assert_array_equal(third.table(KEYS), trained)
        assert third.session.run(third.count) == 500
    assert instances(tmp_path / "rows") == before


def test_training_resumed_equals_training_never_stopped(tmp_path):
    def steps(program, first, last):
        for step in range(first, last):
            program.run(program.train, np.random.RandomState(step).randint(0, 900, 64))

    with Program(tmp_path / "one") as whole:
        whole.session.run(whole.init)
        steps(whole, 0, 20)
        expected = whole.table(np.arange(900))
    with Program(tmp_path / "two") as first:
        first.session.run(first.init)
        steps(first, 0, 11)
        saved = first.save(str(tmp_path / "model"))
    with Program(tmp_path / "two") as second:
        second.restore(saved)
        steps(second, 11, 20)
        np.testing.assert_array_equal(second.table(np.arange(900)), expected)


@pytest.mark.parametrize("initialized", [False, True])
@pytest.mark.parametrize("parts", [None, 3])
def test_rows_that_are_ahead_of_the_checkpoint_are_replaced(tmp_path, initialized, parts):
    partitioner = None if parts is None else tf.compat.v1.fixed_size_partitioner(parts)
    with Program(tmp_path / "rows", partitioner=partitioner) as first:
        first.session.run(first.init)
        first.run(first.train, KEYS)
        saved = first.save(str(tmp_path / "model"))
        trained = first.table(KEYS)
        first.run(first.train, np.arange(700))
    before = instances(tmp_path / "rows")
    with Program(tmp_path / "rows", partitioner=partitioner) as second:
        if initialized:
            second.session.run(second.init)
            assert second.session.run(second.count) == 700
        second.restore(saved)
        np.testing.assert_array_equal(second.table(KEYS), trained)
        assert second.session.run(second.count) == 500
    after = instances(tmp_path / "rows")
    assert len(after) == len(before) == (parts or 1)
    assert not set(after) & set(before)
    with Program(tmp_path / "rows", partitioner=partitioner) as third:
        third.restore(saved)
        assert (
            instances(tmp_path / "rows") == after
        )  # those of the restore before: they stay in place


def test_rows_behind_the_checkpoint_are_replaced(tmp_path):
    with Program(tmp_path / "rows") as first:
        first.session.run(first.init)
        first.run(first.train, KEYS)
        first.save(str(tmp_path / "model-1"))
    with Program(tmp_path / "elsewhere") as other:
        other.restore(str(tmp_path / "model-1"))
        other.run(other.train, np.arange(700))
        newer = other.save(str(tmp_path / "model-2"))
        trained = other.table(np.arange(700))
    with Program(tmp_path / "rows") as second:
        second.restore(newer)
        np.testing.assert_array_equal(second.table(np.arange(700)), trained)


def test_a_removal_is_a_change(tmp_path):
    with Program(tmp_path / "rows") as first:
        first.session.run(first.init)
        first.run(first.train, KEYS)
        saved = first.save(str(tmp_path / "model"))
        with first.graph.as_default():
            first.session.run(first.ev.remove(KEYS[:7]))
    with Program(tmp_path / "rows") as second:
        second.restore(saved)
        assert second.session.run(second.count) == 500


@pytest.mark.parametrize(
    "filter_option",
    [options.CounterFilter(3), options.CBFFilter(3, 10000, 0.001)],
    ids=["counter", "bloom"],
)
def test_counts_of_keys_without_a_row_come_from_the_checkpoint(tmp_path, filter_option):
    with Program(tmp_path / "rows", filter_option=filter_option) as first:
        first.session.run(first.init)
        for _ in range(2):
            first.run(first.train, KEYS)
        assert first.session.run(first.count) == 0
        saved = first.save(str(tmp_path / "model"))
    with Program(tmp_path / "rows", filter_option=filter_option) as second:
        second.restore(saved)
        second.run(second.train, KEYS)
        assert second.session.run(second.count) == 500


def test_the_matrix_of_initial_values_is_kept(tmp_path):
    def build():
        option = tf_multitier.EmbeddingVariableOption(
            storage_option=storage(tmp_path / "rows"),
            init_option=tf_multitier.InitializerOption(default_value_dim=64),
        )
        return tf_multitier.get_embedding_variable(
            "ev",
            embedding_dim=DIM,
            initializer=tf.compat.v1.random_uniform_initializer(),
            ev_option=option,
        )

    found = []
    for _ in range(2):
        with tf.Graph().as_default():
            rows = tf.nn.embedding_lookup(build(), tf.range(64, dtype=tf.int64))
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                found.append(session.run(rows))
            del session
    np.testing.assert_array_equal(found[0], found[1])
    assert len(np.unique(found[0])) > 60 * DIM  # random: two may be equal


def test_a_second_session_is_refused_while_the_first_uses_the_rows(tmp_path):
    with Program(tmp_path / "rows") as first:
        first.session.run(first.init)
        with Program(tmp_path / "rows") as second:
            with pytest.raises(tf.errors.FailedPreconditionError, match=rf"{os.getpid()}"):
                second.session.run(second.init)
        first.run(first.train, KEYS)
        assert first.session.run(first.count) == 500


def test_another_dim_is_refused(tmp_path):
    with Program(tmp_path / "rows") as first:
        first.session.run(first.init)
        first.run(first.train, KEYS)
    with Program(tmp_path / "rows", dim=8) as second:
        with pytest.raises(tf.errors.FailedPreconditionError, match="expected dim 8, found dim 4"):
            second.session.run(second.init)
    with Program(tmp_path / "rows") as third:
        third.session.run(third.init)
        assert third.session.run(third.count) == 500


def test_a_monitored_session_restores_without_the_rows_of_the_checkpoint(tmp_path):
    def run(steps):
        with Program(tmp_path / "rows") as program, program.graph.as_default():
            with tf.compat.v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path / "model"),
                save_summaries_steps=None,
                save_summaries_secs=None,
            ) as session:
                for _ in range(steps):
                    session.run(program.train, {program.keys: KEYS})
                return session.run(program.rows, {program.keys: KEYS})

    trained = run(3)
    (before,) = instances(tmp_path / "rows")
    np.testing.assert_array_equal(run(0), trained)
    assert instances(tmp_path / "rows") == [before]
    assert (run(1) != trained).all()


def test_a_checkpoint_of_objects_leaves_the_rows_in_place(tmp_path):
    def make():
        option = tf_multitier.EmbeddingVariableOption(storage_option=storage(tmp_path / "rows"))
        return tf_multitier.get_embedding_variable("ev", embedding_dim=DIM, ev_option=option)

    ev = make()
    rows = np.random.RandomState(0).rand(len(KEYS), DIM).astype(np.float32)
    ev.upsert(KEYS, rows)
    prefix = tf.train.Checkpoint(ev=ev).write(str(tmp_path / "model"))
    del ev
    before = instances(tmp_path / "rows")
    ev = make()
    tf.train.Checkpoint(ev=ev).read(prefix).assert_consumed()
    np.testing.assert_array_equal(tf.nn.embedding_lookup(ev, tf.constant(KEYS)), rows)
    ev.upsert(KEYS[:1], rows[1:2])
    tf.train.Checkpoint(ev=ev).read(prefix).assert_consumed()
    np.testing.assert_array_equal(tf.nn.embedding_lookup(ev, tf.constant(KEYS)), rows)
    assert instances(tmp_path / "rows") != before
    assert len(instances(tmp_path / "rows")) == 1


def test_a_read_only_variable_keeps_nothing_and_takes_nothing(tmp_path):
    with Program(tmp_path / "rows") as first:
        first.session.run(first.init)
        first.run(first.train, KEYS)
        saved = first.save(str(tmp_path / "model"))
        trained = first.table(KEYS)
        with tf.Graph().as_default(), tf_multitier.serving.read_only():
            option = tf_multitier.EmbeddingVariableOption(storage_option=storage(tmp_path / "rows"))
            ev = tf_multitier.get_embedding_variable("ev", embedding_dim=DIM, ev_option=option)
            rows = tf.nn.embedding_lookup(ev, KEYS)
            with tf.compat.v1.Session() as session:
                tf.compat.v1.train.Saver([ev]).restore(session, saved)
                np.testing.assert_array_equal(session.run(rows), trained)
            del session
    assert len(instances(tmp_path / "rows")) == 1


def test_inspect_says_what_is_kept(tmp_path, capsys):
    def described():
        assert inspect.main([str(tmp_path / "rows")]) == 0
        return capsys.readouterr().out

    with Program(tmp_path / "rows") as first:
        first.session.run(first.init)
        first.run(first.train, KEYS)
        first.save(str(tmp_path / "model"))
        assert "dim 4, not closed" in described()
    assert (
        "dim 4, slots ['ev/Adagrad'], closed with 500 rows, those of the checkpoint with the file data-"
        in described()
    )
    with Program(tmp_path / "rows") as second:
        second.session.run(second.init)
        second.run(second.train, KEYS)
    assert "closed with 500 rows, which are those of no checkpoint" in described()


def test_a_change_that_runs_during_a_save_is_a_change(tmp_path):
    keys = np.arange(400_000)
    with Program(tmp_path / "rows") as first:
        with first.graph.as_default():
            values = tf.compat.v1.placeholder(tf.float32, [None, DIM])
            upsert = first.ev.upsert(first.keys, values, check_finite=True)
        first.session.run(first.init)
        feed = {first.keys: keys, values: np.ones([len(keys), DIM], np.float32)}
        thread = threading.Thread(target=lambda: first.session.run(upsert, feed))
        thread.start()
        saved = first.save(str(tmp_path / "model"))
        thread.join()
    with Program(tmp_path / "elsewhere") as other:
        other.restore(saved)
        expected = other.table(keys[::1000])
    with Program(tmp_path / "rows") as second:
        second.restore(saved)
        np.testing.assert_array_equal(second.table(keys[::1000]), expected)


def test_a_saved_model_neither_takes_nor_replaces_the_rows(tmp_path):
    exported = str(tmp_path / "exported")
    with Program(tmp_path / "rows") as first:
        first.session.run(first.init)
        first.run(first.train, KEYS)
        with first.graph.as_default():
            tf.compat.v1.saved_model.simple_save(
                first.session, exported, {"keys": first.keys}, {"rows": first.rows}
            )
        first.run(first.train, np.arange(900))
        before = instances(tmp_path / "rows")
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.compat.v1.saved_model.load(session, ["serve"], exported)
        del session
        loaded = tf.saved_model.load(exported)
        assert instances(tmp_path / "rows") == before
        del loaded
    with Program(tmp_path / "rows") as second:
        second.session.run(second.init)
        assert second.session.run(second.count) == 900


def test_bad_options_are_refused():
    for kind in ("DRAM", "DRAM_PMEM", "PMEM", "LEVELDB", "HBM_DRAM_LEVELDB"):
        expected = f"StorageOption.keep: expected a storage_type .*, found {kind}"
        with pytest.raises((ValueError, NotImplementedError), match=expected):
            tf_multitier.StorageOption(kind, "/tmp/x", keep=True)
    with pytest.raises(TypeError, match=r"StorageOption\.keep: expected True or False, found 2"):
        tf_multitier.StorageOption("SSDHASH", "/tmp/x", keep=2)
    environ = {"TF_MULTITIER_STORAGE_TYPE": "DRAM_SSDHASH", "TF_MULTITIER_STORAGE_PATH": "/tmp/x"}
    assert storage_option.storage_option_from_environment(
        {**environ, "TF_MULTITIER_STORAGE_KEEP": "1"}
    ).keep
    assert not storage_option.storage_option_from_environment(environ).keep
    with pytest.raises(ValueError, match="TF_MULTITIER_STORAGE_KEEP: expected 0 or 1, found 'yes'"):
        storage_option.storage_option_from_environment(
            {**environ, "TF_MULTITIER_STORAGE_KEEP": "yes"}
        )
    with pytest.raises(
        ValueError,
        match="TF_MULTITIER_STORAGE_KEEP: expected a storage_type with files, found DRAM",
    ):
        storage_option.storage_option_from_environment({"TF_MULTITIER_STORAGE_KEEP": "1"})


def test_an_eager_variable_goes_on_after_it_was_deleted(tmp_path):
    def make():
        return tf_multitier.get_embedding_variable(
            "ev",
            embedding_dim=DIM,
            initializer=tf.compat.v1.constant_initializer(1.0),
            ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage(tmp_path)),
        )

    ev = make()
    ev.upsert(KEYS, np.tile(KEYS[:, None], (1, DIM)).astype(np.float32))
    del ev
    ev = make()
    rows = tf.nn.embedding_lookup(ev, tf.constant(KEYS))
    np.testing.assert_array_equal(rows[:, 0], KEYS)

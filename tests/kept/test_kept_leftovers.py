"""What a killed process leaves: directories next to the kept one, and the rows of its last restore."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from kept_util import DIM
from kept_util import KEYS
from kept_util import Program
from kept_util import storage

import tf_multitier


def leave_behind(path, name):
    """What a process leaves that was killed while it built another table."""
    left = path / "ev" / name
    os.makedirs(left / "ssdhash")
    for file in "instance.lock", "ssdhash/ssd-1":
        (left / file).write_bytes(b"")
    return left


@pytest.mark.parametrize("restores", [False, True])
def test_what_a_killed_restore_left_goes_when_the_kept_rows_are_opened(tmp_path, restores):
    with Program(tmp_path / "rows") as first:
        first.session.run(first.init)
        first.run(first.train, KEYS)
        saved = first.save(str(tmp_path / "model"))
        trained = first.table(KEYS)
    left = leave_behind(tmp_path / "rows", "instance-1-1")
    others = leave_behind(tmp_path / "rows", "something-else")
    with Program(tmp_path / "rows") as second:
        if restores:
            second.restore(saved)
        else:
            second.session.run(second.init)
        assert not left.exists()
        assert others.exists()
        np.testing.assert_array_equal(second.table(KEYS), trained)


def _saved(folder, deltas):
    """The prefix of a checkpoint of KEYS, or of its newest delta, and their values."""
    with Program(folder / "first") as first:
        with first.graph.as_default():
            saver = tf_multitier.train.IncrementalSaver()
        first.session.run(first.init)
        first.run(first.train, KEYS)
        with first.graph.as_default():
            saved = saver.save(first.session, str(folder / "model"), write_meta_graph=False)
            for number in range(deltas):
                first.run(first.train, KEYS[number::3])
                saved = saver.save_incremental(first.session, str(folder / "model"))
        return saved, first.table(KEYS)


@pytest.mark.parametrize("how", ["Saver", "delta", "apply_deltas", "the same again"])
def test_a_kill_right_after_a_restore_loses_no_row(tmp_path, how):
    saved, values = _saved(tmp_path, 2 if "delta" in how else 0)
    with Program(tmp_path / "rows") as second:
        with second.graph.as_default():
            saver = tf_multitier.train.IncrementalSaver()
            if how == "apply_deltas":
                base = saved.rpartition(".delta-")[0]
                second.saver.restore(second.session, base)
                saver.apply_deltas(second.session, base)
            else:
                second.saver.restore(second.session, saved)
            if how == "the same again":
                second.run(second.train, KEYS)
                values = second.table(KEYS)
                second.saver.restore(second.session, second.save(str(tmp_path / "again")))
        # What a process that is killed now leaves.
        shutil.copytree(tmp_path / "rows", tmp_path / "killed")
    with Program(tmp_path / "killed") as third:
        third.session.run(third.init)
        assert third.session.run(third.count) == len(KEYS)
        np.testing.assert_array_equal(third.table(KEYS), values)


def test_a_kill_right_after_an_object_checkpoint_is_restored_loses_no_row(tmp_path):
    def variable(folder):
        option = tf_multitier.EmbeddingVariableOption(storage_option=storage(tmp_path / folder))
        return tf_multitier.get_embedding_variable("ev", DIM, ev_option=option)

    ev = variable("first")
    ev.upsert(KEYS, np.ones((len(KEYS), DIM)))
    saved = tf.train.Checkpoint(ev=ev).write(str(tmp_path / "model"))
    restored = variable("rows")
    tf.train.Checkpoint(ev=restored).read(saved).assert_consumed()
    shutil.copytree(tmp_path / "rows", tmp_path / "killed")
    assert int(variable("killed").total_count()) == len(KEYS)

"""DeepRec's arguments for incremental checkpoints, in programs that the runner runs."""

import glob
import os
import textwrap

import forks
import pytest
from paths import ROOT

_MODEL = """
import os, sys
import numpy as np
import tensorflow as tf

directory, steps = sys.argv[1], int(sys.argv[2])
keys = tf.placeholder(tf.int64, [None])
ev = tf.get_embedding_variable("ev", 4, initializer=tf.ones_initializer(tf.float32))
weight = tf.get_variable("weight", initializer=0.0)
rows = tf.nn.embedding_lookup(ev, keys)
step = tf.train.get_or_create_global_step()
train = tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(rows) + weight, step)

def show(session):
    print("STEP", session.run(step), "ROWS", session.run(rows, {keys: np.arange(12)}).sum(), "WEIGHT", session.run(weight), flush=True)
    if len(sys.argv) > 3:
        os._exit(0)  # the hooks do not hear of the end
"""

_SESSION = """
with tf.train.MonitoredTrainingSession(
    checkpoint_dir=directory, save_checkpoint_steps=5, save_incremental_checkpoint_secs=1e-6, save_summaries_steps=None
) as session:
    for i in range(steps):
        session.run(train, {keys: [i, i + 1]})
    show(session)
"""

_HOOK = """
hook = tf.train.CheckpointSaverHook(directory, save_steps=5, incremental_save_secs=1e-6)
assert isinstance(hook, tf.train.CheckpointSaverHook)
with tf.train.MonitoredTrainingSession(
    checkpoint_dir=directory, save_checkpoint_steps=None, save_checkpoint_secs=None, save_summaries_steps=None,
    hooks=[hook], scaffold=tf.train.Scaffold(incremental_save_restore=True)
) as session:
    for i in range(steps):
        session.run(train, {keys: [i, i + 1]})
    show(session)
"""

_SAVER = """
from tensorflow.python.training import incremental_saver as tf_incr_saver

saver = tf.train.Saver(tf.global_variables(), max_to_keep=2, incremental_save_restore=True)
incr_saver = tf_incr_saver._get_incremental_saver(True, saver)
assert tf_incr_saver._get_incremental_saver(False, saver) is None
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    latest = tf.train.latest_checkpoint(directory)
    if latest:
        incr_saver.incremental_restore(session, latest, None)
    for i in range(steps):
        session.run(train, {keys: [i, i + 1]})
        if i == 4:
            saver.save(session, directory + "/model", global_step=i)
        elif i > 4:
            incr_saver.incremental_save(session, directory + "/.incremental_checkpoint/incr", global_step=i)
    show(session)
"""


def run(tmp_path, program, steps, *more):
    (tmp_path / "program.py").write_text(textwrap.dedent(_MODEL + program))
    environ = dict(os.environ, PYTHONPATH=ROOT, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    command = ["-m", "tf_multitier.deeprec", "program.py", str(tmp_path / "model"), str(steps)]
    done = forks.run(command, environ, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("program", [_SESSION, _HOOK, _SAVER], ids=["session", "hook", "saver"])
def test_checkpoints_and_deltas_are_saved_and_restored(tmp_path, program):
    os.mkdir(tmp_path / "model")
    trained = run(tmp_path, program, 8, "killed")
    assert trained.startswith("STEP 8 ROWS ")
    assert glob.glob(str(tmp_path / "model" / "*.delta-0002.index"))
    assert run(tmp_path, program, 0) == trained


def test_the_end_of_a_session_saves_all_rows(tmp_path):
    os.mkdir(tmp_path / "model")
    run(tmp_path, _SESSION, 8)
    assert os.path.exists(tmp_path / "model" / "model.ckpt-8.index")

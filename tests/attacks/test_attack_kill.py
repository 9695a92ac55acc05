"""kill -9 of TensorFlow programs that train and save, next to a journal of what they did. Kept tables: tests/kept/test_killed_tables.py."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from attack_util import ROOT
from attack_util import STRESS
from attack_util import TENSORFLOW

# Each life restores the newest checkpoint, compares every row with the journal of that checkpoint, and trains and saves until it
# is killed. A value counts the updates of its key. The journal has a line for each step before it runs, and one for each
# checkpoint after Saver.save has returned.
LIFE = TENSORFLOW.format(root=ROOT) + textwrap.dedent("""
    folder, kind, life = arguments
    journal = open(folder + "/journal", "a", buffering=1)

    def counts_at(checkpoint):
        counts = {}
        for line in open(folder + "/journal"):
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the line at which a life ended
            if "restored" in entry:
                counts = counts_at_end[entry["restored"]].copy() if entry["restored"] else {}
            for key in entry.get("keys", []):
                counts[key] = counts.get(key, 0) + 1
            if "saving" in entry:
                counts_at_end[entry["saving"]] = counts.copy()
        return counts_at_end.get(checkpoint, {})

    counts_at_end = {}
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        option = tf_multitier.EmbeddingVariableOption(storage_option=tf_multitier.StorageOption(
            storage_type=getattr(tf_multitier.StorageType, kind), storage_path=folder + "/tiers",
            storage_size=[64 * 16] * kind.count("_")))
        ev = tf_multitier.get_embedding_variable("ev", 4, initializer=v1.zeros_initializer(), ev_option=option,
                                                 partitioner=v1.fixed_size_partitioner(2))
        ids = v1.placeholder(tf.int64, [None])
        values = tf.nn.embedding_lookup(ev, ids)
        train = v1.train.GradientDescentOptimizer(1.0).minimize(-tf.reduce_sum(values))
        saver = v1.train.Saver(max_to_keep=2)
        session.run(v1.global_variables_initializer())
        newest = tf.train.latest_checkpoint(folder)
        if newest:
            saver.restore(session, newest)
        expected = counts_at(os.path.basename(newest)) if newest else {}
        everything = np.arange(600)
        found = session.run(values, {ids: everything})[:, 0]
        wrong = [key for key in everything.tolist() if found[key] != expected.get(key, 0)]
        assert not wrong, (newest, wrong[:10], [float(found[key]) for key in wrong[:10]], [expected.get(k, 0) for k in wrong[:10]])
        assert session.run(ev.total_count()) == len(expected)
        journal.write(json.dumps({"restored": os.path.basename(newest) if newest else None}) + "\\n")
        say({"checked": len(expected), "from": newest})
        random = np.random.default_rng(life)
        for step in range(1000000):
            keys = random.choice(600, 100, replace=False).tolist()
            journal.write(json.dumps({"keys": keys}) + "\\n")
            session.run(train, {ids: keys})
            if step % 5 == 4:
                name = f"model-{life}-{step}"
                journal.write(json.dumps({"saving": name}) + "\\n")
                saver.save(session, folder + "/" + name, write_meta_graph=False)
                say({"saved": name})
    """)


@pytest.mark.parametrize("kind", ["DRAM_SSDHASH", "DRAM_LEVELDB"] if STRESS else ["DRAM_SSDHASH"])
def test_a_killed_program_goes_on_from_its_newest_checkpoint(kind, tmp_path):
    random = np.random.default_rng(7)
    lives = 200 if STRESS else 3
    checked = []
    for life in range(lives):
        process = subprocess.Popen(
            [sys.executable, "-c", LIFE, json.dumps([str(tmp_path), kind, life])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()[-3000:]
            checked.append(json.loads(line)["checked"])
            for _ in range(int(random.integers(1, 4))):
                assert process.stdout.readline(), process.stderr.read()[-3000:]
            pause = run_on(process, float(random.uniform(0, 0.1)))
            assert pause is None, process.stderr.read()[-3000:]
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    assert checked[0] == 0 and min(checked[1:]) > 100, checked
    left = [name for name in os.listdir(tmp_path) if ".data-" in name]
    assert left, "no checkpoint"


def run_on(process, seconds):
    """Lets the program run on for a while, into a step or a save; its exit status if it ends."""
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None

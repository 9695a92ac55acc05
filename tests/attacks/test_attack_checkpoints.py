"""Files of checkpoints that change while nobody reads them: a restore gives the right rows, or an error and the table as it was.

Random changes, for TF_MULTITIER_FUZZ_SECONDS (6 without it) or as many seeds as that gives. A failure names its seed, and
TF_MULTITIER_FUZZ_SEED begins there.
"""

import os
import random
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf
from test_attack_files import MUTATIONS

import tf_multitier

v1 = tf.compat.v1
DIM = 4
# TensorFlow takes sizes from the end of an index without a check, and ends the process if there is no memory for them.
NOT_OF_AN_INDEX = ("flip", "scramble", "zero")
SECONDS = float(os.environ.get("TF_MULTITIER_FUZZ_SECONDS", "6"))
FIRST_SEED = int(os.environ.get("TF_MULTITIER_FUZZ_SEED", random.randrange(2**30)))


class Program:
    """A Session with a variable, whose values count the updates of a key."""

    def __init__(self, folder, kind, parts=1):
        self.graph = tf.Graph()
        with self.graph.as_default():
            storage = None
            if kind != "DRAM":
                storage = tf_multitier.StorageOption(
                    kind, str(folder / "tiers"), [100 * 2 * DIM * 4]
                )
            self.ev = tf_multitier.get_embedding_variable(
                "ev",
                DIM,
                initializer=v1.zeros_initializer(),
                partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
                ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage),
            )
            self.ids, self.prefix = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.string, [])
            loss = -tf.reduce_sum(tf.nn.embedding_lookup(self.ev, self.ids))
            self.train = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
            self.saver = tf_multitier.train.IncrementalSaver()
            self.remove = self.ev.remove(self.ids)
            self.rows = self.ev.export()
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def run(self, op, ids):
        self.session.run(op, {self.ids: ids})

    def found(self):
        """Keys in order, and of each: value, frequency, version."""
        keys, values, versions, frequencies = self.session.run(self.rows)
        order = np.argsort(keys)
        return [array[order].tolist() for array in (keys, values, versions, frequencies)]

    def restore(self, prefix):
        with self.graph.as_default():
            self.saver.restore(self.session, prefix)


@pytest.fixture(scope="module", params=["DRAM", "DRAM_SSDHASH"])
def saved(request, tmp_path_factory):
    """A base, with linked files over SSDHASH, and two deltas: (folder, the newest prefix, its rows, a program that restores it)."""
    folder = tmp_path_factory.mktemp(request.param)
    program = Program(folder, request.param)
    path = str(folder / "saved" / "model")
    os.makedirs(os.path.dirname(path))
    for most in (6000, 3000, 500):
        program.run(program.train, np.arange(most))
    with program.graph.as_default():
        program.saver.save(program.session, path, 1, write_meta_graph=False)
        for step in (2, 3):
            program.run(program.train, np.arange(1000 * step, 1000 * step + 400))
            program.run(program.remove, np.arange(100 * step, 100 * step + 20))
            newest = program.saver.save_incremental(program.session, path, step)
    expected = program.found()
    program.session.close()
    other = tmp_path_factory.mktemp("other")
    reader = Program(other, "DRAM", parts=1)
    reader.run(reader.train, np.arange(50))
    return os.path.dirname(path), os.path.basename(newest), expected, reader


def test_a_changed_file_of_a_checkpoint_never_gives_other_rows(saved, tmp_path):
    folder, newest, expected, program = saved
    begin, seed, refused = time.monotonic(), FIRST_SEED, 0
    before = program.found()
    while time.monotonic() - begin < SECONDS / 2 or seed < FIRST_SEED + 10:
        print("seed", seed)
        rng = np.random.default_rng(seed)
        copy = str(tmp_path / "copy")
        shutil.copytree(folder, copy)
        names = sorted(
            name for name in os.listdir(copy) if os.path.getsize(os.path.join(copy, name))
        )
        for name in rng.choice(names, rng.integers(1, 3), replace=False):
            changes = sorted(MUTATIONS)
            if name.endswith(".index"):
                changes = [change for change in changes if change not in NOT_OF_AN_INDEX]
            change = changes[rng.integers(len(changes))]
            MUTATIONS[change](os.path.join(copy, name), rng)
            print(change, name)
        try:
            program.restore(os.path.join(copy, newest))
        except (tf.errors.OpError, ValueError) as error:
            assert program.found() == before, f"seed {seed}: {error}"
            refused += 1
        else:
            assert program.found() == expected, f"seed {seed}"
            before = expected
        shutil.rmtree(copy)
        seed += 1
    print(f"{seed - FIRST_SEED} changed checkpoints, {refused} of them refused")
    assert refused > 0

r"""Compares tf_multitier.dynamicemb with what it is made of. One process, in turns.

    python benchmarks/dynamicemb.py --path=/ssd --fbgemm_python=fbgemm/bin/python
    python benchmarks/dynamicemb.py --parts=evict,grow --processor_time

Parts:

  grouped   tables that are 95 % full, and the grouped lookup over plain variables: lookups and steps of Adagrad; with --fbgemm_python,
            steps of FBGEMM's tables of the same rows
  evict     steps of a full table (STEP), and of one that has room (NO_EVICTION, reserved): Zipf ids, and ids that are all new
  grow      steps with new ids until --grown_rows: the slowest, and the median
  files     dumps and loads, and `cp` with fsync of the files; an increment of 1 % of the rows, and one of all
  external  steps of a table with a dictionary of Python below a tenth of its rows in DRAM, uniform ids; and what the methods of this
            dictionary take of them

The median of the ratios is printed, with the middle half. See docs/benchmarks.md.
"""

import os
import shutil
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported: fewer notices

from absl import app
from absl import flags
import numpy as np
import tensorflow as tf

import driver
import grouped
import grouped_workload
from driver import each
from driver import ratio
from driver import turns
import tf_multitier
from tf_multitier import dynamicemb as de

FLAGS = flags.FLAGS
PARTS = ("grouped", "evict", "grow", "files", "external")
flags.DEFINE_integer("capacity", 1 << 17, "Rows of a full table: a power of two.", lower_bound=256)
flags.DEFINE_integer("grown_rows", 10_000_000, "Of `grow`.", lower_bound=1)
flags.DEFINE_integer("file_rows", 500_000, "Of each of the two tables of `files`.", lower_bound=100)
for name, value in dict(
    features=10, batch=16_384, dim=128, alpha=1.05, steps_per_round=4, batches=8
).items():
    FLAGS.set_default(name, value)
SCORES = de.DynamicEmbScoreStrategy
_NEW = 1 << 50  # greater than all other ids


def made(names, dim, rows, optimizer=None, **options):
    """A collection of tables with features of the same names."""
    configs = [
        de.EmbeddingConfig(name=name, embedding_dim=dim, num_embeddings=rows, feature_names=[name])
        for name in names
    ]
    options = de.DynamicEmbTableOptions(**options)
    rule = {"optimizer": optimizer or de.EmbOptimType.SGD, "learning_rate": 0.1}
    collection = de.EmbeddingCollection(tables=configs, device="meta")
    return collection.create(dict.fromkeys(names, options), rule)


def step(model, ids):
    """A training step of {feature: ids}."""
    with tf.GradientTape() as tape:
        rows = model(ids, training=True)
        loss = tf.add_n([tf.nn.l2_loss(r) for r in rows.values()]) / FLAGS.batch
    model.apply_gradients(tape.gradient(loss, model.parameters()))


def one(model, ids):
    step(model, {"t": tf.constant(ids)})


# ---- tables that are nearly full


def measure_grouped(path):
    del path
    FLAGS.vocabulary = FLAGS.capacity * 95 // 100
    names = [f"t{i}" for i in range(FLAGS.features)]
    model = made(
        names, FLAGS.dim, FLAGS.capacity, de.EmbOptimType.EXACT_ADAGRAD, score_strategy=SCORES.STEP
    )
    # As dynamicemb begins and trains.
    variables = [
        tf_multitier.get_embedding_variable(
            name, FLAGS.dim, initializer=tf.random_uniform_initializer(-0.003, 0.003)
        )
        for name in names
    ]
    adagrad = tf_multitier.optimizers.Adagrad(0.1, initial_accumulator_value=0.0, epsilon=1e-8)
    own_lookup = tf.function(lambda ids: list(model(dict(zip(names, ids)), training=True).values()))
    own_train = tf.function(lambda ids: step(model, dict(zip(names, ids))))
    plain_lookup = tf.function(lambda ids: tf_multitier.nn.group_embedding_lookup(variables, ids))

    @tf.function
    def plain_train(ids):
        with tf.GradientTape() as tape:
            rows = tf_multitier.nn.group_embedding_lookup(variables, ids)
            loss = tf.add_n([tf.nn.l2_loss(r) for r in rows]) / FLAGS.batch
        adagrad.apply_gradients(zip(tape.gradient(loss, variables), variables))

    ranks = np.tile(np.arange(FLAGS.vocabulary), (FLAGS.features, 1))
    for first in range(0, FLAGS.vocabulary, FLAGS.batch):
        ids = list(map(tf.constant, grouped_workload.keys(ranks)[:, first : first + FLAGS.batch]))
        own_train(ids), plain_train(ids)
    batches = [
        list(map(tf.constant, ids)) for ids in grouped_workload.keys(grouped_workload.batches())
    ]
    in_turn = lambda run: each(lambda i: run(batches[i % len(batches)]))
    lookups = {"dynamicemb": in_turn(own_lookup), "grouped": in_turn(plain_lookup)}
    steps = {"dynamicemb": in_turn(own_train), "grouped": in_turn(plain_train)}
    if FLAGS.fbgemm_python:
        worker = grouped.start("fbgemm", FLAGS.fbgemm_python, "peers.py", "--peer=fbgemm_grouped")
        steps["FBGEMM"] = worker.system("train")
    found = turns(lookups)
    ratio("lookup", found, "dynamicemb", "grouped", "at most 1.05")
    found = turns(steps)
    ratio("train", found, "dynamicemb", "grouped", "at most 1.05")
    if FLAGS.fbgemm_python:
        worker.close()
        ratio("train", found, "FBGEMM", "dynamicemb", "at least 1.2")


# ---- a table that is full, and one that grows


def over(model, ids_of):
    """A system: steps with the ids of their number."""
    return each(lambda i: one(model, ids_of(i)))


def measure_evict(path):
    del path
    rows = FLAGS.capacity
    rng = np.random.default_rng(1)
    zipf = lambda i: (found := rng.zipf(1.05, 4 * FLAGS.batch))[found < 4 * rows][: FLAGS.batch]
    new = lambda i: _NEW + i * FLAGS.batch + np.arange(FLAGS.batch)
    for name, ids_of in (("Zipf", zipf), ("new", new)):
        full = made(["t"], 64, rows, score_strategy=SCORES.STEP)
        other = made(["t"], 64, 4 * rows, score_strategy=SCORES.NO_EVICTION, init_capacity=4 * rows)
        for first in range(0, rows, FLAGS.batch):
            for model in (full, other):
                one(model, _NEW - 1 - np.arange(first, first + FLAGS.batch))
        found = turns(
            {
                "full": over(full, ids_of),
                "with room": over(other, ids_of),
            }
        )
        ratio(name, found, "full", "with room", "at most 1.15")


def measure_grow(path):
    del path
    model = made(["t"], 8, 2 * FLAGS.grown_rows, score_strategy=SCORES.STEP)
    clocks = (time.perf_counter, time.process_time)
    times = []
    for first in range(0, FLAGS.grown_rows, FLAGS.batch):
        begin = np.array([clock() for clock in clocks])
        one(model, first + np.arange(FLAGS.batch))
        times.append(np.array([clock() for clock in clocks]) - begin)
    for name, found in zip(("the clock", "processor time"), np.array(times[3:]).T):
        slowest = np.round(np.sort(found)[-3:] / np.median(found), 1).tolist()
        print(f"grow: slowest steps / median by {name}: {slowest} (target at most 5)", flush=True)


# ---- dumps


def measure_files(path):
    names, dump, copied = ["a", "b"], os.path.join(path, "dump"), os.path.join(path, "copy")
    rows = FLAGS.file_rows
    make = lambda: made(names, 64, 2 * rows, de.EmbOptimType.ADAM, score_strategy=SCORES.STEP)

    def train(ids):
        for part in np.array_split(ids, -(-len(ids) // (1 << 16))):
            step(model, dict.fromkeys(names, tf.constant(part)))

    os.environ["TMPDIR"] = path  # of DynamicEmbLoad
    model = make()
    train(np.random.default_rng(1).permutation(rows))
    _, before = de.incremental_dump(model, 0)
    train(np.arange(rows // 100))
    increment = lambda since: lambda: de.incremental_dump(model, since, optim=True)
    systems = {
        "dump": lambda: de.DynamicEmbDump(dump, model, optim=True),
        "cp": lambda: driver.copy(dump, copied),
        "load": lambda: de.DynamicEmbLoad(dump, other, optim=True),
        "1 % of the rows": increment(before),
        "all rows": increment(0),
    }
    seconds = {name: [] for name in systems}
    for _ in range(FLAGS.rounds):
        shutil.rmtree(dump, ignore_errors=True)
        shutil.rmtree(copied, ignore_errors=True)
        other = make()
        for name, run in systems.items():
            driver.cold(path)
            seconds[name].append(driver.timed(run))
    for name in ("dump", "load"):
        ratio("files", seconds, name, "cp", "at most 2")
    ratio("files", seconds, "1 % of the rows", "all rows", "at most 0.05")


# ---- a storage in Python


class PyDictStorage(de.Storage):
    """Rows in a dictionary. `seconds`: what its methods have taken."""

    seconds = 0.0

    def __init__(self):
        self.rows = {}

    def find(self, keys):
        return np.ones(len(keys), bool), np.stack([self.rows[key] for key in keys.tolist()])

    def insert(self, keys, rows):
        self.rows.update(zip(keys.tolist(), rows))

    def erase(self, keys):
        for key in keys.tolist():
            self.rows.pop(key, None)


def timed(method):
    """The method, which adds what it takes to `seconds`."""

    def call(*arguments):
        clock = time.thread_time if FLAGS.processor_time else time.perf_counter
        begin = clock()
        result = method(*arguments)
        PyDictStorage.seconds += clock() - begin
        return result

    return call


for name in ("find", "insert", "erase"):
    setattr(PyDictStorage, name, timed(getattr(PyDictStorage, name)))


def measure_external(path):
    del path
    rows, dim = FLAGS.capacity, 64
    model = made(
        ["t"],
        dim,
        rows,
        score_strategy=SCORES.STEP,
        caching=True,
        global_hbm_for_values=rows // 10 * dim * 4,
        external_storage=PyDictStorage,
    )
    for first in range(0, rows, FLAGS.batch):
        one(model, np.arange(first, first + FLAGS.batch))
    rng = np.random.default_rng(1)
    seconds = {"step": [], "dictionary": []}
    for _ in range(4 * FLAGS.rounds):
        ids, before = rng.integers(0, rows, FLAGS.batch), PyDictStorage.seconds
        seconds["step"].append(driver.time_steps(lambda _, ids=ids: one(model, ids), 0, 1))
        seconds["dictionary"].append(PyDictStorage.seconds - before)
    ratio("external", seconds, "step", "dictionary", "at most 1.5")


def main(argv):
    driver.run(argv, {part: globals()[f"measure_{part}"] for part in PARTS})


if __name__ == "__main__":
    app.run(main)

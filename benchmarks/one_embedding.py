r"""Compares tf_multitier.one_embedding with what it is made of. One process, in turns.

    python benchmarks/one_embedding.py --path=/ssd
    python benchmarks/one_embedding.py --parts=tables,numbers --processor_time

Parts:

  tables     one embedding of --features tables, and the grouped lookup over as many variables: lookups and steps of Adagrad
  numbers    the same steps of an embedding of one table, which has no table numbers
  ssd        steps of a cached_ssd store with a tenth of its rows in the cache, and of a variable with the same StorageOption
  snapshots  a snapshot after 1 % of the rows changed, and the first one
  files      the table reader and writer, and `cp` with fsync of their files

The ids are those of grouped_workload.py. A round gives one ratio of each pair. The medians of the ratios are printed, with the middle
half. See docs/benchmarks.md.
"""

import functools
import itertools
import os
import shutil

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported: fewer notices

from absl import app
from absl import flags
import keras
import numpy as np
import tensorflow as tf

import driver
import grouped_workload
from driver import each
from driver import ratio
from driver import short_turns
import tf_multitier
from tf_multitier import one_embedding
import workload

FLAGS = flags.FLAGS
PARTS = ("tables", "numbers", "ssd", "snapshots", "files")
flags.DEFINE_integer("disk_rounds", 7, "Rounds of snapshots and files.", lower_bound=1)
FLAGS.set_default("batch", 2048)
FLAGS.set_default("alpha", 1.05)
FLAGS.set_default("vocabulary", 100_000)
START = one_embedding.make_table_options(
    one_embedding.make_constant_initializer(workload.INITIAL_VALUE)
)
_names = (f"e{i}" for i in itertools.count())
_BLOCK = 65_536


def made(path, tables, store=None, dim=None):
    """An embedding of `tables` tables. Without a store, all rows are in DRAM."""
    name = next(_names)
    folder = os.path.join(path, name)
    store = store or functools.partial(
        one_embedding.make_device_mem_store_options, capacity=1 << 26
    )
    return one_embedding.MultiTableEmbedding(
        name,
        dim or FLAGS.dim,
        tf.float32,
        tf.int64,
        [START] * tables,
        store(persistent_path=folder),
    )


def step_of(look_up, variables, optimizer):
    """A traced step."""

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.nn.l2_loss(look_up(ids)) / FLAGS.batch
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return step


def own_step(embedding):
    adagrad = one_embedding.Optimizer(keras.optimizers.Adagrad(FLAGS.learning_rate), [embedding])
    return step_of(embedding, embedding.parameters(), adagrad)


def over(step, batches):
    """A system of a step over these batches, all of which it has trained."""
    for ids in batches:
        step(ids)
    return each(lambda i: step(batches[i % len(batches)]))


def columns():
    """The batches, [batch, features] each, and the same [features, batch]."""
    arrays = grouped_workload.keys(grouped_workload.batches())
    return [tf.constant(array.T) for array in arrays], [tf.constant(array) for array in arrays]


def measure_tables(path):
    whole, by_table = columns()
    embedding = made(path, FLAGS.features)
    variables = [
        tf_multitier.get_embedding_variable(
            next(_names), FLAGS.dim, initializer=tf.constant_initializer(workload.INITIAL_VALUE)
        )
        for _ in range(FLAGS.features)
    ]
    group = lambda ids: tf_multitier.nn.group_embedding_lookup(
        variables, tf.unstack(ids), concat=True
    )
    adagrad = tf_multitier.optimizers.Adagrad(FLAGS.learning_rate)
    steps = {
        "one embedding": over(own_step(embedding), whole),
        "grouped": over(step_of(group, variables, adagrad), by_table),
    }
    lookups = {
        "one embedding": over(tf.function(embedding), whole),
        "grouped": over(tf.function(group), by_table),
    }
    for part, systems in (("lookup", lookups), ("train", steps)):
        ratio(part, short_turns(systems), "one embedding", "grouped", "at most 1")


def measure_numbers(path):
    whole, _ = columns()
    flat = [tf.reshape(ids, [-1]) for ids in whole]
    steps = {
        "table numbers": over(own_step(made(path, FLAGS.features)), whole),
        "one table": over(own_step(made(path, 1)), flat),
        "another": over(own_step(made(path, 1)), flat),
    }
    seconds = short_turns(steps)
    ratio("train", seconds, "table numbers", "one table", "at most 1.05")
    ratio("train", seconds, "another", "one table", "1, the noise")


def measure_ssd(path):
    whole, _ = columns()
    rows = FLAGS.features * FLAGS.vocabulary
    # A row has two columns of floats, value and accumulator.
    budget = max(1, rows // 10 * 2 * FLAGS.dim * 4 >> 20)
    store = functools.partial(one_embedding.make_cached_ssd_store_options, budget)
    embedding = made(path, 1, store)
    option = tf_multitier.StorageOption("DRAM_SSDHASH", os.path.join(path, "plain"), [budget << 20])
    plain = tf_multitier.get_embedding_variable(
        next(_names),
        FLAGS.dim,
        initializer=tf.constant_initializer(workload.INITIAL_VALUE),
        ev_option=tf_multitier.EmbeddingVariableOption(storage_option=option),
    )
    look_up = functools.partial(tf_multitier.lookup.embedding_lookup, plain)
    steps = {
        "cached_ssd": own_step(embedding),
        "StorageOption": step_of(
            look_up, [plain], tf_multitier.optimizers.Adagrad(FLAGS.learning_rate)
        ),
    }
    every = workload.keys_of(np.arange(rows))
    for ids in np.array_split(every, rows // _BLOCK + 1):
        for step in steps.values():
            step(tf.constant(ids))
    flat = [tf.reshape(ids, [-1]) for ids in whole]
    seconds = short_turns({name: over(step, flat) for name, step in steps.items()})
    ratio("train", seconds, "cached_ssd", "StorageOption", "at most 1.05")


def upserted(path, rows):
    """An embedding of rows of dim 64 on disk, a tenth of them in the cache."""
    budget = max(1, rows // 10 * 64 * 4 >> 20)
    embedding = made(
        path, 1, functools.partial(one_embedding.make_cached_ssd_store_options, budget), 64
    )
    for keys in np.array_split(np.arange(rows), rows // _BLOCK + 1):
        embedding.variable.upsert(
            keys, np.random.default_rng(1).random((len(keys), 64), np.float32)
        )
    return embedding


def saved(embedding, name):
    """Seconds of a snapshot."""
    return driver.timed(lambda: embedding.save_snapshot(name))


def measure_snapshots(path):
    seconds = {"1 % changed": [], "all rows": []}
    for _ in range(FLAGS.disk_rounds):
        embedding = upserted(path, FLAGS.rows)
        seconds["all rows"].append(saved(embedding, "first"))
        changed = np.arange(0, FLAGS.rows, 100)
        embedding.variable.upsert(changed, np.ones((len(changed), 64), np.float32))
        seconds["1 % changed"].append(saved(embedding, "second"))
    ratio("snapshot", seconds, "1 % changed", "all rows", "at most 0.1")


def measure_files(path):
    folder, copied = os.path.join(path, "0-1"), os.path.join(path, "copy")
    rows = np.random.default_rng(1).random((_BLOCK, 64), np.float32)
    files = (tf.int64, tf.float32, 64)

    def write():
        with one_embedding.make_persistent_table_writer([folder], "s", *files) as writer:
            for first in range(0, FLAGS.rows, _BLOCK):
                writer.write(np.arange(first, first + _BLOCK), rows)

    def read():
        with one_embedding.make_persistent_table_reader([folder], "s", *files) as reader:
            for _ in reader:
                pass

    systems = {"writer": write, "cp": lambda: driver.copy(folder, copied), "reader": read}
    seconds = {name: [] for name in systems}
    for _ in range(FLAGS.disk_rounds):
        for name, run in systems.items():
            driver.cold(path)
            seconds[name].append(driver.timed(run))
        shutil.rmtree(folder), shutil.rmtree(copied)
    for name in ("writer", "reader"):
        ratio("files", seconds, name, "cp", "at most 2")


def main(argv):
    driver.run(argv, {part: globals()[f"measure_{part}"] for part in PARTS})


if __name__ == "__main__":
    app.run(main)

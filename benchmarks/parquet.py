"""Rows per second of a click log as TensorFlow reads it: `tf_multitier.data.ParquetDataset` and lines of CSV, in turns.

    .venv/bin/python benchmarks/parquet.py --rows=400000 --batch=2048

The log has a label, 13 numbers and 26 strings a row, as Criteo's; ids follow a Zipf distribution. CSV is read as DeepRec's model
zoo reads it: TextLineDataset, shuffle (`csv_shuffled` only), batch, a parallel map of decode_csv. All pipelines end in prefetch(2).
Processor time is that of the whole process: with a busy machine, or other cores, its ratio says more than that of the times.
"""

import os
import time

from absl import app
from absl import flags
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import tensorflow as tf

import driver
from tf_multitier.data import ParquetDataset

FLAGS = flags.FLAGS
flags.DEFINE_integer("rows", 400_000, "Rows of the log.", lower_bound=1)
flags.DEFINE_integer("batch", 2048, "Rows of a batch.", lower_bound=1)
FLAGS.set_default("rounds", 5)

_NUMBERS = [f"I{i}" for i in range(1, 14)]
_STRINGS = [f"C{i}" for i in range(1, 27)]
_NAMES = ["clicked", *_NUMBERS, *_STRINGS]
_PASSES = 5


def write_log(directory, rows):
    """Writes log.parquet and log.csv of the same rows."""
    generator = np.random.default_rng(1)
    columns = {"clicked": generator.integers(0, 2, rows).astype(np.int32)}
    columns.update(
        (name, generator.integers(0, 1000, rows).astype(np.float32)) for name in _NUMBERS
    )
    columns.update(
        (name, pa.array([f"{key:08x}" for key in generator.zipf(1.2, rows) % (1 << 32)]))
        for name in _STRINGS
    )
    table = pa.table(columns)
    pyarrow.parquet.write_table(table, os.path.join(directory, "log.parquet"))
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    pyarrow.csv.write_csv(table, os.path.join(directory, "log.csv"), options)


def csv(directory, batch, shuffled=False):
    def parse(lines):
        columns = tf.io.decode_csv(lines, [[0]] + [[0.0]] * len(_NUMBERS) + [[" "]] * len(_STRINGS))
        features = dict(zip(_NAMES, columns))
        return features, features.pop("clicked")

    lines = tf.data.TextLineDataset(os.path.join(directory, "log.csv"))
    lines = lines.shuffle(20000, seed=1) if shuffled else lines
    return lines.batch(batch).map(parse, num_parallel_calls=28).prefetch(2)


def csv_shuffled(directory, batch):
    return csv(directory, batch, shuffled=True)


def parquet(directory, batch):
    def parse(features):
        return features, features.pop("clicked")

    dataset = ParquetDataset(os.path.join(directory, "log.parquet"), batch_size=batch)
    return dataset.map(parse, num_parallel_calls=28).prefetch(2)


_READERS = (csv, csv_shuffled, parquet)


def read(reader, directory):
    """(seconds, processor seconds) a row of reading the log _PASSES times, after the first batch: TensorFlow prepares its functions
    for that one.
    """
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(
            reader(directory, FLAGS.batch).repeat(_PASSES)
        )
        features, labels = iterator.get_next()
        take = tf.group(tf.size(labels), *features.values())
        session.run(iterator.initializer)
        session.run(take)
        rows = FLAGS.rows * _PASSES - FLAGS.batch
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            while True:
                session.run(take)
        except tf.errors.OutOfRangeError:
            pass
        return (time.perf_counter() - wall) / rows, (time.process_time() - cpu) / rows


def measure(directory):
    write_log(directory, FLAGS.rows)
    found = driver.turns(
        {reader.__name__: lambda *_, its=reader: read(its, directory) for reader in _READERS}, 1
    )
    for which, part in enumerate(("row", "processor")):
        seconds = {name: [pair[which] for pair in pairs] for name, pairs in found.items()}
        for name in ("csv", "csv_shuffled"):
            driver.ratio(part, seconds, name, "parquet")


def main(argv):
    driver.run(argv, {"parquet": measure})


if __name__ == "__main__":
    app.run(main)

"""Rows per second of a click log as TensorFlow reads it: `tf_multitier.data.ParquetDataset` and lines of CSV, in turns.

    .venv/bin/python benchmarks/parquet.py --rows=400000 --batch=2048

The log has a label, 13 numbers and 26 strings a row, as Criteo's; ids follow a Zipf distribution. CSV is read as DeepRec's model
zoo reads it: TextLineDataset, shuffle (`csv_shuffled` only), batch, a parallel map of decode_csv. All pipelines end in prefetch(2).
CPU time is that of the whole process: with a busy machine, or other cores, its ratio says more than that of the rates.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import tensorflow as tf

from tf_multitier.data import ParquetDataset

_NUMBERS = [f"I{i}" for i in range(1, 14)]
_STRINGS = [f"C{i}" for i in range(1, 27)]
_NAMES = ["clicked", *_NUMBERS, *_STRINGS]
_PASSES = 5


def write_log(directory, rows, seed):
    """Writes log.parquet and log.csv of the same rows."""
    generator = np.random.default_rng(seed)
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


def measure(reader, directory, batch, rows):
    """(rows/s, CPU us a row) of reading the log _PASSES times, after the first batch: TensorFlow prepares its functions for that one."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(
            reader(directory, batch).repeat(_PASSES)
        )
        features, labels = iterator.get_next()
        take = tf.group(tf.size(labels), *features.values())
        session.run(iterator.initializer)
        session.run(take)
        rows = rows * _PASSES - batch
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            while True:
                session.run(take)
        except tf.errors.OutOfRangeError:
            pass
        return rows / (time.perf_counter() - wall), (time.process_time() - cpu) / rows * 1e6


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5, help="passes of each reader, in turns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="a file for the raw numbers")
    flags = parser.parse_args()
    tf.compat.v1.disable_eager_execution()
    results = {reader.__name__: [] for reader in _READERS}
    with tempfile.TemporaryDirectory() as directory:
        write_log(directory, flags.rows, flags.seed)
        for _ in range(flags.rounds):
            for reader in _READERS:
                results[reader.__name__].append(measure(reader, directory, flags.batch, flags.rows))
    median = {
        name: [statistics.median(values) for values in zip(*passes)]
        for name, passes in results.items()
    }
    print(f"{flags.rows} rows, batch {flags.batch}, median of {flags.rounds} passes")
    print(
        "reader         rows/s   CPU us/row   ParquetDataset's rows/s over it   its CPU over ParquetDataset's"
    )
    for name, (rate, cpu) in median.items():
        print(
            f"{name:12s} {rate:8.0f} {cpu:12.2f} {median['parquet'][0] / rate:33.2f} {cpu / median['parquet'][1]:30.2f}"
        )
    if flags.json:
        with open(flags.json, "w", encoding="utf-8") as file:
            json.dump({"flags": vars(flags), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()

"""Read-only lookups from kept rows on an SSD: two processes with one directory, next to two processes with a directory each.

    .venv/bin/python benchmarks/kept_readers.py --rows=1000000 --path=/ssd

Each row has 64 bytes: dim 16. Both processes look up batches of random keys at the same time. They read one directory and a
directory of their own in turns, so that whatever else the machine does affects both. Files are read past the page cache.
Prints a table, or with --json one JSON object.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf

import tf_multitier

v1 = tf.compat.v1
DIM = 16
BATCH = 4096
BLOCK = 1 << 18


def variable(path):
    option = tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption("SSDHASH", path, keep=True)
    )
    return tf_multitier.get_embedding_variable("ev", DIM, ev_option=option)


def make(path, rows):
    """Writes and closes the kept rows with the keys 0 to rows - 1."""
    with tf.Graph().as_default(), v1.Session() as session:
        ev = variable(path)
        keys = v1.placeholder(tf.int64, [None])
        values = tf.repeat(tf.cast(keys, tf.float32)[:, None], DIM, axis=1)
        write = ev.upsert(keys, values)
        session.run(v1.global_variables_initializer())
        for begin in range(0, rows, BLOCK):
            session.run(write, {keys: np.arange(begin, min(begin + BLOCK, rows))})


class Table:
    """One directory, opened in place."""

    def __init__(self, path):
        with tf.Graph().as_default() as graph, tf_multitier.serving.read_only(in_place=True):
            ev = variable(path)
            self.keys = v1.placeholder(tf.int64, [None])
            self.rows = tf.nn.embedding_lookup(ev, self.keys)
            init = v1.global_variables_initializer()
        self.session = v1.Session(graph=graph)
        self.session.run(init)

    def rows_per_second(self, rows, seconds, random):
        done, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            keys = random.integers(0, rows, BATCH)
            found = self.session.run(self.rows, {self.keys: keys})
            done += BATCH
        assert (found[:, 0] == keys.astype(np.float32)).all()
        return done / (time.perf_counter() - begin)


def work(flags):
    """A process: opens both directories, then measures the one that each line of its input names."""
    tables = {"shared": Table(flags.shared), "own": Table(flags.own)}
    random = np.random.default_rng(os.getpid())
    print("ready", flush=True)
    for line in sys.stdin:
        rate = tables[line.strip()].rows_per_second(flags.rows, flags.seconds, random)
        print(rate, flush=True)


def start(flags, shared, own):
    command = [sys.executable, os.path.abspath(__file__), f"--rows={flags.rows}"]
    command += [f"--seconds={flags.seconds}", f"--shared={shared}", f"--own={own}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def measure(processes, which):
    """Rows per second of both processes together."""
    for process in processes:
        process.stdin.write(which + "\n")
        process.stdin.flush()
    return sum(float(process.stdout.readline()) for process in processes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--path", default=None, help="directory on the disk to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--shared", help=argparse.SUPPRESS)
    parser.add_argument("--own", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.shared:
        work(flags)
        return
    rates = {"shared": [], "own": []}
    with tempfile.TemporaryDirectory(dir=flags.path) as path:
        one, two = os.path.join(path, "one"), os.path.join(path, "two")
        make(one, flags.rows)
        shutil.copytree(one, two)
        processes = [start(flags, one, own) for own in (one, two)]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for which in ["own", "shared"] * (flags.rounds + 1):
            rates[which].append(measure(processes, which))
        for process in processes:
            process.stdin.close()
            process.wait()
    ratios = [s / o for s, o in zip(rates["shared"][1:], rates["own"][1:])]  # the first is warm-up
    found = {"rows": flags.rows, "rows_per_s": rates, "ratio": statistics.median(ratios)}
    if flags.json:
        print(json.dumps(found))
        return
    print(f"{flags.rows:,} rows of {4 * DIM} bytes, two processes, batches of {BATCH:,} keys")
    for which, name in (("own", "a directory each"), ("shared", "one directory")):
        print(f"{name:18} {statistics.median(rates[which][1:]):12,.0f} rows/s")
    print(f"one directory / a directory each: {found['ratio']:.3f}")


if __name__ == "__main__":
    main()

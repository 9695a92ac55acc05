"""A save of DRAM_SSDHASH with nine tenths of its rows below, compared with a save of the tenth that is above.

    .venv/bin/python benchmarks/linked_saves.py --rows=2000000 --path=/ssd

Both tables have rows of 128 bytes: dim 16 and an Adagrad slot. Before each save, a tenth of the rows above and as many below are
trained. The saves run in turns: the rows above alone, in DRAM; all rows; all rows without links. All files are on the disk of --path.
Prints a table, or with --json one JSON object.
"""

import argparse
import glob
import json
import os
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf

import tf_multitier

v1 = tf.compat.v1
DIM = 16
BATCH = 1 << 14


class Table:
    """A session with one variable of `rows` rows."""

    def __init__(self, rows, storage):
        self.rows = rows
        self.graph = tf.Graph()
        with self.graph.as_default():
            option = tf_multitier.EmbeddingVariableOption(storage_option=storage)
            self.ev = tf_multitier.get_embedding_variable("ev", DIM, ev_option=option)
            self.ids = v1.placeholder(tf.int64, [None])
            loss = tf.reduce_sum(tf.nn.embedding_lookup(self.ev, self.ids) ** 2)
            self.train = v1.train.AdagradOptimizer(0.1).minimize(loss)
            self.drain, self.stats = self.ev.drain(), self.ev.stats()
            self.saver = v1.train.Saver(max_to_keep=None)  # deleting is not timed
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())
        for begin in range(0, rows, BATCH):
            self.session.run(self.train, {self.ids: np.arange(begin, min(rows, begin + BATCH))})

    def change(self, rng, count):
        for _ in range(max(1, count // BATCH)):
            self.session.run(self.train, {self.ids: rng.integers(0, self.rows, min(count, BATCH))})
        self.session.run(self.drain)

    def save(self, prefix):
        """Seconds of a save, which syncs the rows."""
        with self.graph.as_default():
            begin = time.perf_counter()
            self.saver.save(self.session, prefix, write_meta_graph=False)
            return time.perf_counter() - begin


def measure(rows, path, rounds):
    storage = tf_multitier.StorageOption(
        "DRAM_SSDHASH", os.path.join(path, "tiers"), storage_size=[rows // 10 * DIM * 8]
    )
    above, both = Table(rows // 10, None), Table(rows, storage)
    rng = np.random.default_rng(1)
    found = {"above": [], "linked": [], "written": [], "linked_bytes": [], "part_bytes": []}
    for number in range(rounds + 1):
        seconds = {}
        for name in ("above", "linked", "written"):
            table = above if name == "above" else both
            table.change(rng, rows // 100)
            os.environ["TF_MULTITIER_LINKED_SAVES"] = "0" if name == "written" else "1"
            prefix = os.path.join(path, f"{name}-{number}")
            os.sync()
            seconds[name] = table.save(prefix)
            if name == "linked":
                stats = table.session.run(table.stats)
                files = glob.glob(prefix + ".data-[a-z]*")
                total = sum(map(os.path.getsize, files))
            for path_of_file in glob.glob(prefix + ".*"):
                os.remove(path_of_file)
        if number == 0:
            continue  # the first saves make files and memory
        for name, value in seconds.items():
            found[name].append(value)
        found["linked_bytes"].append(stats["linked_bytes"])
        found["part_bytes"].append(total - stats["linked_bytes"])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--path", default=None, help="directory on the disk to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=flags.path) as path:
        found = measure(flags.rows, path, flags.rounds)
    median = {name: statistics.median(values) for name, values in found.items()}
    ratio = lambda name: statistics.median(a / b for a, b in zip(found[name], found["above"]))
    found["ratios"] = {name: ratio(name) for name in ("linked", "written")}
    if flags.json:
        print(json.dumps(found))
        return
    print(f"{flags.rows:,} rows, a tenth above; median of {flags.rounds} rounds")
    print(f"rows above alone         {median['above']:7.3f} s")
    for name in ("linked", "written"):
        print(f"all rows, {name:15}{median[name]:7.3f} s, {found['ratios'][name]:5.2f} times")
    print(
        f"linked {median['linked_bytes'] / 1e6:,.0f} MB, written {median['part_bytes'] / 1e6:,.0f} MB"
    )


if __name__ == "__main__":
    main()

"""DynamicEmbDump, DynamicEmbLoad and incremental_dump of tf_multitier.dynamicemb, in turns with `cp` and fsync of the files of the dump.

    .venv/bin/python benchmarks/dumps.py --rows=500000 --path=/ssd

Two tables of dim 64 with Adam's states, 792 bytes a row. All files are dropped from the page cache before they are read. Prints the
bytes per second of each, divided by those of the copy of the same round, and the seconds of an incremental dump of 1 % of the rows
divided by those of one of all rows.
"""

import argparse
import functools
import os
import shutil
import statistics
import tempfile

import numpy as np
import tensorflow as tf

from checkpoint import cold
from checkpoint import copy
from checkpoint import timed
from tf_multitier import dynamicemb as de

DIM = 64
BATCH = 65_536
NAMES = ("a", "b")
ADAM = {"optimizer": de.EmbOptimType.ADAM, "learning_rate": 0.1}


def make(rows):
    configs = [
        de.EmbeddingConfig(
            name=name, embedding_dim=DIM, num_embeddings=2 * rows, feature_names=[name]
        )
        for name in NAMES
    ]
    options = de.DynamicEmbTableOptions(score_strategy=de.DynamicEmbScoreStrategy.STEP)
    made = de.EmbeddingCollection(tables=configs, device="meta")
    return made.create(dict.fromkeys(NAMES, options), ADAM)


def train(model, keys):
    for i in range(0, len(keys), BATCH):
        ids = tf.constant(keys[i : i + BATCH])
        with tf.GradientTape() as tape:
            rows = model(dict.fromkeys(NAMES, ids), training=True)
            loss = tf.add_n([tf.reduce_sum(r) for r in rows.values()])
        model.apply_gradients(tape.gradient(loss, model.parameters()))


def copy_all(folder, to):
    """Copies the files of a folder and its folders into a new one."""
    os.makedirs(to)
    names = [os.path.join(f, name) for f, _, its in os.walk(folder) for name in its]
    for i, name in enumerate(names):
        copy(name, os.path.join(to, str(i)))


def measure(rows, path, rounds):
    """{name: the ratios of the rounds}, and the bytes of a dump."""
    model, dump, copied = make(rows), os.path.join(path, "dump"), os.path.join(path, "copy")
    train(model, np.random.default_rng(1).permutation(rows))
    _, before = de.incremental_dump(model, 0)
    train(model, np.arange(rows // 100))
    ratios: dict = {"dump": [], "load": [], "1 % incremental / full": []}
    for _ in range(rounds):
        shutil.rmtree(dump, ignore_errors=True)
        dumped = timed(lambda: de.DynamicEmbDump(dump, model, optim=True))
        cold(dump)
        copies = timed(lambda: copy_all(dump, copied))
        size = sum(os.path.getsize(os.path.join(copied, name)) for name in os.listdir(copied))
        shutil.rmtree(copied)
        cold(dump)
        loaded = timed(functools.partial(de.DynamicEmbLoad, dump, make(rows), optim=True))
        full = timed(lambda: de.incremental_dump(model, 0, optim=True))
        part = timed(lambda: de.incremental_dump(model, before, optim=True))
        for name, ratio in zip(ratios, (copies / dumped, copies / loaded, part / full)):
            ratios[name].append(ratio)
        print(
            f"copy {copies:.2f} s, dump {dumped:.2f} s, load {loaded:.2f} s, incremental {part:.3f} s of {full:.2f} s",
            flush=True,
        )
    return ratios, size


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="of each table")
    parser.add_argument("--path", default=None, help="directory on the disk to measure")
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=flags.path) as path:
        os.environ["TMPDIR"] = path  # of DynamicEmbLoad
        ratios, size = measure(flags.rows, path, flags.rounds)
    print(f"2 tables of {flags.rows:,} rows, {size / 1e6:,.0f} MB")
    for name, found in ratios.items():
        print(f"{name:30} {statistics.median(found):6.3f}  {[round(r, 3) for r in sorted(found)]}")


if __name__ == "__main__":
    main()

"""A delta of 1 % of the rows of a variable, compared with a save of all rows: seconds and bytes.

    .venv/bin/python benchmarks/deltas.py --rows=4000000 --path=/ssd

Each row has 128 bytes: dim 16 and an Adagrad slot. In each round, 1 % of the rows are trained, random or one after the other, and
saved as a delta; then all rows are saved. All files are on the disk of --path, and each save ends with their sync. Prints a table, or
with --json one JSON object.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

from checkpoint import DIM
from checkpoint import Rows
import numpy as np
import tensorflow as tf

import tf_multitier
from tf_multitier import checkpoint

v1 = tf.compat.v1
BATCH = 1 << 14


def bytes_of(prefix):
    """Of the files of one checkpoint."""
    folder, name = os.path.split(prefix)
    files = [file for file in os.listdir(folder) if file.startswith(name + ".")]
    return sum(os.path.getsize(os.path.join(folder, file)) for file in files)


def timed(save, session, path, step):
    """(seconds of a save, bytes of its checkpoint). The files are on the disk when it ends."""
    begin = time.perf_counter()
    prefix = save(session, path, global_step=step)
    return time.perf_counter() - begin, bytes_of(prefix)


def measure(flags, path):
    """[(seconds, bytes) of deltas], [... of full saves]"""
    source = os.path.join(path, "source", "rows")
    os.makedirs(os.path.dirname(source))
    with checkpoint.Writer(source) as writer:
        writer.add_table("ev", Rows(flags.rows))
    option = tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption(
            flags.storage_type,
            os.path.join(path, "tiers"),
            storage_size=[flags.rows * 128 // 10] if "_" in flags.storage_type else None,
        )
    )
    rng = np.random.default_rng(0)
    deltas, saves = [], []
    with tf.Graph().as_default(), v1.Session() as session:
        ev = tf_multitier.get_embedding_variable("ev", DIM, ev_option=option)
        ids = v1.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, ids) ** 2)
        train = v1.train.AdagradOptimizer(0.1).minimize(loss)
        saver = tf_multitier.train.IncrementalSaver(max_to_keep=2)
        session.run(v1.global_variables_initializer())
        session.run(ev.restore_from(source))
        prefix = os.path.join(path, "model")
        saver.save(session, prefix, global_step=0)
        for step in range(1, flags.rounds + 1):
            changed = rng.choice(flags.rows, flags.rows // 100, replace=False)
            for batch in np.array_split(changed, max(1, len(changed) // BATCH)):
                session.run(train, {ids: batch})
            deltas.append(timed(saver.save_incremental, session, prefix, 2 * step))
            saves.append(timed(saver.save, session, prefix, 2 * step + 1))
    return deltas, saves


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--path", default=None, help="directory on the disk to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--storage_type", default="DRAM")
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=flags.path) as path:
        deltas, saves = measure(flags, path)
    ratios = [
        [of_delta[i] / of_save[i] for of_delta, of_save in zip(deltas, saves)] for i in (0, 1)
    ]
    found = {
        "rows": flags.rows,
        "storage_type": flags.storage_type,
        "full_s": statistics.median(seconds for seconds, _ in saves),
        "delta_s": statistics.median(seconds for seconds, _ in deltas),
        "seconds_ratio": statistics.median(ratios[0]),
        "bytes_ratio": statistics.median(ratios[1]),
    }
    if flags.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(
            f"{name:16} {value:>12}"
            if isinstance(value, (int, str))
            else f"{name:16} {value:12.4f}"
        )


if __name__ == "__main__":
    main()

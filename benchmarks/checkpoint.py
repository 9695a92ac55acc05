"""Save and restore: bytes per second of an embedding variable, next to `cp` with fsync and to TensorFlow's Saver on a dense variable.

    .venv/bin/python benchmarks/checkpoint.py --rows=2000000 --path=/ssd

Each row has 128 bytes: dim 16 and an Adagrad slot. All files are on the disk of --path, and are dropped from the page cache before
they are read. Prints a table, or with --json one JSON object.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import engine

v1 = tf.compat.v1
DIM = 16
BLOCK = 1 << 20


class Rows(checkpoint.RowSource):
    """`count` rows with the keys 0, 1, 2, ..."""

    def __init__(self, count):
        self.columns = [("value", DIM, 0.0), ("ev/Adagrad", DIM, 0.1)]
        self.num_rows = count

    def blocks(self):
        for begin in range(0, self.num_rows, BLOCK):
            keys = np.arange(begin, min(begin + BLOCK, self.num_rows), dtype=np.int64)
            data = np.repeat(keys.astype(np.float32)[:, None], 2 * DIM, axis=1)
            ones = np.ones(len(keys), np.int64)
            yield engine.Rows(self.columns, keys, ones, ones, data)


def cold(directory):
    """Writes all files of a directory to the disk, and drops them from the page cache."""
    for folder, _, names in os.walk(directory):
        for name in names:
            file = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def timed(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def copy(source, target):
    """What `cp` does, and an fsync."""
    shutil.copyfile(source, target)
    file = os.open(target, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def copy_all(folder, to):
    """Copies the files of a folder and its folders into a new one."""
    os.makedirs(to)
    names = [os.path.join(f, name) for f, _, its in os.walk(folder) for name in its]
    for i, name in enumerate(names):
        copy(name, os.path.join(to, str(i)))


def measure_copy(path, rounds):
    """Seconds of copies of the largest file of a directory: as much is read as is written."""
    files = [os.path.join(path, name) for name in os.listdir(path)]
    largest = max(files, key=os.path.getsize)
    seconds = []
    for _ in range(rounds):
        cold(path)
        seconds.append(timed(lambda: copy(largest, largest + ".copy")))
        os.remove(largest + ".copy")
    return os.path.getsize(largest), seconds


def measure_saver(session, saver, directory, rounds):
    """(seconds of saves, seconds of restores) of a Saver."""
    saves, restores = [], []
    prefix = os.path.join(directory, "model")
    for _ in range(rounds):
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        saves.append(
            timed(lambda: (saver.save(session, prefix, write_meta_graph=False), cold(directory)))
        )
        restores.append(timed(lambda: saver.restore(session, prefix)))
    return saves, restores


def embedding(rows, path, rounds, storage):
    """Seconds of save and restore of an embedding variable, and of copies of its part file."""
    prefix = os.path.join(path, "source", "rows")
    os.makedirs(os.path.dirname(prefix))
    with checkpoint.Writer(prefix) as writer:
        writer.add_table("ev", Rows(rows))
    size, copies = measure_copy(os.path.dirname(prefix), rounds)
    option = tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption(
            storage,
            os.path.join(path, "tiers"),
            storage_size=[rows * 128 // 10] if "_" in storage else None,
        )
    )
    with tf.Graph().as_default(), v1.Session() as session:
        ev = tf_multitier.get_embedding_variable("ev", DIM, ev_option=option)
        session.run(ev.restore_from(prefix))
        saver = v1.train.Saver()
        saves, restores = measure_saver(session, saver, os.path.join(path, "ev"), rounds)
    return size, {"copy": copies, "save": saves, "restore": restores}


def dense(rows, path, rounds):
    """Seconds of save and restore of a dense variable of as many bytes."""
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("dense", [rows, 2 * DIM], initializer=v1.zeros_initializer())
        session.run(variable.initializer)
        saves, restores = measure_saver(
            session, v1.train.Saver(), os.path.join(path, "dense"), rounds
        )
    return {"save": saves, "restore": restores}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--path", default=None, help="directory on the disk to measure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--storage_type", default="DRAM")
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=flags.path) as path:
        size, ours = embedding(flags.rows, path, flags.rounds, flags.storage_type)
        stock = dense(flags.rows, path, flags.rounds)
    rate = lambda seconds: size / 1e6 / statistics.median(seconds)
    found = {
        "rows": flags.rows,
        "storage_type": flags.storage_type,
        "bytes": size,
        "MB_per_s": {
            "cp with fsync": rate(ours["copy"]),
            "save": rate(ours["save"]),
            "restore": rate(ours["restore"]),
            "dense Saver, save": rate(stock["save"]),
            "dense Saver, restore": rate(stock["restore"]),
        },
        "seconds": {"ours": ours, "dense": stock},
    }
    if flags.json:
        print(json.dumps(found))
        return
    print(f"{flags.rows:,} rows, {size / 1e6:,.0f} MB, {flags.storage_type}")
    for name, value in found["MB_per_s"].items():
        print(f"{name:24} {value:8,.0f} MB/s")


if __name__ == "__main__":
    main()

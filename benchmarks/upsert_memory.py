r"""Upserts of new keys through a small DRAM tier into SSDHASH: their time, and the process's memory against `tf_multitier.memory`.

    python benchmarks/upsert_memory.py

Fails if the memory or the files grow beyond what `memory` computed, or a row that is read back is wrong.
"""

import os
import tempfile
import time

from absl import app
from absl import flags
import numpy as np

import tf_multitier
from tf_multitier import engine

FLAGS = flags.FLAGS
flags.DEFINE_integer("rows", 10_000_000, "Keys to put in.", lower_bound=1)
flags.DEFINE_integer("dim", 16, "Elements of a value.", lower_bound=1)
flags.DEFINE_integer("batch", 65536, "Keys of a call.", lower_bound=1)
flags.DEFINE_integer("dram_mib", 64, "MiB of rows in DRAM.", lower_bound=1)
flags.DEFINE_string("path", None, "Directory for the files; a temporary one if it is not given.")

_MIB = 1 << 20


def anonymous_bytes():
    """Resident memory of the process without the page cache."""
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def bytes_of_files(path):
    return sum(
        os.path.getsize(os.path.join(d, name)) for d, _, names in os.walk(path) for name in names
    )


def measure(path):
    storage = tf_multitier.StorageOption("DRAM_SSDHASH", path, [FLAGS.dram_mib * _MIB])
    bound = tf_multitier.memory(FLAGS.rows, FLAGS.dim, None, storage, batch_keys=FLAGS.batch)
    values = np.random.default_rng(1).standard_normal((FLAGS.batch, FLAGS.dim)).astype(np.float32)
    before = most = anonymous_bytes()
    table = engine.Table(
        FLAGS.dim,
        storage_type="DRAM_SSDHASH",
        storage_path=path,
        storage_size=[FLAGS.dram_mib * _MIB],
    )
    begin, processor = time.perf_counter(), time.process_time()
    for number, first in enumerate(range(0, FLAGS.rows, FLAGS.batch)):
        keys = np.arange(first, min(FLAGS.rows, first + FLAGS.batch))
        table.upsert(keys, {"value": values[: len(keys)]})
        if number % 4 == 0:
            most = max(most, anonymous_bytes())
    table.drain()
    taken, processor = time.perf_counter() - begin, time.process_time() - processor
    grown, files = max(most, anonymous_bytes()) - before, bytes_of_files(path)
    print(f"{FLAGS.rows:,} rows in {taken:.1f} s, {processor:.1f} s of processor time")
    print(f"memory: {grown / _MIB:.0f} MiB more, computed at most {bound.memory_bytes / _MIB:.0f}")
    print(f"files: {files / _MIB:.0f} MiB, computed at most {bound.disk_bytes / _MIB:.0f}")
    sample = np.random.default_rng(2).integers(0, FLAGS.rows, 20000)
    np.testing.assert_array_equal(table.lookup(sample), values[sample % FLAGS.batch])
    assert grown <= bound.memory_bytes and files <= bound.disk_bytes


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    print(f"load average before {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(dir=FLAGS.path) as path:
        measure(path)


if __name__ == "__main__":
    app.run(main)

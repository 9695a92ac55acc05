r"""A table ten times as large as its memory, beside LevelDB and RocksDB doing the same work.

    python3 configure.py bench
    python benchmarks/storage_kv.py --directory=/mnt/ssd

Runs cc/table/storage_kv once for each store and round, in turns, each in a process of its own, and prints the medians and by how
much ours is ahead. What is done and what the numbers mean is at the top of cc/table/storage_kv/storage_kv.cc. RocksDB takes part
where its library is installed (Debian: librocksdb7.8). Needs 6 GB of disk.
"""

import json
import os
import statistics
import subprocess

from absl import app
from absl import flags

FLAGS = flags.FLAGS
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
flags.DEFINE_string("benchmark", os.path.join(_ROOT, "bazel-bin", "cc", "table", "storage_kv", "storage_kv"), "The program.")
flags.DEFINE_string("directory", "/tmp", "Where the files go: a directory on the disk to measure.")
flags.DEFINE_list("stores", ["tf_multitier", "leveldb", "rocksdb"], "Stores to run.")
flags.DEFINE_integer("rounds", 3, "Runs of each store; the median counts.", lower_bound=1)
flags.DEFINE_integer("rows", 10_000_000, "Rows.", lower_bound=1)
flags.DEFINE_integer("cache_mb", 256, "Memory of the store's cache, in MiB.", lower_bound=1)
flags.DEFINE_integer("warm", 300, "Batches of ours before those that count: its cache must settle.", lower_bound=0)
flags.DEFINE_integer("peer_warm", 40, "The same of the peers, which are slow.", lower_bound=0)
flags.DEFINE_integer("batches", 60, "Batches that count.", lower_bound=1)
flags.DEFINE_string("json", None, "File to write all results to.")


def run(store):
    """What one run of a store reports, or None where the store is not there."""
    warm = FLAGS.warm if store == "tf_multitier" else FLAGS.peer_warm
    command = [FLAGS.benchmark, store, FLAGS.directory, f"rows={FLAGS.rows}", f"cache_mb={FLAGS.cache_mb}", f"warm={warm}",
               f"batches={FLAGS.batches}"]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        print(f"{store}: {result.stderr.strip()}")
        return None
    return json.loads(result.stdout)


def main(_):
    if not os.path.exists(FLAGS.benchmark):
        raise app.UsageError(f"{FLAGS.benchmark} does not exist: run `python3 configure.py bench` first")
    results = {store: [] for store in FLAGS.stores}
    for _ in range(FLAGS.rounds):
        for store in FLAGS.stores:
            result = run(store)
            if result is not None:
                results[store].append(result)

    def median(store, name):
        values = [result[name] for result in results[store] if name in result]
        return statistics.median(values) if values else float("nan")

    print(f"{'store':14} {'rows/s':>10} {'peak MB':>8} {'CPU us/row':>10} {'miss rate':>9} {'of roofline':>11} {'disk IOPS':>9} "
          f"{'ours / it':>9}")
    for store, runs in results.items():
        if not runs:
            continue
        ahead = median("tf_multitier", "unique_rows_s") / median(store, "unique_rows_s") if results.get("tf_multitier") else 0
        print(f"{store:14} {median(store, 'unique_rows_s'):10.0f} {median(store, 'peak_mb'):8.0f} "
              f"{median(store, 'cpu_us_per_row'):10.2f} {median(store, 'miss_rate'):9.3f} {median(store, 'of_roofline'):11.2f} "
              f"{median(store, 'disk_iops'):9.0f} {ahead:9.1f}")
    if FLAGS.json:
        with open(FLAGS.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    app.run(main)

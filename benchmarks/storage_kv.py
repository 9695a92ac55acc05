r"""Compares a table ten times as large as its memory with LevelDB and RocksDB on the same work.

    python3 configure.py bench
    python benchmarks/storage_kv.py --path=/mnt/ssd --memory_mb=576 --miss_cost
    python benchmarks/storage_kv.py --path=/mnt/ssd --stores=tf_multitier --rounds=1 --rows=100_000_000 --cache_mb=1024 --hits

Runs benchmarks/storage_kv once for each store and round, in turns, each in a process of its own, and prints the medians and by how
much ours is ahead. What is done and what the numbers mean is at the top of benchmarks/storage_kv/storage_kv.cc. RocksDB takes part
where its library is installed (Debian: librocksdb7.8). Needs 6 GB of disk, 100 M rows 32 GB.

Memory is compared fairly only under a limit: LevelDB maps its files, and what the system caches of them is memory, too. With
--memory_mb every store runs in a memory cgroup of that size, its share of the page cache included (as root; version 1 or 2).
"""

import contextlib
import json
import os
import statistics
import subprocess

from absl import app
from absl import flags

import driver

FLAGS = flags.FLAGS
flags.DEFINE_list("stores", ["tf_multitier", "leveldb", "rocksdb"], "Stores to run.")
FLAGS.set_default("rounds", 3)
flags.DEFINE_integer("rows", 10_000_000, "Rows.", lower_bound=1)
flags.DEFINE_integer("cache_mb", 256, "Memory of the store's cache, in MiB.", lower_bound=1)
flags.DEFINE_integer(
    "warm", 300, "Batches of ours before those that count: its cache must settle.", lower_bound=0
)
flags.DEFINE_integer("peer_warm", 40, "The same of the peers, which are slow.", lower_bound=0)
flags.DEFINE_integer(
    "peer_seconds",
    0,
    "No batch of a peer that counts begins after so long; 0: all of them do.",
    lower_bound=0,
)
flags.DEFINE_integer("batches", 60, "Batches that count.", lower_bound=1)
flags.DEFINE_integer(
    "memory_mb",
    0,
    "Memory of each store's process with its page cache, in MiB. 0: as much as it takes.",
    lower_bound=0,
)
flags.DEFINE_bool(
    "miss_cost",
    False,
    "One more run of ours, every row in memory: what a missed row costs beyond that.",
)
flags.DEFINE_integer(
    "threads", 1, "Threads lent to each call of ours, the calling one included.", lower_bound=1
)
flags.DEFINE_bool("hits", False, "Also report what a lookup of a key in memory costs in ours.")


OURS = "tf_multitier"
NUMBERS = (
    "unique_rows_s",
    "peak_mb",
    "cpu_us_per_row",
    "miss_rate",
    "of_roofline",
    "disk_iops",
    "hit_ns",
)


@contextlib.contextmanager
def limited(megabytes):
    """The cgroup file to which a process writes its id to limit its memory. None without a limit."""
    if not megabytes:
        yield None
        return
    first = os.path.isdir("/sys/fs/cgroup/memory")  # version 1
    group = os.path.join(
        "/sys/fs/cgroup/memory" if first else "/sys/fs/cgroup", f"storage_kv_{os.getpid()}"
    )
    os.mkdir(group)
    try:
        with open(
            os.path.join(group, "memory.limit_in_bytes" if first else "memory.max"),
            "w",
            encoding="ascii",
        ) as limit:
            limit.write(str(megabytes << 20))
        yield os.path.join(group, "cgroup.procs")
    finally:
        os.rmdir(group)


def run(store, path, cache_mb, memory_mb=0):
    """The report of one run of a store, or None if the store is not installed."""
    ours = store == "tf_multitier"
    warm, seconds = (FLAGS.warm, 0) if ours else (FLAGS.peer_warm, FLAGS.peer_seconds)
    program = driver.program("benchmarks/storage_kv/storage_kv")
    command = [
        program,
        store,
        path,
        f"rows={FLAGS.rows}",
        f"cache_mb={cache_mb}",
        f"warm={warm}",
        f"batches={FLAGS.batches}",
        f"seconds={seconds}",
        f"hits={int(FLAGS.hits)}",
        f"threads={FLAGS.threads}",
    ]
    with limited(memory_mb) as processes:
        if processes:
            command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', processes] + command
        result = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False
        )
    if result.returncode != 0:
        print(f"{store}: {result.stderr.strip()}")
        return None
    return json.loads(result.stdout)


def measure(path):
    results = {store: [] for store in FLAGS.stores}
    for _ in range(FLAGS.rounds):
        for store in FLAGS.stores:
            result = run(store, path, FLAGS.cache_mb, FLAGS.memory_mb)
            if result is not None:
                results[store].append(result)
    results = {store: runs for store, runs in results.items() if runs}
    medians = {
        store: {
            name: statistics.median(run[name] for run in runs if name in run)
            for name in {name for run in runs for name, value in run.items() if name in NUMBERS}
        }
        for store, runs in results.items()
    }
    for store, numbers in medians.items():
        driver.note(
            store, **{name: numbers[name] for name in NUMBERS if numbers.get(name, -1) >= 0}
        )
    if OURS not in results:
        return
    seconds = {s: [1 / run["unique_rows_s"] for run in runs] for s, runs in results.items()}
    for store in results:
        if store != OURS:
            driver.ratio("row", seconds, store, OURS)
    batch = [statistics.median(run["batch_ms"][i] for run in results[OURS]) for i in (0, 1)]
    driver.note("batch", median_ms=batch[0], ms_of_99_percent=batch[1])
    if FLAGS.miss_cost:
        resident = run(OURS, path, FLAGS.rows * 128 * 2 >> 20)
        beyond = medians[OURS]["cpu_us_per_row"] - resident["cpu_us_per_row"]
        driver.note(
            "miss",
            cpu_us_beyond_a_row_in_memory=beyond / medians[OURS]["miss_rate"],
            cpu_us_of_a_row_in_memory=resident["cpu_us_per_row"],
            rows_s_in_memory=resident["unique_rows_s"],
        )


def main(argv):
    driver.run(argv, {"stores": measure})


if __name__ == "__main__":
    app.run(main)

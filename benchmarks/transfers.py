r"""Scans, upserts and the order SCORE of the engine, each in turns with what it is compared with.

    python benchmarks/transfers.py

scan             a table in DRAM, compared with a copy of its bytes (numpy.copyto); 1 % of its rows, by version, compared with
                 a full scan
scan SSDHASH     1 % of the rows, by version, compared with a full scan
upsert           new keys, compared with an SGD update that makes the same number of new keys
score            lookups and updates of a table whose rows are mostly below DRAM: CacheStrategy.SCORE compared with LRU
"""

import os
import statistics
import tempfile
import time

from absl import app
from absl import flags
import numpy as np

from tf_multitier import engine

FLAGS = flags.FLAGS
flags.DEFINE_integer("rows", 1_000_000, "Rows of a table in DRAM.", lower_bound=1000)
flags.DEFINE_integer("rows_below", 200_000, "Rows of a table with SSDHASH.", lower_bound=1000)
flags.DEFINE_integer("dim", 64, "Elements of a value.", lower_bound=1)
flags.DEFINE_integer(
    "rounds", 7, "Rounds; medians count. The first one is left out.", lower_bound=1
)
flags.DEFINE_multi_enum(
    "part", ["scan", "below", "upsert", "score"], ["scan", "below", "upsert", "score"], "What runs."
)
flags.DEFINE_string("path", None, "Folder for files; none: a temporary one.")

_HYPER = {"learning_rate": 0.1}
_FILL = 65536


def seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def train(table, keys, step):
    grads = np.full((len(keys), FLAGS.dim), 1e-3, np.float32)
    table.apply("sgd", keys, grads, hyper=_HYPER, global_step=step)


def filled(rows, **options):
    """A table with keys 0 to rows - 1 at version 1, of which 1 %, at random, were trained again at version 2."""
    table = engine.Table(FLAGS.dim, "uniform", -0.1, 0.1, **options)
    for first in range(0, rows, _FILL):
        train(table, np.arange(first, min(rows, first + _FILL)), 1)
    train(table, np.random.default_rng(1).choice(rows, rows // 100, replace=False), 2)
    table.drain()
    return table


def scan(table, min_version=None):
    cursor, rows = 0, 0
    while True:
        piece, cursor = table.scan(cursor, columns=["value"], min_version=min_version)
        rows += len(piece)
        if not cursor:
            return rows


def turns(calls):
    """{name: median seconds} and the ratios of each round to the first call's time, as (median, low, high) of the middle half."""
    times = {name: [] for name in calls}
    for number in range(FLAGS.rounds + 1):
        for name in list(calls) if number % 2 else list(calls)[::-1]:
            times[name].append(seconds(calls[name]))
    times = {name: found[1:] for name, found in times.items()}
    first = next(iter(times.values()))
    ratios = {}
    for name, found in times.items():
        of_round = sorted(t / f for t, f in zip(found, first, strict=True))
        quarter = len(of_round) // 4
        ratios[name] = statistics.median(of_round), of_round[quarter], of_round[-1 - quarter]
    return {name: statistics.median(found) for name, found in times.items()}, ratios


def report(title, calls):
    times, ratios = turns(calls)
    print(title)
    for name, (ratio, low, high) in ratios.items():
        print(
            f"  {name}: {times[name] * 1e3:.1f} ms, {ratio:.3f} ({low:.3f} to {high:.3f}) of the first"
        )


def measure_scan(unused_path):
    table = filled(FLAGS.rows)
    source = np.ones((FLAGS.rows, FLAGS.dim), np.float32)
    target = np.zeros_like(source)
    calls = {
        "full scan": lambda: scan(table),
        "1 % by version": lambda: scan(table, 2),
        "copy of the bytes": lambda: np.copyto(target, source),
    }
    report(f"scan: {FLAGS.rows} rows in DRAM", calls)


def measure_below(path):
    table = filled(FLAGS.rows_below, storage_type="SSDHASH", storage_path=path)
    calls = {"full scan": lambda: scan(table), "1 % by version": lambda: scan(table, 2)}
    report(f"scan: {FLAGS.rows_below} rows in SSDHASH", calls)


def measure_upsert(unused_path):
    rows = min(FLAGS.rows, 16 * _FILL)
    order = np.random.default_rng(2).permutation(rows)
    values = np.full((_FILL, FLAGS.dim), 1e-3, np.float32)

    def make(write):
        table = engine.Table(FLAGS.dim, "uniform", -0.1, 0.1)
        for first in range(0, rows, _FILL):
            keys = order[first : first + _FILL]
            write(table, keys, values[: len(keys)])

    update = lambda table, keys, grads: table.apply("sgd", keys, grads, hyper=_HYPER)
    calls = {
        "updates of new keys": lambda: make(update),
        "upserts": lambda: make(lambda table, keys, v: table.upsert(keys, {"value": v})),
    }
    report(f"upsert: {rows} new keys", calls)


def measure_score(path):
    size = [FLAGS.rows_below // 4 * FLAGS.dim * 4]
    tables, memory = {}, {}
    for strategy in ("LRU", "SCORE"):
        tables[strategy] = filled(
            FLAGS.rows_below,
            storage_type="DRAM_SSDHASH",
            storage_path=path,
            storage_size=size,
            cache_strategy=strategy,
            name=strategy,
        )
        memory[strategy] = tables[strategy].stats()["tiers"][0]["resident_bytes"]
    steps, rng = dict.fromkeys(tables, 2), np.random.default_rng(3)
    batches = [rng.zipf(1.2, 4096) % FLAGS.rows_below for _ in range(20)]

    def work(strategy):
        for keys in batches:
            steps[strategy] += 1
            tables[strategy].lookup(keys)
            train(tables[strategy], keys, steps[strategy])

    calls = {strategy: lambda strategy=strategy: work(strategy) for strategy in tables}
    report("score: lookup and update of 4,096 Zipf keys, a quarter of the rows in DRAM", calls)
    print(f"  memory of DRAM: SCORE {memory['SCORE'] / memory['LRU']:.3f} of LRU")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    print(f"dim {FLAGS.dim}, load average before {os.getloadavg()[0]:.1f}")
    measures = {
        "scan": measure_scan,
        "below": measure_below,
        "upsert": measure_upsert,
        "score": measure_score,
    }
    with tempfile.TemporaryDirectory(dir=FLAGS.path) as path:
        for part in FLAGS.part:
            measures[part](path)
    print(f"load average after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    app.run(main)

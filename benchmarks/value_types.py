r"""Lookups and updates of bfloat16 rows, in turns with float32 rows, in a table that is larger than the processor's caches.

    python benchmarks/value_types.py

The engine alone, by NumPy. Both tables have the same keys; lookups give float32. Each round times some calls of one table, then of
the other, and gives one ratio: float32 over the other type.
"""

import json
import os
import statistics
import time

from absl import app
from absl import flags
import numpy as np

from tf_multitier import engine

FLAGS = flags.FLAGS
flags.DEFINE_integer("rows", 2_000_000, "Rows of each table.", lower_bound=1)
flags.DEFINE_integer("dim", 64, "Elements of a value.", lower_bound=1)
flags.DEFINE_integer("batch", 8192, "Keys of a call, uniform over the rows.", lower_bound=1)
flags.DEFINE_integer("rounds", 15, "Rounds; medians count.", lower_bound=1)
flags.DEFINE_integer("calls", 40, "Calls of each table in a round.", lower_bound=1)
flags.DEFINE_enum("dtype", "bfloat16", ["bfloat16", "float16"], "Type that is compared.")
flags.DEFINE_boolean("stochastic_rounding", False, "Whether its updates round stochastically.")
flags.DEFINE_multi_enum("rule", ["sgd", "adagrad"], ["sgd", "adagrad"], "Update rules.")
flags.DEFINE_string("json", None, "File to write parameters and ratios to.")

_FILL = 100_000


def make(dtype, rule):
    """A table of that type with all rows."""
    stochastic = FLAGS.stochastic_rounding and dtype != "float32"
    table = engine.Table(
        FLAGS.dim, "uniform", -0.1, 0.1, value_dtype=dtype, stochastic_rounding=stochastic
    )
    for first in range(0, FLAGS.rows, _FILL):
        train(table, rule, np.arange(first, min(FLAGS.rows, first + _FILL)))
    return table


def train(table, rule, keys, grads=None):
    grads = np.full((len(keys), FLAGS.dim), 1e-3, np.float32) if grads is None else grads
    table.apply(rule, keys, grads, hyper={"learning_rate": 0.1})


def seconds(call, batches):
    begin = time.perf_counter()
    for keys in batches:
        call(keys)
    return time.perf_counter() - begin


def measure(rule):
    """{operation: [(seconds of float32, seconds of the other type)]} and {type: bytes of rows in memory}."""
    tables = {dtype: make(dtype, rule) for dtype in ("float32", FLAGS.dtype)}
    grads = np.full((FLAGS.batch, FLAGS.dim), 1e-3, np.float32)
    operations = {
        "lookup": lambda table: lambda keys: table.lookup(keys, output_dtype="float32"),
        f"{rule} update": lambda table: lambda keys: train(table, rule, keys, grads),
    }
    rng = np.random.default_rng(1)
    found = {operation: [] for operation in operations}
    for number in range(FLAGS.rounds + 1):
        for operation, of_table in operations.items():
            batches = rng.integers(0, FLAGS.rows, (FLAGS.calls, FLAGS.batch))
            order = list(tables) if number % 2 else list(tables)[::-1]
            taken = {dtype: seconds(of_table(tables[dtype]), batches) for dtype in order}
            if number:  # the first round warms up
                found[operation].append((taken["float32"], taken[FLAGS.dtype]))
    memory = {d: t.stats()["tiers"][0]["resident_bytes"] for d, t in tables.items()}
    return found, memory


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    load = os.getloadavg()[0]
    report = {"load_average_before": load, "rules": {}}
    for rule in FLAGS.rule:
        found, memory = measure(rule)
        report["rules"][rule] = {"seconds": found, "resident_bytes": memory}
        share = memory[FLAGS.dtype] / memory["float32"]
        print(f"{rule}: {FLAGS.dtype} rows take {share:.2f} of the DRAM of float32 rows")
        for operation, pairs in found.items():
            ratios = sorted(full / half for full, half in pairs)
            per_key = [statistics.median(s) / FLAGS.calls / FLAGS.batch * 1e9 for s in zip(*pairs)]
            low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
            print(
                f"  {operation}: float32 / {FLAGS.dtype} {statistics.median(ratios):.2f} (middle half {low:.2f} to "
                f"{high:.2f}); {per_key[0]:.0f} and {per_key[1]:.0f} ns a key"
            )
    print(f"{FLAGS.rows} rows of dim {FLAGS.dim}, load average before {load:.1f}")
    if FLAGS.json:
        with open(FLAGS.json, "w") as out:
            json.dump(report, out, indent=1)


if __name__ == "__main__":
    app.run(main)

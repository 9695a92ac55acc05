r"""Compares the hit rates of the default replacement with exact LRU, over Zipf exponents, cache sizes and kinds of drift.

    python3 configure.py bench
    python benchmarks/hit_rate.py

Runs benchmarks/hit_rate, one cell a process, and prints a table of "ours (points over LRU)". Below 64 Ki rows of DRAM a table's order
is exact LRU itself, so the smallest cache is measured on more keys. The part criteo has the ids of generated Criteo-like rows
(examples/criteo.py), 26 features of 2,048 rows a batch, in caches of 64 Ki rows, 96 Ki and 128 Ki.
"""

import os
import sys
import tempfile

from absl import app
from absl import flags

import driver

FLAGS = flags.FLAGS

ZIPF = (0.8, 1.05, 1.2)
CACHE = (1, 5, 10, 20)
DRIFT = ("none", "slow", "fast", "one-shot")


def run(*arguments):
    """The program's report of one cell."""
    return driver.output_of_program("benchmarks/hit_rate", *arguments)


def cell(zipf, cache, drift):
    size = (
        ["keys=6600000", "batch=32768", "warm=30", "batches=20"]
        if cache == 1
        else ["keys=1400000", "batch=16384", "warm=100", "batches=60"]
    )
    return run(f"zipf={zipf}", f"cache_percent={cache}", f"drift={drift}", *size)


def criteo():
    """Cells of a trace of ids of the examples' generated rows."""
    import numpy as np  # pylint: disable=import-outside-toplevel

    sys.path.insert(0, os.path.join(driver.ROOT, "examples"))
    import criteo as rows  # pylint: disable=import-outside-toplevel,import-error

    model, random, numbers = rows.ClickModel(), np.random.default_rng(1), {}
    with tempfile.NamedTemporaryFile(suffix=".keys") as file:
        for _ in range(260):
            _, _, cats = model.draw(2048, random)
            keys = [
                [
                    numbers.setdefault((column, value), len(numbers))
                    for column, value in enumerate(row)
                ]
                for row in cats.tolist()
            ]
            file.write(np.array(keys, np.int64).tobytes())
        file.flush()
        return [
            run(
                f"trace={file.name}",
                f"keys={len(numbers)}",
                f"cache_percent={65536 * 100 / len(numbers) * times}",
                "batch=53248",
                "warm=160",
                "batches=100",
            )
            for times in (1.01, 1.5, 2)
        ]


def report(name, cells):
    text = ", ".join(
        f"{c['cache_percent']:.3g} %: {c['table']:.1f} ({c['over_lru']:+.1f})" for c in cells
    )
    driver.note(name, hit_rates=text)


def measure_zipf(_):
    for zipf in ZIPF:
        for drift in DRIFT:
            report(f"{zipf}, {drift}", [cell(zipf, cache, drift) for cache in CACHE])


def measure_criteo(_):
    report("criteo", criteo())


def main(argv):
    driver.run(argv, {"zipf": measure_zipf, "criteo": measure_criteo})


if __name__ == "__main__":
    app.run(main)

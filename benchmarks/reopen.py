"""Opening a kept table of the engine: rows per second.

    .venv/bin/python benchmarks/reopen.py --rows=20000000 --path=/ssd

Each row has 128 bytes: dim 16 and a slot of as many elements. One process makes the table and ends; another opens it, --rounds times.
The files are dropped from the page cache before each open. All files are on the disk of --path. Prints a table, or with --json one
JSON object.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

from checkpoint import cold
from checkpoint import DIM
import numpy as np

from tf_multitier import engine

BLOCK = 1 << 20


def make(flags, path):
    """Makes the table, and prints the directory that it keeps."""
    with engine.Table(
        dim=DIM,
        slots=[("slot", DIM, 0.1)],
        storage_type=flags.storage_type,
        storage_path=path,
        storage_size=[flags.rows * 128 // 10] if "_" in flags.storage_type else (),
        keep=True,
    ) as table:
        for begin in range(0, flags.rows, BLOCK):
            keys = np.arange(begin, min(begin + BLOCK, flags.rows), dtype=np.int64)
            values = np.repeat(keys.astype(np.float32)[:, None], DIM, axis=1)
            table.upsert(keys, {"value": values, "slot": values})
        table.flush()
        print(table.path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--path", default=None, help="directory on the disk to measure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--storage_type", default="SSDHASH")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--make", default=None, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.make:
        make(flags, flags.make)
        return
    with tempfile.TemporaryDirectory(dir=flags.path) as path:
        command = [sys.executable, *sys.argv, "--make=" + path]
        kept = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        seconds = []
        for _ in range(flags.rounds):
            cold(kept)
            begin = time.perf_counter()
            table = engine.Table.open(kept)
            seconds.append(time.perf_counter() - begin)
            rows = len(table)
            table.close()
            if rows != flags.rows:
                raise RuntimeError(f"expected {flags.rows} rows, found {rows}")
    median = statistics.median(seconds)
    found = {
        "rows": flags.rows,
        "storage_type": flags.storage_type,
        "seconds": median,
        "rows_per_s": flags.rows / median,
    }
    if flags.json:
        print(json.dumps(found))
        return
    print(
        f"{flags.rows:,} rows, {flags.storage_type}: {median:.2f} s, {flags.rows / median:,.0f} rows/s"
    )


if __name__ == "__main__":
    main()

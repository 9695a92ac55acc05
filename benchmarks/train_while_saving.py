"""Training during a save: steps per second and the longest step, next to training without a save, in turns.

    .venv/bin/python benchmarks/train_while_saving.py --rows=2000000 --path=/ssd --storage_type=DRAM_SSDHASH

Each row has 128 bytes: dim 16 and an Adagrad slot. A step looks up --batch ids, uniform or with --alpha Zipf, and applies Adagrad. In each round the
program trains alone for --seconds, and then while another thread saves all rows. A tiered table has memory for a tenth of its rows.
Prints a table, or with --json one JSON object. The processor time of a step is that of the whole process, the save included; on a
busy machine it says more than the time. --trace also prints when each step during a save that took more than three medians began.
"""

import argparse
from concurrent import futures
import itertools
import json
import os
import shutil
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


def ids_of(rng, flags):
    """A batch of ids. Of Zipf ids, the most frequent ones are spread over the table."""
    if flags.alpha == 0:
        return rng.integers(0, flags.rows, flags.batch)
    ranks = np.empty(0, np.int64)
    while len(ranks) < flags.batch:
        drawn = rng.zipf(flags.alpha, flags.batch)
        ranks = np.concatenate([ranks, drawn[drawn <= flags.rows]])
    return ranks[: flags.batch] * 2654435761 % flags.rows


class Program:
    """A session with a variable whose rows are there, a train op and a Saver."""

    def __init__(self, flags, path):
        prefix = os.path.join(path, "source", "rows")
        os.makedirs(os.path.dirname(prefix))
        with checkpoint.Writer(prefix) as writer:
            writer.add_table("ev", Rows(flags.rows))
        tiered = "_" in flags.storage_type
        option = tf_multitier.EmbeddingVariableOption(
            storage_option=tf_multitier.StorageOption(
                flags.storage_type,
                os.path.join(path, "tiers"),
                storage_size=[flags.rows * 128 // 10] if tiered else None,
            )
        )
        ev = tf_multitier.get_embedding_variable("ev", DIM, ev_option=option)
        self.ids = v1.placeholder(tf.int64, [None])
        rows = tf.nn.embedding_lookup(ev, self.ids)
        loss = tf.reduce_sum(tf.square(rows - 1.0))
        self.train = v1.train.AdagradOptimizer(0.1).minimize(loss)
        self.saver = v1.train.Saver()
        self.session = v1.Session()
        self.session.run(v1.global_variables_initializer())
        self.session.run(ev.restore_from(prefix))
        rng = np.random.default_rng(1)
        self.batches = [ids_of(rng, flags) for _ in range(64)]
        self.target = os.path.join(path, "saved")

    def steps(self, goes_on=lambda: False, seconds_at_least=0.0):
        """Seconds of each step: until goes_on() is false and the time is over."""
        seconds, end = [], time.perf_counter() + seconds_at_least
        while goes_on() or time.perf_counter() < end:
            begin = time.perf_counter()
            self.session.run(self.train, {self.ids: self.batches[len(seconds) % 64]})
            seconds.append(time.perf_counter() - begin)
        return seconds

    def save(self):
        shutil.rmtree(self.target, ignore_errors=True)
        os.makedirs(self.target)
        with self.session.graph.as_default():  # a thread has a default graph of its own
            self.saver.save(
                self.session, os.path.join(self.target, "model"), write_meta_graph=False
            )


def measure(program, flags):
    """Of each round: the steps without a save and with one, and the save, in seconds; and processor seconds of a step."""
    rounds = []
    program.save()
    program.steps(seconds_at_least=flags.seconds)
    for _ in range(flags.rounds):
        used = [time.process_time()]
        alone = program.steps(seconds_at_least=flags.seconds)
        used.append(time.process_time())
        with futures.ThreadPoolExecutor(1) as pool:
            begin = time.perf_counter()
            saving = pool.submit(program.save)
            during = program.steps(lambda saving=saving: not saving.done())
            saving.result()  # raises what the save raised
        used.append(time.process_time())
        rounds.append(
            {
                "alone": alone,
                "during": during,
                "save": time.perf_counter() - begin,
                "cpu_alone": (used[1] - used[0]) / len(alone),
                "cpu_during": (used[2] - used[1]) / len(during),
            }
        )
    return rounds


def print_long_steps(rounds):
    """The steps during each save that took more than three medians: when they began, and their length in medians."""
    for number, found in enumerate(rounds):
        median = statistics.median(found["alone"])
        begins = itertools.accumulate(found["during"], initial=0.0)
        long = [
            f"{1e3 * begin:.0f} ms: {step / median:.1f}"
            for begin, step in zip(begins, found["during"], strict=False)
            if step > 3 * median
        ]
        print(f"round {number}: {', '.join(long) or 'none'}")


def summary(rounds):
    """What the targets are about."""
    alone = [s for r in rounds for s in r["alone"]]
    ratios = [
        (len(r["during"]) / sum(r["during"])) / (len(r["alone"]) / sum(r["alone"])) for r in rounds
    ]
    median = statistics.median(alone)
    return {
        "steps_per_s_alone": len(alone) / sum(alone),
        "throughput_ratio": statistics.median(ratios),
        "median_step_ms": 1e3 * median,
        "cpu_ms_of_a_step_alone": 1e3 * statistics.median(r["cpu_alone"] for r in rounds),
        "cpu_ms_of_a_step_during": 1e3 * statistics.median(r["cpu_during"] for r in rounds),
        "longest_step_alone_ratio": max(alone) / median,
        "longest_step_during_ratio": max(s for r in rounds for s in r["during"]) / median,
        "save_s": statistics.median(r["save"] for r in rounds),
        "steps_during": sum(len(r["during"]) for r in rounds),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--alpha", type=float, default=0.0, help="of Zipf ids, above 1; 0: uniform")
    parser.add_argument("--path", default=None, help="directory on the disk to save to")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--storage_type", default="DRAM")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trace", action="store_true", help="print the long steps of each save")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=flags.path) as path, tf.Graph().as_default():
        program = Program(flags, path)
        rounds = measure(program, flags)
        program.session.close()
    if flags.trace:
        print_long_steps(rounds)
    found = summary(rounds)
    found = {
        "rows": flags.rows,
        "batch": flags.batch,
        "alpha": flags.alpha,
        "storage_type": flags.storage_type,
        **found,
    }
    if flags.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(
            f"{name:26} {value:>12}"
            if isinstance(value, (int, str))
            else f"{name:26} {value:12.2f}"
        )


if __name__ == "__main__":
    main()

"""The work that every system in this folder is given, and how it is timed. NumPy and absl only.

A table of --rows rows of --dim floats, each with an Adagrad accumulator, all of them trained once beforehand. Then batches
of --batch ids, drawn uniformly (or Zipf-like, --alpha) from the rows there are, with repeats as they fall:

  feed     the ids go into the session and nothing is done with them: what both sides pay for being called
  lookup   the values of the ids; the result stays in TensorFlow
  train    lookup, loss = half the squared distance to a fixed target, gradient, one Adagrad step

A system is a dict from operation to a function of the batch's number. Static variables get row numbers as ids, hash tables a 64-bit
hash of them. All start from the same constant and do the same steps, so all must hold the same values afterwards: `agree` checks.
"""

import json
import os
import resource
import statistics
import sys
import time

from absl import flags
import numpy as np

FLAGS = flags.FLAGS
flags.DEFINE_integer("rows", 1_000_000, "Rows of the table.", lower_bound=1)
flags.DEFINE_integer("dim", 16, "Elements of a row's value.", lower_bound=1)
flags.DEFINE_integer("batch", 65_536, "Ids of one step.", lower_bound=1)
flags.DEFINE_float(
    "alpha",
    0.0,
    "0: ids are uniform; else the exponent of a bounded Zipf distribution.",
    lower_bound=0.0,
)
flags.DEFINE_integer("batches", 16, "Different batches, used in turn.", lower_bound=1)
flags.DEFINE_integer(
    "rounds", 15, "Rounds; each gives one ratio, and their median is reported.", lower_bound=1
)
flags.DEFINE_integer(
    "steps_per_round",
    8,
    "Steps of one system before the other's turn; their median counts.",
    lower_bound=1,
)
flags.DEFINE_integer("threads", 0, "Intra-op threads of TensorFlow; 0: its default.", lower_bound=0)
flags.DEFINE_bool(
    "processor_time", False, "Times of the process' processors, which other programs change less."
)
flags.DEFINE_float("learning_rate", 0.1, "Of Adagrad.")
flags.DEFINE_integer("seed", 1, "Of ids and targets.")

OPERATIONS = ("feed", "lookup", "train")
INITIAL_VALUE = 0.05
_MARK = "@benchmark "  # begins the lines of a worker's stdout that are meant for us


def load_before():
    """Load averages, for the results. Warns on stderr if the machine is busy. Call it before the work begins."""
    load = os.getloadavg()
    if load[0] > 0.3:
        print(
            f"the machine is busy (load average {load[0]:.2f}): a system that uses more cores than the other loses more by it",
            file=sys.stderr,
        )
    return load


def keys_of(ranks):
    """int64 keys, spread over 63 bits, no two alike, of row numbers below 2^63: a bijective mix (splitmix64's), halved."""
    x = np.asarray(ranks).astype(np.uint64) * np.uint64(2)
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).astype(np.int64)


def rank_batches():
    """Row numbers: int64 [batches, batch]."""
    random = np.random.default_rng(FLAGS.seed)
    shape = (FLAGS.batches, FLAGS.batch)
    if FLAGS.alpha == 0.0:
        return random.integers(0, FLAGS.rows, shape)
    # The inverse of the continuous distribution function of x^-alpha on [1, rows + 1), rounded down.
    u, limit, e = random.random(shape), FLAGS.rows + 1.0, 1.0 - FLAGS.alpha
    x = np.exp(u * np.log(limit)) if abs(e) < 1e-9 else (1.0 + u * (limit**e - 1.0)) ** (1.0 / e)
    return np.clip(x.astype(np.int64) - 1, 0, FLAGS.rows - 1)


def filling_batches():
    """Row numbers that cover every row, a batch at a time; the last one begins again from 0."""
    for begin in range(0, FLAGS.rows, FLAGS.batch):
        yield np.arange(begin, begin + FLAGS.batch) % FLAGS.rows


def targets():
    """The target values of a batch's rows: float32 [batch, dim]."""
    return (
        np.random.default_rng(FLAGS.seed + 1)
        .normal(0.0, 1.0, (FLAGS.batch, FLAGS.dim))
        .astype(np.float32)
    )


def sample_ranks():
    """A batch of row numbers at which systems are compared."""
    return np.arange(FLAGS.batch) * 7919 % FLAGS.rows


def agree(a, b):
    """The largest difference of two systems' values at sample_ranks(). ValueError if the values are not equal."""
    difference = float(np.max(np.abs(np.asarray(a) - np.asarray(b))))
    if not difference < 1e-3:
        raise ValueError(
            f"the systems hold different values after the same steps (largest difference {difference}): they did "
            "not do the same work"
        )
    return difference


def time_steps(step, first, n):
    """Median seconds of step(first) ... step(first + n - 1)."""
    clock = time.process_time if FLAGS.processor_time else time.perf_counter
    seconds = []
    for i in range(first, first + n):
        begin = clock()
        step(i)
        seconds.append(clock() - begin)
    return statistics.median(seconds)


def interleave(systems):
    """Times systems in turns, A B A B: {operation: {system: [seconds of each round]}}.

    Args:
      systems: {name: function of (operation, first, n) giving seconds a step}.
    """
    seconds = {operation: {name: [] for name in systems} for operation in OPERATIONS}
    first = 0
    for round_number in range(-1, FLAGS.rounds):  # the first is for warming up
        for operation in OPERATIONS:
            names = (
                list(systems) if round_number % 2 else list(systems)[::-1]
            )  # alternate the order
            for name in names:
                took = systems[name](operation, first, FLAGS.steps_per_round)
                if round_number >= 0:
                    seconds[operation][name].append(took)
        first += FLAGS.steps_per_round
    return seconds


def summarise(seconds, ours, other):
    """One dict per operation: medians of both sides, and of the rounds' speed ratios with the middle half of them."""
    rows = []
    for operation, by_system in seconds.items():
        a, b = np.array(by_system[ours]), np.array(by_system[other])
        low, ratio, high = np.percentile(b / a, [25, 50, 75])
        rows.append(
            {
                "operation": operation,
                "ours": ours,
                "other": other,
                "ours_ms": round(1e3 * float(np.median(a)), 3),
                "other_ms": round(1e3 * float(np.median(b)), 3),
                "ours_ns_per_key": round(1e9 * float(np.median(a)) / FLAGS.batch, 1),
                "other_ns_per_key": round(1e9 * float(np.median(b)) / FLAGS.batch, 1),
                "speed_ratio": round(float(ratio), 2),
                "speed_ratio_quartiles": [round(float(low), 2), round(float(high), 2)],
            }
        )
    return rows


def parameters():
    """The flags that define the workload."""
    names = (
        "rows",
        "dim",
        "batch",
        "alpha",
        "batches",
        "rounds",
        "steps_per_round",
        "threads",
        "learning_rate",
        "seed",
    )
    return {name: FLAGS[name].value for name in names}


def print_table(rows):
    """The rows of `summarise`, for people."""
    ours, other = rows[0]["ours"], rows[0]["other"]
    print(
        f"{'operation':<10} {ours + ' ms':>16} {other + ' ms':>16} {'ns/key':>8} {'ns/key':>8}   {ours} is faster by"
    )
    for row in rows:
        low, high = row["speed_ratio_quartiles"]
        print(
            f"{row['operation']:<10} {row['ours_ms']:>16.3f} {row['other_ms']:>16.3f} {row['ours_ns_per_key']:>8.1f} "
            f"{row['other_ns_per_key']:>8.1f}   {row['speed_ratio']:.2f} x  (middle half {low:.2f} to {high:.2f})"
        )


# ---- a system in its own process, controlled by compare.py


def serve(system, sample, about):
    """Answers requests from stdin until it ends: {"operation", "first", "n"} -> {"seconds"}; {"operation": "sample"} -> values.

    Args:
      system: {operation: function of the batch's number}.
      sample: function giving float32 [batch, dim], the values at sample_ranks().
      about: dict for the report: versions.
    """
    _say(dict(about, ready=True))
    for line in sys.stdin:
        request = json.loads(line)
        if request["operation"] == "sample":
            _say(
                {
                    "values": np.asarray(sample()).astype(float).round(7).tolist(),
                    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                }
            )
        else:
            _say(
                {
                    "seconds": time_steps(
                        system[request["operation"]], request["first"], request["n"]
                    )
                }
            )


def _say(message):
    print(_MARK + json.dumps(message), flush=True)


class Worker:
    """The other side of `serve`: a process that was started with these arguments."""

    def __init__(self, process, name):
        self._process = process
        self._name = name
        self.about = self._answer()

    def time_steps(self, operation, first, n):
        """Median seconds of n steps in the worker, the others idle meanwhile."""
        return self._ask({"operation": operation, "first": first, "n": n})["seconds"]

    def sample(self):
        """{"values": [batch, dim], "peak_mib"}."""
        return self._ask({"operation": "sample"})

    def close(self):
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        for line in self._process.stdout:
            if line.startswith(_MARK):
                return json.loads(line[len(_MARK) :])
        raise RuntimeError(
            f"{self._name} ended with status {self._process.wait()}; its messages are above"
        )

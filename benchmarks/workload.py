"""The work of tensorflow_ops.py, and the processes of systems that need one of their own. NumPy and absl only.

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
import subprocess
import sys

from absl import flags
import numpy as np

import driver

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
flags.DEFINE_integer("threads", 0, "Intra-op threads of TensorFlow; 0: its default.", lower_bound=0)
flags.DEFINE_float("learning_rate", 0.1, "Of Adagrad.")
flags.DEFINE_integer("seed", 1, "Of ids and targets.")

OPERATIONS = ("feed", "lookup", "train")
INITIAL_VALUE = 0.05
_MARK = "@benchmark "  # begins the lines of a worker's stdout that are meant for us


def keys_of(ranks):
    """int64 keys, spread over 63 bits, no two alike, of row numbers below 2^63: a bijective mix (splitmix64's), halved."""
    x = np.asarray(ranks).astype(np.uint64) * np.uint64(2)
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).astype(np.int64)


def drawn(shape, rows):
    """Row numbers below `rows`: uniform, or Zipf-like by --alpha."""
    u = np.random.default_rng(FLAGS.seed).random(shape)
    if FLAGS.alpha == 0.0:
        return (u * rows).astype(np.int64)
    # The inverse of the continuous distribution function of x^-alpha on [1, rows + 1), rounded down.
    limit, e = rows + 1.0, 1.0 - FLAGS.alpha
    x = np.exp(u * np.log(limit)) if abs(e) < 1e-9 else (1.0 + u * (limit**e - 1.0)) ** (1.0 / e)
    return np.clip(x.astype(np.int64) - 1, 0, rows - 1)


def rank_batches():
    """Row numbers: int64 [batches, batch]."""
    return drawn((FLAGS.batches, FLAGS.batch), FLAGS.rows)


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


def parameters():
    """The flags that define the workload."""
    names = ("rows", "dim", "batch", "alpha", "batches", "threads", "learning_rate", "seed")
    return {name: FLAGS[name].value for name in names}


# ---- a system in its own process, which another Python may run


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
                    "seconds": driver.time_steps(
                        system[request["operation"]], request["first"], request["n"]
                    )
                }
            )


def _say(message):
    print(_MARK + json.dumps(message), flush=True)


class Worker:
    """The other side of `serve`: a process that runs a script of this folder with the parameters of the work.

    Args:
      name: of the system.
      python: the interpreter.
      arguments: the script and its arguments.
      parameters: the work's.
    """

    def __init__(self, name, python, *arguments, parameters):
        script, *others = arguments
        command = [python, os.path.join(os.path.dirname(os.path.abspath(__file__)), script)]
        command += [*others, f"--processor_time={FLAGS.processor_time}"]
        command += [f"--{flag}={value}" for flag, value in parameters.items()]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._name = name
        self.about = {name: its for name, its in self._answer().items() if name != "ready"}

    def system(self, operation):
        """A system of `driver`: median seconds of steps in the worker."""
        return lambda first, n: self._ask({"operation": operation, "first": first, "n": n})[
            "seconds"
        ]

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

r"""Many empty embedding variables in one graph: the memory of one, and the time to build, initialise and use them.

    python benchmarks/many_tables.py --tables=1000

Each kind is measured in a process of its own, from its resident set after free heap memory was given back:

  engine           empty tables of the engine (tf_multitier.engine), no TensorFlow: what a table itself costs
  tf_multitier     embedding variables: graph, Session, tables, then one lookup and one Adagrad step on each
  tensorflow       static variables of one row, the same: what graph and Session cost without us
"""

import ctypes
import json
import os
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported: fewer notices

from absl import app
from absl import flags
import numpy as np

FLAGS = flags.FLAGS
flags.DEFINE_integer("tables", 1000, "Tables in one graph.", lower_bound=1)
flags.DEFINE_integer("dim", 16, "Elements of a row's value.", lower_bound=1)
flags.DEFINE_string("json", None, "File to write the results to.")
flags.DEFINE_enum(
    "kind", None, ["engine", "tf_multitier", "tensorflow"], "Measure this kind here and print JSON."
)


class Stages:
    """Seconds and growth of the resident set of each stage of a run."""

    def __init__(self):
        self.results = {}
        self._heap = ctypes.CDLL(None)
        self._mark()

    def _mark(self):
        self._heap.malloc_trim(0)
        with open("/proc/self/statm") as statm:
            self._bytes = int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        self._time = time.perf_counter()

    def done(self, name):
        """Ends a stage and begins the next."""
        seconds, before = time.perf_counter() - self._time, self._bytes
        self._mark()
        self.results[name] = {
            "seconds": round(seconds, 3),
            "kib_per_table": round((self._bytes - before) / 1024 / FLAGS.tables, 2),
        }


def measure_engine():
    """Empty tables, then one row in each."""
    from tf_multitier import engine

    engine.Table(dim=FLAGS.dim)  # allocates what the first table of a process needs
    keys, grads, hyper = np.array([1]), np.ones((1, FLAGS.dim), np.float32), {"learning_rate": 0.1}
    stages = Stages()
    tables = [
        engine.Table(dim=FLAGS.dim, initializer="uniform", a=-0.1, b=0.1, seed=i)
        for i in range(FLAGS.tables)
    ]
    stages.done("make")
    for table in tables:
        table.lookup(keys)
    stages.done("first lookup")
    for table in tables:
        table.apply("adagrad", keys, grads, hyper=hyper)
    stages.done("first row")
    return stages.results


def measure_tensorflow(kind):
    """Graph, initialisation, steps."""
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    if kind == "tf_multitier":
        import tf_multitier

        make = lambda name: tf_multitier.get_embedding_variable(name, embedding_dim=FLAGS.dim)
    else:
        make = lambda name: tf.get_variable(name, [1, FLAGS.dim], use_resource=True)
    session = tf.Session()
    session.run(tf.constant(0))
    stages = Stages()
    variables = [make(f"table_{i}") for i in range(FLAGS.tables)]
    stages.done("build variables")
    initializer = tf.variables_initializer(variables)
    session.run(initializer)
    stages.done("initialise")
    session.run(initializer)
    stages.done("initialise again")
    ids = tf.constant([0], tf.int64)
    values = [tf.nn.embedding_lookup(variable, ids) for variable in variables]
    stages.done("build lookups")
    session.run([value.op for value in values])
    stages.done("first lookup")
    session.run([value.op for value in values])
    stages.done("second lookup")
    train = tf.train.AdagradOptimizer(0.1).minimize(
        tf.add_n([tf.nn.l2_loss(value - 1.0) for value in values])
    )
    slots = [v for v in tf.global_variables() if v not in variables]
    stages.done("build training")
    session.run(
        [v.initializer for v in (variables if kind == "tf_multitier" else variables + slots)]
    )
    stages.done("initialise with slots")
    session.run(train)
    stages.done("first step")
    session.run(train)
    stages.done("second step")
    return stages.results


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    if FLAGS.kind is not None:
        print(
            json.dumps(
                measure_engine() if FLAGS.kind == "engine" else measure_tensorflow(FLAGS.kind)
            )
        )
        return
    results = {}
    for kind in ("engine", "tf_multitier", "tensorflow"):
        command = [
            sys.executable,
            os.path.abspath(__file__),
            f"--kind={kind}",
            f"--tables={FLAGS.tables}",
            f"--dim={FLAGS.dim}",
        ]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        results[kind] = json.loads(output.splitlines()[-1])
    print(f"{FLAGS.tables} tables of dim {FLAGS.dim}")
    print(f"{'kind':<14} {'stage':<22} {'seconds':>8} {'KiB a table':>12}")
    for kind, stages in results.items():
        for stage, result in stages.items():
            print(
                f"{kind:<14} {stage:<22} {result['seconds']:>8.3f} {result['kib_per_table']:>12.2f}"
            )
    if FLAGS.json:
        with open(FLAGS.json, "w") as out:
            json.dump({"tables": FLAGS.tables, "dim": FLAGS.dim, "results": results}, out, indent=1)


if __name__ == "__main__":
    app.run(main)

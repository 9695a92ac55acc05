r"""Tables of the engine, by NumPy, each in turns with what it is compared with; and the memory and time of many tables.

    .venv/bin/python benchmarks/engine_tables.py --parts=scan,below --rounds=7
    .venv/bin/python benchmarks/engine_tables.py --parts=values --dtype=bfloat16 --rule=adagrad --rows=2000000
    .venv/bin/python benchmarks/engine_tables.py --parts=upserts --rows=10000000 --dim=16 --path=/ssd

Parts:

  scan     of a table in DRAM, of 1 % of its rows by version, and a copy of as many bytes (numpy.copyto)
  below    of 1 % of the rows by version of a table with SSDHASH, and of all of them
  upsert   of new keys, and an SGD update that makes the same number of new keys
  score    lookups and updates of a table whose rows are mostly below DRAM: CacheStrategy.SCORE and LRU
  values   lookups, and updates by --rule, of rows of --dtype and of float32
  upserts  of --rows new keys through --dram_mib of DRAM into SSDHASH: seconds, and memory and files, which fail the program where
           they grow beyond what `tf_multitier.memory` computed
  many     --tables empty tables in one graph: seconds and memory to build, initialise and use them. Each kind is a process: tables of
           the engine, embedding variables, and TensorFlow's variables of one row
"""

import ctypes
import functools
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported: fewer notices

from absl import app
from absl import flags
import numpy as np

import driver
import tf_multitier
from tf_multitier import engine

FLAGS = flags.FLAGS
flags.DEFINE_integer("rows", 1_000_000, "Rows of a table in DRAM, and of `upserts`.", lower_bound=1)
flags.DEFINE_integer("rows_below", 200_000, "Rows of a table with SSDHASH.", lower_bound=1000)
flags.DEFINE_integer("dim", 64, "Elements of a value.", lower_bound=1)
flags.DEFINE_integer("batch", 8192, "Keys of a call of `values`.", lower_bound=1)
flags.DEFINE_enum("dtype", "bfloat16", ["bfloat16", "float16"], "Of `values`.")
flags.DEFINE_bool("stochastic_rounding", False, "Whether updates of `values` round so.")
flags.DEFINE_multi_enum("rule", ["sgd", "adagrad"], ["sgd", "adagrad"], "Update rules of `values`.")
flags.DEFINE_integer("dram_mib", 64, "MiB of rows in DRAM of `upserts`.", lower_bound=1)
flags.DEFINE_integer("tables", 1000, "Tables of `many`.", lower_bound=1)

_HYPER = {"learning_rate": 0.1}
_FILL = 65536
_MIB = 1 << 20


def new_table(**options):
    return engine.Table(FLAGS.dim, "uniform", -0.1, 0.1, **options)


def train(table, keys, step=-1, rule="sgd"):
    grads = np.full((len(keys), FLAGS.dim), 1e-3, np.float32)
    table.apply(rule, keys, grads, hyper=_HYPER, global_step=step)


def filled(rows, **options):
    """A table with keys 0 to rows - 1 at version 1, of which 1 %, at random, were trained again at version 2."""
    table = new_table(**options)
    for first in range(0, rows, _FILL):
        train(table, np.arange(first, min(rows, first + _FILL)), 1)
    train(table, np.random.default_rng(1).choice(rows, rows // 100, replace=False), 2)
    table.drain()
    return table


def scan(table, min_version=None):
    cursor, done = 0, False
    while not done:
        _, cursor = table.scan(cursor, columns=["value"], min_version=min_version)
        done = cursor == 0


def compare(part, calls, wanted=None):
    """Ratios of all others to the first. calls: {name: function}."""
    systems = {name: driver.whole(lambda _, call=call: call()) for name, call in calls.items()}
    seconds = driver.turns(systems, 1)
    first, *others = calls
    for name in others:
        driver.ratio(part, seconds, name, first, wanted)


# ---- scans and upserts


def measure_scan(unused_path):
    table, source = filled(FLAGS.rows), np.ones((FLAGS.rows, FLAGS.dim), np.float32)
    target = np.zeros_like(source)
    calls = {
        "full scan": lambda: scan(table),
        "1 % by version": lambda: scan(table, 2),
        "copy of the bytes": lambda: np.copyto(target, source),
    }
    compare("scan", calls)


def measure_below(path):
    table = filled(FLAGS.rows_below, storage_type="SSDHASH", storage_path=path)
    calls = {"full scan": lambda: scan(table), "1 % by version": lambda: scan(table, 2)}
    compare("below", calls, "at most 0.05")


def measure_upsert(unused_path):
    rows = min(FLAGS.rows, 16 * _FILL)
    order = np.random.default_rng(2).permutation(rows)
    values = np.full((_FILL, FLAGS.dim), 1e-3, np.float32)

    def make(write):
        table = new_table()
        for first in range(0, rows, _FILL):
            write(table, order[first : first + _FILL])

    upsert = lambda table, keys: table.upsert(keys, {"value": values[: len(keys)]})
    compare("upsert", {"updates": lambda: make(train), "upserts": lambda: make(upsert)})


def measure_score(path):
    size = [FLAGS.rows_below // 4 * FLAGS.dim * 4]
    storage = dict(storage_type="DRAM_SSDHASH", storage_path=path, storage_size=size)
    tables = {
        name: filled(FLAGS.rows_below, **storage, cache_strategy=name, name=name)
        for name in ("LRU", "SCORE")
    }
    memory = {n: t.stats()["tiers"][0]["resident_bytes"] for n, t in tables.items()}
    steps, rng = dict.fromkeys(tables, 2), np.random.default_rng(3)
    batches = [rng.zipf(1.2, 4096) % FLAGS.rows_below for _ in range(20)]

    def work(strategy):
        for keys in batches:
            steps[strategy] += 1
            tables[strategy].lookup(keys)
            train(tables[strategy], keys, steps[strategy])

    compare("score", {strategy: functools.partial(work, strategy) for strategy in tables})
    driver.note("score", memory_of_LRU=memory["SCORE"] / memory["LRU"])


def measure_values(unused_path):
    rng = np.random.default_rng(1)
    batches = rng.integers(0, FLAGS.rows, (16, FLAGS.batch))
    types = ("float32", FLAGS.dtype)
    for rule in FLAGS.rule:
        tables = {}
        for dtype in types:
            rounds = FLAGS.stochastic_rounding and dtype != "float32"
            table = tables[dtype] = new_table(value_dtype=dtype, stochastic_rounding=rounds)
            for first in range(0, FLAGS.rows, _FILL):
                train(table, np.arange(first, min(FLAGS.rows, first + _FILL)), rule=rule)
        operations = {
            "lookup": lambda table, keys: table.lookup(keys, output_dtype="float32"),
            rule: functools.partial(train, rule=rule),
        }
        for name, call in operations.items():
            systems = {
                dtype: driver.each(lambda i, t=table, call=call: call(t, batches[i % 16]))
                for dtype, table in tables.items()
            }
            driver.ratio(name, driver.turns(systems), *types)
        memory = [tables[dtype].stats()["tiers"][0]["resident_bytes"] for dtype in types]
        driver.note(rule, memory_of_float32=memory[1] / memory[0])


# ---- upserts into SSDHASH, and their memory


def anonymous_bytes():
    """Resident memory of the process without the page cache."""
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def measure_upserts(path):
    size = [FLAGS.dram_mib * _MIB]
    storage = tf_multitier.StorageOption("DRAM_SSDHASH", path, size)
    bound = tf_multitier.memory(FLAGS.rows, FLAGS.dim, None, storage, batch_keys=_FILL)
    values = np.random.default_rng(1).standard_normal((_FILL, FLAGS.dim)).astype(np.float32)
    before = most = anonymous_bytes()
    table = engine.Table(
        FLAGS.dim, storage_type="DRAM_SSDHASH", storage_path=path, storage_size=size
    )
    begin, processor = time.perf_counter(), time.process_time()
    for number, first in enumerate(range(0, FLAGS.rows, _FILL)):
        keys = np.arange(first, min(FLAGS.rows, first + _FILL))
        table.upsert(keys, {"value": values[: len(keys)]})
        if number % 4 == 0:
            most = max(most, anonymous_bytes())
    table.drain()
    taken, processor = time.perf_counter() - begin, time.process_time() - processor
    grown, files = max(most, anonymous_bytes()) - before, driver.bytes_of_files(path)
    driver.note("upserts", seconds=taken, processor_seconds=processor)
    driver.note("memory", MiB=grown / _MIB, computed_MiB=bound.memory_bytes / _MIB)
    driver.note("files", MiB=files / _MIB, computed_MiB=bound.disk_bytes / _MIB)
    sample = np.random.default_rng(2).integers(0, FLAGS.rows, 20000)
    np.testing.assert_array_equal(table.lookup(sample), values[sample % _FILL])
    assert grown <= bound.memory_bytes and files <= bound.disk_bytes


# ---- many tables


class Stages:
    """Seconds of each stage of a run, and growth of the resident set after free heap memory was given back."""

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
        kib = (self._bytes - before) / 1024 / FLAGS.tables
        self.results[name] = {"seconds": round(seconds, 3), "KiB_a_table": round(kib, 2)}


def many_of_engine():
    """Empty tables, then one row in each."""
    engine.Table(dim=16)  # allocates what the first table of a process needs
    keys, grads = np.array([1]), np.ones((1, 16), np.float32)
    stages = Stages()
    tables = [engine.Table(16, "uniform", -0.1, 0.1, seed=i) for i in range(FLAGS.tables)]
    stages.done("make")
    for table in tables:
        table.lookup(keys)
    stages.done("first lookup")
    for table in tables:
        table.apply("adagrad", keys, grads, hyper=_HYPER)
    stages.done("first row")
    return stages.results


def many_of_tensorflow(kind):
    """Graph, initialisation, steps."""
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    if kind == "tf_multitier":
        make = lambda name: tf_multitier.get_embedding_variable(name, embedding_dim=16)
    else:
        make = lambda name: tf.get_variable(name, [1, 16], use_resource=True)
    session = tf.Session()
    session.run(tf.constant(0))
    stages = Stages()
    variables = [make(f"table_{i}") for i in range(FLAGS.tables)]
    stages.done("build variables")
    initializer = tf.variables_initializer(variables)
    for stage in ("initialise", "initialise again"):
        session.run(initializer)
        stages.done(stage)
    ids = tf.constant([0], tf.int64)
    values = [tf.nn.embedding_lookup(variable, ids) for variable in variables]
    stages.done("build lookups")
    for stage in ("first lookup", "second lookup"):
        session.run([value.op for value in values])
        stages.done(stage)
    loss = tf.add_n([tf.nn.l2_loss(value - 1.0) for value in values])
    train_op = tf.train.AdagradOptimizer(0.1).minimize(loss)
    slots = [v for v in tf.global_variables() if v not in variables]
    stages.done("build training")
    its = variables if kind == "tf_multitier" else variables + slots
    session.run([v.initializer for v in its])
    stages.done("initialise with slots")
    for stage in ("first step", "second step"):
        session.run(train_op)
        stages.done(stage)
    return stages.results


def measure_many(unused_path):
    found = {"engine": driver.in_process(many_of_engine)}
    for kind in ("tf_multitier", "tensorflow"):
        found[kind] = driver.in_process(many_of_tensorflow, kind)
    for kind, stages in found.items():
        for stage, numbers in stages.items():
            driver.note(f"{kind}, {stage}".ljust(36), **numbers)


def main(argv):
    parts = ("scan", "below", "upsert", "score", "values", "upserts", "many")
    driver.run(argv, {part: globals()[f"measure_{part}"] for part in parts})


if __name__ == "__main__":
    app.run(main)

r"""Compares the embedding layer of a click model: grouped lookups, stock TensorFlow, FBGEMM and TFRA tables, in turns.

    python benchmarks/grouped.py --fbgemm_python=fbgemm/bin/python --tfra_python=tfra/bin/python
    python benchmarks/grouped.py --batch=512 --systems=grouped,stock --features=50
    python benchmarks/grouped.py --alpha=1.05 --batch=2048 --model=dcnv2

Each system is a process. In each round each in turn does a few steps while the others wait; a round gives one ratio a peer. See
grouped_workload.py for the work and docs/benchmarks.md for numbers.
"""

import json
import os
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported: fewer notices

from absl import app
from absl import flags
import numpy as np

import grouped_workload
import workload

FLAGS = flags.FLAGS
flags.DEFINE_enum(
    "model",
    "layer",
    ["layer", "dcnv2"],
    "The embedding layer alone, or a whole model (systems of this Python).",
)
flags.DEFINE_string(
    "fbgemm_python", None, "Python with torch and fbgemm-gpu-cpu; none: without that peer."
)
flags.DEFINE_string("tfra_python", None, "Python with TFRA; none: without that peer.")
flags.DEFINE_list(
    "systems",
    ["grouped", "stock"],
    "Of this Python: grouped, single (a lookup a feature), stock, tiered.",
)
flags.DEFINE_string("serve", None, "Be the worker that is this system.")
flags.DEFINE_string(
    "storage_path", None, "Where `tiered` (DRAM_SSDHASH, all rows in DRAM) keeps its files."
)
flags.DEFINE_string("json", None, "File to write parameters, versions, raw seconds and summary to.")

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def dcnv2(tf, embedded):
    """DCNv2 in its parallel form over embeddings [batch, any] and 13 numbers: (log odds [batch, 1], loss)."""
    random = np.random.default_rng(FLAGS.seed)
    numbers = tf.constant(random.normal(size=(FLAGS.batch, 13)).astype(np.float32))
    clicks = tf.constant(random.integers(0, 2, (FLAGS.batch, 1)).astype(np.float32))

    def dense(inputs, units, name):
        kernel = tf.get_variable(
            f"{name}/kernel",
            [inputs.shape[1], units],
            initializer=tf.glorot_uniform_initializer(seed=1),
        )
        bias = tf.get_variable(f"{name}/bias", [units], initializer=tf.zeros_initializer())
        return tf.nn.bias_add(tf.matmul(inputs, kernel), bias)

    x0 = tf.concat([embedded, numbers], 1)
    cross, deep = x0, x0
    for layer in range(2):
        cross = x0 * dense(cross, x0.shape[1], f"cross_{layer}") + cross
    for layer, units in enumerate([128, 64]):
        deep = tf.nn.relu(dense(deep, units, f"deep_{layer}"))
    log_odds = dense(tf.concat([cross, deep], 1), 1, "log_odds")
    return log_odds, tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=clicks, logits=log_odds)
    )


def serve(kind):
    """The systems of this Python."""
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    placeholder, sparse = grouped_workload.sparse_ids(tf)
    start = tf.constant_initializer(workload.INITIAL_VALUE)
    ids = grouped_workload.batches()
    if kind == "stock":
        # Reference variables, the default of v1: embedding_lookup_sparse reads a resource variable whole, which after the first
        # sparse update is a copy of the table each time.
        tables = [
            tf.get_variable(
                f"t{i}", [FLAGS.vocabulary, FLAGS.dim], initializer=start, use_resource=False
            )
            for i in range(FLAGS.features)
        ]
        if (
            FLAGS.model == "dcnv2"
        ):  # a hash bucket an id, by the cheapest hash there is: the ids are well mixed
            ids = grouped_workload.keys(ids)
            sparse = [
                tf.SparseTensor(
                    s.indices, tf.math.floormod(s.values, FLAGS.vocabulary), s.dense_shape
                )
                for s in sparse
            ]
    else:
        import tf_multitier

        option = None
        if kind == "tiered":
            option = tf_multitier.EmbeddingVariableOption(
                storage_option=tf_multitier.StorageOption(
                    tf_multitier.StorageType.DRAM_SSDHASH, FLAGS.storage_path, [1 << 30]
                )
            )
        tables = [
            tf_multitier.get_embedding_variable(
                f"t{i}", FLAGS.dim, initializer=start, ev_option=option
            )
            for i in range(FLAGS.features)
        ]
        ids = grouped_workload.keys(ids)
    if kind in ("stock", "single"):
        out = tf.concat(
            [
                tf.nn.embedding_lookup_sparse(t, s, None, combiner="sum")
                for t, s in zip(tables, sparse)
            ],
            1,
        )
    else:
        out = tf_multitier.nn.group_embedding_lookup_sparse(tables, sparse, "sum", concat=True)
    if FLAGS.model == "dcnv2":
        out, loss = dcnv2(tf, out)
    else:
        loss = tf.reduce_mean(tf.square(out))
    train = tf.train.AdagradOptimizer(FLAGS.learning_rate).minimize(loss)
    grouped_workload.serve(tf, out, placeholder, train, ids, {"tensorflow": tf.__version__})


def start(name, python, script, *arguments):
    """A Worker of that script, with the parameters of the work."""
    command = [python, os.path.join(_FOLDER, script), *arguments]
    command += [f"--{flag}={value}" for flag, value in grouped_workload.parameters().items()]
    return workload.Worker(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True), name
    )


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    if FLAGS.serve:
        return serve(FLAGS.serve)
    load = workload.load_before()
    if FLAGS.model != "layer" and (FLAGS.fbgemm_python or FLAGS.tfra_python):
        raise app.UsageError(
            f"--model={FLAGS.model} is for systems of this Python, without --fbgemm_python and --tfra_python"
        )
    extra = [f"--model={FLAGS.model}"] + (
        [f"--storage_path={FLAGS.storage_path}"] if FLAGS.storage_path else []
    )
    workers = {
        kind: start(kind, sys.executable, "grouped.py", f"--serve={kind}", *extra)
        for kind in FLAGS.systems
    }
    if FLAGS.fbgemm_python:
        workers["fbgemm"] = start("fbgemm", FLAGS.fbgemm_python, "peer_fbgemm_grouped.py")
    if FLAGS.tfra_python:
        workers["tfra"] = start("tfra", FLAGS.tfra_python, "peer_tfra_grouped.py")
    ours = FLAGS.systems[0]
    seconds = {
        operation: {name: [] for name in workers} for operation in grouped_workload.OPERATIONS
    }
    first = 0
    for number in range(-1, FLAGS.rounds):  # the first is for warming up
        for operation in grouped_workload.OPERATIONS:
            names = list(workers) if number % 2 else list(workers)[::-1]
            for name in names:
                took = workers[name].time_steps(operation, first, FLAGS.steps_per_round)
                if number >= 0:
                    seconds[operation][name].append(took)
        first += FLAGS.steps_per_round
    samples = {name: worker.sample() for name, worker in workers.items()}
    for worker in workers.values():
        worker.close()
    for name, given in (("fbgemm", FLAGS.fbgemm_python), ("tfra", FLAGS.tfra_python)):
        if not given:
            print(f"without {name}: no --{name}_python")
    print(grouped_workload.parameters())
    print(
        f"{'operation':<9} {'system':<10} {'ms':>9} {'examples/s':>12} {'peak MiB':>9}   {ours} is faster by"
    )
    summary = []
    for operation, by_system in seconds.items():
        for name, took in by_system.items():
            low, ratio, high = np.percentile(
                np.array(took) / np.array(by_system[ours]), [25, 50, 75]
            )
            median = float(np.median(took))
            # Hash buckets collide: whole models need not agree.
            difference = (
                workload.agree(samples[ours]["values"], samples[name]["values"])
                if FLAGS.model == "layer"
                else None
            )
            summary.append(
                {
                    "operation": operation,
                    "system": name,
                    "ms": 1e3 * median,
                    "examples_per_second": FLAGS.batch / median,
                    "speed_ratio": ratio,
                    "speed_ratio_quartiles": [low, high],
                    "difference": difference,
                }
            )
            print(
                f"{operation:<9} {name:<10} {1e3 * median:>9.3f} {FLAGS.batch / median:>12.0f} {samples[name]['peak_mib']:>9}   "
                f"{ratio:.2f} x  (middle half {low:.2f} to {high:.2f}"
                + (")" if difference is None else f"; values differ by {difference:.1g})")
            )
    if FLAGS.json:
        with open(FLAGS.json, "w") as out:
            json.dump(
                {
                    "about": {name: worker.about for name, worker in workers.items()},
                    "summary": summary,
                    "seconds": seconds,
                    "parameters": grouped_workload.parameters(),
                    "load_average_before": load,
                },
                out,
                indent=1,
            )


if __name__ == "__main__":
    app.run(main)

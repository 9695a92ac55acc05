r"""Compares the embedding layer of a click model: grouped lookups, stock TensorFlow, FBGEMM and TFRA tables, in turns.

    python benchmarks/grouped.py --fbgemm_python=fbgemm/bin/python --tfra_python=tfra/bin/python
    python benchmarks/grouped.py --batch=512 --systems=grouped,stock --features=50
    python benchmarks/grouped.py --alpha=1.05 --batch=2048 --model=dcnv2

Each system is a process. In each round each in turn does a few steps while the others wait; a round gives one ratio a peer. See
grouped_workload.py for the work and docs/benchmarks.md for numbers.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported: fewer notices

from absl import app
from absl import flags
import numpy as np

import driver
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


def start(name, python, *arguments):
    """A Worker of a script, with the parameters of the work."""
    return workload.Worker(name, python, *arguments, parameters=grouped_workload.parameters())


def measure(_):
    own = {kind: (sys.executable, "grouped.py", f"--serve={kind}") for kind in FLAGS.systems}
    extra = [f"--model={FLAGS.model}"] + (
        [f"--storage_path={FLAGS.storage_path}"] if FLAGS.storage_path else []
    )
    workers = {kind: start(kind, *command, *extra) for kind, command in own.items()}
    for name in ("fbgemm", "tfra"):
        if python := FLAGS[f"{name}_python"].value:
            workers[name] = start(name, python, "peers.py", f"--peer={name}_grouped")
    ours, *others = workers
    for operation in grouped_workload.OPERATIONS:
        systems = {name: worker.system(operation) for name, worker in workers.items()}
        seconds = driver.turns(systems)
        for name in others:
            driver.ratio(operation, seconds, name, ours)
    samples = {name: worker.sample() for name, worker in workers.items()}
    for name, worker in workers.items():
        worker.close()
        numbers = {"peak_MiB": samples[name]["peak_mib"], **worker.about}
        if FLAGS.model == "layer":  # hash buckets collide: whole models need not agree
            values = [samples[its]["values"] for its in (ours, name)]
            numbers["difference"] = workload.agree(*values)
        driver.note(name, **numbers)


def main(argv):
    if FLAGS.serve:
        return serve(FLAGS.serve)
    if FLAGS.model != "layer" and (FLAGS.fbgemm_python or FLAGS.tfra_python):
        raise app.UsageError(
            f"--model={FLAGS.model} is for systems of this Python, without --fbgemm_python and --tfra_python"
        )
    return driver.run(argv, {FLAGS.model: measure})


if __name__ == "__main__":
    app.run(main)

r"""Compares lookup and Adagrad step of an embedding variable with a stock TensorFlow variable, in one process and one Session.

    python benchmarks/tensorflow_ops.py
    python benchmarks/tensorflow_ops.py --alpha=1.05 --json=run.json

Stock TensorFlow: `tf.nn.embedding_lookup` on a [rows, dim] resource variable (a gather: ids are row numbers, nothing is hashed), and
`tf.compat.v1.train.AdagradOptimizer`. Ours: the same two calls on an embedding variable. See workload.py for the work and
docs/benchmarks.md for numbers.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported: fewer notices

from absl import app
from absl import flags
import tensorflow.compat.v1 as tf

import workload

FLAGS = flags.FLAGS
flags.DEFINE_string("json", None, "File to write parameters, raw seconds and summary to.")
flags.DEFINE_bool(
    "serve", False, "Run as the worker of compare.py: embedding variable only, commands from stdin."
)

OURS, STOCK = "tf_multitier", "tensorflow"


def build(variable, ids, target):
    """{operation: op} on an embedding variable or a static one."""
    values = tf.nn.embedding_lookup(variable, ids)
    loss = tf.nn.l2_loss(values - target)
    train = tf.train.AdagradOptimizer(FLAGS.learning_rate).minimize(loss, var_list=[variable])
    return {"feed": tf.size(ids).op, "lookup": values.op, "train": train}, values


def static_variable():
    """TensorFlow's own."""
    return tf.get_variable(
        "static",
        [FLAGS.rows, FLAGS.dim],
        use_resource=True,
        initializer=tf.constant_initializer(workload.INITIAL_VALUE),
    )


def embedding_variable():
    """Ours."""
    import tf_multitier  # not at the top: the worker of another TensorFlow imports nothing of it

    return tf_multitier.get_embedding_variable(
        "hashed",
        embedding_dim=FLAGS.dim,
        initializer=tf.constant_initializer(workload.INITIAL_VALUE),
    )


def callables(session, ids, ops, batches):
    """{operation: function of the batch's number}."""
    made = {name: session.make_callable(op, feed_list=[ids]) for name, op in ops.items()}
    return {name: (lambda i, run=run: run(batches[i % len(batches)])) for name, run in made.items()}


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    load = workload.load_before()
    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    kinds = {OURS: (embedding_variable, workload.keys_of)}
    if not FLAGS.serve:
        kinds[STOCK] = (static_variable, lambda ranks: ranks)
    ranks = workload.rank_batches()
    ids = tf.placeholder(tf.int64, [None], "ids")
    target = tf.constant(workload.targets())
    built = {name: build(make(), ids, target) for name, (make, _) in kinds.items()}
    session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=FLAGS.threads))
    session.run(tf.global_variables_initializer())
    systems, samples = {}, {}
    for name, (_, ids_of) in kinds.items():
        ops, values = built[name]
        for filling in workload.filling_batches():
            session.run(ops["train"], {ids: ids_of(filling)})
        systems[name] = callables(session, ids, ops, [ids_of(batch) for batch in ranks])
        samples[name] = lambda values=values, ids_of=ids_of: session.run(
            values, {ids: ids_of(workload.sample_ranks())}
        )
    about = {"tensorflow": tf.__version__, "python": sys.version.split()[0]}
    if FLAGS.serve:
        return workload.serve(systems[OURS], samples[OURS], about)

    turns = {
        name: (
            lambda operation, first, n, steps=steps: workload.time_steps(steps[operation], first, n)
        )
        for name, steps in systems.items()
    }
    seconds = workload.interleave(turns)
    rows = workload.summarise(seconds, OURS, STOCK)
    difference = workload.agree(samples[OURS](), samples[STOCK]())
    print(f"TensorFlow {tf.__version__}; {workload.parameters()}")
    workload.print_table(rows)
    print(f"largest difference between their values after the same steps: {difference:.2g}")
    if FLAGS.json:
        with open(FLAGS.json, "w") as out:
            json.dump(
                {
                    "about": about,
                    "parameters": workload.parameters(),
                    "summary": rows,
                    "seconds": seconds,
                    "load_average_before": load,
                },
                out,
                indent=1,
            )


if __name__ == "__main__":
    app.run(main)

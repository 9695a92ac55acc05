r"""Compares lookup and Adagrad step of an embedding variable with stock TensorFlow, in one Session, and with TFRA, by processes.

    python benchmarks/tensorflow_ops.py
    python benchmarks/tensorflow_ops.py --alpha=1.05 --parts=tfra --tfra_python=tfra/bin/python

Parts:

  stock   `tf.nn.embedding_lookup` on a [rows, dim] resource variable (a gather: ids are row numbers, nothing is hashed), and
          `tf.compat.v1.train.AdagradOptimizer`. Ours: the same two calls on an embedding variable
  tfra    a cuckoo hash table of TensorFlow Recommenders Addons, which needs another Python: each system is a process, which builds
          and fills its table first, and waits while the other has its turn

See workload.py for the work and docs/benchmarks.md for numbers.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported: fewer notices

from absl import app
from absl import flags
import tensorflow.compat.v1 as tf

import driver
import workload

FLAGS = flags.FLAGS
flags.DEFINE_string("tfra_python", None, "Python with TFRA, for the part of it.")
flags.DEFINE_bool("serve", False, "Be the worker with an embedding variable, of the part tfra.")

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


def systems_of(kinds):
    """({name: {operation: function of the batch's number}}, {name: function that gives the values of a sample}).

    Args:
      kinds: {name: (function that makes a variable, function from row numbers to ids)}.
    """
    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
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
    return systems, samples


KINDS = {
    OURS: (embedding_variable, workload.keys_of),
    STOCK: (static_variable, lambda ranks: ranks),
}


def measure_stock(_):
    systems, samples = systems_of(KINDS)
    for operation in workload.OPERATIONS:
        its = {name: driver.each(steps[operation]) for name, steps in systems.items()}
        driver.ratio(operation, driver.turns(its), STOCK, OURS)
    driver.note("values", difference=workload.agree(*(sample() for sample in samples.values())))


def measure_tfra(_):
    if not FLAGS.tfra_python:
        raise app.UsageError("--tfra_python: expected a Python with TFRA, found none")
    start = lambda *its: workload.Worker(*its, parameters=workload.parameters())
    workers = {
        OURS: start(OURS, sys.executable, "tensorflow_ops.py", "--serve"),
        "tfra": start("tfra", FLAGS.tfra_python, "peers.py", "--peer=tfra"),
    }
    for operation in workload.OPERATIONS:
        its = {name: worker.system(operation) for name, worker in workers.items()}
        driver.ratio(operation, driver.turns(its), "tfra", OURS)
    samples = {name: worker.sample() for name, worker in workers.items()}
    for name, worker in workers.items():
        worker.close()
        driver.note(name, peak_MiB=samples[name]["peak_mib"], **worker.about)
    difference = workload.agree(*(sample["values"] for sample in samples.values()))
    driver.note("values", difference=difference)


def main(argv):
    if not FLAGS.serve:
        measures = {"stock": measure_stock}
        if FLAGS.tfra_python or "tfra" in (FLAGS.parts or ()):
            measures["tfra"] = measure_tfra
        return driver.run(argv, measures)
    systems, samples = systems_of({OURS: KINDS[OURS]})
    about = {"tensorflow": tf.__version__, "python": sys.version.split()[0]}
    return workload.serve(systems[OURS], samples[OURS], about)


if __name__ == "__main__":
    app.run(main)

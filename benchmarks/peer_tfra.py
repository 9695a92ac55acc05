r"""The work of workload.py on TensorFlow Recommenders Addons' cuckoo hash table: the worker that compare.py starts.

It needs a Python of its own, since TFRA 0.8.1 is built for TensorFlow 2.16 (README.md says how to make it). To check that it runs:

    echo '{"operation": "train", "first": 0, "n": 3}' | tfra/bin/python benchmarks/peer_tfra.py

Lookups go to the table directly (`Variable.lookup`), the shortest way there is. Training goes through `embedding_lookup_unique`: with
plain `embedding_lookup` an id that a batch has twice would get one of its two updates only.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # TFRA's optimizers are built on it

from absl import app
from absl import flags
import tensorflow as tf2
import tensorflow_recommenders_addons as tfra

import workload

FLAGS = flags.FLAGS
tf = tf2.compat.v1


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    dynamic_embedding = tfra.dynamic_embedding
    ids = tf.placeholder(tf.int64, [None], "ids")
    target = tf.constant(workload.targets())
    table = dynamic_embedding.get_variable(
        "cuckoo", key_dtype=tf.int64, value_dtype=tf.float32, dim=FLAGS.dim, devices=["/CPU:0"],
        initializer=tf.constant_initializer(workload.INITIAL_VALUE), init_size=FLAGS.rows)
    looked_up = table.lookup(ids)
    values = dynamic_embedding.embedding_lookup_unique(table, ids, name="train_lookup")
    optimizer = dynamic_embedding.DynamicEmbeddingOptimizer(tf.train.AdagradOptimizer(FLAGS.learning_rate))
    train = optimizer.minimize(tf.nn.l2_loss(values - target))
    ops = {"feed": tf.size(ids).op, "lookup": looked_up.op, "train": train}

    session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=FLAGS.threads))
    session.run(tf.global_variables_initializer())
    for filling in workload.filling_batches():
        session.run(train, {ids: workload.keys_of(filling)})
    batches = [workload.keys_of(batch) for batch in workload.rank_batches()]
    made = {name: session.make_callable(op, feed_list=[ids]) for name, op in ops.items()}
    system = {name: (lambda i, run=run: run(batches[i % len(batches)])) for name, run in made.items()}
    workload.serve(system, lambda: session.run(looked_up, {ids: workload.keys_of(workload.sample_ranks())}),
                   {"tensorflow": tf2.__version__, "tfra": tfra.__version__, "python": sys.version.split()[0]})


if __name__ == "__main__":
    app.run(main)

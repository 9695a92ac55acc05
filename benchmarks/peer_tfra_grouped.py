r"""The work of grouped_workload.py on TensorFlow Recommenders Addons' cuckoo hash tables: the worker that grouped.py starts.

It needs a Python of its own, since TFRA 0.8.1 is built for TensorFlow 2.16 (README.md says how to make it).
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # TFRA's optimizers are built on it

from absl import app
from absl import flags
import tensorflow as tf2
import tensorflow_recommenders_addons as tfra

import grouped_workload
import workload

FLAGS = flags.FLAGS
tf = tf2.compat.v1


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.ERROR)
    dynamic_embedding = tfra.dynamic_embedding
    placeholder, sparse = grouped_workload.sparse_ids(tf)
    pooled = []
    for i, ids in enumerate(sparse):
        table = dynamic_embedding.get_variable(
            f"t{i}", key_dtype=tf.int64, value_dtype=tf.float32, dim=FLAGS.dim, devices=["/CPU:0"],
            initializer=tf.constant_initializer(workload.INITIAL_VALUE), init_size=FLAGS.vocabulary)
        pooled.append(dynamic_embedding.embedding_lookup_sparse(table, ids, None, combiner="sum", name=f"l{i}"))
    loss = tf.reduce_mean(tf.square(tf.concat(pooled, 1)))
    train = dynamic_embedding.DynamicEmbeddingOptimizer(tf.train.AdagradOptimizer(FLAGS.learning_rate)).minimize(loss)
    grouped_workload.serve(tf, pooled, placeholder, train, grouped_workload.keys(grouped_workload.batches()),
                           {"tensorflow": tf2.__version__, "tfra": tfra.__version__})


if __name__ == "__main__":
    app.run(main)

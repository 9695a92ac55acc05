"""The workload of grouped.py: only the embedding layer of a click model. Needs only NumPy and absl.

--features tables of --vocabulary ids each. A batch has --batch examples with --hot ids a feature, drawn Zipf-like; a step is

  lookup   the pooled (summed) embeddings of all features, concatenated: [batch, features x dim]; they stay in the framework
  train    the same, loss = the mean of their squares, its gradient, one Adagrad step on every table

Static tables get row numbers as ids, hash tables 64-bit hashes of them. The ids of a batch are one tensor. All start from one
constant; every system trains all batches before it is timed, and all must hold the same values in the end.
"""

from absl import flags
import numpy as np

import workload

FLAGS = flags.FLAGS
flags.DEFINE_integer("features", 26, "Features, a table each.", lower_bound=1)
flags.DEFINE_integer("vocabulary", 1_000_000, "Ids of a feature.", lower_bound=1)
flags.DEFINE_integer("hot", 1, "Ids of a feature in an example.", lower_bound=1)

NAMES = ("features", "vocabulary", "hot")
OPERATIONS = ("lookup", "train")


def batches():
    """Row numbers: int64 [batches, features, batch x hot]; the ids of an example are contiguous."""
    shape = (FLAGS.batches, FLAGS.features, FLAGS.batch * FLAGS.hot)
    return workload.drawn(shape, FLAGS.vocabulary)


def keys(ranks):
    """Keys of row numbers [..., features, n]: no two features have one in common."""
    feature = np.arange(FLAGS.features, dtype=np.int64)[:, None]
    return workload.keys_of(ranks + feature * FLAGS.vocabulary)


def indices():
    """Sparse indices of a feature: int64 [batch x hot, 2]."""
    return np.stack(
        [np.repeat(np.arange(FLAGS.batch), FLAGS.hot), np.tile(np.arange(FLAGS.hot), FLAGS.batch)],
        1,
    ).astype(np.int64)


def parameters():
    """The flags that define the workload."""
    its = {name: FLAGS[name].value for name in NAMES} | workload.parameters()
    del its["rows"]
    return its


def sparse_ids(tf):
    """(placeholder of a batch's ids, a SparseTensor of them for each feature) of a TensorFlow graph."""
    ids = tf.placeholder(tf.int64, [FLAGS.features, FLAGS.batch * FLAGS.hot])
    every = tf.constant(indices())
    return ids, [
        tf.SparseTensor(every, of_feature, [FLAGS.batch, FLAGS.hot])
        for of_feature in tf.unstack(ids)
    ]


def serve(tf, out, placeholder, train, ids, about):
    """workload.serve of a TensorFlow graph.

    Args:
      tf: the v1 module.
      out: [batch, any], what a lookup gives.
      placeholder: of a batch's ids.
      train: op of a step.
      ids: int64 [batches, features, batch x hot].
      about: versions.
    """
    session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=FLAGS.threads))
    session.run(tf.global_variables_initializer())
    run = {
        "lookup": session.make_callable(out.op, feed_list=[placeholder]),
        "train": session.make_callable(train, feed_list=[placeholder]),
    }
    for batch in ids:
        run["train"](batch)
    system = {name: (lambda i, step=step: step(ids[i % len(ids)])) for name, step in run.items()}
    workload.serve(system, lambda: session.run(out, {placeholder: ids[0]})[:64], about)

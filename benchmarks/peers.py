r"""Workers of other systems, which need Pythons of their own (README.md says how to make them): grouped.py and tensorflow_ops.py start them.

  tfra            the work of workload.py on the cuckoo hash tables of TensorFlow Recommenders Addons. Lookups go to the table directly
                  (`Variable.lookup`), the shortest way there is. Training goes through `embedding_lookup_unique`: with plain
                  `embedding_lookup` an id that a batch has twice would get one of its two updates only
  tfra_grouped    the work of grouped_workload.py on the same tables
  fbgemm_grouped  the same on FBGEMM's CPU table-batched embeddings: static tables, one op for all features, Adagrad inside the
                  backward pass. Ids are row numbers: nothing is hashed

To check that one runs:

    echo '{"operation": "train", "first": 0, "n": 3}' | tfra/bin/python benchmarks/peers.py --peer=tfra
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # TFRA's optimizers are built on it

from absl import app
from absl import flags

import grouped_workload
import workload

FLAGS = flags.FLAGS
PEERS = ("tfra", "tfra_grouped", "fbgemm_grouped")
flags.DEFINE_enum("peer", None, PEERS, "The worker.", required=True)


class Tfra:
    """TFRA's cuckoo hash tables and how they are trained. TFRA 0.8.1 is built for TensorFlow 2.16."""

    def __init__(self):
        import tensorflow as tf2
        import tensorflow_recommenders_addons as tfra

        self.tf, self.dynamic_embedding = tf2.compat.v1, tfra.dynamic_embedding
        self.tf.disable_eager_execution()
        self.tf.logging.set_verbosity(self.tf.logging.ERROR)
        self.about = {
            "tensorflow": tf2.__version__,
            "tfra": tfra.__version__,
            "python": sys.version.split()[0],
        }

    def table(self, name, rows):
        """A hash table with room for this number of rows."""
        return self.dynamic_embedding.get_variable(
            name,
            key_dtype=self.tf.int64,
            value_dtype=self.tf.float32,
            dim=FLAGS.dim,
            devices=["/CPU:0"],
            initializer=self.tf.constant_initializer(workload.INITIAL_VALUE),
            init_size=rows,
        )

    def train(self, loss):
        """Op of an Adagrad step."""
        return self.dynamic_embedding.DynamicEmbeddingOptimizer(
            self.tf.train.AdagradOptimizer(FLAGS.learning_rate)
        ).minimize(loss)


def tfra():
    of = Tfra()
    tf = of.tf
    ids = tf.placeholder(tf.int64, [None], "ids")
    target = tf.constant(workload.targets())
    table = of.table("cuckoo", FLAGS.rows)
    looked_up = table.lookup(ids)
    values = of.dynamic_embedding.embedding_lookup_unique(table, ids, name="train_lookup")
    train = of.train(tf.nn.l2_loss(values - target))
    ops = {"feed": tf.size(ids).op, "lookup": looked_up.op, "train": train}

    session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=FLAGS.threads))
    session.run(tf.global_variables_initializer())
    for filling in workload.filling_batches():
        session.run(train, {ids: workload.keys_of(filling)})
    batches = [workload.keys_of(batch) for batch in workload.rank_batches()]
    made = {name: session.make_callable(op, feed_list=[ids]) for name, op in ops.items()}
    system = {
        name: (lambda i, run=run: run(batches[i % len(batches)])) for name, run in made.items()
    }
    sample = {ids: workload.keys_of(workload.sample_ranks())}
    workload.serve(system, lambda: session.run(looked_up, sample), of.about)


def tfra_grouped():
    of = Tfra()
    tf = of.tf
    placeholder, sparse = grouped_workload.sparse_ids(tf)
    tables = [of.table(f"t{i}", FLAGS.vocabulary) for i in range(FLAGS.features)]
    look_up = of.dynamic_embedding.embedding_lookup_sparse
    pooled = [
        look_up(table, ids, None, combiner="sum", name=f"l{i}")
        for i, (table, ids) in enumerate(zip(tables, sparse))
    ]
    out = tf.concat(pooled, 1)
    train = of.train(tf.reduce_mean(tf.square(out)))
    ids = grouped_workload.keys(grouped_workload.batches())
    grouped_workload.serve(tf, out, placeholder, train, ids, of.about)


def fbgemm_grouped():
    from fbgemm_gpu import split_table_batched_embeddings_ops_common as common
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as training
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    import torch

    if FLAGS.threads:
        torch.set_num_threads(FLAGS.threads)
    place = (common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
    tables = training.SplitTableBatchedEmbeddingBagsCodegen(
        [(FLAGS.vocabulary, FLAGS.dim, *place)] * FLAGS.features,
        optimizer=EmbOptimType.EXACT_ADAGRAD,
        learning_rate=FLAGS.learning_rate,
        eps=1e-8,
        pooling_mode=common.PoolingMode.SUM,
    )
    with torch.no_grad():
        for weights in tables.split_embedding_weights():
            weights.fill_(workload.INITIAL_VALUE)
        for states in tables.split_optimizer_states():
            states[0].fill_(0.1)  # where TensorFlow's accumulators begin
    end = FLAGS.features * FLAGS.batch * FLAGS.hot + 1
    offsets = torch.arange(0, end, FLAGS.hot, dtype=torch.long)
    ids = [torch.from_numpy(batch.reshape(-1).copy()) for batch in grouped_workload.batches()]

    def lookup(i):
        with torch.no_grad():
            return tables(ids[i % len(ids)], offsets)

    def train(i):
        out = tables(ids[i % len(ids)], offsets)
        (out * out).mean().backward()

    for i in range(len(ids)):
        train(i)
    about = {"torch": torch.__version__, "python": sys.version.split()[0]}
    system = {"lookup": lookup, "train": train}
    workload.serve(system, lambda: lookup(0)[:64].numpy(), about)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    globals()[FLAGS.peer]()


if __name__ == "__main__":
    app.run(main)

r"""Matrix factorization of implicit feedback with embedding variables for users and items.

    python examples/train_mf_movielens.py                            # generated taste clusters
    python examples/train_mf_movielens.py --data movielens_1m

--data is a folder with `train.csv.gz`: a header and lines `uid,iid`. One pair of each user with at
least three is held out, drawn at random, and never trained on; what is reported is recall@k: the
share of users whose held-out item is among the k best of all items the user did not train on, for
the factorization and for plain popularity. (Users absent from training have no embedding to rank
with, so files of cold users are not used.)

The loss is sampled softmax: each pair of a batch should score above the same user with items drawn
at random from the catalogue, one draw for the whole batch. User and item ids index the embedding
variables as they are; nothing is counted or mapped beforehand.
"""

import time

import quiet  # noqa: F401  before TensorFlow, whose start-up messages it hides

from absl import app
from absl import flags
import numpy as np
import tensorflow.compat.v1 as tf

import metrics
import movielens
import tf_multitier

FLAGS = flags.FLAGS
flags.DEFINE_string("data", None, "Folder with train.csv.gz; none: generate clusters of taste.")
flags.DEFINE_integer("epochs", 16, "Times every pair is trained on.", lower_bound=1)
flags.DEFINE_integer("batch_size", 4096, "Pairs in a step.", lower_bound=1)
flags.DEFINE_integer("embedding_dim", 64, "Length of user and item embeddings.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.1, "Of Adagrad.", lower_bound=0.0)
flags.DEFINE_integer("negatives", 256, "Random items a step compares with.", lower_bound=1)
flags.DEFINE_float(
    "l2", 0.015, "Weight of the squared length of the embeddings of a pair.", lower_bound=0.0
)
flags.DEFINE_enum(
    "value_dtype", "float32", ["float32", "bfloat16", "float16"], "Type of the embeddings."
)
flags.DEFINE_bool("stochastic_rounding", False, "Whether updates of 16 bits round at random.")
flags.DEFINE_integer("k", 20, "How many items are recommended.", lower_bound=1)
flags.DEFINE_integer("seed", 1, "Of the split, the sampling and the generated pairs.")
flags.DEFINE_bool("progress", True, "Show the progress bar, on a terminal.")


class Model:
    """Score of a user and an item: dot product of their embeddings plus the item's bias."""

    def __init__(self, catalogue_size):
        normal = tf.random_normal_initializer(stddev=0.1, seed=FLAGS.seed)
        option = tf_multitier.EmbeddingVariableOption(
            value_dtype=FLAGS.value_dtype, stochastic_rounding=FLAGS.stochastic_rounding
        )
        self.users, self.items = (
            tf_multitier.get_embedding_variable(
                name, FLAGS.embedding_dim, initializer=normal, ev_option=option
            )
            for name in ("users", "items")
        )
        self.biases = tf_multitier.get_embedding_variable(
            "item_biases", 1, initializer=tf.zeros_initializer()
        )
        self.user_ids, self.item_ids, self.other_ids = (
            tf.placeholder(tf.int64, [None], name) for name in ("user", "item", "other")
        )
        user = _values(self.users, self.user_ids)
        item, item_bias = self._item(self.item_ids)
        other, other_bias = self._item(self.other_ids)
        own = tf.reduce_sum(user * item, axis=1) + item_bias  # [batch]
        others = tf.matmul(user, other, transpose_b=True) + other_bias  # [batch, negatives]
        # The sample stands for the catalogue: each of its items counts for several.
        others += np.log(catalogue_size / FLAGS.negatives)
        losses = tf.reduce_logsumexp(tf.concat([own[:, None], others], axis=1), axis=1) - own
        size = tf.reduce_sum(tf.square(user) + tf.square(item), axis=1)
        self.loss = tf.reduce_mean(losses)
        # Summed over the batch, so that the step of a row does not depend on the batch's size.
        self.train = tf.train.AdagradOptimizer(FLAGS.learning_rate).minimize(
            tf.reduce_sum(losses + FLAGS.l2 * size)
        )
        self.scores = tf.matmul(user, item, transpose_b=True) + item_bias  # [users, items]
        self.stats = {
            table.variable_name: table.stats() for table in (self.users, self.items, self.biases)
        }

    def _item(self, ids):
        return (
            _values(self.items, ids),
            tf.squeeze(tf.nn.embedding_lookup(self.biases, ids), axis=1),
        )


def _values(table, ids):
    return tf_multitier.lookup.embedding_lookup(table, ids, output_dtype=tf.float32)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.disable_eager_execution()
    rng = np.random.default_rng(FLAGS.seed)

    users, items = (
        movielens.read_pairs(FLAGS.data) if FLAGS.data else movielens.generate_pairs(FLAGS.seed)
    )
    split = movielens.Split(users, items, rng)
    print(split.describe())

    model = Model(split.catalogue.size)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        steps = FLAGS.epochs * -(-split.users.size // FLAGS.batch_size)
        bar = metrics.progress_bar(steps, disable=not FLAGS.progress)
        started = time.perf_counter()
        for epoch in range(1, FLAGS.epochs + 1):
            losses = []
            for user_ids, item_ids, other_ids in split.batches(
                rng, FLAGS.batch_size, FLAGS.negatives
            ):
                _, loss = session.run(
                    [model.train, model.loss],
                    {
                        model.user_ids: user_ids,
                        model.item_ids: item_ids,
                        model.other_ids: other_ids,
                    },
                )
                losses.append(loss)
                bar.update()
            bar.set_postfix(epoch=epoch, loss=f"{np.mean(losses):.4f}")
        seconds = time.perf_counter() - started
        bar.end()
        scores = session.run(
            model.scores, {model.user_ids: split.test_users, model.item_ids: split.catalogue}
        )
        recall, popularity = split.recall(scores, FLAGS.k), split.popularity_recall(FLAGS.k)
        print(
            f"{steps} steps of {FLAGS.batch_size} pairs, {steps / seconds:.1f} steps/s, "
            f"final loss {np.mean(losses):.4f}"
        )
        print(
            f"held-out recall@{FLAGS.k}: factorization {recall:.4f}, popularity {popularity:.4f} "
            f"({recall / max(popularity, 1e-9):.1f} times)\n"
        )
        print(metrics.format_table(*metrics.table_rows(session.run(model.stats))))


if __name__ == "__main__":
    app.run(main)

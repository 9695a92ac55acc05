"""Trains users and items with a softmax over all items, over sampled ones, or over those of the batch, and retrieves items.

    python examples/train_retrieval.py --loss=all                       # generated users with planted tastes
    python examples/train_retrieval.py --loss=sampled --data movielens_1m

--data is a folder with train.csv.gz of `uid,iid` pairs. One pair of each user is held out. The program prints how often it is among
the k items that `Retrieval` finds without those that the user has seen.
"""

import time

import quiet  # noqa: F401  before TensorFlow, whose start-up messages it hides

from absl import app
from absl import flags
import keras
import numpy as np
import tensorflow as tf

import movielens
import tf_multitier
from tf_multitier.keras import Embedding
from tf_multitier.keras import Retrieval

FLAGS = flags.FLAGS
flags.DEFINE_enum("loss", "all", ["all", "sampled", "in_batch"], "The items of the softmax.")
flags.DEFINE_string("data", None, "A folder with train.csv.gz. None: generated pairs.")
flags.DEFINE_integer("epochs", 5, "Times every pair is trained on.", lower_bound=1)
flags.DEFINE_integer("batch_size", 2048, "Pairs in a step.", lower_bound=1)
flags.DEFINE_integer("embedding_dim", 32, "Length of embeddings.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.1, "Of Adagrad.")
flags.DEFINE_integer("negatives", 256, "sampled: items of a step.", lower_bound=1)
flags.DEFINE_integer("k", 20, "How many items are retrieved.", lower_bound=1)
flags.DEFINE_integer("seed", 1, "Of the generated data, the shuffle and the initial weights.")
flags.DEFINE_bool("progress", False, "Ignored: the program has no progress bar.")


class Losses:
    """The three losses of [batch] user vectors and the items that the users chose: cross entropies of the item among candidates."""

    def __init__(self, items, catalogue, counts):
        self._items, self._catalogue = items, tf.constant(catalogue)
        self._log_share = tf.constant(np.log(counts / counts.sum()), tf.float32)

    def all(self, user, item):
        scores = tf.matmul(user, self._items(self._catalogue), transpose_b=True)
        return self._mean(tf.searchsorted(self._catalogue, item), scores)

    def sampled(self, user, item):
        """Of items drawn by their share: a popular one is drawn more often, so its score is lowered by the log of its share."""
        drawn = tf.random.categorical(self._log_share[None], FLAGS.negatives)[0]
        return self._among(user, item, tf.gather(self._catalogue, drawn))

    def in_batch(self, user, item):
        """Of the items of the batch, which are drawn by their share, too."""
        return self._among(user, item, item)

    def _among(self, user, item, others):
        own = tf.reduce_sum(user * self._items(item), 1) - self._log_of(item)
        scores = tf.matmul(user, self._items(others), transpose_b=True) - self._log_of(others)
        scores = tf.where(item[:, None] == others, -np.inf, scores)
        return self._mean(tf.zeros_like(item), tf.concat([own[:, None], scores], 1))

    def _log_of(self, items):
        return tf.gather(self._log_share, tf.searchsorted(self._catalogue, items))

    def _mean(self, labels, scores):
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))


def recall(users, items, split):
    """Share of test users whose held-out item is found."""
    search = tf.function(Retrieval(items, FLAGS.k, return_scores=False), reduce_retracing=True)
    order = np.argsort(split.users, kind="stable")
    values, sorted_users = split.items[order], split.users[order]
    starts, limits = (
        np.searchsorted(sorted_users, split.test_users, side) for side in ("left", "right")
    )
    seen = tf.ragged.range(starts, limits).with_flat_values(
        values[np.concatenate([np.arange(*pair) for pair in zip(starts, limits)])]
    )
    hits = 0
    for at in range(0, split.test_users.size, 256):
        part = slice(at, at + 256)
        found = search(users(split.test_users[part]), exclude=seen[part])
        hits += (found.numpy() == split.test_items[part, None]).any(1).sum()
    return hits / split.test_users.size


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    rng = np.random.default_rng(FLAGS.seed)
    pairs = movielens.read_pairs(FLAGS.data) if FLAGS.data else movielens.generate_pairs(FLAGS.seed)
    split = movielens.Split(*pairs, rng)
    print(split.describe())
    keras.utils.set_random_seed(FLAGS.seed)
    normal = keras.initializers.RandomNormal(stddev=0.1, seed=FLAGS.seed)
    users, items = (
        Embedding(FLAGS.embedding_dim, normal, name=name) for name in ("users", "items")
    )
    users.build()
    items.build()
    tables = users.tables + items.tables
    optimizer = tf_multitier.optimizers.Adagrad(FLAGS.learning_rate)
    loss_of = getattr(Losses(items, split.catalogue, split.item_counts), FLAGS.loss)

    @tf.function(reduce_retracing=True)
    def step(user, item):
        with tf.GradientTape() as tape:
            loss = loss_of(users(user), item)
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
        return loss

    for epoch in range(FLAGS.epochs):
        begin, cpu, losses = time.perf_counter(), time.process_time(), []
        for user, item, _ in split.batches(rng, FLAGS.batch_size, 1):
            losses.append(float(step(user, item)))
        steps = len(losses)
        print(
            f"epoch {epoch + 1}: loss {sum(losses) / split.users.size:.3f}, "
            f"{1e3 * (time.perf_counter() - begin) / steps:.1f} ms a step, "
            f"{1e3 * (time.process_time() - cpu) / steps:.1f} ms of processors, recall@{FLAGS.k} {recall(users, items, split):.4f}"
        )
    print(f"popularity recall@{FLAGS.k} {split.popularity_recall(FLAGS.k):.4f}")


if __name__ == "__main__":
    app.run(main)

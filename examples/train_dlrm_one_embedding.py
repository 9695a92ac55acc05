r"""Trains DLRM, a click model, on Criteo rows, with the tables of tf_multitier.one_embedding.

    python examples/train_dlrm_one_embedding.py                              # generated rows
    python examples/train_dlrm_one_embedding.py --store=device_mem
    python examples/train_dlrm_one_embedding.py --data day_0.gz --persistent_path /ssd --snapshot day-0

The model (Naumov et al., 2019): products of all pairs of 26 embeddings and the output of a tower
over 13 integers, and a tower over these. One embedding has all tables; the bounds of their initial
values follow from how many ids a table is expected to have, as in OneFlow's DLRM.
"""

import quiet  # noqa: F401  before TensorFlow, whose start-up messages it hides

from absl import flags
import keras
import tensorflow as tf

import criteo
import one_embedding_clicks
from tf_multitier import one_embedding

FLAGS = flags.FLAGS


def tables():
    """A table for each category."""
    counts = criteo.ClickModel(FLAGS.seed).expected_ids(FLAGS.batch_size * FLAGS.steps)
    bounds = [float(max(n, 1)) ** -0.5 for n in counts]
    return [
        one_embedding.make_table_options(one_embedding.make_uniform_initializer(-bound, bound))
        for bound in bounds
    ]


class Pairs(keras.layers.Layer):
    """Products of all pairs of [batch, n, dim]: [batch, n * (n - 1) / 2]."""

    def call(self, inputs):
        """Computes the products."""
        n = inputs.shape[1]
        products = tf.matmul(inputs, inputs, transpose_b=True)
        flat = tf.reshape(products, [-1, n * n])
        return tf.gather(flat, [i * n + j for i in range(n) for j in range(i)], axis=1)


def make(store):
    """(embedding, model)."""
    dim = FLAGS.embedding_dim
    embedding = one_embedding.MultiTableEmbedding(
        "categories",
        embedding_dim=dim,
        dtype=tf.float32,
        key_type=tf.int64,
        tables=tables(),
        store_options=store,
        padding_idx=0,
        seed=FLAGS.seed,
    )
    numbers = keras.Input((len(criteo.INT_NAMES),))
    embeddings = keras.Input((len(criteo.CAT_NAMES), dim))
    bottom = keras.layers.Dense(64, "relu")(numbers)
    bottom = keras.layers.Dense(dim, "relu")(bottom)
    vectors = [keras.layers.Reshape((1, dim))(bottom), embeddings]
    pairs = Pairs()(keras.layers.Concatenate(axis=1)(vectors))
    top = keras.layers.Concatenate()([bottom, pairs])
    for units in (128, 64):
        top = keras.layers.Dense(units, "relu")(top)
    return embedding, keras.Model([numbers, embeddings], keras.layers.Dense(1)(top))


if __name__ == "__main__":
    one_embedding_clicks.run(make)

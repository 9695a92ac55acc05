r"""Trains DeepFM, a click model, on Criteo rows, with the two columns of a tf_multitier.one_embedding.

    python examples/train_deepfm_one_embedding.py                            # generated rows
    python examples/train_deepfm_one_embedding.py --data day_0.gz --store=cached_host_mem

The model (Guo et al., 2017): a factorization machine and a tower over the same embeddings. Each row
has two columns: the weight of the id, which begins at 0, and its embedding, which begins at random.
"""

import quiet  # noqa: F401  before TensorFlow, whose start-up messages it hides

from absl import flags
import keras
import tensorflow as tf

import criteo
import one_embedding_clicks
from tf_multitier import one_embedding

FLAGS = flags.FLAGS


def make(store):
    """(embedding, model)."""
    columns = [
        one_embedding.make_column_options(one_embedding.make_constant_initializer(0)),
        one_embedding.make_column_options(one_embedding.make_normal_initializer(0, 0.02)),
    ]
    dim = FLAGS.embedding_dim
    embedding = one_embedding.MultiTableMultiColumnEmbedding(
        "categories",
        embedding_dim=[1, dim],
        dtype=tf.float32,
        key_type=tf.int64,
        tables=[one_embedding.make_table_options(columns) for _ in criteo.CAT_NAMES],
        store_options=store,
        padding_idx=0,
        seed=FLAGS.seed,
    )
    numbers = keras.Input((len(criteo.INT_NAMES),))
    rows = keras.Input((len(criteo.CAT_NAMES), 1 + dim))
    weights, vectors = rows[:, :, 0], rows[:, :, 1:]
    total = keras.ops.sum(vectors, 1)
    pairs = keras.ops.square(total) - keras.ops.sum(keras.ops.square(vectors), 1)
    linear = keras.layers.Dense(1)(numbers) + keras.ops.sum(weights, 1, keepdims=True)
    deep = keras.layers.Concatenate()([numbers, keras.layers.Flatten()(vectors)])
    for units in (128, 64):
        deep = keras.layers.Dense(units, "relu")(deep)
    log_odds = linear + 0.5 * keras.ops.sum(pairs, 1, keepdims=True) + keras.layers.Dense(1)(deep)
    return embedding, keras.Model([numbers, rows], log_odds)


if __name__ == "__main__":
    one_embedding_clicks.run(make)

"""DLRM: dense features through a bottom tower, products of all pairs of embeddings, a top tower."""

import tensorflow as tf

import layers
import zoo


def build_columns(args):
    with zoo.group_scope(args):
        sparse = [
            zoo.embedding(args, zoo.categorical(args, name), args.embedding_dim)
            for name in zoo.CATEGORICAL
        ]
    return [zoo.numeric(name) for name in zoo.CONTINUOUS], sparse


def dot_products(features):
    """The products of all pairs of a [batch, features, dim] tensor, without those with themselves."""
    products = tf.matmul(features, features, transpose_b=True)
    ones = tf.cast(tf.ones_like(products), tf.float32)
    lower = tf.cast(tf.linalg.band_part(ones, -1, 0) - tf.linalg.band_part(ones, 0, 0), tf.bool)
    count = features.shape[1] * (features.shape[1] - 1) // 2
    return tf.reshape(tf.boolean_mask(products, lower), (-1, count))


class Model:
    def __init__(self, inputs, columns, args):
        features, (self.label,) = inputs
        dense_columns, sparse_columns = columns
        with zoo.input_scope(args, "input_layer"):
            dense = tf.feature_column.input_layer(features, dense_columns)
            by_column = {}
            zoo.input_layer(args, features, sparse_columns, cols_to_output_tensors=by_column)
        with zoo.layer_scope(args, "mlp_bot_layer"):
            dense = zoo.full(
                args,
                layers.dnn(
                    args,
                    zoo.half(args, dense),
                    [16 * args.width, args.embedding_dim],
                    "mlp_bot_hiddenlayer",
                    normalize=True,
                ),
            )
        with tf.variable_scope("Op_dot_layer", reuse=tf.AUTO_REUSE):
            stacked = tf.stack([dense] + [by_column[column] for column in sparse_columns], axis=1)
            net = tf.concat([dense, dot_products(stacked)], 1)
        with zoo.layer_scope(args, "mlp_top_layer"):
            net = zoo.full(
                args,
                layers.dnn(
                    args,
                    zoo.half(args, net),
                    [32 * args.width, 16 * args.width],
                    "mlp_top_hiddenlayer",
                ),
            )
        with tf.variable_scope("logits", reuse=tf.AUTO_REUSE) as logits_scope:
            self.probability = tf.math.sigmoid(
                tf.layers.dense(net, units=1, activation=None, name=logits_scope)
            )
        loss_func = tf.keras.losses.BinaryCrossentropy()
        self.loss = tf.math.reduce_mean(loss_func(self.label, tf.squeeze(self.probability)))


if __name__ == "__main__":
    zoo.main(Model, build_columns, kind="criteo")

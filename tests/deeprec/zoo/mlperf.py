"""MLPerf's DLRM: low-rank cross layers in place of the products."""

import tensorflow as tf

import layers
import zoo


def build_columns(args):
    with zoo.group_scope(args):
        sparse = [zoo.embedding(args, zoo.categorical(args, name), 8) for name in zoo.CATEGORICAL]
    return [zoo.numeric(name) for name in zoo.CONTINUOUS], sparse


def low_rank_cross(net, width, rank, depth):
    start = net
    for i in range(depth):
        with tf.variable_scope("cross_%d" % i, reuse=tf.AUTO_REUSE):
            low = tf.layers.dense(
                net,
                rank,
                use_bias=False,
                kernel_initializer=tf.glorot_uniform_initializer(),
                name="v",
            )
            high = tf.layers.dense(low, width, bias_initializer=tf.zeros_initializer(), name="u")
            net = tf.identity(start * high + net)
    return net


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
                    args, zoo.half(args, dense), [16, 8], "mlp_bot_hiddenlayer", normalize=True
                ),
            )
        net = tf.stack([dense] + [by_column[column] for column in sparse_columns], axis=1)
        width = int(net.shape[1] * net.shape[2])
        net = low_rank_cross(tf.reshape(net, [-1, width]), width, rank=4, depth=2)
        with zoo.layer_scope(args, "mlp_top_layer"):
            net = zoo.full(
                args, layers.dnn(args, zoo.half(args, net), [32, 16], "mlp_top_hiddenlayer")
            )
        self.probability = tf.math.sigmoid(
            tf.layers.dense(net, units=1, activation=None, name="logits")
        )
        loss_func = tf.keras.losses.BinaryCrossentropy()
        self.loss = tf.math.reduce_mean(loss_func(self.label, tf.squeeze(self.probability)))


if __name__ == "__main__":
    zoo.main(Model, build_columns, kind="criteo")

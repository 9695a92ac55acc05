"""MaskNet: blocks whose inputs are masked by what all features say."""

import tensorflow as tf

import layers
import zoo


def build_columns(args):
    with zoo.group_scope(args):
        return [
            zoo.numeric(name)
            if name in zoo.CONTINUOUS
            else zoo.embedding(args, zoo.categorical(args, name), 8)
            for name in zoo.CONTINUOUS + zoo.CATEGORICAL
        ]


def mask_block(all_features, net, output_dim, index):
    with tf.variable_scope("maskblock_%d" % index, reuse=tf.AUTO_REUSE):
        hidden = tf.layers.dense(
            all_features, units=int(net.shape[1]), activation=tf.nn.relu, name="mask_hidden"
        )
        mask = tf.layers.dense(hidden, units=int(net.shape[1]), activation=None, name="mask")
        net = tf.layers.dense(mask * net, units=output_dim, activation=None, name="dense")
        return tf.nn.relu(tf.keras.layers.LayerNormalization(axis=-1)(net))


class Model:
    def __init__(self, inputs, columns, args):
        features, (self.label,) = inputs
        with tf.variable_scope("dnn"):
            with zoo.input_scope(args, "input_from_feature_columns"):
                net = zoo.input_layer(args, features, columns)
            with zoo.layer_scope(args, "dnn_layers"):
                net = zoo.half(args, net)
                blocks = [mask_block(net, net, 16, index) for index in range(3)]
                net = zoo.full(
                    args,
                    layers.dnn(args, tf.concat(blocks, -1), [16], "hiddenlayer", normalize=True),
                )
                logits = tf.layers.dense(net, units=1, name="logits")
        self.probability = tf.math.sigmoid(logits)
        self.loss = layers.sigmoid_loss(self.label, tf.squeeze(logits))


if __name__ == "__main__":
    zoo.main(Model, build_columns, kind="criteo")

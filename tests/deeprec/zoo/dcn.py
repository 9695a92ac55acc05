"""Deep & Cross: cross layers with one weight vector each."""

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


def cross(start, depth):
    net, width = start, start.get_shape().as_list()[-1]
    for i in range(depth):
        with tf.variable_scope("crosslayer_%d" % i, reuse=tf.AUTO_REUSE):
            weight = tf.get_variable(
                "w", [1, width], dtype=start.dtype, initializer=tf.glorot_uniform_initializer()
            )
            bias = tf.get_variable(
                "b", [1, width], dtype=start.dtype, initializer=tf.glorot_uniform_initializer()
            )
            product = tf.reduce_sum(net * weight, axis=1, keepdims=True)
            net = tf.math.add(start * product + bias, net)
    return net


class Model:
    def __init__(self, inputs, columns, args):
        features, (self.label,) = inputs
        towers = [
            ("dnn", lambda net: layers.dnn(args, net, [32, 16], "hiddenlayer")),
            ("cross", lambda net: cross(net, 2)),
        ]
        logits = []
        for name, tower in towers:  # each reads the columns again, under a scope of its own
            with tf.variable_scope(name):
                with zoo.input_scope(args, "input_from_feature_columns"):
                    net = zoo.input_layer(args, features, columns)
                with zoo.layer_scope(args, name + "_layers"):
                    net = zoo.full(args, tower(zoo.half(args, net)))
                    with tf.variable_scope("logits") as logits_scope:
                        logits.append(
                            tf.layers.dense(net, units=1, activation=None, name=logits_scope)
                        )
        self.probability = tf.math.sigmoid(tf.add_n(logits))
        self.loss = layers.sigmoid_loss(self.label, tf.squeeze(tf.add_n(logits)))


if __name__ == "__main__":
    zoo.main(Model, build_columns, kind="criteo")

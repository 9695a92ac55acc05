"""Two towers over one input layer, one for each task."""

import tensorflow as tf

import layers
import zoo


def build_columns(args):
    with zoo.group_scope(args):
        return [zoo.embedding(args, zoo.categorical(args, name), 16) for name in zoo.TAOBAO]


class Model:
    def __init__(self, inputs, columns, args):
        features, labels = inputs
        for key in zoo.TAGS:
            features[key] = tf.strings.split(features[key], "|")
        with zoo.input_scope(args, "input_layer"):
            net = zoo.half(args, zoo.input_layer(args, features, columns))
        probabilities = []
        for task in ("clk", "buy"):
            with zoo.layer_scope(args, task + "_model"):
                tower = layers.dnn(args, net, [32, 16], task)
                logits = zoo.full(
                    args, tf.layers.dense(tower, 1, activation=None, name="output_" + task)
                )
                probabilities.append(tf.math.sigmoid(logits))
        self.label = tf.stack(labels, axis=1)
        self.probability = tf.squeeze(tf.stack(probabilities, axis=1), [-1])
        loss_func = tf.keras.losses.BinaryCrossentropy()
        self.loss = tf.math.reduce_mean(loss_func(self.label, self.probability))


if __name__ == "__main__":
    zoo.main(Model, build_columns, kind="taobao")

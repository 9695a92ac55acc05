"""MMoE: experts that two tasks share, each with a gate of its own."""

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
            net = zoo.input_layer(args, features, columns)
        with zoo.layer_scope(args, "MMOE"):
            net = zoo.half(args, net)
            experts = tf.stack(
                [layers.dnn(args, net, [16], "expert_%d" % i) for i in range(3)], axis=1
            )
            logits = []
            for task in ("ctr", "cvr"):
                gate = tf.nn.softmax(tf.layers.dense(net, 3, name="gate_" + task), axis=1)
                mixed = tf.reduce_sum(tf.multiply(experts, tf.expand_dims(gate, -1)), axis=1)
                tower = layers.dnn(args, mixed, [16], "tower_" + task)
                logits.append(
                    zoo.full(
                        args,
                        tf.layers.dense(tower, units=1, activation=None, name=task + "_output"),
                    )
                )
        self.label = tf.stack(labels, axis=1)
        logits = tf.squeeze(tf.stack(logits, axis=1), [2])
        self.probability = tf.math.sigmoid(logits)
        self.loss = layers.sigmoid_loss(self.label, logits)


if __name__ == "__main__":
    zoo.main(Model, build_columns, kind="taobao")

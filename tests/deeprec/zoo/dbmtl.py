"""DBMTL: the purchase task sees what the click task has made."""

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
        with zoo.layer_scope(args, "DBMTL"):
            shared = layers.dnn(args, zoo.half(args, net), [32], "bottom")
            made, logits = [], []
            for task in ("ctr", "cvr"):
                made.append(layers.dnn(args, shared, [16], task + "_layer"))
                relation = layers.dnn(args, tf.concat(made, axis=1), [8], task + "_relation_dnn")
                logits.append(
                    zoo.full(
                        args,
                        tf.layers.dense(relation, units=1, activation=None, name=task + "_output"),
                    )
                )
        self.label = tf.stack(labels, axis=1)
        logits = tf.squeeze(tf.stack(logits, axis=1), [2])
        self.probability = tf.math.sigmoid(logits)
        self.loss = layers.sigmoid_loss(self.label, logits)


if __name__ == "__main__":
    zoo.main(Model, build_columns, kind="taobao")

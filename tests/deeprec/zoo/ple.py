"""PLE: layers of experts, some shared and some of one task."""

import tensorflow as tf

import layers
import zoo


def build_columns(args):
    with zoo.group_scope(args):
        return [zoo.embedding(args, zoo.categorical(args, name), 16) for name in zoo.TAOBAO]


def extraction(args, inputs, level):
    """One level of experts. inputs: of both tasks and of the shared experts; so are the results."""
    experts = [
        [layers.dnn(args, net, [16], "level_%d_%s_%d" % (level, name, i)) for i in range(2)]
        for name, net in zip(("ctr", "cvr", "shared"), inputs)
    ]
    outputs = []
    for task in range(3):
        chosen = experts[task] + experts[2] if task < 2 else [*experts[0], *experts[1], *experts[2]]
        gate = tf.layers.dense(
            inputs[task], len(chosen), activation="softmax", name="level_%d_gate_%d" % (level, task)
        )
        gate = tf.keras.layers.Lambda(lambda x: tf.expand_dims(x, axis=-1))(gate)
        outputs.append(tf.math.reduce_sum(tf.math.multiply(tf.stack(chosen, axis=1), gate), axis=1))
    return outputs


class Model:
    def __init__(self, inputs, columns, args):
        features, labels = inputs
        for key in zoo.TAGS:
            features[key] = tf.strings.split(features[key], "|")
        with zoo.input_scope(args, "input_layer"):
            net = zoo.input_layer(args, features, columns)
        with zoo.layer_scope(args, "PLE"):
            nets = [zoo.half(args, net)] * 3
            for level in range(2):
                nets = extraction(args, nets, level)
            logits = []
            for task, net in zip(("ctr", "cvr"), nets):
                tower = layers.dnn(args, net, [16], "tower_" + task)
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

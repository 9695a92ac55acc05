"""DIN: attention of the item over the history of the user."""

import tensorflow as tf

import histories
import layers
import zoo


class Model:
    def __init__(self, inputs, columns, args):
        features, (self.label,) = inputs
        histories.split_history(
            features, ["HISTORY_ITEM", "HISTORY_CATEGORY"], tf.shape(self.label)[0]
        )
        with zoo.input_scope(args, "input_layer"):
            uid = zoo.input_layer(args, features, columns["uid"])
            history = histories.History(features, columns, args)
            item, (steps, lengths) = history.item(), history.steps("his")
            mask = tf.sequence_mask(lengths)
        with zoo.layer_scope(args, "attention_layer"):
            attended = layers.attention(item, steps, mask)
        summed = tf.reduce_sum(steps, 1)
        net = tf.concat([uid, item, summed, item * summed, attended], 1)
        with zoo.layer_scope(args, "top_mlp_layer"):
            net = tf.layers.batch_normalization(inputs=zoo.half(args, net), name="bn1")
            net = zoo.full(args, layers.dnn(args, net, [32 * args.width, 16 * args.width], "dnn"))
            logits = tf.layers.dense(net, 1, activation=None, name="logits")
        self.probability = tf.math.sigmoid(logits)
        self.loss = layers.sigmoid_loss(self.label, tf.squeeze(logits))
        self.global_step = tf.train.get_or_create_global_step()
        self.train_op = histories.clipped_step(self, args)


if __name__ == "__main__":
    zoo.main(Model, histories.build_columns, kind="amazon")

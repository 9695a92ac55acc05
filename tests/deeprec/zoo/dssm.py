"""DSSM: a user tower and an item tower, and the cosine of what they give."""

import tensorflow as tf

import layers
import zoo

USER = [
    "user_id",
    "cms_segid",
    "cms_group_id",
    "age_level",
    "pvalue_level",
    "shopping_level",
    "occupation",
] + zoo.TAGS
ITEM = ["pid", "adgroup_id", "cate_id", "campaign_id", "customer", "brand", "price"]


def build_columns(args):
    with zoo.group_scope(args):
        return [
            [zoo.embedding(args, zoo.categorical(args, name), 16) for name in names]
            for names in (USER, ITEM)
        ]


class Model:
    def __init__(self, inputs, columns, args):
        features, (self.label, _) = inputs
        with zoo.input_scope(args, "input_layer"):
            for key in zoo.TAGS:
                features[key] = tf.strings.split(features[key], "|")
            both = [zoo.input_layer(args, features, of_side) for of_side in columns]
        towers = []
        for side, net in zip(("user", "item"), both):
            with zoo.layer_scope(args, side + "_dnn_layer"):
                net = layers.dnn(args, zoo.half(args, net), [32, 16], side + "_dnn", normalize=True)
            towers.append(tf.math.l2_normalize(zoo.full(args, net), axis=1))
        similarity = tf.reduce_sum(tf.multiply(*towers), axis=1, keep_dims=True)
        weight = tf.get_variable(
            "sim_w", dtype=tf.float32, shape=(1, 1), initializer=tf.ones_initializer()
        )
        bias = tf.get_variable(
            "sim_b", dtype=tf.float32, shape=(1), initializer=tf.zeros_initializer()
        )
        logits = tf.reshape(tf.matmul(similarity, tf.abs(weight)) + bias, [-1])
        self.probability = tf.math.sigmoid(logits)
        loss_func = tf.keras.losses.CategoricalCrossentropy()
        self.loss = tf.math.reduce_mean(loss_func(self.label, self.probability))


if __name__ == "__main__":
    zoo.main(Model, build_columns, kind="taobao")

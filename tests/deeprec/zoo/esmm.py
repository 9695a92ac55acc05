"""ESMM: the rate of clicks and the rate of purchases after a click, trained on all impressions."""

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
]
ITEM = ["pid", "adgroup_id", "cate_id", "campaign_id", "customer", "brand", "price"]


def build_columns(args):
    with zoo.group_scope(args):
        return [
            [zoo.embedding(args, zoo.categorical(args, name), 16) for name in names]
            for names in (USER, ITEM, zoo.TAGS)
        ]


class Model:
    def __init__(self, inputs, columns, args):
        features, labels = inputs
        for key in zoo.TAGS:
            features[key] = tf.strings.split(features[key], "|")
        towers = []
        for name, of_tower in zip(("user", "item", "combo"), columns):
            with zoo.input_scope(args, name + "_input_layer"):
                net = zoo.input_layer(args, features, of_tower)
            with zoo.layer_scope(args, name + "_mlp_layer"):
                towers.append(layers.dnn(args, zoo.half(args, net), [16], name + "_mlp"))
        both = tf.concat(towers, axis=1)
        rates = []
        for name in ("ctr", "cvr"):
            with zoo.layer_scope(args, name + "_mlp"):
                net = layers.dnn(args, both, [16], name + "_mlp_hiddenlayer")
                rates.append(
                    tf.cast(
                        tf.layers.dense(net, 1, activation=tf.math.sigmoid, name="last"), tf.float32
                    )
                )
        clicks, purchases = (tf.reshape(tf.convert_to_tensor(label), [-1, 1]) for label in labels)
        self.label = tf.squeeze(clicks * purchases, [1])
        self.probability = tf.multiply(*rates)
        loss_func = tf.keras.losses.BinaryCrossentropy()
        penalty = 1e-5 * tf.add_n(
            [
                tf.nn.l2_loss(variable)
                for variable in tf.trainable_variables()
                if "mlp" in variable.name
            ]
        )
        self.loss = (
            tf.math.reduce_mean(
                loss_func(clicks, rates[0]) + loss_func(clicks * purchases, self.probability)
            )
            + penalty
        )


if __name__ == "__main__":
    zoo.main(Model, build_columns, kind="taobao")

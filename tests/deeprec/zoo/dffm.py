"""Attention over the fields of an example, a deep network and a linear model."""

import tensorflow as tf

import layers
import zoo


def build_columns(args):
    wide, deep = [], []
    with zoo.group_scope(args):
        for name in zoo.CATEGORICAL:
            wide.append(
                tf.feature_column.categorical_column_with_hash_bucket(
                    name, hash_bucket_size=1000, dtype=tf.string
                )
            )
            deep.append(zoo.embedding(args, zoo.categorical(args, name), 8))
    return wide + [zoo.numeric(name) for name in zoo.CONTINUOUS], deep


def normalize(net):
    mean, variance = tf.nn.moments(net, [-1], keep_dims=True)
    beta = tf.Variable(tf.zeros(net.get_shape()[-1:], dtype=net.dtype))
    return (net - mean) / (variance + 1e-8) ** 0.5 + beta


def self_attention(net, units, heads):
    queries, keys, values = (
        tf.layers.dense(net, units * heads, activation=tf.nn.relu) for _ in range(3)
    )
    queries, keys, values = (
        tf.concat(tf.split(x, heads, axis=2), axis=0) for x in (queries, keys, values)
    )
    weights = tf.nn.softmax(tf.matmul(queries, tf.transpose(keys, [0, 2, 1])) / (units**0.5))
    weights = tf.layers.dropout(weights, rate=0.0, training=tf.convert_to_tensor(True))
    attended = tf.concat(tf.split(tf.matmul(weights, values), heads, axis=0), axis=2)
    return normalize(
        tf.nn.relu(attended + tf.layers.dense(net, units * heads, activation=tf.nn.relu))
    )


class Model:
    def __init__(self, inputs, columns, args):
        features, (self.label,) = inputs
        wide, deep = columns
        with tf.variable_scope("dnn"):
            with zoo.input_scope(args, "input_from_feature_columns"):
                net = zoo.input_layer(args, features, deep)
            with tf.variable_scope("interaction_layers"):
                net = self_attention(tf.reshape(net, (-1, 26, 8)), units=8, heads=2)
                net = tf.reshape(net, (-1, 26 * 8 * 2))
            with zoo.layer_scope(args, "dnn_layers"):
                net = zoo.full(args, layers.dnn(args, zoo.half(args, net), [32, 16], "hiddenlayer"))
                dnn_logits = tf.layers.dense(net, units=1, activation=None, name="logits")
        with tf.variable_scope("linear"):
            fusion = {} if args.tf or not args.emb_fusion else {"do_fusion": args.emb_fusion}
            linear_logits = tf.feature_column.linear_model(
                units=1,
                features=features,
                feature_columns=wide,
                sparse_combiner="sum",
                trainable=True,
                **fusion,
            )
        logits = tf.add_n([dnn_logits, linear_logits])
        self.probability = tf.math.sigmoid(logits)
        self.loss = layers.sigmoid_loss(self.label, tf.squeeze(logits))
        self._train(args)

    def _train(self, args):
        global_step = tf.train.get_or_create_global_step()
        scopes = [
            (zoo.optimizer_of(args, global_step), "dnn", global_step),
            (tf.train.FtrlOptimizer(learning_rate=0.2), "linear", None),
        ]
        self.train_op = tf.group(
            *[
                optimizer.minimize(
                    self.loss,
                    var_list=tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope=scope),
                    global_step=step,
                )
                for optimizer, scope, step in scopes
            ]
        )


if __name__ == "__main__":
    zoo.main(Model, build_columns, kind="criteo")

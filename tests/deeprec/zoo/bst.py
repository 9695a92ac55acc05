"""BST: a transformer block over the tags of an example and its item."""

import tensorflow as tf

import layers
import zoo

UNSEQUENCED = [name for name in zoo.TAOBAO if name not in zoo.TAGS]
KEYS = ["cate_id", "brand"]
LENGTH = 6


def tag_column(args, name):
    if args.ev and not args.tf:
        column = tf.feature_column.sequence_categorical_column_with_embedding(
            name, dtype=tf.string, ev_option=zoo.ev_option(args)
        )
    else:
        column = tf.feature_column.sequence_categorical_column_with_hash_bucket(
            name, hash_bucket_size=1000, dtype=tf.string
        )
    return tf.feature_column.embedding_column(column, dimension=16, combiner="mean")


def build_columns(args):
    with zoo.group_scope(args):
        by_name = {
            name: zoo.embedding(args, zoo.categorical(args, name), 16) for name in UNSEQUENCED
        }
    return by_name, [tag_column(args, name) for name in zoo.TAGS]


def multihead_attention(net, lengths, heads):
    """net: [batch, LENGTH, width], the item last. lengths: how many tags there are."""
    width = int(net.shape[2])
    queries, keys, values = (
        tf.concat(
            tf.split(tf.layers.dense(net, width, activation=tf.nn.relu, name=name), heads, axis=-1),
            axis=0,
        )
        for name in ("query", "key", "value")
    )
    scores = tf.matmul(queries, keys, transpose_b=True)
    history = tf.sequence_mask(lengths, maxlen=LENGTH - 1)
    mask = tf.concat([history, tf.ones([tf.shape(history)[0], 1], dtype=tf.bool)], axis=1)
    mask = tf.reshape(tf.tile(mask, [heads, LENGTH]), (-1, LENGTH, LENGTH))
    scores -= 1.0e9 * tf.cast(tf.math.logical_not(mask), dtype=scores.dtype)
    attended = tf.concat(tf.split(tf.matmul(tf.nn.softmax(scores), values), heads, axis=0), axis=2)
    return tf.layers.dense(attended, width, activation=tf.nn.relu, name="multi_head_attention")


def transformer(history, lengths, key):
    longest = tf.shape(history)[1]
    history = tf.cond(
        tf.constant(LENGTH) > longest,
        lambda: tf.pad(history, [[0, 0], [0, LENGTH - longest - 1], [0, 0]], "CONSTANT"),
        lambda: tf.slice(history, [0, 0, 0], [-1, LENGTH - 1, -1]),
    )
    width = int(key.shape[1])
    net = tf.reshape(tf.concat([history, tf.expand_dims(key, 1)], axis=1), [-1, LENGTH, width])
    net = tf.keras.layers.LayerNormalization(axis=2)(
        tf.add(net, multihead_attention(net, lengths, heads=2))
    )
    forward = tf.layers.dense(net, width, activation=tf.nn.relu, name="feed_forward_net")
    net = tf.keras.layers.LayerNormalization(axis=2)(tf.add(net, forward))
    return tf.reshape(net, [-1, LENGTH * width])


class Model:
    def __init__(self, inputs, columns, args):
        features, (self.label, _) = inputs
        by_name, tags = columns
        for key in zoo.TAGS:
            features[key] = tf.strings.split(features[key], "|")
            features[key] = tf.sparse.slice(features[key], [0, 0], [args.batch_size, LENGTH - 1])
        with zoo.input_scope(args, "input_layer"):
            with tf.variable_scope("unseq_input_layer", reuse=tf.AUTO_REUSE):
                by_column = {}
                unsequenced = zoo.input_layer(
                    args,
                    {name: features[name] for name in UNSEQUENCED},
                    list(by_name.values()),
                    cols_to_output_tensors=by_column,
                )
                key = tf.concat([by_column[by_name[name]] for name in KEYS], axis=-1)
            with tf.variable_scope("tag_input_layer", reuse=tf.AUTO_REUSE):
                history, lengths = tf.contrib.feature_column.sequence_input_layer(features, tags)
        with zoo.layer_scope(args, "bst_tower"):
            attended = transformer(zoo.half(args, history), lengths, zoo.half(args, key))
        with zoo.layer_scope(args, "final_dnn_layer"):
            net = tf.concat([zoo.half(args, unsequenced), attended], axis=1)
            net = zoo.full(args, layers.dnn(args, net, [32, 16], "final_dnn", normalize=True))
        self.probability = tf.math.sigmoid(tf.layers.dense(inputs=net, units=1))
        loss_func = tf.keras.losses.CategoricalCrossentropy()
        self.loss = tf.math.reduce_mean(loss_func(self.label, tf.squeeze(self.probability)))


if __name__ == "__main__":
    zoo.main(Model, build_columns, kind="taobao")

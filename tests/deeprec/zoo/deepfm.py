"""DeepFM: a factorization machine and a deep network over the same embeddings."""

import tensorflow as tf

import layers
import zoo


def build_columns(args):
    dense = [zoo.numeric(name) for name in zoo.CONTINUOUS]
    with zoo.group_scope(args):
        fm = [zoo.embedding(args, zoo.categorical(args, name), 8) for name in zoo.CATEGORICAL]
    return dense + fm, dense + fm, fm


class Model:
    def __init__(self, inputs, columns, args):
        features, (self.label,) = inputs
        wide_columns, deep_columns, fm_columns = columns
        with zoo.input_scope(args, "input_layer"):
            by_column = {}
            deep = zoo.input_layer(args, features, deep_columns)
            wide = zoo.input_layer(args, features, wide_columns, cols_to_output_tensors=by_column)
            fm = tf.stack([by_column[column] for column in fm_columns], 1)
        with zoo.layer_scope(args, "dnn"):
            deep = layers.dnn(args, zoo.half(args, deep), [32, 16], "dnn_layer", normalize=True)
        linear = tf.reduce_sum(zoo.half(args, wide), axis=1, keepdims=True)
        fm = zoo.half(args, fm)
        square_of_sum = tf.square(tf.reduce_sum(fm, axis=1))
        second_order = 0.5 * tf.subtract(square_of_sum, tf.reduce_sum(tf.square(fm), axis=1))
        with zoo.layer_scope(args, "final_dnn"):
            net = layers.dnn(
                args, tf.concat([deep, linear, second_order], 1), [16], "final_dnn", normalize=True
            )
        self.probability = tf.math.sigmoid(tf.layers.dense(zoo.full(args, net), units=1))
        self.loss = tf.math.reduce_mean(
            tf.losses.mean_squared_error(self.label, tf.squeeze(self.probability))
        )


if __name__ == "__main__":
    zoo.main(Model, build_columns, kind="criteo")

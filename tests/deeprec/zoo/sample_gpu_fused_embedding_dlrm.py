"""embedding_column(do_fusion=True) in a DLRM."""

import tensorflow as tf

import dlrm
import layers
import samples


class Model:
    def __init__(self, inputs, args):
        features, self.label = inputs
        every, sparse_columns = samples.deepfm_columns(do_fusion=True)
        with tf.variable_scope("input_layer", reuse=tf.AUTO_REUSE):
            dense = tf.feature_column.input_layer(features, every[: len(samples.CONTINUOUS)])
            by_column = {}
            tf.feature_column.input_layer(
                features, sparse_columns, cols_to_output_tensors=by_column
            )
        with tf.variable_scope("mlp_bot_layer", reuse=tf.AUTO_REUSE):
            dense = layers.dnn(args, dense, [16, 8], "mlp_bot_hiddenlayer", normalize=True)
        products = dlrm.dot_products(
            tf.stack([dense] + [by_column[column] for column in sparse_columns], axis=1)
        )
        with tf.variable_scope("mlp_top_layer", reuse=tf.AUTO_REUSE):
            net = layers.dnn(args, tf.concat([dense, products], 1), [32, 16], "mlp_top_hiddenlayer")
        self.predict = tf.math.sigmoid(
            tf.layers.dense(net, units=1, activation=None, name="logits")
        )
        self.loss = tf.math.reduce_mean(
            tf.keras.losses.BinaryCrossentropy()(self.label, tf.squeeze(self.predict))
        )
        self.global_step = tf.train.get_or_create_global_step()
        optimizer = tf.train.AdagradOptimizer(
            learning_rate=args.learning_rate, initial_accumulator_value=0.1, use_locking=False
        )
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            self.train_op = optimizer.minimize(self.loss, global_step=self.global_step)


if __name__ == "__main__":
    args = samples.parser().parse_args()
    tf.set_random_seed(2021)
    inputs, init_ops = samples.iterate(
        *[samples.click_rows(file, args) for file in samples.files_of(args)]
    )
    samples.run(Model(inputs, args), args, init_ops)

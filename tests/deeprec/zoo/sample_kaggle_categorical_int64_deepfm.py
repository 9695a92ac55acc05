"""Ids that are numbers, looked up in embedding variables one by one or as a group, in a DeepFM."""

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc

import samples


def embedding_weights(args, name):
    initializer = tf.random_normal_initializer(mean=0.0, stddev=0.05)
    if not args.ev:
        return tf.get_variable(f"{name}_weight", shape=[1000, 8], initializer=initializer)
    filter_option = None
    if args.ev_filter == "cbf":
        filter_option = tf.CBFFilter(
            filter_freq=3,
            max_element_size=2**20,
            false_positive_probability=0.01,
            counter_type=tf.int64,
        )
    option = tf.EmbeddingVariableOption(evict_option=None, filter_option=filter_option)
    return tf.get_embedding_variable(
        f"{name}_weight", initializer=initializer, embedding_dim=8, ev_option=option
    )


def transform_categorical(args, features):
    variables, indices = [], []
    for feature, name in zip(features, samples.CATEGORICAL):
        variables.append(embedding_weights(args, name))
        feature = fc._to_sparse_input_and_drop_ignore_values(
            feature if args.ev else tf.math.floormod(feature, 1000)
        )
        indices.append(tf.sparse.reshape(feature, (-1, 1)))
    if args.group_embedding:
        return tf.nn.group_embedding_lookup_sparse(variables, indices, ["sum"] * len(variables))
    return [
        tf.nn.safe_embedding_lookup_sparse(
            embedding_weights=variable, sparse_ids=ids, combiner="sum"
        )
        for variable, ids in zip(variables, indices)
    ]


class Model:
    def __init__(self, inputs, args):
        features, self.label = inputs
        dense = (
            tf.stack([tf.cast(features[name], tf.float32) for name in samples.CONTINUOUS], axis=1)
            / 50.0
        )
        with tf.variable_scope("input_layer"):
            sparse = transform_categorical(args, [features[name] for name in samples.CATEGORICAL])
        self.predict = samples.deepfm_predict(
            args, tf.concat([dense] + sparse, axis=1), tf.stack(sparse, axis=1)
        )
        self.loss = tf.math.reduce_mean(
            tf.losses.mean_squared_error(self.label, tf.squeeze(self.predict))
        )
        self.global_step = tf.train.get_or_create_global_step()
        self.train_op = tf.train.AdamAsyncOptimizer(
            learning_rate=args.learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8
        ).minimize(self.loss, global_step=self.global_step)


if __name__ == "__main__":
    parser = samples.parser()
    parser.add_argument("--ev", action="store_true")
    parser.add_argument("--group_embedding", action="store_true")
    parser.add_argument("--ev_filter", choices=[None, "cbf"], default=None)
    args = parser.parse_args()
    tf.set_random_seed(2021)
    datasets = [
        samples.click_rows(file, args, parse=lambda value: samples.parse_csv(value, tf.int64))
        for file in samples.files_of(args)
    ]
    inputs, init_ops = samples.iterate(*datasets)
    samples.run(Model(inputs, args), args, init_ops)

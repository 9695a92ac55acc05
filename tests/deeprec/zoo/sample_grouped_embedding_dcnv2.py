"""CollectiveStrategy around a grouped lookup of a DCN v2, trained in a MonitoredTrainingSession or exported."""

import os

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.group_embedding_collective_strategy import CollectiveStrategy
from tensorflow.python.feature_column import feature_column_v2 as fc

import dcnv2
import layers
import samples

group_embedding_type = os.getenv("COLLECTIVE_STRATEGY", "sok")
assert group_embedding_type in ["sok", "hb"]
MAX_VALUE = np.iinfo(np.int64).max


def as_sparse(ids):
    return tf.sparse.reshape(fc._to_sparse_input_and_drop_ignore_values(ids), (-1, 1))


def by_columns(features):
    columns = [samples.scaler(name) for name in samples.CONTINUOUS]
    with tf.feature_column.group_embedding_column_scope(name="categorical"):
        for name in samples.CATEGORICAL:
            option = tf.EmbeddingVariableOption(evict_option=None, filter_option=None)
            column = tf.feature_column.categorical_column_with_embedding(
                key=name, dtype=tf.int64, ev_option=option
            )
            with tf.device("/gpu:0"):
                columns.append(
                    tf.feature_column.embedding_column(
                        categorical_column=column,
                        dimension=8,
                        initializer=tf.ones_initializer(tf.float32),
                    )
                )
    ids = {
        name: as_sparse(tf.strings.to_hash_bucket_fast(features[name], MAX_VALUE))
        for name in samples.CATEGORICAL
    }
    return tf.feature_column.input_layer({**features, **ids}, columns)


def by_lookup(features):
    variables, indices = [], []
    for name in samples.CATEGORICAL:
        with tf.device(f"/gpu:{0}"):
            variables.append(
                tf.get_embedding_variable(
                    f"{name}_weight",
                    initializer=tf.random_normal_initializer(mean=0.0, stddev=0.05),
                    embedding_dim=8,
                    ev_option=tf.EmbeddingVariableOption(evict_option=None, filter_option=None),
                )
            )
        category = tf.strings.to_hash_bucket_fast(features[name], MAX_VALUE)
        if group_embedding_type == "sok":
            indices.append(
                tf.RaggedTensor.from_row_lengths(
                    values=category, row_lengths=tf.ones_like(category)
                )
            )
        else:
            indices.append(as_sparse(category))
    wide = [
        tf.reshape(tf.cast(features[name], tf.float32), (-1, 1)) / 50.0
        for name in samples.CONTINUOUS
    ]
    return tf.concat(
        tf.nn.group_embedding_lookup_sparse(variables, indices, ["sum"] * len(variables)) + wide, 1
    )


def model_fn(strategy, args, features):
    with strategy.embedding_scope():
        net = by_columns(features) if args.use_feature_columns else by_lookup(features)
    net = layers.dnn(args, dcnv2.cross(net, 2), [32, 16], "dnn")
    return tf.layers.dense(net, 1, activation=tf.nn.sigmoid, name="score")


def train(strategy, args, checkpoint):
    with tf.device("/cpu:0"):
        features, label = tf.data.make_one_shot_iterator(
            samples.click_rows(samples.files_of(args)[0], args)
        ).get_next()
    score = model_fn(strategy, args, features)
    label = tf.reshape(tf.cast(label, tf.float32), (-1, 1))
    loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(label, score))
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.AdagradOptimizer(learning_rate=args.learning_rate).minimize(
        loss, global_step=step
    )
    hooks = [
        tf.train.StopAtStepHook(last_step=args.steps),
        tf.train.LoggingTensorHook({"steps": step, "loss": loss}, every_n_iter=500),
    ]
    with tf.train.MonitoredTrainingSession(
        hooks=hooks, checkpoint_dir=checkpoint, config=None
    ) as sess:
        while not sess.should_stop():
            found, _, at = sess.run([loss, train_op, step])
            print("step", at, "loss", repr(float(found)))


def export(strategy, args, checkpoint):
    def on_export():
        inputs = {
            name: tf.placeholder(tf.float32, [None], name=name) for name in samples.CONTINUOUS
        }
        inputs.update(
            {name: tf.placeholder(tf.string, [None], name=name) for name in samples.CATEGORICAL}
        )
        return tf.saved_model.predict_signature_def(
            inputs, {"score": model_fn(strategy, args, inputs)}
        )

    made = strategy.export_saved_model(
        os.path.join(args.output_dir, "saved_model"),
        tf.train.latest_checkpoint(checkpoint),
        on_export,
    )
    print("exported", os.listdir(made))


if __name__ == "__main__":
    parser = samples.parser()
    parser.add_argument("--mode", choices=["train", "export"], default="train")
    parser.add_argument("--use_feature_columns", action="store_true")
    args = parser.parse_args()
    strategy = CollectiveStrategy()
    with strategy.scope():
        tf.set_random_seed(2021)
        run = train if args.mode == "train" else export
        run(strategy, args, args.checkpoint or os.path.join(args.output_dir, "model"))

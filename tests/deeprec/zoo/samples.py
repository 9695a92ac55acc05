"""What the samples share: click rows read as text, two models over them, and a loop in a plain tf.Session."""

import argparse
import collections
import os

import tensorflow as tf
from tensorflow.python.client import timeline
from tensorflow.python.ops import partitioned_variables

import layers

CONTINUOUS = ["I" + str(i) for i in range(1, 14)]
CATEGORICAL = ["C" + str(i) for i in range(1, 1 + int(os.environ.get("ZOO_CATEGORIES", "26")))]
IDENTITY_NUM_BUCKETS = {"I10": 10}


def parser():
    made = argparse.ArgumentParser()
    made.add_argument("--data_location", default="./data")
    made.add_argument("--steps", type=int, default=0)
    made.add_argument("--batch_size", type=int, default=64)
    made.add_argument("--output_dir", default="./result")
    made.add_argument("--checkpoint")
    made.add_argument("--save_steps", type=int, default=50)
    made.add_argument("--timeline", type=int, default=0)
    made.add_argument("--keep_checkpoint_max", type=int, default=1)
    made.add_argument("--learning_rate", type=float, default=0.05)
    made.add_argument("--inter", type=int, default=0)
    made.add_argument("--intra", type=int, default=0)
    made.add_argument("--input_layer_partitioner", type=int, default=0)
    made.add_argument("--no_eval", action="store_true")
    return made


def parse_csv(value, ids=tf.string):
    """(features, labels) of a batch of lines."""
    defaults = [[0]] + [[0] if name in IDENTITY_NUM_BUCKETS else [0.0] for name in CONTINUOUS]
    defaults += [[" "] if ids == tf.string else [tf.constant(0, dtype=ids)] for _ in CATEGORICAL]
    columns = tf.io.decode_csv(value, record_defaults=defaults)
    features = collections.OrderedDict(zip(["clicked"] + CONTINUOUS + CATEGORICAL, columns))
    return features, features.pop("clicked")


def click_rows(files, args, num_epochs=100, parse=parse_csv):
    dataset = tf.data.TextLineDataset(files)
    dataset = dataset.shuffle(buffer_size=20000, seed=2021)
    dataset = dataset.repeat(num_epochs)
    dataset = dataset.prefetch(args.batch_size)
    dataset = dataset.batch(args.batch_size)
    return dataset.map(parse, num_parallel_calls=2).prefetch(1)


def iterate(train_dataset, test_dataset):
    """((features, labels), initializers of the iterator on the two datasets)"""
    iterator = tf.data.Iterator.from_structure(
        train_dataset.output_types, test_dataset.output_shapes
    )
    return iterator.get_next(), [
        iterator.make_initializer(dataset) for dataset in (train_dataset, test_dataset)
    ]


def files_of(args):
    return [os.path.join(args.data_location, name) for name in ("train.csv", "eval.csv")]


def scaler(name):
    low = -3.0 if name == "I2" else 0.0
    return tf.feature_column.numeric_column(
        name, normalizer_fn=lambda column: (tf.cast(column, tf.float32) - low) / 50.0, shape=(1,)
    )


def hashed(name):
    return tf.feature_column.categorical_column_with_hash_bucket(
        name, hash_bucket_size=1000, dtype=tf.string
    )


def wide_and_deep_columns(categorical=hashed, **embedding):
    """(wide, deep): one number is an id, and deep has it as an indicator."""
    wide, deep = [], []
    for name in CONTINUOUS + CATEGORICAL:
        if name in IDENTITY_NUM_BUCKETS:
            column = tf.feature_column.categorical_column_with_identity(
                name, num_buckets=IDENTITY_NUM_BUCKETS[name]
            )
            deep.append(tf.feature_column.indicator_column(column))
        elif name in CATEGORICAL:
            column = categorical(name)
            deep.append(
                tf.feature_column.embedding_column(
                    column, dimension=8, combiner="mean", **embedding
                )
            )
        else:
            column = scaler(name)
            deep.append(column)
        wide.append(column)
    return wide, deep


class WideAndDeep:
    """`inputs` is (features, labels); or features alone, for serving."""

    def __init__(
        self, inputs, columns, args, deep_optimizer=tf.train.AdagradOptimizer, **arguments
    ):
        features, self.label = inputs if isinstance(inputs, tuple) else (inputs, None)
        wide, deep = columns
        partitioner = (
            partitioned_variables.min_max_variable_partitioner(
                max_partitions=1, min_slice_size=args.input_layer_partitioner << 20
            )
            if args.input_layer_partitioner
            else None
        )
        with tf.variable_scope("dnn"):
            with tf.variable_scope(
                "input_from_feature_columns", partitioner=partitioner, reuse=tf.AUTO_REUSE
            ):
                net = tf.feature_column.input_layer(features=features, feature_columns=deep)
            with tf.variable_scope("dnn_layers", reuse=tf.AUTO_REUSE):
                net = layers.dnn(args, net, [32, 16], "hiddenlayer")
            with tf.variable_scope("logits", values=(net,)) as scope:
                dnn_logits = tf.layers.dense(net, units=1, activation=None, name=scope)
        with tf.variable_scope("linear", partitioner=partitioner):
            linear_logits = tf.feature_column.linear_model(
                units=1,
                features=features,
                feature_columns=wide,
                sparse_combiner="sum",
                weight_collections=None,
                trainable=True,
            )
        self.logits = tf.add_n([dnn_logits, linear_logits])
        self.predict = tf.math.sigmoid(self.logits)
        self.global_step = tf.train.get_or_create_global_step()
        if self.label is not None:
            self.loss = layers.sigmoid_loss(self.label, tf.squeeze(self.logits))
            deep = deep_optimizer(
                learning_rate=args.learning_rate,
                initial_accumulator_value=0.1,
                use_locking=False,
                **arguments,
            )
            linear = tf.train.FtrlOptimizer(
                learning_rate=0.2, l1_regularization_strength=0.0, l2_regularization_strength=0.0
            )
            self._minimize({"dnn": deep, "linear": linear})

    def _minimize(self, optimizers):
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            self.train_op = tf.group(
                tf.assign_add(self.global_step, 1),
                *[
                    optimizer.minimize(
                        self.loss,
                        var_list=tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope=scope),
                    )
                    for scope, optimizer in optimizers.items()
                ],
            )


def deepfm_columns(categorical=hashed, **embedding):
    """(all columns, embedding columns)"""
    dense = [scaler(name) for name in CONTINUOUS]
    fm = [
        tf.feature_column.embedding_column(
            categorical(name), dimension=8, combiner="mean", **embedding
        )
        for name in CATEGORICAL
    ]
    return dense + fm, fm


def deepfm_predict(args, net, fm, width=(32, 16)):
    """Probabilities [batch, 1] from all features [batch, n] and embeddings [batch, columns, dim]."""
    with tf.variable_scope("dnn"):
        deep = layers.dnn(args, net, width, "dnn_layer", normalize=True)
    linear = tf.reduce_sum(net, axis=1, keepdims=True)
    second_order = 0.5 * tf.subtract(
        tf.square(tf.reduce_sum(fm, axis=1)), tf.reduce_sum(tf.square(fm), axis=1)
    )
    net = layers.dnn(
        args, tf.concat([deep, linear, second_order], 1), [16], "final_dnn", normalize=True
    )
    return tf.math.sigmoid(tf.layers.dense(net, units=1))


class DeepFM:
    def __init__(self, inputs, columns, args):
        features, self.label = inputs
        every, fm_columns = columns
        with tf.variable_scope("input_layer", reuse=tf.AUTO_REUSE):
            by_column = {}
            net = tf.feature_column.input_layer(features, every, cols_to_output_tensors=by_column)
            fm = tf.stack([by_column[column] for column in fm_columns], 1)
        self.predict = deepfm_predict(args, net, fm)
        self.loss = tf.math.reduce_mean(
            tf.losses.mean_squared_error(self.label, tf.squeeze(self.predict))
        )
        self.global_step = tf.train.get_or_create_global_step()
        optimizer = tf.train.AdamOptimizer(
            learning_rate=args.learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8
        )
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            self.train_op = optimizer.minimize(self.loss, global_step=self.global_step)


def add_metrics(model):
    predicted = tf.squeeze(model.predict)
    _, model.acc_op = tf.metrics.accuracy(labels=model.label, predictions=tf.round(predicted))
    _, model.auc_op = tf.metrics.auc(labels=model.label, predictions=predicted, num_thresholds=1000)
    tf.summary.scalar("loss", model.loss)


def session_config_of(args):
    config = tf.ConfigProto()
    config.inter_op_parallelism_threads = args.inter
    config.intra_op_parallelism_threads = args.intra
    return config


def run(model, args, init_ops, config=None, make_saver=tf.train.Saver, after_step=None):
    """Trains and evaluates in a plain session; continues where the folder has a checkpoint.

    make_saver: may return None: no saver. after_step: called with the session and the step if the step saves no checkpoint.
    """
    add_metrics(model)
    checkpoint_dir = args.checkpoint or os.path.join(args.output_dir, "model")
    with tf.Session(config=config or session_config_of(args)) as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(tf.local_variables_initializer())
        merged = tf.summary.merge_all()
        writer = tf.summary.FileWriter(checkpoint_dir, sess.graph)
        saver = make_saver(tf.global_variables(), max_to_keep=args.keep_checkpoint_max)
        if saver and tf.train.latest_checkpoint(checkpoint_dir):
            saver.restore(sess, tf.train.latest_checkpoint(checkpoint_dir))
        sess.run(init_ops[0])
        for step in range(args.steps):
            loss = _step(sess, model, args, step, checkpoint_dir)
            print("step", step, "loss", repr(float(loss)))
            if saver and args.save_steps and step % args.save_steps == args.save_steps - 1:
                writer.add_summary(sess.run(merged), step)
                saver.save(
                    sess, save_path=os.path.join(checkpoint_dir, "checkpoint"), global_step=step
                )
            elif saver and after_step:
                after_step(sess, step)
        if not args.no_eval:
            _evaluate(sess, model, init_ops[1])


def _step(sess, model, args, step, folder):
    if not args.timeline or step % args.timeline:
        return sess.run([model.train_op, model.loss])[1]
    run_metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    _, loss = sess.run([model.train_op, model.loss], options=options, run_metadata=run_metadata)
    with open(os.path.join(folder, "timeline-%d.json" % step), "w") as file:
        file.write(timeline.Timeline(run_metadata.step_stats).generate_chrome_trace_format())
    return loss


def _evaluate(sess, model, init_op):
    sess.run(init_op)
    sess.run(tf.local_variables_initializer())
    for _ in range(4):
        acc, auc = sess.run([model.acc_op, model.auc_op])
    print(f"ACC = {acc}\nAUC = {auc}")

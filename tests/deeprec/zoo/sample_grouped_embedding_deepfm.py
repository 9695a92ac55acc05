"""CollectiveStrategy.estimator trains, evaluates, predicts with or exports a DeepFM over grouped columns."""

import os

import tensorflow as tf
from tensorflow.python.distribute.group_embedding_collective_strategy import CollectiveStrategy

import samples


def build_feature_columns(args):
    option = tf.EmbeddingVariableOption(evict_option=None, filter_option=None)
    with tf.feature_column.group_embedding_column_scope(name="categorical"):
        return samples.deepfm_columns(
            lambda name: tf.feature_column.categorical_column_with_embedding(
                name, dtype=tf.string, ev_option=option
            ),
            do_fusion=True,
        )


def model_function(strategy, args, columns):
    every, fm_columns = columns

    def call(features, labels, mode, config):
        with strategy.embedding_scope(), tf.variable_scope("input_layer", reuse=tf.AUTO_REUSE):
            by_column = {}
            net = tf.feature_column.input_layer(features, every, cols_to_output_tensors=by_column)
            fm = tf.stack([by_column[column] for column in fm_columns], 1)
        probability = samples.deepfm_predict(args, net, fm)
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode=mode, predictions={"score": probability})
        loss = tf.math.reduce_mean(tf.losses.mean_squared_error(labels, tf.squeeze(probability)))
        if mode == tf.estimator.ModeKeys.EVAL:
            return tf.estimator.EstimatorSpec(mode=mode, loss=loss)
        optimizer = tf.train.AdamAsyncOptimizer(
            learning_rate=args.learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8
        )
        step = tf.train.get_or_create_global_step()
        return tf.estimator.EstimatorSpec(
            mode=mode,
            loss=loss,
            train_op=optimizer.minimize(loss, global_step=step),
            training_chief_hooks=[PrintLoss(loss)],
        )

    return call


class PrintLoss(tf.train.SessionRunHook):
    def __init__(self, loss):
        self._fetches = [tf.train.get_or_create_global_step(), loss]

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        print("step", run_values.results[0], "loss", repr(float(run_values.results[1])))


def build_receiver():
    inputs = {name: tf.placeholder(tf.float32, [None], name=name) for name in samples.CONTINUOUS}
    inputs.update(
        {name: tf.placeholder(tf.string, [None], name=name) for name in samples.CATEGORICAL}
    )
    return tf.estimator.export.ServingInputReceiver(inputs, inputs)


def main(strategy, args):
    checkpoint_dir = args.checkpoint or os.path.join(args.output_dir, "model")
    run_config = tf.estimator.RunConfig(
        session_config=samples.session_config_of(args), tf_random_seed=2021
    )
    estimator = strategy.estimator(
        model_fn=model_function(strategy, args, build_feature_columns(args)),
        model_dir=checkpoint_dir,
        config=run_config,
    )
    train_file, test_file = samples.files_of(args)
    if args.mode == "train":
        estimator.train_and_evaluate(
            tf.estimator.TrainSpec(
                input_fn=lambda: samples.click_rows(train_file, args),
                max_steps=args.steps,
                hooks=[tf.train.StopAtStepHook(last_step=args.steps)],
            ),
            tf.estimator.EvalSpec(input_fn=lambda: samples.click_rows(test_file, args, 1)),
        )
    elif args.mode == "evaluate":
        print(estimator.evaluate(input_fn=lambda: samples.click_rows(test_file, args, 1), steps=4))
    elif args.mode == "predict":
        predictions = estimator.predict(
            input_fn=lambda: samples.click_rows(test_file, args, 1),
            predict_keys=["score"],
            yield_single_examples=False,
        )
        print(next(predictions))
    else:
        estimator.export_saved_model(checkpoint_dir, build_receiver)
        print("exported")


if __name__ == "__main__":
    parser = samples.parser()
    parser.add_argument(
        "--mode", choices=["train", "evaluate", "predict", "export"], default="train"
    )
    args = parser.parse_args()
    strategy = CollectiveStrategy()
    with strategy.scope():
        main(strategy, args)

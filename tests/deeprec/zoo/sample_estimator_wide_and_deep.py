"""tf.estimator.DNNLinearCombinedClassifier, trained and evaluated."""

import tensorflow as tf

import samples


def build_estimator(args):
    wide, deep = samples.wide_and_deep_columns()
    config = tf.estimator.RunConfig(
        protocol=args.protocol,
        save_checkpoints_steps=args.save_steps,
        keep_checkpoint_max=args.keep_checkpoint_max,
        tf_random_seed=2021,
    )
    dtype = {"dnn_dtype": tf.bfloat16} if args.bf16 else {}
    return tf.estimator.DNNLinearCombinedClassifier(
        config=config,
        model_dir=args.checkpoint or args.output_dir + "/model",
        linear_feature_columns=wide,
        linear_optimizer=lambda: tf.compat.v1.train.FtrlOptimizer(learning_rate=0.2),
        linear_sparse_combiner="sum",
        dnn_feature_columns=deep,
        dnn_dropout=0.0,
        dnn_hidden_units=[32, 16],
        dnn_optimizer=lambda: tf.compat.v1.train.AdagradOptimizer(
            learning_rate=args.learning_rate, initial_accumulator_value=0.1
        ),
        loss_reduction=tf.losses.Reduction.SUM_OVER_BATCH_SIZE,
        **dtype,
    )


class PrintLoss(tf.train.SessionRunHook):
    def before_run(self, run_context):
        (loss,) = tf.get_collection(tf.GraphKeys.LOSSES)
        return tf.train.SessionRunArgs([loss, tf.train.get_global_step()])

    def after_run(self, run_context, run_values):
        print("step", run_values.results[1], "loss", repr(float(run_values.results[0])))


if __name__ == "__main__":
    parser = samples.parser()
    parser.add_argument("--protocol", default="grpc")
    parser.add_argument("--bf16", default=False)
    args = parser.parse_args()
    train_file, test_file = samples.files_of(args)
    train_spec = tf.estimator.TrainSpec(
        input_fn=lambda: samples.click_rows(train_file, args),
        max_steps=args.steps,
        hooks=[PrintLoss()],
    )
    eval_spec = tf.estimator.EvalSpec(
        input_fn=lambda: samples.click_rows(test_file, args, num_epochs=1), steps=4
    )
    results = tf.estimator.train_and_evaluate(build_estimator(args), train_spec, eval_spec)
    print("Accuracy: %s" % results[0]["accuracy"])
    print("AUC = %s" % results[0]["auc"])

"""Executors of DeepRec, chosen in ConfigProto, run a DeepFM."""

import tensorflow as tf

import samples


def session_config(args):
    config = samples.session_config_of(args)
    if args.use_cost_model_executor:
        config.executor_policy = tf.ExecutorPolicy.USE_COST_MODEL_EXECUTOR
    if args.use_thread_local_executor:
        config.executor_policy = tf.ExecutorPolicy.USE_INLINE_EXECUTOR
    return config


if __name__ == "__main__":
    parser = samples.parser()
    parser.add_argument("--use_cost_model_executor", type=bool, default=False)
    parser.add_argument("--use_thread_local_executor", type=bool, default=False)
    args = parser.parse_args()
    tf.set_random_seed(2021)
    inputs, init_ops = samples.iterate(
        *[samples.click_rows(file, args) for file in samples.files_of(args)]
    )
    samples.run(
        samples.DeepFM(inputs, samples.deepfm_columns(), args), args, init_ops, session_config(args)
    )

"""A WorkQueue hands out four files to the input of a wide and deep model, in a plain Session or, with --tf_config, a monitored one."""

import os
import shutil

import tensorflow as tf
from tensorflow.python.ops.work_queue import WorkQueue

import samples


def copies(file, folder):
    os.makedirs(folder, exist_ok=True)
    suffixes = ("", ".1", ".2", ".3")
    return [shutil.copy(file, os.path.join(folder, "train.csv" + suffix)) for suffix in suffixes]


def train_monitored(model, args, init_op):
    hooks = [
        tf.train.StopAtStepHook(last_step=args.steps),
        tf.train.LoggingTensorHook(
            {"steps": model.global_step, "loss": model.loss}, every_n_iter=100
        ),
    ]
    local_init_op = tf.group(
        tf.global_variables_initializer(), tf.local_variables_initializer(), init_op
    )
    with tf.train.MonitoredTrainingSession(
        master="",
        is_chief=True,
        checkpoint_dir=args.checkpoint or os.path.join(args.output_dir, "model"),
        scaffold=tf.train.Scaffold(local_init_op=local_init_op),
        hooks=hooks,
        log_step_count_steps=100,
        config=samples.session_config_of(args),
    ) as sess:
        while not sess.should_stop():
            _, loss, step = sess.run([model.train_op, model.loss, model.global_step])
            print("step", step, "loss", repr(float(loss)))


if __name__ == "__main__":
    parser = samples.parser()
    parser.add_argument("--tf_config", action="store_true")
    args = parser.parse_args()
    tf.set_random_seed(2021)
    train_file, test_file = samples.files_of(args)
    work_queue = WorkQueue(copies(train_file, args.output_dir))
    inputs, init_ops = samples.iterate(
        samples.click_rows(work_queue.input_dataset(), args, num_epochs=1),
        samples.click_rows(test_file, args, num_epochs=1),
    )
    model = samples.WideAndDeep(inputs, samples.wide_and_deep_columns(), args)
    if args.tf_config:
        train_monitored(model, args, init_ops[0])
    else:
        samples.run(model, args, init_ops)

"""Embedding variables with a storage in a wide and deep model: trained with an incremental saver, or exported."""

import os

import tensorflow as tf
from tensorflow.core.framework.embedding import config_pb2
from tensorflow.python.ops import variables
from tensorflow.python.training import incremental_saver as tf_incr_saver

import samples


def option(args):
    size = args.ev_storage_size_mb << 20
    kind = config_pb2.StorageType
    if args.ev_storage == "pmem_libpmem":
        storage = variables.StorageOption(
            storage_type=kind.PMEM_LIBPMEM, storage_path=args.ev_storage_path, storage_size=[size]
        )
    elif args.ev_storage == "pmem_memkind":
        storage = variables.StorageOption(storage_type=kind.PMEM_MEMKIND)
    elif args.ev_storage == "dram_pmem":
        storage = variables.StorageOption(
            storage_type=kind.DRAM_PMEM,
            storage_path=args.ev_storage_path,
            storage_size=[size, size],
        )
    else:
        storage = variables.StorageOption(storage_type=kind.DRAM)
    return tf.EmbeddingVariableOption(storage_option=storage)


def placeholders():
    inputs = {}
    for name in samples.CONTINUOUS:
        inputs[name] = tf.placeholder(
            tf.int64 if name in samples.IDENTITY_NUM_BUCKETS else tf.float32, [None], name=name
        )
    for name in samples.CATEGORICAL:
        inputs[name] = tf.placeholder(tf.string, [None], name=name)
    return inputs


class Incremental:
    """Checkpoints, and what changed since then every few steps."""

    def __init__(self, args):
        self.args = args

    def saver(self, *arguments, **more):
        saver = tf.train.Saver(*arguments, incremental_save_restore=True, **more)
        self.incr_saver = tf_incr_saver._get_incremental_saver(True, saver)
        return saver

    def save(self, sess, step):
        if self.args.incr_save_steps and step % self.args.incr_save_steps == 0:
            folder = self.args.checkpoint or os.path.join(self.args.output_dir, "model")
            path = os.path.join(folder, ".incremental_checkpoint/incr-checkpoint")
            path = self.incr_saver.incremental_save(sess, path, global_step=step)
            print("Save incremental checkpoint to %s" % path)


def export(args, columns):
    inputs = placeholders()
    model = samples.WideAndDeep(inputs, columns, args)
    with tf.Session(config=samples.session_config_of(args)) as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(tf.local_variables_initializer())
        tf.saved_model.simple_save(
            sess, args.saved_model_path, inputs=inputs, outputs={"predict": model.predict}
        )
    print("exported", os.listdir(args.saved_model_path))


if __name__ == "__main__":
    parser = samples.parser()
    parser.add_argument("--saved_model_path", default="")
    parser.add_argument("--no_saver", action="store_true")
    parser.add_argument("--incr_save_steps", type=int, default=0)
    parser.add_argument(
        "--ev_storage",
        choices=["dram", "pmem_libpmem", "pmem_memkind", "dram_pmem"],
        default="dram",
    )
    parser.add_argument("--ev_storage_path", default="/mnt/pmem0/pmem_allocator/")
    parser.add_argument("--ev_storage_size_mb", type=int, default=1)
    args = parser.parse_args()
    tf.set_random_seed(2021)
    columns = samples.wide_and_deep_columns(
        lambda name: tf.feature_column.categorical_column_with_embedding(
            name, dtype=tf.string, ev_option=option(args)
        )
    )
    if args.saved_model_path:
        export(args, columns)
    else:
        inputs, init_ops = samples.iterate(
            *[samples.click_rows(file, args) for file in samples.files_of(args)]
        )
        model = samples.WideAndDeep(inputs, columns, args)
        incremental = Incremental(args)
        samples.run(
            model,
            args,
            init_ops,
            make_saver=(lambda *_, **__: None) if args.no_saver else incremental.saver,
            after_step=incremental.save,
        )

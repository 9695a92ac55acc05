"""What the models share, written with DeepRec's names: flags, input pipelines, options of columns, the training loop.

A model is a class `Model(inputs, columns, args)` with `loss`, `probability` and `label`; its script ends with

    zoo.main(Model, build_columns, kind="criteo")
"""

import argparse
import collections
import contextlib
import math
import os

import tensorflow as tf
from tensorflow.python.ops import partitioned_variables

CONTINUOUS = ["I" + str(i) for i in range(1, 14)]
CATEGORICAL = ["C" + str(i) for i in range(1, 1 + int(os.environ.get("ZOO_CATEGORIES", "26")))]
TAOBAO_IDS = [
    "pid",
    "adgroup_id",
    "cate_id",
    "campaign_id",
    "customer",
    "brand",
    "user_id",
    "cms_segid",
    "cms_group_id",
    "final_gender_code",
    "age_level",
    "pvalue_level",
    "shopping_level",
    "occupation",
    "new_user_class_level",
]
TAGS = ["tag_category_list", "tag_brand_list"]
TAOBAO = TAOBAO_IDS + TAGS + ["price"]
AMAZON = ["UID", "ITEM", "CATEGORY", "HISTORY_ITEM", "HISTORY_CATEGORY"]

# Of each kind of data: names of the training and test file without suffix, suffix of text, delimiter, labels, features.
KINDS = {
    "criteo": (("train", "eval"), ".csv", ",", ["clicked"], CONTINUOUS + CATEGORICAL),
    "taobao": (("taobao_train_data", "taobao_test_data"), "", ",", ["clk", "buy"], TAOBAO),
    "amazon": (
        ("local_train_splitByUser", "local_test_splitByUser"),
        "",
        "\t",
        ["CLICKED"],
        AMAZON,
    ),
}


def boolean_string(string):
    if string.lower() not in {"false", "true"}:
        raise ValueError("Not a valid boolean string")
    return string.lower() == "true"


def parser():
    made = argparse.ArgumentParser()
    made.add_argument("--data_location", default="./data")
    made.add_argument("--steps", type=int, default=0)
    made.add_argument("--batch_size", type=int, default=128)
    made.add_argument("--output_dir", default="./result")
    made.add_argument("--checkpoint")
    made.add_argument("--save_steps", type=int, default=0)
    made.add_argument("--embedding_dim", type=int, default=8)
    made.add_argument("--buckets", type=int, default=1000)
    made.add_argument("--width", type=int, default=1)  # times the units of towers of dense layers
    made.add_argument("--seed", type=int, default=2021)
    made.add_argument(
        "--optimizer", choices=["adam", "adamasync", "adagraddecay", "adagrad"], default="adamasync"
    )
    made.add_argument("--learning_rate", type=float, default=0.01)
    made.add_argument("--keep_checkpoint_max", type=int, default=1)
    made.add_argument("--protocol", choices=["grpc", "grpc++", "star_server"], default="grpc")
    made.add_argument("--inter", type=int, default=0)
    made.add_argument("--intra", type=int, default=0)
    made.add_argument("--input_layer_partitioner", type=int, default=8)
    made.add_argument("--dense_layer_partitioner", type=int, default=16)
    made.add_argument("--bf16", action="store_true")
    made.add_argument("--no_eval", action="store_true")
    made.add_argument("--tf", action="store_true")
    made.add_argument("--ev_elimination", choices=[None, "l2", "gstep"], default=None)
    made.add_argument("--ev_filter", choices=[None, "counter", "cbf"], default=None)
    made.add_argument("--micro_batch", type=int, default=0)
    made.add_argument("--incremental_ckpt", type=int, default=0)
    made.add_argument("--group_embedding", choices=[None, "localized", "collective"], default=None)
    for name, default in (
        ("smartstaged", True),
        ("emb_fusion", True),
        ("ev", False),
        ("op_fusion", True),
        ("adaptive_emb", False),
        ("multihash", False),
        ("workqueue", False),
        ("parquet_dataset", True),
        ("parquet_dataset_shuffle", False),
    ):
        made.add_argument("--" + name, type=boolean_string, default=default)
    return made


def files_of(args, kind):
    """The training and the test file."""
    names, suffix = KINDS[kind][:2]
    suffix = ".parquet" if args.parquet_dataset and not args.tf else suffix
    return [os.path.join(args.data_location, name + suffix) for name in names]


def count_rows(args, file):
    if args.parquet_dataset and not args.tf:
        import pyarrow.parquet as pq

        return pq.read_table(file).num_rows
    with open(file) as lines:
        return sum(1 for _ in lines)


def text_dataset(files, args, kind):
    """Batches of decoded lines: (features, labels)."""
    _, _, delimiter, labels, features = KINDS[kind]

    def parse_csv(value):
        defaults = [[0]] * len(labels) + [
            [0.0] if name in CONTINUOUS else [" "] for name in features
        ]
        columns = tf.io.decode_csv(value, record_defaults=defaults, field_delim=delimiter)
        read = collections.OrderedDict(zip(labels + features, columns))
        return read, tuple(read.pop(label) for label in labels)

    dataset = tf.data.TextLineDataset(files).shuffle(buffer_size=20000, seed=args.seed)
    return dataset, lambda batches: batches.map(parse_csv, num_parallel_calls=2)


def build_model_input(file, args, kind, num_epochs):
    """A dataset of (features, labels): a dict from names to tensors, and a tuple."""
    labels, features = KINDS[kind][3:]

    def parse_parquet(value):
        return {name: value[name] for name in features}, tuple(value.pop(label) for label in labels)

    files = file
    repeats = not args.workqueue
    if args.workqueue and not args.tf:
        from tensorflow.python.ops.work_queue import WorkQueue

        work_queue = WorkQueue([file], num_epochs=num_epochs)
        files = work_queue.input_dataset()
    if args.parquet_dataset and not args.tf:
        from tensorflow.python.data.experimental.ops import parquet_dataset_ops

        dataset = parquet_dataset_ops.ParquetDataset(files, batch_size=args.batch_size)
        if args.parquet_dataset_shuffle:
            dataset = dataset.shuffle(buffer_size=20000, seed=args.seed)
        dataset = dataset.repeat(num_epochs) if repeats else dataset
        dataset = dataset.map(parse_parquet, num_parallel_calls=2)
    else:
        dataset, parse = text_dataset(files, args, kind)
        dataset = dataset.repeat(num_epochs) if repeats else dataset
        dataset = parse(dataset.batch(args.batch_size))
    return dataset.prefetch(2)


def ev_option(args):
    """Elimination and filter of embedding variables, as the flags ask."""
    evict_opt = filter_option = None
    if args.ev_elimination == "gstep":
        evict_opt = tf.GlobalStepEvict(steps_to_live=4000)
    elif args.ev_elimination == "l2":
        evict_opt = tf.L2WeightEvict(l2_weight_threshold=1.0)
    if args.ev_filter == "cbf":
        filter_option = tf.CBFFilter(
            filter_freq=3,
            max_element_size=2**20,
            false_positive_probability=0.01,
            counter_type=tf.int64,
        )
    elif args.ev_filter == "counter":
        filter_option = tf.CounterFilter(filter_freq=3)
    return tf.EmbeddingVariableOption(evict_option=evict_opt, filter_option=filter_option)


def categorical(args, name):
    buckets = args.buckets
    if args.tf or not (args.ev or args.adaptive_emb):
        return tf.feature_column.categorical_column_with_hash_bucket(
            name, hash_bucket_size=buckets, dtype=tf.string
        )
    if args.ev:
        return tf.feature_column.categorical_column_with_embedding(
            name, dtype=tf.string, ev_option=ev_option(args)
        )
    return tf.feature_column.categorical_column_with_adaptive_embedding(
        name, hash_bucket_size=buckets, dtype=tf.string, ev_option=ev_option(args)
    )


def embedding(args, column, dim, combiner="mean"):
    if args.tf or not args.emb_fusion:
        return tf.feature_column.embedding_column(column, dimension=dim, combiner=combiner)
    return tf.feature_column.embedding_column(
        column, dimension=dim, combiner=combiner, do_fusion=args.emb_fusion
    )


def numeric(name):
    return tf.feature_column.numeric_column(
        name, normalizer_fn=lambda column: column / 50.0, shape=(1,)
    )


def group_scope(args):
    if args.group_embedding and not args.tf:
        return tf.feature_column.group_embedding_column_scope(name="categorical")
    return contextlib.nullcontext()


def input_layer(args, features, columns, **more):
    """tf.feature_column.input_layer, with masks where --adaptive_emb asks."""
    if args.adaptive_emb and not args.tf:
        names = [name for name in features if name in CATEGORICAL + TAOBAO + ["UID"]]
        more["adaptive_mask_tensors"] = {
            name: tf.ones([args.batch_size], tf.int32) for name in names
        }
    return tf.feature_column.input_layer(features=features, feature_columns=columns, **more)


def partitioner(slice_size, unit):
    if not slice_size:
        return None
    return partitioned_variables.min_max_variable_partitioner(
        max_partitions=1, min_slice_size=slice_size << unit
    )


def layer_scope(args, name):
    """A variable scope of dense layers; with --bf16 their weights are kept in float32."""
    scope = tf.variable_scope(
        name, partitioner=partitioner(args.dense_layer_partitioner, 10), reuse=tf.AUTO_REUSE
    )
    return scope.keep_weights(dtype=tf.float32) if args.bf16 and not args.tf else scope


def input_scope(args, name):
    return tf.variable_scope(
        name, partitioner=partitioner(args.input_layer_partitioner, 20), reuse=tf.AUTO_REUSE
    )


def half(args, tensor):
    return tf.cast(tensor, dtype=tf.bfloat16) if args.bf16 and not args.tf else tensor


def full(args, tensor):
    return tf.cast(tensor, dtype=tf.float32) if args.bf16 and not args.tf else tensor


def optimizer_of(args, global_step):
    if args.optimizer == "adagrad":
        return tf.train.AdagradOptimizer(
            learning_rate=args.learning_rate, initial_accumulator_value=0.1, use_locking=False
        )
    if args.tf or args.optimizer == "adam":
        return tf.train.AdamOptimizer(
            learning_rate=args.learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8
        )
    if args.optimizer == "adamasync":
        return tf.train.AdamAsyncOptimizer(
            learning_rate=args.learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8
        )
    return tf.train.AdagradDecayOptimizer(learning_rate=args.learning_rate, global_step=global_step)


def summarize(value, tag):
    tf.summary.scalar("%s/fraction_of_zero_values" % tag, tf.nn.zero_fraction(value))
    tf.summary.histogram("%s/activation" % tag, value)


def minimize(model, args):
    """model.train_op by one optimizer for everything; models with several have a train_op of their own."""
    if getattr(model, "train_op", None) is None:
        optimizer = optimizer_of(args, model.global_step)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            model.train_op = optimizer.minimize(model.loss, global_step=model.global_step)
    label = tf.cast(model.label, tf.float32)
    predicted = tf.reshape(model.probability, tf.shape(label))
    _, model.acc_op = tf.metrics.accuracy(labels=label, predictions=tf.round(predicted))
    _, model.auc_op = tf.metrics.auc(labels=label, predictions=predicted, num_thresholds=1000)
    tf.summary.scalar("loss", model.loss)


def train(session_config, hooks, model, data_init_op, steps, checkpoint_dir, args):
    """Trains and prints the loss of every step, with all its digits."""
    scaffold = tf.train.Scaffold(
        local_init_op=tf.group(
            tf.local_variables_initializer(), tf.tables_initializer(), data_init_op
        ),
        saver=tf.train.Saver(max_to_keep=args.keep_checkpoint_max, sharded=True),
    )
    hooks = hooks + [
        tf.train.StopAtStepHook(last_step=steps),
        tf.train.LoggingTensorHook(
            {"steps": model.global_step, "loss": model.loss}, every_n_iter=100
        ),
    ]
    with tf.train.MonitoredTrainingSession(
        master="",
        is_chief=True,
        hooks=hooks,
        scaffold=scaffold,
        checkpoint_dir=checkpoint_dir,
        save_checkpoint_steps=args.save_steps if args.save_steps or args.no_eval else steps,
        summary_dir=checkpoint_dir,
        save_summaries_steps=args.save_steps,
        config=session_config,
    ) as session:
        while not session.should_stop():
            loss, _, step = session.run([model.loss, model.train_op, model.global_step])
            print("step", step, "loss", repr(float(loss)))
    print("Training completed.")


def evaluate(session_config, hooks, model, data_init_op, steps, checkpoint_dir):
    scaffold = tf.train.Scaffold(
        local_init_op=tf.group(
            tf.local_variables_initializer(), tf.tables_initializer(), data_init_op
        )
    )
    creator = tf.train.ChiefSessionCreator(
        scaffold=scaffold, checkpoint_dir=checkpoint_dir, config=session_config
    )
    merged = tf.summary.merge_all()
    with tf.train.MonitoredSession(session_creator=creator, hooks=hooks) as session:
        for _ in range(1, steps):
            session.run([model.acc_op, model.auc_op])
        acc, auc, events = session.run([model.acc_op, model.auc_op, merged])
        tf.summary.FileWriter(os.path.join(checkpoint_dir, "eval")).add_summary(events, steps)
        print(f"ACC = {acc}\nAUC = {auc}")


def session_config_of(args):
    config = tf.ConfigProto()
    config.inter_op_parallelism_threads = args.inter
    config.intra_op_parallelism_threads = args.intra
    if args.op_fusion and not args.tf:
        config.graph_options.optimizer_options.do_op_fusion = True
    if args.micro_batch and not args.tf:
        config.graph_options.optimizer_options.micro_batch_num = args.micro_batch
    return config


def main(model_class, build_columns, kind):
    args = parser().parse_args()
    if not args.tf:
        os.environ["START_STATISTIC_STEP"] = "100"
        os.environ["STOP_STATISTIC_STEP"] = "110"
        if args.group_embedding == "collective":
            tf.config.experimental.enable_distributed_strategy(strategy="collective")
    train_file, test_file = files_of(args, kind)
    rows = count_rows(args, train_file)
    epochs = math.ceil(args.batch_size * args.steps / rows) if args.steps else 1
    steps = args.steps or math.ceil(rows / args.batch_size)
    test_steps = count_rows(args, test_file) // args.batch_size
    tf.set_random_seed(args.seed)

    train_dataset = build_model_input(train_file, args, kind, epochs)
    test_dataset = build_model_input(test_file, args, kind, 1)
    iterator = tf.data.Iterator.from_structure(
        tf.data.get_output_types(train_dataset), tf.data.get_output_shapes(test_dataset)
    )
    next_element = iterator.get_next()
    init_ops = iterator.make_initializer(train_dataset), iterator.make_initializer(test_dataset)

    columns = build_columns(args)
    config, hooks = session_config_of(args), []
    if args.smartstaged and not args.tf:
        next_element = tf.staged(next_element, num_threads=4, capacity=40)
        config.graph_options.optimizer_options.do_smart_stage = True
        hooks.append(tf.make_prefetch_hook())

    model = model_class(next_element, columns, args)
    model.global_step = tf.train.get_or_create_global_step()
    minimize(model, args)
    checkpoint_dir = args.checkpoint or os.path.join(args.output_dir, "model")
    train(config, hooks, model, init_ops[0], steps, checkpoint_dir, args)
    if not args.no_eval:
        evaluate(config, hooks, model, init_ops[1], test_steps, checkpoint_dir)

r"""Trains DCNv2, a click model, on Criteo rows; its embedding variables grow with the ids seen.

    python examples/train_dcnv2.py                                  # generated rows
    python examples/train_dcnv2.py --data day_0.gz,day_1.gz --model_dir dcnv2 --plot dcnv2.png
    python examples/train_dcnv2.py --storage_type DRAM              # all rows in memory

Embeddings live in memory and, by default, on disk: DRAM has room for a tenth of them (see
--storage_size), and the rest is in files below --storage_path. That changes no value: loss and AUC
are those of `--storage_type DRAM`.

The model (Wang et al., "DCN V2", 2021, parallel form): a cross network and a deep tower side by
side over 13 integers and 26 embedded categories, joined by one linear layer. Everything but the
embedding columns is plain `tf.compat.v1`.

Of the rows in --data, one in `--holdout_one_in` is held out and never trained on, unless
--eval_data names other files. With --model_dir, training continues from the last checkpoint there
(and reads the data from its beginning).
"""

import contextlib
import os
import tempfile
import time

import quiet  # noqa: F401  before TensorFlow, whose start-up messages it hides

from absl import app
from absl import flags
import numpy as np
import tensorflow.compat.v1 as tf

import criteo
import metrics
import tf_multitier
from tf_multitier import feature_column as fc

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "data",
    [],
    "Files, folders or globs of Criteo rows, separated by commas; "
    "empty: generate rows with a hidden signal.",
)
flags.DEFINE_list("eval_data", [], "Held-out rows; empty: taken from --data.")
flags.DEFINE_integer("holdout_one_in", 10, "One row in this many is held out.", lower_bound=2)
flags.DEFINE_integer(
    "eval_rows", 50_000, "At most this many held-out rows are used.", lower_bound=1
)
flags.DEFINE_integer(
    "steps", 2000, "Steps to train at most; 0: until the data ends.", lower_bound=0
)
flags.DEFINE_integer("epochs", 1, "Times to read --data.", lower_bound=1)
flags.DEFINE_integer("eval_every", 500, "Steps between evaluations.", lower_bound=1)
flags.DEFINE_integer("batch_size", 1024, "Rows in a step.", lower_bound=1)
flags.DEFINE_integer(
    "shuffle_rows", 20_000, "Rows in the shuffle buffer of --data; 0: none.", lower_bound=0
)
flags.DEFINE_integer("embedding_dim", 8, "Length of each embedding.", lower_bound=1)
flags.DEFINE_integer("cross_layers", 2, "Layers of the cross network.", lower_bound=1)
flags.DEFINE_list("deep_layers", ["128", "64"], "Widths of the deep tower.")
flags.DEFINE_enum(
    "optimizer", "adam", ["adagrad", "adam", "ftrl", "momentum", "rmsprop", "sgd"], "Optimizer."
)
flags.DEFINE_float(
    "learning_rate", 0.003, "Learning rate; Adagrad likes about 0.2.", lower_bound=0.0
)
flags.DEFINE_integer("partitions", 1, "Parts each embedding variable is cut into.", lower_bound=1)
flags.DEFINE_enum(
    "storage_type",
    "DRAM_SSDHASH",
    [
        "DRAM",
        "PMEM",
        "LEVELDB",
        "SSDHASH",
        "DRAM_PMEM",
        "DRAM_LEVELDB",
        "DRAM_SSDHASH",
        "DRAM_PMEM_LEVELDB",
        "DRAM_PMEM_SSDHASH",
    ],
    "Tiers of the embedding variables, fastest first.",
)
flags.DEFINE_string("storage_path", None, "Folder for their files; none: a temporary one.")
flags.DEFINE_list(
    "storage_size",
    [],
    "Bytes of rows in each tier of each variable (of each of its "
    "parts), fastest first. Empty: DRAM for a tenth of the ids that generated rows "
    "will have, or, with --data, 1 MiB; no bound with --storage_type DRAM.",
)
flags.DEFINE_integer("seed", 1, "Of the generated rows, the shuffle and the initial weights.")
flags.DEFINE_string("model_dir", None, "Folder for checkpoints; none: keep nothing.")
flags.DEFINE_integer("save_every", 1000, "Steps between checkpoints.", lower_bound=1)
flags.DEFINE_string("plot", None, "Picture of loss, AUC and table growth to write (.png).")
flags.DEFINE_bool("tables", False, "Print rows, bytes, hits and I/O of each embedding variable.")
flags.DEFINE_bool("progress", True, "Show the progress bar, on a terminal.")


def make_datasets():
    """Returns (training dataset, held-out dataset, files read: [] if rows are generated)."""
    size = FLAGS.batch_size
    if not FLAGS.data:
        model = criteo.ClickModel(FLAGS.seed)
        return (
            model.dataset(size, stream_seed=(FLAGS.seed, 0)),
            model.dataset(**generated_held_out()),
            [],
        )
    files = criteo.find_files(FLAGS.data)
    reading = dict(
        batch_size=size, shuffle_rows=FLAGS.shuffle_rows, epochs=FLAGS.epochs, seed=FLAGS.seed
    )
    if FLAGS.eval_data:
        eval_files = criteo.find_files(FLAGS.eval_data)
        held_out = criteo.read(eval_files, size)
        return criteo.read(files, **reading), _first_rows(held_out), files + eval_files
    one_in = FLAGS.holdout_one_in
    held_out = criteo.read(files, size, keep=lambda row: tf.equal(row % one_in, one_in - 1))
    training = criteo.read(
        files, keep=lambda row: tf.not_equal(row % one_in, one_in - 1), **reading
    )
    return training, _first_rows(held_out), files


def generated_held_out():
    """The held-out rows of generated data: arguments of ClickModel.dataset."""
    return dict(
        batch_size=FLAGS.batch_size, stream_seed=(FLAGS.seed, 1), rows=min(FLAGS.eval_rows, 20_000)
    )


def _first_rows(dataset):
    return dataset.take(-(-FLAGS.eval_rows // FLAGS.batch_size))


def dram_bytes():
    """{category: bytes of DRAM for its rows}: a tenth of all that generated data brings, or 1 MiB."""
    if FLAGS.data:
        return dict.fromkeys(criteo.CAT_NAMES, 1 << 20)
    row_bytes = tf_multitier.memory(1, FLAGS.embedding_dim, make_optimizer()).bytes_per_row
    ids = criteo.ClickModel(FLAGS.seed).expected_ids(FLAGS.batch_size * (FLAGS.steps or 2000))
    return {
        name: int(max(1, n / 10 / FLAGS.partitions)) * row_bytes
        for name, n in zip(criteo.CAT_NAMES, ids)
    }


def storage_options(path):
    """{category: tf_multitier.StorageOption}."""
    sizes = [int(size) for size in FLAGS.storage_size]
    tiers = tf_multitier.StorageType[FLAGS.storage_type].tiers
    if sizes or "DRAM" not in tiers or tiers == ("DRAM",):
        sizes = dict.fromkeys(criteo.CAT_NAMES, sizes)
    else:
        sizes = {name: [size] for name, size in dram_bytes().items()}
    return {
        name: tf_multitier.StorageOption(FLAGS.storage_type, path, sizes[name])
        for name in criteo.CAT_NAMES
    }


def make_columns(storage):
    """One numeric column an integer, one embedding column a category."""

    def squash(x):
        return tf.sign(x) * tf.log1p(tf.abs(x))

    small = tf.truncated_normal_initializer(stddev=0.02, seed=FLAGS.seed)
    columns = [fc.numeric_column(name, normalizer_fn=squash) for name in criteo.INT_NAMES]
    for name in criteo.CAT_NAMES:
        option = tf_multitier.EmbeddingVariableOption(storage_option=storage[name])
        ids = fc.categorical_column_with_embedding(
            name, dtype=tf.string, partition_num=FLAGS.partitions, ev_option=option
        )
        columns.append(
            fc.embedding_column(
                ids, dimension=FLAGS.embedding_dim, combiner="sum", initializer=small
            )
        )
    return columns


def dense(inputs, units, name, activation=None):
    """activation(inputs @ kernel + bias): [batch, n] -> [batch, units]."""
    with tf.variable_scope(name):
        kernel = tf.get_variable(
            "kernel",
            [inputs.shape[1], units],
            initializer=tf.glorot_uniform_initializer(seed=FLAGS.seed),
        )
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        outputs = tf.nn.bias_add(tf.matmul(inputs, kernel), bias)
        return outputs if activation is None else activation(outputs)


def dcnv2(features, columns):
    """Log odds of a click: features of [batch, ...] -> [batch]."""
    x0 = fc.input_layer(features, columns)
    width = int(x0.shape[1])
    crossed = x0
    for layer in range(FLAGS.cross_layers):  # x <- x0 * (W x + b) + x
        crossed = x0 * dense(crossed, width, f"cross_{layer}") + crossed
    deep = x0
    for layer, units in enumerate(FLAGS.deep_layers):
        deep = dense(deep, int(units), f"deep_{layer}", tf.nn.relu)
    return tf.squeeze(dense(tf.concat([crossed, deep], axis=1), 1, "logit"), axis=1)


def make_optimizer():
    make = {
        "adagrad": tf.train.AdagradOptimizer,
        "adam": tf.train.AdamOptimizer,
        "ftrl": tf.train.FtrlOptimizer,
        "rmsprop": tf.train.RMSPropOptimizer,
        "sgd": tf.train.GradientDescentOptimizer,
        "momentum": lambda rate: tf.train.MomentumOptimizer(rate, momentum=0.9),
    }
    return make[FLAGS.optimizer](FLAGS.learning_rate)


def next_batch(dataset):
    """(initializer, features, labels) of an iterator that sessions start by themselves."""
    iterator = tf.data.make_initializable_iterator(dataset)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    features, labels = iterator.get_next()
    return iterator.initializer, features, labels


class Trainer:
    """The training graph; then, in one session, its loop.

    Training and evaluation call one template, so they share all variables. Evaluation leaves the
    tables as they are: a lookup creates no rows.
    """

    def __init__(self, training, held_out, storage):
        model = tf.make_template("dcnv2", dcnv2, columns=make_columns(storage))
        _, features, labels = next_batch(training)
        self._loss = tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=model(features))
        )
        self._global_step = tf.train.get_or_create_global_step()
        self._train = make_optimizer().minimize(self._loss, global_step=self._global_step)
        self._eval_initializer, eval_features, self._eval_labels = next_batch(held_out)
        self._eval_logits = model(eval_features)
        tables = sorted(tf_multitier.embedding_variables(), key=lambda v: (len(v.name), v.name))
        self._rows = tf.add_n([table.total_count() for table in tables])
        self._stats = {table.variable_name.split("/")[-2]: table.stats() for table in tables}
        self.history = []
        self._counted = {}  # statistics when the last evaluation was over
        self.steps = 0
        self.seconds = 0.0  # of training steps alone

    def run(self, session, bar):
        """Trains until the data or --steps end."""
        first_step = outside_hooks(session, self._global_step)  # not 0 after restoring
        losses, ended = [], False
        while not ended:
            started = time.perf_counter()
            try:
                loss, _ = session.run([self._loss, self._train])
            except tf.errors.OutOfRangeError:
                ended = True
            else:
                self.seconds += time.perf_counter() - started
                losses.append(loss)
                self.steps += 1
                bar.update()
                ended = self.steps == FLAGS.steps
            if losses and (ended or self.steps % FLAGS.eval_every == 0):
                self._evaluate(session, int(first_step) + self.steps, float(np.mean(losses)), bar)
                losses = []

    def _evaluate(self, session, step, train_loss, bar):
        now = metrics.tier_totals(self.stats(session))
        labels, logits = self._held_out_logits(session)
        point = dict(
            step=step,
            train_loss=train_loss,
            eval_loss=metrics.log_loss(labels, logits),
            auc=metrics.auc(labels, logits),
            rows=int(outside_hooks(session, self._rows)),
            tiers=metrics.since(now, self._counted),
        )
        self._counted = metrics.tier_totals(self.stats(session))
        self.history.append(point)
        bar.write(
            "step {step:>6}  loss {train_loss:.4f}  held-out loss {eval_loss:.4f}  "
            "AUC {auc:.4f}  rows {rows:,}".format(**point)
        )
        if len(point["tiers"]) > 1:
            bar.write(metrics.format_tiers(point["tiers"]))

    def _held_out_logits(self, session):
        """(labels, logits), float32 [rows] each."""
        outside_hooks(session, self._eval_initializer)
        batches = []
        while True:
            try:
                batches.append(outside_hooks(session, [self._eval_labels, self._eval_logits]))
            except tf.errors.OutOfRangeError:
                break
        if not batches:
            raise app.UsageError("no held-out rows to evaluate on")
        return [np.concatenate(part) for part in zip(*batches)]

    def stats(self, session):
        """{table: JSON}, see metrics.table_rows."""
        return outside_hooks(session, self._stats)


def outside_hooks(session, fetch):
    """session.run(fetch) without the session's hooks, to which every run is a training step."""
    return session.run_step_fn(lambda step_context: step_context.session.run(fetch))


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.disable_eager_execution()
    tf.set_random_seed(FLAGS.seed)
    training, held_out, files = make_datasets()
    with contextlib.ExitStack() as stack:
        path = FLAGS.storage_path or stack.enter_context(tempfile.TemporaryDirectory())
        trainer = Trainer(training, held_out, storage_options(path))
        stack.enter_context(criteo.naming_bad_line(files))
        session = stack.enter_context(
            tf.train.MonitoredTrainingSession(
                checkpoint_dir=FLAGS.model_dir,
                save_checkpoint_steps=FLAGS.save_every,
                save_checkpoint_secs=None,
                save_summaries_steps=None,
                save_summaries_secs=None,
                log_step_count_steps=None,
            )
        )
        with metrics.progress_bar(FLAGS.steps or None, disable=not FLAGS.progress) as bar:
            trainer.run(session, bar)
            bar.end()
        if not trainer.history:
            raise app.UsageError("no rows to train on")
        stats = trainer.stats(session)

    print(summary(trainer, stats))
    if FLAGS.tables:
        print("\n" + metrics.format_table(*metrics.table_rows(stats)))
    if FLAGS.plot:
        title = f"{len(files)} file(s)" if files else "generated rows"
        metrics.plot_history(FLAGS.plot, trainer.history, "DCNv2 on " + title)
        print(f"picture: {os.path.abspath(FLAGS.plot)}")


def summary(trainer, stats):
    """The summary of a run, in a few lines."""
    last = trainer.history[-1]
    speed = trainer.steps / trainer.seconds
    lines = [
        "",
        f"{trainer.steps} steps of {FLAGS.batch_size} rows, {speed:.1f} steps/s without evaluation",
    ]
    lines.append(f"held-out AUC {last['auc']:.4f}, log loss {last['eval_loss']:.4f}")
    if not FLAGS.data:
        labels, odds = criteo.ClickModel(FLAGS.seed).labels_and_log_odds(**generated_held_out())
        lines.append(
            f"hidden model {metrics.auc(labels, odds):.4f}, log loss "
            f"{metrics.log_loss(labels, odds):.4f}  (it generated the rows)"
        )
    lines += ["", metrics.format_totals(stats), ""]
    if not FLAGS.tables:
        lines.append("for each variable: --tables")
    return "\n".join(lines)


if __name__ == "__main__":
    app.run(main)

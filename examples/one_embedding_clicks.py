"""What the click models with tf_multitier.one_embedding share: flags, rows, the store and the loop.

The ids of all categories are hashes of name and text into one range, so that no two tables have an
id in common. 0 is a missing category, which is padding.
"""

import contextlib
import tempfile
import time

from absl import app
from absl import flags
import keras
import numpy as np
import tensorflow as tf

import criteo
import metrics
from tf_multitier import one_embedding

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "data",
    [],
    "Files, folders or globs of Criteo rows, of which every tenth is held out; empty: generated rows.",
)
flags.DEFINE_integer("steps", 1000, "Steps to train.", lower_bound=1)
flags.DEFINE_integer("eval_every", 250, "Steps between evaluations.", lower_bound=1)
flags.DEFINE_integer("eval_rows", 20_000, "At most this many held-out rows.", lower_bound=1)
flags.DEFINE_integer("batch_size", 1024, "Rows in a step.", lower_bound=1)
flags.DEFINE_integer("embedding_dim", 8, "Length of each embedding.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.003, "Of Adam.", lower_bound=0.0)
flags.DEFINE_enum(
    "store", "cached_ssd", ["device_mem", "cached_host_mem", "cached_ssd"], "Where rows are."
)
flags.DEFINE_float("cache_budget_mb", 4.0, "MiB of the cache of a cached store.", lower_bound=0.01)
flags.DEFINE_integer("capacity", 10_000_000, "Rows of the store.", lower_bound=1)
flags.DEFINE_string("persistent_path", None, "Folder of the store; none: a temporary one.")
flags.DEFINE_string("snapshot", None, "Name of a snapshot to save at the end.")
flags.DEFINE_integer("seed", 1, "Of the generated rows, the shuffle and the initial weights.")
flags.DEFINE_bool("progress", True, "Show the progress bar, on a terminal.")


def store_options(path):
    """The store that --store names. Rows are values and the two moments of Adam."""
    common = dict(persistent_path=path, capacity=FLAGS.capacity, size_factor=3)
    if FLAGS.store == "device_mem":
        return one_embedding.make_device_mem_store_options(**common)
    if FLAGS.store == "cached_host_mem":
        return one_embedding.make_cached_host_mem_store_options(FLAGS.cache_budget_mb, **common)
    return one_embedding.make_cached_ssd_store_options(FLAGS.cache_budget_mb, **common)


def inputs_of(features, labels):
    """(numbers float32 [batch, 13], ids int64 [batch, 26], labels [batch])."""
    numbers = tf.stack([features[name] for name in criteo.INT_NAMES], 1)
    ids = []
    for name in criteo.CAT_NAMES:
        key = 1 + tf.strings.to_hash_bucket_fast(name + "=" + features[name], 2**62)
        ids.append(tf.where(features[name] == "", tf.zeros_like(key), key))
    return tf.sign(numbers) * tf.math.log1p(tf.abs(numbers)), tf.stack(ids, 1), labels


def rows():
    """(training dataset, held-out dataset, files read)."""
    size = FLAGS.batch_size
    if not FLAGS.data:
        model = criteo.ClickModel(FLAGS.seed)
        training = model.dataset(size, stream_seed=(FLAGS.seed, 0))
        return training, model.dataset(size, (FLAGS.seed, 1), FLAGS.eval_rows), []
    files = criteo.find_files(FLAGS.data)
    training = criteo.read(
        files, size, lambda row: row % 10 != 9, shuffle_rows=20_000, epochs=None, seed=FLAGS.seed
    )
    held_out = criteo.read(files, size, lambda row: row % 10 == 9)
    return training, held_out.take(-(-FLAGS.eval_rows // size)), files


def train(embedding, model):
    """Trains, and prints quality and tiers.

    Args:
      embedding: of one_embedding.
      model: a model of Keras, from numbers [batch, 13] and embeddings [batch, 26, width] to log odds [batch, 1].
    """
    training, held_out, files = rows()
    held_out = list(held_out.map(inputs_of))
    optimizer = one_embedding.Optimizer(keras.optimizers.Adam(FLAGS.learning_rate), [embedding])

    @tf.function
    def step(numbers, ids, labels):
        with tf.GradientTape() as tape:
            logits = model([numbers, embedding(ids)])[:, 0]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        variables = [*model.trainable_variables, *embedding.parameters()]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    @tf.function(reduce_retracing=True)
    def predict(numbers, ids):
        return model([numbers, embedding(ids, training=False)])[:, 0]

    bar = metrics.progress_bar(FLAGS.steps, disable=not FLAGS.progress)
    started, losses = time.perf_counter(), []
    with criteo.naming_bad_line(files):
        for number, batch in enumerate(training.map(inputs_of).take(FLAGS.steps), 1):
            losses.append(float(step(*batch)))
            bar.update()
            if number % FLAGS.eval_every == 0 or number == FLAGS.steps:
                logits = np.concatenate([predict(*batch[:2]).numpy() for batch in held_out])
                labels = np.concatenate([batch[2].numpy() for batch in held_out])
                bar.write(
                    f"step {number:>6}  loss {np.mean(losses):.4f}  held-out AUC {metrics.auc(labels, logits):.4f}  "
                    f"log loss {metrics.log_loss(labels, logits):.4f}"
                )
                losses = []
    bar.end()
    print(f"{FLAGS.steps / (time.perf_counter() - started):.1f} steps/s")
    variable = embedding.variable
    print(metrics.format_totals({variable.variable_name: variable.stats()}))
    if FLAGS.snapshot:
        embedding.save_snapshot(FLAGS.snapshot)
        print(f"snapshots: {', '.join(embedding.snapshots())}")


def run(make):
    """Runs a program. make: function of a store's options that returns (embedding, model)."""

    def main(argv):
        if len(argv) > 1:
            raise app.UsageError(f"unexpected arguments: {argv[1:]}")
        keras.utils.set_random_seed(FLAGS.seed)
        folder = FLAGS.persistent_path
        with contextlib.nullcontext(folder) if folder else tempfile.TemporaryDirectory() as path:
            train(*make(store_options(path)))

    app.run(main)

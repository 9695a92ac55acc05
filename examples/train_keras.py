r"""Trains Keras models by `Model.fit`; their embedding tables grow with the ids seen.

    python examples/train_keras.py                                     # DCNv2, generated rows
    python examples/train_keras.py --data day_0.gz,day_1.gz --plot keras.png
    python examples/train_keras.py --model=factorization --data movielens_1m

--model=dcnv2 is the click model of train_dcnv2.py on Criteo rows, --model=factorization the model of
train_mf_movielens.py on pairs of users and items. Both have the same data, rules and measures as
those programs; here they are written in Keras.

The first trains rows and dense weights by one optimizer of Keras (`with_rows`). In the second the
layers have an optimizer of their own. Where rows are kept is said by the environment:

    TF_MULTITIER_STORAGE_TYPE=DRAM_SSDHASH TF_MULTITIER_STORAGE_PATH=/tmp/rows \
    TF_MULTITIER_STORAGE_SIZE=65536 python examples/train_keras.py
"""

import os
import time

import quiet  # noqa: F401  before TensorFlow, whose start-up messages it hides

from absl import app
from absl import flags
import keras
import numpy as np
import tensorflow as tf

import criteo
import metrics
import movielens
import tf_multitier
from tf_multitier.keras import Embedding
from tf_multitier.keras import GroupEmbedding
from tf_multitier.keras import with_rows

FLAGS = flags.FLAGS
flags.DEFINE_enum("model", "dcnv2", ["dcnv2", "factorization"], "What to train.")
flags.DEFINE_list(
    "data",
    [],
    "dcnv2: files, folders or globs of Criteo rows, of which every tenth is held out. factorization: "
    "a folder with train.csv.gz. Empty: generated data.",
)
flags.DEFINE_integer("steps", 1000, "dcnv2: steps to train.", lower_bound=1)
flags.DEFINE_integer("eval_every", 250, "dcnv2: steps between evaluations.", lower_bound=1)
flags.DEFINE_integer("eval_rows", 20_000, "dcnv2: at most this many held-out rows.", lower_bound=1)
flags.DEFINE_integer("epochs", 16, "factorization: times every pair is trained on.", lower_bound=1)
flags.DEFINE_integer("batch_size", None, "Rows in a step; none: 1024, or 4096 pairs.")
flags.DEFINE_integer("embedding_dim", None, "Length of embeddings; none: 8, or 64.")
flags.DEFINE_float("learning_rate", None, "None: 0.003 of Adam, or 0.1 of Adagrad.")
flags.DEFINE_integer("negatives", 256, "factorization: random items of a step.", lower_bound=1)
flags.DEFINE_float("l2", 0.015, "factorization: weight of embeddings' length.", lower_bound=0.0)
flags.DEFINE_integer("k", 20, "factorization: how many items are recommended.", lower_bound=1)
flags.DEFINE_integer("seed", 1, "Of the generated data, the shuffle and the initial weights.")
flags.DEFINE_string("save", None, "File to save the trained model in (.keras).")
flags.DEFINE_string("plot", None, "Picture of loss, quality and table growth to write (.png).")
flags.DEFINE_bool("progress", True, "Show the progress bar, on a terminal.")

DEFAULTS = {
    "dcnv2": dict(batch_size=1024, embedding_dim=8, learning_rate=0.003),
    "factorization": dict(batch_size=4096, embedding_dim=64, learning_rate=0.1),
}


# --- DCNv2 on Criteo rows ------------------------------------------------------------------------


def click_inputs(features, labels):
    """Integers squashed to "numbers" [batch, 13]; each category as a key [batch, 1], 0 if missing."""
    numbers = tf.stack([features[name] for name in criteo.INT_NAMES], 1)
    inputs = {"numbers": tf.sign(numbers) * tf.math.log1p(tf.abs(numbers))}
    for name in criteo.CAT_NAMES:
        text = features[name]
        key = 1 + tf.strings.to_hash_bucket_fast(text, 2**62)
        inputs[name] = tf.where(text == "", tf.zeros_like(key), key)[:, None]
    return inputs, labels[:, None]


def click_rows():
    """(training dataset, held-out dataset, files read)."""
    size = FLAGS.batch_size
    if not FLAGS.data:
        rows = criteo.ClickModel(FLAGS.seed)
        training = rows.dataset(size, stream_seed=(FLAGS.seed, 0))
        return training, rows.dataset(size, (FLAGS.seed, 1), FLAGS.eval_rows), []
    files = criteo.find_files(FLAGS.data)
    training = criteo.read(
        files, size, lambda row: row % 10 != 9, shuffle_rows=20_000, epochs=None, seed=FLAGS.seed
    )
    held_out = criteo.read(files, size, lambda row: row % 10 == 9)
    return training, held_out.take(-(-FLAGS.eval_rows // size)), files


def dcnv2():
    """A cross network and a deep tower side by side: inputs of click_inputs -> log odds [batch, 1]."""
    numbers = keras.Input((len(criteo.INT_NAMES),), name="numbers")
    keys = {name: keras.Input((1,), dtype="int64", name=name) for name in criteo.CAT_NAMES}
    small = keras.initializers.TruncatedNormal(stddev=0.02, seed=FLAGS.seed)
    feature = dict(
        output_dim=FLAGS.embedding_dim,
        combiner="sum",
        mask_zero=True,
        embeddings_initializer=small,
    )
    tables = GroupEmbedding(
        dict.fromkeys(criteo.CAT_NAMES, feature), concat=True, name="categories"
    )
    x0 = keras.layers.Concatenate()([numbers, tables(keys)])
    crossed = x0
    for _ in range(2):  # x <- x0 * (W x + b) + x
        crossed = x0 * keras.layers.Dense(x0.shape[1])(crossed) + crossed
    deep = keras.layers.Dense(128, "relu")(x0)
    deep = keras.layers.Dense(64, "relu")(deep)
    log_odds = keras.layers.Dense(1)(keras.layers.Concatenate()([crossed, deep]))
    model = keras.Model({"numbers": numbers, **keys}, log_odds)
    model.compile(
        with_rows(keras.optimizers.Adam(FLAGS.learning_rate)),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return model


def train_clicks():
    """(model, its Progress)."""
    training, held_out, files = click_rows()
    labels = [batch.numpy() for _, batch in held_out]
    held_out = of_batches(held_out.map(click_inputs), len(labels))
    labels = np.concatenate(labels)

    def evaluate(model):
        logits = model.predict(held_out, verbose=0)[:, 0]
        return dict(auc=metrics.auc(labels, logits), eval_loss=metrics.log_loss(labels, logits))

    model, every = dcnv2(), min(FLAGS.eval_every, FLAGS.steps)
    progress = Progress(evaluate, FLAGS.steps)
    with criteo.naming_bad_line(files):
        model.fit(
            training.map(click_inputs),
            epochs=FLAGS.steps // every,  # an epoch ends with an evaluation
            steps_per_epoch=every,
            shuffle=False,
            verbose=0,
            callbacks=[progress],
        )
    return model, progress


# --- Matrix factorization of MovieLens pairs -----------------------------------------------------


@keras.saving.register_keras_serializable()
class Factorization(keras.Model):
    """Score of a user and an item: dot product of their embeddings plus the item's bias.

    Call arguments:
      inputs: "user" and "item" int64 [batch], "other" int64 [negatives]; see movielens.Split.batches.

    Returns:
      [batch, 1 + negatives]: the score of the own item, then those of the others.
    """

    def __init__(self, dim, rate, l2, others_correction, **kwargs):
        super().__init__(**kwargs)
        self._arguments = dict(dim=dim, rate=rate, l2=l2, others_correction=others_correction)
        normal = keras.initializers.RandomNormal(stddev=0.1, seed=1)
        rule = tf_multitier.optimizers.Adagrad(rate)
        self.users = Embedding(dim, normal, optimizer=rule, name="users")
        self.items = Embedding(dim, normal, optimizer=rule, name="items")
        self.biases = Embedding(1, "zeros", optimizer=rule, name="item_biases")
        self._l2 = l2
        self._correction = others_correction

    def call(self, inputs):
        user, item = self.users(inputs["user"]), self.items(inputs["item"])
        own = tf.reduce_sum(user * item, 1, keepdims=True) + self.biases(inputs["item"])
        others = self.scores(inputs["user"], inputs["other"]) + self._correction
        self.add_loss(self._l2 * (tf.reduce_sum(user**2) + tf.reduce_sum(item**2)))
        return tf.concat([own, others], 1)

    def scores(self, users, items):
        """[users, items]."""
        product = tf.matmul(self.users(users), self.items(items), transpose_b=True)
        return product + tf.transpose(self.biases(items))

    def get_config(self):
        return {**super().get_config(), **self._arguments}


def train_pairs():
    """(model, its Progress)."""
    rng = np.random.default_rng(FLAGS.seed)
    users, items = (
        movielens.read_pairs(FLAGS.data[0]) if FLAGS.data else movielens.generate_pairs(FLAGS.seed)
    )
    split = movielens.Split(users, items, rng)
    print(split.describe())

    def batches():
        for user, item, other in split.batches(rng, FLAGS.batch_size, FLAGS.negatives):
            yield dict(user=user, item=item, other=other), np.zeros(user.size, np.int64)

    ids = tf.TensorSpec([None], tf.int64)
    signature = (dict(user=ids, item=ids, other=ids), ids)
    steps = -(-split.users.size // FLAGS.batch_size)
    pairs = of_batches(tf.data.Dataset.from_generator(batches, output_signature=signature), steps)
    # The sample is a part of the catalogue: each of its items counts for several.
    correction = float(np.log(split.catalogue.size / FLAGS.negatives))
    model = Factorization(FLAGS.embedding_dim, FLAGS.learning_rate, FLAGS.l2, correction)
    # Summed over the batch, so that the step of a row does not depend on the batch's size.
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model.compile("sgd", loss)

    def evaluate(model):
        scores = model.scores(split.test_users, split.catalogue).numpy()
        return dict(recall=split.recall(scores, FLAGS.k))

    progress = Progress(evaluate, FLAGS.epochs * steps, rows_in_loss=FLAGS.batch_size)
    model.fit(pairs, epochs=FLAGS.epochs, shuffle=False, verbose=0, callbacks=[progress])
    print(f"popularity {split.popularity_recall(FLAGS.k):.4f}")
    return model, progress


# --- Both ----------------------------------------------------------------------------------------


def of_batches(dataset, number):
    """The dataset, of which Keras then knows the number of batches."""
    return dataset.apply(tf.data.experimental.assert_cardinality(number))


def table_stats(model):
    """{table: dict}, see metrics.table_rows."""
    layers = [layer for layer in model.layers if hasattr(layer, "tables")]
    return {table.variable_name: table.stats() for layer in layers for table in layer.tables}


class Progress(keras.callbacks.Callback):
    """Evaluates after each epoch, prints a line, and keeps what metrics.plot_history draws."""

    def __init__(self, evaluate, steps, rows_in_loss=1):
        super().__init__()
        self._rows_in_loss = rows_in_loss
        self._evaluate = evaluate
        self._bar = metrics.progress_bar(steps, disable=not FLAGS.progress)
        self._counted = {}
        self._started = None
        self.steps, self.seconds = 0, 0.0
        self.history = []

    def on_epoch_begin(self, epoch, logs=None):
        self._started = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self._bar.update()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds += time.perf_counter() - self._started
        now = metrics.tier_totals(table_stats(self.model))
        tiers = metrics.since(now, self._counted)
        loss = logs["loss"] / self._rows_in_loss
        point = dict(step=self.steps, train_loss=loss, **self._evaluate(self.model))
        measures = "  ".join(
            f"{name} {value:.4f}" for name, value in point.items() if name != "step"
        )
        rows = sum(tier["rows"] for tier in tiers.values())
        self._bar.write(f"step {self.steps:>6}  {measures}  rows {rows:,}")
        if len(tiers) > 1:
            self._bar.write(metrics.format_tiers(tiers))
        self._counted = metrics.tier_totals(table_stats(self.model))
        self.history.append(dict(point, rows=rows, tiers=tiers))

    def on_train_end(self, logs=None):
        self._bar.end()


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    for name, value in DEFAULTS[FLAGS.model].items():
        if FLAGS[name].value is None:
            FLAGS[name].value = value
    keras.utils.set_random_seed(FLAGS.seed)
    model, progress = train_clicks() if FLAGS.model == "dcnv2" else train_pairs()
    speed = progress.steps / progress.seconds
    print(f"\n{progress.steps} steps of {FLAGS.batch_size} rows, {speed:.1f} steps/s")
    last = progress.history[-1]
    if "auc" in last:
        print(f"held-out AUC {last['auc']:.4f}, log loss {last['eval_loss']:.4f}\n")
    else:
        print(f"held-out recall@{FLAGS.k}: factorization {last['recall']:.4f}\n")
    print(metrics.format_totals(table_stats(model)))
    if FLAGS.save:
        model.save(FLAGS.save)
        print(f"model: {os.path.abspath(FLAGS.save)}")
    if FLAGS.plot:
        metrics.plot_history(FLAGS.plot, progress.history, f"{FLAGS.model} in Keras")
        print(f"picture: {os.path.abspath(FLAGS.plot)}")


if __name__ == "__main__":
    app.run(main)

r"""Predicts ratings of movies with the tables of tf_multitier.dynamicemb, one for each of six features.

    python examples/train_dynamicemb.py                                # generated ratings
    python examples/train_dynamicemb.py --data ml-1m --caching
    python examples/train_dynamicemb.py --external --incremental

--data is a folder of MovieLens 1M: ratings.dat, users.dat and movies.dat. The oldest four fifths of
the ratings are trained on, the rest are held out. What is reported is the root of the mean squared
error, next to that of the mean rating of each movie.

--caching keeps rows on an SSD, with those that half of the bytes hold in memory. --external keeps
them in a dictionary of Python, below memory. --incremental prints how many rows each epoch changed.
"""

import tempfile
import time

import quiet  # noqa: F401  before TensorFlow, whose start-up messages it hides

from absl import app
from absl import flags
import keras
import numpy as np
import tensorflow as tf

import metrics
import movielens
from tf_multitier import dynamicemb as de

FLAGS = flags.FLAGS
flags.DEFINE_string("data", None, "Folder of MovieLens 1M; none: generated ratings.")
flags.DEFINE_integer("epochs", 3, "Times every rating is trained on.", lower_bound=1)
flags.DEFINE_integer("batch_size", 1024, "Ratings in a step.", lower_bound=1)
flags.DEFINE_integer("embedding_dim", 16, "Length of each embedding.", lower_bound=1)
flags.DEFINE_integer("num_embeddings", 10_000, "Rows for users, and for movies.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.01, "Of Adam.", lower_bound=0.0)
flags.DEFINE_list("layers", ["128", "64", "32"], "Units of the layers.")
flags.DEFINE_bool("caching", False, "Keep half of the bytes in memory, all rows on an SSD.")
flags.DEFINE_bool("external", False, "Keep rows in a dictionary, below memory.")
flags.DEFINE_bool("incremental", False, "Print the rows that each epoch changed.")
flags.DEFINE_integer("seed", 1, "Of the generated ratings, the shuffle and the initial weights.")
flags.DEFINE_bool("progress", True, "Show the progress bar, on a terminal.")

ROWS = {"gender": 2, "age": 100, "occupation": 50, "year": 2050}
OPTIMIZER = de.EmbOptimType.ADAM


class Dictionary(de.Storage):
    """Rows in a dictionary."""

    def __init__(self):
        self.rows = {}

    def find(self, keys):
        return np.ones(len(keys), bool), np.stack([self.rows[key] for key in keys.tolist()])

    def insert(self, keys, rows):
        self.rows.update(zip(keys.tolist(), rows))

    def erase(self, keys):
        for key in keys.tolist():
            self.rows.pop(key, None)


class Ratings(tf.Module):
    """The six embeddings of a rating, side by side, and layers over them."""

    def __init__(self, embeddings):
        super().__init__()
        self.embedding_module = embeddings
        layers = [keras.layers.Dense(int(units), "relu") for units in FLAGS.layers]
        self.tower = keras.Sequential([*layers, keras.layers.Dense(1)])

    def __call__(self, features):
        rows = self.embedding_module(features)
        return self.tower(tf.concat([rows[name] for name in movielens.FEATURES], 1))[:, 0]


def options_of(config, folder):
    """The options of a table."""
    options = de.DynamicEmbTableOptions(
        global_hbm_for_values=de.get_table_value_bytes(config, OPTIMIZER, world_size=1),
        initializer_args=de.DynamicEmbInitializerArgs(de.DynamicEmbInitializerMode.NORMAL),
        score_strategy=de.DynamicEmbScoreStrategy.STEP,
    )
    if FLAGS.caching or FLAGS.external:
        options.global_hbm_for_values //= 2
        options.caching = True
    if FLAGS.external:
        options.external_storage = Dictionary
    elif FLAGS.caching:
        options.storage_path = folder
        options.storage_type = "DRAM_SSDHASH"
    return options


def make_model(folder):
    """The model with its tables."""
    configs = [
        de.EmbeddingConfig(name, FLAGS.embedding_dim, ROWS.get(name, FLAGS.num_embeddings), [name])
        for name in movielens.FEATURES
    ]
    model = Ratings(de.EmbeddingCollection(configs))
    sharder = de.DynamicEmbeddingCollectionSharder(
        {"optimizer": OPTIMIZER, "learning_rate": FLAGS.learning_rate, "eps": 0.001}
    )
    planner = de.DynamicEmbeddingShardingPlanner(
        configs,
        constraints={
            config.name: de.DynamicEmbParameterConstraints(
                use_dynamicemb=True, dynamicemb_options=options_of(config, folder)
            )
            for config in configs
        },
    )
    plan = planner.collective_plan(model, [sharder])
    return de.DistributedModelParallel(model, sharders=[sharder], plan=plan)


def split(ids, ratings):
    """(training dataset, its steps, held-out dataset, held-out error of the mean of each movie)."""
    first = ratings.size * 4 // 5
    parts = [
        ({name: column[chosen] for name, column in ids.items()}, ratings[chosen])
        for chosen in (slice(first), slice(first, None))
    ]
    training, held_out = map(tf.data.Dataset.from_tensor_slices, parts)
    training = training.shuffle(first, FLAGS.seed).batch(FLAGS.batch_size)
    movies, its = parts[0][0]["movie_id"], parts[0][1]
    count, total = np.bincount(movies), np.bincount(movies, its)
    means = np.full(ids["movie_id"].max() + 1, its.mean())
    means[: count.size][count > 0] = total[count > 0] / count[count > 0]
    movies, its = parts[1][0]["movie_id"], parts[1][1]
    return training, held_out.batch(FLAGS.batch_size), np.sqrt(np.mean((means[movies] - its) ** 2))


def train(model, training, held_out):
    """Trains, and prints a line for each epoch."""
    optimizer = keras.optimizers.Adam(FLAGS.learning_rate)

    @tf.function(reduce_retracing=True)
    def step(features, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(features) - labels) ** 2)
        dense, tables = model.module.tower.trainable_variables, model.parameters()
        of_dense, of_tables = tape.gradient(loss, (dense, tables))
        optimizer.apply_gradients(zip(of_dense, dense))
        model.apply_gradients(of_tables)
        return loss

    @tf.function(reduce_retracing=True)
    def squares(features, labels):
        return (model(features) - labels) ** 2

    steps = FLAGS.epochs * len(training)
    bar = metrics.progress_bar(steps, disable=not FLAGS.progress)
    started, score = time.perf_counter(), de.get_score(model) if FLAGS.incremental else None
    for epoch in range(1, FLAGS.epochs + 1):
        model.train()
        losses = []
        for batch in training:
            losses.append(float(step(*batch)))
            bar.update()
        model.eval()
        errors = np.concatenate([squares(*batch).numpy() for batch in held_out])
        error = np.sqrt(errors.mean())
        bar.write(f"epoch {epoch}: loss {np.mean(losses):.4f}, held-out error {error:.4f}")
        if FLAGS.incremental:
            changed, score = de.incremental_dump(model, score)
            tables = changed["model.embedding_module"]
            rows = ", ".join(f"{name} {keys.size:,}" for name, (keys, _) in tables.items())
            bar.write(f"rows that changed: {rows}")
    seconds = time.perf_counter() - started
    bar.end()
    print(f"{steps} steps, {steps / seconds:.1f} steps/s")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    keras.utils.set_random_seed(FLAGS.seed)
    ids, ratings = (
        movielens.read_ratings(FLAGS.data) if FLAGS.data else movielens.generate_ratings(FLAGS.seed)
    )
    training, held_out, error_of_means = split(ids, ratings)
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(folder)
        train(model, training, held_out)
        print(f"held-out error of the mean of each movie {error_of_means:.4f}")
        for name, variable in zip(movielens.FEATURES, model.parameters()):
            print(f"{name}: {int(variable.total_count()):,} rows")


if __name__ == "__main__":
    app.run(main)

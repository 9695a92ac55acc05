"""Keras models in a world of processes: equal to one process, data that ends at different steps, refusals."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from cluster_util import launch

BATCHES, BATCH = 6, 8


def data(name=""):
    """ids and labels of each batch of two processes."""
    random = np.random.default_rng(5)
    ids = random.integers(0, 48, (BATCHES, 2, BATCH, 3))
    # A norm is that of the sums of keys, in one process that of occurrences: so no key occurs twice.
    if "clipped" in name:
        ids = np.stack([random.permutation(48).reshape(2, BATCH, 3) for _ in range(BATCHES)])
    return ids, random.normal(size=(BATCHES, 2, BATCH, 1)).astype(np.float32)


def new_model():
    layers = [
        tf_multitier.keras.Embedding(
            4, embeddings_initializer=keras.initializers.RandomUniform(seed=3)
        ),
        keras.layers.Flatten(),
        keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=4)),
    ]
    return keras.Sequential(layers)


OPTIMIZERS = {
    "adagrad": lambda: keras.optimizers.Adagrad(0.5),
    "adam": lambda: keras.optimizers.Adam(0.1),
    "ftrl": lambda: keras.optimizers.Ftrl(0.5, l1_regularization_strength=0.01, beta=0.5),
    "averaged": lambda: keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5),
    "clipped": lambda: keras.optimizers.Adagrad(0.5, global_clipnorm=0.05),
    "adam clipped": lambda: keras.optimizers.Adam(0.1, global_clipnorm=0.05),
    "clipped by variable": lambda: keras.optimizers.SGD(0.5, clipnorm=0.02),
}

PROGRAM = """
import re
import keras
import numpy as np
import tensorflow as tf
import tf_multitier
import test_world_keras as shared

strategy = tf_multitier.distribute.CollectiveStrategy(timeout=60)
rank = strategy.rank()

def new_model():
    with strategy.scope():
        return shared.new_model()  # built in fit

for i, (name, optimizer) in enumerate(shared.OPTIMIZERS.items()):
    ids, labels = shared.data(name)
    model = new_model()
    model.compile(strategy.optimizer(optimizer()), "mse", steps_per_execution=1 + i % 2 * 3)
    batches = tf.data.Dataset.from_tensor_slices((ids[:, rank], labels[:, rank]))
    model.fit(strategy.dataset(batches), verbose=0)
    table = model.layers[0].embeddings
    np.savez(f"{folder}/{name}-{rank}", rows=table.peek(range(48)), frequency=table.get_frequency(range(48)), kernel=model.layers[2].kernel)

ids, labels = shared.data()
# Rank 0 has 2 batches, rank 1 has 5. Only a dataset that knows its number of batches tells it before.
for known in (True, False):
    for end, steps in (("all", 5), ("shortest", 2)):
        model = new_model()
        model.compile(strategy.optimizer("adagrad"), "mse", metrics=["mae"])
        mine = (ids[: 2 + 3 * rank, rank], labels[: 2 + 3 * rank, rank])
        batches = tf.data.Dataset.from_tensor_slices(mine)
        batches = batches if known else batches.filter(lambda *unused: True)
        logs = model.fit(strategy.dataset(batches, end), epochs=2, verbose=0).history
        assert np.isfinite([logs["loss"], logs["mae"]]).all(), logs
        # Keras counts one more step where it does not know the number of batches.
        assert int(model.optimizer.iterations) == 2 * steps or not known
        trained = int(tf.reduce_sum(model.layers[0].embeddings.get_frequency(range(48))))
        assert trained == 2 * 24 * (7 if end == "all" else 4), (trained, known, end)
        if end == "all":
            assert np.isfinite(model.evaluate(strategy.dataset(batches), verbose=0)).all()
            assert len(model.predict(strategy.dataset(batches), verbose=0)) == 8 * (2 + 3 * rank)
        print("kernel", known, end, np.asarray(model.layers[2].kernel).tobytes().hex())

# A search of all rows, for other numbers of queries on each rank.
table = model.layers[0].embeddings
items = np.flatnonzero(table.get_frequency(range(60)))
rows = table.peek(items).numpy()
retrieval = tf_multitier.keras.Retrieval(model.layers[0], k=20)
vectors = np.random.default_rng(9 + rank).normal(size=(7, 4)).astype(np.float32)
def check(found, asked, excluded):
    scores, ids = map(np.asarray, found)
    for query, its_scores, its_ids, without in zip(asked, scores, ids, excluded, strict=True):
        kept = ~np.isin(items, without)
        wanted = rows[kept] @ query
        order = np.argsort(-wanted)[:20]
        np.testing.assert_array_equal(its_ids[: len(order)], items[kept][order])
        np.testing.assert_allclose(its_scores[: len(order)], wanted[order], rtol=1e-4, atol=1e-6)
        assert (its_ids[len(order) :] == -1).all() and (its_scores[len(order) :] == -np.inf).all()
assert len(items) > 40
seen = [list(items[i : 7 * i + rank]) for i in range(7)]
for search in (retrieval, tf.function(retrieval)):
    for n in (5 * rank, 7 - rank):
        check(search(vectors[:n], exclude=tf.ragged.constant(seen[:n], tf.int64, 1)), vectors[:n], seen[:n])
        check(search(vectors[:n]), vectors[:n], [[]] * n)
asks = keras.Input((4,))
asks = keras.Model(asks, retrieval(asks))
mine = tf.data.Dataset.from_tensor_slices(vectors).batch(2).take(2 + rank)
check(asks.predict(strategy.dataset(mine), verbose=0), vectors[: 4 + 2 * rank], [[]] * (4 + 2 * rank))

# Layers that are made outside of the scope differ on ranks at first. So do what they have adapted to, and their examples.
features = np.random.default_rng(7).normal(size=(2, 40, 3)).astype(np.float32)
wanted = features.sum(2, keepdims=True)
adapted = keras.layers.Normalization()
adapted.adapt(features[rank])
frozen = keras.layers.Dense(2, trainable=False)
layers = [keras.layers.BatchNormalization(center=False), adapted, frozen, keras.layers.Dense(1)]
dense = keras.Sequential(layers)
dense.build((None, 3))
dense.compile(strategy.optimizer("sgd"), "mse", metrics=["mae", keras.metrics.RootMeanSquaredError()])
reduces = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=0.01)
batches = tf.data.Dataset.from_tensor_slices((features[rank], wanted[rank])).batch(8)
found = dense.fit(strategy.dataset(batches), epochs=3, callbacks=[reduces], verbose=0).history
print("dense", found, *[np.asarray(v).tobytes().hex() for v in dense.weights], np.asarray(adapted.mean).tobytes().hex())
moving = np.zeros(3)
for i in range(15):
    moving = 0.99 * moving + 0.01 * features[:, i % 5 * 8 :][:, :8].mean((0, 1))
np.testing.assert_allclose(layers[0].moving_mean, moving, rtol=1e-4)
some = (features[rank, : 40 - 16 * rank], wanted[rank, : 40 - 16 * rank])
found = dense.evaluate(strategy.dataset(tf.data.Dataset.from_tensor_slices(some).batch(8)), verbose=0)
errors = np.concatenate([dense(features[r, : 40 - 16 * r]) - wanted[r, : 40 - 16 * r] for r in range(2)])
np.testing.assert_allclose(found, [(errors**2).mean(), abs(errors).mean(), (errors**2).mean() ** 0.5], rtol=1e-5)

def refused(kind, message, call):
    try:
        call()
    except kind as error:
        assert re.search(message, str(error)), error
        return
    raise AssertionError(f"expected {message}")

apart = "expected that of the world, found that of this process: train by strategy.optimizer"
mine = ids[0, rank], labels[0, rank]
unreduced = new_model()
unreduced.compile(tf_multitier.keras.with_rows("adagrad"), "mse")
refused(ValueError, apart, lambda: unreduced.fit(*mine, verbose=0))
table = model.layers[0].embeddings
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1]))
    tf_multitier.optimizers.SGD(1.0).apply_gradients(zip(tape.gradient(loss, list(table)), table))
refused(ValueError, apart, step)
refused(ValueError, apart, tf.function(step))
plain = keras.Sequential([keras.layers.Dense(1)])
plain.compile("sgd", "mse")
refused(ValueError, apart, lambda: plain.fit(features[rank], wanted[rank], verbose=0))
plain.compile(keras.optimizers.LossScaleOptimizer(strategy.optimizer("sgd")), "mse")
refused(NotImplementedError, "auto_scale_loss=False", lambda: plain.fit(features[rank], wanted[rank], verbose=0))
for scaled in (strategy.optimizer("sgd"), tf_multitier.keras.with_rows("sgd")):  # a rank would skip this step and the other would wait
    scaled = keras.optimizers.LossScaleOptimizer(scaled)
    pairs = [(tf.constant([1.0, np.inf][rank]), v) for v in model.trainable_variables]
    refused(NotImplementedError, "auto_scale_loss=False", lambda: scaled.apply_gradients(pairs))
def clipped():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, rank]))
    grads, _ = tf.clip_by_global_norm(tape.gradient(loss, list(table)), 1.0)
    strategy.reduce_gradients(grads)
refused(ValueError, "expected the rows of a tape, found other values", clipped)
alone = "expected one that is made in strategy.scope.., found one of this process alone, .*: make it, or its layer of Keras, in"
for made in (shared.new_model, lambda: keras.models.clone_model(model)):
    outside = made()
    outside.compile(strategy.optimizer("adagrad"), "mse")
    refused(ValueError, alone, lambda: outside.fit(*mine, verbose=0))
local = tf_multitier.get_embedding_variable("local", 4)
def train_local():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(local, [1]))
    grads = strategy.reduce_gradients(tape.gradient(loss, [local]))
    tf_multitier.optimizers.SGD(1.0).apply_gradients(zip(grads, [local]))
refused(ValueError, alone, train_local)
refused(ValueError, alone, tf.function(train_local))
saved = "save by tf_multitier.distribute.CheckpointManager or strategy.checkpoints"
refused(NotImplementedError, saved, lambda: model.save(f"{folder}/m{rank}.keras"))
refused(NotImplementedError, saved, lambda: model.save_weights(f"{folder}/m{rank}.weights.h5"))
refused(NotImplementedError, saved, lambda: model.export(f"{folder}/exported{rank}"))
assert not [name for name in os.listdir(folder) if name.startswith((f"m{rank}.", "exported"))]
refused(NotImplementedError, saved, lambda: tf.saved_model.save(tf.Module(), f"{folder}/saved{rank}") or tf.train.Checkpoint(model=model).save(f"{folder}/c{rank}"))
late = keras.Sequential([keras.layers.Dense(2, trainable=False), keras.layers.Dense(1, kernel_initializer="zeros")])
late.compile(strategy.optimizer("sgd"), "mse")
others = "expected the dense values of rank 0 in a model that is built in its first step, found others"
refused(tf.errors.InvalidArgumentError, others, lambda: late.fit(features[rank], wanted[rank], batch_size=8, verbose=0))
strategy.barrier()
model.optimizer.learning_rate = 0.1 * (rank + 1)
refused(tf.errors.InvalidArgumentError, "expected the same learning rate on all ranks", lambda: model.fit(*mine, verbose=0))
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    return folder, launch(folder, PROGRAM, "--workers=2")[0]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_world_of_two_trains_what_one_process_trains_on_both_batches(world, name):
    folder, _ = world
    ids, labels = data(name)
    model = new_model()
    model.compile(tf_multitier.keras.with_rows(OPTIMIZERS[name]()), "mse")
    batches = ids.reshape(BATCHES, 2 * BATCH, 3), labels.reshape(BATCHES, 2 * BATCH, 1)
    model.fit(tf.data.Dataset.from_tensor_slices(batches), verbose=0)
    found = [np.load(folder / f"{name}-{rank}.npz") for rank in range(2)]
    table = model.layers[0].embeddings
    assert np.array_equal(found[0]["kernel"], found[1]["kernel"])
    assert np.array_equal(found[0]["rows"], found[1]["rows"])
    assert np.array_equal(found[0]["frequency"], table.get_frequency(range(48)))
    np.testing.assert_allclose(found[0]["kernel"], model.layers[2].kernel, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[0]["rows"], table.peek(range(48)), rtol=1e-4, atol=1e-5)


def test_logs_and_dense_weights_are_the_same_on_all_ranks(world):
    [of_first], [of_second] = [
        [line for line in world[1][f"worker {rank}"] if line.startswith("dense")]
        for rank in range(2)
    ]
    assert of_first == of_second


def test_data_may_end_at_different_steps(world):
    kernels = [
        [line for line in world[1][f"worker {rank}"] if line.startswith("kernel")]
        for rank in range(2)
    ]
    assert len(kernels[0]) == 4 and kernels[0] == kernels[1]

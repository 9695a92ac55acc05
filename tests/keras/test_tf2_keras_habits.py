"""Habits of trainers in `fit`: losses and rows are those of keras.layers.Embedding with equal first rows and Keras' own optimizer.

Each batch has every id once: so rules that move all rows of a dense table and rules that move trained rows do the same.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from worlds import needs_eager

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
STORAGES = ["DRAM", "DRAM_SSDHASH"]
IDS, DIM, BATCH = 24, 4, 8
RNG = np.random.default_rng(3)
X = np.concatenate([RNG.permutation(IDS).reshape(BATCH, 3) for _ in range(6)])
Y = RNG.normal(size=(len(X), 1)).astype("float32")


def option(storage, path):
    if storage == "DRAM":
        return None
    return tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption(
            storage_type=tf_multitier.StorageType.DRAM_SSDHASH,
            storage_path=str(path),
            storage_size=[512],
        )
    )


def model_of(layer, policy):
    keras.utils.set_random_seed(7)
    ids = keras.Input((3,), dtype="int64")
    rows = keras.layers.Flatten(dtype=policy)(layer(ids))
    return keras.Model(ids, keras.layers.Dense(1, dtype=policy)(rows))


def pair(storage, path, optimizer=None, policy="float32"):
    """Two models with equal weights: with our layer, and with that of Keras."""
    ours = kt.Embedding(
        DIM, name="emb", ev_option=option(storage, path), optimizer=optimizer, dtype=policy
    )
    theirs = keras.layers.Embedding(IDS, DIM, name="emb", dtype=policy)
    models = model_of(ours, policy), model_of(theirs, policy)
    theirs.embeddings.assign(values(models[0]))
    return models


def values(model):
    """The rows of all ids."""
    embeddings = model.get_layer("emb").embeddings
    if isinstance(embeddings, keras.Variable):
        return embeddings.numpy()
    return tf.nn.embedding_lookup(embeddings, range(IDS)).numpy()


def fit(model, optimizer, **kwargs):
    model.compile(optimizer, "mse", **kwargs)
    return model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]


def trains_alike(models, optimizers, rtol=1e-5, **kwargs):
    before = values(models[0])
    losses = [fit(model, optimizer, **kwargs) for model, optimizer in zip(models, optimizers)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=rtol)
    np.testing.assert_allclose(values(models[0]), values(models[1]), rtol=10 * rtol, atol=rtol)
    assert not np.allclose(values(models[0]), before, atol=1e-3)


@pytest.mark.parametrize(
    "name, storage", list(zip(kt.optimizers._RULES, itertools.cycle(STORAGES)))
)
def test_weight_decay_is_that_of_keras(name, storage, tmp_path):
    make = lambda: getattr(keras.optimizers, name)(0.02, weight_decay=0.5)
    trains_alike(pair(storage, tmp_path), (kt.with_rows(make()), make()))


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_rows_that_are_excluded_do_not_decay(name, tmp_path):
    optimizers = [getattr(keras.optimizers, name)(0.02, weight_decay=0.5) for _ in range(2)]
    for optimizer in optimizers:
        optimizer.exclude_from_weight_decay(var_names=["emb"])
    trains_alike(pair("DRAM", tmp_path), (kt.with_rows(optimizers[0]), optimizers[1]))


def test_an_optimizer_of_a_layer_decays_its_rows(tmp_path):
    models = pair("DRAM", tmp_path, tf_multitier.optimizers.SGD(0.02, weight_decay=0.5))
    trains_alike(models, [keras.optimizers.SGD(0.02, weight_decay=0.5) for _ in models])


def test_rows_without_a_gradient_do_not_decay():
    ev = tf_multitier.get_embedding_variable("ev", DIM, initializer=tf.ones_initializer())
    optimizer = tf_multitier.optimizers.SGD(0.1, weight_decay=0.5)
    for key in (1, 2, 2):
        optimizer.apply_gradients([(tf.IndexedSlices(tf.zeros([1, DIM]), [key]), ev)])
    found = tf.nn.embedding_lookup(ev, [1, 2, 3])[:, 0]
    np.testing.assert_allclose(found, [0.95, 0.95**2, 1], rtol=1e-6)

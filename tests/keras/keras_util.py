"""A small Keras model with an embedding layer, its data, and what tests ask of it."""

import keras
import numpy as np

import tf_multitier.keras as kt

RNG = np.random.default_rng(0)
X = RNG.integers(0, 40, (128, 3))
Y = RNG.normal(size=(128, 1)).astype("float32")


def model(optimizer=None, **kwargs):
    keras.utils.set_random_seed(7)
    ids = keras.Input((3,), dtype="int64")
    settings = {"combiner": "sum", "optimizer": optimizer, "name": "emb", **kwargs}
    pooled = kt.Embedding(4, **settings)(ids)
    return keras.Model(ids, keras.layers.Dense(1)(pooled))


def tables(trained):
    return trained.get_layer("emb").tables


def fit(trained, optimizer="adam", epochs=1, **kwargs):
    if optimizer is not None:
        trained.compile(optimizer, "mse", **kwargs)
    return trained.fit(X, Y, batch_size=32, epochs=epochs, shuffle=False, verbose=0).history["loss"]


def predicted(trained):
    return trained.predict(X, verbose=0)

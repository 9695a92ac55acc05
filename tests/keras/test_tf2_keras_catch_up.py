"""Adam with catch_up in `fit`: its losses against those of keras.layers.Embedding, whose Adam moves all rows in each step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
IDS, DIM, BATCH = 400, 4, 8
RNG = np.random.default_rng(4)
X = RNG.integers(0, IDS, (1200, 2))
TRUTH = RNG.normal(size=IDS)
Y = (TRUTH[X[:, 0]] * TRUTH[X[:, 1]]).astype("float32")[:, None]


def option(storage, path):
    if storage == "DRAM":
        return None
    kind = tf_multitier.StorageType.DRAM_SSDHASH
    return tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption(
            storage_type=kind, storage_path=str(path), storage_size=[512]
        )
    )


def model_of(layer):
    keras.utils.set_random_seed(7)
    ids = keras.Input((2,), dtype="int64")
    rows = layer(ids)
    return keras.Model(ids, keras.layers.Dense(1)(rows[:, 0] * rows[:, 1]))


def table(**kwargs):
    matrix = np.random.default_rng(5).normal(0, 0.3, (IDS, DIM))
    return dict(embeddings_initializer=keras.initializers.Constant(matrix), name="emb", **kwargs)


def losses(layer, optimizer, epochs=4):
    model = model_of(layer)
    model.compile(optimizer, "mse")
    history = model.fit(X, Y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    return np.array(history.history["loss"])


@pytest.mark.parametrize(
    "is_own, storage", [(False, "DRAM"), (False, "DRAM_SSDHASH"), (True, "DRAM_SSDHASH")]
)
def test_losses_are_near_those_of_a_dense_table(is_own, storage, tmp_path):
    dense = losses(keras.layers.Embedding(IDS, DIM, **table()), keras.optimizers.Adam(0.01))
    lazy = losses(kt.Embedding(DIM, **table()), kt.with_rows(keras.optimizers.Adam(0.01)))
    own = tf_multitier.optimizers.Adam(catch_up=True) if is_own else None
    of_model = keras.optimizers.Adam(0.01)
    layer = kt.Embedding(DIM, ev_option=option(storage, tmp_path), optimizer=own, **table())
    found = losses(layer, of_model if is_own else kt.with_rows(of_model, catch_up=True))
    apart = np.abs(found / dense - 1).max()
    assert apart < 0.1 * np.abs(lazy / dense - 1).max()


def test_a_model_that_is_saved_goes_on(tmp_path):
    whole, part = (model_of(kt.Embedding(DIM, **table())) for _ in range(2))
    for model in (whole, part):
        model.compile(kt.with_rows("adam", catch_up=True), "mse")
    fit = lambda model, x, y: model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    fit(whole, X[:800], Y[:800])
    fit(part, X[:400], Y[:400])
    part.save(tmp_path / "part.keras")
    loaded = keras.saving.load_model(tmp_path / "part.keras")
    fit(loaded, X[400:800], Y[400:800])
    assert loaded.optimizer.row_optimizer.catch_up
    rows = [
        tf.nn.embedding_lookup(m.get_layer("emb").embeddings, range(IDS)) for m in (whole, loaded)
    ]
    same_bits(rows[0].numpy(), rows[1].numpy())


def test_only_adam_catches_up():
    with pytest.raises(ValueError, match="catch_up: expected Adam, found SGD"):
        kt.with_rows("sgd", catch_up=True)

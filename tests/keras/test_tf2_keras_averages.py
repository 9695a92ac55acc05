"""`use_ema` and SwapEMAWeights in `fit`: rows and averages are those of keras.layers.Embedding with Keras' own optimizer.

Each batch has every id once, so Keras, which moves the averages of all rows in each step, and we, who move those of trained rows, do the
same. Averages are read as a user reads them: weights in evaluate(), in saved files and after training.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
STORAGES = ["DRAM", "DRAM_SSDHASH"]
IDS, DIM, BATCH = 24, 4, 8
RNG = np.random.default_rng(3)
X = np.concatenate([RNG.permutation(IDS).reshape(BATCH, 3) for _ in range(4)])
Y = RNG.normal(size=(len(X), 1)).astype("float32")
TABLE = dict(
    name="emb", embeddings_initializer=keras.initializers.Constant(RNG.normal(0, 0.1, (IDS, DIM)))
)
EMA = {"use_ema": True, "ema_momentum": 0.8}
RULES = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Nadam",
    "Lion",
    "RMSprop",
    "Ftrl",
    "Adadelta",
]


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


def model_of(layer):
    keras.utils.set_random_seed(7)
    ids = keras.Input((3,), dtype="int64")
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(layer(ids))))


def pair(storage, path, **kwargs):
    """Two models with equal weights: with our layer, and with that of Keras."""
    ours = kt.Embedding(DIM, ev_option=option(storage, path), **TABLE, **kwargs)
    return model_of(ours), model_of(keras.layers.Embedding(IDS, DIM, **TABLE))


def values(model):
    """The rows of all ids."""
    embeddings = model.get_layer("emb").embeddings
    if isinstance(embeddings, keras.Variable):
        return embeddings.numpy()
    return tf.nn.embedding_lookup(embeddings, range(IDS)).numpy()


class Seen(keras.callbacks.Callback):
    """The rows at each evaluation and at the begin and end of each epoch."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def _see(self, *unused_args, **unused_kwargs):
        self.rows.append(values(self.model))

    on_test_begin = on_epoch_begin = on_epoch_end = _see


def fit(model, optimizer, *callbacks, epochs=2):
    if optimizer is not None:
        model.compile(optimizer, "mse")
    seen = Seen()
    how = dict(batch_size=BATCH, shuffle=False, verbose=0, validation_data=(X[:8], Y[:8]))
    model.fit(X, Y, epochs=epochs, callbacks=[*callbacks, seen], **how)
    return [*seen.rows, values(model)]


def averages(model):
    """The rows in evaluate() with SwapEMAWeights."""
    seen = Seen()
    model.evaluate(X, Y, verbose=0, callbacks=[keras.callbacks.SwapEMAWeights(), seen])
    return seen.rows[-1]


def near(found, expected, atol=1e-6):
    assert len(found) == len(expected)
    for its, theirs in zip(found, expected):
        np.testing.assert_allclose(its, theirs, rtol=0, atol=atol)


def of_class(name, **kwargs):
    rate = {"Adadelta": 0.5, "Ftrl": 0.5}.get(name, 0.01)
    return getattr(keras.optimizers, name)(rate, **EMA, **kwargs)


@pytest.mark.parametrize(
    "storage, name",
    [*(("DRAM_SSDHASH", name) for name in RULES), ("DRAM", "SGD"), ("DRAM", "Adam")],
)
def test_rows_and_averages_are_those_of_a_dense_table(storage, name, tmp_path):
    ours, theirs = pair(storage, tmp_path)
    found = fit(ours, kt.with_rows(of_class(name)), keras.callbacks.SwapEMAWeights())
    expected = fit(theirs, of_class(name), keras.callbacks.SwapEMAWeights())
    near(found, expected)
    # SwapEMAWeights came before Seen: an epoch began with the weights that the evaluation did not have.
    assert np.abs(expected[1] - expected[3]).max() > 1e-4


def test_a_row_optimizer_of_the_layer_averages_as_the_models_optimizer(tmp_path):
    ours, theirs = pair("DRAM", tmp_path, optimizer=tf_multitier.optimizers.Adam())
    swap = keras.callbacks.SwapEMAWeights
    near(fit(ours, of_class("Adam"), swap()), fit(theirs, of_class("Adam"), swap()))


@pytest.mark.parametrize("storage", STORAGES)
def test_an_epoch_that_ends_with_averages_saves_them_and_leaves_them_at_last(storage, tmp_path):
    ours, theirs = pair(storage, tmp_path)
    found, saved = [], {}
    for model, optimizer in (
        (ours, kt.with_rows(of_class("Adam"))),
        (theirs, of_class("Adam")),
    ):
        path = str(tmp_path / f"{model.name}_{{epoch}}.keras")
        save = keras.callbacks.ModelCheckpoint(path)
        found.append(fit(model, optimizer, keras.callbacks.SwapEMAWeights(True), save))
        saved[model] = [
            values(keras.saving.load_model(path.format(epoch=epoch))) for epoch in (1, 2)
        ]
    near(*found)
    near(saved[ours], saved[theirs])
    same_bits(saved[ours][-1], values(ours))


@pytest.mark.parametrize("storage", STORAGES)
def test_a_model_that_is_saved_goes_on_with_its_averages(storage, tmp_path):
    def train(model, *steps):
        for step in steps:
            at = slice(step * BATCH, (step + 1) * BATCH)
            model.train_on_batch(X[at], Y[at])

    whole, part = (pair(storage, tmp_path / name)[0] for name in ("whole", "part"))
    for model in (whole, part):
        model.compile(kt.with_rows(of_class("Adam")), "mse")
        train(model, 0, 1)
    part.save(tmp_path / "part.keras")
    loaded = keras.saving.load_model(tmp_path / "part.keras")
    found = []
    for model in (whole, loaded):
        train(model, 2, 3)
        found.append([values(model), averages(model)])
    near(*found, atol=0)
    assert (found[0][0] != found[0][1]).all()


@pytest.mark.parametrize("kind", ["with_rows", "own", "rows alone"])
def test_steps_of_ema_overwrite_frequency_replace_rows_by_averages(kind, tmp_path):
    def of_rows_alone(layer):
        ids = keras.Input((3,), dtype="int64")
        return keras.Model(ids, keras.ops.sum(layer(ids), [1, 2]))

    own = {"optimizer": tf_multitier.optimizers.SGD()} if kind == "own" else {}
    models = pair("DRAM", tmp_path, **own)
    if kind == "rows alone":
        models = [of_rows_alone(model.get_layer("emb")) for model in models]
    theirs = of_class("SGD", ema_overwrite_frequency=3)
    ours = of_class("SGD", ema_overwrite_frequency=3)
    found = fit(models[0], ours if kind == "own" else kt.with_rows(ours))
    near(found, fit(models[1], theirs))


def test_an_average_stays_in_steps_that_do_not_train_its_row():
    model = model_of(kt.Embedding(DIM, **TABLE))
    model.compile(kt.with_rows(of_class("SGD")), "mse")
    rows = lambda: values(model)[:3]
    ids = lambda *its: (np.tile(its, (BATCH, 1)), Y[:BATCH])
    model.train_on_batch(*ids(0, 1, 2))
    first = rows()
    model.train_on_batch(*ids(0, 1, 2))
    average = 0.8 * first + 0.2 * rows()
    for _ in range(4):
        model.train_on_batch(*ids(3, 4, 5))
    model.optimizer.finalize_variable_values(model.trainable_variables)
    np.testing.assert_allclose(rows(), average, atol=1e-6)


def test_rows_of_bfloat16_are_what_they_were_after_an_evaluation():
    model = model_of(kt.Embedding(DIM, **TABLE, dtype="bfloat16"))
    model.compile(kt.with_rows(of_class("SGD")), "mse")
    for _ in range(3):
        model.train_on_batch(X, Y)
    before = values(model)
    assert (averages(model) != before).any()
    same_bits(values(model), before)


def test_catch_up_and_averages_exclude_each_other():
    model = model_of(kt.Embedding(DIM, **TABLE))
    with pytest.raises(ValueError, match="expected catch_up without it, found use_ema"):
        fit(model, kt.with_rows(of_class("Adam"), catch_up=True))


def test_keras_own_optimizer_that_trains_rows_alone_cannot_overwrite_them():
    ids = keras.Input((3,), dtype="int64")
    layer = kt.Embedding(DIM, name="emb", optimizer=tf_multitier.optimizers.SGD())
    model = keras.Model(ids, keras.ops.sum(layer(ids), [1, 2]))
    with pytest.raises(NotImplementedError, match="expected a model with dense weights.*with_rows"):
        fit(model, of_class("SGD", ema_overwrite_frequency=3))


def test_a_swap_that_fails_changes_nothing_and_works_later(monkeypatch, tmp_path):
    ours, _ = pair("DRAM_SSDHASH", tmp_path)
    ours.compile(kt.with_rows(of_class("SGD")), "mse")
    for at in range(0, len(X), BATCH):  # the end of fit() would make the averages the values
        ours.train_on_batch(X[at : at + BATCH], Y[at : at + BATCH])
    monkeypatch.setattr("tf_multitier.keras.averages._ELEMENTS", 8 * DIM)
    table = type(ours.get_layer("emb").embeddings)
    upsert = table.upsert
    dense, calls = ours.get_weights()[1:], []

    def full(self, *arguments, **named):
        calls.append(None)
        if len(calls) == 2:
            raise tf.errors.ResourceExhaustedError(None, None, "disk full")
        return upsert(self, *arguments, **named)

    monkeypatch.setattr(table, "upsert", full)
    rows = values(ours)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="disk full"):
        averages(ours)
    near([values(ours)], [rows])
    same_bits(ours.get_weights()[1:], dense)
    assert len(calls) > 2 and np.abs(averages(ours) - rows).max() > 1e-4


def test_memory_counts_the_average_of_each_row():
    def of(**ema):
        return tf_multitier.memory(10, DIM, kt.with_rows(keras.optimizers.Adam(**ema)))

    assert of(**EMA).bytes_per_row == of().bytes_per_row + 4 * DIM == 4 * 4 * DIM

"""Learning rates of row optimizers that are functions: models with them are cloned, saved and loaded."""

import functools

import keras
import numpy as np
import pytest

import tf_multitier
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
optimizers = tf_multitier.optimizers

RNG = np.random.default_rng(0)
X = RNG.integers(0, 40, (64, 3))
Y = RNG.normal(size=(64, 1)).astype("float32")


@keras.saving.register_keras_serializable("tests")
def registered():
    return 0.25


class Rates:
    def of_step(self, step):
        return 0.25


HALF = 0.5
SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.25, 10, 0.5)
RATES = {
    "lambda": lambda: 0.25,
    "lambda of the step": lambda step: 0.25,
    "global": lambda: HALF * HALF,
    "closure": (lambda part: lambda: HALF * part)(0.5),
    "partial": functools.partial(float, 0.25),
    "method": Rates().of_step,
    "registered": registered,
    "schedule": SCHEDULE,
}


def model(rate, is_group=False):
    keras.utils.set_random_seed(7)
    ids = keras.Input((3,), dtype="int64")
    optimizer = optimizers.Adagrad(rate)
    if is_group:
        layer = kt.GroupEmbedding({"a": {"output_dim": 4}}, concat=True, optimizer=optimizer)
        pooled = layer({"a": ids})
    else:
        layer = kt.Embedding(4, combiner="sum", optimizer=optimizer)
        pooled = layer(ids)
    return keras.Model(ids, keras.layers.Dense(1)(pooled))


def fit(trained):
    trained.compile("sgd", "mse")
    trained.fit(X, Y, batch_size=32, shuffle=False, verbose=0)
    return trained


def rates(trained):
    return [
        float(rows.row_optimizer._now(rows.row_optimizer.learning_rate))
        for layer in trained.layers
        for rows in getattr(layer, "_rows", [])
    ]


@pytest.mark.parametrize("is_group", [False, True])
@pytest.mark.parametrize("name", list(RATES))
def test_a_model_with_any_learning_rate_is_cloned(name, is_group):
    trained = model(RATES[name], is_group)
    cloned = keras.models.clone_model(trained)
    assert rates(cloned) == [0.25]
    fit(cloned)
    assert rates(trained) == [0.25]


@pytest.mark.parametrize("name", ["registered", "schedule"])
def test_a_registered_function_and_a_schedule_are_saved(name, tmp_path):
    saved = fit(model(RATES[name]))
    saved.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    same_bits(fit(loaded).predict(X, verbose=0), fit(saved).predict(X, verbose=0))


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
def test_a_lambda_is_loaded_without_safe_mode_only(tmp_path):
    saved = fit(model(RATES["lambda"]))
    saved.save(tmp_path / "m.keras")
    with pytest.raises((TypeError, ValueError)) as refused:
        keras.models.load_model(tmp_path / "m.keras")
    for words in ("learning_rate of Adagrad", "register_keras_serializable", "safe_mode=False"):
        assert words in str(refused.value)
    loaded = keras.models.load_model(tmp_path / "m.keras", safe_mode=False)
    assert rates(loaded) == [0.25]
    same_bits(fit(loaded).predict(X, verbose=0), fit(saved).predict(X, verbose=0))


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
@pytest.mark.parametrize("name", ["lambda", "registered", "schedule"])
def test_with_rows_keeps_the_learning_rate_of_the_optimizer(name):
    ids = keras.Input((3,), dtype="int64")
    layer = kt.Embedding(4, combiner="sum")
    trained = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
    optimizer = kt.with_rows(keras.optimizers.SGD(RATES[name]))
    assert float(optimizer.learning_rate) == 0.25
    trained.compile(optimizer, "mse")
    trained.fit(X, Y, verbose=0)
    assert int(layer.tables[0].total_count()) == np.unique(X).size

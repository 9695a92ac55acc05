"""Learning rates of row optimizers that are functions: models with them are cloned, saved and loaded."""

import functools
import warnings

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


# ---- the rate of the model

SGD = keras.optimizers.SGD


def rates_of_rows(optimizer, of_model, after=()):
    """How far a row moved in each step, for a gradient of 1: its learning rate. after: functions of the model, one after each step."""
    ids = keras.Input((), dtype="int64")
    layer = kt.Embedding(1, "zeros", optimizer=optimizer, name="emb")
    trained = keras.Model(ids, layer(ids))
    trained.compile(of_model, lambda y, values: values)
    found = []
    for change in [lambda trained: None, *after]:
        change(trained)
        before = float(layer(np.array([1]))[0, 0])
        trained.fit(np.array([1]), np.array([1.0]), verbose=0)
        found.append(round(before - float(layer(np.array([1]))[0, 0]), 6))
    return found


def assigned(rate):
    def change(trained):
        trained.optimizer.learning_rate = rate

    return change


def assigned_to_layer(rate):
    def change(trained):
        trained.get_layer("emb").optimizer.learning_rate = rate

    return change


def test_rows_follow_the_model_if_their_optimizer_was_given_no_rate():
    changes = [assigned(0.25), assigned_to_layer(0.75), assigned(0.125)]
    for of_model in (SGD(0.5), kt.with_rows(SGD(0.5))):
        assert rates_of_rows(optimizers.SGD(), of_model, changes) == [0.5, 0.25, 0.75, 0.75]
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.25])
    steps = [lambda trained: None] * 2
    assert rates_of_rows(optimizers.SGD(), SGD(schedule), steps) == [0.5, 0.5, 0.25]


def test_the_first_change_of_the_model_is_said_if_the_rows_keep_their_rate():
    warned = "layer 'emb': the learning rate of the model's SGD {}, that of the rows stays 0.5"
    with pytest.warns(UserWarning, match=warned.format("changes")) as said:
        found = rates_of_rows(
            optimizers.SGD(0.5), SGD(1.0), [assigned(0.25), assigned(0.125), assigned(0.125)]
        )
    assert found == [0.5] * 4
    assert len(said) == 1
    schedule = keras.optimizers.schedules.ExponentialDecay(0.25, 10, 0.5)
    with pytest.warns(UserWarning, match=warned.format("follows a schedule or function")) as said:
        rates_of_rows(optimizers.SGD(0.5), SGD(schedule), [lambda trained: None])
    assert len(said) == 1


def test_a_program_that_sets_the_rate_of_the_rows_gets_no_warning():
    changes = [assigned_to_layer(0.75), assigned(0.25)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rates_of_rows(optimizers.SGD(0.5), SGD(1.0), changes) == [0.5, 0.75, 0.75]


def test_a_rate_that_was_not_given_stays_so_in_a_clone_and_an_archive(tmp_path):
    trained = model(0.5)
    trained.layers[1].optimizer = optimizers.Adagrad()
    trained.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    for other in (trained, keras.models.clone_model(trained), loaded):
        [layer] = [layer for layer in other.layers if hasattr(layer, "tables")]
        assert not layer.optimizer.rate_is_given
        assert not layer._rows[0].row_optimizer.rate_is_given

"""Scores of variables and of configurations of Keras: what they take, and what is refused."""

import datetime
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from paths import environment
from storage_util import started
from storage_util import WorldModel
from variable_util import make

import tf_multitier
from tf_multitier import engine
from tf_multitier import keras
from tf_multitier.keras import option_configs

v1 = tf.compat.v1
errors = tf.errors

ROW = 16  # bytes of a row of dim 4


def variable(score, parts=1, storage=None, **options):
    return make(
        parts=parts,
        ev_option=tf_multitier.EmbeddingVariableOption(
            score=score, storage_option=storage, **options
        ),
    )


@pytest.mark.parametrize("parts", [1, 3])
def test_custom_scores_are_the_versions_of_rows(world, parts):
    model = WorldModel(world, None, parts=parts, score="custom")
    keys = np.arange(-5, 5)
    with pytest.raises(errors.FailedPreconditionError, match="expected a score"):
        model.run(keys)
    for n in (7, -3, -4):
        model.ask("set_score", n)
        model.run(keys)
        assert model.ask("get_score", keys).tolist() == [n] * 10
        assert model.ask("get_version", keys).tolist() == [n] * 10


_WARNS = """
import tf_multitier
option = tf_multitier.EmbeddingVariableOption(
    score="custom",
    storage_option=tf_multitier.StorageOption(storage_rows=[2], on_full="warn"),
)
ev = tf_multitier.get_embedding_variable("users", 4, ev_option=option)
optimizer = tf_multitier.optimizers.SGD(0.5)
for score in (7, -3, -4, 9, 2):
    ev.set_score(score)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, tf.range(score + 5, score + 9)))
    optimizer.apply_gradients([(tape.gradient(loss, ev), ev)])
"""


def test_each_warning_is_logged_once():
    done = subprocess.run(
        [sys.executable, "-c", "import tensorflow as tf" + _WARNS],
        env=environment(TF_CPP_MIN_LOG_LEVEL="1"),
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stderr.count("'users': set_score(-3) is less than the score before") == 1
    assert done.stderr.count("less than the score before") == 1
    assert done.stderr.count("'users' is full with 2 rows: 2 new keys of an update got no row") == 1
    assert done.stderr.count("got no row") == 1


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_step_may_set_the_score_that_its_update_uses(parts, in_function):
    ev = variable("custom", parts)
    optimizer = tf_multitier.optimizers.SGD(0.5)

    def step(ids, score):
        ev.set_score(score)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, ids))
        optimizer.apply_gradients([(tape.gradient(loss, ev), ev)])
        return ev.get_score(ids)

    ids = tf.constant([4, 5, 6], tf.int64)
    run = tf.function(step) if in_function else step
    assert run(ids, tf.constant(11, tf.int64)).numpy().tolist() == [11] * 3
    assert run(ids, tf.constant(-2, tf.int64)).numpy().tolist() == [-2] * 3


@pytest.mark.parametrize(
    "options, score",
    [
        ({"cache_strategy": "SCORE", "refuse_colder": True}, "frequency"),
        ({"cache_strategy": "LFU", "refuse_colder": True}, "step"),
        ({"cache_strategy": "LFU"}, "step"),
    ],
)
def test_a_full_variable_refuses_colder_keys(world, options, score):
    storage = tf_multitier.StorageOption(storage_size=[2 * ROW], drop_coldest=True, **options)
    model = WorldModel(world, storage, score=score)
    initial = model.look_up([3]).tolist()
    model.run([1, 1, 2, 2])
    model.run([3])
    assert model.look_up([3]).tolist() == initial  # no part of its gradient is used
    assert model.ask("get_frequency", [1, 2, 3]).tolist() == [2, 2, 0]
    assert model.stats()["refused"] == 1
    assert not len(model.ask("pop_dropped"))
    model.run([3, 3, 3])
    assert model.ask("get_frequency", [1, 2, 3]).tolist() == [0, 2, 3]


def test_rows_expire_by_time(world):
    evict = tf_multitier.GlobalStepEvict(datetime.timedelta(seconds=1000))
    model = WorldModel(world, None, score="time", evict_option=evict)
    world.run(lambda: model.ev.upsert([8], np.ones((1, 4)), versions=[5]))
    model.run([1, 2])
    [newest] = model.ask("get_version", [1])
    assert model.ask("expire") == 1
    expire_at = lambda second: model.ev.expire(second)
    assert world.run(expire_at, newest + 10**9) == 0
    assert world.run(expire_at, newest + 10**9 + 1) == 2


@pytest.mark.usefixtures("graph")
def test_no_global_step_is_needed_to_expire_by_time():
    ev = variable("time", evict_option=tf_multitier.GlobalStepEvict(datetime.timedelta(days=1)))
    loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, tf.constant([1], tf.int64)))
    train_op = v1.train.GradientDescentOptimizer(0.5).minimize(loss, var_list=[ev])
    with started() as session:
        session.run(train_op)
        assert session.run(ev.expire()) == 0


DAY = datetime.timedelta(days=1)


@pytest.mark.parametrize(
    "score, lifetime, message",
    [
        ("step", DAY, "expected a number of steps with score 'step', found a datetime.timedelta"),
        ("time", 5, "expected a datetime.timedelta with score 'time', found 5 steps"),
        (
            "custom",
            5,
            "steps_to_live: expected a score of step, time or frequency, found custom",
        ),
        (
            "custom",
            DAY,
            "steps_to_live: expected a score of step, time or frequency, found custom",
        ),
    ],
)
def test_lifetimes_that_are_not_counted_as_versions_are(score, lifetime, message):
    with pytest.raises(ValueError, match=f"embedding variable 'ev'.*{message}"):
        variable(score, evict_option=tf_multitier.GlobalStepEvict(lifetime))


@pytest.mark.parametrize(
    "make_option, error, message",
    [
        (
            lambda: tf_multitier.EmbeddingVariableOption(score="luck"),
            ValueError,
            "score: expected one of step, time, custom, frequency; found 'luck'",
        ),
        (
            lambda: tf_multitier.StorageOption(storage_size=[64], refuse_colder=True),
            ValueError,
            "StorageOption.refuse_colder: expected drop_coldest=true and cache_strategy SCORE or LFU, found drop_coldest=false",
        ),
        (
            lambda: tf_multitier.StorageOption(refuse_colder=2),
            TypeError,
            "refuse_colder: expected True or False, found 2",
        ),
        (
            lambda: engine.Table(4, score="luck"),
            ValueError,
            "score: expected one of step, time, custom, frequency; found 'luck'",
        ),
        (
            lambda: engine.Table(4, score="custom", steps_to_live=5),
            ValueError,
            "steps_to_live: expected a score of step, time or frequency, found custom",
        ),
        (
            lambda: engine.Table(4, refuse_colder=True),
            ValueError,
            "refuse_colder: expected drop_coldest=true and cache_strategy SCORE or LFU",
        ),
        (
            lambda: variable("step").set_score(3),
            ValueError,
            r"'ev': score: expected 'custom' for set_score, found 'step'",
        ),
        (
            lambda: variable("custom").set_score(1.5),
            TypeError,
            "'ev': score: expected an integer, found float32",
        ),
        (
            lambda: variable("step").expire(),
            TypeError,
            "'ev': step: expected an integer, found None",
        ),
    ],
)
def test_what_is_refused(make_option, error, message):
    with pytest.raises(error, match=message):
        make_option()


def test_a_configuration_of_keras_has_the_score():
    option = tf_multitier.EmbeddingVariableOption(
        score="time", evict_option=tf_multitier.GlobalStepEvict(DAY)
    )
    assert option_configs.from_config(option_configs.to_config(option)) == option
    layer = keras.Embedding(4, ev_option=option)
    assert keras.Embedding.from_config(layer.get_config()).get_config() == layer.get_config()

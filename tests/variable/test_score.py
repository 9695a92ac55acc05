"""Scores: what updates set as versions, which rows leave first, and which new keys get no row."""

import datetime
import subprocess
import sys
import warnings

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
CHAINS = [
    "PMEM",
    "LEVELDB",
    "SSDHASH",
    "DRAM_PMEM",
    "DRAM_LEVELDB",
    "DRAM_SSDHASH",
    "DRAM_PMEM_SSDHASH",
]


def table(sizes, path="", kind="DRAM", **options):
    """A table whose tiers hold these numbers of rows. It drops the rest by score."""
    return engine.Table(
        4,
        storage_type=kind,
        storage_path=str(path) or None,
        storage_size=[n * ROW for n in sizes],
        drop_coldest=True,
        **{"cache_strategy": "SCORE"} | options,
    )


def train(made, keys, step=-1):
    made.apply("sgd", keys, np.ones((len(keys), 4)), hyper={"learning_rate": 0.5}, global_step=step)


def set_quietly(made, score):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.set_score(score)


class FlatModel:
    """What a table of `capacity` rows should do, in Python."""

    def __init__(self, capacity, by_frequency, refuses=False):
        self.capacity, self.by_frequency, self.refuses = capacity, by_frequency, refuses
        self.rows = {}  # key: [score, last use]
        self.clock = self.refused = 0
        self.dropped = []

    def _use(self, keys):
        for key in keys:
            self.clock += 1
            if key in self.rows:
                self.rows[key][1] = self.clock

    def look_up(self, keys):
        self._use(keys)

    def train(self, keys, version):
        counts = {key: keys.count(key) for key in keys}
        absent = [key for key in counts if key not in self.rows]
        coldest = min((row[0] for row in self.rows.values()), default=None)
        before = len(self.rows)
        for key in absent:
            # By frequency, others that come with it may be colder.
            full = (before if self.by_frequency else len(self.rows)) >= self.capacity
            if self.refuses and full and (counts[key] if self.by_frequency else version) < coldest:
                self.refused += 1
            else:
                self.rows[key] = [0, 0]
        for key, count in counts.items():
            if key in self.rows:
                row = self.rows[key]
                row[0] = row[0] + count if self.by_frequency else version
        self._use(keys)
        for _ in range(len(self.rows) - self.capacity):
            coldest = min(self.rows, key=lambda key: self.rows[key])
            del self.rows[coldest]
            self.dropped.append(coldest)


def run_both(made, model, score, steps, seed, lookups=True):
    """Random operations on a table and its model, which are compared all the time."""
    rng = np.random.default_rng(seed)
    for step in range(steps):
        keys = rng.integers(0, 3 * model.capacity, rng.integers(1, 6)).tolist()
        if lookups and rng.random() < 0.3:
            made.lookup(keys)
            model.look_up(keys)
            continue
        version = step
        if score == "custom":
            version = int(rng.integers(-(2**62), 2**62)) if rng.random() < 0.7 else step
            set_quietly(made, version)
        train(made, keys, step)
        model.train(keys, version)
        if step % 50 == 49:
            assert made.pop_dropped().tolist() == model.dropped
            model.dropped.clear()
            assert sorted(made.export().keys.tolist()) == sorted(model.rows)
            assert made.stats()["refused"] == model.refused
    kept = sorted(model.rows)
    assert made.score(kept).tolist() == [model.rows[key][0] for key in kept]


def test_a_large_table_whose_rows_became_colder_takes_new_keys_again():
    made = table([70000], score="custom", refuse_colder=True)
    made.set_score(100)
    for first in range(0, 90000, 10000):
        train(made, np.arange(first, first + 10000))
    made.drain()
    kept = made.export().keys
    set_quietly(made, 5)
    train(made, kept)
    before = made.stats()["refused"]
    made.set_score(6)
    train(made, np.arange(1000000, 1001000))
    assert made.stats()["refused"] == before
    made.drain()
    assert (made.version(np.arange(1000000, 1001000)) == 6).sum() > 900


@pytest.mark.parametrize("refuse_colder", [False, True])
@pytest.mark.parametrize("score", ["step", "custom", "frequency"])
def test_rows_leave_in_the_order_of_a_model_in_python(score, refuse_colder):
    made = table([20], score=score, refuse_colder=refuse_colder)
    run_both(made, FlatModel(20, score == "frequency", refuse_colder), score, 10000, seed=3)
    assert (made.stats()["refused"] > 0) == (refuse_colder and score != "step")


# By frequency it is known beforehand which newcomer would be dropped at once: it gets no row, with refuse_colder and without.
@pytest.mark.parametrize("refuse_colder", [False, True])
def test_with_lfu_a_newcomer_that_is_colder_than_all_rows_gets_none(refuse_colder):
    made = table([20], cache_strategy="LFU", score="frequency", refuse_colder=refuse_colder)
    model = FlatModel(20, by_frequency=True, refuses=True)
    run_both(made, model, "frequency", 10000, seed=3)
    assert made.stats()["refused"] == model.refused > 0


def test_with_lfu_the_most_frequent_newcomers_of_a_batch_fill_the_table():
    made = table([20], cache_strategy="LFU")
    train(made, np.repeat(np.arange(50), np.arange(1, 51)))
    assert sorted(made.export().keys.tolist()) == list(range(30, 50))
    assert made.stats()["refused"] == 0


def test_a_large_table_with_lfu_refuses_colder_newcomers_where_it_is_asked_to():
    made = table([70000], cache_strategy="LFU", refuse_colder=True)
    grads = np.ones((70000, 4))
    for first in (
        0,
        70000,
    ):  # the second half makes rows leave: from then on the table knows the coldest that stay
        keys = np.arange(first, first + 70000)
        made.apply("sgd", keys, grads, np.full(70000, 3), {"learning_rate": 0.5})
    made.drain()
    made.pop_dropped()
    train(made, np.arange(1000000, 1005000))
    made.drain()
    assert made.stats()["refused"] > 3000 > len(made.pop_dropped())


@pytest.mark.parametrize("refuse_colder", [False, True])
@pytest.mark.parametrize("kind", CHAINS)
def test_of_all_tiers_the_lowest_score_leaves_the_table_first(kind, refuse_colder, tmp_path):
    sizes = [5] * len(kind.split("_"))
    made = table(sizes, tmp_path, kind, score="custom", refuse_colder=refuse_colder)
    model = FlatModel(sum(sizes), False, refuse_colder)
    rng = np.random.default_rng(5)
    for step, version in enumerate(rng.permutation(400).tolist()):
        key = int(rng.integers(0, 3 * model.capacity))
        set_quietly(made, version)
        train(made, [key])
        model.train([key], version)
        if step % 4 == 0:
            made.lookup([int(rng.integers(0, 3 * model.capacity))])
        made.drain()
        assert made.pop_dropped().tolist() == model.dropped, step
        model.dropped.clear()
    assert sorted(made.export().keys.tolist()) == sorted(model.rows)
    assert made.stats()["refused"] == model.refused
    assert (model.refused > 0) == refuse_colder


def test_in_a_tier_above_another_the_lowest_score_is_demoted_first(tmp_path):
    made = engine.Table(
        4,
        storage_type="DRAM_SSDHASH",
        storage_path=str(tmp_path),
        storage_size=[3 * ROW],
        cache_strategy="SCORE",
        score="custom",
    )
    for key, score in enumerate([50, 10, 40, 20, 30]):
        set_quietly(made, score)
        train(made, [key])
    made.drain()
    assert made.lookup_tier(range(5)).tolist() == [0, 1, 0, 1, 0]


def test_ten_hot_keys_survive_a_hundred_cold_inserts():
    made = table([20], score="frequency")
    hot = list(range(10))
    for _ in range(21):
        train(made, hot)
    for key in range(100, 200):
        train(made, [key])
    assert made.score(hot).tolist() == [21] * 10
    assert len(made) == 20


@pytest.mark.parametrize("score", ["custom", "frequency"])
def test_a_large_table_keeps_the_highest_scores(score):
    rows = 70000
    made = table([rows], score=score)
    rng = np.random.default_rng(7)
    scores = rng.integers(1, 12, 300) if score == "frequency" else rng.permutation(300)
    for batch, number in enumerate(scores.tolist()):
        keys = np.arange(batch * 1000, batch * 1000 + 1000)
        counts = None
        if score == "frequency":
            counts = np.full(1000, number)
        else:
            set_quietly(made, number)
        made.apply("sgd", keys, np.ones((1000, 4)), counts, {"learning_rate": 0.5})
    made.drain()
    kept = made.export().keys
    assert len(kept) > 0.94 * rows
    given = np.repeat(scores, 1000)
    lowest = np.sort(given)[-len(kept)]
    assert np.mean(given[kept] >= lowest) >= 0.95


def test_time_is_the_wall_clock_and_does_not_decrease():
    made = engine.Table(4, score="time")
    wall = lambda: int(datetime.datetime.now().timestamp() * 1e6)
    before = wall()
    train(made, [1], step=3)
    train(made, [2], step=2)
    first, second = made.version([1, 2]).tolist()
    assert before - 1 <= first <= second <= wall() + 1
    made.upsert(
        [3], {"value": np.ones((1, 4))}, versions=[second + 10**12]
    )  # from a machine whose clock is fast
    train(made, [4])
    assert made.version([4]) == second + 10**12


def test_a_score_that_decreases_is_one_warning():
    made = engine.Table(4, score="custom", name="mine")
    made.set_score(3)
    with pytest.warns(
        UserWarning, match=r"table 'mine': set_score\(2\) is less than the score before"
    ):
        made.set_score(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.set_score(1)


def test_a_custom_score_is_needed_and_may_be_any_integer():
    made = engine.Table(4, score="custom", name="mine")
    with pytest.raises(
        engine.FailedPreconditionError, match="table 'mine': expected a score.*set_score"
    ):
        train(made, [1])
    for score in (-(2**63), 2**63 - 1):
        made.set_score(score)
        train(made, [score])
        assert made.score([score]) == score
    with pytest.raises(ValueError, match="expected a table with score 'custom'"):
        engine.Table(4).set_score(1)


# ---- variables


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
            lambda: tf_multitier.StorageOption(refuse_colder=1),
            TypeError,
            "refuse_colder: expected True or False, found 1",
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
            lambda: engine.Table(
                4, storage_type="HBM_DRAM", cache_strategy="SCORE", device="emulated"
            ),
            ValueError,
            "cache_strategy SCORE: expected a storage_type without HBM, found HBM_DRAM",
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


def test_hbm_sets_versions_by_score(tmp_path):
    made = engine.Table(4, storage_type="HBM_DRAM", score="custom", device="emulated")
    with pytest.raises(engine.FailedPreconditionError, match="expected a score"):
        train(made, [1])
    made.set_score(77)
    train(made, [1, 2])
    assert made.score([1, 2, 3]).tolist() == [77, 77, -1]


def test_a_kept_table_has_its_score(tmp_path):
    options = dict(storage_type="SSDHASH", storage_path=str(tmp_path), keep=True)
    with engine.Table(4, score="custom", **options) as made:
        made.set_score(5)
        train(made, [1])
        path = made.path
    with engine.Table.open(path) as opened:
        opened.set_score(6)
        train(opened, [2])
        assert opened.score([1, 2]).tolist() == [5, 6]


def test_a_configuration_of_keras_has_the_score():
    option = tf_multitier.EmbeddingVariableOption(
        score="time", evict_option=tf_multitier.GlobalStepEvict(DAY)
    )
    assert option_configs.from_config(option_configs.to_config(option)) == option
    layer = keras.Embedding(4, ev_option=option)
    assert keras.Embedding.from_config(layer.get_config()).get_config() == layer.get_config()

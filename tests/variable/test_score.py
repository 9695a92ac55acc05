"""Scores: what updates set as versions, which rows leave first, and which new keys get no row."""

import datetime
import warnings

import numpy as np
import pytest
import tensorflow as tf

from tf_multitier import engine

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
HBM_CHAINS = ["HBM", "HBM_DRAM", "HBM_DRAM_SSDHASH"]  # on the emulated device


def table(sizes, path="", kind="DRAM", **options):
    """A table whose tiers hold these numbers of rows. It drops the rest by score."""
    return engine.Table(
        4,
        storage_type=kind,
        storage_path=str(path) or None,
        storage_size=[n * ROW for n in sizes],
        drop_coldest=True,
        device="emulated" if kind.startswith("HBM") else None,
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
@pytest.mark.parametrize("kind", CHAINS + HBM_CHAINS)
def test_of_all_tiers_the_lowest_score_leaves_the_table_first(kind, refuse_colder, tmp_path):
    sizes = [5] * len(kind.split("_"))
    made = table(sizes, tmp_path, kind, score="custom", refuse_colder=refuse_colder)
    capacity = sum(sizes[1:] if kind in HBM_CHAINS[1:] else sizes)  # a row of HBM has a place below
    model = FlatModel(capacity, False, refuse_colder)
    rng = np.random.default_rng(5)
    steps = 100 if kind in HBM_CHAINS else 400  # the emulated device is slow
    for step, version in enumerate(rng.permutation(steps).tolist()):
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


@pytest.mark.parametrize("kind", ["DRAM_SSDHASH", "HBM_DRAM"])
def test_in_a_tier_above_another_the_lowest_score_is_demoted_first(kind, tmp_path):
    made = engine.Table(
        4,
        storage_type=kind,
        storage_path=str(tmp_path),
        device="emulated" if kind == "HBM_DRAM" else None,
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

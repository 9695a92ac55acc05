"""Scores of tf_multitier.dynamicemb: what they are, which rows leave, and which newcomers get no row."""

import collections
import threading
import time

import dynamicemb_util as util
import external_util
import forks
import numpy as np
import pytest
import tensorflow as tf
import worlds
from paths import environment

from tf_multitier import dynamicemb as de

pytestmark = worlds.needs_eager

S = de.DynamicEmbScoreStrategy
PAIR = (S.LFU, S.TIMESTAMP)
STRATEGIES = {
    "step": S.STEP,
    "time": S.TIMESTAMP,
    "custom": S.CUSTOMIZED,
    "lfu": S.LFU,
    "pair": PAIR,
    "none": S.NO_EVICTION,
}


# What the tables of `_made` are in: HBM_DRAM because they have bytes of HBM. HBM is on the emulated device.
KINDS = {
    "DRAM": {},
    "HBM": {"storage_type": "HBM"},
    "HBM_DRAM": {"local_hbm_for_values": 256, "caching": True},
}


@pytest.fixture(params=KINDS)
def kind(request, emulated_device):
    return KINDS[request.param]


def _made(rows=128, **kwargs):
    """A collection with a table for each strategy, of which each has `rows` rows."""
    tables = [util.config(name, rows=rows) for name in STRATEGIES]
    of_table = {
        name: util.options(strategy, bucket_capacity=16, **kwargs)
        for name, strategy in STRATEGIES.items()
    }
    return util.collection(tables, of_table)


def test_scores_are_those_of_a_python_counter(kind):
    made, rng = _made(**kind), np.random.default_rng(0)
    frequency, version, clock = collections.Counter(), {}, {}
    assert de.get_score(made)["model"] | {"time": 0, "pair": 0} == {
        "step": 1,
        "time": 0,
        "custom": 0,
        "lfu": 1,
        "pair": 0,
        "none": 1,
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'custom'.*set_score"):
        util.train(made, {"custom": util.keys(1)})
    step = tf.function(lambda ids: util.train(made, dict.fromkeys(STRATEGIES, ids)))
    for t in range(1, 15):
        ids = rng.integers(0, 30, 20)
        de.set_score(made, 100 + t)
        before = time.time_ns() // 1000
        step(ids)
        frequency.update(ids.tolist())
        version.update(dict.fromkeys(ids.tolist(), t))
        clock.update(dict.fromkeys(ids.tolist(), (before, time.time_ns() // 1000)))
    keys = sorted(frequency)
    of = lambda name: util.variable(made, name)
    for name in STRATEGIES:
        assert of(name).get_frequency(keys).numpy().tolist() == [frequency[k] for k in keys]
    for name in ("step", "none"):
        assert of(name).get_version(keys).numpy().tolist() == [version[k] for k in keys]
    assert of("custom").get_version(keys).numpy().tolist() == [100 + version[k] for k in keys]
    for name in ("time", "pair"):
        for key, found in zip(keys, of(name).get_version(keys).numpy().tolist()):
            assert clock[key][0] <= found <= clock[key][1]
    assert de.get_score(made)["model"]["step"] == 15


@pytest.mark.parametrize("strategy", [S.STEP, S.CUSTOMIZED, S.NO_EVICTION], ids=str)
@pytest.mark.parametrize("is_traced", [False, True])
def test_an_increment_has_the_rows_of_a_step_that_was_in_flight(strategy, is_traced):
    """One thread's step stands still in the store of table "slow", while another's steps end in table "fast"."""
    store, begun, go = external_util.make_class(), threading.Event(), threading.Event()
    kind = {"external_storage": store, "storage_type": "EXTERNAL"}
    of_table = {"slow": util.options(strategy, **kind), "fast": util.options(strategy)}
    made = util.collection([util.config("slow"), util.config("fast")], of_table)
    step = lambda name, ids: util.train(made, {name: ids})
    step = tf.function(step) if is_traced else step

    def set_score(score):
        if strategy is S.CUSTOMIZED:
            de.set_score(made, score)

    set_score(7)
    for name in of_table:
        step(name, util.keys(1))
    thresholds = de.get_score(made)
    store.fault["insert"] = lambda _: (begun.set(), go.wait())
    slow = threading.Thread(target=step, args=("slow", util.keys(2)))
    slow.start()
    try:
        assert begun.wait(60)
        set_score(8)
        for _ in range(3):
            step("fast", util.keys(2))
        only = {"model": {"fast": thresholds["model"]["fast"]}}
        rows, thresholds = de.incremental_dump(made, only)
        assert 2 in rows["model"]["fast"][0]
        thresholds = de.get_score(made)
    finally:
        go.set()
        slow.join()
    store.fault.clear()
    assert 2 in de.incremental_dump(made, thresholds)[0]["model"]["slow"][0]

    found = []

    def fail_after_the_lookup(result):
        found.append(result)
        if len(found) > 1:
            raise OSError("lost")
        return result

    store.fault["find"] = fail_after_the_lookup
    set_score(9)
    with pytest.raises(tf.errors.OpError, match="lost"):
        step("slow", util.keys(1))
    step("fast", util.keys(3))
    after = de.get_score(made)["model"]["fast"]
    assert after == (9 if strategy is S.CUSTOMIZED else int(made.row_optimizer.iterations))


def test_ten_hot_keys_survive_a_hundred_cold_ones_and_evicted_keys_are_told_once(kind):
    made, hot = _made(rows=16, **kind), list(range(10))
    seen = {name: set() for name in STRATEGIES}
    for t in range(100):
        de.set_score(made, t + 1)
        util.train(made, dict.fromkeys(STRATEGIES, util.keys(*hot, *hot, 1000 + t)))
        for name, keys in de.pop_evicted_keys(made)["model"].items():
            assert not seen[name].intersection(keys.tolist())
            seen[name].update(keys.tolist())
    assert de.pop_evicted_keys(made)["model"]["step"].size == 0
    for name in STRATEGIES:
        rows = set(util.variable(made, name).export()[0].numpy().tolist())
        assert rows.issuperset(hot)
        if name == "none":
            assert len(rows) == 110
            assert not seen[name]
            continue
        assert len(rows) == 16
        assert not rows & seen[name]
        refused = 110 - 16 - len(seen[name])
        assert refused == 0 or name in ("lfu", "pair")


def test_a_newcomer_below_all_rows_gets_no_row_and_is_no_evicted_key(kind):
    made = _made(rows=16, **kind)
    full = util.keys(*range(16), *range(16))
    de.set_score(made, 10)
    util.train(made, dict.fromkeys(STRATEGIES, full))
    with pytest.warns(UserWarning, match="at least 10, the score before, found 9"):
        de.set_score(made, 9)
    util.train(made, dict.fromkeys(STRATEGIES, util.keys(99)))
    evicted = de.pop_evicted_keys(made)["model"]
    for name in STRATEGIES:
        is_refused = name in ("custom", "lfu", "pair")
        made_row = int(util.variable(made, name).get_version([99])[0]) != -1
        assert made_row is not is_refused
        assert evicted[name].size == (0 if is_refused or name == "none" else 1)
        assert int(util.variable(made, name).last_update().refused) == is_refused


def test_set_score_checks_all_before_it_sets_one(monkeypatch):
    made = _made()
    de.set_score(made, 5)
    for score, error in (
        (0, ValueError),
        (-1, ValueError),  # the version of an absent key
        (1.5, TypeError),
        ({"model": {"custom": 7, "step": 7}}, ValueError),
        ({"model": {"custom": 7, "other": 7}}, ValueError),
        ({"other": {"custom": 7}}, ValueError),
    ):
        with pytest.raises(error, match="set_score"):
            de.set_score(made, score)
        assert de.get_score(made)["model"]["custom"] == 5
    monkeypatch.setenv("DYNAMICEMB_CSTM_SCORE_CHECK", "0")
    de.set_score({"a": made}, {"model.a": {"custom": 3}})  # no warning: pytest makes it an error
    assert de.get_score([made])["model.0"]["custom"] == 3


_EVICTING = """
import sys, numpy as np, tensorflow as tf, dynamicemb_util as util
from tf_multitier import dynamicemb as de
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
made = util.collection([util.config("t", rows=1024)], {"t": util.options(de.DynamicEmbScoreStrategy.LFU)})
step = tf.function(lambda ids: util.train(made, {"t": ids}))
rng = np.random.default_rng(0)
for _ in range(30):
    step(rng.zipf(1.3, 2000) % 20000)
print(sorted(de.pop_evicted_keys(made)["model"]["t"].tolist()))
"""


def test_one_and_eight_intra_op_threads_evict_the_same_keys():
    found = [forks.run(["-c", _EVICTING, threads], env=environment()) for threads in "18"]
    assert [run.returncode for run in found] == [0, 0], found[0].stderr[-3000:]
    found = [run.stdout for run in found]
    assert found[0] == found[1]
    assert len(found[0]) > 1000


def test_every_storage_evicts_the_same_keys(tmp_path):
    rng = np.random.default_rng(0)
    steps = rng.integers(0, 300, (60, 16))
    kinds = {
        "DRAM": {},
        "SSDHASH": {"storage_type": "SSDHASH"},
        "DRAM_SSDHASH": {"storage_type": "DRAM_SSDHASH", "global_hbm_for_values": 1024},
        # Their records stay where they are, and rows come back to the same locations.
        "DRAM_PMEM": {"storage_type": "DRAM_PMEM", "global_hbm_for_values": 1024},
        "DRAM_LEVELDB": {"storage_type": "DRAM_LEVELDB", "global_hbm_for_values": 1024},
    }
    for name in ("step", "lfu", "pair"):
        rows = []
        for kind, its in kinds.items():
            if its:
                its = {**its, "storage_path": str(tmp_path / f"{name}_{kind}")}
            made = util.collection([util.config("t")], {"t": util.options(STRATEGIES[name], **its)})
            for ids in steps:
                util.train(made, {"t": util.keys(*ids)})
            keys, values = util.variable(made, "t").export()[:2]
            order = np.argsort(keys)
            rows.append((np.array(keys)[order].tolist(), np.array(values)[order].tolist()))
        assert len(rows[0][0]) == 128
        assert rows[1:] == rows[:1] * (len(kinds) - 1)

"""Capacity in rows, rows made beforehand, and what happens to new keys when the last tier is full."""

import json
import warnings

import numpy as np
import pytest
import tensorflow as tf
from storage_util import Model
from storage_util import started
from variable_util import make

import tf_multitier
from tf_multitier import engine
from tf_multitier import StorageOption

v1 = tf.compat.v1
errors = tf.errors


def train(made, keys, rule="sgd", slots=None):
    hyper = dict.fromkeys(engine.update_rules()[rule].hyperparameters, 0.5)
    return made.apply(rule, keys, np.ones((len(keys), 4)), hyper=hyper, slots=slots)


def rows_of_tiers(made):
    made.drain()
    return [tier["rows"] for tier in made.stats()["tiers"]]


@pytest.mark.parametrize(
    "kind, rows, expected",
    [
        ("DRAM_SSDHASH", [5], [5, 25]),
        ("DRAM_LEVELDB", [5, 40], [5, 25]),
        ("DRAM_PMEM_SSDHASH", [4, 6], [4, 6, 20]),
        ("LEVELDB", [40], [30]),
        ("PMEM", [30], [30]),
    ],
)
def test_the_number_of_rows_stays_when_an_optimizer_adds_slots(kind, rows, expected, tmp_path):
    made = engine.Table(
        4, storage_type=kind, storage_path=str(tmp_path), storage_rows=rows, cache_strategy="LRU"
    )
    train(made, np.arange(30))
    assert rows_of_tiers(made) == expected
    train(made, np.arange(30), "adagrad")
    assert rows_of_tiers(made) == expected
    train(made, np.arange(30), "adam")
    assert rows_of_tiers(made) == expected
    bounds = [tier["budget_bytes"] for tier in made.stats()["tiers"]]
    assert bounds[: len(rows)] == [n * made.stats()["row_bytes"] for n in rows]


def test_with_bytes_fewer_rows_fit_when_an_optimizer_adds_slots(tmp_path):
    made = engine.Table(
        4, storage_type="DRAM_SSDHASH", storage_path=str(tmp_path), storage_size=[10 * 16]
    )
    train(made, np.arange(30))
    assert rows_of_tiers(made) == [10, 20]
    train(made, np.arange(30), "adagrad")
    assert rows_of_tiers(made) == [5, 25]


def test_rows_of_hbm_stay_when_an_optimizer_adds_slots():
    made = engine.Table(4, storage_type="HBM_DRAM", storage_rows=[8], device="emulated")
    for rule in ("sgd", "adagrad", "adam"):
        train(made, np.arange(30), rule)
        hbm = made.stats()["tiers"][0]
        assert hbm["budget_bytes"] == 8 * made.stats()["row_bytes"]
        assert 0 < hbm["rows"] <= 8


def test_the_coldest_rows_are_dropped_at_a_number_of_rows():
    made = engine.Table(4, storage_rows=7, on_full="drop", cache_strategy="LRU")
    train(made, np.arange(10))
    train(made, np.arange(10, 12), "adagrad")
    assert sorted(made.export().keys.tolist()) == [5, 6, 7, 8, 9, 10, 11]
    assert made.pop_dropped().tolist() == [0, 1, 2, 3, 4]


def test_set_budget_takes_a_number_of_rows(tmp_path):
    made = engine.Table(
        4, storage_type="DRAM_SSDHASH", storage_path=str(tmp_path), storage_size=[16 * 10]
    )
    train(made, np.arange(30))
    made.set_budget(rows=4)
    assert rows_of_tiers(made) == [4, 26]
    train(made, np.arange(30), "adam")
    assert rows_of_tiers(made) == [4, 26]
    made.set_budget(made.stats()["row_bytes"] * 6)
    train(made, np.arange(30), "adam")
    assert rows_of_tiers(made) == [6, 24]


@pytest.mark.parametrize("kind", ["DRAM", "DRAM_SSDHASH"])
def test_memory_is_taken_beforehand(kind, tmp_path):
    rows = 200000
    options = dict(storage_type=kind, storage_path=str(tmp_path))
    if kind != "DRAM":
        options["storage_rows"] = [rows]
    grown, made = engine.Table(4, **options), engine.Table(4, initial_rows=rows, **options)
    index = made.stats()["index_bytes"]
    for table in (grown, made):
        train(table, np.arange(rows))
    assert made.stats()["index_bytes"] == index == grown.stats()["index_bytes"]
    later = engine.Table(4, **options)
    later.reserve(rows)
    assert later.stats()["index_bytes"] == index
    before = later.stats()["index_bytes"]
    later.reserve(10)
    assert later.stats()["index_bytes"] == before


def test_no_more_memory_is_taken_than_the_tiers_have_room_for():
    made = engine.Table(4, storage_rows=1000, initial_rows=2**32)
    like = engine.Table(4, storage_rows=1000, initial_rows=1000)
    assert made.stats()["index_bytes"] == like.stats()["index_bytes"]


@pytest.mark.parametrize(
    "options, message",
    [
        (
            dict(storage_rows=3),
            r"table 'ev': tier dram holds 2 of 3 rows \(48 bytes\); no room for 2",
        ),
        (
            dict(storage_type="SSDHASH", storage_rows=[3]),
            r"table 'ev': its tiers are full: one of 1 shards holds 2 of 3 rows \(48 bytes\); no room for 2",
        ),
    ],
)
def test_a_full_table_says_what_it_holds_and_what_helps(options, message, tmp_path):
    if "storage_type" in options:
        options["storage_path"] = str(tmp_path)
    made = engine.Table(4, name="ev", **options)
    train(made, [1, 2])
    helps = (
        ".*storage_rows, a tier below, an admission filter, drop_coldest=True, or on_full='warn'"
    )
    with pytest.raises(engine.ResourceExhaustedError, match=message + helps):
        train(made, [3, 4])
    assert sorted(made.export().keys.tolist()) == [1, 2]


@pytest.mark.parametrize("filter_freq", [1, 2])
@pytest.mark.parametrize("kind", ["DRAM", "PMEM", "SSDHASH", "DRAM_LEVELDB", "DRAM_PMEM_SSDHASH"])
def test_new_keys_of_a_full_table_get_no_row_where_on_full_is_warn(kind, filter_freq, tmp_path):
    tiers = len(kind.split("_"))
    made = engine.Table(
        4,
        storage_type=kind,
        storage_path=str(tmp_path),
        storage_rows=[4] * tiers,
        on_full="warn",
        filter="counter",
        filter_freq=filter_freq,
    )
    capacity = 4 * tiers
    twice = lambda keys: np.repeat(keys, 2)
    assert train(made, twice(np.arange(capacity - 1))) == 0
    with pytest.warns(UserWarning, match="is full.*3 new keys of an update got no row"):
        assert train(made, twice([0, 100, 101, 102, 103])) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        assert train(made, twice([1, 200])) == 1
    assert len(made) == capacity
    assert made.stats()["refused"] == 4
    assert made.lookup([200]).tolist() == [[0.0] * 4]
    assert made.frequency([0, 1, 100]).tolist() == [4, 4, 2]
    made.remove([0])
    assert train(made, twice([200])) == 0
    with pytest.raises(engine.ResourceExhaustedError):  # an upsert is all or nothing
        made.upsert([300], {"value": np.ones((1, 4))})


def test_of_many_shards_exactly_the_keys_without_room_are_refused():
    rows = 70000
    made = engine.Table(4, storage_rows=rows, on_full="warn")
    with pytest.warns(UserWarning, match="is full"):
        assert train(made, np.arange(rows + 1234)) == 1234
    assert len(made) == rows


# ---- variables


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.usefixtures("graph")
def test_new_keys_of_a_full_variable_are_refused(parts):
    model = Model(StorageOption(storage_rows=[4], on_full="warn"), parts=parts)
    with started() as session:
        model.run(session, np.arange(100))
        model.run(session, np.arange(100, 200))
        stats = model.stats(session)
        stats = stats if parts > 1 else [stats]
        assert [part["rows"] for part in stats] == [4] * parts
        assert sum(part["refused"] for part in stats) == 200 - 4 * parts


@pytest.mark.usefixtures("graph")
def test_the_rows_of_a_variable_stay_with_its_slots(tmp_path):
    storage = StorageOption("DRAM_SSDHASH", str(tmp_path), storage_rows=[5], initial_rows=30)
    model = Model(storage, optimizer=lambda step: v1.train.AdamOptimizer(0.1))
    reserve, fewer = model.ev.reserve(1000), model.ev.set_budget(rows=3)
    with started() as session:
        session.run(reserve)
        model.run(session, np.arange(30))
        session.run(model.drain)
        assert [tier["rows"] for tier in model.stats(session)["tiers"]] == [5, 25]
        session.run(fewer)
        session.run(model.drain)
        assert [tier["rows"] for tier in model.stats(session)["tiers"]] == [3, 27]
        with pytest.raises(
            errors.InvalidArgumentError, match="rows: expected at least 0, found -1"
        ):
            session.run(model.ev.reserve(-1))


@pytest.mark.parametrize("parts", [1, 2])
def test_flush_makes_rows_durable(parts, tmp_path):
    storage = StorageOption("DRAM_SSDHASH", str(tmp_path), storage_rows=[100], keep=True)
    ev = make(parts=parts, ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage))
    ev.upsert(np.arange(20), np.ones((20, 4)))
    written = lambda: sum(int(part["tiers"][1]["writes"]) for part in stats_of_parts(ev, parts))
    assert written() == 0
    ev.flush()
    assert written() == 20


def stats_of_parts(ev, parts):
    stats = json.loads(ev.stats().numpy())
    return stats if parts > 1 else [stats]


def test_flush_needs_files_that_stay():
    with pytest.raises(errors.FailedPreconditionError, match="flush: expected a durable last tier"):
        make().flush()


def test_sizing_counts_rows(tmp_path):
    by_rows = StorageOption("DRAM_SSDHASH", str(tmp_path), storage_rows=[1000])
    by_size = StorageOption("DRAM_SSDHASH", str(tmp_path), storage_size=[1000 * 192])
    of = lambda storage: tf_multitier.memory(10**6, 16, "adam", storage)
    assert of(by_rows).tiers == of(by_size).tiers


@pytest.mark.parametrize(
    "make_option, error, message",
    [
        (
            lambda: StorageOption(storage_rows=[5], storage_size=[80]),
            ValueError,
            r"expected storage_size or storage_rows, found both: \[80\] and \[5\]",
        ),
        (
            lambda: StorageOption(storage_rows=[0]),
            ValueError,
            r"storage_rows\[0\]: expected at least 1, found 0",
        ),
        (
            lambda: StorageOption(storage_rows=[2**32 + 1]),
            ValueError,
            r"storage_rows\[0\]: expected at most 4294967296, found 4294967297",
        ),
        (
            lambda: StorageOption(storage_rows=[1, 2]),
            ValueError,
            "storage_rows: expected at most 1 sizes, one for each tier of DEFAULT; found 2",
        ),
        (
            lambda: StorageOption(initial_rows=-1),
            ValueError,
            "initial_rows: expected at least 0, found -1",
        ),
        (
            lambda: StorageOption(on_full="panic"),
            ValueError,
            "on_full: expected 'error', 'warn' or 'drop', found 'panic'",
        ),
        (
            lambda: StorageOption(storage_rows=[5], on_full="warn", drop_coldest=True),
            ValueError,
            "on_full: expected 'drop' or 'error' with drop_coldest=True, found 'warn'",
        ),
        (
            lambda: StorageOption(on_full="drop"),
            ValueError,
            "storage_size: expected 1 sizes with drop_coldest",
        ),
        (
            lambda: engine.Table(4, storage_rows=[5], storage_size=[80]),
            ValueError,
            "storage_rows: expected no storage_sizes with it, found 1 sizes",
        ),
        (
            lambda: engine.Table(4, storage_rows=[0]),
            ValueError,
            r"storage_rows\[0\]: expected 1 to 4294967296 rows, found 0",
        ),
        (
            lambda: engine.Table(4, on_full="panic"),
            ValueError,
            "on_full: expected error, warn or drop; found 'panic'",
        ),
        (
            lambda: engine.Table(4, storage_type="HBM_DRAM", on_full="warn", device="emulated"),
            ValueError,
            "on_full warn: expected a storage_type without HBM, found HBM_DRAM",
        ),
        (
            lambda: engine.Table(4).set_budget(5, rows=3),
            TypeError,
            "set_budget: expected either size or rows, found size=5, rows=3",
        ),
        (
            lambda: engine.Table(4, storage_rows=5).set_budget(rows=0),
            ValueError,
            "rows: expected at least 1, found 0",
        ),
        (
            lambda: make().set_budget(),
            TypeError,
            "set_budget: expected either size or rows, found size=None, rows=None",
        ),
        (lambda: make().reserve(1.5), TypeError, "'ev': rows: expected an integer, found float32"),
    ],
)
def test_what_is_refused(make_option, error, message):
    with pytest.raises(error, match=message):
        make_option()

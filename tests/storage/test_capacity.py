"""Capacity in rows, rows made beforehand, and what happens to new keys when the last tier is full."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from storage_util import WorldModel
from variable_util import make

import tf_multitier
from tf_multitier import engine
from tf_multitier import StorageOption

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


def test_more_rows_than_a_table_can_have_are_refused_by_name():
    made = engine.Table(4, storage_rows=10, name="t")
    with pytest.raises(
        ValueError, match="table 't': reserve: expected at most 4294967296 rows, found 4294967297"
    ):
        made.reserve(2**32 + 1)
    ev = make(
        ev_option=tf_multitier.EmbeddingVariableOption(
            storage_option=StorageOption(storage_rows=[10])
        )
    )
    too_many = (
        "'ev': expected a budget of tier dram of at most 4294967296 rows, found 4294967297 rows"
    )
    with pytest.raises(errors.InvalidArgumentError, match=too_many):
        ev.set_budget(rows=2**32 + 1)
    with pytest.raises(
        errors.InvalidArgumentError, match="at least one row .16 bytes., found 0 rows"
    ):
        ev.set_budget(rows=0)
    with pytest.raises(
        errors.InvalidArgumentError, match="reserve: expected at most 4294967296 rows"
    ):
        ev.reserve(2**32 + 1)


def test_messages_of_a_budget_speak_of_rows_where_rows_were_given():
    made = engine.Table(4, storage_rows=10, name="t")
    train(made, np.arange(8))
    full = "expected room for 8 rows, because no tier is below it, found "
    with pytest.raises(engine.ResourceExhaustedError, match=full + "5 rows, room for 5"):
        made.set_budget(rows=5)
    with pytest.raises(engine.ResourceExhaustedError, match=full + "40 bytes, room for 2"):
        made.set_budget(40)


@pytest.mark.parametrize("parts", [1, 2])
def test_an_update_tells_how_many_keys_were_refused(world, parts):
    ev = make(
        parts=parts,
        ev_option=tf_multitier.EmbeddingVariableOption(
            storage_option=StorageOption(storage_rows=[4], on_full="warn")
        ),
    )
    step = world.step(lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)), [ev])
    step(np.arange(100))
    counts = world.run(ev.last_update)
    assert (counts.refused, counts.dropped) == (100 - 4 * parts, 0)
    step([200])
    assert world.run(ev.last_update).refused == 1


def test_an_update_tells_how_many_rows_were_dropped(world):
    ev = make(
        ev_option=tf_multitier.EmbeddingVariableOption(
            storage_option=StorageOption(storage_rows=[4], on_full="drop", cache_strategy="LRU")
        )
    )
    step = world.step(lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)), [ev])
    for ids, dropped in ((np.arange(10), 6), ([8, 9], 0), ([20], 1)):
        step(ids)
        assert tuple(world.run(ev.last_update)) == (0, dropped)
    stats = world.stats(ev)
    assert (stats["last_dropped"], stats["dropped"]) == (1, 7)


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
    helps = r".*storage_rows \(OneEmbedding: capacity\), a tier below, an admission filter, drop_coldest=True, or on_full='warn'"
    with pytest.raises(engine.ResourceExhaustedError, match=message + helps):
        train(made, [3, 4])
    assert sorted(made.export().keys.tolist()) == [1, 2]


@pytest.mark.parametrize("filter_freq", [1, 2])
@pytest.mark.parametrize(
    "kind",
    ["DRAM", "PMEM", "SSDHASH", "DRAM_LEVELDB", "DRAM_PMEM_SSDHASH", "HBM", "HBM_DRAM_SSDHASH"],
)
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
        device="emulated" if kind.startswith("HBM") else None,
    )
    capacity = 4 * len(kind.removeprefix("HBM_").split("_"))  # HBM has copies of the rows below
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
def test_new_keys_of_a_full_variable_are_refused(world, parts):
    model = WorldModel(world, StorageOption(storage_rows=[4], on_full="warn"), parts=parts)
    model.run(np.arange(100))
    model.run(np.arange(100, 200))
    stats = stats_of_parts(model)
    assert [part["rows"] for part in stats] == [4] * parts
    assert sum(part["refused"] for part in stats) == 200 - 4 * parts


def test_the_rows_of_a_variable_stay_with_its_slots(world, tmp_path):
    storage = StorageOption("DRAM_SSDHASH", str(tmp_path), storage_rows=[5], initial_rows=30)
    model = WorldModel(world, storage, rule="adam")
    world.run(lambda: model.ev.reserve(1000))
    model.run(np.arange(30))
    model.ask("drain")
    assert [tier["rows"] for tier in model.stats()["tiers"]] == [5, 25]
    world.run(lambda: model.ev.set_budget(rows=3))
    model.ask("drain")
    assert [tier["rows"] for tier in model.stats()["tiers"]] == [3, 27]
    with pytest.raises(errors.InvalidArgumentError, match="rows: expected at least 0, found -1"):
        world.run(lambda: model.ev.reserve(-1))


@pytest.mark.parametrize("parts", [1, 2])
def test_flush_makes_rows_durable(world, parts, tmp_path):
    storage = StorageOption("DRAM_SSDHASH", str(tmp_path), storage_rows=[100], keep=True)
    model = WorldModel(world, storage, parts=parts)
    world.run(lambda: model.ev.upsert(np.arange(20), np.ones((20, 4), np.float32)))
    written = lambda: sum(int(part["tiers"][1]["writes"]) for part in stats_of_parts(model))
    assert written() == 0
    model.ask("flush")
    assert written() == 20


def stats_of_parts(model):
    stats = model.stats()
    return stats.get("parts", [stats])


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
            "StorageOption.storage_rows: expected no storage_size with it, found 1 sizes",
        ),
        (
            lambda: StorageOption(storage_rows=[0]),
            ValueError,
            r"storage_rows\[0\]: expected 1 to 4294967296 rows, found 0",
        ),
        (
            lambda: StorageOption(storage_rows=[2**32 + 1]),
            ValueError,
            r"storage_rows\[0\]: expected 1 to 4294967296 rows, found 4294967297",
        ),
        (
            lambda: StorageOption(storage_rows=[1, 2]),
            ValueError,
            "storage_rows: expected at most 1, one for each tier of DRAM; found 2",
        ),
        (
            lambda: StorageOption(initial_rows=-1),
            ValueError,
            "initial_rows: expected 0 to 4294967296 rows, found -1",
        ),
        (
            lambda: StorageOption(on_full="panic"),
            ValueError,
            "on_full: expected one of error, warn, drop; found 'panic'",
        ),
        (
            lambda: StorageOption(storage_rows=[5], on_full="warn", drop_coldest=True),
            ValueError,
            "on_full: expected drop or error with drop_coldest, found warn",
        ),
        (
            lambda: StorageOption(on_full="drop"),
            ValueError,
            "drop_coldest: expected the size of the last tier of DRAM to be given too, found 0 of 1",
        ),
        (
            lambda: engine.Table(4, storage_rows=[5], storage_size=[80]),
            ValueError,
            "storage_rows: expected no storage_size with it, found 1 sizes",
        ),
        (
            lambda: engine.Table(4, storage_rows=[0]),
            ValueError,
            r"storage_rows\[0\]: expected 1 to 4294967296 rows, found 0",
        ),
        (
            lambda: engine.Table(4, on_full="panic"),
            ValueError,
            "on_full: expected one of error, warn, drop; found 'panic'",
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

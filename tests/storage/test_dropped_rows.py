"""What left a full table: pop_dropped with rows, its bound in bytes, and turned off."""

import os

import numpy as np
import pytest
import tensorflow as tf
from engine_util import files_of
from engine_util import flip
from storage_util import WorldModel
from variable_util import make

import tf_multitier
from tf_multitier import engine
from tf_multitier import StorageOption

v1 = tf.compat.v1
errors = tf.errors

CHAINS = ["DRAM", "PMEM", "LEVELDB", "SSDHASH", "DRAM_PMEM", "DRAM_LEVELDB", "DRAM_PMEM_SSDHASH"]


def table(kind, path, rows=3, **options):
    options = dict(dropped="rows") | options
    return engine.Table(
        4,
        storage_type=kind,
        storage_path=str(path),
        storage_rows=[rows] * len(kind.split("_")),
        drop_coldest=True,
        cache_strategy="LRU",
        initializer="uniform",
        a=-1.0,
        b=1.0,
        seed=3,
        **options,
    )


def train(made, keys, step, rule="adagrad"):
    grads = np.sin(np.arange(4 * len(keys), dtype=np.float32)).reshape(-1, 4)
    hyper = dict.fromkeys(engine.update_rules()[rule].hyperparameters, 0.1)
    made.apply(rule, keys, grads, hyper=hyper, global_step=step)


@pytest.mark.parametrize("kind", CHAINS)
def test_dropped_rows_are_those_of_a_table_that_drops_nothing(kind, tmp_path):
    made = table(kind, tmp_path)
    whole = engine.Table(4, initializer="uniform", a=-1.0, b=1.0, seed=3)
    rng = np.random.default_rng(3)
    total = 0
    for step in range(40):
        new = np.arange(step * 2, step * 2 + 2)
        kept = made.export(all_columns=False).keys
        keys = np.concatenate([new, rng.choice(kept, min(2, len(kept)), replace=False)])
        for one in (made, whole):
            train(one, keys, step)
        made.drain()
        dropped = made.pop_dropped(rows=True)
        total += len(dropped.keys)
        rows = whole.export()
        place = {key: i for i, key in enumerate(rows.keys.tolist())}
        at = [place[key] for key in dropped.keys.tolist()]
        assert dropped.columns == rows.columns
        np.testing.assert_array_equal(dropped.data, rows.data[at])
        np.testing.assert_array_equal(dropped.frequencies, rows.frequencies[at])
        np.testing.assert_array_equal(dropped.versions, rows.versions[at])
    assert total == 80 - len(made)
    assert made.pop_dropped(rows=True).keys.tolist() == []


@pytest.mark.parametrize("kind", ["DRAM", "SSDHASH"])
def test_a_column_that_is_newer_than_a_dropped_row_has_its_initial_value(kind, tmp_path):
    made = table(kind, tmp_path)
    train(made, np.arange(5), 1, "sgd")
    made.add_slots([("late", 2, 7.0)])
    dropped = made.pop_dropped(rows=True)
    assert [name for name, _, _ in dropped.columns] == ["value", "late"]
    assert dropped.keys.tolist() == [0, 1]
    np.testing.assert_array_equal(dropped.data[:, 4:], np.full((2, 2), 7.0))


def test_the_newest_rows_stay_within_the_bytes_and_the_others_are_counted(tmp_path):
    made = table("DRAM", tmp_path, dropped_bytes=1000)
    train(made, np.arange(103), 1)
    dropped = made.pop_dropped(rows=True).keys
    assert 5 <= len(dropped) < 20
    assert dropped.tolist() == list(range(100 - len(dropped), 100))
    assert made.stats()["dropped_lost"] == 100 - len(dropped)
    assert made.stats()["dropped"] == 100


def test_keys_take_eight_bytes(tmp_path):
    made = table("DRAM", tmp_path, dropped="keys", dropped_bytes=8 * 10)
    train(made, np.arange(33), 1)
    assert made.pop_dropped().tolist() == list(range(20, 30))
    assert made.stats()["dropped_lost"] == 20
    with pytest.raises(
        engine.FailedPreconditionError, match="table 'table'.*expected dropped='rows', found 'keys'"
    ):
        made.pop_dropped(rows=True)


def test_nothing_is_kept_where_it_is_turned_off(tmp_path):
    made = table("DRAM", tmp_path, dropped="none")
    train(made, np.arange(10), 1)
    assert made.pop_dropped().tolist() == []
    assert made.stats()["dropped_lost"] == made.stats()["dropped"] == 7


def test_a_damaged_row_is_known_by_its_key_alone(tmp_path):
    made = engine.Table(
        4,
        storage_type="SSDHASH",
        storage_path=str(tmp_path),
        on_corruption="drop",
        dropped="rows",
        keep=True,
    )
    train(made, np.arange(200), 1)
    made.flush()
    for file in files_of(made.path):
        for offset in range(4096, os.path.getsize(file), 32):  # less than a record
            flip(file, offset)
    made.lookup(np.arange(200))
    dropped = made.pop_dropped(rows=True)
    assert 0 < len(dropped.keys) <= 200
    assert np.isnan(dropped.data).all()
    assert set(dropped.versions.tolist()) == {-1}
    assert set(dropped.frequencies.tolist()) == {0}


@pytest.mark.parametrize("parts", [1, 3])
def test_dropped_rows_have_their_slots(world, parts):
    storage = StorageOption(storage_rows=[2], on_full="drop", dropped="rows", cache_strategy="LRU")
    model = WorldModel(world, storage, parts=parts, rule="momentum")
    pop = lambda: model.ev.pop_dropped(rows=True, columns=["value", "ev/Momentum"])
    values = model.look_up(np.arange(100))
    model.run(np.arange(100))
    dropped = world.run(pop)
    assert len(dropped.keys) == 100 - 2 * parts
    steps = np.float32(0.5 * 1.9)  # nesterov
    np.testing.assert_allclose(dropped.columns["value"], values[dropped.keys] - steps, rtol=1e-5)
    np.testing.assert_array_equal(dropped.columns["ev/Momentum"], np.ones((len(dropped.keys), 4)))
    assert set(dropped.frequencies.tolist()) == {1}
    model.run(np.arange(100, 110))
    with pytest.raises(
        errors.InvalidArgumentError,
        match="expected columns of 'value', 'ev/Momentum', found 'm'",
    ):
        world.run(lambda: model.ev.pop_dropped(rows=True, columns=["m"]))
    assert len(world.run(pop).keys) > 0


def test_dropped_rows_eagerly():
    storage = StorageOption(storage_rows=[2], on_full="drop", dropped="rows", cache_strategy="LRU")
    ev = make(ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage))
    ev.upsert([1, 2, 3], np.arange(12).reshape(3, 4), frequencies=[4, 5, 6], versions=[7, 8, 9])
    dropped = ev.pop_dropped(rows=True)
    assert dropped.keys.numpy().tolist() == [1]
    assert dropped.columns["value"].numpy().tolist() == [[0, 1, 2, 3]]
    assert (dropped.frequencies.numpy(), dropped.versions.numpy()) == ([4], [7])
    assert ev.stats()["dropped_lost"] == 0


@pytest.mark.parametrize(
    "make_option, message",
    [
        (
            lambda: StorageOption(dropped="all"),
            "dropped: expected one of none, keys, rows; found 'all'",
        ),
        (lambda: StorageOption(dropped_bytes=-1), "dropped_bytes: expected 0 to .*, found -1"),
        (
            lambda: engine.Table(4, dropped="all"),
            "dropped: expected one of none, keys, rows; found 'all'",
        ),
        (lambda: engine.Table(4, dropped_bytes=-1), "dropped_bytes: expected 0 to .*, found -1"),
    ],
)
def test_what_is_refused(make_option, message):
    with pytest.raises(ValueError, match=message):
        make_option()

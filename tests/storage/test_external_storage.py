"""Classes of a user as the last tier: what they hold, what becomes of their errors, and how long they are called."""

import re
import threading

import numpy as np
import pytest
import tensorflow as tf

import external_util
from external_util import make_table
from external_util import option
from external_util import train
from pairs import pairwise
from pairs import WORLDS
import storage_util
import tf_multitier
from tf_multitier import engine
from tf_multitier import external_storage

TYPES = ("EXTERNAL", "DRAM_EXTERNAL", "DRAM_PMEM_EXTERNAL")


def data_of(table):
    """The columns of all rows, by their keys."""
    rows = table.export()
    return rows.data[np.argsort(rows.keys)]


@pairwise(world=WORLDS, rule=["sgd", "adagrad", "adam"], parts=[1, 3])
def test_training_gives_the_bits_of_dram(world, rule, parts, tmp_path):
    stores = {kind: external_util.make_class() for kind in TYPES}
    models = [storage_util.WorldModel(world, tf_multitier.StorageOption(), "dram", rule=rule)]
    for kind, store in stores.items():
        storage = option(kind, store, tmp_path)
        models.append(storage_util.WorldModel(world, storage, kind, rule=rule, parts=parts))
    for i, (ids, grads) in enumerate(storage_util.batches(12, 4)):
        for model in models:
            model.run(ids, grads, counts=model is models[-1])
        expected = models[0].look_up(ids)
        for model in models[1:]:
            np.testing.assert_array_equal(model.look_up(ids), expected, str(i))
    expected = models[0].content()
    assert len(expected[0]) > 40
    for model in models[1:]:
        model.ask("drain")
        assert model.content() == expected
    for kind, store in stores.items():
        in_store = [store for store in store.made if store.rows]
        assert len(in_store) == parts
        width = len(next(iter(expected[0].values()))[0]) // 4
        assert {len(row) for each in in_store for row in each.rows.values()} == {width}
        if kind == "EXTERNAL":
            assert sum(len(each.rows) for each in in_store) == len(expected[0])


@pytest.mark.parametrize("value_dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dim", [1, 3, 8])
def test_rows_of_any_type_and_width_are_float32_in_the_store(value_dtype, dim):
    store = external_util.make_class()
    tables = [
        make_table(store, "EXTERNAL", dim=dim, value_dtype=value_dtype),
        engine.Table(dim, "uniform", -1, 1, seed=3, value_dtype=value_dtype),
    ]
    for table in tables:
        for _ in range(3):
            train(table, [1, 2, 3, 1], "adagrad")
    np.testing.assert_array_equal(
        *(table.lookup([1, 2, 3], output_dtype="float32") for table in tables)
    )
    np.testing.assert_array_equal(*map(data_of, tables))
    [made] = [each for each in store.made if each.rows]
    np.testing.assert_array_equal(
        made.rows[2][:dim], tables[1].lookup([2], output_dtype="float32")[0]
    )
    assert made.rows[2].shape == (2 * dim,) and made.rows[2][dim] > 0.1


WRONG = {
    "raises": (external_util.broken, "RuntimeError: no connection"),
    "nothing": (lambda result: None, r"TypeError: expected \(found, rows\), found NoneType"),
    "shape": (
        lambda result: (result[0], result[1][:, :-1]),
        r"TypeError: expected rows as float32 \[\d, 4\], found float32 \[\d, 3\]",
    ),
    "count": (
        lambda result: (result[0], np.concatenate([result[1]] * 2)),
        r"TypeError: expected rows as float32 \[\d, 4\], found float32 \[[24], 4\]",
    ),
    "dtype": (
        lambda result: (result[0], result[1].astype(np.float64)),
        r"TypeError: expected rows as float32 \[\d, 4\], found float64",
    ),
    "found": (
        lambda result: (result[0].astype(int), result[1]),
        r"TypeError: expected found as bool \[\d\], found int64 \[\d\]",
    ),
    "forgets": (
        lambda result: (np.zeros_like(result[0]), result[1]),
        "expected the row of key 1, which is in the store, found none",
    ),
}


@pytest.mark.parametrize("fault, message", WRONG.values(), ids=WRONG)
def test_an_error_of_find_fails_the_operation_by_name_and_changes_nothing(world, fault, message):
    store = external_util.make_class()
    model = storage_util.WorldModel(world, option("DRAM_EXTERNAL", store, rows=1))
    for ids in ([1], [2], [3]):
        model.run(ids)
    assert model.tiers([1, 2, 3]) == [1, 1, 0]
    before = model.content()
    store.fault["find"] = fault
    named = rf"Store\.find: {message}"
    for operation in (model.look_up, model.run, lambda ids: model.ask("export")):
        with pytest.raises((tf.errors.UnknownError, tf.errors.DataLossError), match=named):
            operation([1])
    np.testing.assert_array_equal(model.look_up([3]).shape, [1, 4])
    store.fault.clear()
    assert model.content() == before


def test_an_error_of_insert_keeps_rows_above_and_fails_what_needs_room():
    store = external_util.make_class()
    table = make_table(store, rows=2)
    train(table, [1, 2])
    store.fault["insert"] = external_util.broken
    train(table, [3])  # its row is in memory; the first of those that leave could not
    before = data_of(table)
    for operation in (lambda: train(table, [4]), table.flush, table.close):
        with pytest.raises(engine.EngineError, match=r"Store\.insert: RuntimeError: no connection"):
            operation()
    assert store.made[-1].rows == {}
    assert table.total_count() == 3
    np.testing.assert_array_equal(data_of(table), before)
    store.fault.clear()
    train(table, [4])
    table.drain()
    assert table.total_count() == 4 and len(store.made[-1].rows) == 2
    table.close()
    assert sorted(store.made[-1].rows) == [1, 2, 3, 4]


def test_an_error_of_insert_is_printed_once_by_the_update_that_hands_rows_down(capfd):
    store = external_util.make_class()
    table = make_table(store, rows=2, name="users")
    train(table, [1, 2])
    store.fault["insert"] = external_util.broken
    train(table, [3])
    told = r"table 'users': demoting .*Store\.insert: RuntimeError: no connection; it is tried again .*\n"
    assert re.fullmatch(told, capfd.readouterr().err)
    with pytest.raises(engine.EngineError, match="no connection"):
        train(table, [4])
    assert capfd.readouterr().err == ""
    store.fault.clear()
    train(table, [4])
    table.drain()
    store.fault["insert"] = external_util.broken
    train(table, [5])
    assert re.fullmatch(told, capfd.readouterr().err)
    store.fault.clear()
    table.close()


def test_an_error_of_erase_is_repeated_until_the_key_is_gone():
    store = external_util.make_class()
    table = make_table(store, "EXTERNAL")
    train(table, [1, 2])
    store.fault["erase"] = external_util.broken
    table.remove([1])
    with pytest.raises(engine.EngineError, match=r"Store\.erase: RuntimeError: no connection"):
        table.flush()
    assert table.total_count() == 1 and sorted(store.made[-1].rows) == [1, 2]
    store.fault.clear()
    table.drain()
    assert sorted(store.made[-1].rows) == [2]


@pytest.mark.parametrize("kind", TYPES)
def test_hot_rows_come_back_up(kind, tmp_path):
    store = external_util.make_class()
    model = storage_util.WorldModel(_eager(), option(kind, store, tmp_path, rows=2), rule="adagrad")
    for ids in ([1, 2], [3, 4], [5, 6], [7, 8]):
        model.run(ids)
    last = len(kind.split("_")) - 1
    assert model.tiers([1, 2]) == [last] * 2
    model.look_up([1, 2])
    assert model.tiers([1, 2]) == [0, 0]


def _eager():
    import worlds

    return worlds.make_world("eager")


def test_rows_that_a_store_kept_are_there_in_the_next_table():
    store = external_util.make_kept()
    table, dram = make_table(store), engine.Table(4, "uniform", -1, 1, seed=3)
    for each in (table, dram):
        train(each, [1, 2, 3, 4, 5, 6, 7], "adagrad")
    table.close()
    assert sorted(store.kept) == [1, 2, 3, 4, 5, 6, 7]
    store.kept.pop(7)
    dram.remove([7])
    table = make_table(store, slots=[("accumulator", 4, 0.1)])
    assert table.total_count() == 6 and table.path is None
    np.testing.assert_array_equal(table.version([1, 2]), [-1, -1])
    np.testing.assert_array_equal(table.frequency([1, 2]), [0, 0])
    for each in (table, dram):
        train(each, [1, 5, 8], "adagrad")
    np.testing.assert_array_equal(*(each.lookup(range(10)) for each in (table, dram)))
    np.testing.assert_array_equal(data_of(table), data_of(dram))
    # Rows with states, in a table that has none yet.
    table.close()
    with pytest.raises(
        engine.EngineError, match=r"expected rows as float32 \[1, 4\], found float32 \[1, 8\]"
    ):
        make_table(store).lookup([1])


def test_keys_of_another_kind_make_no_table():
    for keys, message in (
        ([1.5], r"keys: TypeError: expected keys as integers \[n\], found float64 \[1\]"),
        ([[1]], r"found int64 \[1, 1\]"),
        ([1, 2, 1], r"keys: expected each key once, found 1 twice"),
    ):
        store = type("Store", (external_util.Dict,), {"keys": lambda self, keys=keys: keys})
        with pytest.raises((engine.EngineError, ValueError), match=message):
            make_table(store)
    store = type("Store", (external_util.Dict,), {"__init__": external_util.broken})
    with pytest.raises(engine.EngineError, match="Store.open: RuntimeError: no connection"):
        make_table(store)


def test_each_table_makes_one_instance_which_knows_its_name():
    store = external_util.make_class()
    tables = [make_table(store, name=name) for name in ("a", "b")]
    assert [each.table for each in store.made] == ["a", "b"]
    train(tables[0], range(10))
    assert [len(each.rows) for each in store.made] == [6, 0]


def test_a_restore_replaces_the_rows_of_a_kept_store(world, tmp_path):
    store = external_util.make_kept()
    model = storage_util.WorldModel(world, option("DRAM_EXTERNAL", store), rule="adagrad")
    for ids, grads in storage_util.batches(6, 4):
        model.run(ids, grads)
    saved = model.content()
    prefix = str(tmp_path / "ckpt")
    if world.is_graph:
        saver = tf.compat.v1.train.Saver([model.ev])
        saver.save(world.session, prefix)
        restore = lambda: saver.restore(world.session, prefix)
    else:
        written = tf.train.Checkpoint(ev=model.ev).write(prefix)
        restore = lambda: tf.train.Checkpoint(ev=model.ev).read(written).expect_partial()
    model.run([1001, 1002, 1003, 1004, 1005, 1006])
    restore()
    assert model.content() == saved
    model.ask("flush")
    assert sorted(store.kept) == sorted(saved[0])
    model.run([1, 2], counts=False)
    assert model.look_up([1]).shape == (1, 4)


def test_a_full_last_tier_drops_its_coldest_rows_from_the_store():
    store = external_util.make_class()
    table = engine.Table(
        2,
        storage_type="DRAM_EXTERNAL",
        storage_rows=[2, 3],
        external_storage=store,
        drop_coldest=True,
    )
    for key in range(8):
        train(table, [key])
    assert sorted(table.pop_dropped()) == [0, 1, 2]
    assert sorted(store.made[-1].rows) == [3, 4, 5]
    table.close()  # the storage takes what is above it, too
    assert sorted(store.made[-1].rows) == [3, 4, 5, 6, 7]


def test_a_store_that_sleeps_holds_up_only_what_needs_it():
    store = external_util.make_class()
    table = make_table(store, rows=2)
    for keys in ([1, 2], [3, 4]):
        train(table, keys)
    asleep, wake = threading.Event(), threading.Event()

    def wait_for_wake(result):
        asleep.set()
        assert wake.wait(60)
        return result

    store.fault["find"] = wait_for_wake
    found = []
    thread = threading.Thread(target=lambda: found.append(table.lookup([1])))
    thread.start()
    assert asleep.wait(60)
    table.lookup([3, 4])
    train(table, [3, 4])
    table.stats()
    assert not found
    wake.set()
    thread.join(60)
    assert len(found) == 1


def test_four_threads_and_the_background_share_a_store():
    store = external_util.make_class()
    table = make_table(store, rows=1 << 16, dim=2)  # the pool evicts
    errors = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(40):
                keys = rng.integers(0, 200_000, 8000)
                train(table, keys)
                table.lookup(keys[:500])
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not errors and not any(thread.is_alive() for thread in threads)
    table.drain()
    keys = np.concatenate(
        [
            [rng.integers(0, 200_000, 8000) for _ in range(40)]
            for rng in map(np.random.default_rng, range(4))
        ]
    ).ravel()
    distinct, counts = np.unique(keys, return_counts=True)
    assert table.total_count() == len(distinct) > 1 << 16
    assert len(store.made[-1].rows) > len(distinct) // 2
    np.testing.assert_array_equal(table.frequency(distinct), counts)


def test_what_is_no_class_of_a_storage_is_refused():
    class NoErase(external_storage.Storage):
        def find(self, keys): ...

        def insert(self, keys, rows): ...

    for given, message in (
        (external_util.Dict(), "found an instance of Dict: give the class"),
        (dict, "found <class 'dict'>"),
        (NoErase, "expected class NoErase to have a method erase, found none"),
    ):
        with pytest.raises(TypeError, match=f"external_storage: .*{message}"):
            option("EXTERNAL", given)
    for kind, given, more, message in (
        (
            "DRAM_EXTERNAL",
            None,
            {},
            "external_storage: expected the storage of storage_type DRAM_EXTERNAL, found none",
        ),
        (
            "DRAM",
            external_util.Dict,
            {},
            "external_storage: expected it only with storage_type EXTERNAL, .*, found DRAM",
        ),
        (
            "EXTERNAL",
            external_util.Dict,
            {"keep": True},
            "keep: .*an external storage keeps its rows itself",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            option(kind, given, **more)


def test_classes_of_one_function_have_names_of_their_own():
    stores = [external_util.make_class() for _ in range(2)]
    names = [external_storage.register(store) for store in stores]
    assert names[0] != names[1] and external_storage.register(stores[0]) == names[0]
    made = option("EXTERNAL", stores[0])
    assert made.external_storage == names[0] and option("EXTERNAL", names[0]) == made

"""The engine from NumPy: tf_multitier.engine."""

import os
import threading

import numpy as np
import pytest
import reference_rules

from tf_multitier import engine

ADAGRAD = {"learning_rate": 0.1}
EXTREME_KEYS = np.array([-7, -1, 0, np.iinfo(np.int64).min, np.iinfo(np.int64).max])


def uniform_table(**options):
    return engine.Table(dim=4, initializer="uniform", a=-1.0, b=1.0, seed=5, **options)


def sgd(table, keys, value=1.0, lr=1.0, **kwargs):
    table.apply(
        "sgd",
        keys,
        np.full((len(keys), table.dim), value, np.float32),
        hyper={"learning_rate": lr},
        **kwargs,
    )


def test_lookup_creates_no_key_and_is_deterministic():
    table, other = uniform_table(), uniform_table()
    first = table.lookup([1, 2, 1])
    assert first.dtype == np.float32 and first.shape == (3, 4)
    np.testing.assert_array_equal(first[0], first[2])
    assert not np.array_equal(first[0], first[1])
    np.testing.assert_array_equal(first, other.lookup([1, 2, 1]))
    assert table.total_count() == 0 and table.stats()["absent"] == 3


@pytest.mark.parametrize(
    "kind", ["DRAM", "DRAM_SSDHASH", "DRAM_LEVELDB", "SSDHASH", "DRAM_PMEM_SSDHASH", "PMEM"]
)
@pytest.mark.parametrize("cache_strategy", ["LRU", "DEFAULT"])
def test_peek_gives_what_lookup_gives_and_moves_nothing(kind, cache_strategy, tmp_path):
    sizes = [1 << 20] if "_" not in kind else [64] * kind.count("_")
    make = lambda name: uniform_table(
        storage_type=kind,
        storage_path=None if kind == "DRAM" else tmp_path,
        storage_size=sizes,
        cache_strategy=cache_strategy,
        filter="counter",
        filter_freq=2,
        name=name,
    )
    table, other = make("a"), make("b")
    keys = np.arange(-3, 12)
    for t in (table, other):
        for _ in range(2):
            sgd(t, np.arange(12))
        sgd(t, [-1])  # counted, not admitted
        t.drain()
    probe = np.concatenate([keys, keys[::-1], [5, 5]])
    before, stats = table.lookup_tier(keys).tolist(), table.stats()
    for _ in range(3):
        found = table.peek(probe)
    assert found.dtype == np.float32 and table.peek([]).shape == (0, 4)
    table.drain()
    assert table.lookup_tier(keys).tolist() == before
    for name in ("lookups", "absent"):
        assert table.stats()[name] == stats[name]
    np.testing.assert_array_equal(found, other.lookup(probe))
    # Nothing peeked at counts as used: the next row to leave memory is the same.
    other = make("c")
    for _ in range(2):
        sgd(other, np.arange(12))
    for t in (table, other):
        sgd(t, [100, 101], counts=[2, 2])
        t.drain()
    everything = np.append(np.arange(12), [100, 101])
    assert table.lookup_tier(everything).tolist() == other.lookup_tier(everything).tolist()


def test_paths_have_any_bytes(tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), b"\xff")
    os.mkdir(folder)
    with engine.Table(4, name="t", storage_type="SSDHASH", storage_path=folder, keep=True) as table:
        table.apply("sgd", [7], np.ones((1, 4)), hyper={"learning_rate": 1.0})
        path = table.path
    for arguments in ([path], [folder, "t"]):
        with engine.Table.open(*arguments) as table:
            assert table.path == path and os.path.isdir(path) and len(table) == 1


@pytest.mark.parametrize("kind", ["DRAM_SSDHASH", "DRAM_LEVELDB"])
def test_compact_gives_disk_space_of_removed_rows_back(kind, tmp_path):
    table = engine.Table(dim=64, storage_type=kind, storage_path=tmp_path, storage_size=[1 << 16])
    for _ in range(3):
        for start in range(0, 60000, 5000):
            sgd(table, np.arange(start, start + 5000))
    table.drain()
    table.compact()
    full = table.stats()["tiers"][1]["stored_bytes"]
    kept = np.arange(0, 60000, 20)
    table.remove(np.setdiff1d(np.arange(60000), kept))
    before, values = table.stats()["tiers"][1], table.peek(kept)
    assert before["dead_bytes"] > full // 2 if kind == "DRAM_SSDHASH" else before["dead_bytes"] == 0
    table.compact()
    after = table.stats()["tiers"][1]
    assert after["stored_bytes"] < full / 2 and after["stored_bytes"] <= before["stored_bytes"]
    assert after["dead_bytes"] <= before["dead_bytes"] and after["compaction_debt_bytes"] == 0
    assert (
        after["read_backend"] in ("io_uring", "pread") and sum(after["read_latency_us_log2"]) > 0
    ) or kind == "DRAM_LEVELDB"
    np.testing.assert_array_equal(table.lookup(kept), values)
    assert len(table) == len(kept)


def test_a_new_budget_moves_rows_and_a_bad_one_is_one_error(tmp_path):
    table = engine.Table(
        dim=4,
        storage_type="DRAM_SSDHASH",
        storage_path=tmp_path,
        storage_size=[16 * 1000],
        name="t",
    )
    sgd(table, np.arange(900))
    values = table.peek(np.arange(900))
    table.set_budget(16 * 100)
    table.drain()
    dram, disk = table.stats()["tiers"]
    assert (dram["rows"], disk["rows"], dram["budget_bytes"]) == (100, 800, 1600)
    np.testing.assert_array_equal(table.peek(np.arange(900)), values)
    table.set_budget(16 * 1000)
    sgd(table, np.arange(900), value=0.0)
    assert table.stats()["tiers"][0]["rows"] == 900
    with pytest.raises(
        ValueError,
        match=r"table 't': expected a budget of tier dram of at least one row \(16 bytes\), found 15",
    ):
        table.set_budget(15)
    with pytest.raises(ValueError, match="expected 1 to .* bytes, .*found -1"):
        table.set_budget(-1)
    with pytest.raises(TypeError, match="expected an integer number of bytes, found 1.5"):
        table.set_budget(1.5)
    with pytest.raises(
        engine.FailedPreconditionError,
        match="expected a table made with a DRAM budget, found an unbounded one",
    ):
        uniform_table().set_budget(1 << 20)
    assert table.stats()["tiers"][0]["budget_bytes"] == 16000


def test_repeated_keys_are_updated_once_with_the_sum():
    table = uniform_table()
    before = table.lookup([1])
    sgd(table, [1, 1, 1])
    np.testing.assert_array_equal(table.lookup([1]), before - np.float32(3.0))
    assert table.frequency([1, 2]).tolist() == [3, 0]
    assert table.version([1, 2]).tolist() == [1, -1]
    assert table.lookup_tier([1, 2]).tolist() == [0, -1]


def test_every_int64_is_a_key():
    table = uniform_table()
    before = table.lookup(EXTREME_KEYS)
    sgd(table, EXTREME_KEYS, value=0.5)
    np.testing.assert_array_equal(table.lookup(EXTREME_KEYS), before - np.float32(0.5))
    assert sorted(table.export().keys) == sorted(EXTREME_KEYS)


def test_empty_batch_changes_nothing():
    table = uniform_table()
    sgd(table, [])
    assert table.lookup([]).shape == (0, 4)
    assert table.total_count() == 0 and table.remove([]) == 0


def test_counts_go_to_the_frequency_and_step_to_the_version():
    table = uniform_table()
    sgd(table, [3, 4], counts=[10, 0], global_step=77)
    assert table.frequency([3, 4]).tolist() == [10, 0]
    assert table.version([3, 4]).tolist() == [77, 77]


def test_adagrad_equals_numpy():
    table = uniform_table()
    value, slots = table.lookup([9]), reference_rules.make_slots("adagrad", 1, 4)
    grad, hyper = np.array([[0.5, -1.0, 2.0, 0.0]], np.float32), {"learning_rate": 0.1}
    for _ in range(3):
        table.apply("adagrad", [9], grad, hyper=hyper)
        reference_rules.apply_rule("adagrad", value, slots, grad, hyper)
    np.testing.assert_array_equal(table.lookup([9]), value)
    np.testing.assert_array_equal(table.export().column("accumulator"), slots["accumulator"])


def test_update_rules_are_listed_with_slots_and_hyperparameters():
    rules = engine.update_rules()
    for name in (
        "sgd",
        "momentum",
        "adagrad",
        "adam",
        "adamw",
        "rmsprop",
        "ftrl",
        "rowwise_adagrad",
    ):
        assert name in rules
        assert "learning_rate" in rules[name].hyperparameters
    assert rules["sgd"].slots == ()
    assert any(per_row for _, per_row, _ in rules["rowwise_adagrad"].slots)


def test_slots_added_later_hold_their_initial_value():
    table = uniform_table()
    sgd(table, [1])
    table.add_slots([("m", 4, 0.25), ("n", 1, 2.0)])
    table.add_slots([("m", 4, 0.25)])
    rows = table.export()
    np.testing.assert_array_equal(rows.column("m"), np.full((1, 4), 0.25))
    np.testing.assert_array_equal(rows.column("n"), [[2.0]])
    with pytest.raises(engine.AlreadyExistsError, match="m"):
        table.add_slots([("m", 3, 0.0)])
    with pytest.raises(KeyError, match="none"):
        rows.column("none")


def test_removed_keys_read_as_their_initial_value():
    table = uniform_table()
    before = table.lookup([1, 2])
    sgd(table, [1, 2])
    assert table.remove([1, 5]) == 1
    np.testing.assert_array_equal(table.lookup([1, 2]), [before[0], before[1] - 1])
    table.clear()
    assert table.total_count() == 0
    np.testing.assert_array_equal(table.lookup([2])[0], before[1])


def test_expire_removes_rows_by_step():
    table = uniform_table(steps_to_live=10)
    sgd(table, [1], global_step=5)
    sgd(table, [2], global_step=12)
    assert table.expire(16) == 1
    assert table.version([1, 2]).tolist() == [-1, 12]


def test_a_rule_may_have_a_weight_decay():
    table = engine.Table(dim=2, initializer="constant", a=1.0)
    hyper = {"learning_rate": 0.5, "weight_decay": 0.5}
    table.apply("sgd+weight_decay", [1], [[0.0, 1.0]], hyper=hyper)
    assert table.lookup([1]).tolist() == [[0.75, 0.25]]


def test_a_rule_may_keep_the_average_of_a_row():
    table = engine.Table(dim=2, initializer="constant", a=1.0)
    hyper = {"learning_rate": 0.5, "weight_decay": 0.5, "ema_momentum": 0.5}
    table.apply("sgd+weight_decay+ema", [1], [[0.0, 1.0]], hyper=hyper)
    assert table.lookup([1]).tolist() == [[0.75, 0.25]]
    assert table.columns[1][:2] == ("average_offset", 2)


def test_expire_removes_rows_by_weight():
    table = engine.Table(dim=2, l2_weight_threshold=0.5)
    table.apply("sgd", [1, 2], [[-2.0, 0.0], [-0.5, 0.0]], hyper={"learning_rate": 1.0})
    assert table.expire(0) == 1
    assert table.version([1, 2])[1] == -1


def test_counter_filter_admits_after_its_count():
    table = uniform_table(filter="counter", filter_freq=3, default_value_no_permission=0.75)
    sgd(table, [1, 1])
    assert table.total_count() == 0 and table.frequency([1]).tolist() == [2]
    np.testing.assert_array_equal(table.lookup([1]), np.full((1, 4), 0.75))
    sgd(table, [1])
    assert table.total_count() == 1


def test_matrix_initializer_gives_row_key_mod_n():
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    table = engine.Table(dim=4, initializer="matrix", matrix=matrix)
    np.testing.assert_array_equal(table.lookup([0, 4, -1]), matrix[[0, 1, 2]])


def test_export_and_import_give_the_same_table():
    table = uniform_table(filter="counter", filter_freq=2)
    hyper = dict.fromkeys(engine.update_rules()["adagrad"].hyperparameters, 0.1)
    for keys in ([1, 2, 2, 3], [3, 4, -5, -5]):
        table.apply("adagrad", keys, np.ones((len(keys), 4)), hyper=hyper, global_step=len(keys))
    copy = uniform_table(filter="counter", filter_freq=2)
    copy.import_rows(table.export())
    probe = [1, 2, 3, 4, -5, 6]
    np.testing.assert_array_equal(copy.lookup(probe), table.lookup(probe))
    np.testing.assert_array_equal(copy.frequency(probe), table.frequency(probe))
    np.testing.assert_array_equal(copy.version(probe), table.version(probe))
    assert copy.columns == table.columns
    assert copy.stats()["counted_keys"] == table.stats()["counted_keys"] == 2


def test_scan_gives_every_key_once():
    table = uniform_table()
    sgd(table, np.arange(5000))
    keys, cursor = [], 0
    while True:
        rows, cursor = table.scan(cursor, max_rows=700, columns=["value"])
        assert len(rows) < 800
        np.testing.assert_array_equal(rows.data, table.lookup(rows.keys))
        keys += rows.keys.tolist()
        if cursor == 0:
            break
    assert sorted(keys) == list(range(5000))


@pytest.mark.parametrize("budget_rows", [1, 4, 100])
def test_lower_tier_changes_no_value(budget_rows, tmp_path):
    dram = uniform_table()
    tiered = uniform_table(
        storage_type="DRAM_SSDHASH", storage_path=tmp_path, storage_size=[32 * budget_rows]
    )
    hyper = dict.fromkeys(engine.update_rules()["adagrad"].hyperparameters, 0.1)
    random = np.random.default_rng(3)
    for _ in range(30):
        keys = random.integers(-50, 50, 40)
        grads = random.standard_normal((40, 4)).astype(np.float32)
        for table in (dram, tiered):
            table.apply("adagrad", keys, grads, hyper=hyper)
        np.testing.assert_array_equal(dram.lookup(keys), tiered.lookup(keys))
    tiered.drain()
    stats = tiered.stats()
    assert stats["tiers"][0]["name"] == "dram" and len(stats["tiers"]) == 2
    assert stats["tiers"][0]["rows"] <= budget_rows
    assert sum(tier["rows"] for tier in stats["tiers"]) == stats["rows"] == dram.total_count()
    a, b = dram.export(), tiered.export()
    np.testing.assert_array_equal(a.data[np.argsort(a.keys)], b.data[np.argsort(b.keys)])


def test_a_hard_budget_refuses_whole_batches():
    table = uniform_table(storage_size=[2 * 16])
    sgd(table, [1, 2])
    with pytest.raises(engine.ResourceExhaustedError) as error:
        sgd(table, [1, 3])
    assert isinstance(error.value, MemoryError) and isinstance(error.value, engine.EngineError)
    assert table.frequency([1, 2, 3]).tolist() == [1, 1, 0]


def test_four_threads_lose_no_update():
    table = engine.Table(dim=2)

    def train():
        for _ in range(100):
            sgd(table, [1, 2, 3], value=-1.0)

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(table.lookup([1, 2, 3]), np.full((3, 2), 400.0))
    assert table.frequency([2]).tolist() == [400]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda t: t.lookup([[1]]), r"keys: expected shape \[n\], found \[1, 1\]"),
        (lambda t: t.lookup([1.5]), "keys: expected integers"),
        (lambda t: t.lookup(["a"]), "keys: expected integers"),
        (lambda t: t.lookup([2**63]), "keys: expected integers that fit int64"),
        (lambda t: sgd(t, [1], counts=[1, 2]), r"counts: expected shape \[1\], found \[2\]"),
        (lambda t: sgd(t, [1], counts=[-1]), "count"),
        (
            lambda t: t.apply("sgd", [1], [[1.0]], hyper={"learning_rate": 1}),
            r"grads: expected shape \[1, 4\], found \[1, 1\]",
        ),
        (
            lambda t: t.apply("sgd", [1], np.ones((1, 4)), hyper={}),
            "expected .'learning_rate'., found ",
        ),
        (
            lambda t: t.apply("none", [1], np.ones((1, 4))),
            "rule: expected one of .*sgd.*weight_decay, then with .ema; found 'none'",
        ),
        (lambda t: t.add_slots([("value", 0, 0.0)]), "."),
        (lambda t: t.add_slots([("m", 4)]), r"slots\[0\]: expected .*, found \('m', 4\)"),
        (lambda t: t.lookup([[1], [1, 2]]), "keys: expected rows of one length, found"),
        (
            lambda t: t.apply("sgd", [1], np.ones((1, 4)), hyper=[0.1]),
            r"hyper of sgd: expected a dict with \['learning_rate'\], found \[0.1\]",
        ),
        (lambda t: t.apply(["sgd"], [1], np.ones((1, 4))), r"rule: expected one of .*\['sgd'\]"),
        (
            lambda t: t.apply("adagrad", [1], np.ones((1, 4)), hyper=ADAGRAD, slots=5),
            "slots of adagrad: expected a list of names, found 5",
        ),
        (lambda t: t.upsert([1], 5), "columns: expected a dict from names to values, found 5"),
        (lambda t: t.scan(columns=5), "columns: expected a list of names, found 5"),
        (lambda t: t.prefetch([1], timeout="x"), "timeout: expected a number, found 'x'"),
        (lambda t: t.import_rows(3), "rows: expected Rows, found 3"),
        (lambda t: engine.Table.open(3), "path: expected a path, found 3"),
        (lambda t: engine.Table.open("/", name=3), "name: expected a name, found 3"),
        (lambda t: engine.salvage(3), "path: expected a path, found 3"),
        (lambda t: engine.Group([t, 3], [[1], [1]]), r"tables\[1\]: expected a Table, found 3"),
        (lambda t: engine.Group([t], 5), "keys: expected a list of arrays, found 5"),
        (lambda t: engine.Group([t], [[1]], combiners=5), "combiners: expected a list of names"),
        (lambda t: engine.Group([t], [[1]], max_norms=["a"]), "max_norm of member 0: expected a"),
    ],
)
def test_bad_arguments_are_refused_before_anything_changes(call, message):
    table = uniform_table()
    sgd(table, [1])
    before = table.export().data
    with pytest.raises(ValueError, match=message):
        call(table)
    np.testing.assert_array_equal(table.export().data, before)
    assert table.total_count() == 1


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(dim=0), "dim"),
        (
            dict(dim=4, initializer="zeros"),
            "initializer.kind: expected one of constant, uniform.*found 'zeros'",
        ),
        (dict(dim=4, initializer="uniform", a=1.0, b=1.0), "uniform|expected"),
        (
            dict(dim=4, filter="lottery"),
            "filter.kind: expected one of none, counter.*found 'lottery'",
        ),
        (
            dict(dim=4, initializer="matrix", matrix=np.ones((2, 3))),
            r"matrix: expected shape \[2, 4\], found \[2, 3\]",
        ),
        (dict(dim=4, storage_type="TAPE"), "storage_type: expected one of DRAM, .*; found 'TAPE'"),
        (dict(dim=4, seed=-1), "seed"),
        (
            dict(dim=4, default_value_no_permission={"kind": "foo"}),
            "default_value_no_permission.kind: expected one of constant, .*; found 'foo'",
        ),
        (
            dict(dim=4, num_shards=2**40),
            "num_shards: expected 0 to 64, found 1099511627776",
        ),
        (dict(dim=4, storage_size=[-1]), r"storage_size\[0\]: expected 1 to .* bytes, .*found -1"),
        (
            dict(dim=4, slots=[("m", "bfloat16", 4, 0.0)]),
            r"slots\[0\]: expected \(name, dim, initial_value\), found \('m', 'bfloat16', 4, 0.0\)",
        ),
        (dict(dim=4, slots=5), "slots: expected a list, found 5"),
        (
            dict(dim=4, slots=["abc"]),
            r"slots\[0\]: expected \(name, dim, initial_value\), found 'abc'",
        ),
        (dict(dim=4, slots=[("m", 2**40, 0.0)]), r"slots\[0\].dim: expected 1 to 1048576, found"),
        (dict(dim=2**40), "^dim: expected 1 to 1048576, found 1099511627776"),
        (dict(dim=4, matrix=5), r"matrix: expected shape \[n, 4\], found 5"),
        (dict(dim=4, storage_path=3), "storage_path: expected text, found 3"),
        (
            dict(dim=4, storage_size=object()),
            r"storage_size\[0\]: expected an integer of bytes, .*found",
        ),
        (
            dict(dim=4, default_value_no_permission={"x": 1}),
            "default_value_no_permission.x: expected a member of an initializer, found none of that name",
        ),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        engine.Table(**options)


def test_import_of_another_dim_or_uneven_sizes_is_refused():
    rows = uniform_table().export()
    with pytest.raises(ValueError, match="dim|4"):
        engine.Table(dim=5).import_rows(rows)
    rows.versions = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="versions"):
        uniform_table().import_rows(rows)


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("inf"), 1e300])
def test_a_bad_prefetch_timeout_is_refused(timeout):
    with pytest.raises(ValueError, match="timeout: expected 0 to 1e9 seconds, found"):
        engine.Table(dim=4).prefetch([1], timeout=timeout)

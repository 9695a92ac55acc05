"""Rows out of a variable and into it: scan, rows, upsert, clear, set_budget. In a Session, eagerly and in a tf.function."""

import numpy as np
import pytest
from pairs import WORLDS
from pairs import pairwise
import tensorflow as tf
from storage_util import WorldModel
from storage_util import option
from variable_util import make
from worlds import same_bits

from tf_multitier import engine

errors = tf.errors

STORAGES = ["DRAM", "DRAM_SSDHASH", "DRAM_PMEM_LEVELDB"]

KEYS = np.concatenate([np.arange(-30, 70), [np.iinfo(np.int64).min, np.iinfo(np.int64).max]])


def trained(model, steps=3):
    for step in range(steps):
        model.run(KEYS[step * 20 :])


def pieces_of(model, **arguments):
    """The pieces of `rows`, whose session is the world's. In a function's world, those of `scan` in a tf.function."""
    world = model.world
    if world.is_graph or world.is_eager:
        return list(model.ev.rows(world.session if world.is_graph else None, **arguments))
    scan = lambda cursor: model.ev.scan(cursor, **arguments)
    pieces = [world.run(scan, np.int64(0))]
    while pieces[-1].next_cursor:
        pieces.append(world.run(scan, pieces[-1].next_cursor))
    return [piece for piece in pieces if len(piece.keys)]


def collected(pieces):
    """The pieces of a scan as one dict of arrays in order of keys; each key is in one piece."""
    keys = np.concatenate([piece.keys for piece in pieces])
    assert len(set(keys.tolist())) == len(keys)
    order = np.argsort(keys)
    found = {
        "keys": keys[order],
        "frequencies": np.concatenate([piece.frequencies for piece in pieces])[order],
        "versions": np.concatenate([piece.versions for piece in pieces])[order],
    }
    for name in pieces[0].columns:
        found[name] = np.concatenate([piece.columns[name] for piece in pieces])[order]
    return found


@pairwise(world=WORLDS, kind=STORAGES, parts=[1, 3])
def test_rows_gives_what_export_gives(world, kind, parts, tmp_path):
    storage = option(kind, tmp_path, row_bytes=32, rows=5)
    model = WorldModel(world, storage, parts=parts, rule="momentum")
    trained(model)
    keys, values, versions, frequencies = model.ask("export")
    found = collected(pieces_of(model, max_rows=7))
    order = np.argsort(keys)
    same_bits(
        [found["keys"], found["value"], found["versions"], found["frequencies"]],
        [keys[order], values[order], versions[order], frequencies[order]],
    )


def test_slots_are_columns_by_name(world):
    model = WorldModel(world, None, rule="momentum")
    name = "ev/Momentum"
    trained(model, 1)
    found = collected(pieces_of(model, columns=[name, "value"]))
    np.testing.assert_array_equal(found[name], np.ones((len(KEYS), 4)))
    assert found["value"].shape == (len(KEYS), 4)
    facts = collected(pieces_of(model, columns=[]))
    assert set(facts) == {"keys", "frequencies", "versions"}
    with pytest.raises(
        errors.InvalidArgumentError, match="columns of 'value', 'ev/Momentum', found 'velocity'"
    ):
        pieces_of(model, columns=["velocity"])


@pytest.mark.parametrize("parts", [1, 3])
def test_thresholds_leave_rows_out(world, parts, tmp_path):
    model = WorldModel(world, option("DRAM_SSDHASH", tmp_path), parts=parts)
    trained(model)
    late = collected(pieces_of(model, min_version=int(model.ask("export")[2].max())))
    np.testing.assert_array_equal(late["keys"], np.sort(KEYS[40:]))
    often = collected(pieces_of(model, min_frequency=2))
    np.testing.assert_array_equal(often["keys"], np.sort(KEYS[20:]))
    assert pieces_of(model, min_frequency=100) == []


def test_bad_cursors_and_sizes_are_refused(world):
    whole, parts = make("whole"), make("parts", parts=2)
    for bad in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="max_rows: expected an integer, at least 1, found"):
            whole.scan(max_rows=bad)
    with pytest.raises(TypeError, match="columns: expected a list of names"):
        whole.scan(columns="value")
    if world.is_graph:
        with pytest.raises(ValueError, match="'whole': rows\\(\\): expected a session, found none"):
            next(whole.rows())
    for variable in (whole, parts):
        for bad in (-1, 2**50, 2**62):
            with pytest.raises(
                errors.InvalidArgumentError, match="expected a cursor that an earlier scan"
            ):
                world.run(variable.scan, np.int64(bad))


@pytest.mark.parametrize("parts", [1, 2])
def test_the_cursor_of_another_variable_is_refused_by_name(world, parts):
    models = [WorldModel(world, None, name, parts=parts) for name in ("ours", "theirs")]
    for model in models:
        model.run(np.arange(500))
    cursor = world.run(lambda: models[0].ev.scan(0, max_rows=5)).next_cursor
    scans = [lambda cursor, ev=model.ev: ev.scan(cursor, max_rows=5) for model in models]
    assert world.run(scans[0], cursor).next_cursor not in (0, cursor)
    message = "'theirs.*: scan: expected a cursor that an earlier scan of this table returned"
    with pytest.raises(errors.InvalidArgumentError, match=message):
        world.run(scans[1], cursor)


@pairwise(world=WORLDS, kind=STORAGES, parts=[1, 3])
def test_upsert_makes_the_same_variable(world, kind, parts, tmp_path):
    first, second = (
        WorldModel(world, option(kind, tmp_path / name, 32, 5), name, parts=parts, rule="momentum")
        for name in "ab"
    )
    trained(first)
    second.run(KEYS[:0], np.zeros((0, 4), np.float32), counts=False)  # makes the slots

    def write(keys, values, slots, frequencies, versions):
        return second.ev.upsert(keys, values, {"b/Momentum": slots}, frequencies, versions)

    for piece in pieces_of(first, max_rows=11, columns=["value", "a/Momentum"]):
        columns = [piece.columns["value"], piece.columns["a/Momentum"]]
        written = world.run(write, piece.keys, *columns, piece.frequencies, piece.versions)
        assert written == len(piece.keys)
    same_bits(sorted_export(first), sorted_export(second))
    for _unused_step in range(2):  # slots, too
        for model in (first, second):
            model.run(KEYS[::3], counts=False)
    for a, b in zip(sorted_export(first)[:2], sorted_export(second)[:2]):
        np.testing.assert_array_equal(a, b)


def sorted_export(model):
    keys, *rest = model.ask("export")
    order = np.argsort(keys)
    return [array[order] for array in (keys, *rest)]


def test_upsert_leaves_what_is_not_given(world):
    model = WorldModel(world, None, rule="momentum")
    trained(model, 1)
    world.run(model.ev.upsert, np.array([1, 1000]), np.full((2, 4), 7.0, np.float32))
    assert model.ask("get_frequency", np.array([1, 1000])).tolist() == [1, 0]
    found = collected(pieces_of(model, columns=["ev/Momentum"]))
    np.testing.assert_array_equal(found["ev/Momentum"][found["keys"] == 1], np.ones((1, 4)))
    np.testing.assert_array_equal(model.look_up([1, 1000]), np.full((2, 4), 7.0))


def test_upsert_keeps_refuses_and_takes_the_last(world):
    ev = make()
    ones, twos = np.ones((2, 4), np.float32), np.full((2, 4), 2.0, np.float32)

    def upsert(keys, rows, **arguments):
        return world.run(lambda k, r: ev.upsert(k, r, **arguments), np.array(keys), rows)

    assert upsert([1, 2], ones) == 2
    with pytest.raises(errors.AlreadyExistsError, match="found a row of key 2"):
        upsert([3, 2], twos, if_exists="error")
    assert world.run(ev.total_count) == 2
    assert upsert([3, 2], twos, if_exists="keep") == 1
    with pytest.raises(errors.InvalidArgumentError, match="distinct keys, found key 9 twice"):
        upsert([9, 9], ones)
    assert upsert([9, 9], np.float32([[5.0] * 4, [6.0] * 4]), repeats="last") == 1
    values = world.run(lambda: tf.nn.embedding_lookup(ev, [1, 2, 3, 9]))
    assert values[:, 0].tolist() == [1.0, 1.0, 2.0, 6.0]


def test_bad_input_of_upsert_changes_nothing(world):
    ev = make()
    ones = np.ones((1, 4), np.float32)
    with pytest.raises(ValueError, match="if_exists: expected one of .*, found 'skip'"):
        ev.upsert([1], ones, if_exists="skip")
    with pytest.raises(ValueError, match="repeats: expected one of"):
        ev.upsert([1], ones, repeats="first")
    with pytest.raises(TypeError, match="'ev': keys: expected int64, found float32"):
        ev.upsert([1.5], ones)
    with pytest.raises(ValueError):
        ev.upsert([1], np.ones((1, 5), np.float32))
    with pytest.raises((ValueError, errors.InvalidArgumentError)):
        world.run(lambda: ev.upsert([1, 2], ones))
    for message, arguments in (
        (r"versions: expected shape \(1,\), found \(2,\)", dict(versions=[1, 2])),
        (r"frequencies: expected shape \(1,\), found \(0,\)", dict(frequencies=[])),
        ("frequencies: expected integers, found float32", dict(frequencies=[1.5])),
        ("versions: expected integers, found bool", dict(versions=[True])),
        (
            "slots: expected each slot once, and not 'value'",
            dict(values=ones, slots={"value": ones}),
        ),
        ("slots: expected a dict from slots to rows, found list", dict(slots=[ones])),
    ):
        with pytest.raises(ValueError, match=message):
            world.run(lambda arguments=arguments: ev.upsert([1], **arguments))
    for message, arguments in (
        ("expected columns of 'value', found 'm'", dict(slots={"m": ones})),
        (r"expected frequencies in \[0, 2\^32\), found -1", dict(frequencies=[-1])),
        (
            "expected finite numbers in column 'value', found nan for key 1",
            dict(values=ones * np.nan, check_finite=True),
        ),
    ):
        with pytest.raises(errors.InvalidArgumentError, match=message):
            world.run(lambda arguments=arguments: ev.upsert([1], **arguments))
    assert world.run(ev.total_count) == 0


PARTS = 3
SPREAD = [3, 1, 4, 5]  # keys of all three parts; the last one is in another part than the first


@pytest.mark.parametrize(
    "error, message, arguments",
    [
        (
            errors.InvalidArgumentError,
            r"frequencies in \[0, 2\^32\), found -1",
            dict(frequencies=[1, 1, 1, -1]),
        ),
        (
            errors.InvalidArgumentError,
            "finite numbers in column 'value', found nan for key 5",
            dict(check_finite=True),
        ),
        (errors.AlreadyExistsError, "found a row of key 5", dict(if_exists="error")),
        (
            errors.InvalidArgumentError,
            "distinct keys, found key 5 twice",
            dict(keys=[3, 1, 4, 5, 5]),
        ),
        (errors.InvalidArgumentError, "upsert: value: expected one for each key", dict(rows=3)),
        (errors.InvalidArgumentError, "upsert: value: expected one for each key", dict(rows=9)),
    ],
)
def test_no_part_writes_where_another_refuses(world, error, message, arguments):
    ev = make("ev", parts=PARTS)
    assert len({key % PARTS for key in SPREAD}) == PARTS
    arguments = dict(arguments)
    keys = np.array(arguments.pop("keys", SPREAD))
    rows = np.ones((arguments.pop("rows", len(keys)), 4), np.float32)
    if "check_finite" in arguments:
        rows[3] = np.nan
    if "if_exists" in arguments:
        world.run(lambda: ev.upsert([5], np.ones((1, 4), np.float32)))
    before = world.run(ev.total_count)
    with pytest.raises((error, ValueError) if "rows" in message else error, match=message):
        world.run(lambda k, r: ev.upsert(k, r, **arguments), keys, rows)
    assert world.run(ev.total_count) == before


def test_a_negative_reservation_is_refused_by_every_number_of_parts(world):
    for ev in (make("one"), make("three", parts=3)):
        with pytest.raises(errors.InvalidArgumentError, match="found -1"):
            world.run(lambda ev=ev: ev.reserve(-1))


def test_rows_in_a_finalized_graph_says_what_to_do():
    with tf.Graph().as_default() as graph:
        ev = make("ev")
        with tf.compat.v1.Session() as session:
            session.run(ev.initializer)
            graph.finalize()
            with pytest.raises(RuntimeError, match="found a finalized one: build `scan"):
                next(ev.rows(session))


@pytest.mark.parametrize("strategy", ["DEFAULT", "LRU", "LFU"])
def test_the_hottest_rows_of_a_batch_are_in_the_first_tier(strategy, tmp_path):
    table = engine.Table(
        4,
        storage_type="DRAM_SSDHASH",
        storage_path=str(tmp_path),
        storage_rows=[10],
        cache_strategy=strategy,
    )
    frequencies = np.random.default_rng(3).permutation(100) + 1
    table.upsert(np.arange(100), {}, frequencies=frequencies)
    table.drain()
    in_dram = np.flatnonzero(table.lookup_tier(np.arange(100)) == 0)
    assert sorted(frequencies[in_dram]) == list(range(91, 101))


def test_clear_empties_a_variable(world, tmp_path):
    model = WorldModel(world, option("DRAM_SSDHASH", tmp_path), parts=2)
    before = model.look_up(KEYS)
    trained(model)
    model.ask("clear")
    assert model.ask("total_count") == 0
    np.testing.assert_array_equal(model.look_up(KEYS), before)
    trained(model, 1)
    assert model.ask("total_count") == len(KEYS)


def test_set_budget_changes_the_rows_of_dram(world, tmp_path):
    model = WorldModel(world, option("DRAM_SSDHASH", tmp_path, row_bytes=16, rows=50))
    trained(model)
    for rows in (10, 80):
        world.run(lambda rows=rows: model.ev.set_budget(rows * 16))
        model.look_up(KEYS)
        model.ask("drain")
        assert model.stats()["tiers"][0]["rows"] == rows
    with pytest.raises(errors.InvalidArgumentError, match="at least"):
        world.run(lambda: model.ev.set_budget(3))


def test_engine_upsert_and_scan():
    table = engine.Table(2, slots=[("m", 1, 0.5)])
    assert table.upsert([4, 5], {"m": [[1.0], [2.0]]}, versions=[3, 8]) == 2
    rows, cursor = table.scan(columns=["m"], min_version=4)
    assert (rows.keys.tolist(), rows.data.tolist(), cursor) == ([5], [[2.0]], 0)
    with pytest.raises(ValueError, match=r"columns: expected names among \['value', 'm'\]"):
        table.upsert([4], {"v": [[1.0]]})
    with pytest.raises(ValueError, match="expected names among .* found none"):
        table.scan(columns=[])
    with pytest.raises(engine.AlreadyExistsError, match="found a row of key 4"):
        table.upsert([4], {}, if_exists="error")
    with pytest.raises(ValueError, match="m: expected finite numbers, found infinities or NaN"):
        table.upsert([4], {"m": [[np.inf]]}, check_finite=True)
    with pytest.raises(ValueError, match="min_frequency: expected at least 0, found -1"):
        table.scan(min_frequency=-1)
    with pytest.raises(ValueError, match="rows: expected True or False, found 'x'"):
        table.pop_dropped(rows="x")

"""Rows out of a variable and into it: scan, rows, upsert, clear, set_budget."""

import numpy as np
import pytest
import tensorflow as tf
from storage_util import Model
from storage_util import option
from variable_util import initialized_session
from variable_util import make

from tf_multitier import engine

v1 = tf.compat.v1
errors = tf.errors

STORAGES = ["DRAM", "DRAM_SSDHASH", "DRAM_PMEM_LEVELDB"]
pytestmark = pytest.mark.usefixtures("graph")

KEYS = np.concatenate([np.arange(-30, 70), [np.iinfo(np.int64).min, np.iinfo(np.int64).max]])


def momentum(unused_step):
    return v1.train.MomentumOptimizer(0.5, 0.9)


def trained(session, model, steps=3):
    for step in range(steps):
        model.run(session, KEYS[step * 20 :])


def collected(pieces):
    """The pieces of a scan as one dict of arrays in order of keys; each key is in one piece."""
    pieces = list(pieces)
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


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("kind", STORAGES)
def test_rows_gives_what_export_gives(kind, parts, tmp_path):
    storage = option(kind, tmp_path, row_bytes=32, rows=5)
    model = Model(storage, parts=parts, optimizer=momentum)
    export = model.ev.export()
    with initialized_session() as session:
        trained(session, model)
        keys, values, versions, frequencies = session.run(export)
        found = collected(model.ev.rows(max_rows=7))
        np.testing.assert_array_equal(found["keys"], keys)
        np.testing.assert_array_equal(found["value"], values)
        np.testing.assert_array_equal(found["versions"], versions)
        np.testing.assert_array_equal(found["frequencies"], frequencies)


def test_slots_are_columns_by_name_and_by_object():
    model = Model(None, optimizer=momentum)
    slot = [v for v in v1.get_collection(v1.GraphKeys.GLOBAL_VARIABLES) if "omentum" in v.name]
    assert not slot  # a slot is no variable
    name = "ev/Momentum"
    with initialized_session() as session:
        trained(session, model, 1)
        found = collected(model.ev.rows(columns=[name, "value"]))
        np.testing.assert_array_equal(found[name], np.ones((len(KEYS), 4)))
        assert found["value"].shape == (len(KEYS), 4)
        facts = collected(model.ev.rows(columns=[]))
        assert set(facts) == {"keys", "frequencies", "versions"}
        with pytest.raises(
            errors.InvalidArgumentError, match="columns of 'value', 'ev/Momentum', found 'velocity'"
        ):
            session.run(model.ev.scan(columns=["velocity"]))


@pytest.mark.parametrize("parts", [1, 3])
def test_thresholds_leave_rows_out(parts, tmp_path):
    model = Model(option("DRAM_SSDHASH", tmp_path), parts=parts)
    with initialized_session() as session:
        trained(session, model)
        late = collected(model.ev.rows(min_version=2))
        np.testing.assert_array_equal(late["keys"], np.sort(KEYS[40:]))
        often = collected(model.ev.rows(min_frequency=2))
        np.testing.assert_array_equal(often["keys"], np.sort(KEYS[20:]))
        assert list(model.ev.rows(min_frequency=100)) == []


def test_bad_cursors_and_sizes_are_refused():
    whole, parts = make("whole"), make("parts", parts=2)
    for bad in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="max_rows: expected an integer, at least 1, found"):
            whole.scan(max_rows=bad)
    with pytest.raises(TypeError, match="columns: expected a list of names"):
        whole.scan(columns="value")
    with pytest.raises(ValueError, match="'whole': rows\\(\\): expected a session, found none"):
        next(whole.rows())
    with initialized_session() as session:
        for variable in (whole, parts):
            for bad in (-1, 2**50, 2**62):
                with pytest.raises(
                    errors.InvalidArgumentError, match="expected a cursor that an earlier scan"
                ):
                    session.run(variable.scan(cursor=bad))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("kind", STORAGES)
def test_upsert_makes_the_same_variable(kind, parts, tmp_path):
    first = Model(option(kind, tmp_path / "a", 32, 5), "a", parts=parts, optimizer=momentum)
    second = Model(option(kind, tmp_path / "b", 32, 5), "b", parts=parts, optimizer=momentum)
    with initialized_session() as session:
        trained(session, first)
        for piece in first.ev.rows(max_rows=11, columns=["value", "a/Momentum"]):
            written = second.ev.upsert(
                piece.keys,
                piece.columns["value"],
                {"b/Momentum": piece.columns["a/Momentum"]},
                piece.frequencies,
                piece.versions,
            )
            assert session.run(written) == len(piece.keys)
        for _unused_step in range(2):  # slots, too
            for model in (first, second):
                model.run(session, KEYS[::3], step=False)
        for a, b in zip(session.run(first.ev.export()), session.run(second.ev.export())):
            np.testing.assert_array_equal(a, b)


def test_upsert_leaves_what_is_not_given():
    model = Model(None, optimizer=momentum)
    with initialized_session() as session:
        trained(session, model, 1)
        session.run(model.ev.upsert([1, 1000], [[7.0] * 4] * 2))
        assert session.run(model.ev.get_frequency([1, 1000])).tolist() == [1, 0]
        found = collected(model.ev.rows(columns=["ev/Momentum"]))
        np.testing.assert_array_equal(found["ev/Momentum"][found["keys"] == 1], np.ones((1, 4)))
        np.testing.assert_array_equal(model.look_up(session, [1, 1000]), np.full((2, 4), 7.0))


def test_upsert_keeps_refuses_and_takes_the_last():
    ev = make()
    with initialized_session() as session:
        ones, twos = np.ones((2, 4), np.float32), np.full((2, 4), 2.0, np.float32)
        assert session.run(ev.upsert([1, 2], ones)) == 2
        with pytest.raises(errors.AlreadyExistsError, match="found a row of key 2"):
            session.run(ev.upsert([3, 2], twos, if_exists="error"))
        assert session.run(ev.total_count()) == 2
        assert session.run(ev.upsert([3, 2], twos, if_exists="keep")) == 1
        with pytest.raises(errors.InvalidArgumentError, match="distinct keys, found key 9 twice"):
            session.run(ev.upsert([9, 9], ones))
        assert session.run(ev.upsert([9, 9], [[5.0] * 4, [6.0] * 4], repeats="last")) == 1
        values = session.run(tf.nn.embedding_lookup(ev, [1, 2, 3, 9]))
        assert values[:, 0].tolist() == [1.0, 1.0, 2.0, 6.0]


def test_bad_input_of_upsert_changes_nothing():
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
    with pytest.raises(ValueError):
        ev.upsert([1, 2], ones)
    with initialized_session() as session:
        for message, arguments in (
            ("expected columns of 'value', found 'm'", dict(slots={"m": ones})),
            (r"expected frequencies in \[0, 2\^32\), found -1", dict(frequencies=[-1])),
            ("expected 1 versions, found 2", dict(versions=[1, 2])),
            (
                "expected finite numbers in column 'value', found nan for key 1",
                dict(values=ones * np.nan, check_finite=True),
            ),
        ):
            with pytest.raises(errors.InvalidArgumentError, match=message):
                session.run(ev.upsert([1], **arguments))
        assert session.run(ev.total_count()) == 0


def test_clear_empties_a_variable(tmp_path):
    model = Model(option("DRAM_SSDHASH", tmp_path), parts=2)
    with initialized_session() as session:
        before = model.look_up(session, KEYS)
        trained(session, model)
        session.run(model.ev.clear())
        assert session.run(model.ev.total_count()) == 0
        np.testing.assert_array_equal(model.look_up(session, KEYS), before)
        trained(session, model, 1)
        assert session.run(model.ev.total_count()) == len(KEYS)


def test_set_budget_changes_the_rows_of_dram(tmp_path):
    model = Model(option("DRAM_SSDHASH", tmp_path, row_bytes=16, rows=50))
    with initialized_session() as session:
        trained(session, model)
        for rows in (10, 80):
            session.run(model.ev.set_budget(rows * 16))
            model.look_up(session, KEYS)
            session.run(model.drain)
            assert model.stats(session)["tiers"][0]["rows"] == rows
        with pytest.raises(errors.InvalidArgumentError, match="at least"):
            session.run(model.ev.set_budget(3))


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

"""Rows of damaged SSDHASH instances, read by engine.salvage and its tool."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from engine_util import STRESS
from engine_util import by_key
from engine_util import content
from engine_util import flip
from engine_util import kept
from engine_util import train

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import engine
from tf_multitier.tools import salvage as salvage_tool


def segments(path):
    below = os.path.join(path, "ssdhash")
    return sorted(os.path.join(below, name) for name in os.listdir(below) if name.endswith(".seg"))


@pytest.fixture
def instance(tmp_path):
    """A closed SSDHASH instance of several segments, and its rows in `content`'s form."""
    with kept(tmp_path / "store", "SSDHASH") as table:
        train(table, np.arange(300))
        path = table.path
    for _ in range(3):  # a segment each
        with engine.Table.open(path) as table:
            train(table, np.arange(100))
            table.remove([200])
            expected = content(table)
    return path, expected


def test_salvage_of_a_whole_instance_gives_all_rows(instance, tmp_path, capsys):
    path, expected = instance
    found = engine.salvage(path)
    assert by_key(found.rows) == expected
    assert (
        found.damage == []
        and not len(found.stale_keys)
        and not len(found.lost_keys)
        and found.segments == len(segments(path))
    )
    assert salvage_tool.main([path, str(tmp_path / "out.npz")]) == 0
    assert "299 rows saved" in capsys.readouterr().out
    table = engine.Table(dim=4)
    table.import_rows(checkpoint.load_npz(tmp_path / "out.npz"))
    assert content(table) == expected
    assert content(engine.Table.open(path)) == expected  # nothing was changed, or left locked


def test_salvage_gives_no_wrong_row_wherever_bits_are_flipped(instance, tmp_path):
    path, expected = instance
    random = np.random.default_rng(1)
    older = {}  # of each key all rows that it ever had, from a copy of the oldest files on
    found_all = 0
    for turn in range(300 if STRESS else 60):
        copy = str(tmp_path / "copy")
        shutil.copytree(path, copy)
        for file in segments(copy):
            for _ in range(random.integers(0, 4)):
                flip(file, int(random.integers(os.path.getsize(file))), int(random.integers(8)))
        found = engine.salvage(copy)
        rows = by_key(found.rows)
        suspects = set(found.stale_keys.tolist()) | set(found.lost_keys.tolist())
        sealed = not any("header" in line for line in found.damage)
        for key, row in rows.items():
            if key in expected and row == expected[key]:
                continue
            assert key in suspects or not sealed or found.damaged_records, (turn, key)
            older.setdefault(key, set()).add(row)
        assert 200 not in rows or found.damage
        found_all += rows == expected
        shutil.rmtree(copy)
    assert all(len(rows) <= 4 for rows in older.values())  # real older rows, nothing made up
    assert found_all > 0


def test_salvage_reads_a_segment_whose_header_is_damaged(instance, capsys, tmp_path):
    path, expected = instance
    damaged = segments(path)[0]
    flip(damaged, 20)
    with pytest.raises(engine.DataLossError, match=os.path.basename(damaged)):
        engine.Table.open(path)
    assert by_key(engine.salvage(path).rows) == expected
    assert salvage_tool.main([path, str(tmp_path / "out")]) == 1
    assert os.path.basename(damaged) in capsys.readouterr().out


@pytest.mark.parametrize("how", ["deleted", "cut"])
def test_salvage_names_every_listed_segment_that_is_missing_or_cut(how, instance, capsys, tmp_path):
    path, expected = instance
    for number, file in enumerate(segments(path)):
        copy = shutil.copytree(path, tmp_path / str(number))
        lost = os.path.join(copy, os.path.relpath(file, path))
        os.remove(lost) if how == "deleted" else os.truncate(lost, 4096 * 2)
        found = engine.salvage(copy)
        assert found.missing_segments == (1 if how == "deleted" else 0)
        assert [
            line
            for line in found.damage
            if f"'{lost}'" in line and "expected" in line and "records" in line
        ], found.damage
        assert set(by_key(found.rows)) <= set(expected) | {200}
        assert salvage_tool.main([str(copy), str(tmp_path / "out")]) == 1
        assert os.path.basename(lost) in capsys.readouterr().out


def test_salvage_says_that_the_list_is_missing(instance, tmp_path):
    path, expected = instance
    os.remove(os.path.join(path, "ssdhash", "ssd.list"))
    found = engine.salvage(path)
    assert by_key(found.rows) == expected
    assert len(found.damage) == 1 and "ssd.list' is missing" in found.damage[0]


def test_salvage_of_nothing_says_so(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match="expected segment files, found none"):
        engine.salvage(tmp_path)
    assert salvage_tool.main([str(tmp_path / "none"), str(tmp_path / "out")]) == 2
    assert "none" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["absent/out.npz", "file/out.npz", "directory"])
def test_salvage_refuses_an_output_that_cannot_be_written(out, tmp_path, capsys, monkeypatch):
    with kept(tmp_path / "store", "SSDHASH") as table:
        train(table, [1])
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "directory").mkdir()
    monkeypatch.setattr(engine, "salvage", lambda *_: pytest.fail("the rows were read"))
    out = str(tmp_path / out)
    assert salvage_tool.main([table.path, out]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"OUT '{out}' cannot be written: ") and error.count("\n") == 1


def test_salvage_names_an_output_that_fails_later(tmp_path, capsys, monkeypatch):
    with kept(tmp_path / "store", "SSDHASH") as table:
        train(table, [1])

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_npz", fail)
    out = str(tmp_path / "out.npz")
    assert salvage_tool.main([table.path, out]) == 2
    assert capsys.readouterr().err == f"OUT '{out}' cannot be written: No space left on device\n"


@pytest.mark.parametrize("dtype", ["uint64", "uint32"])
def test_salvage_gives_keys_of_the_type_of_the_table(dtype, tmp_path, capsys):
    keys = np.array([0, 1, np.iinfo(dtype).max], dtype)
    with kept(tmp_path / "store", "SSDHASH", key_dtype=dtype) as table:
        train(table, keys)
        path, expected = table.path, table.export()
    found = engine.salvage(path)
    assert found.rows.keys.dtype == found.stale_keys.dtype == found.lost_keys.dtype == dtype
    assert by_key(found.rows) == by_key(expected)
    assert by_key(engine.salvage(os.path.join(path, "ssdhash")).rows) == by_key(expected)
    engine.Table(dim=4, key_dtype=dtype).import_rows(found.rows)
    with pytest.raises(ValueError, match=f"key_dtype: expected {dtype}, as '.*' says, found int64"):
        engine.salvage(path, "int64")

    os.remove(os.path.join(path, "instance.table"))
    out = str(tmp_path / "out.npz")
    with pytest.raises(engine.FailedPreconditionError, match="type of the keys.*pass key_dtype"):
        engine.salvage(path)
    assert salvage_tool.main([path, out]) == 2 and "pass key_dtype" in capsys.readouterr().err
    assert salvage_tool.main([path, out, f"--key_dtype={dtype}"]) == 0
    assert by_key(checkpoint.load_npz(out)) == by_key(expected)
    with pytest.raises(ValueError, match="key_dtype: expected one of int64, uint64, uint32"):
        engine.salvage(path, "int8")


def test_salvage_knows_the_keys_of_a_kept_variable(tmp_path):
    keys = np.array([1, 2**64 - 1], np.uint64)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        option = tf_multitier.EmbeddingVariableOption(
            storage_option=tf_multitier.StorageOption("SSDHASH", str(tmp_path), keep=True)
        )
        ev = tf_multitier.get_embedding_variable("ev", 4, key_dtype=tf.uint64, ev_option=option)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(ev.upsert(keys, np.zeros((2, 4), np.float32)))
    (file,) = tmp_path.rglob("instance.variable")
    path = str(file.parent)
    assert set(engine.salvage(path).rows.keys) == set(keys)
    original = file.read_bytes()
    for wrong, message in [
        (b"no JSON", "instance.variable' is damaged"),
        (original.replace(b"key_dtype", b"key_dtypo"), "instance.variable' is damaged .* checksum"),
        (original.replace(b"variable 1", b"variable 2"), "expected format version 1, found 2"),
    ]:
        assert wrong != original
        file.write_bytes(wrong)
        with pytest.raises(engine.FailedPreconditionError, match=message):
            engine.salvage(path)
        assert set(engine.salvage(path, "uint64").rows.keys) == set(keys)


@pytest.mark.parametrize("key", [2**32 + 1, 2**32, -1, -(2**63)])
def test_salvage_refuses_uint32_for_keys_out_of_its_range(key, tmp_path, capsys):
    with kept(tmp_path / "store", "SSDHASH") as table:
        train(table, [1, key])
        path, expected = table.path, by_key(table.export())
    options = os.path.join(path, "instance.table")
    os.remove(options)
    message = f"key_dtype: expected int64 or uint64 for '.*', which has key {key}, found uint32"
    with pytest.raises(ValueError, match=message):
        engine.salvage(path, "uint32")
    out = tmp_path / "out.npz"
    assert salvage_tool.main([path, str(out), "--key_dtype=uint32"]) == 2 and not out.exists()
    assert f"which has key {key}, found uint32" in capsys.readouterr().err
    assert by_key(engine.salvage(path, "int64").rows) == expected
    assert set(engine.salvage(path, "uint64").rows.keys.tolist()) == {1, key % 2**64}

    with engine.Table(
        1, storage_type="SSDHASH", storage_path=tmp_path / "other", keep=True, key_dtype="uint32"
    ) as other:
        shutil.copy(os.path.join(other.path, "instance.table"), options)
    with pytest.raises(engine.DataLossError, match=f"expected keys of uint32.* found key {key};"):
        engine.salvage(path)


def test_salvage_refuses_uint32_for_lost_keys_out_of_its_range(tmp_path):
    with kept(tmp_path / "store", "SSDHASH") as table:
        train(table, [1, 2**32 + 1])
        path = table.path
    (file,) = segments(path)
    for offset in range(0, os.path.getsize(file), 8):
        copy = shutil.copytree(path, tmp_path / "copy")
        flip(segments(copy)[0], offset)
        lost = engine.salvage(copy).lost_keys.tolist()
        if lost == [2**32 + 1]:
            break
        shutil.rmtree(copy)
    assert lost == [2**32 + 1]
    os.remove(copy / "instance.table")
    with pytest.raises(ValueError, match="which has key 4294967297, found uint32"):
        engine.salvage(copy, "uint32")


def test_salvage_knows_the_type_of_the_keys_before_it_reads(instance, monkeypatch):
    path, expected = instance
    read = []
    monkeypatch.setattr(engine.salvaged._engine, "salvage", read.append)
    with pytest.raises(ValueError, match="key_dtype: expected int64, as '.*' says, found uint64"):
        engine.salvage(path, "uint64")
    options = os.path.join(path, "instance.table")
    os.rename(options, options + ".away")
    with pytest.raises(
        engine.FailedPreconditionError,
        match="found: no file instance.table or instance.variable; pass key_dtype",
    ):
        engine.salvage(path)
    assert read == []
    os.rename(options + ".away", options)
    monkeypatch.undo()
    assert by_key(engine.salvage(path).rows) == expected  # a refusal leaves nothing locked


def _newer(path):
    with open(path, "rb") as file:
        text = file.read()
    with open(path, "wb") as file:
        file.write(text.replace(b"multitier-table 1", b"multitier-table 2"))


def _unreadable(path):
    os.remove(path)
    os.mkdir(path)


@pytest.mark.parametrize(
    "spoil, message",
    [(_newer, "expected format version 1, found 2"), (_unreadable, "Is a directory")],
)
def test_salvage_asks_for_the_type_if_it_cannot_read_the_options(
    spoil, message, instance, tmp_path, capsys
):
    path, expected = instance
    spoil(os.path.join(path, "instance.table"))
    with pytest.raises(
        engine.FailedPreconditionError,
        match=f"instance.table.*{message}.*|{message}.*instance.table",
    ):
        engine.salvage(path)
    out = str(tmp_path / "out.npz")
    assert salvage_tool.main([path, out]) == 2
    error = capsys.readouterr().err
    assert message in error and error.endswith("pass key_dtype\n") and error.count("\n") == 1
    assert by_key(engine.salvage(path, "int64").rows) == expected
    assert salvage_tool.main([path, out, "--key_dtype=int64"]) == 0
    assert by_key(checkpoint.load_npz(out)) == expected


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_salvage_needs_no_matrix(how, tmp_path):
    keys = np.array([1, 2**64 - 1], np.uint64)
    matrix = np.ones((2, 4), np.float32)
    with kept(
        tmp_path, "SSDHASH", key_dtype="uint64", matrix=matrix, initializer="matrix"
    ) as table:
        train(table, keys)
        path, expected = table.path, by_key(table.export())
    file = os.path.join(path, "instance.matrix")
    os.remove(file) if how == "deleted" else flip(file, 0)
    with pytest.raises(engine.DataLossError, match="instance.matrix"):
        engine.Table.open(path)
    found = engine.salvage(path)
    assert found.rows.keys.dtype == np.uint64 and by_key(found.rows) == expected

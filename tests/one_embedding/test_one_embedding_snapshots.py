"""Snapshots of embeddings, and the readers and writers of their rows."""

import contextlib
import os
import shutil
import subprocess

import forks
import keras
import numpy as np
import pytest
import tensorflow as tf
from one_embedding_util import F
from one_embedding_util import embedding
from one_embedding_util import ssd_store
from one_embedding_util import table_rows
from one_embedding_util import tables_of
from paths import environment
from worlds import needs_eager

from tf_multitier import one_embedding
from tf_multitier.checkpoint import __main__ as command
from tf_multitier.one_embedding import snapshots

pytestmark = needs_eager
DIM = 4


def trained(path, keys, optimizer=None, **kwargs):
    """An embedding of one table, and its optimizer, trained on keys."""
    made = embedding(path, tables_of(1), DIM, **kwargs)
    optimizer = one_embedding.Optimizer(optimizer or keras.optimizers.Adam(0.1), [made])
    train(made, optimizer, keys)
    return made, optimizer


def train(made, optimizer, keys):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(made(np.asarray(keys, np.int64)) ** 2)
    gradients = tape.gradient(loss, made.parameters())
    optimizer.apply_gradients(zip(gradients, made.parameters()))


def everything(made):
    """{key: value and states}."""
    rows = made.variable.export_rows()
    order = np.argsort(rows.keys)
    return np.asarray(rows.keys)[order], np.asarray(rows.rows)[order]


def _convert(*arguments):
    return command.main(["convert", *map(str, arguments)])


def same(first, second):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def rank(path):
    return str(path / "0-1")


def read_all(path, name, storage_dim, **kwargs):
    """Keys and rows of a snapshot, in the order of keys."""
    types = {"key_type": tf.int64, "value_type": tf.float32, **kwargs}
    with one_embedding.make_persistent_table_reader(
        [rank(path)], name, storage_dim=storage_dim, **types
    ) as reader:
        pieces = list(reader)
    assert all(0 < len(keys) <= 65_536 for keys, _ in pieces)
    keys, rows = map(np.concatenate, zip(*pieces))
    order = np.argsort(keys)
    return keys[order], rows[order]


def test_a_relative_path_is_that_of_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made, _ = trained("a", range(3))
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "b")
    made.save_snapshot("one")
    assert (tmp_path / "a" / "0-1" / "snapshots" / "one").is_dir() and made.snapshots() == ["one"]


@pytest.mark.parametrize("store", ["device", "ssd"])
def test_a_snapshot_gives_rows_and_states_back_to_the_bit(store, tmp_path):
    one = {"store": ssd_store(tmp_path / "a", 16, 3 * DIM)} if store == "ssd" else {}
    made, optimizer = trained(tmp_path / "a", range(100), **one)
    made.save_snapshot("day-1")
    before = everything(made)
    train(made, optimizer, range(50, 150))
    made.save_snapshot("day-2")
    assert made.snapshots() == ["day-1", "day-2"]
    made.load_snapshot("day-1")
    same(everything(made), before)
    made.load_snapshot("day-2")
    made.delete_snapshot("day-2")
    assert made.snapshots() == ["day-1"] and len(table_rows(made)) == 150
    # A folder that was copied alone, into another store and name.
    other = embedding(tmp_path / "b", tables_of(1), DIM, name="other")
    shutil.copytree(
        os.path.join(rank(tmp_path / "a"), "snapshots", "day-1"),
        os.path.join(rank(tmp_path / "b"), "snapshots", "copy"),
    )
    other.load_snapshot("copy")
    same(everything(other), before)


def test_a_load_goes_on_with_another_optimizer(tmp_path):
    made, _ = trained(tmp_path / "a", range(10))
    made.save_snapshot("adam")
    values = made(np.arange(10)).numpy()
    other, sgd = trained(tmp_path / "b", range(5), keras.optimizers.Adagrad(0.1), name="other")
    os.makedirs(os.path.join(rank(tmp_path / "b"), "snapshots"), exist_ok=True)
    shutil.copytree(
        os.path.join(rank(tmp_path / "a"), "snapshots", "adam"),
        os.path.join(rank(tmp_path / "b"), "snapshots", "adam"),
    )
    other.load_snapshot("adam")
    np.testing.assert_array_equal(other(np.arange(10)), values)
    train(other, sgd, range(10))
    gradients = 2 * values
    expected = values - F(0.1) * gradients / np.sqrt(F(0.1) + gradients * gradients)
    np.testing.assert_allclose(other(np.arange(10)), expected, rtol=1e-5)


def test_what_cannot_be_saved_or_loaded_changes_nothing(tmp_path):
    made, _ = trained(tmp_path / "a", range(10))
    made.save_snapshot("day-1")
    before = everything(made)
    with pytest.raises(FileNotFoundError, match="expected one of those there are, day-1"):
        made.load_snapshot("day-2")
    with pytest.raises(FileNotFoundError, match="day-1"):
        made.delete_snapshot("day-2")
    with pytest.raises(FileExistsError, match="delete_snapshot"):
        made.save_snapshot("day-1")
    for name in ("", "a/b", "..", "*"):
        with pytest.raises(ValueError, match="snapshot_name"):
            made.save_snapshot(name)
    folder = os.path.join(rank(tmp_path / "a"), "snapshots", "day-1")
    [rows] = [n for n in os.listdir(folder) if "data-0" not in n and n != "rows.index"]
    with open(os.path.join(folder, rows), "r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(b"damage")
    with pytest.raises(tf.errors.DataLossError, match=rows):
        made.load_snapshot("day-1")
    wide = embedding(tmp_path / "b", tables_of(1), DIM + 1, name="wide")
    with pytest.raises(FileNotFoundError, match="none"):
        wide.load_snapshot("day-1")
    with pytest.raises(RuntimeError, match="expected eager execution"):
        tf.function(lambda: made.save_snapshot("traced"))()
    same(everything(made), before)
    assert made.snapshots() == ["day-1"]


_CHILD = """
import os, sys, numpy as np, tensorflow as tf
from one_embedding_util import embedding, tables_of
import tf_multitier
made = embedding(sys.argv[1], tables_of(1), 4)
made.variable.upsert(np.arange(20_000), np.ones((20_000, 4)))
made.save_snapshot("whole")
print("saved", flush=True)
for number in range(1000):
    made.save_snapshot(f"n{number}")
"""


def test_kill_9_leaves_whole_snapshots_alone(tmp_path):
    environ = environment(TF_CPP_MIN_LOG_LEVEL="3")
    for delay in (0.0, 0.013, 0.05):
        path = tmp_path / str(delay)
        with forks.start(["-c", _CHILD, path], env=environ) as child:
            assert child.stdout.readline() == "saved\n"
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(delay)
        made = embedding(path, tables_of(1), DIM)
        assert "whole" in made.snapshots()
        for name in made.snapshots():
            made.variable.clear()
            made.load_snapshot(name)
            assert made.variable.total_count() == 20_000
        made.save_snapshot("after")
        assert sorted(os.listdir(os.path.join(rank(path), "snapshots"))) == made.snapshots()
        del made


def test_a_snapshot_syncs_what_it_wrote_and_not_what_it_linked(tmp_path, monkeypatch):
    made = embedding(tmp_path, tables_of(1), 64, store=ssd_store(tmp_path, 500, 64))
    made.variable.upsert(np.arange(20_000), np.ones([20_000, 64], F))
    made.save_snapshot("first")
    synced = []  # files

    def sync(path):
        synced.append((path, os.stat(path).st_ino))

    monkeypatch.setattr(snapshots, "sync", sync)
    made.save_snapshot("second")
    folder = os.path.join(rank(tmp_path), "snapshots")
    files = [os.stat(os.path.join(folder, "second", f)) for f in os.listdir(f"{folder}/second")]
    written = {file.st_ino for file in files if file.st_nlink == 1}
    assert len(files) > len(written) > 2  # index, TensorFlow's data, rows
    *its, of_names, of_folders = synced
    assert {inode for _, inode in its} == written
    assert of_names[1] == os.stat(f"{folder}/second").st_ino
    assert of_folders[0] == folder


def test_a_second_snapshot_writes_what_changed_and_not_the_cache(tmp_path):
    made = embedding(tmp_path, tables_of(1), 64, store=ssd_store(tmp_path, 40_000, 64))
    made.variable.upsert(np.arange(100_000), np.ones([100_000, 64], F))
    made.save_snapshot("first")
    made.variable.upsert(np.arange(0, 100_000, 100), np.full([1000, 64], 2, F))
    expected = everything(made)
    made.save_snapshot("second")
    folder = os.path.join(rank(tmp_path), "snapshots", "second")
    files = [os.stat(os.path.join(folder, name)) for name in os.listdir(folder)]
    # What is in no full segment of 1 MiB yet; the cache has 10 MiB.
    assert sum(file.st_size for file in files if file.st_nlink == 1) < 4 << 20
    made.load_snapshot("second")
    same(everything(made), expected)


def test_readers_and_writers_equal_export(tmp_path):
    made, optimizer = trained(tmp_path / "a", range(-50, 70_000))
    train(made, optimizer, range(100))
    made.save_snapshot("day-1")
    expected = everything(made)
    keys, rows = read_all(tmp_path / "a", "day-1", 3 * DIM)
    same((keys, rows), expected)
    # One rank becomes two, and two become one.
    halves = [str(tmp_path / half) for half in ("x", "y")]
    with one_embedding.make_persistent_table_writer(
        halves, "day-1", tf.int64, tf.float32, 3 * DIM
    ) as writer:
        for at in range(0, len(keys), 10_000):
            writer.write(keys[at : at + 10_000], rows[at : at + 10_000])
    reader = one_embedding.make_persistent_table_reader(
        halves, "day-1", tf.int64, tf.float32, 3 * DIM
    )
    sizes = []
    with one_embedding.make_persistent_table_writer(
        [rank(tmp_path / "a")], "again", tf.int64, tf.float32, 3 * DIM
    ) as writer:
        for its_keys, its_rows in reader:
            writer.write(its_keys, its_rows)
            sizes.append(len(its_keys))
    assert sum(sizes) == len(keys)
    made.variable.clear()
    made.load_snapshot("again")
    same(everything(made), expected)
    same(read_all(tmp_path / "a", "again", 3 * DIM), expected)
    # Another embedding, before its optimizer has states, and after.
    other = embedding(tmp_path / "b", tables_of(1), DIM, name="other")
    os.makedirs(os.path.join(rank(tmp_path / "b"), "snapshots"))
    os.rename(
        os.path.join(rank(tmp_path / "a"), "snapshots", "again"),
        os.path.join(rank(tmp_path / "b"), "snapshots", "again"),
    )
    with pytest.raises(ValueError, match="storage_dim: expected 4, as no optimizer .* found 12"):
        other.load_snapshot("again")
    one_embedding.Optimizer(keras.optimizers.Adam(0.1), [other]).build()
    other.load_snapshot("again")
    same(everything(other), expected)


@pytest.mark.parametrize("key_type", [tf.int32, tf.uint32, tf.uint64])
def test_readers_and_writers_have_every_type_of_keys(key_type, tmp_path):
    keys = np.array([0, 1, key_type.max, key_type.max // 2, key_type.min], key_type.as_numpy_dtype)
    keys = np.unique(keys)
    rows = np.arange(len(keys) * DIM, dtype=F).reshape(-1, DIM)
    with one_embedding.make_persistent_table_writer(
        [rank(tmp_path)], "w", key_type, tf.float32, DIM
    ) as writer:
        writer.write(keys, rows)
    made = embedding(tmp_path, tables_of(1), DIM, key_type=key_type)
    made.load_snapshot("w")
    np.testing.assert_array_equal(made(keys), rows)
    same(read_all(tmp_path, "w", DIM, key_type=key_type), (keys, rows))
    with pytest.raises(ValueError, match="key_type: expected"):
        read_all(tmp_path, "w", DIM, key_type=tf.int64 if key_type.is_unsigned else tf.uint64)


def test_a_bad_reader_or_writer_says_what_is_right(tmp_path):
    made, _ = trained(tmp_path, range(10))
    made.save_snapshot("day-1")
    path = [rank(tmp_path)]
    reader = one_embedding.make_persistent_table_reader
    with pytest.raises(ValueError, match=r"storage_dim: expected 12 \(4 of 'value'"):
        reader(path, "day-1", tf.int64, tf.float32, DIM)
    with pytest.raises(ValueError, match="value_type: expected float32"):
        reader(path, "day-1", tf.int64, tf.float16, 3 * DIM)
    with pytest.raises(ValueError, match="physical_block_size: expected 512 or 4096"):
        reader(path, "day-1", tf.int64, tf.float32, 3 * DIM, 1000)
    with pytest.raises(FileNotFoundError, match="day-1"):
        reader(path, "day-2", tf.int64, tf.float32, 3 * DIM)
    with pytest.raises(ValueError, match="paths: expected a folder for each rank"):
        one_embedding.make_persistent_table_writer(
            [path[0], path[0] + "/."], "w", tf.int64, tf.float32, DIM
        )
    writer = one_embedding.make_persistent_table_writer(path, "w", tf.int64, tf.float32, DIM)
    with pytest.raises(TypeError, match="keys: expected int64, found int32"):
        writer.write(np.arange(2, dtype=np.int32), np.zeros((2, DIM), F))
    with pytest.raises(ValueError, match=r"values \[n, 4\], found \[2\] and \[2, 3\]"):
        writer.write(np.arange(2), np.zeros((2, DIM - 1), F))
    made.save_snapshot("while a writer is open")
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(np.arange(2), np.zeros((2, DIM), F))

    class Stop(Exception):
        pass

    with pytest.raises(Stop):
        with one_embedding.make_persistent_table_writer(
            path, "stopped", tf.int64, tf.float32, DIM
        ) as writer:
            writer.write(np.arange(2), np.zeros((2, DIM), F))
            raise Stop
    assert made.snapshots() == ["day-1", "w", "while a writer is open"]


def test_checkpoints_have_the_rows_of_the_module(tmp_path):
    made, optimizer = trained(tmp_path / "a", range(10))
    saved = tf.train.Checkpoint(embedding=made, optimizer=optimizer).save(str(tmp_path / "c"))
    before = everything(made)
    other = embedding(tmp_path / "b", tables_of(1), DIM, name="other")
    its = one_embedding.Optimizer(keras.optimizers.Adam(0.1), [other])
    tf.train.Checkpoint(embedding=other, optimizer=its).restore(saved)
    same(everything(other), before)
    train(made, optimizer, range(10))
    train(other, its, range(10))
    same(everything(other), everything(made))


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_values_of_16_bits_are_saved_and_written(dtype, tmp_path):
    made = embedding(tmp_path, tables_of(1), DIM, dtype=dtype)
    optimizer = one_embedding.Optimizer(keras.optimizers.SGD(0.1, momentum=0.5), [made])
    train(made, optimizer, range(10))
    made.save_snapshot("day-1")
    before = everything(made)
    keys, rows = read_all(tmp_path, "day-1", 2 * DIM)
    same((keys, rows), before)
    with one_embedding.make_persistent_table_writer(
        [rank(tmp_path)], "w", tf.int64, tf.float32, 2 * DIM
    ) as writer:
        writer.write(keys, rows)
    train(made, optimizer, range(10))
    made.load_snapshot("w")
    same(everything(made), before)


def test_a_snapshot_of_an_embedding_goes_out_and_comes_back(tmp_path):
    made, _ = trained(tmp_path, [3, -3, -(2**63)])
    made.save_snapshot("day-1")
    expected = made.variable.export_rows()
    out, snapshots = tmp_path / "out", tmp_path / "0-1" / "snapshots"
    assert (
        _convert("--from=one_embedding", snapshots / "day-1", "--to=npz", out, "--tables=user") == 0
    )
    assert _convert("--from=npz", out, "--to=one_embedding", snapshots / "day-2") == 0
    made.variable.clear()
    made.load_snapshot("day-2")
    found = made.variable.export_rows()
    for name in ("keys", "rows", "frequencies", "versions"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))

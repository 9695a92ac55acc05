"""checkpoint.Writer: counted keys, matrices of initial values, frozen tables, and several Writers of one prefix."""

import os
import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier.checkpoint import convert
from tf_multitier import engine

v1 = tf.compat.v1
DIM = 2


def rows_of(keys, counted=(), value=0.0):
    n, m = len(keys), len(counted)
    return engine.Rows(
        [("value", DIM, 0.0)],
        np.asarray(keys, np.int64),
        np.ones(n, np.int64),
        np.zeros(n, np.int64),
        np.full((n, DIM), value, np.float32),
        np.asarray(counted, np.int64),
        np.full(m, 2, np.int64),
        np.zeros(m, np.int64),
    )


@pytest.mark.parametrize(
    "keys, counted, message",
    [
        ([1, 2], [7, 8, 7], "expected each counted key once, found key 7 again"),
        ([1, 2], [7, 2], "expected counted keys without rows, found key 2"),
    ],
)
@pytest.mark.parametrize("partitions", [1, 3])
def test_counted_keys_that_come_twice_or_have_rows_are_refused(
    tmp_path, keys, counted, message, partitions
):
    with pytest.raises(ValueError, match=message):
        with checkpoint.Writer(str(tmp_path / "model")) as writer:
            writer.add_table("ev", rows_of(keys, counted), partitions)
    assert os.listdir(tmp_path) == []


def test_of_several_writers_of_one_prefix_one_wins_and_its_rows_are_whole(tmp_path):
    path = str(tmp_path / "model")
    together, won, lost = threading.Barrier(6), [], []

    def write(number):
        try:
            with checkpoint.Writer(path) as writer:
                writer.add_table("ev", rows_of(range(number + 1), value=number), 2)
                writer.add_tensor("dense", np.full(10_000, number))
                together.wait()
            won.append(number)
        except engine.AlreadyExistsError:
            lost.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and len(lost) == 5
    saved = checkpoint.load(path)
    assert saved.damage() == [] and set(saved.tensor("dense")) == set(won)
    rows = saved.tables["ev"].read()
    assert len(rows) == won[0] + 1 and set(rows.data.ravel()) == set(won)
    assert len(os.listdir(tmp_path)) == 5  # index, data, two parts, `checkpoint`


def test_a_matrix_of_initial_values_is_written_and_restored(tmp_path):
    matrix = np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM)
    initializer = dict(kind="matrix", a=0.0, b=0.0, seed=0, matrix_rows=3)
    path, copy = str(tmp_path / "model"), str(tmp_path / "copy")
    with checkpoint.Writer(path) as writer:
        writer.add_table("ev", rows_of([4]), 2, initializer, matrix=matrix)
        for wrong in (None, matrix[:2], matrix[:, :1]):
            with pytest.raises(ValueError, match=r"matrix of initial values of shape \[3, 2\]"):
                writer.add_table("other", rows_of([4]), 1, initializer, matrix=wrong)
        with pytest.raises(ValueError, match=r"shape \[0, 2\], found \[3, 2\]"):
            writer.add_table("other", rows_of([4]), matrix=matrix)
    assert convert.main(["--from=checkpoint", path, "--to=checkpoint", copy]) == 0
    for prefix in (path, copy):
        np.testing.assert_array_equal(checkpoint.load(prefix).tables["ev"].matrix(), matrix)
        with tf.Graph().as_default(), v1.Session() as session:
            ev = tf_multitier.get_embedding_variable("ev", DIM)
            session.run(ev.restore_from(prefix))
            found = session.run(tf.nn.embedding_lookup(ev, [4, 5, 7, -1]))
        np.testing.assert_array_equal(found, [[0, 0], matrix[2], matrix[1], matrix[2]])


def test_frozen_tables_of_the_command_line_and_what_is_refused(tmp_path, capsys):
    path, frozen = str(tmp_path / "model"), str(tmp_path / "frozen")
    with checkpoint.Writer(path) as writer:
        writer.add_table("ev", rows_of(range(5), [9], value=1 / 3))
        with pytest.raises(ValueError, match="frozen: expected None, float32.*found 'int8'"):
            writer.add_table("other", rows_of([1]), frozen="int8")
    command = ["--from=checkpoint", path, "--to=checkpoint", frozen, "--frozen=float16"]
    assert convert.main(command) == 0
    table = checkpoint.load(frozen).tables["ev"]
    assert table.frozen and table.dtype == "float16" and len(table.read().counted_keys) == 0
    assert set(table.read().data.ravel()) == {np.float32(np.float16(1 / 3))}
    with pytest.raises(SystemExit):
        convert.main(["--from=checkpoint", path, "--to=npz", frozen, "--frozen=float16"])
    assert "--frozen: expected --to=checkpoint" in capsys.readouterr().err


def test_a_second_name_takes_the_tensors_of_its_table_alone(tmp_path):
    path = str(tmp_path / "model")
    with checkpoint.Writer(path) as writer:
        writer.add_table("aa", rows_of([1, 2], value=1.0), 2)
        writer.add_table("aa/partner", rows_of([3], value=2.0))
        writer.add_name("x", "aa")
    tables = checkpoint.load(path).tables
    assert list(tables) == ["aa", "aa/partner"] and tables["aa/partner"].names == ["aa/partner"]
    assert tables["aa"].names == ["aa", "x"] and tables["x"] is tables["aa"]
    assert sorted(tables["x"].read().keys.tolist()) == [1, 2]


def test_a_manifest_of_another_version_is_refused_with_the_cure(tmp_path):
    path, name = str(tmp_path / "model"), "ev/part_0-of-1/manifest"
    with checkpoint.Writer(path) as writer:
        writer.add_table("ev", rows_of([1]))
    reader = tf.train.load_checkpoint(path)
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    assert b'"format_version": 1,' in tensors[name]
    tensors[name] = tensors[name].replace(b'"format_version": 1,', b'"format_version": 2,')
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    said = "expected format version 1, found 2: use the release that wrote it"
    with pytest.raises(NotImplementedError, match=f"manifest of part 0: manifest: {said}"):
        checkpoint.load(path)

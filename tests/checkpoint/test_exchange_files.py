"""Files of other programs, as tf_multitier.checkpoint and convert read them: Parquet, NumPy, raw, DeepRec, plain TensorFlow."""

import os
import re

import numpy as np
import pytest
import tensorflow as tf

from tf_multitier import checkpoint
from tf_multitier.checkpoint import convert
from tf_multitier import engine
from tf_multitier.inspect import __main__ as inspect

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


_FLOAT32 = arrow.float32()


def floats(lists, kind=arrow.list_, dtype=_FLOAT32):
    return arrow.array(lists, kind(dtype))


def loaded(path, **columns):
    parquet.write_table(arrow.table(columns), path)
    return checkpoint.load_parquet(path).read()


_ONE_TWO = [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    "columns, message",
    [
        (dict(key=[1, None], v=floats(_ONE_TWO)), "integers in column 'key', found null"),
        (
            dict(key=[1, 2], frequency=[None, 1], v=floats(_ONE_TWO)),
            "integers in column 'frequency', found null",
        ),
        (
            dict(key=arrow.array([1, 2**64 - 1], arrow.uint64()), v=floats(_ONE_TWO)),
            "fit int64 in column 'key', found uint64",
        ),
        (dict(key=[1.5, 2.0], v=floats(_ONE_TWO)), "fit int64 in column 'key', found double"),
        (
            dict(key=[1, 2, 3], v=floats([[1, 2], [3], [4, 5, 6]])),
            "lists of 2 numbers in column 'v', found a list of 1",
        ),
        (dict(key=[1, 2, 3], v=floats([[1, 2], None, [3, 4, 5, 6]])), "found null"),
        (dict(key=[1, 2], v=floats([[1, 2], [3, None]])), "found null"),
        (dict(key=[1, 2], v=floats([None, [1, 2]])), "in column 'v', found 0 numbers"),
        (dict(key=arrow.array([], arrow.int64()), v=floats([])), "found no rows of list"),
    ],
)
def test_parquet_that_would_give_other_rows_is_refused(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        loaded(str(tmp_path / "rows.parquet"), **columns)


@pytest.mark.parametrize(
    "key, value",
    [
        (arrow.array([5, -6], arrow.int32()), floats(_ONE_TWO)),
        (arrow.array([5, -6]).dictionary_encode(), floats(_ONE_TWO, dtype=arrow.float64())),
        (arrow.array([5, -6]), floats(_ONE_TWO, arrow.large_list)),
    ],
    ids=["int32", "dictionary and float64", "large_list"],
)
def test_parquet_of_other_types_is_read(tmp_path, key, value):
    rows = loaded(str(tmp_path / "rows.parquet"), key=key, v=value)
    assert rows.keys.tolist() == [5, -6] and rows.data.tolist() == _ONE_TWO


def rows_with_slot():
    keys = np.array([1, 2])
    columns = [("value", 1, 0.0), ("slot", 1, 0.5)]
    return engine.Rows(columns, keys, keys, keys, np.ones((2, 2), np.float32))


def test_parquet_that_lost_a_column_is_read(tmp_path):
    """`select` of pyarrow keeps the metadata of the whole table."""
    path = str(tmp_path / "rows.parquet")
    checkpoint.save_parquet(rows_with_slot(), path)
    parquet.write_table(parquet.read_table(path).select(["slot", "key"]), path)
    assert checkpoint.load_parquet(path).columns == [("slot", 1, 0.5)]


def test_two_columns_of_one_name_are_refused(tmp_path):
    rows = rows_with_slot()
    rows.columns = [("value", 1, 0.0), ("key", 1, 0.0)]
    with pytest.raises(ValueError, match="found 'key' twice"):
        checkpoint.save_parquet(rows, tmp_path / "rows.parquet")
    assert os.listdir(tmp_path) == []


def test_file_names_of_other_programs_are_found(tmp_path, capsys):
    for name in ("my table", "100%", "größe"):
        checkpoint.save_parquet(rows_with_slot(), tmp_path / f"{name}.parquet")
    source, out = str(tmp_path), str(tmp_path / "out")
    assert convert.main(["--from=parquet", source, "--to=npz", out]) == 0
    assert sorted(os.listdir(out)) == ["100%25.npz", "gr%C3%B6%C3%9Fe.npz", "my%20table.npz"]
    assert convert.main(["--from=parquet", source, "--to=npz", out, "--tables=my tabel"]) == 2
    expected = "expected one of the tables 100%, größe, my table; found 'my tabel': did you mean 'my table'?"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("key_type", ["int32", "int64", "uint64"])
@pytest.mark.parametrize("value_type", ["float16", "float64"])
def test_npz_of_keys_and_values_is_read(tmp_path, key_type, value_type):
    keys, values = np.array([3, 1], key_type), np.array(_ONE_TWO, value_type)
    np.savez(tmp_path / "user.npz", keys=keys, values=values)
    np.savez_compressed(tmp_path / "item.npz", keys=keys, values=values, frequencies=keys)
    out = str(tmp_path / "out")
    assert convert.main(["--from=npz", str(tmp_path), "--to=checkpoint", out]) == 0
    for name, frequencies in [("user", [0, 0]), ("item", [1, 3])]:
        rows = checkpoint.load(out).tables[name].read()
        order = np.argsort(rows.keys)
        assert rows.keys[order].tolist() == [1, 3]
        assert rows.data[order].tolist() == _ONE_TWO[::-1]
        assert rows.frequencies[order].tolist() == frequencies


@pytest.mark.parametrize(
    "change, found",
    [
        (dict(keys=np.ones(2)), "keys as float64 [2] in place of integers [n]"),
        (dict(keys=np.ones((2, 1), int)), "keys as int64 [2, 1] in place of integers [n]"),
        (
            dict(values=np.ones(2)),
            "values as float64 [2] in place of float16, float32 or float64 [2, dim]",
        ),
        (dict(values=np.ones((3, 2))), "values as float64 [3, 2] in place of"),
        (dict(values=np.ones((2, 0))), "values as float64 [2, 0] in place of"),
        (dict(values=np.ones((2, 2), int)), "values as int64 [2, 2] in place of float16"),
        (dict(versions=np.ones(3, int)), "versions as int64 [3] in place of integers [2]"),
    ],
)
def test_npz_of_other_arrays_is_refused(tmp_path, change, found):
    path = str(tmp_path / "rows.npz")
    np.savez(path, **dict(dict(keys=np.arange(2), values=np.ones((2, 2))), **change))
    with pytest.raises(
        ValueError, match=re.escape(f"'{path}': expected an .npz file with")
    ) as error:
        checkpoint.load_npz(path)
    assert found in str(error.value)


@pytest.mark.parametrize("content", [b"", b"PK\3\4damaged", b"\x93NUMPY", "other", "array"])
def test_npz_of_other_programs_is_refused(tmp_path, capsys, content):
    path = str(tmp_path / "rows.npz")
    with open(path, "wb") as file:
        if content == "other":
            np.savez(file, keys=np.ones(2))
        elif content == "array":
            np.save(file, np.ones(2))
        else:
            file.write(content)
    assert convert.main(["--from=npz", path, "--to=raw", str(tmp_path / "out")]) == 2
    assert f"'{path}': expected an .npz file with columns, keys" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["raw", "npz", "parquet"])
def test_a_missing_file_is_named(tmp_path, capsys, kind):
    path = str(tmp_path / f"no.{kind}")
    assert convert.main([f"--from={kind}", path, "--to=npz", "out", "--dim=2"]) == 2
    assert path in capsys.readouterr().err


def save(prefix, tensors):
    with checkpoint.Writer(prefix) as writer:
        for name, value in tensors.items():
            writer.add_tensor(name, value)
    return str(prefix)


def deeprec(name, keys, dtype=np.float32, width=2):
    keys = np.asarray(keys)
    return {
        f"{name}-keys": keys,
        f"{name}-values": np.repeat(keys[:, None], width, axis=1).astype(dtype),
        f"{name}-freqs": np.ones(len(keys), np.int64),
    }


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t.pop("user/part_1-values"), "expected tensor 'user/part_1-values', found none"),
        (
            lambda t: [t.pop(name) for name in list(t) if "part_1" in name],
            "expected parts 0 to 2, found no part 1",
        ),
        (
            lambda t: t.update(deeprec("user/part_1", [3], width=3)),
            r"expected shape \[1, 2\] of 'user/part_1-values', found \[1, 3\]",
        ),
    ],
)
def test_deeprec_checkpoints_that_lack_rows_are_refused(tmp_path, change, message):
    tensors = {}
    for part in range(3):
        tensors |= deeprec(f"user/part_{part}", [part, part + 3])
    change(tensors)
    prefix = save(tmp_path / "old", tensors)
    with pytest.raises(engine.DataLossError, match=message):
        checkpoint.load_deeprec(prefix).tables["user"].read()


def test_deeprec_parts_may_be_empty_int32_and_bfloat16(tmp_path):
    tensors = deeprec("user/part_0", np.array([7, -7], np.int32), tf.bfloat16.as_numpy_dtype)
    tensors |= deeprec("user/part_1", np.zeros(0, np.int32), tf.bfloat16.as_numpy_dtype)
    rows = checkpoint.load_deeprec(save(tmp_path / "old", tensors)).tables["user"].read()
    assert rows.keys.tolist() == [7, -7] and rows.data.tolist() == [[7, 7], [-7, -7]]


def test_what_looks_like_deeprec_and_is_not_stays_dense(tmp_path, capsys):
    """The lookup table of a tf.train.Checkpoint, and dense variables of an attention layer."""
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(tf.constant(["a"]), tf.constant([1], tf.int64))
    objects = tf.train.Checkpoint(table=table).save(str(tmp_path / "objects"))
    dense = {f"attention-{n}": np.ones((2, 2), np.float32) for n in ("keys", "values")}
    for prefix, count in ((objects, 4), (save(tmp_path / "dense", dense), 2)):
        found = checkpoint.load_deeprec(prefix)
        assert found.tables == {} and len(found.tensors) == count
        assert inspect.main([prefix]) == 0
        assert capsys.readouterr().out.startswith("checkpoint ")


def test_inspect_takes_initial_values_of_deeprec_slots(tmp_path, capsys):
    prefix = save(tmp_path / "old", deeprec("user", [1, 2]) | deeprec("user/Mine", [2, 1]))
    assert inspect.main([prefix]) == 2
    assert "initial_values['Mine']" in capsys.readouterr().err
    assert inspect.main([prefix, "--initial_value=Mine=0.5"]) == 0

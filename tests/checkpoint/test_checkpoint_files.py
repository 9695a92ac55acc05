"""tf_multitier.checkpoint and its convert: rows of checkpoints, and of other systems' files, without a graph."""

import json
import os
import shutil
import struct

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier.checkpoint import convert
from tf_multitier import engine
from checkpoint_util import restored, trained

v1 = tf.compat.v1


def by_key(rows):
    return {
        key: (rows.frequencies[i], rows.versions[i], rows.data[i].tolist())
        for i, key in enumerate(rows.keys.tolist())
    }


@pytest.mark.parametrize("parts", [1, 3])
def test_reads_what_a_saver_wrote(tmp_path, parts):
    prefix, values = trained(tmp_path, parts)
    saved = checkpoint.load(prefix)
    table = saved.tables["scope/user"]
    assert list(saved.tables) == ["scope/user"]
    assert [c[:2] for c in table.columns] == [("value", 4), ("scope/user/Adagrad", 4)]
    assert (table.dim, table.num_rows, len(table.parts)) == (4, 50, parts)
    assert table.initializer["kind"] == "uniform" and table.matrix() is None
    rows = table.read()
    assert dict(zip(rows.keys.tolist(), rows.column("value").tolist())) == {
        key: value.tolist() for key, value in values.items()
    }
    assert set(rows.frequencies) == {2} and set(rows.versions) == {1}
    assert saved.tensors == {
        "dense": (tf.float32, [2]),
        "dense/Adagrad": (tf.float32, [2]),
        "global_step": (tf.int64, []),
    }
    np.testing.assert_allclose(saved.tensor("dense"), [0.8, 1.8], atol=0.05)
    table.verify()


def test_reads_counted_keys_and_a_matrix(tmp_path):
    option = tf_multitier.EmbeddingVariableOption(
        filter_option=tf_multitier.CounterFilter(filter_freq=3),
        init_option=tf_multitier.InitializerOption(default_value_dim=2),
    )
    prefix, _ = trained(tmp_path, keys=[1, 2, 3], ev_option=option)
    table = checkpoint.load(prefix).tables["scope/user"]
    rows = table.read()
    assert table.num_rows == 0 and sorted(rows.counted_keys) == [1, 2, 3]
    assert set(rows.counted_frequencies) == {2}
    assert table.matrix().shape == (2, 4)


def test_finds_a_directory_and_a_saved_model(tmp_path):
    prefix, _ = trained(tmp_path)
    assert checkpoint.load(tmp_path).path == prefix
    model = tmp_path / "saved"
    os.makedirs(model / "variables")
    (model / "saved_model.pb").write_bytes(b"")
    for name in os.listdir(tmp_path):
        if name.startswith("model.") and not name.endswith(".meta"):
            shutil.copy(tmp_path / name, model / "variables" / name.replace("model", "variables"))
    assert checkpoint.load(model).tables["scope/user"].num_rows == 50
    for nothing in (tmp_path / "no", model / "variables"):
        with pytest.raises(FileNotFoundError, match="prefix of a checkpoint"):
            checkpoint.load(nothing)


def test_missing_and_damaged_files_are_named(tmp_path):
    prefix, _ = trained(tmp_path, parts=2)
    table = checkpoint.load(prefix).tables["scope/user"]
    path = table.parts[1].path
    content = open(path, "rb").read()
    for offset in range(0, len(content), 97):
        with open(path, "wb") as file:
            file.write(content[:offset] + bytes([content[offset] ^ 4]) + content[offset + 1 :])
        with pytest.raises(engine.DataLossError, match=os.path.basename(path)):
            table.verify()
    with open(path, "wb") as file:
        file.write(content[:-1])
    with pytest.raises(engine.DataLossError, match="offset"):
        table.verify()
    os.remove(path)
    with pytest.raises(FileNotFoundError, match=os.path.basename(path)):
        table.verify()


@pytest.mark.parametrize("parts, into", [(1, 1), (3, 2), (1, 5)])
def test_what_is_written_restores(tmp_path, parts, into):
    prefix, values = trained(tmp_path, parts)
    saved = checkpoint.load(prefix)
    table = saved.tables["scope/user"]
    copy = str(tmp_path / "copy")
    with checkpoint.Writer(copy) as writer:
        assert writer.add_table("scope/user", table, into, table.initializer) == 50
        writer.add_tensor("dense", saved.tensor("dense"))
    again = checkpoint.load(copy).tables["scope/user"]
    assert len(again.parts) == into and by_key(again.read()) == by_key(table.read())
    keys = [*values, 999]
    for variable_parts in (1, into):
        ours, theirs = restored(copy, keys, variable_parts), restored(prefix, keys, variable_parts)
        for a, b in zip(ours, theirs):
            np.testing.assert_array_equal(a, b)


def test_without_an_initializer_the_variables_own_stays(tmp_path):
    prefix, _ = trained(tmp_path)
    table = checkpoint.load(prefix).tables["scope/user"]
    copy = str(tmp_path / "copy")
    with checkpoint.Writer(copy) as writer:
        writer.add_table("scope/user", table)
    assert checkpoint.load(copy).tables["scope/user"].initializer is None
    own, of_checkpoint = restored(copy, [999])[0], restored(prefix, [999])[0]
    assert not np.array_equal(own, of_checkpoint)
    with tf.Graph().as_default(), v1.Session() as session:
        variable = tf_multitier.get_embedding_variable(
            "fresh", 4, initializer=v1.random_uniform_initializer(-1, 1, seed=8)
        )
        session.run(v1.global_variables_initializer())
        fresh = session.run(tf.nn.embedding_lookup(variable, tf.constant([999], tf.int64)))
    np.testing.assert_array_equal(own, fresh)


def some_rows(keys, dim=2, keys_dtype=np.int64, **changes):
    n = len(keys)
    arrays = dict(
        columns=[("value", dim, 0.0)],
        keys=np.asarray(keys, keys_dtype),
        frequencies=np.arange(n),
        versions=np.arange(n) - 1,
        data=np.arange(n * dim, dtype=np.float32).reshape(n, dim),
    )
    return engine.Rows(**{**arrays, **changes})


@pytest.mark.parametrize(
    "rows, message",
    [
        (some_rows([1, 2, 1]), "expected each key once, found key 1 again"),
        (some_rows([1, 2], frequencies=np.array([0, 2**32])), "frequencies of 0 to 4294967295"),
        (some_rows([1, 2], frequencies=np.array([0, -1])), "found -1"),
        (some_rows([1, 2], versions=np.array([0])), r"versions: expected shape \[2\]"),
        (some_rows([1, 2], data=np.zeros((2, 3), np.float32)), r"data: expected shape \[2, 2\]"),
        (some_rows([1.5, 2], keys_dtype=None), "expected integers"),
    ],
)
def test_bad_rows_are_refused_and_leave_nothing(tmp_path, rows, message):
    prefix = str(tmp_path / "model")
    with pytest.raises(ValueError, match=message), checkpoint.Writer(prefix) as writer:
        writer.add_table("good", some_rows([1, 2]), partitions=2)
        writer.add_table("bad", rows)
    assert os.listdir(tmp_path) == []
    with checkpoint.Writer(prefix) as writer:  # a caller who goes on after an error
        writer.add_table("good", some_rows([1, 2]))
        with pytest.raises(ValueError, match=message):
            writer.add_table("bad", rows)
    assert list(checkpoint.load(prefix).tables) == ["good"]
    assert len([name for name in os.listdir(tmp_path) if ".data-" in name]) == 2


def test_an_existing_checkpoint_and_names_twice_are_refused(tmp_path):
    prefix = str(tmp_path / "model")
    with checkpoint.Writer(prefix) as writer:
        writer.add_table("a", some_rows([1]))
        for add in (
            lambda: writer.add_table("a", some_rows([1])),
            lambda: writer.add_tensor("a", 1),
        ):
            with pytest.raises(ValueError, match="'a' was added before"):
                add()
        with pytest.raises(ValueError, match="partitions: expected 1 to 1024, found 0"):
            writer.add_table("b", some_rows([1]), 0)
    with pytest.raises(engine.AlreadyExistsError, match="exists"):
        checkpoint.Writer(prefix)


def test_format_page_is_enough_to_read_a_part(tmp_path):
    """A reader made from docs/formats/table_part.md alone."""
    prefix, values = trained(tmp_path)
    table = checkpoint.load(prefix).tables["scope/user"]
    manifest = json.loads(table.parts[0].manifest)
    content = open(f"{prefix}.{manifest['file']}", "rb").read()
    assert content[:8] == b"MTPART1\n"
    width = sum(column["dim"] for column in manifest["columns"])
    entry = np.dtype(
        [("key", "<i8"), ("version", "<i8"), ("frequency", "<u4"), ("data", "<f4", (width,))]
    )
    at, found, checksums = 8, {}, b""
    while True:
        kind, entries, size = struct.unpack_from("<IIQ", content, at)
        payload = content[at + 16 : at + 16 + size]
        checksums += content[at + 16 + size : at + 16 + size + 4]
        at += 16 + size + 4
        if kind == 5:
            break
        assert kind == 2 and size == entries * entry.itemsize
        for row in np.frombuffer(payload, entry):
            found[int(row["key"])] = row["data"][:4].tolist()
    assert at == len(content) and struct.unpack("<qq", payload) == (50, 0)
    assert found == {key: value.tolist() for key, value in values.items()}
    assert manifest["checksum"] == crc32c(checksums)


def crc32c(data):
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def test_a_part_file_of_another_save_is_refused(tmp_path):
    """It has as many rows of the same columns: only the checksum in the manifest tells."""
    folders = [tmp_path / name for name in ("first", "second")]
    prefixes = []
    for number, folder in enumerate(folders):
        folder.mkdir()
        prefixes.append(str(folder / "model"))
        with checkpoint.Writer(prefixes[-1]) as writer:
            writer.add_table("user", some_rows(range(number, number + 5)))
    paths = [checkpoint.load(prefix).tables["user"].parts[0].path for prefix in prefixes]
    shutil.copyfile(paths[1], paths[0])
    with pytest.raises(engine.EngineError, match="expected the part file that was saved"):
        checkpoint.load(prefixes[0]).tables["user"].read()


@pytest.mark.parametrize(
    "save, load, all_columns",
    [
        (checkpoint.save_parquet, checkpoint.load_parquet, True),
        (checkpoint.save_npz, checkpoint.load_npz, True),
        (checkpoint.save_raw, lambda path: checkpoint.load_raw(path, 4), False),
    ],
    ids=["parquet", "npz", "raw"],
)
def test_files_of_other_programs_round_trip(tmp_path, save, load, all_columns):
    prefix, _ = trained(tmp_path, parts=2)
    table = checkpoint.load(prefix).tables["scope/user"]
    path = tmp_path / "file"
    assert save(table, path) == 50
    found = load(path)
    found = found if isinstance(found, engine.Rows) else found.read()
    if all_columns:
        assert by_key(found) == by_key(table.read())
        assert [tuple(column) for column in found.columns] == [
            (name, dim, pytest.approx(value)) for name, dim, value in table.columns
        ]
    else:
        rows = table.read()
        assert dict(zip(found.keys.tolist(), found.data.tolist())) == dict(
            zip(rows.keys.tolist(), rows.column("value").tolist())
        )
    with engine.Table(4) as live:
        live.import_rows(found)
        assert live.total_count() == 50


def test_parquet_of_another_program(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = str(tmp_path / "rows.parquet")

    def write(**columns):
        pyarrow.parquet.write_table(arrow.table(columns), path)

    write(vector=[[1.0, 2.0], [3.0, 4.0]], key=[5, -6])
    rows = checkpoint.load_parquet(path).read()
    assert rows.keys.tolist() == [5, -6] and rows.data.tolist() == [[1, 2], [3, 4]]
    assert rows.columns == [("vector", 2, 0.0)] and rows.versions.tolist() == [-1, -1]
    write(vector=[[1.0, 2.0], [3.0]], key=[5, -6])
    with pytest.raises(ValueError, match="lists of 2 numbers in column 'vector'"):
        checkpoint.load_parquet(path).read()
    write(vector=[[1.0]])
    with pytest.raises(ValueError, match="expected a column 'key'"):
        checkpoint.load_parquet(path)
    write(key=[1], vector=["a"])
    with pytest.raises(ValueError, match="lists of numbers in column 'vector'"):
        checkpoint.load_parquet(path)


def test_raw_files_of_another_dim_are_refused(tmp_path):
    (tmp_path / "key").write_bytes(np.arange(3, dtype="<i8").tobytes())
    (tmp_path / "emb_vector").write_bytes(np.zeros(12, "<f4").tobytes())
    assert len(checkpoint.load_raw(tmp_path, 4).read()) == 3
    with pytest.raises(ValueError, match="expected 60 bytes for 3 keys of dim 5, found 48"):
        checkpoint.load_raw(tmp_path, 5)


@pytest.mark.parametrize("kind", ["parquet", "npz", "raw"])
def test_convert_there_and_back(tmp_path, capsys, kind):
    prefix, values = trained(tmp_path, parts=2)
    files, back = str(tmp_path / "files"), str(tmp_path / "back")
    assert convert.main(["--from=checkpoint", prefix, f"--to={kind}", files]) == 0
    assert os.listdir(files) == ["scope%2Fuser" + {"raw": ""}.get(kind, "." + kind)]
    assert convert.main([f"--from={kind}", files, "--to=checkpoint", back, "--dim=4"]) == 0
    assert "scope/user: 50 rows" in capsys.readouterr().out
    np.testing.assert_array_equal(restored(back, list(values))[0], list(values.values()))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--from=checkpoint", "no", "--to=npz", "out"], "prefix of a checkpoint"),
        (["--from=raw", "{prefix}", "--to=npz", "out"], "No such file"),
        (["--from=checkpoint", "{prefix}", "--to=npz", "out", "--tables=x"], "found 'x'"),
        (["--from=deeprec", "{prefix}", "--to=npz", "out", "--initial_value=x"], "SLOT=VALUE"),
        (["--from=checkpoint", "{prefix}", "--to=checkpoint", "{prefix}"], "exists"),
    ],
)
def test_convert_says_what_is_wrong(tmp_path, capsys, monkeypatch, arguments, message):
    prefix, _ = trained(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(tmp_path))
    assert convert.main([argument.format(prefix=prefix) for argument in arguments]) == 2
    assert message in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == before

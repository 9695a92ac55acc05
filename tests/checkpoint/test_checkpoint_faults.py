"""tf_multitier.checkpoint and convert under signals, full disks, limits, and files that other programs wrote."""

import os
import signal
import threading

import forks
import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier.checkpoint import convert
from tf_multitier import engine
from tf_multitier.inspect import __main__ as inspect

v1 = tf.compat.v1
_EXTREMES = [-(2**63), -1, 0, 1, 2**63 - 1]


def some_rows(keys, dim=2, **changes):
    keys = np.asarray(keys, np.int64)
    arrays = dict(
        columns=[("value", dim, 0.0)],
        keys=keys,
        frequencies=np.arange(len(keys)),
        versions=keys,
        data=np.repeat(keys[:, None], dim, axis=1).astype(np.float32),
    )
    return engine.Rows(**{**arrays, **changes})


def write(prefix, partitions=1, **tables):
    with checkpoint.Writer(prefix) as writer:
        for name, rows in tables.items():
            writer.add_table(name, rows, partitions)
        writer.add_tensor("dense", np.arange(1000, dtype=np.float32))
    return str(prefix)


# Waits in the middle of the rows. A parent may have had SIGINT ignored.
_HALF_WAY = """
import signal, sys, numpy as np
from tf_multitier import checkpoint, engine
signal.signal(signal.SIGINT, signal.default_int_handler)
class HalfWay(checkpoint.RowSource):
    columns, num_rows = [("value", 4, 0.0)], None
    def blocks(self):
        keys = np.arange(50000)
        yield engine.Rows(self.columns, keys, keys * 0, keys, np.zeros((50000, 4), np.float32))
        print("writing", flush=True)
        sys.stdin.read()
with checkpoint.Writer(sys.argv[1]) as writer:
    writer.add_table("user", HalfWay(), partitions=3)
"""


@pytest.mark.parametrize("number, leftovers", [(signal.SIGKILL, 3), (signal.SIGINT, 0)])
def test_a_killed_writer_leaves_no_checkpoint(tmp_path, number, leftovers):
    prefix = str(tmp_path / "model")
    with forks.start(["-c", _HALF_WAY, prefix], cwd=ROOT) as process:
        assert process.stdout.readline() == "writing\n"
        process.send_signal(number)
        assert process.wait() == -number
    assert len(os.listdir(tmp_path)) == leftovers
    with pytest.raises(FileNotFoundError):
        checkpoint.load(prefix)
    write(prefix, user=some_rows([1, 2]))
    assert checkpoint.load(tmp_path).tables["user"].read().keys.tolist() == [1, 2]


def test_an_index_that_cannot_be_written_leaves_no_part_files(tmp_path):
    """TensorFlow's own file cannot be written: a directory has its name."""
    prefix = str(tmp_path / "model")
    os.mkdir(prefix + ".data-00000-of-00001")
    with pytest.raises(engine.EngineError, match="checkpoint '.*model'"):
        write(prefix, user=some_rows([1]))
    assert [n for n in os.listdir(tmp_path) if n.startswith("model.data-")] == [
        "model.data-00000-of-00001"
    ]


def test_a_full_disk_leaves_no_checkpoint(tmp_path):
    """RLIMIT_FSIZE refuses the write, as a full disk does. First of a part file, then of TensorFlow's file."""
    program = """
import resource, signal, sys, numpy as np
from tf_multitier import checkpoint, engine
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
keys = np.arange(int(sys.argv[2]))
rows = engine.Rows([("value", 4, 0.0)], keys, keys, keys, np.zeros((len(keys), 4), np.float32))
resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
try:
    with checkpoint.Writer(sys.argv[1]) as writer:
        writer.add_table("user", rows)
        writer.add_tensor("dense", np.zeros(100000, np.float32))
except engine.EngineError as error:
    print("refused:", error)
"""
    for keys in (100000, 10):
        done = forks.run(["-c", program, tmp_path / "model", keys], cwd=ROOT)
        assert done.stdout.startswith("refused: ") and "/model" in done.stdout, done.stderr
        assert [n for n in os.listdir(tmp_path) if n.endswith(".index")] == []
        assert checkpoint_parts(tmp_path) == []


def checkpoint_parts(directory):
    return [n for n in os.listdir(directory) if ".data-" in n and "00000-of" not in n]


@pytest.mark.parametrize("path", ["a[1]/model", "model*", "what?"])
def test_paths_that_tensorflow_cannot_restore_are_refused(tmp_path, path):
    with pytest.raises(ValueError, match="which TensorFlow reads as a pattern"):
        checkpoint.Writer(tmp_path / path)


def test_odd_names_and_paths_round_trip(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("a b/ü:%41")
    names = ["..", "A", "a", "a b", "ü/日本", "key", "x%2Fy", "x\ny"]
    prefix = write("a b/ü:%41/model", 2, **{name: some_rows(_EXTREMES) for name in names})
    assert list(checkpoint.load("a b/ü:%41").tables) == sorted(names)
    for kind in ("parquet", "npz", "raw"):
        out = f"a b/ü:%41/{kind}"
        assert convert.main(["--from=checkpoint", prefix, f"--to={kind}", out]) == 0
        assert len(os.listdir(out)) == len(names)
        back = f"back-{kind}"
        assert convert.main([f"--from={kind}", out, "--to=checkpoint", back, "--dim=2"]) == 0
        found = checkpoint.load(back).tables
        assert list(found) == sorted(names)
        assert sorted(found[".."].read().keys) == _EXTREMES
    assert sorted(n for n in os.listdir("a b") if n != "ü:%41") == []


def test_names_of_columns_and_numpy_scalars_are_written(tmp_path):
    columns = [("wert €\n😀", 2, np.float32(0.5))]
    prefix = write(tmp_path / "model", user=some_rows([1], columns=columns))
    assert checkpoint.load(prefix).tables["user"].columns == [("wert €\n😀", 2, 0.5)]


def test_bad_names_tensors_and_counts_are_refused(tmp_path):
    counted = dict(counted_keys=np.array([5]), counted_versions=np.array([0]))
    with checkpoint.Writer(tmp_path / "model") as writer:
        for add in (writer.add_table, writer.add_tensor):
            with pytest.raises(ValueError, match="expected a name, found ''"):
                add("", some_rows([1]))
        with pytest.raises(ValueError, match="expected numbers or strings, found object"):
            writer.add_tensor("bad", np.array([object()]))
        for count in (-1, 2**32):
            rows = some_rows([1], counted_frequencies=np.array([count]), **counted)
            with pytest.raises(ValueError, match=f"frequencies of 0 to 4294967295, found {count}"):
                writer.add_table("user", rows)
        writer.add_tensor("user/partition_of_bucket", 1)
        with pytest.raises(ValueError, match="partition_of_bucket' was added before"):
            writer.add_table("user", some_rows([1]))
        writer.add_tensor("text", np.array([b"\0a\0", "ü"], object))
    assert checkpoint_parts(tmp_path) == []
    assert checkpoint.load(tmp_path).tensor("text").tolist() == [b"\0a\0", "ü".encode()]


def test_1024_partitions_wide_rows_and_empty_tables(tmp_path):
    keys = np.arange(-3000, 3000)
    prefix = write(tmp_path / "many", 1024, user=some_rows(keys), none=some_rows([]))
    tables = checkpoint.load(prefix).tables
    assert sorted(tables["user"].read().keys) == keys.tolist() and tables["none"].num_rows == 0
    odd = np.array([np.nan, np.inf, -np.inf, -0.0] * 1024, np.float32)
    wide = some_rows([7], 4096, data=odd[None, :], frequencies=np.array([2**32 - 1]))
    rows = checkpoint.load(write(tmp_path / "wide", 3, user=wide)).tables["user"].read()
    assert rows.data.tobytes() == odd.tobytes() and rows.frequencies.tolist() == [2**32 - 1]


@pytest.mark.parametrize("storage", ["DRAM", "DRAM_SSDHASH", "DRAM_PMEM_LEVELDB"])
@pytest.mark.parametrize("written, into", [(1, 3), (4, 1)])
def test_a_saver_restores_what_convert_wrote_bit_for_bit(tmp_path, storage, written, into):
    generator = np.random.default_rng(5)
    keys = np.concatenate([_EXTREMES, generator.integers(-(2**62), 2**62, 500)])
    data = generator.integers(0, 2**31 - 2**24, (len(keys), 3), np.uint32).view(np.float32)
    source, new = write(tmp_path / "source", user=some_rows(keys, 3, data=data)), tmp_path / "new"
    arguments = ["--from=checkpoint", source, "--to=checkpoint", str(new)]
    assert convert.main([*arguments, f"--partitions={written}"]) == 0
    option = tf_multitier.StorageOption(
        storage_type=getattr(tf_multitier.StorageType, storage),
        storage_path=str(tmp_path / "storage"),
        storage_size=[4096] * storage.count("_") + [1 << 20],
    )
    with tf.Graph().as_default(), v1.Session() as session:
        variable = tf_multitier.get_embedding_variable(
            "user",
            3,
            partitioner=v1.fixed_size_partitioner(into) if into > 1 else None,
            ev_option=tf_multitier.EmbeddingVariableOption(storage_option=option),
        )
        found = tf.nn.embedding_lookup(variable, tf.constant(keys))
        frequencies = variable.get_frequency(keys)
        session.run(v1.global_variables_initializer())
        v1.train.Saver(tf_multitier.embedding_variables()).restore(session, str(new))
        assert session.run(found).tobytes() == data.tobytes()
        np.testing.assert_array_equal(session.run(frequencies), np.arange(len(keys)))


def test_convert_keeps_the_count_of_updates(tmp_path):
    with checkpoint.Writer(tmp_path / "old") as writer:
        writer.add_table("user", some_rows([1]), applies=77)
    new = str(tmp_path / "new")
    arguments = ["--from=checkpoint", str(tmp_path / "old"), "--to=checkpoint", new]
    assert convert.main([*arguments, "--partitions=2"]) == 0
    assert checkpoint.load(new).tables["user"].applies == 77


def test_damage_of_tensorflows_files_is_an_exit_status(tmp_path, capsys):
    prefix = write(tmp_path / "model", user=some_rows([1]))
    assert inspect.main([prefix, "--verify"]) == 0
    data, index = prefix + ".data-00000-of-00001", prefix + ".index"
    content = bytearray(open(data, "rb").read())
    for offset in (100, len(content) // 2, len(content) - 30):  # in three tensors
        damaged = bytearray(content)
        damaged[offset] ^= 1
        with open(data, "wb") as file:
            file.write(damaged)
        status = inspect.main([prefix, "--verify"])
        out, err = capsys.readouterr()
        assert status in (1, 2) and "checksum" in (out + err).lower()
    with open(data, "wb") as file:
        file.write(content[:-40])
    assert inspect.main([prefix, "--verify"]) != 0
    assert f"checkpoint '{prefix}', tensor " in "".join(capsys.readouterr())
    for damage in (b"hello", open(index, "rb").read()[:-100] + bytes(100)):
        with open(index, "wb") as file:
            file.write(damage)
        assert inspect.main([prefix]) == 2
        assert capsys.readouterr().err.startswith(f"checkpoint '{prefix}'")


def test_a_prefix_with_a_directory_of_its_name_is_found(tmp_path):
    prefix = write(tmp_path / "model", user=some_rows([1]))
    os.mkdir(prefix)
    assert checkpoint.load(prefix).tables["user"].num_rows == 1


def test_threads_read_one_checkpoint(tmp_path):
    keys = np.arange(20000)
    saved = checkpoint.load(write(tmp_path / "model", 3, user=some_rows(keys)))
    wrong = []

    def read():
        for _ in range(5):
            rows, dense = saved.tables["user"].read(), saved.tensor("dense")
            if (rows.data != rows.keys[:, None]).any() or (dense != np.arange(1000)).any():
                wrong.append(rows)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_writer_works_in_an_open_graph_and_session(tmp_path):
    with tf.Graph().as_default() as graph, v1.Session():
        prefix = write(tmp_path / "model", user=some_rows([1]))
        assert checkpoint.load(prefix).tables["user"].num_rows == 1
        assert graph.get_operations() == []

"""Keys of uint64 in files: every storage type, parts, deltas, other types of keys, other files, serving, kept rows."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf
from chain_util import storage
from worlds import needs_eager

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import serving

v1 = tf.compat.v1
KEYS = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
REFUSED = (
    "'ev': expected keys of {}, found {} in checkpoint .*: create the variable with that key_dtype"
)


class Program:
    """A session of its own with one variable."""

    def __init__(self, tmp_path, key_dtype="uint64", kind=None, parts=1, saver=None, option=None):
        self.graph = tf.Graph()
        self.dtype = np.dtype(key_dtype)
        os.makedirs(tmp_path, exist_ok=True)
        with self.graph.as_default():
            given = option or storage(tmp_path, kind, 20)
            self.ev = tf_multitier.get_embedding_variable(
                "ev",
                4,
                key_dtype=tf.as_dtype(key_dtype),
                initializer=v1.random_uniform_initializer(-1, 1, seed=3),
                partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
                ev_option=tf_multitier.EmbeddingVariableOption(storage_option=given),
            )
            self.ids = v1.placeholder(tf.as_dtype(key_dtype), [None])
            values = tf.nn.embedding_lookup(self.ev, self.ids)
            step = v1.train.get_or_create_global_step()
            loss = tf.reduce_sum(values**2)
            self.train = v1.train.AdagradOptimizer(0.1).minimize(loss, step)
            self.remove, self.export = self.ev.remove(self.ids), self.ev.export()
            self.saver = (saver or v1.train.Saver)()
            self.init = v1.global_variables_initializer()
        self.session = v1.Session(graph=self.graph)
        self.session.run(self.init)

    def work(self, keys=KEYS):
        for end in range(1, len(keys) + 1):
            self.session.run(self.train, {self.ids: keys[-end:]})
        return self

    def rows(self):
        return [column.tolist() for column in self.session.run(self.export)]

    def save(self, path):
        with self.graph.as_default():
            return self.saver.save(self.session, str(path))

    def restore(self, prefix):
        with self.graph.as_default():
            self.saver.restore(self.session, str(prefix))
        return self


@pytest.mark.parametrize("kind", [None, "LEVELDB", "SSDHASH", "DRAM_SSDHASH", "DRAM_PMEM_LEVELDB"])
def test_a_save_comes_back_in_any_number_of_parts(tmp_path, kind):
    saved = Program(tmp_path, kind=kind).work()
    prefix = saved.save(tmp_path / "model")
    table = checkpoint.load(prefix).tables["ev"]
    assert json.loads(table.parts[0].manifest)["key_dtype"] == "uint64"
    assert table.key_dtype == "uint64" and sorted(table.read().keys.tolist()) == KEYS.tolist()
    again = Program(tmp_path / "again", parts=3).restore(prefix)
    assert again.rows() == saved.rows() and again.rows()[0] == KEYS.tolist()
    back = Program(tmp_path / "back", kind=kind).restore(again.save(tmp_path / "parts"))
    assert back.work().rows() == saved.work().rows()


def test_int64_and_int32_files_do_not_name_their_type(tmp_path):
    for dtype in ("int64", "int32"):
        prefix = Program(tmp_path, dtype).work(np.array([5], dtype)).save(tmp_path / dtype)
        table = checkpoint.load(prefix).tables["ev"]
        assert "key_dtype" not in json.loads(table.parts[0].manifest) and table.key_dtype == "int64"
    other = Program(tmp_path, "int32").restore(tmp_path / "int64")
    assert other.rows()[0] == [5]


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    "source, target",
    [("uint64", "int64"), ("int64", "uint64"), ("uint32", "uint64"), ("uint64", "uint32")],
)
def test_another_type_of_keys_is_refused_before_anything_changes(tmp_path, source, target, parts):
    prefix = Program(tmp_path, source).work(np.arange(9, dtype=source)).save(tmp_path / "model")
    other = Program(tmp_path, target, parts=parts).work(np.arange(3, dtype=target))
    before = other.rows()
    name = lambda dtype: "int64 or int32" if dtype == "int64" else dtype
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=REFUSED.format(name(target), name(source))
    ):
        other.restore(prefix)
    with other.graph.as_default(), pytest.raises(tf.errors.InvalidArgumentError, match="keys of"):
        other.session.run(other.ev.restore_from(prefix, convert=True, resize=True))
    assert other.rows() == before


def test_deltas_merges_and_freezes_have_the_type(tmp_path):
    make_saver = tf_multitier.train.IncrementalSaver
    trainer = Program(tmp_path, saver=make_saver).work()
    with trainer.graph.as_default():
        base = trainer.saver.save(trainer.session, str(tmp_path / "model"), 1)
    frozen = str(tmp_path / "frozen")
    assert serving.freeze(base, frozen) == 5
    trainer.session.run(trainer.remove, {trainer.ids: KEYS[4:]})
    trainer.session.run(trainer.train, {trainer.ids: np.array([7, 2**63], np.uint64)})
    with trainer.graph.as_default():
        delta = trainer.saver.save_incremental(trainer.session, str(tmp_path / "model"), 2)
    expected = [0, 1, 7, 2**63 - 1, 2**63]
    assert trainer.rows()[0] == expected
    chain = checkpoint.load(delta).tables["ev"]
    assert chain.key_dtype == "uint64" and sorted(chain.read().keys.tolist()) == expected
    (changes,) = list(checkpoint.load(delta).deltas[0].tables["ev"].blocks())[:1]
    assert changes.removed_keys.dtype == np.uint64
    checkpoint.merge(delta, str(tmp_path / "merged"))
    for prefix in (delta, tmp_path / "merged"):
        assert Program(tmp_path / "again").restore(prefix).rows() == trainer.rows()
    other = Program(tmp_path / "other", "int64", saver=make_saver)
    before = other.rows()
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=REFUSED.format("int64 or int32", "uint64")
    ):
        with other.graph.as_default():
            other.saver.apply_deltas(other.session, base)
    assert other.rows() == before
    frozen_delta = serving.freeze_delta(delta, frozen)
    assert sorted(checkpoint.load(frozen_delta).tables["ev"].read().keys.tolist()) == expected
    with tf.Graph().as_default(), serving.read_only(), v1.Session() as session:
        ev = tf_multitier.get_embedding_variable("ev", 4, key_dtype=tf.uint64)
        session.run(ev.restore_from(frozen_delta))
        assert session.run(ev.export())[0].tolist() == expected


def test_other_files_and_inspection_have_the_type(tmp_path, capsys):
    trainer = Program(tmp_path).work()
    prefix = trainer.save(tmp_path / "model")
    table = checkpoint.load(prefix).tables["ev"]
    for save, load, name in (
        (checkpoint.save_parquet, checkpoint.load_parquet, "rows.parquet"),
        (checkpoint.save_npz, checkpoint.load_npz, "rows.npz"),
    ):
        path = str(tmp_path / name)
        assert save(table, path) == 5
        rows = load(path)
        with checkpoint.Writer(str(tmp_path / f"{name}-model")) as writer:
            writer.add_table("ev", rows, 2, table.initializer)
            writer.add_tensor("global_step", np.int64(5))
        assert (
            Program(tmp_path / "again").restore(tmp_path / f"{name}-model").rows() == trainer.rows()
        )
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(tmp_path / "rows.parquet")
    assert schema.field("key").type == pyarrow.uint64()
    plain = schema.remove_metadata()
    whole = pyarrow.parquet.read_table(tmp_path / "rows.parquet").cast(plain)
    pyarrow.parquet.write_table(whole, tmp_path / "plain.parquet")
    with pytest.raises(ValueError, match="fit int64 in column 'key'"):
        checkpoint.load_parquet(tmp_path / "plain.parquet").read()
    read = checkpoint.load_parquet(tmp_path / "plain.parquet", key_dtype="uint64").read()
    assert sorted(read.keys.tolist()) == KEYS.tolist()
    from tf_multitier.inspect import __main__ as command

    arguments = [prefix, "--variable=ev", f"--keys={2**64 - 1},3,-1", "--top=2", "--json"]
    command.main(arguments)
    found = json.loads(capsys.readouterr().out)["tables"]["ev"]
    assert found["key_dtype"] == "uint64"
    assert [row["key"] for row in found["keys"]] == [2**64 - 1, 3, -1]
    assert "frequency" in found["keys"][0] and "frequency" not in found["keys"][2]
    assert [row["key"] for row in found["top"]] == [2**64 - 1, 2**63]


def test_another_type_of_keys_is_a_difference(tmp_path, capsys):
    keys = np.array([1, 2])
    prefixes = [
        Program(tmp_path, dtype).work(keys.astype(dtype)).save(tmp_path / dtype)
        for dtype in ("int64", "uint64")
    ]
    from tf_multitier.inspect import __main__ as command

    assert command.main([prefixes[0], "--variable=ev", "--diff", prefixes[0]]) == 0
    arguments = [prefixes[0], "--variable=ev", "--diff", prefixes[1]]
    capsys.readouterr()
    assert command.main([*arguments, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["difference"]["ev"]
    assert found["key_dtype"] == ["int64", "uint64"] and found["only_here"] == 0
    command.main(arguments)
    assert "keys: int64 here, uint64 there" in capsys.readouterr().out


def test_kept_rows_of_another_type_are_refused(tmp_path):
    kept = tf_multitier.StorageOption("SSDHASH", str(tmp_path), keep=True)
    trainer = Program(tmp_path, option=kept).work()
    rows = trainer.rows()
    trainer.session.close()
    del trainer.session
    trainer = None
    again = Program(tmp_path, option=kept)
    assert again.rows() == rows
    again.session.close()
    again = None
    with pytest.raises(
        tf.errors.FailedPreconditionError,
        match="kept rows in .*: expected keys of int64 or int32, found uint64",
    ):
        Program(tmp_path, "int64", option=kept)


@needs_eager
def test_checkpoints_and_saved_models_of_tensorflow_2(tmp_path):
    class Model(tf.Module):
        def __init__(self, key_dtype="uint64"):
            self.ev = tf_multitier.get_embedding_variable("ev", 4, key_dtype=tf.as_dtype(key_dtype))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.uint64)])
        def serve(self, ids):
            return tf.nn.embedding_lookup(self.ev, ids)

    model = Model()
    model.ev.upsert(KEYS, np.arange(20, dtype=np.float32).reshape(5, 4))
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "model"))
    again = Model()
    tf.train.Checkpoint(model=again).restore(path).assert_consumed()
    np.testing.assert_array_equal(again.serve(KEYS), np.arange(20).reshape(5, 4))
    other = Model("int64")
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match="expected keys of int64 or int32, found uint64 in checkpoint",
    ):
        tf.train.Checkpoint(model=other).restore(path)
    assert other.ev.total_count() == 0
    tf.saved_model.save(model, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_array_equal(loaded.serve(KEYS), np.arange(20).reshape(5, 4))
    assert loaded.ev.export()[0].numpy().tolist() == KEYS.tolist()


def test_a_delta_of_another_type_of_values_is_refused_unless_asked_for(tmp_path):
    def program(dtype, convert=False):
        graph = tf.Graph()
        with graph.as_default():
            ev = tf_multitier.get_embedding_variable("ev", 4, value_dtype=tf.as_dtype(dtype))
            values = tf.cast(tf.nn.embedding_lookup(ev, [1, 2]), tf.float32)
            train = v1.train.GradientDescentOptimizer(0.3).minimize(tf.reduce_sum(values))
            make = tf_multitier.train.IncrementalSaver
            if convert:
                with tf_multitier.train.convert_on_restore():
                    saver = make()
            else:
                saver = make()
            session = v1.Session()
            session.run(v1.global_variables_initializer())
            return graph, session, saver, train, ev.export()

    graph, session, saver, train, export = program("float32")
    with graph.as_default():
        session.run(train)
        base = saver.save(session, str(tmp_path / "model"), 1)
        session.run(train)
        saver.save_incremental(session, str(tmp_path / "model"), 2)
    expected = session.run(export)[1]
    _, session, saver, train, export = program("bfloat16")
    session.run(train)
    before = session.run(export)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match="'ev': expected values of bfloat16, found float32 in delta .*convert_on_restore",
    ):
        saver.apply_deltas(session, base)
    for a, b in zip(before, session.run(export), strict=True):
        np.testing.assert_array_equal(a, b)
    _, session, saver, train, export = program("bfloat16", convert=True)
    saver.apply_deltas(session, base)
    found = session.run(export)[1]
    np.testing.assert_array_equal(found, expected.astype(found.dtype))

"""Values of bfloat16 and float16 in checkpoints: every storage type, deltas, conversion, other files, Keras, serving."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from chain_util import storage
from chain_util import STORAGE_TYPES
from worlds import needs_eager

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import serving

v1 = tf.compat.v1
HALVES = ("bfloat16", "float16")
NUMPY = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
TYPES = [t for t in STORAGE_TYPES if not (t or "").startswith("HBM")]


def rounded(values, dtype):
    return np.asarray(values).astype(NUMPY[dtype]).astype(np.float32)


class Program:
    """A session of its own with one variable, most of whose rows are below DRAM."""

    def __init__(self, tmp_path, dtype="bfloat16", kind=None, parts=1, saver=v1.train.Saver):
        self.graph = tf.Graph()
        with self.graph.as_default():
            option = tf_multitier.EmbeddingVariableOption(
                storage_option=storage(tmp_path, kind, 20), value_dtype=dtype
            )
            self.ev = tf_multitier.get_embedding_variable(
                "ev",
                4,
                initializer=v1.random_uniform_initializer(-1, 1, seed=3),
                partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
                ev_option=option,
            )
            self.ids = v1.placeholder(tf.int64, [None])
            values = tf.nn.embedding_lookup(self.ev, self.ids)
            self.step = v1.train.get_or_create_global_step()
            loss = tf.reduce_sum(tf.cast(values, tf.float32) ** 2)
            self.train = v1.train.AdagradOptimizer(0.1).minimize(loss, self.step)
            self.remove = self.ev.remove(self.ids)
            self.exports = [part.export_rows() for part in self.ev.parts]
            self.saver = saver()
            self.init = v1.global_variables_initializer()
        self.session = v1.Session(graph=self.graph)
        self.session.run(self.init)

    def work(self, seed=0, steps=5):
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            self.session.run(self.train, {self.ids: rng.integers(-60, 60, 40)})
        self.session.run(self.remove, {self.ids: rng.integers(-60, 60, 5)})
        return self

    def rows(self):
        """{key: (value, slots, frequency, version)}"""
        found = {}
        for part in self.session.run(self.exports):
            for i, key in enumerate(part.keys.tolist()):
                found[key] = (
                    part.rows[i, :4],
                    part.rows[i, 4:],
                    part.frequencies[i],
                    part.versions[i],
                )
        return found

    def save(self, path):
        with self.graph.as_default():
            return self.saver.save(self.session, str(path))

    def restore(self, prefix):
        with self.graph.as_default():
            self.saver.restore(self.session, prefix)

    def restore_from(self, prefix, **options):
        with self.graph.as_default():
            self.session.run(self.ev.restore_from(prefix, **options))
        return self


def same(found, expected, dtype=None):
    assert found.keys() == expected.keys() and len(found) > 20
    for key, (value, slots, *facts) in expected.items():
        np.testing.assert_array_equal(found[key][0], rounded(value, dtype) if dtype else value)
        np.testing.assert_array_equal(found[key][1], slots)
        assert list(found[key][2:]) == facts


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", TYPES)
def test_a_save_comes_back_over_every_storage_type(tmp_path, kind, dtype):
    saved = Program(tmp_path, dtype, kind).work()
    rows = saved.rows()
    assert all((rounded(value, dtype) == value).all() for value, *_ in rows.values())
    prefix = saved.save(tmp_path / "model")
    manifest = json.loads(checkpoint.load(prefix).tables["ev"].parts[0].manifest)
    assert [c["dtype"] for c in manifest["columns"]] == [dtype, "float32"]
    again = Program(tmp_path, dtype, kind, parts=1 if kind == "PMEM" else 3)
    again.restore(prefix)
    same(again.rows(), rows)
    saved.work(seed=1)
    same(again.work(seed=1).rows(), saved.rows())


def test_the_value_takes_half_the_bytes_in_the_file(tmp_path):
    sizes = {}
    for dtype in NUMPY:
        saved = Program(tmp_path, dtype).work()
        prefix = saved.save(tmp_path / dtype)
        table = checkpoint.load(prefix).tables["ev"]
        sizes[dtype] = os.path.getsize(table.parts[0].path), table.num_rows
    (full, rows), (half, others) = sizes["float32"], sizes["bfloat16"]
    assert rows == others and sizes["float16"] == sizes["bfloat16"] and full - half == 8 * rows


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    "source, target",
    [
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
        ("float16", "bfloat16"),
        ("float32", "float16"),
    ],
)
def test_another_type_is_restored_when_asked_and_else_refused(tmp_path, source, target, parts):
    saved = Program(tmp_path, source).work()
    prefix, rows = saved.save(tmp_path / "model"), saved.rows()
    other = Program(tmp_path, target, parts=parts).work(seed=9)
    before = other.rows()
    refused = f"'ev': expected values of {target}, found {source} in checkpoint .*convert=True"
    with pytest.raises(tf.errors.InvalidArgumentError, match=refused):
        other.restore_from(prefix)
    with pytest.raises(tf.errors.InvalidArgumentError, match=refused):
        other.restore(prefix)
    same(other.rows(), before)
    same(other.restore_from(prefix, convert=True).rows(), rows, target)
    with tf_multitier.train.convert_on_restore():
        converting = Program(tmp_path, target, parts=parts)
    converting.restore(prefix)
    same(converting.rows(), rows, target)


@pytest.mark.parametrize("kind", [None, "DRAM_SSDHASH"])
def test_deltas_and_their_merge(tmp_path, kind):
    saver = tf_multitier.train.IncrementalSaver
    saved = Program(tmp_path, "bfloat16", kind, 2, saver).work()
    base = saved.save(tmp_path / "model")
    for seed in (3, 4):
        saved.work(seed, steps=1)
        with saved.graph.as_default():
            saved.saver.save_incremental(saved.session, str(tmp_path / "model"))
    rows = saved.rows()
    assert len(checkpoint.load_chain(base).deltas) == 2
    assert checkpoint.load_chain(base).tables["ev"].dtype == "bfloat16"
    again = Program(tmp_path, "bfloat16", None, 3, saver)
    again.restore(base)
    same(again.rows(), rows)
    checkpoint.merge(base, tmp_path / "merged")
    assert checkpoint.load(tmp_path / "merged").tables["ev"].dtype == "bfloat16"
    same(Program(tmp_path).restore_from(str(tmp_path / "merged")).rows(), rows)
    converted = Program(tmp_path, "float32").restore_from(base + ".delta-0002", convert=True)
    same(converted.rows(), rows)


@pytest.mark.parametrize("dtype", HALVES)
def test_parquet_npz_and_writer_keep_the_type(tmp_path, dtype):
    saved = Program(tmp_path, dtype).work()
    rows = saved.rows()
    table = checkpoint.load(saved.save(tmp_path / "model")).tables["ev"]
    assert table.dtype == dtype and table.read().dtype == dtype
    checkpoint.save_parquet(table, tmp_path / "rows.parquet")
    checkpoint.save_npz(table, tmp_path / "rows.npz")
    for i, source in enumerate(
        (
            checkpoint.load_parquet(tmp_path / "rows.parquet"),
            checkpoint.load_npz(tmp_path / "rows.npz"),
        )
    ):
        assert source.dtype == dtype
        target = str(tmp_path / f"copy{i}")
        with checkpoint.Writer(target) as writer:
            writer.add_table("ev", source, partitions=2, initializer=table.initializer)
        assert checkpoint.load(target).tables["ev"].dtype == dtype
        same(Program(tmp_path, dtype).restore_from(target).rows(), rows)


def test_inspection_says_the_type(tmp_path):
    saved = Program(tmp_path, "float16").work()
    prefix = saved.save(tmp_path / "model")
    from tf_multitier.inspect import collect

    described = collect.describe(checkpoint.load(prefix), [], ["ev"])
    assert described["tables"]["ev"]["value_dtype"] == "float16"


@pytest.mark.parametrize("frozen", ["float32", "bfloat16", "float16"])
def test_freezing_for_serving(tmp_path, frozen):
    saved = Program(tmp_path, "bfloat16").work()
    prefix, rows = saved.save(tmp_path / "model"), saved.rows()
    serving.freeze(prefix, tmp_path / "serve", frozen)
    with saved.graph.as_default():
        saved.session.run(saved.ev.freeze(str(tmp_path / "other"), frozen))
    for target in ("serve", "other"):
        table = checkpoint.load(tmp_path / target).tables["ev"]
        assert table.frozen and table.dtype == frozen
        # Frozen values are restored into any type, as before.
        again = Program(tmp_path, "bfloat16").restore_from(str(tmp_path / target)).rows()
        for key, (value, *_) in rows.items():
            np.testing.assert_array_equal(
                again[key][0], rounded(rounded(value, frozen), "bfloat16")
            )


@needs_eager
def test_checkpoints_of_tensorflow_2_and_saved_models(tmp_path):
    def module(dtype):
        made = tf.Module()
        made.ev = tf_multitier.get_embedding_variable("ev", 4, value_dtype=tf.as_dtype(dtype))
        made.optimizer = tf_multitier.optimizers.Adam(0.1)
        return made

    def train(made):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                tf.cast(tf.nn.embedding_lookup(made.ev, range(30)), tf.float32) ** 2
            )
        made.optimizer.apply_gradients([(tape.gradient(loss, made.ev), made.ev)])

    saved = module("bfloat16")
    train(saved)
    prefix = tf.train.Checkpoint(saved).save(str(tmp_path / "ckpt"))
    again = module("bfloat16")
    tf.train.Checkpoint(again).restore(prefix)
    train(saved), train(again)
    for a, b in zip(saved.ev.export(), again.ev.export(), strict=True):
        np.testing.assert_array_equal(a, b)
    exact = module("float32")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="expected values of float32, found bfloat16"
    ):
        tf.train.Checkpoint(exact).restore(prefix)
    with tf_multitier.train.convert_on_restore():
        tf.train.Checkpoint(exact).restore(prefix)
    assert exact.ev.total_count() == 30

    saved.look_up = tf.function(
        lambda ids: tf.nn.embedding_lookup(saved.ev, ids), [tf.TensorSpec([None], tf.int64)]
    )
    tf.saved_model.save(saved, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    ids = tf.range(40, dtype=tf.int64)
    found = loaded.look_up(ids)
    assert found.dtype == tf.bfloat16
    np.testing.assert_array_equal(found, saved.look_up(ids))


@needs_eager
@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16", "float32"])
def test_keras_layers_follow_the_dtype_policy(policy):
    keras = pytest.importorskip("keras")
    kt = pytest.importorskip("tf_multitier.keras")
    layer = kt.Embedding(4, dtype=policy, name="a", optimizer=tf_multitier.optimizers.SGD(0.5))
    pooling = kt.Embedding(4, combiner="sum", dtype=policy, name="b")
    group = kt.GroupEmbedding(
        {"x": kt.Embedding(4, combiner="sum"), "y": kt.Embedding(8, combiner="mean")}, dtype=policy
    )
    rows = tf.bfloat16 if policy == "bfloat16" else tf.float32
    computed = tf.float32 if policy == "float32" else tf.bfloat16
    ids = np.array([[1, 2], [3, 1]])
    assert layer(ids).dtype == computed and layer.embeddings.dtype == rows
    assert pooling(ids).dtype == computed and pooling.embeddings.dtype == rows
    found = group({"x": ids, "y": ids})
    assert found["x"].dtype == computed and group.embeddings["y"].dtype == rows
    made = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1, dtype=policy)])
    made.compile(keras.optimizers.SGD(0.1), "mse")
    before = np.asarray(layer(ids)).astype(np.float32)
    made.fit(ids, np.array([1.0, 2.0]), verbose=0)
    assert layer.embeddings.total_count() == 3
    assert (np.asarray(layer(ids)).astype(np.float32) != before).any()


def test_feature_columns_give_float32():
    with tf.Graph().as_default(), v1.Session() as session:
        fc = tf_multitier.feature_column
        option = tf_multitier.EmbeddingVariableOption(value_dtype="bfloat16")
        column = fc.categorical_column_with_embedding("item", dtype=tf.int64, ev_option=option)
        embedded = tf.feature_column.embedding_column(column, 4)
        layer = v1.feature_column.input_layer(
            {"item": tf.constant([[3], [5]], tf.int64)}, [embedded]
        )
        (ev,) = {v.variable_name: v for v in tf_multitier.embedding_variables()}.values()
        assert ev.dtype == tf.bfloat16 and layer.dtype == tf.float32
        train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(layer**2))
        session.run(v1.global_variables_initializer())
        before = session.run(layer)
        np.testing.assert_array_equal(before, rounded(before, "bfloat16"))
        session.run(train)
        after = session.run(layer)
        assert (after != before).any()
        np.testing.assert_array_equal(after, rounded(after, "bfloat16"))

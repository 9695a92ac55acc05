"""Values of 16 bits in HBM, on the emulated device: the bits of DRAM, in sessions, eagerly and in Keras, and their memory."""

import numpy as np
import pytest
import tensorflow as tf
import variable_util
from worlds import make_world

import tf_multitier
from tf_multitier import engine

pytestmark = pytest.mark.usefixtures("emulated_device")
# Pairwise: type of storage, type of values, whether they are rounded stochastically.
CASES = [
    ("HBM", "bfloat16", True),
    ("HBM", "float16", False),
    ("HBM_DRAM", "bfloat16", False),
    ("HBM_DRAM_SSDHASH", "float16", True),
]


def bits(values):
    return np.asarray(values).astype(np.float32)


def option(kind, path, stochastic):
    tiers = kind.count("_")
    storage = tf_multitier.StorageOption(kind, str(path), storage_rows=[8] * tiers)
    return tf_multitier.EmbeddingVariableOption(
        storage_option=storage, stochastic_rounding=stochastic
    )


def by_key(exported):
    keys, *columns = exported
    order = np.argsort(keys)
    return [bits(column[order]) for column in (keys, *columns)]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind, dtype, stochastic", CASES)
def test_tables_have_the_bits_of_dram(kind, dtype, stochastic, tmp_path):
    def table(kind):
        return engine.Table(
            9,
            "truncated_normal",
            0.0,
            1.0,
            seed=5,
            value_dtype=dtype,
            stochastic_rounding=stochastic,
            storage_type=kind,
            storage_path=str(tmp_path),
            storage_rows=[8] * kind.count("_"),
            device="emulated" if kind.startswith("HBM") else None,
        )

    plain, hbm = table("DRAM"), table(kind)
    rng = np.random.default_rng(1)
    for step in range(12):
        keys = rng.integers(-20, 30, 16)
        grads = rng.standard_normal((16, 9)).astype(np.float32)
        for one in (plain, hbm):
            one.apply("adam", keys, grads, hyper=ADAM, global_step=step)
        probe = rng.integers(-20, 30, 16)
        np.testing.assert_array_equal(bits(hbm.lookup(probe)), bits(plain.lookup(probe)))
    assert (hbm.lookup_tier(np.arange(-20, 30)) == 0).any()
    rows = [table.export() for table in (hbm, plain)]
    assert [r.dtype for r in rows] == [dtype, dtype]
    assert_same(*(by_key((r.keys, r.data, r.frequencies, r.versions)) for r in rows))
    copy = table(kind)
    copy.import_rows(rows[0])
    np.testing.assert_array_equal(bits(copy.peek(rows[0].keys)), bits(plain.peek(rows[0].keys)))


ADAM = dict(
    learning_rate=0.1, beta1=0.9, beta2=0.99, epsilon=1e-6, beta1_power=0.9, beta2_power=0.99
)


@pytest.mark.parametrize("kind, dtype, stochastic", CASES)
@pytest.mark.parametrize("world", ["session", "eager"])
def test_variables_train_as_in_dram(world, kind, dtype, stochastic, tmp_path):
    def trained(kind):
        with make_world(world) as w:
            ev = variable_util.make(
                "ev", 12, value_dtype=dtype, ev_option=option(kind, tmp_path, stochastic)
            )
            exact = variable_util.make("exact", 5, ev_option=option(kind, tmp_path, False))
            rng = np.random.default_rng(2)
            ids = rng.integers(0, 40, (6, 5, 3))
            outputs = []

            def loss(ids):
                sparse = tf.sparse.from_dense(tf.cast(ids, tf.int64) + 1)
                group = tf_multitier.nn.group_embedding_lookup_sparse
                found = [tf.nn.embedding_lookup(ev, ids), *group([ev, exact], [sparse] * 2, "mean")]
                return tf.add_n([tf.reduce_sum(tf.cast(f, tf.float32) ** 2) for f in found])

            step = w.step(loss, [ev, exact], "adagrad")
            for batch in ids:
                step(batch)
                outputs.append(bits(w.run(lambda b=batch: tf.nn.embedding_lookup(ev, b))))
            return outputs + by_key(w.run(ev.export)) + by_key(w.run(exact.export))

    assert_same(trained(kind), trained("DRAM"))


def test_keras_layers_train_as_in_dram(tmp_path):
    keras = pytest.importorskip("keras")
    kt = pytest.importorskip("tf_multitier.keras")
    x = np.random.default_rng(3).integers(0, 30, (40, 3))

    def trained(kind):
        keras.utils.set_random_seed(7)
        ids = keras.Input((3,), dtype="int64")
        layer = kt.Embedding(
            8,
            keras.initializers.RandomUniform(seed=1),
            combiner="sum",
            name="emb",
            dtype="bfloat16",
            ev_option=option(kind, tmp_path, True),
        )
        model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
        model.compile(kt.with_rows("adagrad"), "mse")
        model.fit(x, np.ones((40, 1)), batch_size=8, epochs=2, verbose=0)
        return by_key([np.asarray(c) for c in layer.embeddings.export()])

    assert_same(trained("HBM_DRAM"), trained("DRAM"))


def test_memory_counts_two_bytes_an_element():
    storage = tf_multitier.StorageOption("HBM_DRAM", storage_rows=[100])
    half = tf_multitier.memory(1000, 64, "adagrad", storage, value_dtype=tf.bfloat16)
    full = tf_multitier.memory(1000, 64, "adagrad", storage)
    assert (half.bytes_per_row, full.bytes_per_row) == (128 + 256, 512)
    assert half.tiers[0].rows == full.tiers[0].rows == 100

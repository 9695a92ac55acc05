"""Keras layers in training by two threads, with prefetched rows, and in a model that is restored before it is built."""

import json
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
optimizers = tf_multitier.optimizers

RNG = np.random.default_rng(0)
X = RNG.integers(0, 40, (32, 3))
Y = RNG.normal(size=(32, 1)).astype("float32")
STEPS = 10


@pytest.mark.parametrize("is_own", [True, False], ids=["optimizer of the layer", "with_rows"])
def test_two_threads_train_one_layer(is_own):
    layer = kt.Embedding(4, combiner="sum", optimizer=optimizers.Adagrad(0.01) if is_own else None)
    dense = keras.layers.Dense(1)
    layer.build(None), dense.build((None, 4))
    weights = [*layer.trainable_variables, *dense.trainable_variables]
    optimizer = keras.optimizers.SGD(0.01) if is_own else kt.with_rows(keras.optimizers.SGD(0.01))
    optimizer.build(weights)
    start, failed = threading.Barrier(2), []

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((dense(layer(tf.constant(X))) - Y) ** 2)
        optimizer.apply(tape.gradient(loss, weights), weights)

    def work():
        try:
            traced = tf.function(step)  # each traces its own
            start.wait()
            for _ in range(STEPS):
                traced()
        except Exception as error:  # noqa: BLE001  the test fails below
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    ids, counts = np.unique(X, return_counts=True)
    frequencies = layer.tables[0].get_frequency(ids).numpy()
    assert frequencies.tolist() == (2 * STEPS * counts).tolist()
    assert int(layer.tables[0].total_count()) == len(ids)


def on_disk(folder):
    """A model whose table has 1,000 trained rows, 64 of them in DRAM."""
    keras.utils.set_random_seed(3)
    storage = tf_multitier.StorageOption(
        storage_type=tf_multitier.StorageType.DRAM_SSDHASH,
        storage_path=str(folder),
        storage_size=[64 * 16],
    )
    ids = keras.Input((4,), dtype="int64")
    layer = kt.Embedding(
        4,
        embeddings_initializer="ones",
        combiner="sum",
        optimizer=optimizers.SGD(0.5),
        ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage),
    )
    model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
    model.compile("sgd", "mse")
    ids = np.arange(1000).reshape(250, 4)
    model.fit(ids, np.ones((250, 1)), batch_size=25, shuffle=False, verbose=0)
    layer.embeddings.drain()
    return model, layer.embeddings


def test_fit_with_prefetched_rows_trains_as_without(tmp_path):
    dataset = tf.data.Dataset.from_tensor_slices((np.arange(40).reshape(10, 4), np.ones((10, 1))))
    dataset = dataset.batch(1)
    plain, expected = on_disk(tmp_path / "plain")
    plain.fit(dataset, epochs=2, verbose=0, shuffle=False)
    model, ev = on_disk(tmp_path / "ahead")
    waiting = []

    def count(stats):
        waiting.append(json.loads(stats)["prefetched"])
        return np.int64(0)

    def observed(ids, labels):
        """`ids`, after a count of the rows that wait for their use."""
        counted = tf.numpy_function(count, [ev.stats()], tf.int64)
        with tf.control_dependencies([counted]):
            return tf.identity(ids), labels

    ahead = dataset.apply(
        tf_multitier.data.prefetch_embeddings(lambda ids, labels: {ev: ids}, timeout=1000)
    )
    model.fit(ahead.map(observed), epochs=2, verbose=0, shuffle=False)
    assert max(waiting) > 0
    assert ev.stats()["prefetched"] == 0
    for found, wanted in zip(ev.export()[:2], expected.export()[:2]):
        same_bits(tf.sort(found, 0), tf.sort(wanted, 0))


class TwoLayers(keras.Model):
    def __init__(self):
        super().__init__()
        self.pooled = kt.Embedding(4, combiner="sum", optimizer=optimizers.SGD(0.1))
        self.group = kt.GroupEmbedding({"a": {"output_dim": 4}}, optimizer=optimizers.SGD(0.1))
        self.dense = keras.layers.Dense(1)

    def call(self, ids):
        return self.dense(self.pooled(ids) + self.group({"a": ids})["a"])


def test_a_model_that_is_restored_before_it_is_built_gets_its_rows_when_it_is(tmp_path):
    saved = TwoLayers()
    saved.compile("sgd", "mse")
    saved.fit(X, Y, verbose=0)
    path = tf.train.Checkpoint(model=saved).save(str(tmp_path / "c"))
    restored = TwoLayers()
    checkpoint = tf.train.Checkpoint(model=restored)
    checkpoint.restore(path)
    restored(X[:1])
    same_bits(restored.pooled(X), saved.pooled(X))
    same_bits(restored.group({"a": X})["a"], saved.group({"a": X})["a"])


def model_cut(cut):
    """An embedding layer and a Dense; no gradient comes back through the layer that `cut` names."""
    stop = keras.layers.Lambda(tf.stop_gradient)
    ids = keras.Input((3,), dtype="int64")
    pooled = kt.Embedding(4, combiner="sum", name="emb")(ids)
    logits = keras.layers.Dense(1, name="dense")(stop(pooled) if cut == "emb" else pooled)
    return keras.Model(ids, stop(logits) if cut == "all" else logits)


def test_a_step_without_gradients_is_refused_and_single_variables_without_one_are_named_as_by_keras():
    cut = model_cut("all")
    cut.compile(kt.with_rows("adam"), "mse")
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        cut.fit(X, Y, verbose=0)
    assert int(cut.optimizer.iterations) == 0
    cut = model_cut("emb")
    cut.compile(kt.with_rows("adam"), "mse")
    with pytest.warns(UserWarning, match=r"do not exist for variables \['emb/embeddings'\]"):
        cut.fit(X, Y, batch_size=32, verbose=0)
    assert int(cut.optimizer.iterations) == 1
    [table] = cut.get_layer("emb").tables
    assert int(table.total_count()) == 0
    optimizer, gradient = kt.with_rows("sgd"), tf.IndexedSlices(tf.ones([1, 4]), [1], [0, 4])
    rows, kernel = cut.trainable_variables[:2]
    with pytest.warns(UserWarning, match=r"do not exist for variables \['dense/kernel'\]"):
        optimizer.apply_gradients([(gradient, rows), (None, kernel)])
    assert int(table.total_count()) == 1
    with pytest.raises(ValueError, match="expected 2 gradients, one for each variable, found 1"):
        optimizer.apply([gradient], [rows, kernel])
    for optimizer in (optimizers.SGD(), optimizers.Adam()):
        with pytest.raises(ValueError, match="expected a gradient of at least one .* found none"):
            optimizer.apply_gradients([(None, rows), (None, table)])
        assert int(optimizer.iterations) == 0

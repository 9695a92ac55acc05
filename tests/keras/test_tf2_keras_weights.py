"""get_weights and set_weights of Keras' models with embedding layers, and the callback that uses them."""

import copy
import datetime
import gc
import glob
import os
import pickle
import resource
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
import tf_multitier.keras as multitier_keras
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
IDS = np.random.RandomState(1).randint(0, 100, [256, 5])
LABELS = np.random.RandomState(2).rand(256, 1).astype(np.float32)


def option(tmp_path, storage):
    if storage == "DRAM":
        return None
    return tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption(
            storage, str(tmp_path / "storage"), storage_size=[16 * 16]
        ),
        filter_option=tf_multitier.CounterFilter(3),
    )


def build(tmp_path, storage="DRAM", partitions=1, own_optimizer=True):
    """(a compiled model, its embedding layer)"""
    inputs = keras.Input((5,), dtype="int64")
    layer = multitier_keras.Embedding(
        4,
        combiner="sum",
        partitions=partitions,
        ev_option=option(tmp_path, storage),
        optimizer=tf_multitier.optimizers.Adam(0.05) if own_optimizer else None,
    )
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    adam = keras.optimizers.Adam(0.05)
    model.compile("sgd" if own_optimizer else multitier_keras.with_rows(adam), "mse")
    return model, layer


def content(layer):
    """What export() returns for each table (keys, values, versions, frequencies), by key."""
    found = []
    for table in layer.tables:
        columns = [np.asarray(column) for column in table.export()]
        found.append([column[np.argsort(columns[0])] for column in columns])
    return found


@pytest.mark.parametrize("own_optimizer", [True, False])
@pytest.mark.parametrize("storage, partitions", [("DRAM", 1), ("DRAM", 3), ("DRAM_SSDHASH", 2)])
def test_set_weights_brings_back_what_get_weights_returned(
    tmp_path, storage, partitions, own_optimizer
):
    model, layer = build(tmp_path, storage, partitions, own_optimizer)
    model.fit(IDS, LABELS, verbose=0)
    weights, expected = model.get_weights(), content(layer)
    model.fit(IDS + 50, LABELS, verbose=0)
    assert sum(map(len, (rows[0] for rows in content(layer)))) > sum(
        map(len, (rows[0] for rows in expected))
    )
    model.set_weights(weights)
    same_bits(content(layer), expected)


def test_training_goes_on_from_a_copy_as_it_did_before(tmp_path):
    model, layer = build(tmp_path, partitions=2)
    model.fit(IDS, LABELS, verbose=0)
    weights = model.get_weights()
    model.fit(IDS, LABELS, verbose=0, shuffle=False)
    expected = content(layer)
    model.set_weights(weights)
    model.fit(IDS, LABELS, verbose=0, shuffle=False)
    same_bits(content(layer), expected)


def test_another_model_goes_on_with_the_slots_of_the_copy(tmp_path):
    (model, layer), (twin, its_layer) = (build(tmp_path, partitions=2) for _ in range(2))
    model.fit(IDS, LABELS, verbose=0)
    twin.set_weights(model.get_weights())
    for each in (model, twin):
        each.fit(IDS, LABELS, verbose=0, shuffle=False)
    same_bits(content(its_layer), content(layer))


def test_early_stopping_restores_the_rows_of_the_best_epoch(tmp_path):
    model, layer = build(tmp_path)
    after_epochs = []

    class Losses(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            after_epochs.append(content(layer))
            logs["quality"] = [1.0, 3.0, 2.0, 1.0][epoch]

    stop = keras.callbacks.EarlyStopping(
        "quality", mode="max", patience=2, restore_best_weights=True
    )
    model.fit(IDS, LABELS, epochs=4, verbose=0, callbacks=[Losses(), stop])
    assert len(after_epochs) == 4
    same_bits(content(layer), after_epochs[1])


def test_other_arrays_are_refused_and_change_nothing(tmp_path):
    model, layer = build(tmp_path)
    model.fit(IDS, LABELS, verbose=0)
    [rows, *dense], expected = model.get_weights(), content(layer)
    for other in (np.zeros([0, 4], np.float32), np.zeros([100, 4], np.float32)):
        with pytest.raises(
            ValueError, match=r"expected what get_weights\(\) returned, found .*weights.h5"
        ):
            model.set_weights([other, *dense])
    with pytest.raises(NotImplementedError, match="save_weights"):
        pickle.dumps(rows)
    with pytest.raises(NotImplementedError, match="has no dense value for a file of HDF5 or NumPy"):
        np.asarray(layer.weights[0])
    same_bits(content(layer), expected)


def test_after_a_refused_hdf5_file_an_archive_has_the_optimizer(tmp_path):
    model, _ = build(tmp_path)
    with pytest.raises(NotImplementedError, match="has no dense value for a file of HDF5 or NumPy"):
        model.save(tmp_path / "model.h5")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is type(model.optimizer)


def test_a_full_disk_fails_get_weights_and_leaves_the_model_and_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model, layer = build(tmp_path)
    model.fit(IDS, LABELS, verbose=0)
    expected = content(layer)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(tf.errors.OpError, match="rows"):
            model.get_weights()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    gc.collect()
    assert glob.glob(str(tmp_path / "tf_multitier_rows_*")) == []
    same_bits(content(layer), expected)
    model.set_weights(model.get_weights())
    same_bits(content(layer), expected)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_copy_is_refused_and_changes_nothing(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model, layer = build(tmp_path)
    model.fit(IDS, LABELS, verbose=0)
    weights = model.get_weights()
    [path] = glob.glob(str(tmp_path / "tf_multitier_rows_*" / "rows.data-[a-z]*"))
    model.fit(IDS + 50, LABELS, verbose=0)
    expected = content(layer)
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        data[len(data) // 2] ^= 4
        file.seek(0)
        file.write(data)
        if damage == "cut":
            file.truncate(len(data) // 2)
    if damage == "remove":
        os.remove(path)
    with pytest.raises(tf.errors.OpError, match=os.path.basename(path)):
        model.set_weights(weights)
    same_bits(content(layer), expected)


def test_kept_rows_are_not_copied(tmp_path):
    kept = tf_multitier.StorageOption("SSDHASH", str(tmp_path), keep=True)
    layer = multitier_keras.Embedding(
        4, ev_option=tf_multitier.EmbeddingVariableOption(storage_option=kept)
    )
    layer(IDS)
    with pytest.raises(NotImplementedError, match="keep=True: use model.save_weights"):
        layer.get_weights()


@pytest.mark.parametrize(
    "initializer",
    [tf_multitier.TruncatedNormal(0.0, 1.0, 2.0, 3.0), tf_multitier.DebugInitializer()],
)
def test_models_with_our_initializers_are_saved_and_loaded(tmp_path, initializer):
    option = tf_multitier.EmbeddingVariableOption(
        init_option=tf_multitier.InitializerOption(eval_initializer=initializer)
    )
    layer = multitier_keras.Embedding(
        4,
        embeddings_initializer=initializer,
        ev_option=option,
        optimizer=tf_multitier.optimizers.SGD(0.1),
    )
    model = keras.Sequential([keras.Input((5,), dtype="int64"), layer, keras.layers.Dense(1)])
    expected = model(IDS).numpy()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(IDS).numpy(), expected, rtol=1e-6)


def test_the_file_of_a_copy_goes_with_its_last_array(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model, _ = build(tmp_path)
    model.fit(IDS, LABELS, verbose=0)
    weights = model.get_weights()
    kept = copy.copy(weights[0])
    folders = lambda: glob.glob(os.path.join(str(tmp_path), "tf_multitier_rows_*"))
    assert len(folders()) == 1
    del weights
    gc.collect()
    assert len(folders()) == 1
    del kept
    gc.collect()
    assert not folders()


USES = {
    "index": lambda rows: rows[0],
    "iterate": list,
    "length": len,
    "array": np.array,
    "ufunc": np.abs,
    "function": np.concatenate,
    "sum": lambda rows: rows + 1,
    "average": lambda rows: 0.5 * np.ones([1, 4]) + rows,
    "product": lambda rows: rows @ np.ones([4, 2]),
    "tensor": tf.convert_to_tensor,
    "product of tensors": lambda rows: tf.matmul(tf.ones([2, 4]), rows, transpose_b=True),
    "saved": lambda rows: np.save(os.devnull, rows),
    "mean": lambda rows: rows.mean(),
    "transposed": lambda rows: rows.T,
    "compared": lambda rows: rows == rows.copy(),
}


@pytest.mark.parametrize("use", list(USES))
def test_the_rows_of_get_weights_are_no_array_and_name_what_reads_them(tmp_path, use):
    model, _ = build(tmp_path)
    [rows, *dense] = model.get_weights()
    with pytest.raises((NotImplementedError, AttributeError), match=r"are no array: .*export\(\)"):
        USES[use](rows)
    model.set_weights([copy.deepcopy(rows.copy()), *dense])


def test_models_and_summaries_count_the_rows_of_their_layers(tmp_path):
    model, layer = build(tmp_path)
    dense = model.count_params() - layer.count_params()
    assert layer.count_params() == 0 and dense > 0
    model.fit(IDS, LABELS, verbose=0)
    count = int(layer.tables[0].total_count())
    assert layer.count_params() == 4 * count > 0
    assert model.count_params() == 4 * count + dense
    lines: list = []
    model.summary(print_fn=lines.append)
    text = "\n".join(lines)
    assert f"Trainable params: {4 * count + dense:,}" in text
    [rows, *_] = model.get_weights()
    assert rows.shape == (count, 4) == tuple(layer.weights[0].shape) and rows.size == 4 * count
    shape = tf.function(lambda: tf.constant(layer.weights[0].shape[0] is None))
    assert shape()  # a function knows no number of rows


@pytest.mark.parametrize("score", ["step", "time"])
def test_weights_of_a_stock_embedding_do_not_expire_at_once(score, tmp_path):
    life = datetime.timedelta(minutes=1) if score == "time" else 2
    evict = tf_multitier.GlobalStepEvict(steps_to_live=life)
    option = tf_multitier.EmbeddingVariableOption(evict_option=evict, score=score)
    layer = multitier_keras.Embedding(4, partitions=2, ev_option=option)
    layer(np.array([1]))
    optimizer = tf_multitier.optimizers.SGD(0.1)

    def train():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(np.array([1, 2])))
        optimizer.apply_gradients([(tape.gradient(loss, layer.embeddings), layer.embeddings)])

    for _ in range(8):
        train()
    layer.load_own_variables({"0": np.ones([5, 4], np.float32)})
    train()
    tf.train.Checkpoint(layer=layer).write(str(tmp_path / "saved"))
    assert int(layer.embeddings.total_count()) == 5


@pytest.mark.parametrize("partitions, dtype", [(1, "float32"), (2, "bfloat16")])
def test_weights_of_a_stock_embedding_become_rows(partitions, dtype, tmp_path):
    """Row i is of id i."""

    def model(embedding):
        inputs = keras.Input((5,), dtype="int64")
        pooled = keras.layers.GlobalAveragePooling1D()(embedding(inputs))
        return keras.Model(inputs, keras.layers.Dense(1)(pooled))

    stock = model(keras.layers.Embedding(100, 4))
    stock.compile("adam", "mse")
    stock.fit(IDS, LABELS, verbose=0)
    option = tf_multitier.EmbeddingVariableOption(value_dtype=dtype)
    layer = multitier_keras.Embedding(4, partitions=partitions, ev_option=option)
    ours = model(layer)
    stock.save_weights(tmp_path / "stock.weights.h5")
    ours.load_weights(tmp_path / "stock.weights.h5")
    ids = np.arange(100)
    matrix = stock.get_weights()[0]
    same_bits(tf.cast(layer(ids), tf.float32), tf.cast(tf.cast(matrix, dtype), tf.float32))
    assert layer.count_params() == matrix.size
    tolerance = 1e-6 if dtype == "float32" else 1e-2
    found, expected = (each.predict(IDS, verbose=0) for each in (ours, stock))
    np.testing.assert_allclose(found, expected, atol=tolerance)
    with pytest.raises(ValueError, match=r"weights of shape \[rows, 4\], found \[3, 5\]"):
        layer.load_own_variables({"0": np.ones([3, 5], np.float32)})
    assert layer.count_params() == matrix.size

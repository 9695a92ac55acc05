"""Habits of trainers in `fit`: losses and rows are those of keras.layers.Embedding with equal first rows and Keras' own optimizer.

Each batch has every id once: so rules that move all rows of a dense table and rules that move trained rows do the same.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
STORAGES = ["DRAM", "DRAM_SSDHASH"]
IDS, DIM, BATCH = 24, 4, 8
RNG = np.random.default_rng(3)
X = np.concatenate([RNG.permutation(IDS).reshape(BATCH, 3) for _ in range(6)])
Y = RNG.normal(size=(len(X), 1)).astype("float32")


def option(storage, path):
    if storage == "DRAM":
        return None
    return tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption(
            storage_type=tf_multitier.StorageType.DRAM_SSDHASH,
            storage_path=str(path),
            storage_size=[512],
        )
    )


def model_of(layer, policy):
    keras.utils.set_random_seed(7)
    ids = keras.Input((3,), dtype="int64")
    rows = keras.layers.Flatten(dtype=policy)(layer(ids))
    return keras.Model(ids, keras.layers.Dense(1, dtype=policy)(rows))


def pair(storage, path, optimizer=None, policy="float32"):
    """Two models with equal weights: with our layer, and with that of Keras."""
    ours = kt.Embedding(
        DIM, name="emb", ev_option=option(storage, path), optimizer=optimizer, dtype=policy
    )
    theirs = keras.layers.Embedding(IDS, DIM, name="emb", dtype=policy)
    models = model_of(ours, policy), model_of(theirs, policy)
    theirs.embeddings.assign(values(models[0]))
    return models


def values(model):
    """The rows of all ids."""
    embeddings = model.get_layer("emb").embeddings
    if isinstance(embeddings, keras.Variable):
        return embeddings.numpy()
    return tf.nn.embedding_lookup(embeddings, range(IDS)).numpy()


def fit(model, optimizer, **kwargs):
    model.compile(optimizer, "mse", **kwargs)
    return model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]


def trains_alike(models, optimizers, rtol=1e-5, **kwargs):
    before = values(models[0])
    losses = [fit(model, optimizer, **kwargs) for model, optimizer in zip(models, optimizers)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=rtol)
    np.testing.assert_allclose(values(models[0]), values(models[1]), rtol=10 * rtol, atol=rtol)
    assert not np.allclose(values(models[0]), before, atol=1e-3)


@pytest.mark.parametrize(
    "name, storage", list(zip(kt.optimizers._RULES, itertools.cycle(STORAGES)))
)
def test_weight_decay_is_that_of_keras(name, storage, tmp_path):
    make = lambda: getattr(keras.optimizers, name)(0.02, weight_decay=0.5)
    trains_alike(pair(storage, tmp_path), (kt.with_rows(make()), make()))


@pytest.mark.parametrize("name, by", [("SGD", "var_list"), ("AdamW", "var_names")])
def test_rows_that_are_excluded_do_not_decay(name, by, tmp_path):
    models = pair("DRAM", tmp_path)
    optimizers = [getattr(keras.optimizers, name)(0.02, weight_decay=0.5) for _ in range(2)]
    for model, optimizer in zip(models, optimizers):
        its = {"var_list": model.get_layer("emb").weights, "var_names": ["emb"]}
        optimizer.exclude_from_weight_decay(**{by: its[by]})
    trains_alike(models, (kt.with_rows(optimizers[0]), optimizers[1]))


def test_an_optimizer_of_a_layer_decays_its_rows(tmp_path):
    models = pair("DRAM", tmp_path, tf_multitier.optimizers.SGD(0.02, weight_decay=0.5))
    trains_alike(models, [keras.optimizers.SGD(0.02, weight_decay=0.5) for _ in models])


def test_rows_follow_the_weight_decay_of_the_models_optimizer(tmp_path):
    """As it is now, whatever the optimizer had whose state is loaded."""
    models = pair("DRAM", tmp_path)
    make = lambda decay: keras.optimizers.SGD(0.02, weight_decay=decay)
    trains_alike(models, (kt.with_rows(make(0.5)), make(0.5)))
    for model, optimizer in zip(models, (kt.with_rows(make(None)), make(None))):
        model.save_weights(tmp_path / "of.weights.h5")
        model.compile(optimizer)
        optimizer.build(model.trainable_variables)
        model.load_weights(tmp_path / "of.weights.h5")
        optimizer.weight_decay = 0.3
    trains_alike(models, [model.optimizer for model in models])


def test_a_weight_decay_of_0_is_none(emulated_device):
    """HBM has no rules with a decay."""
    on_hbm = tf_multitier.StorageOption(storage_type=tf_multitier.StorageType.HBM)
    ev = tf_multitier.get_embedding_variable(
        "on_hbm", DIM, ev_option=tf_multitier.EmbeddingVariableOption(storage_option=on_hbm)
    )
    of_keras = kt.with_rows(keras.optimizers.SGD(0.1, weight_decay=0.0)).row_optimizer
    for optimizer in (of_keras, tf_multitier.optimizers.SGD(0.1, weight_decay=0.0)):
        optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([1, DIM]), [1]), ev)])
    assert ev.get_frequency([1]) == 2
    gradient = tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([1], tf.int64))
    with pytest.raises(tf.errors.UnimplementedError, match="rule adam_amsgrad does not run"):
        optimizer = tf_multitier.optimizers.AdamW(weight_decay=0.0, amsgrad=True)
        optimizer.apply_gradients([(gradient, ev)])
    for amsgrad in (False, True):
        with pytest.raises(TypeError, match="weight_decay: expected a number, .* found None"):
            tf_multitier.optimizers.AdamW(weight_decay=None, amsgrad=amsgrad)


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_negative_weight_decay_is_refused(name):
    make = getattr(tf_multitier.optimizers, name)
    with pytest.raises(ValueError, match="weight_decay: expected at least 0, found -0.5"):
        make(weight_decay=-0.5)
    ev = tf_multitier.get_embedding_variable("ev", DIM)
    gradient = tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([1], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="weight_decay: expected a finite"):
        make(weight_decay=lambda: -0.5).apply_gradients([(gradient, ev)])


def test_rows_without_a_gradient_do_not_decay():
    ev = tf_multitier.get_embedding_variable("ev", DIM, initializer=tf.ones_initializer())
    optimizer = tf_multitier.optimizers.SGD(0.1, weight_decay=0.5)
    for key in (1, 2, 2):
        optimizer.apply_gradients([(tf.IndexedSlices(tf.zeros([1, DIM]), [key]), ev)])
    found = tf.nn.embedding_lookup(ev, [1, 2, 3])[:, 0]
    np.testing.assert_allclose(found, [0.95, 0.95**2, 1], rtol=1e-6)


@pytest.fixture
def half_precision():
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


def scaled(optimizer, initial_scale):
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=initial_scale)


@pytest.mark.parametrize("own", [None, tf_multitier.optimizers.SGD], ids=["with_rows", "own"])
@pytest.mark.parametrize("storage, eagerly", list(zip(STORAGES, [False, True])))
def test_half_precision_scales_the_loss(own, storage, eagerly, tmp_path, half_precision):
    """The scale of 2**24 is too large for float16: the first steps are skipped. SGD's steps show the scale."""
    make = lambda: keras.optimizers.SGD(0.02, **({} if own else {"global_clipnorm": 0.5}))
    models = pair(storage, tmp_path, own and own(0.02), policy="mixed_float16")
    trained = scaled(make() if own else kt.with_rows(make()), 2.0**24), scaled(make(), 2.0**24)
    trains_alike(models, trained, rtol=1e-3, run_eagerly=eagerly)
    steps = {int(optimizer.iterations) for optimizer in trained}
    assert len(steps) == 1 and 0 < steps.pop() < 2 * len(X) // BATCH
    assert trained[0].dynamic_scale.numpy() == trained[1].dynamic_scale.numpy() < 2.0**24


@pytest.mark.parametrize("is_own", [True, False], ids=["optimizer of the layer", "with_rows"])
def test_compile_scales_the_loss_and_skipped_steps_leave_rows(is_own, half_precision):
    optimizer = tf_multitier.optimizers.Adam(0.01) if is_own else None
    layer = kt.Embedding(DIM, optimizer=optimizer, combiner="sum")
    ids = keras.Input((3,), dtype="int64")
    model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
    model.compile("adam" if is_own else kt.with_rows("adam"), "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    model.fit(X, np.full_like(Y, np.nan), batch_size=BATCH, verbose=0)
    [table] = layer.tables
    assert table.total_count() == 0 and model.optimizer.iterations == 0
    model.fit(X, Y, batch_size=BATCH, verbose=0)
    before = table.export()
    frequencies = table.get_frequency(range(IDS)).numpy()
    assert set(frequencies) == {int(model.optimizer.iterations)}  # each id is in each step once
    model.fit(X, np.full_like(Y, np.nan), batch_size=BATCH, verbose=0)
    same_bits(before, table.export())


@pytest.mark.parametrize("is_own", [True, False], ids=["optimizer of the layer", "with_rows"])
def test_a_gradient_that_is_not_finite_in_rows_alone_skips_the_step(is_own):
    layer, dense = kt.Embedding(DIM), keras.Variable(tf.zeros([1]))
    layer.optimizer = tf_multitier.optimizers.SGD() if is_own else None
    layer.build()
    optimizer = scaled(keras.optimizers.SGD() if is_own else kt.with_rows("sgd"), 1.0)
    for value, steps in ((np.inf, 0), (1.0, 1), (np.nan, 1)):
        rows = tf.IndexedSlices(tf.fill([1, DIM], value), tf.constant([1], tf.int64))
        optimizer.apply([rows, tf.ones([1])], [*layer.weights, dense])
        assert optimizer.iterations == steps == layer.tables[0].get_frequency([1])
        assert bool(dense.numpy()) == bool(steps)


def test_a_scaled_loss_of_rows_in_a_world_is_refused(monkeypatch):
    """In the first step, before a process skips one."""
    layer = kt.Embedding(DIM, optimizer=tf_multitier.optimizers.SGD())
    layer.build()
    monkeypatch.setattr(layer.tables[0], "of_world", object())
    zeros = tf.IndexedSlices(tf.zeros([1, DIM]), [0])
    with pytest.raises(NotImplementedError, match="found it in a LossScaleOptimizer"):
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()).apply([zeros], layer.weights)


@pytest.mark.parametrize(
    "name, settings, storage",
    [
        ("SGD", {}, "DRAM"),
        ("Adam", {"weight_decay": 0.5}, "DRAM_SSDHASH"),
        ("Adagrad", {"clipnorm": 0.1}, "DRAM_SSDHASH"),
        ("Nadam", {"clipvalue": 0.01}, "DRAM"),
    ],
)
def test_gradients_are_accumulated(name, settings, storage, tmp_path):
    """Keras' steps of a dense table, also where the last steps of an epoch are fewer."""
    make = lambda: getattr(keras.optimizers, name)(0.05, gradient_accumulation_steps=4, **settings)
    models = pair(storage, tmp_path)
    trains_alike(models, (kt.with_rows(make()), make()))
    [table] = models[0].get_layer("emb").tables
    assert set(table.get_frequency(range(IDS)).numpy()) == {2 * len(X) // BATCH}
    assert models[0].optimizer.row_optimizer.iterations == 2 * len(X) // BATCH // 4


def test_accumulated_gradients_are_those_of_a_larger_batch(tmp_path):
    rng = np.random.default_rng(5)
    x, y = rng.integers(0, IDS, (64, 3)), rng.normal(size=(64, 1))
    own = tf_multitier.optimizers.SGD(0.1)
    found = []
    for optimizer, steps in ((None, 1), (None, 4), (own, 4)):
        model, _ = pair("DRAM", tmp_path, optimizer)
        settings = {"gradient_accumulation_steps": steps} if steps > 1 else {}
        model.compile(kt.with_rows(keras.optimizers.SGD(0.1, **settings)), "mse")
        model.fit(x, y, batch_size=32 // steps, epochs=2, shuffle=False, verbose=0)
        found.append(values(model))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)
    same_bits(found[1], found[2])


def test_gradients_that_are_kept_are_saved(tmp_path):
    make = lambda: kt.with_rows(keras.optimizers.Adam(0.05, gradient_accumulation_steps=4))
    whole, _ = pair("DRAM", tmp_path)
    fit(whole, make())
    part, _ = pair("DRAM", tmp_path)
    part.compile(make(), "mse")
    part.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)  # the last two steps are kept
    part.save(tmp_path / "part.keras")
    loaded = keras.saving.load_model(tmp_path / "part.keras")
    loaded.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    same_bits(values(loaded), values(whole))


def accumulating(steps=4, optimizer="SGD", **settings):
    make = getattr(keras.optimizers, optimizer)
    return kt.with_rows(make(0.05, gradient_accumulation_steps=steps, **settings))


def test_gradients_that_are_kept_are_loaded_with_the_variables_of_keras(tmp_path):
    models = [pair("DRAM", tmp_path)[0] for _ in range(2)]
    for model in models:
        model.compile(accumulating(), "mse")
    trained, other = models
    two_steps = lambda model: model.fit(X[: 2 * BATCH], Y[: 2 * BATCH], BATCH, verbose=0)
    two_steps(trained)
    trained.save_weights(tmp_path / "w.weights.h5")
    with pytest.warns(UserWarning, match="Skipping variable loading"):
        other.load_weights(tmp_path / "w.weights.h5")  # before the optimizer is built
    two_steps(other)
    assert len(other.optimizer._kept.arrays()["keys_0"]) == 2 * X[:BATCH].size
    other.load_weights(tmp_path / "w.weights.h5")
    kept = trained.optimizer._kept.arrays()
    same_bits(list(other.optimizer._kept.arrays().values()), list(kept.values()))

    store: dict = {}
    trained.optimizer.save_own_variables(store)
    steps = str([v.path for v in other.optimizer.variables].index(other.optimizer._iterations.path))
    store |= {"kept_values_0": np.zeros([2, DIM + 1]), steps: np.array(77)}
    with pytest.raises(ValueError, match=rf"tables with the dims \[{DIM}\], found \[{DIM + 1}\]"):
        other.optimizer.load_own_variables(store)
    assert other.optimizer._iterations == 2
    del store["kept_keys_0"], store["kept_values_0"]
    other.optimizer.load_own_variables(store)
    assert other.optimizer._kept.arrays()["keys_0"].size == 0


def test_kept_gradients_do_not_outlive_an_update_without_one_of_theirs():
    layer, dense = kt.Embedding(DIM), keras.Variable(tf.zeros([1]))
    layer.build()
    optimizer = accumulating(steps=2)
    optimizer.build([*layer.weights, dense])
    for _ in range(2):
        rows = tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([1], tf.int64))
        optimizer.apply([rows, tf.ones([1])], [*layer.weights, dense])
        optimizer.build([*layer.weights, dense])
        assert optimizer._kept.arrays()["keys_0"].size == 1
        optimizer.apply([tf.ones([1])], [dense])
        assert optimizer._kept.arrays()["keys_0"].size == 0


def test_accumulation_that_cannot_be_is_refused():
    model, _ = pair("DRAM", None)
    with pytest.raises(NotImplementedError, match="gradient_accumulation_steps and global_clipno"):
        fit(model, accumulating(global_clipnorm=1.0))
    two = [tf.constant_initializer(1.0), tf.constant_initializer(2.0)]
    of_two = tf_multitier.get_embedding_variable("of_two", DIM, initializer=two)
    with pytest.raises(NotImplementedError, match="'of_two' .*initializer that is a list"):
        accumulating().build([kt.held_variables.HeldRows(of_two, of_two, "rows")])
    model, _ = pair("DRAM", None, tf_multitier.optimizers.SGD())
    with pytest.raises(NotImplementedError, match="without gradient_accumulation_steps, or .*SGD"):
        fit(model, keras.optimizers.SGD(gradient_accumulation_steps=2))

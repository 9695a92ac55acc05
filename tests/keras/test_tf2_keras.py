"""Keras 3 layers and optimizers over embedding variables."""

import os
import re

import forks
import keras
import numpy as np
import pytest
import tensorflow as tf
from paths import environment

import tf_multitier
from keras_util import fit
from keras_util import model
from keras_util import predicted
from keras_util import tables
from keras_util import X
from keras_util import Y
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
optimizers = tf_multitier.optimizers


# ---- layers


def test_dense_ragged_and_sparse_ids_give_the_same_embeddings():
    layer, pooling = kt.Embedding(4, name="a"), kt.Embedding(4, combiner="sum", name="a")
    dense = layer(X[:5])
    assert dense.shape == (5, 3, 4) and layer.compute_output_shape((None, 3)) == (None, 3, 4)
    same_bits(layer(tf.RaggedTensor.from_tensor(X[:5])).to_tensor(), dense)
    pooled = pooling(X[:5])
    same_bits(pooling(tf.RaggedTensor.from_tensor(X[:5])), pooled)
    same_bits(pooling(tf.sparse.from_dense(X[:5] + 1)), pooling(X[:5] + 1))
    np.testing.assert_allclose(pooled.numpy().shape, (5, 4))


def test_padding_is_masked_and_left_out_of_pooling():
    initial = keras.initializers.RandomUniform(seed=1)
    layer = kt.Embedding(4, initial, mask_zero=True)
    assert layer.compute_mask(tf.constant([[1, 0]])).numpy().tolist() == [[True, False]]
    pooling = kt.Embedding(4, initial, mask_zero=True, combiner="sum")
    same_bits(pooling(np.array([[5, 0], [0, 0]])), tf.stack([layer(np.array([5]))[0], tf.zeros(4)]))


def test_ids_that_are_floats_are_cast_as_in_keras_unless_they_may_be_rounded():
    for dtype in ("float32", "mixed_float16"):
        layer = kt.Embedding(4, dtype=dtype)
        same_bits(layer(tf.constant([3.0, 5000.0])), layer(tf.constant([3, 5000])))
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected ids below 16777216"):
            layer(tf.constant([2.0**24]))
    ids = keras.Input((3,))  # float32
    trained = keras.Model(ids, kt.Embedding(4, combiner="sum", name="emb")(ids))
    trained.compile(kt.with_rows("sgd"), "mse")
    trained.fit(X, np.ones((128, 4)), verbose=0)
    assert tables(trained)[0].export()[0].numpy().tolist() == np.unique(X).tolist()
    group = kt.GroupEmbedding({"a": {"output_dim": 2}})
    assert group({"a": tf.constant([[1.0], [2.0]])})["a"].shape == (2, 2)


def test_a_model_whose_call_looks_up_columns_of_its_input_trains():
    """Keras builds such a model with float32 in place of the ids."""

    class Recommender(keras.Model):
        def __init__(self):
            super().__init__()
            self.users, self.items = kt.Embedding(4), kt.Embedding(4)

        def call(self, pairs):
            rows = self.users(pairs[:, 0]) * self.items(pairs[:, 1])
            return keras.ops.sum(rows, 1, keepdims=True)

    trained = Recommender()
    trained.compile(kt.with_rows("adam"), "mse")
    trained.fit(X[:, :2], Y, verbose=0)
    assert int(trained.users.tables[0].total_count()) == np.unique(X[:, 0]).size


def test_a_half_precision_policy_gives_half_precision_output():
    assert kt.Embedding(4, dtype="mixed_bfloat16")(X[:2]).dtype == tf.bfloat16


def test_a_group_gives_a_dict_or_one_tensor_by_one_op():
    inputs = {name: keras.Input((3,), dtype="int64", name=name) for name in "ab"}
    for concat in (False, True):
        features = {"a": kt.Embedding(4, combiner="sum"), "b": {"output_dim": 6}}
        group = kt.GroupEmbedding(features, concat=concat, optimizer=optimizers.SGD(0.1))
        outputs = group(inputs)
        shapes = tf.nest.map_structure(lambda t: t.shape, outputs) if not concat else outputs.shape
        assert shapes == ((None, 10) if concat else {"a": (None, 4), "b": (None, 6)})
    trained = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    trained.compile("sgd", "mse")
    trained.fit({"a": X, "b": X}, Y, batch_size=32, verbose=0)
    assert [int(t.total_count()) for t in group.tables] == [np.unique(X).size] * 2
    function = tf.function(lambda x: group({"a": x, "b": x})).get_concrete_function(tf.constant(X))
    types = [op.type for op in function.graph.get_operations()]
    assert types.count("MultitierGroupLookup") == 1


def test_summary_counts_the_rows_that_exist():
    trained = model(optimizers.SGD(0.1))
    assert trained.get_layer("emb").count_params() == 0
    fit(trained)
    assert trained.get_layer("emb").count_params() == np.unique(X).size * 4


# ---- training


def static_twin(trained):
    """A model of Keras' own Embedding with the initial rows of `trained`."""
    keras.utils.set_random_seed(7)
    ids = keras.Input((3,), dtype="int64")
    layer = keras.layers.Embedding(40, 4)
    pooled = keras.layers.Lambda(lambda v: tf.reduce_sum(v, 1), output_shape=(4,))(layer(ids))
    twin = keras.Model(ids, keras.layers.Dense(1)(pooled))
    layer.embeddings.assign(tf.nn.embedding_lookup(tables(trained)[0], list(range(40))))
    twin.layers[-1].set_weights(trained.layers[-1].get_weights())
    return twin


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "RMSprop", "Adadelta", "Ftrl"])
def test_losses_are_those_of_static_tables(name):
    trained = model(name="emb")
    twin = static_twin(trained)
    # Every id once in every batch: Keras squares the gradient of each occurrence, ours are summed first.
    x, y = np.arange(39).reshape(13, 3), Y[:13]
    losses = []
    for one, optimizer in (
        (trained, kt.with_rows(getattr(keras.optimizers, name)(0.01))),
        (twin, getattr(keras.optimizers, name)(0.01)),
    ):
        one.compile(optimizer, "mse")
        history = one.fit(x, y, batch_size=13, epochs=10, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-5)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("how", ["function", "eagerly", "steps"])
def test_each_way_of_running_steps_trains_the_same_bits(how):
    settings = {
        "function": {},
        "eagerly": {"run_eagerly": True},
        "steps": {"steps_per_execution": 2},
    }
    first, second = (model(optimizers.Adam(0.01)) for _ in range(2))
    fit(first, "sgd")
    fit(second, "sgd", **settings[how])
    same_bits(tables(first)[0].export(), tables(second)[0].export())


@pytest.mark.parametrize("with_model", [False, True])
def test_a_shared_layer_counts_steps_and_occurrences(with_model):
    layer = kt.Embedding(4, optimizer=None if with_model else optimizers.SGD(0.1), combiner="sum")
    a, b = keras.Input((3,), dtype="int64"), keras.Input((3,), dtype="int64")
    trained = keras.Model([a, b], keras.layers.Dense(1)(layer(a) + layer(b)))
    trained.compile(kt.with_rows("adam") if with_model else "adam", "mse")
    x = np.tile([[1, 2, 2]], (64, 1))
    trained.fit([x, x], Y[:64], batch_size=32, verbose=0)
    [table] = layer.tables
    assert table.get_version([1, 2]).numpy().tolist() == [1, 1]  # two steps: 0 and 1
    assert table.get_frequency([1, 2]).numpy().tolist() == [128, 256]


@pytest.mark.parametrize("clip", ["clipnorm", "clipvalue", "global_clipnorm"])
def test_rows_are_clipped_with_the_model(clip):
    trained = model()
    before = tf.nn.embedding_lookup(tables(trained)[0], list(range(40)))
    dense = trained.layers[-1].get_weights()
    fit(trained, kt.with_rows(keras.optimizers.SGD(1.0, **{clip: 1e-3})), epochs=1)
    moved = tf.nn.embedding_lookup(tables(trained)[0], list(range(40))) - before
    steps = 128 // 32
    if clip == "clipvalue":
        assert 0 < tf.reduce_max(tf.abs(moved)) <= steps * 1e-3 * 1.001
        return
    parts = (
        [moved]
        if clip == "clipnorm"
        else [moved, *np.subtract(trained.layers[-1].get_weights()[0], dense[0])]
    )
    assert (
        0 < tf.linalg.global_norm([tf.cast(p, tf.float32) for p in parts]) <= steps * 1e-3 * 1.001
    )


def test_a_partitioned_layer_trains_the_same_rows():
    first, second = model(optimizers.SGD(0.1)), model(optimizers.SGD(0.1), partitions=3)
    fit(first), fit(second)
    same_bits(
        sorted(first.get_layer("emb").embeddings.export()[0].numpy()),
        sorted(second.get_layer("emb").embeddings.export()[0].numpy()),
    )
    np.testing.assert_allclose(predicted(first), predicted(second), rtol=1e-5)


# ---- refusals


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_stock_optimizer_without_a_row_optimizer_is_refused_naming_both_ways(name):
    with pytest.raises(ValueError, match="optimizer=tf_multitier.optimizers.Adagrad.*with_rows"):
        fit(model(), name)


@pytest.mark.parametrize("name", ["user id", "a:b", ""])
def test_a_feature_name_that_no_variable_may_have_is_refused(name):
    with pytest.raises(ValueError, match=f"expected names of features and tables .*found '{name}'"):
        kt.GroupEmbedding({"a": {"output_dim": 2}, name: {"output_dim": 2}})


def test_static_loss_scales_are_refused_by_name():
    setting = {"loss_scale_factor": 128.0}
    for optimizer in (
        keras.optimizers.SGD(**setting),
        kt.with_rows(keras.optimizers.Adam(**setting)),
    ):
        with pytest.raises(NotImplementedError, match="'emb'.*loss_scale_factor"):
            fit(model(optimizers.SGD()), optimizer)


def test_optimizers_without_a_rule_are_refused_by_name():
    with pytest.raises(
        NotImplementedError, match="with_rows has no rule for Adafactor; supported: Adadelta"
    ):
        kt.with_rows(keras.optimizers.Adafactor())
    with pytest.raises(TypeError, match="expected an optimizer of Keras .* give those of tf_mul"):
        kt.with_rows(optimizers.Adam())
    with pytest.raises(TypeError, match="optimizer: expected one of tf_multitier.optimizers"):
        kt.Embedding(4, optimizer=keras.optimizers.Adam())


# ---- TensorBoard, strategies, XLA


@pytest.mark.parametrize("frequency, steps", [("epoch", [4, 8]), (3, [3, 6])])
def test_statistics_of_tables_go_to_tensorboard(tmp_path, frequency, steps):
    trained = model(optimizers.SGD(0.1), partitions=2)
    trained.compile("sgd", "mse")
    callback = kt.StatisticsCallback(tmp_path, frequency)
    trained.fit(X, Y, batch_size=32, epochs=2, verbose=0, callbacks=[callback])
    [path] = tmp_path.iterdir()
    found = {}
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            found.setdefault(value.tag, {})[event.step] = value.simple_value
    assert list(found["rows/emb/embeddings"]) == steps
    assert found["rows/all"][steps[-1]] == np.unique(X).size


def test_statistics_of_a_model_without_tables_are_refused(tmp_path):
    stock = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    stock.compile("sgd", "mse")
    with pytest.raises(ValueError, match="StatisticsCallback: expected embedding variables"):
        stock.fit(X, Y, verbose=0, callbacks=[kt.StatisticsCallback(tmp_path)])
    with pytest.raises(ValueError, match="update_freq: expected 'epoch' or a number.*found 0"):
        kt.StatisticsCallback(tmp_path, 0)


REPLICAS = """
import sys
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
import keras_util as t
from tf_multitier import optimizers
for with_rows in (False, True):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        trained = t.model(None if with_rows else optimizers.SGD(0.1))
        trained.compile(t.kt.with_rows("adam") if with_rows else "adam", "mse")
    try:
        trained.fit(t.X, t.Y, verbose=0)
    except NotImplementedError as error:
        print(int(t.tables(trained)[0].total_count()), error)
"""


def test_strategies_of_several_replicas_are_refused_by_name():
    run = forks.run(["-c", REPLICAS], env=environment())
    lines = [line for line in run.stdout.splitlines() if "replica" in line]
    assert len(lines) == 2, run.stdout + run.stderr
    for line, name in zip(lines, ("SGD", "Adam")):
        assert re.search(
            rf"^0 .*optimizers.{name}: .* one replica in .* found MirroredStrategy with 2 replicas",
            line,
        )


def test_a_strategy_of_one_replica_trains():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        trained = model(optimizers.SGD(0.1))
        trained.compile("adam", "mse")
    trained.fit(X, Y, verbose=0)
    assert int(tables(trained)[0].total_count()) == np.unique(X).size


def test_jit_compile_goes_on_without_xla():
    trained = model(optimizers.SGD(0.1))
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        fit(trained, "adam", jit_compile=True)
    assert int(tables(trained)[0].total_count()) == np.unique(X).size


# ---- what Keras makes of features


def test_a_feature_space_feeds_a_group():
    space = keras.utils.FeatureSpace(
        {
            "word": keras.utils.FeatureSpace.string_categorical(output_mode="int"),
            "number": keras.utils.FeatureSpace.integer_hashed(num_bins=50, output_mode="int"),
        },
        output_mode="dict",
    )
    raw = {"word": ["x", "y", "x", "z"], "number": [1, 2, 3, 4]}
    dataset = tf.data.Dataset.from_tensor_slices(raw)
    space.adapt(dataset)
    features = {name: kt.Embedding(4, combiner="sum") for name in raw}
    group = kt.GroupEmbedding(features, concat=True, optimizer=optimizers.SGD(0.1))
    ids = space.get_encoded_features()
    trained = keras.Model(ids, keras.layers.Dense(1)(group(ids)))
    trained.compile("adam", "mse")
    batches = dataset.batch(2).map(lambda raw: (space(raw), tf.ones([2, 1])))
    trained.fit(batches, shuffle=False, verbose=0)
    words, numbers = group.tables
    encoded = space({name: tf.constant(values) for name, values in raw.items()})
    assert words.get_frequency(encoded["word"][:, 0]).numpy().tolist() == [2, 1, 2, 1]
    distinct = np.unique(encoded["number"]).size
    assert int(words.total_count()) == 3 and int(numbers.total_count()) == distinct


def test_hashing_and_string_lookup_feed_the_layer():
    words = tf.constant([["a", "b"], ["c", "a"]])
    hashed = keras.layers.Hashing(1000)(words)
    looked_up = keras.layers.StringLookup(vocabulary=["a", "b", "c"])(words)
    for ids in (hashed, looked_up):
        assert kt.Embedding(4, combiner="mean")(ids).shape == (2, 4)


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    source = os.path.join(os.path.dirname(kt.__file__), "__init__.py")
    with open(source, encoding="utf-8") as file:
        with pytest.raises(
            ImportError, match="TensorFlow backend, found Keras 3.*with the backend 'jax'"
        ):
            exec(compile(file.read(), source, "exec"), {"__name__": "tf_multitier.keras"})

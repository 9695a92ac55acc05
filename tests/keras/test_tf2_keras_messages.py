"""Messages for uses that Keras and TensorFlow users try first, and that embedding variables do not have."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from worlds import needs_eager

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
optimizers = tf_multitier.optimizers
IDS = tf.constant([1, 2, 3], tf.int64)


def two_parts():
    return tf.compat.v1.fixed_size_partitioner(2)


def test_input_dim_is_refused():
    for make in (
        lambda: kt.Embedding(input_dim=1000, output_dim=16),
        lambda: kt.GroupEmbedding({"a": {"input_dim": 1000, "output_dim": 16}}),
        lambda: kt.GroupEmbedding({"a": {"output_dim": 16}}, input_dim=1000),
    ):
        with pytest.raises(
            TypeError,
            match=r"has no input_dim: expected none, found input_dim=1000: .*leave it out",
        ):
            make()
    with pytest.raises(TypeError, match=r"found 16: Embedding has no input_dim"):
        kt.Embedding(1000, 16)


@pytest.mark.parametrize(
    "make, build",
    [
        (lambda: kt.Embedding(4, name="item"), lambda layer: layer.build()),
        (lambda: kt.Embedding(4, name="item"), lambda layer: layer(IDS)),
        (
            lambda: kt.GroupEmbedding({"a": {"output_dim": 4}}, name="item"),
            lambda layer: layer({"a": IDS}),
        ),
    ],
)
def test_a_layer_that_is_not_built_says_so(make, build):
    layer = make()
    assert not hasattr(layer, "embeddings")  # as in keras.layers.Embedding
    with pytest.raises(AttributeError, match="layer 'item' has no 'embeddings' yet.*build()"):
        _ = layer.embeddings
    build(layer)
    assert layer.embeddings is not None
    for name in ("embedding", "embeddings_of_none"):
        with pytest.raises(AttributeError, match=f"object has no attribute '{name}'"):
            getattr(layer, name)


@pytest.mark.parametrize("partitions", [1, 2])
def test_row_optimizers_take_the_weights_of_a_layer(partitions):
    layer = kt.Embedding(4, "ones", partitions=partitions)
    optimizer = optimizers.SGD(1.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(IDS))
    weights = layer.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    assert layer(IDS).numpy().tolist() == [[0.0] * 4] * 3
    dense = keras.layers.Dense(1)
    dense.build((None, 4))
    with pytest.raises(TypeError, match="found 'kernel': train it with another optimizer"):
        optimizer.apply_gradients(zip([None] * 2, dense.trainable_variables))


def gradient(variable, is_watched=False):
    with tf.GradientTape() as tape:
        if is_watched:
            tape.watch(getattr(variable, "parts", variable))
        loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, IDS))
    return tape.gradient(loss, variable)


def loaded(variable, path):
    module = tf.Module()
    module.variable = variable
    tf.saved_model.save(module, path)
    return tf.saved_model.load(path).variable


@pytest.mark.parametrize("partitioner", [None, two_parts])
def test_variables_that_are_not_trainable_are_named(partitioner, tmp_path):
    make = lambda **kwargs: tf_multitier.get_embedding_variable(
        "u", 4, partitioner=partitioner and partitioner(), **kwargs
    )
    with tf_multitier.serving.read_only():
        read_only = make()
    for variable in (loaded(make(), str(tmp_path / "m")), read_only, make(trainable=False)):
        pairs = [(gradient(variable), variable)]
        with pytest.raises(ValueError, match="variables of a loaded SavedModel.* tape.watch"):
            optimizers.SGD(1.0).apply_gradients(pairs)
    for variable in (loaded(make(), str(tmp_path / "m")), make(trainable=False)):
        before = tf.nn.embedding_lookup(variable, IDS)
        optimizers.SGD(1.0).apply_gradients([(gradient(variable, is_watched=True), variable)])
        np.testing.assert_allclose(tf.nn.embedding_lookup(variable, IDS), before - 1)
    unused = make()
    with pytest.raises(ValueError, match="the loss does not depend on a lookup"):
        optimizers.SGD(1.0).apply_gradients([(None, unused)])


def test_a_file_of_hdf5_is_refused_and_the_files_to_use_are_named(tmp_path):
    model = keras.Sequential([kt.Embedding(4, combiner="sum"), keras.layers.Dense(1)])
    model(np.array([[1, 2]]))
    for name in ("m.h5", "m.hdf5"):
        with pytest.raises(
            NotImplementedError, match=r"file '\.keras' or .* save_weights.*what it held is lost"
        ):
            model.save(tmp_path / name)


def test_quantization_leaves_rows_as_they_are_and_says_so(tmp_path):
    model = keras.Sequential([kt.Embedding(4, combiner="sum", name="item"), keras.layers.Dense(1)])
    model.compile(kt.with_rows("sgd"), "mse")
    ids = np.array([[1, 2], [3, 3]])
    model.fit(ids, np.ones((2, 1)), verbose=0)
    before = model.predict(ids, verbose=0)
    with pytest.warns(UserWarning, match="layer 'item': quantize: .*found int8: rows keep"):
        model.quantize("int8")
    after = model.predict(ids, verbose=0)
    assert model.layers[1].kernel.dtype == "int8"
    np.testing.assert_allclose(after, before, atol=0.02)
    model.fit(ids, np.ones((2, 1)), verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.predict(ids), model.predict(ids))
    with pytest.raises(NotImplementedError, match="dtype: expected a policy without quantization"):
        kt.Embedding(4, dtype="int8_from_float32")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"partitions": 0}, "partitions: expected at least 1, found 0"),
        ({"partitions": -1}, "partitions: expected at least 1, found -1"),
        ({"partitions": 2.0}, "partitions: expected an integer, found 2.0"),
        ({"partitions": "2"}, "partitions: expected an integer, found '2'"),
        ({"ev_option": 5}, "ev_option: expected a tf_multitier.EmbeddingVariableOption.*found 5"),
        ({"ev_option": {"x": 1}}, "ev_option: expected a tf_multitier.*found {'x': 1}"),
        ({"optimizer": {"learning_rate": 0.1}}, "optimizer: expected one of tf_multitier.opt"),
        ({"optimizer": {"row_optimizer": "Lamb", "arguments": {}}}, "optimizer: expected one of"),
        ({"dtype": "int32"}, "dtype: expected a type of floating-point numbers, found int32"),
    ],
)
def test_arguments_of_a_layer_are_checked_when_it_is_made(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        kt.Embedding(4, **arguments)


def used_layer():
    layer = kt.Embedding(4, combiner="sum")
    layer(IDS)
    return layer


@pytest.mark.parametrize(
    "features",
    [
        lambda: ["a", "b"],
        dict,
        lambda: {"a": 5},
        lambda: {"a": keras.layers.Embedding(3, 4)},
        lambda: {"a": tf_multitier.get_embedding_variable("a", 4)},
        lambda: {"a": used_layer()},
        lambda: {"a": type("Sub", (kt.Embedding,), {})(4, combiner="sum")},  # its call may differ
    ],
)
def test_a_group_takes_layers_that_are_not_used_or_their_arguments(features):
    with pytest.raises(
        TypeError, match="expected a (dict with|tf_multitier.keras.Embedding, no sub)"
    ):
        kt.GroupEmbedding(features())


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_group_is_called_with_a_dict_of_its_features(symbolic):
    ids = keras.Input((2,), dtype="int64") if symbolic else tf.constant([[1, 2]])
    make = lambda: kt.GroupEmbedding({"a": {"output_dim": 4}, "b": {"output_dim": 4}})
    for inputs in (ids, [ids, ids]):
        with pytest.raises(TypeError, match=r"expected a dict of the features \['a', 'b'\], found"):
            make()(inputs)
    with pytest.raises(ValueError, match=r"features \['a', 'b'\], found none of \['b'\]"):
        make()({"a": ids})


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize(
    "use",
    [
        lambda x, rows: tf.matmul(x, rows),
        lambda x, rows: tf.matmul(x, rows, transpose_b=True),
        lambda x, rows: x @ rows,
        lambda x, rows: tf.tensordot(x, rows, 1),
        lambda x, rows: tf.einsum("ij,kj->ik", x, rows),
        lambda x, rows: keras.ops.matmul(x, keras.ops.transpose(rows)),
        lambda x, rows: tf.function(lambda: tf.matmul(x, rows, transpose_b=True))(),
        lambda x, rows: np.dot(x, rows),
    ],
)
def test_the_embeddings_of_a_layer_in_a_product_name_what_looks_ids_up(use, partitions):
    layer = kt.Embedding(4, partitions=partitions)
    layer.build()
    with pytest.raises(
        NotImplementedError, match=r"look ids up with layer\(ids\) .*export\(\)"
    ) as e:
        use(tf.ones([2, 4]), layer.embeddings)
    assert "report_uninitialized" not in str(e.value)


def test_a_combiner_refuses_a_scalar():
    with pytest.raises(ValueError, match=r"expected shape \[batch\] or .*, found a scalar"):
        kt.Embedding(4, combiner="sum")(tf.constant(1))


@pytest.mark.parametrize("partitioner", [None, two_parts])
def test_variables_are_not_copied_or_pickled(partitioner):
    module = tf.Module()
    module.variable = tf_multitier.get_embedding_variable(
        "u", 4, partitioner=partitioner and partitioner()
    )
    for what in (module, module.variable):
        for how in (copy.deepcopy, pickle.dumps):
            with pytest.raises(NotImplementedError, match="'u' cannot be copied or pickled"):
                how(what)
    assert copy.copy(module.variable) is module.variable


def test_a_partitioned_variable_has_no_identity_for_keras_and_says_so():
    variable = tf_multitier.get_embedding_variable("u", 4, partitioner=two_parts())
    assert not hasattr(variable, "_unique_id")
    assert getattr(variable, "_unique_id", None) is None
    with pytest.raises(NotImplementedError, match="'u' .* an update by an optimizer of Keras is"):
        _ = variable._unique_id


@pytest.mark.parametrize("partitioner", [None, two_parts])
@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "RMSprop", "Adagrad", "Lion", "Nadam", "Lamb", "Muon"]
)
def test_optimizers_of_keras_refuse_a_variable_without_its_layer(name, partitioner):
    variable = tf_multitier.get_embedding_variable(
        "u", 4, partitioner=partitioner and partitioner()
    )
    pairs = [(gradient(variable), variable)]
    before = variable.export()
    with pytest.raises(NotImplementedError, match="train it with .* of tf_multitier.optimizers"):
        getattr(keras.optimizers, name)().apply_gradients(pairs)
    if name == "Adam":
        with pytest.raises(NotImplementedError, match="train it with .* tf_multitier.optimizers"):
            kt.with_rows("adam").apply_gradients(pairs)
    assert [c.numpy().tolist() for c in variable.export()] == [c.numpy().tolist() for c in before]

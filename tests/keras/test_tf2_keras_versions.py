"""Our layers, rows, optimizers and callbacks are of Keras 3. Where Keras 2 meets them, one message names both."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import keras as keras_of_tensorflow

import tf_multitier
from worlds import needs_eager

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
tf_keras = pytest.importorskip("tf_keras")
optimizers = tf_multitier.optimizers

IDS = np.array([[1, 2], [3, 4]])
Y = np.ones([2, 1], np.float32)


def refused(package="tf_keras"):
    return pytest.raises(
        TypeError,
        match=rf"expected Keras 3 \(keras {keras.__version__}\), found .* of Keras 2 \({package} .*: make the whole model with `import ke",
    )


def layer(**kwargs):
    return kt.Embedding(4, combiner="sum", name="emb", **kwargs)


def group():
    return kt.GroupEmbedding({"a": {"output_dim": 4}}, concat=True)


def subclassed(make, attribute=lambda one: one):
    class Model(tf_keras.Model):
        def __init__(self):
            super().__init__()
            made = make()
            self.held = attribute(made)
            self.look_up = lambda ids: made(
                {"a": ids} if isinstance(made, kt.GroupEmbedding) else ids
            )
            self.dense = tf_keras.layers.Dense(1)

        def call(self, ids):
            return self.dense(self.look_up(ids))

    model = Model()
    model.compile("sgd", "mse")
    model.fit(IDS, Y, verbose=0)


@pytest.mark.parametrize("kind", [{}, {"ragged": True}, {"sparse": True}])
def test_inputs_of_keras_2_are_refused(kind):
    ids = tf_keras.Input((2,), dtype="int64", **kind)
    with refused():
        layer()(ids)
    with refused():
        group()({"a": ids})


def test_layers_in_models_of_keras_2_are_refused():
    for make in (layer, group):
        with refused():
            tf_keras.Sequential([make()])
        with refused():
            tf_keras.Sequential().add(make())
        for attribute in (
            lambda one: one,
            lambda one: [one],
            lambda one: {"a": one},
            lambda one: None,
        ):
            with refused():
                subclassed(make, attribute)
    ids = tf_keras.Input((2,), dtype="int64")
    with refused():
        tf_keras.layers.Lambda(layer())(ids)


def test_optimizers_of_keras_2_are_refused():
    for optimizer in (tf_keras.optimizers.Adam(), tf_keras.optimizers.legacy.Adam()):
        with refused():
            kt.with_rows(optimizer)
        with refused():
            layer(optimizer=optimizer)
        made = layer()
        with refused():
            made.optimizer = optimizer
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(made(IDS))
        weights = made.trainable_weights
        with refused():
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))


def test_models_of_keras_2_refuse_our_optimizers_and_callbacks(tmp_path):
    stock = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    with refused():
        stock.compile(kt.with_rows("adam"), "mse")
    stock.compile("adam", "mse")
    with refused():
        stock.fit(IDS, Y, verbose=0, callbacks=[kt.StatisticsCallback(tmp_path)])


@pytest.mark.parametrize(
    "argument, value",
    [
        ("embeddings_initializer", tf_keras.initializers.RandomUniform()),
        ("activity_regularizer", tf_keras.regularizers.L2(0.1)),
        ("dtype", tf_keras.mixed_precision.Policy("mixed_float16")),
    ],
)
def test_arguments_of_keras_2_are_refused(argument, value):
    with refused():
        layer(**{argument: value})
    with refused():
        kt.GroupEmbedding({"a": {"output_dim": 4, argument: value}})


def test_a_layer_of_keras_2_is_no_feature():
    with refused():
        kt.GroupEmbedding({"a": tf_keras.layers.Embedding(10, 4)})


def test_the_copy_of_keras_2_in_tensorflow_is_refused():
    with refused("tensorflow.python.keras"):
        layer()(keras_of_tensorflow.Input((2,), dtype="int64"))


def test_keras_3_finds_what_it_asks_for_next_to_keras_2():
    model = keras.Sequential([keras.Input((2,), dtype="int64"), layer(), keras.layers.Dense(1)])
    model.compile(kt.with_rows("adam"), "mse")
    model.fit(IDS, Y, verbose=0)
    assert model.layers[0].tables[0].export()[0].numpy().tolist() == [1, 2, 3, 4]
    assert not hasattr(model.layers[0], "_keras_history")


def test_the_error_of_a_property_is_not_hidden():
    class Layer(kt.Embedding):
        width = property(lambda self: self.no_such_name)

    for name in ("width", "no_such_name"):
        with pytest.raises(AttributeError, match="'Layer' object has no attribute 'no_such_name'"):
            getattr(Layer(4), name)

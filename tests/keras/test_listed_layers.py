"""tf.train.Checkpoint has what layers hold in lists, tuples and dicts, if there is an embedding variable among it."""

import keras
import numpy as np
import tensorflow as tf

import tf_multitier
import tf_multitier.keras as multitier_keras
from worlds import needs_eager

pytestmark = needs_eager
IDS = np.arange(24).reshape(8, 3)


class Block(keras.layers.Layer):
    """Has an embedding below an attribute, in a block that is in a list."""

    def __init__(self):
        super().__init__()
        self.rows = multitier_keras.Embedding(4, combiner="sum")
        self.norms = (keras.layers.BatchNormalization(),)

    def build(self, shape):
        self.scales = [self.add_weight(shape=(4,), initializer="ones")]

    def call(self, ids, training=False):
        return self.norms[0](self.rows(ids), training=training) * self.scales[0]


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(), Block()]
        self.named = {"last": keras.layers.Dense(1)}

    def call(self, ids, training=False):
        return self.named["last"](sum(block(ids, training=training) for block in self.blocks))


def compiled(model):
    model.compile(multitier_keras.with_rows(keras.optimizers.Adam(0.1)), "mse")
    return model


def test_a_checkpoint_has_what_is_in_lists(tmp_path):
    model = compiled(Model())
    model.fit(IDS, np.ones(8), verbose=0)
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "model"))
    assert len(tf_multitier.checkpoint.load(path).tables) == 2
    # Uncompiled: no optimizer has the weights.
    restored = Model()
    restored(IDS)
    tf.train.Checkpoint(model=restored).read(path).assert_existing_objects_matched()
    np.testing.assert_array_equal(restored(IDS), model(IDS))
    # Steps go on with the slots of the rows.
    again = compiled(Model())
    again.fit(IDS, np.zeros(8), verbose=0)
    tf.train.Checkpoint(model=again).read(path).assert_consumed()
    for each in (model, again):
        each.fit(IDS, np.ones(8), verbose=0)
    np.testing.assert_allclose(again(IDS), model(IDS), rtol=1e-5, atol=1e-6)


def test_other_checkpoints_are_as_without_us(tmp_path):
    class Stock(keras.Model):
        def __init__(self):
            super().__init__()
            self.listed = [keras.layers.BatchNormalization()]

        def call(self, inputs):
            return self.listed[0](inputs)

    model = Stock()
    model(np.ones([2, 3], np.float32))
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "model"))
    # As of Keras, which loses them.
    assert [name for name, _ in tf.train.list_variables(path)] == ["_CHECKPOINTABLE_OBJECT_GRAPH"]


def test_a_checkpoint_lacks_what_was_taken_out_of_a_list(tmp_path):
    model = Model()
    model(IDS)
    first = tf.train.Checkpoint(model=model).write(str(tmp_path / "first"))
    model.blocks.pop()
    second = tf.train.Checkpoint(model=model).write(str(tmp_path / "second"))
    tables = [len(tf_multitier.checkpoint.load(path).tables) for path in (first, second)]
    assert tables == [2, 1]

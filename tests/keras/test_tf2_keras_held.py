"""Embedding variables that a program's own layers and models of Keras hold are weights: trained, saved, loaded."""

import warnings

import forks
import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from keras_util import fit
from keras_util import model
from keras_util import predicted
from keras_util import tables
from keras_util import X
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
optimizers = tf_multitier.optimizers
ZEROS = tf.zeros_initializer()


def variable(name="users", parts=1, **kwargs):
    partitioner = tf.compat.v1.fixed_size_partitioner(parts) if parts > 1 else None
    return tf_multitier.get_embedding_variable(
        name, 4, initializer=ZEROS, partitioner=partitioner, **kwargs
    )


class Module(tf.Module):
    """Makes its variable when it is made, or, as a lazy one, in its first call."""

    def __init__(self, lazy):
        super().__init__()
        self.table = None if lazy else variable()

    def __call__(self):
        if self.table is None:
            self.table = variable()
        return self.table


@keras.saving.register_keras_serializable("tests")
class Pooled(keras.layers.Layer):
    """Sums the rows of each line of ids. `how`: where it has the variable, and when it makes it."""

    def __init__(self, how, **kwargs):
        super().__init__(**kwargs)
        self.how, self.table = how, None
        self.of_name, self.listed = {}, [[]]
        if how in ("attribute", "not trainable"):
            self.table = variable(trainable=how == "attribute")
        elif how == "partitions":
            self.table = variable(parts=3)
        elif how == "dict":
            self.of_name["users"] = variable()
        elif how == "list":
            self.listed = [[variable()]]
        elif how == "list that grew":
            self.listed[0].append(variable())
        elif how in ("module", "lazy module"):
            self.module = Module(lazy=how != "module")

    def build(self, shape):
        if self.how == "build":
            self.table = variable()

    def held(self):
        if self.how == "call" and self.table is None:
            self.table = variable()
        if "module" in self.how:
            return self.module()
        return [self.table, *self.of_name.values(), *self.listed[0]][-1]

    def call(self, ids):
        return tf.reduce_sum(tf.nn.embedding_lookup(self.held(), ids), 1)

    def get_config(self):
        return {**super().get_config(), "how": self.how}


HOWS = [
    "attribute",
    "partitions",
    "dict",
    "list",
    "list that grew",
    "module",
    "lazy module",
    "build",
    "call",
]


def holding(layer):
    """The model of keras_util with such a layer."""
    keras.utils.set_random_seed(7)
    ids = keras.Input((3,), dtype="int64")
    return keras.Model(ids, keras.layers.Dense(1)(layer(ids)))


def with_sgd():
    return kt.with_rows(keras.optimizers.SGD(0.1))


def rows(table):
    keys, values, *_ = table.export()
    return values.numpy()[np.argsort(keys.numpy())]


@pytest.fixture(scope="module")
def twin():
    """(rows, predictions) of the model with our layer in place of one that holds a variable."""
    trained = model(embeddings_initializer="zeros")
    fit(trained, with_sgd(), epochs=2)
    return rows(tables(trained)[0]), predicted(trained)


@pytest.mark.parametrize("how", HOWS)
def test_it_trains_and_is_saved_and_loaded_however_it_is_held(how, twin, tmp_path):
    trained = holding(Pooled(how, name="emb"))
    fit(trained, with_sgd(), epochs=2)
    expected = predicted(trained)
    same_bits((rows(trained.get_layer("emb").held()), expected), twin)
    trained.save(tmp_path / "m.keras")
    same_bits(predicted(keras.models.load_model(tmp_path / "m.keras")), expected)
    kept = trained.get_weights()
    trained.save_weights(tmp_path / "m.weights.h5")
    for other in (holding(Pooled(how, name="emb")), keras.models.clone_model(trained)):
        assert not np.array_equal(predicted(other), expected)
        other.load_weights(tmp_path / "m.weights.h5")
        same_bits(predicted(other), expected)
    other = holding(Pooled(how, name="emb"))
    other.set_weights(kept)
    same_bits(predicted(other), expected)
    tf.train.Checkpoint(trained).write(str(tmp_path / "checkpoint"))
    other = holding(Pooled(how, name="emb"))
    tf.train.Checkpoint(other).read(str(tmp_path / "checkpoint")).expect_partial()
    same_bits(predicted(other), expected)
    trained.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(exported.serve(X), expected, rtol=1e-6)


def test_one_that_is_not_trainable_is_a_weight_that_is_not_trained():
    trained = holding(Pooled("not trainable", name="emb"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(trained, "adam")
    assert [w.path for w in trained.non_trainable_weights] == ["emb/users"]


def test_one_that_leaves_its_list_is_no_weight_any_more():
    layer = Pooled("list that grew", name="emb")
    assert [w.path for w in layer.weights] == ["emb/users"]
    layer.listed[0].pop()
    assert layer.weights == []


class TwoTower(keras.Model):
    """Both layers have the same variable."""

    def __init__(self):
        super().__init__(name="towers")
        self.left, self.right = Pooled("", name="left"), Pooled("", name="right")
        self.left.table = self.right.table = variable()

    def call(self, ids):
        return tf.reduce_sum(self.left(ids) * (1.0 + self.right(ids)), 1, keepdims=True)


def test_one_that_two_layers_hold_is_one_weight_with_one_update_and_saved_once(tmp_path):
    trained = TwoTower()
    fit(trained, with_sgd())
    [weight] = trained.trainable_weights
    assert weight.embedding_variable is trained.left.table
    version = trained.left.table.get_version(X[-32:, 0]).numpy()
    assert set(version) == {3}  # of 4 steps
    trained.save_weights(tmp_path / "m.weights.h5")
    found = []
    with h5py.File(tmp_path / "m.weights.h5") as file:
        file.visit(lambda name: found.append(name) if name.endswith("/rows_0") else None)
    assert len(found) == 1
    other = TwoTower()
    predicted(other)
    other.load_weights(tmp_path / "m.weights.h5")
    same_bits(predicted(other), predicted(trained))
    other = TwoTower()
    other.right.table = variable()
    predicted(other)
    with pytest.raises(ValueError, match="layer 'right': expected .* in the archive, found"):
        other.load_weights(tmp_path / "m.weights.h5")


class Steps(keras.Model):
    """A model whose train_step is Keras' own, one with its weights, or one with an optimizer for rows and one for the others."""

    def __init__(self, step):
        super().__init__()
        self.step, self.rows_by = step, optimizers.SGD(0.1)
        self.pooled = Pooled("attribute")
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, ids):
        return self.dense(self.pooled(ids))

    def train_step(self, data):
        if self.step == "Keras":
            return super().train_step(data)
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        if self.step == "all weights":
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        else:
            table, dense = self.pooled.table, self.dense.trainable_variables
            of_rows, of_dense = tape.gradient(loss, [table, dense])
            self.rows_by.apply_gradients([(of_rows, table)])
            self.optimizer.apply_gradients(zip(of_dense, dense))
        return {"loss": loss}


def test_a_train_step_of_the_program_trains_it_with_one_optimizer_or_with_two():
    found = []
    for step in ("Keras", "all weights", "two optimizers"):
        trained = Steps(step)
        fit(trained, keras.optimizers.SGD(0.1) if step == "two optimizers" else with_sgd())
        found.append(rows(trained.pooled.table))
        assert found[0].any()
        same_bits(found[0], found[-1])


class Scaled(kt.Embedding):
    """A subclass of ours with an embedding variable and a dense weight of its own."""

    def build(self, shape=None):
        super().build(shape)
        self.bias = variable("bias")
        self.scale = self.add_weight(shape=(4,), initializer="ones", name="scale")

    def call(self, ids, training=None):
        bias = tf.nn.embedding_lookup(self.bias, ids[:, 0])
        return super().call(ids, training) * self.scale + bias


def test_a_subclass_of_ours_saves_its_own_weights_too(tmp_path):
    trained = holding(Scaled(4, combiner="sum", name="emb"))
    fit(trained, with_sgd())
    trained.save_weights(tmp_path / "m.weights.h5")
    other = holding(Scaled(4, combiner="sum", name="emb"))
    other.load_weights(tmp_path / "m.weights.h5")
    same_bits(predicted(other), predicted(trained))
    assert not np.array_equal(other.get_layer("emb").scale, np.ones(4))


# ---- refusals


@pytest.mark.parametrize("how", ["attribute", "partitions", "lazy module", "call"])
def test_an_optimizer_that_does_not_train_rows_is_refused_before_anything_changes(how):
    trained = holding(Pooled(how, name="emb"))
    before = trained.layers[-1].get_weights()
    with pytest.raises(
        ValueError, match=r"embedding variable '.*users'.*found Adam: .*with_rows\("
    ):
        fit(trained, "adam")
    same_bits(before, trained.layers[-1].get_weights())


def test_one_that_no_layer_holds_is_refused_where_keras_trains_the_model():
    table = variable()
    look_up = keras.layers.Lambda(
        lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(table, ids), 1), output_shape=(4,)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained = holding(look_up)
    with pytest.warns(UserWarning, match="'users': expected an attribute .*: the model's weights"):
        assert predicted(trained).shape == (128, 1)
    with pytest.raises(ValueError, match="embedding variable 'users': expected an attribute of"):
        fit(trained, with_sgd())


class Loss(keras.losses.Loss):
    """Reads a variable, or calls a layer, which the model does not hold."""

    def __init__(self, look_up):
        super().__init__()
        self.look_up = look_up

    def call(self, labels, outputs):
        return tf.square(outputs - labels) + self.look_up(tf.ones_like(labels, tf.int64))[:, 0, :1]


@pytest.mark.parametrize("how", ["variable", "layer"])
def test_one_that_only_a_loss_looks_up_is_refused_unless_it_is_not_trainable(how):
    def compiled(trainable):
        if how == "variable":
            table = variable(trainable=trainable)
            look_up = lambda ids: tf.nn.embedding_lookup(table, ids)
        else:
            look_up = kt.Embedding(4, trainable=trainable)
        trained = holding(kt.Embedding(4, combiner="sum"))
        trained.compile(with_sgd(), Loss(look_up))
        return trained

    with pytest.raises(ValueError, match="expected an attribute of model.*or its layer, to self"):
        compiled(True).fit(X, tf.ones([len(X), 1]), verbose=0)
    compiled(False).fit(X, tf.ones([len(X), 1]), verbose=0)


def test_a_metric_may_look_up_one_that_the_model_does_not_hold():
    table = variable()
    error = lambda labels, outputs: tf.nn.embedding_lookup(table, tf.cast(labels, tf.int64))[:, 0]
    trained = holding(kt.Embedding(4, combiner="sum"))
    trained.compile(with_sgd(), "mse", metrics=[error])
    trained.fit(X, tf.ones([len(X), 1]), verbose=0)


# ---- imports

IN_ANOTHER_ORDER = """
import keras

class Early(keras.Model):
    def __init__(self):
        super().__init__()
        self.of_name = {}
        self.dense = keras.layers.Dense(1)
    def call(self, ids):
        return self.dense(tf.nn.embedding_lookup(self.of_name["a"], ids))

early = Early()
import sys
import tensorflow as tf
import tf_multitier
assert "tf_multitier.keras" not in sys.modules
early.of_name["a"] = tf_multitier.get_embedding_variable("a", 4)
from tf_multitier.keras import with_rows
early.compile(with_rows("sgd"), "mse")
early.fit(tf.range(8), tf.ones([8, 1]), verbose=0)
print([w.path for w in early.trainable_weights], int(early.of_name["a"].total_count()))
"""


def test_a_layer_that_was_made_before_the_import_learns_of_it():
    run = forks.run(["-c", IN_ANOTHER_ORDER])
    assert "['early/a', 'early/dense/kernel', 'early/dense/bias'] 8" in run.stdout, run.stderr

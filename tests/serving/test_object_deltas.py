"""Serving of TensorFlow 2: a SavedModel takes the checkpoints and deltas of tf.train.Checkpoint, by the names of the variables."""

import gc
import os

import keras
import numpy as np
import pytest
import serving_util
import tensorflow as tf
from tensorflow.python.saved_model import loader_impl

import tf_multitier
import tf_multitier.keras as multitier_keras
from tf_multitier import checkpoint
from tf_multitier import serving
from tf_multitier.serving import objects
from worlds import needs_eager

pytestmark = needs_eager
IDS = np.arange(60).reshape(30, 2)


class Tower(keras.layers.Layer):
    """Layers whose tf.Variables have equal names: those of `call` lack the names of their layers."""

    def __init__(self, width):
        super().__init__(name="tower")
        self.layers = [keras.layers.Dense(width, name=f"dense{i}") for i in range(2)]
        self.layers += [keras.layers.BatchNormalization(name=f"norm{i}") for i in range(2)]
        self.dropout = keras.layers.Dropout(0.1)  # its state is not in checkpoints

    def call(self, inputs, training=False):
        for layer in self.layers[:2]:
            inputs = layer(inputs)
        for layer in self.layers[2:]:
            inputs = layer(inputs, training=training)
        return self.dropout(inputs, training=training)


class Training:
    """Writes a base and deltas of a Keras model. `predicted` is what each predicts."""

    def __init__(self, tmp_path, storage="DRAM", width=8, name="score"):
        self.strategy = tf_multitier.distribute.CollectiveStrategy()
        asked = keras.Input((2,), dtype="int64", name="ids")
        lookup = keras.layers.IntegerLookup()  # a lookup table, which has no name
        lookup.adapt(IDS)
        ids = lookup(asked)
        option = serving_util.option(tmp_path, storage)
        with self.strategy.scope():
            rows = [
                multitier_keras.Embedding(serving_util.DIM, ev_option=option, name=table)(ids)
                for table in ("users", "items")
            ]
        hidden = keras.layers.Flatten()(keras.layers.Concatenate()(rows))
        hidden = Tower(width)(hidden)
        self.model = keras.Model(asked, keras.layers.Dense(1, name=name)(hidden))
        self.model.compile(self.strategy.optimizer(keras.optimizers.Adagrad(0.1)), "mse")
        self.saver = tf_multitier.distribute.CheckpointManager(
            self.strategy,
            tf.train.Checkpoint(model=self.model),
            str(tmp_path / "train"),
            max_deltas=9,
        )
        self.predicted = []

    def save(self):
        trained = IDS[len(self.predicted) :: 3]
        self.model.fit(trained, np.ones(len(trained)), batch_size=5, verbose=0)
        self.predicted.append(self.model(IDS).numpy())
        return self.saver.save(len(self.predicted))

    def export(self, path):
        self.strategy.export_saved_model(self.model, str(path))
        return str(path)


def predicted(model):
    [found] = model.run({"ids": IDS}).values()
    return found


@pytest.mark.parametrize("storage", ["DRAM", "DRAM_SSDHASH"])
def test_a_keras_model_takes_the_deltas_of_its_training(tmp_path, storage):
    training = Training(tmp_path, storage)
    base = training.save()
    graph = training.export(tmp_path / "graph")
    deltas = [training.save() for _ in range(3)]
    assert deltas[2] == base + ".delta-0003"
    frozen = [str(tmp_path / "frozen")]
    serving.freeze(base, frozen[0])
    frozen += [serving.freeze_delta(delta, frozen[0]) for delta in deltas]
    with serving.Model(graph) as model:
        for paths in ([base, *deltas], frozen):
            for path, expected in zip(paths, training.predicted):
                model.reload(path)
                np.testing.assert_allclose(predicted(model), expected, rtol=1e-5, atol=1e-6)
        model.reload(graph, variables=deltas[1])
        np.testing.assert_allclose(predicted(model), training.predicted[2], rtol=1e-5, atol=1e-6)
        # Only what changed is read: the base's rows are shared.
        for table in checkpoint.load(base).tables.values():
            os.rename(table.parts[0].path, table.parts[0].path + "x")
        model.reload(deltas[2])
        np.testing.assert_allclose(predicted(model), training.predicted[3], rtol=1e-5, atol=1e-6)
    gc.collect()
    assert serving.shared_tables() == []


def test_signatures_of_another_kind_are_refused(tmp_path):
    training = Training(tmp_path)
    training.save()
    path = training.export(tmp_path / "graph")
    [meta_graph] = loader_impl.parse_saved_model(path).meta_graphs
    prefix = f"{path}/variables/variables"
    objects.ObjectNames(prefix, meta_graph)
    for node in meta_graph.object_graph_def.nodes:
        if node.HasField("bare_concrete_function"):
            node.function.SetInParent()
    with pytest.raises(
        ValueError, match="signature '.*': expected a bare concrete function, found"
    ):
        objects.ObjectNames(prefix, meta_graph)


def test_another_checkpoint_is_refused_by_the_name_of_a_variable(tmp_path):
    training = Training(tmp_path / "own")
    training.save()
    graph = training.export(tmp_path / "graph")
    wider = Training(tmp_path / "wider", width=9).save()
    renamed = Training(tmp_path / "renamed", name="scores").save()
    other = tf.Variable([1.0], name="score/bias")
    both = tf.train.Checkpoint(model=training.model, other=other)
    twice = tf_multitier.distribute.CheckpointManager(
        training.strategy, both, str(tmp_path / "twice")
    ).save(1)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("tower/kernel", [1])
        session.run(tf.compat.v1.global_variables_initializer())
        names = tf.compat.v1.train.Saver().save(session, str(tmp_path / "names"))
    with serving.Model(graph) as model:
        for path, message in (
            (wider, r"variable 'tower/dense0/\w+': expected the shape .*8\] of .*, found .*9\]"),
            (renamed, "expected the variable 'score/.*, found none: did you mean 'scores/"),
            (twice, "expected one variable 'score/bias', found model/.* and other/"),
            (names, "expected a checkpoint of tf.train.Checkpoint, .* found one of a Saver"),
        ):
            with pytest.raises(ValueError, match=message):
                model.reload(path)
        np.testing.assert_allclose(predicted(model), training.predicted[0], rtol=1e-5, atol=1e-6)

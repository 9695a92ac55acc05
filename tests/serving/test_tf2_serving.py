"""SavedModels of TensorFlow 2 and of Keras, with string features, served by the C++ program of examples/serving."""

import os
import subprocess

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tf_multitier
import tf_multitier.keras as multitier_keras
from worlds import needs_eager

pytestmark = needs_eager
WORDS = ["ann", "bob", "x"]  # x has no row


class Model(tf.Module):
    """Words are hashed to ids; the score of a word is the sum of its row and of a dense weight."""

    def __init__(self, option, parts):
        super().__init__()
        partitioner = tf.compat.v1.fixed_size_partitioner(parts) if parts > 1 else None
        self.rows = tf_multitier.get_embedding_variable(
            "word", 4, ev_option=option, partitioner=partitioner
        )
        self.bias = tf.Variable(0.5)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="words")])
    def serve(self, words):
        ids = tf.strings.to_hash_bucket_fast(words, 2**62)
        return {"score": tf.reduce_sum(tf.nn.embedding_lookup(self.rows, ids), 1) + self.bias}

    def train(self, words, optimizer):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.serve(tf.constant(words))["score"])
        optimizer.apply_gradients([(tape.gradient(loss, self.rows), self.rows)])


def names_of_tensors(folder):
    """The input and the output of the signature serving_default, as saved_model_cli prints them."""
    model = saved_model_pb2.SavedModel()
    with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
        model.ParseFromString(file.read())
    signature = model.meta_graphs[0].signature_def["serving_default"]
    [fed], [fetched] = signature.inputs.values(), signature.outputs.values()
    return fed.name, fetched.name


def answers(serve, model, requests):
    """What the C++ program prints for the lines of `requests`: a list of arrays."""
    done = subprocess.run(
        [serve, tf_multitier.get_library_path(), *names_of_tensors(model), model],
        input="\n".join(requests),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [np.float32(line.split()) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("storage, parts", [("DRAM", 1), ("DRAM_SSDHASH", 1), ("DRAM", 2)])
def test_a_cpp_program_serves_and_reloads_modules(tmp_path, serve, storage, parts):
    option = None
    if storage != "DRAM":
        option = tf_multitier.EmbeddingVariableOption(
            storage_option=tf_multitier.StorageOption(
                storage, str(tmp_path / "storage"), storage_size=[2 * 16]
            )
        )
    model = Model(option, parts)
    optimizer = tf_multitier.optimizers.Adagrad(0.5)
    folders, expected = [], []
    for version in range(2):
        model.train(["ann", "bob", "bob"], optimizer)
        folders.append(str(tmp_path / f"model-{version}"))
        tf.saved_model.save(model, folders[-1], signatures=model.serve)
        expected.append(model.serve(tf.constant(WORDS))["score"].numpy())
    found = answers(serve, folders[0], [" ".join(WORDS), f"!reload {folders[1]}", " ".join(WORDS)])
    np.testing.assert_array_equal(found, expected)
    assert expected[0][0] != expected[1][0] and expected[0][2] == expected[1][2]


def test_a_cpp_program_serves_an_exported_keras_model(tmp_path, serve):
    words = keras.Input((), dtype="string", name="words")
    ids = keras.layers.Hashing(1_000_000)(words)
    rows = multitier_keras.Embedding(4, optimizer=tf_multitier.optimizers.Adagrad(0.5))(ids)
    model = keras.Model(words, keras.layers.Dense(1)(rows))
    model.compile("sgd", "mse")
    model.fit(tf.constant(["ann", "bob"] * 8), np.ones([16, 1], np.float32), verbose=0)
    folder = str(tmp_path / "model")
    model.export(folder, verbose=False)
    [found] = answers(serve, folder, [" ".join(WORDS)])
    expected = model(tf.constant(WORDS)).numpy()[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)

"""tf.saved_model.save and load of embedding variables: in the same process, in another one, and in a v1 Session."""

import gc
import os

import forks
import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT

import tf_multitier
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
v1 = tf.compat.v1
IDS = [1, 2, 99]  # 99 has no row


class Model(tf.Module):
    """Two variables of one name, one of them with a matrix of initial values, looked up alone and as a group."""

    def __init__(self):
        super().__init__()
        matrix = np.arange(21, dtype=np.float32).reshape(7, 3)
        self.a = tf_multitier.get_embedding_variable(
            "user", 4, initializer=tf.random_uniform_initializer(-1, 1, seed=2)
        )
        self.b = tf_multitier.get_embedding_variable("user", 3, initializer=matrix)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def serve(self, ids):
        grouped = tf_multitier.nn.group_embedding_lookup([self.a, self.b], [ids, ids], concat=True)
        return {"alone": tf.nn.embedding_lookup(self.a, ids), "grouped": grouped}


@pytest.fixture
def saved(tmp_path):
    model = Model()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model.serve(tf.constant([1, 2], tf.int64))["grouped"])
    gradients = tape.gradient(loss, [model.a, model.b])
    tf_multitier.optimizers.Adagrad(1.0).apply_gradients(zip(gradients, [model.a, model.b]))
    folder = str(tmp_path / "model")
    tf.saved_model.save(model, folder, signatures=model.serve)
    return folder, model.serve(tf.constant(IDS, tf.int64))


def test_it_loads_twice_in_one_process(saved):
    folder, expected = saved
    for _ in range(2):
        loaded = tf.saved_model.load(folder)
        same_bits(loaded.serve(tf.constant(IDS, tf.int64)), expected)
        same_bits(loaded.signatures["serving_default"](tf.constant(IDS, tf.int64)), expected)
        assert loaded.a.total_count() == 2 and not loaded.a.trainable


def test_a_signature_keeps_the_tables_of_its_model_and_they_go_with_it(tmp_path):
    storage = tf_multitier.StorageOption("DRAM_SSDHASH", str(tmp_path / "rows"), [128])
    model = tf.Module()
    model.ev = tf_multitier.get_embedding_variable(
        "user", 4, ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage)
    )
    spec = tf.TensorSpec([None], tf.int64, name="ids")
    look_up = lambda ids: {"out": tf.nn.embedding_lookup(model.ev, ids)}
    model.serve = tf.function(look_up, input_signature=[spec])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model.serve(tf.range(500, dtype=tf.int64))["out"])
    pair = (tape.gradient(loss, model.ev), model.ev)
    tf_multitier.optimizers.SGD(1.0).apply_gradients([pair])
    folder, ids = str(tmp_path / "model"), tf.range(510, dtype=tf.int64)
    tf.saved_model.save(model, folder, signatures=model.serve)
    expected = model.serve(ids)["out"]
    tables = lambda: sum(len(names) for _, names, _ in os.walk(tmp_path / "rows"))
    before = tables()
    signature = tf.saved_model.load(folder).signatures["serving_default"]
    gc.collect()
    same_bits(signature(ids=ids)["out"], expected)
    assert tables() > before
    del signature
    gc.collect()
    assert tables() == before
    code = (
        "import sys, tensorflow as tf, tf_multitier; "
        "s = tf.saved_model.load(sys.argv[1]).signatures['serving_default']; "
        "print(float(s(ids=tf.constant([499], tf.int64))['out'][0, 0]))"
    )
    run = forks.run(["-c", code, folder])
    assert run.stdout.strip() == str(float(expected[499, 0])), run.stderr
    assert tables() == before


def test_it_loads_in_a_session(saved):
    folder, expected = saved
    with tf.Graph().as_default(), v1.Session() as session:
        meta = v1.saved_model.load(session, ["serve"], folder)
        signature = meta.signature_def["serving_default"]
        [ids] = signature.inputs.values()
        for name, info in signature.outputs.items():
            same_bits(session.run(info.name, {ids.name: IDS}), expected[name])


def test_it_loads_in_another_process_and_one_without_the_package_says_so(saved):
    folder, expected = saved
    code = (
        "import sys, tensorflow as tf; {}m = tf.saved_model.load(sys.argv[1]); "
        "print(m.serve(tf.constant([1, 2, 99], tf.int64))['alone'].numpy().tolist())"
    )
    run = lambda text: forks.run(["-c", text, folder], cwd=ROOT)
    found = run(code.format("import tf_multitier; "))
    assert found.stdout.strip() == str(expected["alone"].numpy().tolist()), found.stderr
    without = run(code.format(""))
    assert without.returncode != 0 and "Op type not registered" in without.stderr
    assert "tf_multitier" in without.stderr.split("Op type not registered", 1)[1].splitlines()[0]


def test_training_a_loaded_model_is_refused(saved):
    loaded = tf.saved_model.load(saved[0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded.serve(tf.constant(IDS, tf.int64))["alone"])
    gradient = tape.gradient(loss, loaded.a)
    with pytest.raises(
        ValueError, match="variables of a loaded SavedModel.* only where a tape watches them"
    ):
        tf_multitier.optimizers.SGD().apply_gradients([(gradient, loaded.a)])


class Parted(tf.Module):
    """A partitioned variable."""

    def __init__(self):
        super().__init__()
        self.parts = tf_multitier.get_embedding_variable(
            "parts",
            4,
            initializer=tf.random_uniform_initializer(-1, 1, seed=2),
            partitioner=v1.fixed_size_partitioner(3),
        )

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def serve(self, ids):
        grouped = tf_multitier.nn.group_embedding_lookup([self.parts], [ids])[0]
        return {"alone": tf.nn.embedding_lookup(self.parts, ids), "grouped": grouped}


def test_a_loaded_variable_is_trained_where_the_tape_watches_it(saved):
    """Its slots go on: the second step of Adagrad with the gradient 1 is 1 / sqrt(2.1)."""
    folder, expected = saved
    loaded = tf.saved_model.load(folder)
    with tf.GradientTape() as tape:
        tape.watch([loaded.a, loaded.b])
        loss = tf.reduce_sum(loaded.serve(tf.constant([1, 2], tf.int64))["grouped"])
    pairs = list(zip(tape.gradient(loss, [loaded.a, loaded.b]), [loaded.a, loaded.b]))
    tf_multitier.optimizers.Adagrad(1.0).apply_gradients(pairs)
    values = loaded.serve(tf.constant([1, 2], tf.int64))["alone"]
    step = 1.0 / np.sqrt(np.float32(0.1) + 2.0)
    np.testing.assert_allclose(values, expected["alone"][:2] - step, rtol=1e-5)


def test_a_partitioned_variable_loads_in_functions_and_in_a_session(tmp_path):
    model, folder = Parted(), str(tmp_path / "model")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model.serve(tf.range(50, dtype=tf.int64))["alone"] ** 2)
    gradients = tape.gradient(loss, model.parts)
    tf_multitier.optimizers.Adagrad(1.0).apply_gradients([(gradients, model.parts)])
    tf.saved_model.save(model, folder, signatures=model.serve)
    expected = model.serve(tf.constant(IDS, tf.int64))
    for _ in range(2):
        loaded = tf.saved_model.load(folder)
        same_bits(loaded.serve(tf.constant(IDS, tf.int64)), expected)
        assert loaded.parts.num_partitions == 3 and not loaded.parts.trainable
        same_bits(loaded.parts.export(), model.parts.export())
    again = str(tmp_path / "again")
    tf.saved_model.save(loaded, again)
    loaded = tf.saved_model.load(again)
    same_bits(loaded.serve(tf.constant(IDS, tf.int64)), expected)
    test_it_loads_in_a_session((folder, expected))

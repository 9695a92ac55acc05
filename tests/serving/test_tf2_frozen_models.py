"""SavedModels of TensorFlow 2 with each type of keys, as saved and as `serving.freeze` writes them: they load everywhere."""

import json

import forks
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier.checkpoint import convert
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
v1 = tf.compat.v1
TYPES = ("int64", "int32", "uint64", "uint32")

# Loads each folder of sys.argv[1:], and prints the answers of its signature.
PROGRAM = """\
import json, sys
import numpy as np, tensorflow as tf, tf_multitier
answers = []
for folder in sys.argv[1:]:
    loaded = tf.saved_model.load(folder)
    signature = loaded.signatures["serving_default"]
    [spec] = signature.structured_input_signature[1].values()
    answers.append(signature(tf.constant([spec.dtype.max, 7, spec.dtype.max - 1], spec.dtype))["out"].numpy().tolist())
print(json.dumps(answers))
"""


class Model(tf.Module):
    """A trained variable, in parts or not."""

    def __init__(self, dtype, parts):
        super().__init__()
        self.ev = tf_multitier.get_embedding_variable(
            "user",
            4,
            key_dtype=tf.as_dtype(dtype),
            initializer=tf.random_uniform_initializer(-1, 1, seed=3),
            partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
        )
        spec = tf.TensorSpec([None], tf.as_dtype(dtype), name="ids")
        look_up = lambda ids: {"out": tf.nn.embedding_lookup(self.ev, ids)}
        self.serve = tf.function(look_up, input_signature=[spec])


def ids_of(dtype):
    dtype = tf.as_dtype(dtype)
    return np.array([dtype.max, 7, dtype.max - 1], dtype.as_numpy_dtype)  # the last has no row


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """{(type of keys, number of parts, whether frozen): (folder, expected answer)}."""
    made = {}
    for dtype, parts in [(dtype, 1) for dtype in TYPES] + [("uint64", 3)]:
        model, ids = Model(dtype, parts), tf.constant(ids_of(dtype))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model.serve(ids[:2])["out"] ** 2)
        pair = (tape.gradient(loss, model.ev), model.ev)
        tf_multitier.optimizers.Adagrad(0.5).apply_gradients([pair])
        folder = tmp_path_factory.mktemp("models")
        tf.saved_model.save(model, str(folder / "whole"), signatures=model.serve)
        assert tf_multitier.serving.freeze(folder / "whole", folder / "frozen") == 2
        expected = model.serve(ids)["out"].numpy()
        for name in ("whole", "frozen"):
            made[dtype, parts, name] = str(folder / name), expected
    return made


CASES = [(d, 1, f) for d in TYPES for f in ("whole", "frozen")] + [("uint64", 3, "frozen")]
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))


@cases
def test_it_loads_twice_in_this_process(saved, case):
    folder, expected = saved[case]
    for _ in range(2):
        loaded = tf.saved_model.load(folder)
        ids = tf.constant(ids_of(case[0]))
        same_bits(loaded.signatures["serving_default"](ids)["out"], expected)
        same_bits(loaded.serve(ids)["out"], expected)
        assert loaded.ev.total_count() == 2 and loaded.ev.key_dtype == case[0]


@cases
def test_it_loads_in_a_session_and_in_a_model_that_serves(saved, case):
    folder, expected = saved[case]
    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], folder).signature_def["serving_default"]
        fed = {signature.inputs["ids"].name: ids_of(case[0])}
        same_bits(session.run(signature.outputs["out"].name, fed), expected)
    model = tf_multitier.serving.Model(folder)
    same_bits(model.run({"ids": ids_of(case[0])})["out"], expected)


def test_rows_that_have_two_names_are_written_once(saved, tmp_path):
    """TensorFlow 2 saves a variable under the key of its object and under its own name."""
    folders = [saved["int64", 1, name][0] for name in ("whole", "frozen")]
    copy = str(tmp_path / "copy")
    assert convert.main(["--from=checkpoint", folders[0], "--to=checkpoint", copy]) == 0
    for path in [*folders, copy]:
        tables = tf_multitier.checkpoint.load(path).tables
        assert list(tables) == ["user"] and tables["user"].names == ["user", "ev"]


def test_all_load_in_another_process(saved):
    folders = [folder for folder, _ in saved.values()]
    run = forks.run(["-c", PROGRAM, *folders])
    assert run.returncode == 0, run.stderr
    for answer, (_, expected) in zip(json.loads(run.stdout), saved.values(), strict=True):
        same_bits(np.array(answer, np.float32), expected)


@pytest.mark.parametrize("parts", [1, 3])
def test_the_variables_of_a_frozen_model_are_read_only(saved, parts):
    loaded = tf.saved_model.load(saved["uint64", parts, "frozen"][0])
    ids = tf.constant(ids_of("uint64"))
    with tf.GradientTape() as tape:
        for part in loaded.ev.parts:
            tape.watch(part)
        loss = tf.reduce_sum(loaded.serve(ids)["out"])
    pair = (tape.gradient(loss, loaded.ev), loaded.ev)
    with pytest.raises(ValueError, match="expected a trainable variable, found a read-only one"):
        tf_multitier.optimizers.SGD(0.5).apply_gradients([pair])
    with pytest.raises(tf.errors.FailedPreconditionError, match="read-only"):
        loaded.ev.remove(ids)
    assert loaded.ev.total_count() == 2

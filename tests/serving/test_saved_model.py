"""SavedModels of TensorFlow 1 with string features: saved here, loaded and run in other processes, in Python and in C++."""

import json
import os
import subprocess

import forks
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import feature_column as fc
from tf_multitier import serving

v1 = tf.compat.v1
WORDS = [["ann", "bob"], ["cleo", ""], ["bob", "dan"], ["nobody", "ann"]]
NAMES = ("user", "item", "tag")


def option(tmp_path, storage):
    if storage == "DRAM":
        return tf_multitier.EmbeddingVariableOption()
    return tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption(
            storage, str(tmp_path / "storage"), storage_size=[2 * 16]
        ),
        filter_option=tf_multitier.CounterFilter(2),
    )


def build(tmp_path, storage, parts):
    """Three string features, grouped, and a dense layer. Returns (words [n, 2], score [n])."""
    words = v1.placeholder(tf.string, [None, 2], "words")
    columns = [
        fc.embedding_column(
            fc.categorical_column_with_embedding(
                name,
                dtype=tf.string,
                partition_num=parts if name != "item" else None,
                ev_option=option(tmp_path, storage),
            ),
            4,
        )
        for name in NAMES
    ]
    with fc.group_embedding_column_scope("group"):
        net = tf.identity(fc.input_layer(dict.fromkeys(NAMES, words), columns), "net")
    kernel = v1.get_variable("kernel", [12, 1])
    score = tf.identity(tf.squeeze(net @ kernel, 1), "score")
    v1.train.get_or_create_global_step()
    return words, score


def save(session, path, words, score):
    outputs = {"score": score, "net": session.graph.get_tensor_by_name("net:0")}
    v1.saved_model.simple_save(session, path, {"words": words}, outputs)


def trained_model(tmp_path, storage="DRAM", parts=1, name="model", steps=3):
    """Trains, saves a SavedModel of the training graph. Returns its directory and the embeddings of WORDS."""
    path = str(tmp_path / name)
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        words, score = build(tmp_path, storage, parts)
        train = v1.train.AdagradOptimizer(0.5).minimize(tf.reduce_sum(score))
        session.run(v1.global_variables_initializer())
        for _ in range(steps):
            session.run(train, {words: WORDS[:3]})
        expected = session.run("net:0", {words: WORDS})
        save(session, path, words, score)
    return path, expected


PROGRAM = """
import json, sys
import tensorflow as tf
import tf_multitier
path, how, words = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
if how == "Model":
    with tf_multitier.serving.Model(path) as model:
        found = model.run({"words": words})
elif how == "Session":
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, ["serve"], path)
        found = session.run({"score": "score:0", "net": "net:0"}, {"words:0": words})
else:
    call = tf.saved_model.load(path).signatures["serving_default"]
    found = {name: value.numpy() for name, value in call(tf.constant(words)).items()}
print(json.dumps({name: value.tolist() for name, value in found.items()}))
"""


def in_another_process(path, how, words=WORDS):
    done = forks.run(["-c", PROGRAM, path, how, json.dumps(words)])
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(set(found["score"])) == len(words)
    return np.float32(found["net"])


@pytest.mark.parametrize(
    "how, storage, parts",
    [
        ("Session", "DRAM", 1),
        ("Session", "DRAM_SSDHASH", 2),
        ("Model", "DRAM_SSDHASH", 1),
        ("tf.saved_model.load", "DRAM", 2),
    ],
)
def test_another_process_looks_the_same_rows_up(tmp_path, storage, parts, how):
    path, expected = trained_model(tmp_path, storage, parts)
    assert len(np.unique(expected, axis=0)) == 4
    np.testing.assert_array_equal(in_another_process(path, how), expected)


def test_a_frozen_model_has_the_same_rows_in_smaller_files(tmp_path):
    path, expected = trained_model(tmp_path, "DRAM_LEVELDB", 2)
    serving.freeze(path, tmp_path / "frozen")
    np.testing.assert_array_equal(in_another_process(str(tmp_path / "frozen"), "Session"), expected)
    serving.freeze(path, tmp_path / "half", "bfloat16")
    found = in_another_process(str(tmp_path / "half"), "Session")
    assert not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05)


def test_a_graph_that_is_built_for_serving_exports_what_training_left(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        words, score = build(tmp_path, "DRAM", 2)
        train = v1.train.AdamOptimizer().minimize(tf.reduce_sum(score))
        session.run(v1.global_variables_initializer())
        session.run(train, {words: WORDS})
        expected = session.run("net:0", {words: WORDS})
        prefix = v1.train.Saver().save(session, str(tmp_path / "trained"))
    path = str(tmp_path / "model")
    with tf.Graph().as_default(), v1.Session() as session, serving.read_only():
        words, score = build(tmp_path, "DRAM", 1)
        v1.train.Saver().restore(session, prefix)
        save(session, path, words, score)
        columns = {
            len(table.columns) for table in tf_multitier.checkpoint.load(path).tables.values()
        }
    assert columns == {1}
    np.testing.assert_array_equal(in_another_process(path, "Session"), expected)


def flat_model(tmp_path, name, steps, **kwargs):
    """A model of one string feature [n]: the example's form."""
    path = str(tmp_path / name)
    with tf.Graph().as_default(), v1.Session() as session:
        words = v1.placeholder(tf.string, [None], "words")
        column = fc.embedding_column(
            fc.categorical_column_with_embedding(
                "word",
                dtype=tf.string,
                partition_num=2,
                ev_option=option(tmp_path, "DRAM_SSDHASH"),
            ),
            4,
        )
        net = fc.input_layer({"word": words}, [column])
        score = tf.reduce_sum(net, axis=1, name="score")
        train = v1.train.AdagradOptimizer(0.5).minimize(tf.reduce_sum(score))
        session.run(v1.global_variables_initializer())
        for _ in range(steps):
            session.run(train, {words: ["ann", "bob", "bob"]})
        v1.saved_model.simple_save(session, path, {"words": words}, {"score": score})
        return path, session.run(score, {words: ["ann", "bob", "x"]})


@pytest.mark.parametrize("frozen", [False, True])
def test_a_cpp_program_serves_and_reloads_a_model(tmp_path, serve, frozen):
    (first, before), (second, after) = (
        flat_model(tmp_path, f"model-{steps}", steps) for steps in (3, 9)
    )
    if frozen:
        for path in (first, second):
            serving.freeze(path, path + "-frozen")
        first, second = first + "-frozen", second + "-frozen"
    done = subprocess.run(
        [serve, tf_multitier.get_library_path(), "words:0", "score:0", first],
        input=f"ann bob x\n!reload {second}\nann bob x\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [np.float32(line.split()) for line in done.stdout.splitlines()]
    np.testing.assert_array_equal(answers, [before, after])
    assert before[1] != after[1]


def test_the_cpp_program_reloads_checkpoints_and_deltas(tmp_path, serve):
    with tf.Graph().as_default(), v1.Session() as session:
        words = v1.placeholder(tf.string, [None], "words")
        column = fc.embedding_column(
            fc.categorical_column_with_embedding("word", dtype=tf.string, partition_num=2), 4
        )
        net = fc.input_layer({"word": words}, [column])
        score = tf.reduce_sum(net, axis=1, name="score")
        train = v1.train.AdagradOptimizer(0.5).minimize(tf.reduce_sum(score))
        saver = tf_multitier.train.IncrementalSaver()
        session.run(v1.global_variables_initializer())
        requests, answers = ["ann bob x"], [session.run(score, {words: ["ann", "bob", "x"]})]
        path, base = str(tmp_path / "model"), str(tmp_path / "rows")
        v1.saved_model.simple_save(session, path, {"words": words}, {"score": score})
        serving.freeze(path, path + "-frozen")
        for word in ("ann", "bob", "cat"):
            session.run(train, {words: [word]})
            saved = saver.save_incremental(session, str(tmp_path / "train"))
            if saved.endswith("train"):
                serving.freeze(saved, base)
            else:
                saved = serving.freeze_delta(saved, base)
            requests += [f"!reload {base if saved.endswith('train') else saved}", "ann bob x"]
            answers.append(session.run(score, {words: ["ann", "bob", "x"]}))
    done = subprocess.run(
        [serve, tf_multitier.get_library_path(), "words:0", "score:0", path + "-frozen"],
        input="\n".join(requests),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [np.float32(line.split()) for line in done.stdout.splitlines()]
    np.testing.assert_array_equal(found, answers)
    assert len({tuple(answer) for answer in answers[:3]}) == 3


def test_the_cpp_program_names_what_is_damaged(tmp_path, serve):
    path, _ = flat_model(tmp_path, "model", 3)
    [table] = tf_multitier.checkpoint.load(path).tables.values()
    os.truncate(table.parts[1].path, 50)
    done = subprocess.run(
        [serve, tf_multitier.get_library_path(), "words:0", "score:0", path],
        input="ann\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1 and os.path.basename(table.parts[1].path) in done.stderr

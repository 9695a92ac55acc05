"""The Python snippets of the pages in docs/ run, in the order of the page, after what the page takes for granted.

README.md and docs/tensorflow2.md have whole programs, which test_examples.py runs. Folders of the snippets (FOLDERS)
are in the test's folder.
"""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import engine

v1 = tf.compat.v1
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("/models", "/ssd", "/data", "/train", "/serve")
PROGRAMS = ("docs/tensorflow2.md",)  # of test_examples.py


def pages():
    """Paths, from the root, of all pages with Python snippets."""
    found = []
    for path, _, names in os.walk(os.path.join(ROOT, "docs")):
        found += [os.path.relpath(os.path.join(path, name), ROOT) for name in names]
    return sorted(path for path in found if path.endswith(".md") and snippets(path))


def snippets(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as stream:
        found = re.findall(r"^( *)```python\n(.*?)^ *```", stream.read(), re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{indent}", "", code, flags=re.MULTILINE) for indent, code in found]


def rows_of(count=3):
    keys, zeros = np.arange(count), np.zeros(count, np.int64)
    return engine.Rows([("value", 4, 0.0)], keys, zeros + 1, zeros, np.ones((count, 4), np.float32))


def checkpoints_page(folder):
    checkpoint.save_parquet(rows_of(), str(folder / "user.parquet"))
    with checkpoint.Writer(str(folder / "models/model-1000")) as writer:
        writer.add_table("user", rows_of())
    return {}


def leveldb_page(folder):
    table = engine.Table(
        dim=3, storage_type="LEVELDB", storage_path=str(folder), name="t", keep=True
    )
    table.apply("sgd", [5, -2], np.ones((2, 3), np.float32), hyper={"learning_rate": 1.0})
    table.flush()
    directory = os.path.join(table.path, "leveldb")
    table.close()
    return {"directory": directory}


def session_page(unused_folder):
    users = tf_multitier.get_embedding_variable("users", 4)
    loss = tf.reduce_sum(tf.nn.embedding_lookup(users, [1, 2]))
    train = v1.train.AdagradOptimizer(0.1).minimize(loss)
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    session.run(train)
    return {
        "session": session,
        "users": users,
        "last_export": 0,
        "publish": lambda keys, values: print(len(keys), values.shape),
        "values": np.ones((2, 4), np.float32),
    }


def serving_page(folder):
    for version in (7, 8):
        path = folder / f"models/{version}-full"
        with tf.Graph().as_default(), v1.Session() as session:
            words = v1.placeholder(tf.string, [None, None])
            table = tf_multitier.get_embedding_variable("words", 4)
            ids = tf.strings.to_hash_bucket_fast(words, 2**62)
            score = tf.reduce_sum(tf.nn.embedding_lookup(table, ids), [1, 2])
            session.run(v1.global_variables_initializer())
            v1.saved_model.simple_save(session, str(path), {"words": words}, {"score": score})
    tf_multitier.serving.freeze(str(path), str(folder / "models/8"))
    inputs = {"words": [["ann"]]}
    with tf.Graph().as_default(), v1.Session() as session:
        prefix = kept_rows(session, folder)
    with tf.Graph().as_default(), v1.Session() as session:
        save_deltas(session, folder)
    return {
        "inputs": inputs,
        "other_inputs": inputs,
        "build": lambda ids: tf.nn.embedding_lookup(kept_variable(folder), ids),
        "features": [1, 2],
        "prefix": prefix,
    }


def kept_variable(folder):
    storage = tf_multitier.StorageOption("SSDHASH", str(folder / "ssd"), keep=True)
    option = tf_multitier.EmbeddingVariableOption(storage_option=storage)
    return tf_multitier.get_embedding_variable("kept", 4, ev_option=option)


def kept_rows(session, folder):
    keep = kept_variable(folder).upsert([1, 2], np.ones((2, 4), np.float32))
    session.run(v1.global_variables_initializer())
    session.run(keep)
    return v1.train.Saver().save(session, str(folder / "train/kept"))


def save_deltas(session, folder):
    users = tf_multitier.get_embedding_variable("users", 4)
    ids = v1.placeholder(tf.int64, [None])
    change = users.upsert(ids, tf.ones([tf.size(ids), 4]))
    values = tf.nn.embedding_lookup(users, ids)
    saver = tf_multitier.train.IncrementalSaver()
    session.run(v1.global_variables_initializer())
    for step in (1000, 1001, 1002):
        session.run(change, {ids: [step]})
        saver.save_incremental(session, str(folder / "train/model"), step)
    v1.saved_model.simple_save(session, str(folder / "models/graph"), {"ids": ids}, {"v": values})


# What each page takes for granted: function of the folder that gives names for the snippets. None: nothing.
NEEDS = {
    "docs/checkpoints.md": checkpoints_page,
    "docs/deeprec.md": None,
    "docs/formats/leveldb.md": leveldb_page,
    "docs/kept_rows.md": None,
    "docs/operations.md": None,
    "docs/options.md": None,
    "docs/rows.md": session_page,
    "docs/saving.md": session_page,
    "docs/serving.md": serving_page,
}


def test_every_page_with_snippets_is_run():
    assert set(pages()) == {*NEEDS, *PROGRAMS}


@pytest.mark.parametrize("page", sorted(set(NEEDS) - {"docs/deeprec.md"}))
def test_the_snippets_of_a_page_run(graph, page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in FOLDERS:
        os.mkdir(str(tmp_path) + name)
    names = {"tf": tf, "tf_multitier": tf_multitier}
    names.update(NEEDS[page](tmp_path) if NEEDS[page] else {})
    for number, code in enumerate(snippets(page)):
        for folder in FOLDERS:
            code = code.replace(f'"{folder}', f'"{tmp_path}{folder}')
        exec(compile(code, f"{page}, snippet {number}", "exec"), names)
    for closed in ("session", "model", "table"):
        if hasattr(names.get(closed), "close"):
            names[closed].close()


def test_the_snippet_of_the_drop_in_runs():
    """In a process of its own: it changes the names of TensorFlow."""
    [code] = snippets("docs/deeprec.md")
    after = "import tensorflow as tf\nassert tf.feature_column.embedding_column\n"
    subprocess.run([sys.executable, "-c", code + after], check=True)

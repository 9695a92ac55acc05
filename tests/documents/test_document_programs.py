"""The Python programs in the documents run as printed.

The blocks of a page, in its order, are one program: it begins without a name, as a file does. What differs from the page: FOLDERS are
in the test's folder. What a page takes for granted are files, which the function of the page in NEEDS makes.

The blocks of README.md and docs/tensorflow2.md are programs of their own, which test_examples.py runs. So are those of
docs/distributed.md, in test_distribute_document.py.
"""

import ast
import os
import re

import forks
import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import engine

v1 = tf.compat.v1
FOLDERS = ("/models", "/ssd", "/data", "/train", "/serve")
# Of test_examples.py and test_distribute_document.py.
PROGRAMS = {"README.md", "docs/distributed.md", "docs/tensorflow2.md"}


def documents():
    """Paths, from the root, of all documents."""
    found = []
    for path, folders, names in os.walk(ROOT):
        folders[:] = [n for n in folders if not n.startswith((".", "bazel-")) and n != "build"]
        found += [os.path.relpath(os.path.join(path, name), ROOT) for name in names]
    return sorted(path for path in found if path.endswith(".md"))


def blocks(page):
    """(language, code) of each block of code of a page."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as stream:
        found = re.findall(r"^( *)```(.*?)\n(.*?)^ *```", stream.read(), re.DOTALL | re.MULTILINE)
    return [(kind, re.sub(f"^{indent}", "", code, flags=re.M)) for indent, kind, code in found]


def programs(page):
    return [code for kind, code in blocks(page) if kind == "python"]


def is_python(code):
    """Whether code is that of Python, and not a list of words or a command."""
    try:
        lines = ast.parse(code).body
    except SyntaxError:
        return False
    return any(not isinstance(line, ast.Expr) or isinstance(line.value, ast.Call) for line in lines)


def rows_of(count=3):
    keys, zeros = np.arange(count), np.zeros(count, np.int64)
    return engine.Rows([("value", 4, 0.0)], keys, zeros + 1, zeros, np.ones((count, 4), np.float32))


def checkpoints_page(folder):
    checkpoint.save_parquet(rows_of(), str(folder / "user.parquet"))
    with checkpoint.Writer(str(folder / "models/model-1000")) as writer:
        writer.add_table("user", rows_of())


def serving_page(folder):
    for version in (7, 8):
        with tf.Graph().as_default(), v1.Session() as session:
            save_words(session, str(folder / f"models/{version}-full"))
    tf_multitier.serving.freeze(str(folder / "models/8-full"), str(folder / "models/8"))
    for save in (save_kept, save_deltas):
        with tf.Graph().as_default(), v1.Session() as session:
            save(session, folder)


def save_words(session, path):
    words = v1.placeholder(tf.string, [None, None])
    table = tf_multitier.get_embedding_variable("words", 4)
    ids = tf.strings.to_hash_bucket_fast(words, 2**62)
    score = tf.reduce_sum(tf.nn.embedding_lookup(table, ids), [1, 2])
    session.run(v1.global_variables_initializer())
    v1.saved_model.simple_save(session, path, {"words": words}, {"score": score})


def save_kept(session, folder):
    storage = tf_multitier.StorageOption("DRAM_SSDHASH", str(folder / "ssd"), [1 << 20], keep=True)
    option = tf_multitier.EmbeddingVariableOption(storage_option=storage)
    users = tf_multitier.get_embedding_variable("users", 4, ev_option=option)
    keep = users.upsert([7, 9], np.ones((2, 4), np.float32))
    session.run(v1.global_variables_initializer())
    session.run(keep)
    v1.train.Saver().save(session, str(folder / "train/kept"))


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


# {page with programs: function of the folder that makes the files which the page takes for granted, or None}
NEEDS = {
    "docs/checkpoints.md": checkpoints_page,
    "docs/deeprec.md": None,
    "docs/dynamicemb.md": None,
    "docs/kept_rows.md": None,
    "docs/one_embedding.md": None,
    "docs/operations.md": None,
    "docs/options.md": None,
    "docs/rows.md": None,
    "docs/saving.md": None,
    "docs/serving.md": serving_page,
    "docs/statistics.md": None,
}


def test_every_page_with_programs_is_run():
    assert {page for page in documents() if programs(page)} == {*NEEDS, *PROGRAMS}


@pytest.mark.parametrize("page", documents())
def test_code_of_python_is_marked_as_such(page):
    for kind, code in blocks(page):
        assert kind == "python" or not is_python(code), (
            f"{page}: expected ```python before:\n{code}"
        )


@pytest.mark.parametrize("page", NEEDS)
def test_the_programs_of_a_page_run_as_printed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in FOLDERS:
        os.mkdir(str(tmp_path) + name)
    if NEEDS[page]:
        NEEDS[page](tmp_path)
    code = "\n".join(programs(page))
    for folder in FOLDERS:
        code = code.replace(f'"{folder}', f'"{tmp_path}{folder}')
    if "tf_multitier.v1" in code or "deeprec" in code:  # they change TensorFlow for the process
        done = forks.run(["-c", code], dict(os.environ, PYTHONPATH=ROOT))
        assert done.returncode == 0, done.stderr[-3000:]
    else:
        exec(compile(code, page, "exec"), {"__name__": "__main__"})

"""Models for the tests of serving: a version v of a model has the value v * 1000 + key in every element of every row."""

import numpy as np
import tensorflow as tf

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import engine

v1 = tf.compat.v1
DIM = 8


def rows_of(version, keys):
    keys = np.asarray(keys, np.int64)
    data = np.repeat((version * 1000 + keys)[:, None], DIM, axis=1).astype(np.float32)
    zeros = np.zeros(len(keys), np.int64)
    return engine.Rows([("value", DIM, 0.0)], keys, zeros + 1, zeros, data)


def option(tmp_path, storage):
    if storage == "DRAM":
        return None
    return tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption(
            storage, str(tmp_path / "storage"), storage_size=[16 * 4 * DIM]
        )
    )


def lookup_graph(tmp_path, storage="DRAM"):
    """Two tables and a dense variable. Returns (ids, outputs): the mean of each, which is v * 1000 + the mean of ids, and v."""
    ids = v1.placeholder(tf.int64, [None], "ids")
    outputs = {}
    for name, parts in (("a", 1), ("b", 2)):
        ev = tf_multitier.get_embedding_variable(
            name,
            DIM,
            partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
            ev_option=option(tmp_path, storage),
        )
        outputs[name] = tf.nn.embedding_lookup(ev, ids)
    outputs["version"] = tf.identity(v1.get_variable("version", [], tf.float32))
    return ids, outputs


def export(tmp_path, version, keys=range(100), storage="DRAM", read_only=False):
    """A SavedModel of that version. Returns its directory."""
    path, prefix = str(tmp_path / f"model-{version}"), str(tmp_path / f"rows-{version}")
    with checkpoint.Writer(prefix) as writer:
        for name in "ab":
            writer.add_table(name, rows_of(version, keys))
        writer.add_tensor("version", np.float32(version))
    with tf.Graph().as_default(), v1.Session() as session:
        if read_only:
            with tf_multitier.serving.read_only():
                ids, outputs = lookup_graph(tmp_path, storage)
        else:
            ids, outputs = lookup_graph(tmp_path, storage)
        v1.train.Saver().restore(session, prefix)
        v1.saved_model.simple_save(session, path, {"ids": ids}, outputs)
    return path


def check(answer, ids):
    """Asserts that an answer is of one version. Returns the version."""
    version = int(answer["version"])
    expected = np.repeat(np.asarray(ids)[:, None] + version * 1000.0, DIM, axis=1)
    for name in "ab":
        np.testing.assert_array_equal(answer[name], expected)
    return version

"""Writes tests/data, which has files of each format: `python tests/util/stored_files.py`, for a new format or format version alone.

ssdhash             a kept instance of engine.Table
variable            a kept instance of a variable, and the checkpoint that it is at
chain               a base with linked files and a delta, of IncrementalSaver
frozen              a checkpoint of keys and values
saved_model         a SavedModel of TensorFlow 2
keras               an archive, and weights with a part file next to them
rows.npz, rows.parquet, raw
"""

import os
import shutil
import tempfile

import keras
import numpy as np
import tensorflow as tf
from paths import TESTS

import tf_multitier
import tf_multitier.keras as kt
from tf_multitier import checkpoint
from tf_multitier import engine
from tf_multitier.keras import part_files

v1 = tf.compat.v1
DATA = os.path.join(TESTS, "data")
KEYS = [-(2**63), -7, 0, 1, 2, 2**63 - 1]
UNIFORM = {"kind": "uniform", "a": -1.0, "b": 1.0, "seed": 3}


def rows_of(keys, key_dtype=np.int64):
    """Rows of two columns: element j of row i is 8 * i + j, with frequency i + 1 and version 10 * i."""
    n = np.arange(len(keys))
    data = (8 * n[:, None] + np.arange(5)).astype(np.float32)
    columns = [("value", 2, 0.0), ("slot", 3, 0.25)]
    return engine.Rows(columns, np.asarray(keys, key_dtype), n + 1, 10 * n, data)


def write_table():
    with engine.Table(
        2,
        initializer=UNIFORM,
        slots=[("slot", 3, 0.25)],
        storage_type="SSDHASH",
        storage_path="kept",
        keep=True,
    ) as table:
        table.import_rows(rows_of(KEYS))
        path = table.path
    shutil.move(path, "ssdhash")
    shutil.rmtree("kept")


class Program:
    """A session with a variable `counted` of two parts and a counter filter, and a kept variable `linked` of unsigned keys."""

    def __init__(self):
        with tf.Graph().as_default() as graph:
            option = tf_multitier.EmbeddingVariableOption(
                filter_option=tf_multitier.CounterFilter(2)
            )
            self.counted = tf_multitier.get_embedding_variable(
                "counted",
                2,
                initializer=v1.random_uniform_initializer(-1, 1, seed=3),
                partitioner=v1.fixed_size_partitioner(2),
                ev_option=option,
            )
            storage = tf_multitier.StorageOption("SSDHASH", "kept", keep=True)
            self.linked = tf_multitier.get_embedding_variable(
                "linked",
                116,
                initializer=v1.constant_initializer(0.5),
                key_dtype=tf.uint64,
                ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage),
            )
            self.ids = v1.placeholder(tf.int64, [None])
            self.wide_ids = v1.placeholder(tf.uint64, [None])
            self.wide_values = v1.placeholder(tf.float32, [None, 116])
            self.rows = tf.nn.embedding_lookup(self.counted, self.ids)
            optimizer = v1.train.AdagradOptimizer(1.0, initial_accumulator_value=3.0)
            step = v1.train.get_or_create_global_step()
            self.train = optimizer.minimize(tf.reduce_sum(self.rows), step)
            self.remove = self.counted.remove(self.ids)
            self.upsert = self.linked.upsert(self.wide_ids, self.wide_values)
            self.saver = tf_multitier.train.IncrementalSaver()
            init = v1.global_variables_initializer()
        self.session = v1.Session(graph=graph)
        self.session.run(init)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session.close()
        del self.session

    def run(self, what, ids):
        return self.session.run(what, {self.ids: ids})


def write_chain():
    """A save links the files that were closed before."""
    keys = 2**63 + np.arange(66, dtype=np.uint64)
    with Program() as program:
        values = np.arange(66, dtype=np.float32)[:, None] + np.arange(116, dtype=np.float32) / 128
        program.session.run(program.upsert, {program.wide_ids: keys, program.wide_values: values})
    os.makedirs("chain")
    with Program() as program, program.session.graph.as_default():
        program.run(program.train, [1, 2, 3])
        program.run(program.train, [1, 2])
        program.saver.save(program.session, "chain/model", write_meta_graph=False)
        program.run(program.remove, [2])
        program.run(program.train, [4])
        program.run(program.train, [4, 5])
        program.saver.save_incremental(program.session, "chain/model")
    shutil.rmtree("kept")


def write_variable():
    os.makedirs("variable")
    with tf.Graph().as_default(), v1.Session() as session:
        storage = tf_multitier.StorageOption("SSDHASH", "kept", keep=True)
        ev = tf_multitier.get_embedding_variable(
            "ev",
            2,
            initializer=v1.constant_initializer(0.5),
            ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage),
        )
        session.run(v1.global_variables_initializer())
        session.run(ev.upsert([1, 2], [[1.0, 2.0], [3.0, 4.0]]))
        v1.train.Saver().save(session, "variable/model", write_meta_graph=False)
    [instance] = os.listdir("kept/ev")
    shutil.move(f"kept/ev/{instance}", "variable/instance-1-1")
    shutil.rmtree("kept")


def write_frozen():
    os.makedirs("frozen")
    with checkpoint.Writer("frozen/model") as writer:
        writer.add_table(
            "ev",
            rows_of([1, 2, 2**32 - 1], np.uint32),
            initializer={"kind": "matrix", "a": 0.0, "b": 0.0, "seed": 0, "matrix_rows": 3},
            matrix=np.arange(6, dtype=np.float32).reshape(3, 2),
            frozen="bfloat16",
        )


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        initializer = tf.random_uniform_initializer(-1, 1, seed=3)
        self.ev = tf_multitier.get_embedding_variable("ev", 2, initializer=initializer)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def serve(self, ids):
        return tf.nn.embedding_lookup(self.ev, ids)


def write_saved_model():
    model = Model()
    model.ev.upsert([1, 2], [[1.0, 2.0], [3.0, 4.0]])
    tf.saved_model.save(model, "saved_model", signatures=model.serve)


def keras_model():
    ids = keras.Input((1,), dtype="int64")
    layer = kt.Embedding(
        2,
        embeddings_initializer=keras.initializers.Constant(0.5),
        optimizer=tf_multitier.optimizers.Adam(0.125),
        name="rows",
    )
    return keras.Model(ids, layer(ids))


def write_keras():
    os.makedirs("keras")
    model = keras_model()
    model.compile("sgd", "mse")
    model.train_on_batch(np.array([[1], [2]]), np.zeros((2, 1, 2), np.float32))
    [table] = model.get_layer("rows").tables
    table.upsert([1, 2], [[1.0, 2.0], [3.0, 4.0]])
    model.save("keras/model.keras")
    part_files.MAX_BYTES_IN_ARCHIVE = 0
    model.save_weights("keras/model.weights.h5")


def write_all():
    """Writes them into the current directory."""
    write_table()
    write_chain()
    write_variable()
    write_frozen()
    write_saved_model()
    write_keras()
    checkpoint.save_npz(rows_of(KEYS), "rows.npz")
    checkpoint.save_parquet(rows_of(KEYS), "rows.parquet")
    checkpoint.save_raw(rows_of(KEYS), "raw")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        os.chdir(made)
        write_all()
        shutil.rmtree(DATA, ignore_errors=True)
        shutil.copytree(made, DATA, ignore=shutil.ignore_patterns("checkpoint"))

"""For tests of variables with StorageOption(keep=True): a program that keeps its rows, and the directories it keeps them in."""

import os

import numpy as np
import tensorflow as tf

import tf_multitier

DIM = 4
KEYS = np.arange(500)


def storage(path, kind="DRAM_SSDHASH", **more):
    sizes = {"SSDHASH": [1 << 30]}.get(kind, [4096, 1 << 20][: kind.count("_")])
    return tf_multitier.StorageOption(kind, str(path), sizes, keep=True, **more)


class Program:
    """A session of its own, as in a process of its own: a variable, an update, a dense weight and a Saver."""

    def __init__(self, path, kind="DRAM_SSDHASH", partitioner=None, filter_option=None, dim=DIM):
        self.graph = tf.Graph()
        with self.graph.as_default():
            option = tf_multitier.EmbeddingVariableOption(
                storage_option=storage(path, kind), filter_option=filter_option
            )
            self.ev = tf_multitier.get_embedding_variable(
                "ev",
                embedding_dim=dim,
                initializer=tf.compat.v1.constant_initializer(1.0),
                partitioner=partitioner,
                ev_option=option,
            )
            self.weight = tf.compat.v1.get_variable(
                "weight", initializer=tf.constant(0.0), use_resource=True
            )
            self.keys = tf.compat.v1.placeholder(tf.int64, [None])
            self.rows = tf.nn.embedding_lookup(self.ev, self.keys)
            loss = tf.reduce_sum(self.rows) + self.weight
            step = tf.compat.v1.train.get_or_create_global_step()
            self.train = tf.compat.v1.train.AdagradOptimizer(0.1).minimize(loss, step)
            self.saver = tf.compat.v1.train.Saver()
            self.init = tf.compat.v1.global_variables_initializer()
            self.count = self.ev.total_count()
        self.session = tf.compat.v1.Session(graph=self.graph)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session.close()
        del self.session

    def run(self, what, keys=()):
        return self.session.run(what, {self.keys: np.asarray(keys, np.int64)})

    def table(self, keys):
        return self.run(self.rows, keys)

    def save(self, prefix, **more):
        with self.graph.as_default():
            return self.saver.save(self.session, prefix, **more)

    def restore(self, prefix):
        with self.graph.as_default():
            self.saver.restore(self.session, prefix)

    def frequencies(self, keys):
        with self.graph.as_default():
            return self.session.run(self.ev.get_frequency(keys))


def instances(path):
    """The kept directories below a storage path."""
    return sorted(
        os.path.join(name, instance)
        for name in os.listdir(path)
        for instance in os.listdir(path / name)
        if os.path.exists(path / name / instance / "instance.keep")
    )

"""Helpers for the tests of storage types: options with a few rows of DRAM, and a variable with its training ops."""

import os

import numpy as np
import tensorflow as tf

import tf_multitier

v1 = tf.compat.v1

# Two with HBM above DRAM. They need TF_MULTITIER_DEVICE=emulated (the fixture emulated_device).
HBM_TYPES = ("HBM_DRAM", "HBM_DRAM_SSDHASH")

# Whether this is a run over HBM (build_tools/suites.py): then HBM is above DRAM in every option().
OVER_HBM = "HBM" in os.environ.get("TF_MULTITIER_STORAGE_TYPE", "")

KEYS = np.concatenate([np.arange(-20, 30), [np.iinfo(np.int64).min, np.iinfo(np.int64).max]])


def batches(steps, dim, seed=3, size=16):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        yield rng.choice(KEYS, size), rng.standard_normal((size, dim)).astype(np.float32)


def option(kind, path, row_bytes=16, rows=4, **kwargs):
    """A StorageOption in which each tier except the last holds `rows` rows."""
    if OVER_HBM and kind.startswith("DRAM"):
        kind = "HBM_" + kind
    tiers = kind.split("_")
    return tf_multitier.StorageOption(
        kind, str(path), storage_size=[rows * row_bytes] * (len(tiers) - 1), **kwargs
    )


class Model:
    """A variable and the ops that a test runs on it.

    Ops are made once: a Session takes up a graph that has grown from its beginning.
    """

    def __init__(
        self, storage, name="ev", dim=4, parts=1, optimizer=None, initializer=None, **options
    ):
        self.ev = tf_multitier.get_embedding_variable(
            name,
            dim,
            initializer=initializer or v1.random_uniform_initializer(-1, 1, seed=5),
            partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
            ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage, **options),
        )
        self.dim = dim
        self.ids = v1.placeholder(tf.int64, [None])
        self.grads = v1.placeholder(tf.float32, [None, dim])
        self.values = tf.nn.embedding_lookup(self.ev, self.ids)
        self.step = v1.train.get_or_create_global_step()
        optimizer = optimizer(self.step) if optimizer else v1.train.GradientDescentOptimizer(0.5)
        # Leaves the global step alone, so that several models train at the same one.
        self.train = optimizer.minimize(
            tf.reduce_sum(self.values * self.grads), var_list=self.ev.parts
        )
        with tf.control_dependencies([self.train]):
            self.train_and_step = v1.assign_add(self.step, 1).op
        self.tier = self.ev.lookup_tier(self.ids)
        self.frequency, self.version = (
            self.ev.get_frequency(self.ids),
            self.ev.get_version(self.ids),
        )
        self.statistics, self.drain = self.ev.stats(), self.ev.drain()
        self.rows = [part.export_rows() for part in self.ev.parts]

    def run(self, session, ids, grads=None, step=True):
        """One training step. Without `grads`, each gradient is 1."""
        session.run(self.train_and_step if step else self.train, self.feed(ids, grads))

    def feed(self, ids, grads=None):
        ids = np.asarray(ids)
        return {
            self.ids: ids,
            self.grads: np.ones((len(ids), self.dim)) if grads is None else grads,
        }

    def look_up(self, session, ids):
        return session.run(self.values, {self.ids: ids})

    def tiers(self, session, ids):
        """The tier of each id once background work is done. A test over HBM sees HBM and DRAM as one."""
        session.run(self.drain)
        tiers = session.run(self.tier, {self.ids: ids})
        return (np.where(tiers > 0, tiers - 1, tiers) if OVER_HBM else tiers).tolist()

    def stats(self, session):
        return session.run(self.statistics)

    def prefetched(self, session):
        return self.stats(session)["prefetched"]

    def content(self, session):
        """See content_of."""
        return content_of(session.run(self.rows))


class WorldModel:
    """A variable, its training step and its queries, in one of the three ways to run a program (worlds.py)."""

    def __init__(
        self,
        world,
        storage,
        name="ev",
        dim=4,
        parts=1,
        rule="sgd",
        initializer=None,
        **options,
    ):
        self.world, self.dim = world, dim
        self.ev = ev = tf_multitier.get_embedding_variable(
            name,
            dim,
            initializer=initializer or tf.random_uniform_initializer(-1, 1, seed=5),
            partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
            ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage, **options),
        )
        self._values = lambda ids: tf.nn.embedding_lookup(ev, ids)
        self._loss = lambda ids, grads: tf.reduce_sum(self._values(ids) * grads)
        self._step = world.step(self._loss, [ev], rule, 0.5)
        self._rows = lambda: [part.export_rows() for part in ev.parts]

    def run(self, ids, grads=None, counts=True):
        """One training step. Without `grads`, each gradient is 1."""
        ids = np.asarray(ids)
        grads = np.ones((len(ids), self.dim), np.float32) if grads is None else grads
        self._step(ids, grads, counts=counts)

    def look_up(self, ids):
        return self.world.run(self._values, ids)

    def ask(self, query, *ids):
        """The answer of a method of the variable, by its name."""
        return self.world.run(getattr(self.ev, query), *ids)

    def tiers(self, ids):
        """The tier of each id once background work is done. A test over HBM sees HBM and DRAM as one."""
        self.ask("drain")
        tiers = self.ask("lookup_tier", ids)
        return (np.where(tiers > 0, tiers - 1, tiers) if OVER_HBM else tiers).tolist()

    def stats(self):
        return self.world.stats(self.ev)

    def prefetched(self):
        return self.stats()["prefetched"]

    def content(self):
        """See content_of."""
        return content_of(self.world.run(self._rows))


def content_of(parts):
    """{key: (row bytes, frequency, version)} of all columns; and {key: (count, version)} of counted keys."""
    rows, counted = {}, {}
    for part in parts:
        for i, key in enumerate(part.keys.tolist()):
            assert key not in rows
            rows[key] = (
                part.rows[i].tobytes(),
                int(part.frequencies[i]),
                int(part.versions[i]),
            )
        counted.update({int(k): (int(n), int(v)) for k, n, v in part.counted})
    return rows, counted


def started():
    """A session with all variables initialised."""
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    return session

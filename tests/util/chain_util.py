"""A model whose variables change in every way between two saves, for the tests of deltas."""

import os

import numpy as np
import tensorflow as tf

import tf_multitier

v1 = tf.compat.v1
DIM = 4
STORAGE_TYPES = [
    None,
    "PMEM",
    "LEVELDB",
    "SSDHASH",
    "DRAM_PMEM",
    "DRAM_LEVELDB",
    "DRAM_SSDHASH",
    "DRAM_PMEM_LEVELDB",
    "DRAM_PMEM_SSDHASH",
    "HBM_DRAM",  # these two need the fixture emulated_device
    "HBM_DRAM_SSDHASH",
]


def storage(tmp_path, storage_type, rows):
    if storage_type is None:
        return None
    return tf_multitier.StorageOption(
        storage_type=getattr(tf_multitier.StorageType, storage_type),
        storage_path=str(tmp_path / "tiers"),
        storage_size=[rows * 48] * (storage_type.count("_"))
        or ([] if storage_type in ("LEVELDB", "SSDHASH") else [1 << 30]),
    )


class Model:
    """Two variables, one of them partitioned; a train op, an op that removes keys, and an IncrementalSaver."""

    def __init__(self, tmp_path, storage_type=None, parts=2, counter=0, **saver):
        step = v1.train.get_or_create_global_step()
        option = tf_multitier.EmbeddingVariableOption(
            storage_option=storage(tmp_path, storage_type, 60),
            filter_option=tf_multitier.CounterFilter(counter) if counter else None,
            evict_option=tf_multitier.GlobalStepEvict(steps_to_live=30),
        )
        self.variables = [
            tf_multitier.get_embedding_variable(
                f"v{i}",
                DIM,
                initializer=v1.random_normal_initializer(seed=i),
                partitioner=v1.fixed_size_partitioner(n) if n > 1 else None,
                ev_option=option,
            )
            for i, n in enumerate([1, parts])
        ]
        self.dense = v1.get_variable("dense", [], initializer=v1.zeros_initializer())
        self.ids = v1.placeholder(tf.int64, [None])
        rows = [tf.nn.embedding_lookup(v, self.ids) for v in self.variables]
        loss = sum(tf.reduce_sum(tf.square(r - 1.0)) for r in rows) + self.dense
        self.train = v1.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        self.remove = [v.remove(self.ids) for v in self.variables]
        self.saver = tf_multitier.train.IncrementalSaver(**saver)
        self.init = v1.global_variables_initializer()
        self.exports = [part.export_rows() for v in self.variables for part in v.parts]

    def work(self, session, rng, steps=5):
        for _ in range(steps):
            session.run(self.train, {self.ids: rng.integers(-80, 80, 20)})
            if rng.random() < 0.3:
                session.run(self.remove, {self.ids: rng.integers(-80, 80, 10)})

    def content(self, session):
        found, dense = session.run([self.exports, self.dense])
        rows = {}
        for name, parts in (("v0", found[:1]), ("v1", found[1:])):
            for part in parts:
                for i, key in enumerate(part.keys.tolist()):
                    facts = part.frequencies[i], part.versions[i]
                    rows[name, key] = (part.rows[i].tobytes(), *facts)
                rows |= {(name, "counted", *entry): None for entry in part.counted.tolist()}
        return rows, dense


def make_chain(directory, deltas=3, counter=2, seed=1):
    """A base "model" and its deltas; "full", a save of all rows of the same moment."""
    os.makedirs(directory, exist_ok=True)
    rng = np.random.default_rng(seed)
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(directory, counter=counter)
        session.run(model.init)
        for _ in range(1 + deltas):
            model.work(session, rng, 8)
            model.saver.save_incremental(session, str(directory / "model"))
        v1.train.Saver().save(session, str(directory / "full"), write_state=False)
    return str(directory / "model"), str(directory / "full")

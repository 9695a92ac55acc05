"""A save of several variables is one moment of all of them, while other threads train."""

import contextlib
import glob
import os
import re
import threading

import numpy as np
import pytest
import tensorflow as tf
from storage_util import OVER_HBM

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import nn

v1 = tf.compat.v1
VARIABLES, THREADS, KEYS = 4, 4, 60
# The variables that one op updates in a grouped step. Variables with HBM have an op of their own; number 1 has two parts, and
# number 2 no HBM.
EACH_UPDATED_BY_ONE_OP = [(0, 3), (1, 2)] if OVER_HBM else [(0, 1, 2, 3)]
ROUNDS = 100 if os.environ.get("TF_MULTITIER_STRESS") else 10


def variables_of(update):
    """The numbers of the variables that an op updates."""
    handles = (tensor.name for tensor in update.inputs if tensor.dtype == tf.resource)
    return tuple(sorted({int(re.match(r"v(\d)", name)[1]) for name in handles}))


def build(tmp_path, grouped):
    """Train ops by thread. An update adds 1 to every value of the thread's keys in each variable."""
    storage = tf_multitier.StorageOption(
        storage_type=tf_multitier.StorageType.DRAM_SSDHASH,
        storage_path=str(tmp_path / "tiers"),
        storage_size=[100 * 16],
    )
    variables = [
        tf_multitier.get_embedding_variable(
            f"v{i}",
            4,
            initializer=v1.zeros_initializer(),
            partitioner=v1.fixed_size_partitioner(2) if i == 1 else None,
            ev_option=tf_multitier.EmbeddingVariableOption(
                storage_option=storage if i == 2 else None
            ),
        )
        for i in range(VARIABLES)
    ]
    trains = []
    for thread in range(THREADS):
        keys = tf.range(thread * 1000, thread * 1000 + KEYS, dtype=tf.int64)
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        if grouped:
            rows = tf.SparseTensor(
                tf.stack([tf.range(KEYS, dtype=tf.int64), tf.zeros([KEYS], tf.int64)], 1),
                keys,
                [KEYS, 1],
            )
            pooled = nn.group_embedding_lookup_sparse(
                variables, [rows] * VARIABLES, ["sum"] * VARIABLES
            )
            trains.append(optimizer.minimize(-sum(tf.reduce_sum(p) for p in pooled)))
            continue
        last = tf.no_op()
        for variable in variables:
            with tf.control_dependencies([last]):
                loss = -tf.reduce_sum(tf.nn.embedding_lookup(variable, tf.identity(keys)))
                last = optimizer.minimize(loss, var_list=[variable])
        trains.append(last)
    return trains


@contextlib.contextmanager
def running(session, trains):
    """Runs each op again and again on a thread of its own; when it starts, each has run once."""
    session.run(trains)
    done, failed = threading.Event(), []

    def train(op):
        try:
            while not done.is_set():
                session.run(op)
        except Exception as error:  # noqa: BLE001  the test fails below
            failed.append(error)

    threads = [threading.Thread(target=train, args=(op,)) for op in trains]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failed


def counts(path):
    """How often each thread's keys were updated, at least and at most: two arrays [variable, thread]."""
    tables, found = checkpoint.load(path).tables, []
    for i in range(VARIABLES):
        rows = tables[f"v{i}"].read()
        assert sorted(rows.keys) == [t * 1000 + k for t in range(THREADS) for k in range(KEYS)]
        of_threads = [rows.data[rows.keys // 1000 == t] for t in range(THREADS)]
        found.append([(values.min(), values.max()) for values in of_threads])
    return np.moveaxis(np.array(found), 2, 0)


@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_save_during_training_is_one_prefix_of_all_updates(tmp_path, grouped, deltas):
    with tf.Graph().as_default():
        trains = build(tmp_path, grouped)
        if deltas:
            saver = tf_multitier.train.IncrementalSaver(max_to_keep=1, max_deltas=ROUNDS + 1)
            save = saver.save_incremental
        else:
            saver = v1.train.Saver(max_to_keep=1)
            save = saver.save
        updates = [op for op in v1.get_default_graph().get_operations() if "GroupApply" in op.type]
        of_ops = sorted({variables_of(op) for op in updates})
        assert len(updates) == (THREADS * len(of_ops) if grouped else 0)
        assert of_ops == (EACH_UPDATED_BY_ONE_OP if grouped else [])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            with running(session, trains):
                for step in range(ROUNDS):
                    least, most = counts(save(session, str(tmp_path / "model"), step))
                    if grouped:
                        for of_op in map(list, of_ops):
                            its = most[of_op[0]]
                            assert (least[of_op] == its).all() and (most[of_op] == its).all()
                        # A step ends before the next one of its thread starts.
                        assert (most.max(axis=0) - least.min(axis=0) <= 1).all()
                    else:  # the variables are updated in order; parts of a variable have an op each
                        assert (most[1:] <= least[:-1]).all()
                        assert (most[0] - least[-1] <= 1).all()
            last = counts(save(session, str(tmp_path / "model"), ROUNDS))
            assert (last == last[0, 0]).all()  # every thread ended a step
            saver.restore(session, v1.train.latest_checkpoint(tmp_path))
            session.run(trains)
            after = saver.save(session, str(tmp_path / "after"))
            assert (counts(after) == last + 1).all()
    left = {os.path.basename(p).split(".")[0] for p in glob.glob(str(tmp_path / "*.*"))}
    assert left == {"after"}


def test_a_save_with_one_thread_of_tensorflow_does_not_wait_for_itself(tmp_path):
    with tf.Graph().as_default() as graph:
        trains = build(tmp_path, grouped=False)
        savers = [v1.train.Saver(), v1.train.Saver()]

        def save(i):
            with graph.as_default():
                savers[i].save(session, str(tmp_path / f"model-{i}"))

        config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            with running(session, trains):
                threads = [threading.Thread(target=save, args=(i,)) for i in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            for i in range(2):
                counts(str(tmp_path / f"model-{i}"))


def test_a_saver_has_one_op_that_writes_and_an_imported_graph_has_it_too(tmp_path):
    with tf.Graph().as_default() as graph:
        trains = build(tmp_path, grouped=False)
        saver = v1.train.Saver()
        writes = [op for op in graph.get_operations() if op.type == "MultitierWriteSaveGroup"]
        assert len(writes) == 1 and len(writes[0].control_inputs) == VARIABLES + 1
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(trains)
            path = saver.save(session, str(tmp_path / "model"))
    with tf.Graph().as_default():
        saver = v1.train.import_meta_graph(path + ".meta")
        with v1.Session() as session:
            saver.restore(session, path)
            again = saver.save(session, str(tmp_path / "again"))
    assert (counts(again) == 1).all()


def test_a_part_that_cannot_be_written_removes_the_files_of_all(tmp_path):
    with tf.Graph().as_default():
        trains = build(tmp_path, grouped=False)
        saver = v1.train.Saver()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(trains)
            (tmp_path / "file").write_text("")
            with pytest.raises((ValueError, tf.errors.OpError)):
                saver.save(session, str(tmp_path / "file" / "model"))
            saver.save(session, str(tmp_path / "model"))
    assert (counts(str(tmp_path / "model")) == 1).all()

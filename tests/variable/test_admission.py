"""Filters and expiry, trained through TensorFlow's lookups, optimizers and Saver."""

import threading

import numpy as np
import pytest
from pairs import WORLDS
from pairs import pairwise
import tensorflow as tf

import tf_multitier

v1 = tf.compat.v1


def build(parts=1, pooled=False, initializer=None, **options):
    """(variable, ids placeholder, train op, values of the ids): SGD with learning rate 1 on the sum of the values."""
    ev, loss = variable(parts, pooled, initializer, **options)
    ids = v1.placeholder(tf.int64, [None])
    step = v1.train.get_or_create_global_step()
    train = v1.train.GradientDescentOptimizer(1.0).minimize(loss(ids), global_step=step)
    return ev, ids, train, tf.nn.embedding_lookup(ev, ids)


def variable(parts=1, pooled=False, initializer=None, **options):
    """(variable, function of ids that gives the sum of their values)"""
    ev = tf_multitier.get_embedding_variable(
        "ev",
        4,
        initializer=initializer or v1.zeros_initializer(),
        partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
        ev_option=tf_multitier.EmbeddingVariableOption(**options),
    )

    def loss(ids):
        if not pooled:
            return tf.reduce_sum(tf.nn.embedding_lookup(ev, ids))
        n = tf.size(ids, tf.int64)
        indices = tf.stack([tf.zeros_like(ids), tf.range(n)], 1)
        rows = tf.SparseTensor(indices, ids, tf.stack([1, n]))
        return tf.reduce_sum(tf.nn.embedding_lookup_sparse(ev, rows, None, combiner="sum"))

    return ev, loss


def trained_in(world, *arguments, **options):
    """(variable, training step, function that reads values), in one of the three ways to run a program."""
    ev, loss = variable(*arguments, **options)
    look_up = lambda ids: tf.nn.embedding_lookup(ev, ids)
    return ev, world.step(loss, [ev], "sgd", 1.0), lambda ids: world.run(look_up, ids)


def session_of():
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    return session


@pairwise(
    world=WORLDS,
    counter=[tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.int8, tf.int64],
    parts=[1, 2],
    pooled=[False, True],
)
def test_a_bloom_filter_admits_after_so_many_occurrences(world, pooled, parts, counter):
    ev, train, values = trained_in(
        world, parts, pooled, filter_option=tf_multitier.CBFFilter(3, 1000, 0.01, counter)
    )
    train([1, 1, 2])
    assert world.run(ev.total_count) == 0 and not values([1, 2]).any()
    train([1, 2])
    keys, rows, _, _ = world.run(ev.export)
    assert keys.tolist() == [1] and rows[0].tolist() == [-1.0] * 4
    train([2, 1])
    assert world.run(ev.export)[0].tolist() == [1, 2]
    assert values([1, 2])[:, 0].tolist() == [-2.0, -1.0]


@pytest.mark.parametrize("parts", [1, 2])
def test_bloom_counts_come_back_with_a_checkpoint(graph, parts, tmp_path):
    ev, ids, train, _ = build(parts, filter_option=tf_multitier.CBFFilter(3, 1000))
    saver = v1.train.Saver()
    with session_of() as session:
        session.run(train, {ids: [1, 1]})
        path = saver.save(session, str(tmp_path / "model"))
    with v1.Session() as session:
        saver.restore(session, path)
        session.run(train, {ids: [1, 7]})
        assert session.run(ev.export())[0].tolist() == [1]


@pytest.mark.parametrize("pooled", [False, True])
def test_a_probabilistic_filter_admits_its_share_of_new_keys(world, pooled):
    option = tf_multitier.ProbabilisticFilter(0.25)
    ev, train, _ = trained_in(world, 1, pooled, filter_option=option)
    n = 8000
    train(np.arange(n))
    admitted = world.run(ev.total_count)
    assert abs(admitted - n / 4) < 5 * np.sqrt(n * 0.25 * 0.75)
    for _ in range(60):
        train(np.arange(n))
    assert world.run(ev.total_count) == n


def test_a_probability_of_one_admits_every_key_at_once(world):
    ev, train, _ = trained_in(world, filter_option=tf_multitier.ProbabilisticFilter(1.0))
    train(np.arange(100))
    assert world.run(ev.total_count) == 100


@pytest.mark.parametrize("parts", [1, 2])
def test_expiry_by_weight_removes_small_rows(world, parts):
    ev, train, values = trained_in(world, parts, evict_option=tf_multitier.L2WeightEvict(3.0))
    train([1, 2, 2, 3])  # 0.5 * 4 * 1 = 2, and 8 for key 2
    assert world.run(lambda: ev.expire(0)) == 2
    assert world.run(ev.export)[0].tolist() == [2]
    assert values([1, 2])[:, 0].tolist() == [0.0, -2.0]


@pytest.mark.parametrize("parts", [1, 2])
def test_saving_removes_rows_that_expired_by_the_newest_step(graph, parts, tmp_path):
    ev, ids, train, values = build(parts, evict_option=tf_multitier.GlobalStepEvict(2))
    saver = v1.train.Saver()
    other = 2  # from here to 40 are keys of every part, so that each part has seen the newest step
    with session_of() as session:
        session.run(train, {ids: [1]})  # version 0
        for _ in range(4):
            session.run(train, {ids: np.arange(other, 40)})  # to version 4
        assert session.run(ev.total_count()) == 39
        path = saver.save(session, str(tmp_path / "model"))
        assert session.run(ev.export())[0].tolist() == list(range(other, 40))
        assert session.run(values, {ids: [1]}).tolist() == [[0.0] * 4]
    with v1.Session() as session:
        saver.restore(session, path)
        assert session.run(ev.export())[0].tolist() == list(range(other, 40))


@pytest.mark.parametrize("parts", [1, 2])
def test_saving_removes_rows_of_small_weight_and_export_rows_does_not(graph, parts, tmp_path):
    ev, ids, train, _ = build(parts, evict_option=tf_multitier.L2WeightEvict(3.0))
    saver = v1.train.Saver()
    with session_of() as session:
        session.run(train, {ids: [1, 2, 2, 3]})
        session.run([part.export_rows() for part in ev.parts])
        assert session.run(ev.total_count()) == 3
        saver.save(session, str(tmp_path / "model"))
        assert session.run(ev.export())[0].tolist() == [2]


@pytest.mark.parametrize("parts", [1, 2])
def test_saving_and_exporting_during_training_lose_nothing(graph, parts, tmp_path):
    ev, ids, train, _ = build(parts)
    saver, read, pinned = v1.train.Saver([*ev.parts], max_to_keep=2), ev.export(), np.arange(300)
    stop, failures = threading.Event(), []

    def beside(work):
        count = 0
        try:
            with graph.as_default():  # TensorFlow's default graph is a thread's own
                while not stop.is_set() or count < 2:
                    work(count)
                    count += 1
        except Exception as e:  # noqa: BLE001  the test fails with it
            failures.append(e)

    def check(unused_count):
        _, values, _, frequencies = session.run(read)
        assert (values[:, 0] == -frequencies).all()  # a row and its count are of one moment

    with session_of() as session:
        save = lambda i: saver.save(
            session, str(tmp_path / "model"), global_step=i, write_meta_graph=False
        )
        readers = [threading.Thread(target=beside, args=(work,)) for work in (save, check)]
        trainers = [
            threading.Thread(target=lambda: [session.run(train, {ids: pinned}) for _ in range(100)])
            for _ in range(4)
        ]
        for thread in readers + trainers:
            thread.start()
        for thread in trainers:
            thread.join()
        stop.set()
        for thread in readers:
            thread.join()
        assert not failures
        keys, values, _, frequencies = session.run(read)
        assert (
            keys.tolist() == pinned.tolist()
            and set(values.ravel()) == {-400.0}
            and set(frequencies) == {400}
        )
        saver.restore(session, saver.last_checkpoints[-1])
        _, values, _, frequencies = session.run(read)
        assert (values[:, 0] == -frequencies).all()

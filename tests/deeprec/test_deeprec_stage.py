"""tf.staged: its threads run ahead of the step and results are kept. The end of data, errors and closing wake each waiting step."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from tf_multitier.data import DataFrame
from tf_multitier.deeprec import stage

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def numbers(n):
    return v1.data.make_one_shot_iterator(tf.data.Dataset.range(n)).get_next()


def session(**kwargs):
    return v1.train.MonitoredSession(hooks=[stage.make_prefetch_hook()], **kwargs)


def take_all(fetch):
    found = []
    with session() as running:
        while not running.should_stop():
            found.append(running.run(fetch))
    return found


def test_results_come_in_order_and_the_end_of_data_ends_the_session():
    assert take_all(stage.staged(numbers(20))) == list(range(20))


@pytest.mark.parametrize("threads, capacity", [(4, 1), (3, 40), (1, 40)])
def test_with_threads_nothing_is_lost_or_doubled(threads, capacity):
    assert sorted(
        take_all(stage.staged(numbers(200), num_threads=threads, capacity=capacity))
    ) == list(range(200))


def test_structures_keep_their_form_and_shapes():
    sparse = tf.sparse.from_dense([[1, 0], [0, 2]])
    features = {
        "b": tf.ones([2, 3]),
        "a": (sparse, None),
        "r": tf.ragged.constant([[1], [2, 3]]),
        "f": DataFrame.Value(tf.constant([5]), [tf.constant([0, 1])]),
    }
    found = stage.staged((features, tf.constant(["label"])))
    assert found[0]["b"].shape == [2, 3] and found[0]["a"][1] is None
    assert isinstance(found[0]["a"][0], tf.SparseTensor) and isinstance(
        found[0]["f"], DataFrame.Value
    )
    fetches = [tf.sparse.to_dense(found[0]["a"][0]), found[0]["r"].flat_values, found[1]]
    with session() as running:
        dense, values, label = running.run(fetches)
    assert (
        dense.tolist() == [[1, 0], [0, 2]]
        and values.tolist() == [1, 2, 3]
        and label.tolist() == [b"label"]
    )


def test_the_next_result_is_made_while_the_step_runs():
    made = threading.Semaphore(0)

    def make():
        made.release()
        return np.int64(1)

    def step(_):
        # Waits for the runs of the stage that belong to the next steps: no step would end if the stage ran with it.
        return np.int64(all(made.acquire(timeout=60) for _ in range(2)))

    stepped = tf.numpy_function(
        step, [stage.staged(tf.numpy_function(make, [], tf.int64))], tf.int64
    )
    with session() as running:
        assert running.run(stepped) == 1


def test_no_more_than_capacity_is_made_ahead():
    count = v1.get_variable("count", initializer=0, use_resource=True)
    taken, made = stage.staged(v1.assign_add(count, 1), capacity=2), tf.identity(count)
    with session() as running:
        for step in range(1, 6):
            assert running.run(taken) == step
        assert running.run(made) <= 5 + 3  # two results in the queue, and one that waits for room


def test_an_error_of_the_stage_is_raised_by_the_step_that_waits():
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad number"):
        take_all(stage.staged(tf.debugging.check_numerics(tf.constant(np.nan), "bad number")))


def test_ignored_errors_are_passed_over_and_others_end_the_data_where_they_are_said_to():
    def check(number):
        with tf.control_dependencies(
            [tf.debugging.assert_none_equal(number % 3, tf.constant(1, tf.int64))]
        ):
            return tf.identity(number)

    skipped = stage.staged(
        check(numbers(9)), ignored_exception_types=(tf.errors.InvalidArgumentError,)
    )
    assert take_all(skipped) == [0, 2, 3, 5, 6, 8]
    ended = stage.staged(check(numbers(9)), closed_exception_types=(tf.errors.INVALID_ARGUMENT,))
    assert take_all(ended) == [0]


def test_a_session_that_ends_early_leaves_no_thread():
    taken = stage.staged(numbers(1000), num_threads=3)
    with session() as running:
        running.run(taken)
    for thread in threading.enumerate():
        if thread.name == "tf.staged":
            thread.join(60)
            assert not thread.is_alive()


def test_a_thread_that_cannot_start_ends_the_stage_and_its_other_threads(monkeypatch):
    start, started = threading.Thread.start, []

    def second_fails(thread):
        if thread.name == "tf.staged":
            if started:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    taken = stage.staged(numbers(1000), num_threads=3, capacity=2)
    monkeypatch.setattr(threading.Thread, "start", second_fails)
    with pytest.raises(RuntimeError, match="can't start new thread"), session() as running:
        running.run(taken)
    started[0].join(60)
    assert not started[0].is_alive()


def test_train_and_evaluation_sessions_of_one_graph_both_run_their_stages():
    taken, hooks = stage.staged(numbers(5)), [stage.make_prefetch_hook()]
    for _ in range(2):
        found = []
        with v1.train.MonitoredSession(hooks=hooks) as running:
            while not running.should_stop():
                found.append(running.run(taken))
        assert found == [0, 1, 2, 3, 4]


def test_sessions_of_one_server_get_an_open_queue_each():
    server = v1.train.Server.create_local_server()
    iterator = v1.data.make_initializable_iterator(tf.data.Dataset.range(3))
    taken = stage.staged(iterator.get_next())
    scaffold = v1.train.Scaffold(
        local_init_op=tf.group(v1.local_variables_initializer(), iterator.initializer)
    )
    for _ in range(2):
        found, creator = [], v1.train.ChiefSessionCreator(scaffold, server.target)
        with v1.train.MonitoredSession(creator, hooks=[stage.make_prefetch_hook()]) as running:
            while not running.should_stop():
                found.append(running.run(taken))
        assert found == [0, 1, 2]


def test_a_generator_and_tensors_feed_the_stage():
    fed, scale = v1.placeholder(tf.int32, []), v1.placeholder(tf.int64, [])
    taken = stage.staged(fed * 10, items=[fed], feed_generator=([i] for i in range(4)))
    scaled = stage.staged(numbers(3) + scale, feed_dict={scale: tf.constant(100, tf.int64)})
    with session() as running:
        assert [running.run(taken) for _ in range(4)] == [0, 10, 20, 30]
        assert running.run(scaled) == 100
        with pytest.raises(tf.errors.OutOfRangeError):
            running.run(taken)


def test_join_takes_from_several_sources():
    taken = stage.prefetch_join([[numbers(3)], [numbers(3) + 10]], capacity=2)
    assert sorted(found[0] for found in take_all(taken)) == [0, 1, 2, 10, 11, 12]


def test_training_is_the_same_with_a_stage():
    def losses(stages):
        with tf.Graph().as_default():
            x = tf.cast(numbers(8), tf.float32)
            x = stage.staged(x, capacity=3) if stages else x
            w = v1.get_variable("w", initializer=1.0)
            step = v1.train.GradientDescentOptimizer(0.01).minimize(loss := (w * x - 2.0) ** 2)
            found = []
            with session() as running:
                while not running.should_stop():
                    found.append(running.run([loss, step])[0])
            return found

    assert losses(True) == losses(False) and len(losses(True)) == 8


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (dict(num_threads=0), ValueError, "num_threads: expected at least 1, found 0"),
        (dict(capacity=0), ValueError, "capacity: expected at least 1, found 0"),
        (dict(capacity=1.5), TypeError, "capacity: expected an integer, found 1.5"),
        (
            dict(closed_exception_types=("x",)),
            TypeError,
            "closed_exception_types: expected exception classes",
        ),
        (dict(items=[1]), ValueError, "expected both items and feed_generator or neither"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        stage.staged(tf.constant(1), **arguments)


def test_a_structure_without_tensors_is_refused():
    with pytest.raises(ValueError, match="at least one tensor"):
        stage.staged({"a": None})

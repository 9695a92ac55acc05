"""Strategies of tf.distribute: one replica in one process trains; others are refused by name, before they make or change anything.

test_distribute_tf2_servers.py has parameter servers.
"""

import concurrent.futures
import json
import os
import re

import forks
import pytest
import tensorflow as tf
from ports import free_ports

import tf_multitier
from worlds import needs_eager

pytestmark = needs_eager

# Prints what is refused, and how many rows there are at the end.
PROGRAM = """
import tensorflow as tf
import tf_multitier

@tf.function
def look_up():
    return tf.nn.embedding_lookup(outside, [1, 2])

def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(outside, [1, 2]))
    return optimizer.apply_gradients([(tape.gradient(loss, outside), outside)])

def refused(what, call):
    try:
        call()
    except NotImplementedError as error:
        print(what, "refused", str(error).strip().splitlines()[-1].strip())
    else:
        print(what, "runs")

def make():
    with strategy.scope():
        tf_multitier.get_embedding_variable("inside", 4)

def report():
    global outside, optimizer
    outside = tf_multitier.get_embedding_variable("outside", 4)
    optimizer = tf_multitier.optimizers.SGD(0.1)
    refused("make", make)
    refused("look up", lambda: strategy.run(look_up))
    refused("train", lambda: strategy.run(tf.function(step)))
    print("rows", int(outside.total_count()))
"""
PROCESSES = """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
report()
refused("outside", tf.function(step))
print("rows", int(outside.total_count()))
"""
MIRRORED = """
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
report()
"""
TWO_CPUS = """
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""


def lines_of(code, **environ):
    """What a program prints."""
    done = forks.run(["-c", code], {**os.environ, **environ})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def is_refused(line, what, who):
    return re.match(
        rf"{what} refused .*expected no strategy of tf.distribute, one with one replica in one process, or TensorFlow 2's "
        rf"ParameterServerStrategy, found {who}",
        line,
    )


def test_several_processes_are_refused_where_they_would_make_or_train_tables_of_their_own():
    workers = [f"localhost:{port}" for port in free_ports(2)]
    task = lambda i: {"cluster": {"worker": workers}, "task": {"type": "worker", "index": i}}
    run = lambda i: lines_of(PROGRAM + PROCESSES, TF_CONFIG=json.dumps(task(i)))
    with concurrent.futures.ThreadPoolExecutor(2) as both:
        printed = list(both.map(run, range(2)))
    for lines in printed:
        make, look_up, train, *rows, outside, after = lines
        assert look_up == "look up runs" and [*rows, after] == ["rows 0"] * 2
        assert is_refused(outside, "outside", "one of the 2 processes of"), lines
        for line, what in ((make, "make"), (train, "train")):
            assert is_refused(line, what, "CollectiveAllReduceStrategy with 2 replicas"), lines


def test_several_replicas_of_one_process_read_a_table_and_are_refused_to_train_it():
    make, look_up, train, rows = lines_of(TWO_CPUS + PROGRAM + MIRRORED)
    assert (make, look_up, rows) == ("make runs", "look up runs", "rows 0")
    assert is_refused(train, "train", "MirroredStrategy with 2 replicas")


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
        lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
        lambda: tf.distribute.experimental.CentralStorageStrategy(["CPU:0"], "CPU:0"),
        tf.distribute.MultiWorkerMirroredStrategy,
    ],
    ids=["one device", "mirrored", "central storage", "one worker"],
)
def test_one_replica_in_one_process_trains(make):
    strategy = make()
    with strategy.scope():
        table = tf_multitier.get_embedding_variable("users", 4)
    optimizer = tf_multitier.optimizers.SGD(0.1)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 2]))
        return optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    strategy.run(step)
    assert int(table.total_count()) == 2

"""Parameter servers of TensorFlow 1: the server's program, exact counts, its end, processes that are killed."""

import json
import re
import subprocess
import sys
from concurrent import futures

import pytest
import tensorflow as tf

import tf_multitier
from cluster_util import launch
from ports import free_ports

# A variable in two parts, on two servers. Each step trains the keys 5, 2, 2 and 3.
PROGRAM = """
import tf_multitier
import tf_multitier.v1 as tf
if job == "ps":
    tf_multitier.distribute.serve()
    print("served")
    sys.exit()

task = f"/job:{job}/task:{index}"
config = tf.ConfigProto(device_filters=["/job:ps", task])
cluster = tf.train.ClusterSpec(TF_CONFIG["cluster"])
server = tf.train.Server(cluster, job, index, config=config)
storage = tf_multitier.StorageOption("DRAM_SSDHASH", storage_path=folder + "/rows", storage_size=1 << 20)
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=task)):
    step = tf.train.get_or_create_global_step()
    users = tf.get_embedding_variable(
        "users", 4, initializer=tf.zeros_initializer(), partitioner=tf.fixed_size_partitioner(2),
        ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage),
    )
    loss = -tf.reduce_sum(tf.nn.embedding_lookup(users, tf.constant([5, 2, 2, 3], tf.int64)))
    train = tf.train.GradientDescentOptimizer(1.0).minimize(loss, global_step=step)
    frequency, values = users.get_frequency([5, 2, 3]), tf.nn.embedding_lookup(users, [5, 2, 3])
    counts = [part.total_count() for part in users.parts]
"""
TWO_WORKERS = """
with tf.train.MonitoredTrainingSession(server.target, job == "chief", hooks=[tf.train.StopAtStepHook(20)], config=config) as session:
    steps = 0
    while not session.should_stop():
        session.run(train)
        steps += 1
print("steps", steps)
if job == "chief":
    with tf.Session(server.target, config=config) as session:
        print("parts", [part.device for part in users.parts], *session.run(counts))
        while not os.path.exists(f"{folder}/done"):
            session.run(step)
        print("frequency", *session.run(frequency), "values", *session.run(values)[:, 0].astype(int))
    end_task("ps1", signal.SIGTERM)
    [kept] = [count for part, count in zip(users.parts, counts) if part.device == "/job:ps/task:0"]
    while True:
        try:
            with tf.Session(server.target, config=config) as session:
                print("kept", session.run(kept))
            break
        except tf.errors.UnavailableError:  # the other server starts again
            pass
else:
    open(f"{folder}/done", "w").close()
"""
KILLED = """
with tf.train.MonitoredTrainingSession(
    server.target, True, folder + "/model", hooks=[tf.train.StopAtStepHook(30)], save_checkpoint_steps=10, config=config
) as session:
    killed = False
    while not session.should_stop():
        at, _ = session.run([step, train])
        if at == 14 and not killed:
            end_task("ps1", signal.SIGKILL)
            killed = True
with tf.Session(server.target, config=config) as session:
    print("frequency", *session.run(frequency), "values", *session.run(values)[:, 0].astype(int))
print("instances", sorted(name.split("-")[1] for _, names, _ in os.walk(folder + "/rows") for name in names if name.startswith("instance-")))
print("servers", sorted(open(f"{folder}/ps{i}").read() for i in range(2)))
"""

# First the worker kills itself, then, when the worker is back, the chief.
KILLED_WORKERS = """
import time
lives = 1 + os.path.exists(f"{folder}/{job}")
open(f"{folder}/{job}", "w").close()
steps, pauses, last = 0, [], None
with tf.train.MonitoredTrainingSession(
    server.target, job == "chief", folder + "/model", save_checkpoint_steps=200, config=config
) as session:
    while not (pauses and os.path.exists(f"{folder}/done")):
        at, _ = session.run([step, train])
        steps += 1
        pauses += [] if last is None else [time.monotonic() - last]
        last = time.monotonic()
        if job == "worker" and lives == 2:
            open(f"{folder}/again", "w").close()
        if lives == 1 and (steps == 7 if job == "worker" else at > 20 and os.path.exists(f"{folder}/again")):
            os.kill(os.getpid(), signal.SIGKILL)
        if job == "chief" and lives == 2 and steps == 30:
            open(f"{folder}/done", "w").close()
print("lives", lives)
if job == "worker":
    print("pause", max(pauses))
    open(f"{folder}/left", "w").close()
else:
    with tf.Session(server.target, config=config) as session:
        while not os.path.exists(f"{folder}/left"):
            session.run(step)
        print("frequency", *session.run(frequency), *session.run(values)[:, 0].astype(int))
"""


def test_two_workers_train_exactly_over_two_servers_and_the_end_of_one_server_leaves_the_other(
    tmp_path,
):
    lines, ends = launch(
        tmp_path, PROGRAM + TWO_WORKERS, "--workers=2", "--ps=2", "--max_restarts=1"
    )
    chief, worker = lines["chief 0"], lines["worker 0"]
    steps = sum(int(each[0].removeprefix("steps ")) for each in (chief, worker))
    assert steps >= 20 and "/job:ps/task:0" in chief[1] and "/job:ps/task:1" in chief[1]
    exact = f"{steps} {2 * steps} {steps}"
    assert chief[2] == f"frequency {exact} values {exact}"
    counts = chief[1].split("] ")[1].split()
    first = "'/job:ps/task:0'" in chief[1].split(",")[0]
    assert sorted(counts) == ["1", "2"] and chief[3] == "kept " + counts[0 if first else 1]
    assert lines["ps 0"] == ["served"] and "served" in lines["ps 1"]
    assert ends[0] == "[launch] ps 1 ended with status 0 before the workers"


def test_a_server_that_is_killed_starts_again_and_the_steps_since_the_checkpoint_are_repeated(
    tmp_path,
):
    arguments = ("--workers=1", "--ps=2", "--max_restarts=1")
    lines, ends = launch(tmp_path, PROGRAM + KILLED, *arguments)
    assert ends[-1] == "[launch] ps 1 starts again, 1 of 1"
    assert lines["chief 0"][0] == "frequency 30 60 30 values 30 60 30"
    instances, servers = (line.split(" ", 1)[1] for line in lines["chief 0"][1:])
    assert instances == servers, "files of the process that was killed"


def test_workers_that_are_killed_start_again_while_others_go_on(tmp_path):
    arguments = ("--workers=2", "--ps=2", "--max_restarts=2")
    lines, _ = launch(tmp_path, PROGRAM + KILLED_WORKERS, *arguments)
    chief, worker = lines["chief 0"], lines["worker 0"]
    assert chief[0] == worker[0] == "lives 2"
    # The chief was killed and came back. TensorFlow's workers would look for it each 30 seconds.
    assert float(worker[1].removeprefix("pause ")) < 20
    five, two, three, *values = map(int, chief[1].split()[1:])
    assert values == [five, two, three] and five > 20
    # The chief restores while the worker trains, perhaps some of its steps later on one server: on that of 5, or of 2 and 3.
    assert two == 2 * three


def test_workers_of_servers_look_for_the_chief_each_second():
    with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
        tf_multitier.get_embedding_variable("users", 4)
        creator = tf.compat.v1.train.WorkerSessionCreator()
        creator._get_session_manager()
    assert creator._session_manager._recovery_wait_secs == 1


def test_a_server_that_has_not_loaded_the_ops_is_an_error_with_its_cure():
    [port] = free_ports(1)
    start = f"import tensorflow as tf; tf.distribute.Server({{'ps': ['127.0.0.1:{port}']}}).join()"
    with subprocess.Popen([sys.executable, "-c", start], stderr=subprocess.DEVNULL) as server:
        try:
            with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
                table = tf_multitier.get_embedding_variable("users", 4)
                with tf.compat.v1.Session(f"grpc://127.0.0.1:{port}") as session:
                    cure = "a session: expected servers with the ops of tf_multitier, found one without: start servers by"
                    with pytest.raises(tf.errors.NotFoundError, match=cure):
                        session.run(table.initializer)
        finally:
            server.kill()


def serve(monkeypatch, config):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))
    tf_multitier.distribute.serve()


WORKERS, SERVERS = {"worker": ["h:1", "h:2"]}, {"worker": ["h:1"], "ps": ["h:2"]}


@pytest.mark.parametrize(
    "config, message",
    [
        (None, "TF_CONFIG: expected a cluster and the task of this process, found none"),
        ("{", "TF_CONFIG: expected a JSON object with cluster and task, found '{'"),
        ({"cluster": WORKERS}, "expected a JSON object with cluster and task"),
        (
            {"cluster": WORKERS, "task": {"type": "worker", "index": 0}},
            "task: expected ps, or worker in a cluster with chief and ps, found 'worker' in a cluster of worker:",
        ),
        (
            {"cluster": SERVERS, "task": {"type": "worker", "index": 0}},
            "found 'worker' in a cluster of ps, worker",
        ),
        (
            {"cluster": {"chief": ["h:1"], **SERVERS}, "task": {"type": "chief", "index": 0}},
            "found 'chief' in a cluster of chief, ps, worker",
        ),
        (
            {"cluster": SERVERS, "task": {"type": "ps", "index": 1}},
            "task: expected an index of the 1 tasks of ps, found 1",
        ),
    ],
)
def test_a_process_that_is_no_server_is_refused(config, message, monkeypatch):
    with pytest.raises(ValueError, match=re.escape(message)):
        serve(monkeypatch, config)


def test_a_server_waits_in_the_main_thread():
    with futures.ThreadPoolExecutor(1) as pool:
        made = pool.submit(tf_multitier.distribute.serve)
        with pytest.raises(RuntimeError, match="expected a call from the main thread"):
            made.result()

"""Sessions, processes and servers with one storage path: each has its own instance, and leftovers of dead processes are removed."""

import os
import signal
import textwrap

import forks
import numpy as np
import tensorflow as tf
from paths import environment
from storage_util import Model
from storage_util import option
from storage_util import OVER_HBM
from storage_util import started

v1 = tf.compat.v1


def instances(path):
    """Instance directories below a storage path."""
    return sorted(
        os.path.join(name, instance)
        for name in os.listdir(path)
        for instance in os.listdir(os.path.join(path, name))
    )


def start_python(code, *arguments):
    """A Python process with storage_util. Exchanges lines with it over its standard streams."""
    prelude = textwrap.dedent("""
        import sys
        import numpy as np
        import tensorflow as tf
        from storage_util import *
        v1.disable_eager_execution()
        def say(text):
            print(text, flush=True)
            return sys.stdin.readline().strip()
    """)
    program = ["-c", prelude + textwrap.dedent(code), *arguments]
    return forks.start(program, env=environment(TF_CPP_MIN_LOG_LEVEL="3"))


def answer(process):
    """The next line that it says."""
    line = process.stdout.readline()
    assert line, f"the process ended: {process.wait()}"
    return line.strip()


def tell(process, text="go"):
    process.stdin.write(text + "\n")
    process.stdin.flush()


def finish(process):
    output = process.communicate(timeout=120)
    assert process.returncode == 0
    return output.split()


TRAIN = """
    model = Model(option("DRAM_SSDHASH", sys.argv[1]))
    with started() as session:
        for key in range(50):
            model.run(session, [key] * int(sys.argv[2]))
        command = say(session.run(model.ev.get_frequency(np.arange(50))).sum())
        if command == "go":
            say(session.run(model.ev.get_frequency(np.arange(50))).sum())
"""


def test_train_and_eval_sessions_of_one_process_have_an_instance_each(tmp_path):
    with tf.Graph().as_default():
        model, saver = Model(option("DRAM_SSDHASH", tmp_path)), v1.train.Saver()
        with started() as training, v1.Session() as evaluation:
            model.run(training, np.arange(30))
            saver.restore(
                evaluation, saver.save(training, str(tmp_path / "model"), write_meta_graph=False)
            )
            assert len(os.listdir(tmp_path / "ev")) == 2
            expected = model.content(evaluation)
            model.run(training, np.arange(30))
            assert model.content(evaluation) == expected  # frozen: another table
            assert training.run(model.ev.get_frequency([7])) == [2]


def test_two_processes_share_a_path_and_a_name(tmp_path):
    processes = [start_python(TRAIN, tmp_path, n) for n in (1, 2)]
    assert [answer(p) for p in processes] == ["50", "100"]
    assert len(instances(tmp_path)) == 2
    for process in processes:
        tell(process)
    assert [answer(p) for p in processes] == ["50", "100"]
    for process in processes:
        tell(process)
        finish(process)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_goes_when_its_name_comes_back(tmp_path):
    killed, living = (start_python(TRAIN, tmp_path, n) for n in (1, 2))
    answer(killed), answer(living)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    before = instances(tmp_path)
    assert len(before) == 2
    again = start_python(TRAIN, tmp_path, 3)
    assert answer(again) == "150"
    after = instances(tmp_path)
    assert len(after) == 2 and len(set(after) & set(before)) == 1  # the living one's stayed
    for process in (living, again):
        tell(process)
        answer(process)
        tell(process)
        finish(process)
    assert os.listdir(tmp_path) == []


SERVERS = """
    servers = [v1.train.Server.create_local_server(start=True) for _ in range(2)]
    totals = []
    for number, server in enumerate(servers):
        with tf.Graph().as_default():
            model = Model(option("DRAM_LEVELDB", sys.argv[1]))
            session = v1.Session(server.target)
            session.run(v1.global_variables_initializer())
            for key in range(40):
                model.run(session, [key] * (number + 1))
            with v1.Session(server.target) as evaluation:  # of one server: the same table
                totals.append(int(evaluation.run(model.ev.get_frequency(np.arange(40))).sum()))
    say(totals)
"""


def test_two_servers_share_a_path_and_sessions_of_one_share_its_table(tmp_path):
    process = start_python(SERVERS, tmp_path)
    assert answer(process) == "[40, 80]"
    assert len(instances(tmp_path)) == 2
    tell(process)
    finish(process)


CLUSTER = """
    from ports import free_ports
    first, second, third = (f"localhost:{port}" for port in free_ports(3))
    cluster = tf.train.ClusterSpec({"ps": [first, second], "worker": [third]})
    parameter_servers = [tf.distribute.Server(cluster, "ps", i) for i in range(2)]
    worker = tf.distribute.Server(cluster, "worker", 0)
    models = []
    for kind in (None, "DRAM_SSDHASH"):
        with v1.device(v1.train.replica_device_setter(cluster=cluster)):
            models.append(Model(kind and option(kind, sys.argv[1]), name=str(kind), parts=2))
    devices = {part.device for part in models[1].ev.parts}
    with v1.Session(worker.target) as session:
        session.run(v1.global_variables_initializer())
        for key in range(40):
            for model in models:
                model.run(session, [key, key // 2], step=False)
        same = [model.content(session) for model in models]
        kept = session.run(models[1].ev.prefetch(np.arange(40), timeout=1000))
        say([len(devices), same[0] == same[1], len(same[0][0]), int(kept)])
"""


def test_partitions_on_two_parameter_servers_share_a_path(tmp_path):
    process = start_python(CLUSTER, tmp_path)
    # Each part keeps one prefetched row in DRAM, and one more in HBM.
    assert answer(process) == f"[2, True, 40, {4 if OVER_HBM else 2}]"
    found = instances(tmp_path)
    assert len(found) == 2 and len({os.path.dirname(f) for f in found}) == 2
    tell(process)
    finish(process)

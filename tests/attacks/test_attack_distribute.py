"""kill -9 and SIGSTOP of processes that train together, at random moments: five rounds each."""

import random
import signal

import killed_worlds
import pytest
from cluster_util import launch

ROUNDS = 5


@pytest.mark.parametrize(
    "number, what", [(signal.SIGKILL, "step"), (signal.SIGKILL, "save"), (signal.SIGSTOP, None)]
)
def test_a_world_goes_on_after_each_rank_that_ends(tmp_path, number, what):
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    ends = []
    for _ in range(ROUNDS):
        begun = what or draw.choice(["step", "save"])
        times = draw.randint(1, 30 if begun == "step" else 3)
        ends.append([draw.randrange(2), begun, times, draw.uniform(0, 0.1), int(number)])
    print("seed", seed, ends)
    begun, waited, recovered = killed_worlds.check(tmp_path, ends)
    print("lives began at", begun, "waited", waited, "seconds until steps went on", recovered)


# A variable in two parts, on two servers. Each step trains the keys 5, 2, 2 and 3. ENDS: who is killed, after how many of its steps, seconds
# after that.
SERVERS = """
import threading, time
import tf_multitier
import tf_multitier.v1 as tf
if job == "ps":
    open(f"{folder}/answers", "w").write(str(time.time()))
    tf_multitier.distribute.serve()
    sys.exit()

task = f"/job:{job}/task:{index}"
config = tf.ConfigProto(device_filters=["/job:ps", task])
cluster = tf.train.ClusterSpec(TF_CONFIG["cluster"])
server = tf.train.Server(cluster, job, index, config=config)
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=task)):
    step = tf.train.get_or_create_global_step()
    users = tf.get_embedding_variable(
        "users", 4, initializer=tf.zeros_initializer(), partitioner=tf.fixed_size_partitioner(2)
    )
    loss = -tf.reduce_sum(tf.nn.embedding_lookup(users, tf.constant([5, 2, 2, 3], tf.int64)))
    train = tf.train.GradientDescentOptimizer(1.0).minimize(loss, global_step=step)
    frequency, values = users.get_frequency([5, 2, 3]), tf.nn.embedding_lookup(users, [5, 2, 3])

def number():
    return sum(os.path.exists(f"{folder}/end{i}") for i in range(len(ENDS)))

def end(who, i):
    pid = open(f"{folder}/{who}").read()
    with open(f"{folder}/end{i}.new", "w") as file:
        file.write(f"{time.time()} {pid}")
    os.rename(f"{folder}/end{i}.new", f"{folder}/end{i}")
    os.kill(int(pid), signal.SIGKILL)

def last_end():
    ended, pid = open(f"{folder}/end{number() - 1}").read().split()
    return float(ended), pid

def is_back():
    who = ENDS[number() - 1][0]
    return open(f"{folder}/{who}").read() not in ("", last_end()[1])

# Whose end it was before this step, until it has told so.
told = number() if job == "chief" else 0
waits, after, pauses, last = None, 0, [], None
if number() and ENDS[number() - 1][0] == f"{job}{index}":
    told = number() - 1
with tf.train.MonitoredTrainingSession(
    server.target, job == "chief", folder + "/model", save_checkpoint_steps=10, save_summaries_steps=None, config=config
) as session:
    while not os.path.exists(f"{folder}/done"):
        session.run(train)
        now = time.time()
        pauses += [] if last is None else [now - last]
        last, done = now, number()
        if done > told and job == KILLS and is_back():
            answers, ended = float(open(f"{folder}/answers").read()), last_end()[0]
            print("recovered", ENDS[done - 1][0], now - ended, now - max(answers, ended))
            told, waits, after = done, None, 0
        after += 1
        if done < len(ENDS) and waits is None and job == KILLS and after == ENDS[done][1]:
            waits = threading.Timer(ENDS[done][2], end, (ENDS[done][0], done))
            waits.start()
        if told == len(ENDS) and after >= 10 and job == KILLS:
            open(f"{folder}/done", "w").close()
print("pause", max(pauses))
if job == "chief":
    with tf.Session(server.target, config=config) as session:
        print("step", session.run(step), "frequency", *session.run(frequency), *session.run(values)[:, 0].astype(int))
"""


def _rounds(folder, who, killer, workers):
    """(lines, [(who was killed, seconds until steps went on, and since the server answered)])."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    ends = [(who, draw.randint(1, 30), draw.uniform(0, 0.1)) for _ in range(ROUNDS)]
    print("seed", seed, ends)
    code = f"ENDS, KILLS = {ends}, '{killer}'\n{SERVERS}"
    arguments = (f"--workers={workers}", "--ps=2", f"--max_restarts={ROUNDS}")
    lines, said = launch(folder, code, *arguments, seconds=300 + 60 * ROUNDS)
    assert sum("starts again" in line for line in said) == ROUNDS, said
    found = [line.split()[1:] for own in lines.values() for line in own if "recovered" in line]
    print("seconds until steps went on, and since the last server answered", found)
    assert len(found) == ROUNDS
    return lines, found


@pytest.mark.parametrize("who", ["chief0", "ps0", "ps1"])
def test_counts_are_those_of_the_checkpoint_and_what_followed(tmp_path, who):
    lines, _ = _rounds(tmp_path, who, "chief", 1)
    numbers = [int(each) for each in lines["chief 0"][-1].split() if each.isdigit()]
    steps = numbers[0]
    assert steps > ROUNDS and numbers[1:] == [steps, 2 * steps, steps] * 2


def test_others_go_on_while_a_worker_starts_again(tmp_path):
    lines, _ = _rounds(tmp_path, "worker0", "worker", 2)
    steps, five, two, three, *values = [
        int(each) for each in lines["chief 0"][-1].split() if each.isdigit()
    ]
    assert values == [five, two, three] and five > ROUNDS
    # Of a killed worker's last step, one server may have the updates, another not.
    assert two % 2 == 0
    counts = [steps, five, two // 2, three]
    assert max(counts) - min(counts) <= ROUNDS
    assert float(lines["chief 0"][-2].split()[1]) < 5

"""Training in several processes: bytes and steps against TensorFlow's own partitioned variables on parameter servers.

    python3 benchmarks/distributed.py [--bag=10] [--batch=1024] [--whole] [--workers=2] [--wire_dtype=bfloat16]
    python3 benchmarks/distributed.py --collective --workers=2   # ours are a world of workers, without servers
    python3 benchmarks/distributed.py --parts=recovery           # seconds until steps go on after a server that was killed answers

A model of 26 features of 100,000 ids each (Zipf 1.05), dim 16, bags of --bag ids, pooled by mean, and two dense layers. Two servers and
the workers are processes of a network namespace of their own, so that its loopback counts their bytes alone. The systems take turns;
their medians and the median of the ratios are printed.

B, what must cross: for each distinct key of a table its id (8 bytes), its row and its gradient (float32), and the dense variables twice.
In a world of n, a process owns 1/n of its keys, so (n - 1)/n of B's rows cross, and the dense gradients once each way of the ring.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time

from absl import app
from absl import flags
import numpy as np

import driver

FLAGS = flags.FLAGS
flags.DEFINE_integer("features", 26, "Tables.", lower_bound=1)
flags.DEFINE_integer("ids", 100_000, "Ids of a table.", lower_bound=1)
flags.DEFINE_integer("dim", 16, "Elements of a row.", lower_bound=1)
flags.DEFINE_integer("bag", 1, "Ids of a feature of an example.", lower_bound=1)
flags.DEFINE_integer("batch", 2048, "Examples of a step of a worker.", lower_bound=1)
flags.DEFINE_integer("servers", 2, "Parameter servers.", lower_bound=1)
flags.DEFINE_integer("workers", 1, "Workers.", lower_bound=1)
flags.DEFINE_integer("steps", 60, "Steps that are timed, after 20 others.", lower_bound=1)
FLAGS.set_default("rounds", 5)
flags.DEFINE_bool("whole", False, "Whole tables, each on one server, instead of a part on each.")
flags.DEFINE_string("wire_dtype", "float32", "The type of rows and gradients between processes.")
flags.DEFINE_bool("collective", False, "Ours is a world of the workers, without servers.")
flags.DEFINE_string(
    "checkpoints", None, "The directory of those of a run in which a server is killed."
)
flags.DEFINE_enum(
    "system", None, ["exchange", "collective", "stock"], "What a process of a run trains."
)

BATCHES = 8
WARM_UP = 20


def batches(worker):
    """int64 [BATCHES, features, batch, bag]."""
    rng = np.random.default_rng(17 + worker)
    uniform = rng.random((BATCHES, FLAGS.features, FLAGS.batch, FLAGS.bag))
    return (((FLAGS.ids**-0.05 - 1) * uniform + 1) ** (-1 / 0.05)).astype(np.int64) % FLAGS.ids


def bytes_needed(dense):
    """B of a step. dense: elements of the dense variables."""
    found = batches(0)
    distinct = sum(np.unique(ids).size for batch in found for ids in batch) / BATCHES
    if FLAGS.system == "collective":
        others = (FLAGS.workers - 1) / FLAGS.workers
        return others * (distinct * (12 + 2 * 4 * FLAGS.dim) + 2 * 4 * dense)
    return distinct * (8 + 2 * 4 * FLAGS.dim) + 2 * 4 * dense


def loopback():
    with open("/proc/net/dev") as f:
        return next(int(line.split()[9]) for line in f if line.strip().startswith("lo:"))


def process(config):
    """A server, or a worker, which prints its result."""
    import tensorflow as tf

    import tf_multitier

    v1 = tf.compat.v1
    job, index = config["task"]["type"], config["task"]["index"]
    filters = ["/job:ps", f"/job:{job}/task:{index}"] if job == "worker" else []
    session_config = v1.ConfigProto(inter_op_parallelism_threads=2, device_filters=filters)
    server = tf.distribute.Server(config["cluster"], job, index, config=session_config)
    if job == "ps":
        print(json.dumps({"answers": time.time()}), flush=True)
        server.join()
    ids = batches(index)
    with (
        tf.Graph().as_default(),
        v1.device(
            v1.train.replica_device_setter(
                cluster=config["cluster"], worker_device=f"/job:worker/task:{index}"
            )
        ),
    ):
        step = v1.train.get_or_create_global_step()
        number = v1.placeholder(tf.int64, [])
        with tf.device(f"/job:worker/task:{index}"):
            batch = tf.constant(ids)[number]
        rows = tf.reshape(tf.range(FLAGS.batch * FLAGS.bag, dtype=tf.int64), [-1])
        indices = tf.stack([rows // FLAGS.bag, rows % FLAGS.bag], 1)
        bags = [
            tf.SparseTensor(indices, tf.reshape(batch[i], [-1]), [FLAGS.batch, FLAGS.bag])
            for i in range(FLAGS.features)
        ]
        partitioner = None if FLAGS.whole else v1.fixed_size_partitioner(FLAGS.servers)
        initializer = tf.random_uniform_initializer(-0.05, 0.05, seed=1)
        if FLAGS.system == "exchange":
            tables = [
                tf_multitier.get_embedding_variable(
                    f"table{i}", FLAGS.dim, initializer=initializer, partitioner=partitioner
                )
                for i in range(FLAGS.features)
            ]
            x = tf_multitier.nn.group_embedding_lookup_sparse(tables, bags, "mean", concat=True)
        else:
            tables = [
                v1.get_variable(
                    f"table{i}",
                    [FLAGS.ids, FLAGS.dim],
                    initializer=initializer,
                    partitioner=partitioner,
                )
                for i in range(FLAGS.features)
            ]
            x = tf.concat(
                [
                    v1.nn.embedding_lookup_sparse(table, its, None, combiner="mean")
                    for table, its in zip(tables, bags)
                ],
                1,
            )
        width = FLAGS.features * FLAGS.dim
        w1 = v1.get_variable("w1", [width, 32], initializer=initializer)
        w2 = v1.get_variable("w2", [32, 1], initializer=initializer)
        loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.relu(tf.matmul(x, w1)), w2) - 1.0))
        train = v1.train.AdagradOptimizer(0.05).minimize(loss, global_step=step)
        with v1.train.MonitoredTrainingSession(
            server.target,
            is_chief=index == 0,
            checkpoint_dir=FLAGS.checkpoints,
            save_checkpoint_steps=WARM_UP,
            save_summaries_steps=None,
            config=session_config,
        ) as session:
            for i in range(WARM_UP):
                session.run(train, {number: i % BATCHES})
            while FLAGS.checkpoints:
                session.run(train, {number: 0})
                print(json.dumps({"step": time.time()}), flush=True)
            while session.run(step) < WARM_UP * FLAGS.workers:  # the other workers begin later
                time.sleep(0.1)
            sent, start = loopback(), time.perf_counter()
            for i in range(FLAGS.steps):
                session.run(train, {number: i % BATCHES})
            seconds, sent = time.perf_counter() - start, loopback() - sent
    tell(seconds, sent, width * 32 + 32)


def tell(seconds, sent, dense):
    """Prints the result of a worker, and ends it. sent: bytes of all processes. dense: elements of the dense variables."""
    print(
        json.dumps(
            {
                "steps_per_second": FLAGS.steps / seconds,
                "bytes_per_step": sent / FLAGS.steps / FLAGS.workers,
                "of_what_is_needed": sent / FLAGS.steps / FLAGS.workers / bytes_needed(dense),
            }
        ),
        flush=True,
    )
    os._exit(0)  # the servers end with the namespace


def process_of_world(config):
    """A process of a world."""
    import tensorflow as tf

    import tf_multitier

    tf.config.threading.set_inter_op_parallelism_threads(2)
    strategy = tf_multitier.distribute.CollectiveStrategy()
    ids = batches(config["task"]["index"])
    initializer = tf.random_uniform_initializer(-0.05, 0.05, seed=1)
    with strategy.scope():
        tables = [
            tf_multitier.get_embedding_variable(f"table{i}", FLAGS.dim, initializer=initializer)
            for i in range(FLAGS.features)
        ]
    width = FLAGS.features * FLAGS.dim
    w1, w2 = tf.Variable(initializer([width, 32])), tf.Variable(initializer([32, 1]))
    rows = tf.range(FLAGS.batch * FLAGS.bag, dtype=tf.int64)
    indices = tf.stack([rows // FLAGS.bag, rows % FLAGS.bag], 1)
    optimizer = tf_multitier.optimizers.Adagrad(0.05)
    dense_optimizer = tf.compat.v1.train.AdagradOptimizer(0.05)
    variables = [part for table in tables for part in table]

    @tf.function
    def step(batch):
        bags = [
            tf.SparseTensor(indices, tf.reshape(batch[i], [-1]), [FLAGS.batch, FLAGS.bag])
            for i in range(FLAGS.features)
        ]
        with tf.GradientTape() as tape:
            x = tf_multitier.nn.group_embedding_lookup_sparse(tables, bags, "mean", concat=True)
            loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.relu(tf.matmul(x, w1)), w2) - 1.0))
        grads = strategy.reduce_gradients(tape.gradient(loss, [*variables, w1, w2]))
        optimizer.apply_gradients(zip(grads[:-2], variables))
        dense_optimizer.apply_gradients(zip(grads[-2:], [w1, w2]))

    inputs = [tf.constant(batch) for batch in ids]
    for i in range(WARM_UP):
        step(inputs[i % BATCHES])
    strategy.barrier()
    sent, start = loopback(), time.perf_counter()
    for i in range(FLAGS.steps):
        step(inputs[i % BATCHES])
    seconds = time.perf_counter() - start
    strategy.barrier()
    tell(seconds, loopback() - sent, width * 32 + 32)


def recover(first, server, start):
    """Kills a server, starts it again by `start`, and prints how long the steps of the first worker need then."""
    told = lambda process, what, after: next(
        found[what]
        for found in map(json.loads, filter(lambda line: line[:1] == b"{", process.stdout))
        if found.get(what, 0) > after
    )
    told(first, "step", 0)
    killed = time.time()
    server.kill()
    server.wait()
    answers = told(start(), "answers", killed)
    goes_on = told(first, "step", answers)
    print(json.dumps({"after_the_answer": goes_on - answers, "after_the_kill": goes_on - killed}))


def namespace():
    """Starts the processes of a run in this network namespace, and prints the results of its workers."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    servers = 0 if FLAGS.system == "collective" else FLAGS.servers
    held = [socket.socket() for _ in range(servers + FLAGS.workers)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in held]
    for each in held:
        each.close()
    cluster = {"ps": addresses[:servers], "worker": addresses[servers:]}
    if not servers:
        del cluster["ps"]
    started = []

    def start(job, index):
        env = {
            **os.environ,
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}),
            "TF_MULTITIER_WIRE_DTYPE": FLAGS.wire_dtype,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        command = [sys.executable, *sys.argv]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE))
        return started[-1]

    for job, its in cluster.items():
        for index in range(len(its)):
            start(job, index)
    try:
        if FLAGS.checkpoints:
            last = servers - 1
            return recover(started[servers], started[last], lambda: start("ps", last))
        for worker in started[servers:]:
            sys.stdout.write(worker.communicate(timeout=300)[0].decode())
    finally:
        for each in started:
            each.kill()
            each.wait()
    return None


def results(system, *more):
    """What a run prints. more: flags of its processes."""
    command = ["unshare", "-rn", sys.executable, *sys.argv, f"--system={system}", *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)}: expected exit status 0, found {done.returncode}: it needs `unshare -rn`, a network namespace of its own"
        )
    found = done.stdout
    return [json.loads(line) for line in found.splitlines() if line.startswith("{")]


def run(system):
    """The results of one run: of its workers, steps added up."""
    workers = results(system)
    if len(workers) != FLAGS.workers:
        raise RuntimeError(f"expected results of {FLAGS.workers} workers, found {workers}")
    total = dict(workers[0])
    total["steps_per_second"] = sum(each["steps_per_second"] for each in workers)
    return total


def measure(_):
    ours = "collective" if FLAGS.collective else "exchange"
    runs = [(run(ours), run("stock")) for _ in range(FLAGS.rounds)]
    for name, its in zip((ours, "stock"), zip(*runs)):
        driver.note(name, **{key: statistics.median(r[key] for r in its) for key in its[0]})
    steps = {
        name: [1 / r["steps_per_second"] for r in its]
        for name, its in zip((ours, "stock"), zip(*runs))
    }
    driver.ratio("step", steps, "stock", ours)


def measure_recovery(folder):
    for i in range(FLAGS.rounds):
        [seconds] = results("exchange", f"--checkpoints={folder}/{i}")
        driver.note("recovery", **seconds)


def main(argv):
    if not FLAGS.system:
        return driver.run(argv, {"workers": measure, "recovery": measure_recovery})
    if "TF_CONFIG" not in os.environ:
        return namespace()
    its = process_of_world if FLAGS.system == "collective" else process
    return its(json.loads(os.environ["TF_CONFIG"]))


if __name__ == "__main__":
    app.run(main)

"""Programs that run out of threads and descriptors: an error or none, never an abort, and no row is lost."""

import os
import tempfile

import pytest
from attack_util import STRESS
from attack_util import TYPES
from attack_util import run
from attack_util import run_tensorflow

# Arguments: a type, a folder. Trains rows through all tiers, reads and saves them; `full` is set by what comes before.
LIFE = """
kind, folder = arguments[:2]
table = make(kind, folder, keep="SSDHASH" in kind)
model = Model(table)
random = np.random.default_rng(1)
for step in range(30):
    assert model.train(random.permutation(400)[:60]), model.errors
    model.lookup(random.integers(0, 500, 50))
table.drain()
if kind.startswith("DRAM"):
    table.set_budget(5 * 32)
    table.drain()
model.check()
model.remove(list(range(0, 400, 7)))
table.compact()
model.check()
path = table.path
table.close()
if "SSDHASH" in kind:
    table = engine.Table.open(path)
    model.table = table
    model.check()
    assert model.train(np.arange(50))
    model.check()
say(len(model.counts))
"""

NO_THREADS = """
before = len(os.listdir("/proc/self/task"))
attack("pthread_create", 1, 1 << 40, errno.EAGAIN)
"""

# RLIMIT_NPROC has no effect for root: the program first becomes another user, with its own folder.
NOBODY = """
import resource, threading, secrets
os.chown(arguments[1], 65534, 65534)
try:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
except OSError as e:
    if os.getuid() == 0:
        say({"skip": f"no other user: {e}"})
        sys.exit()
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    threading.Thread(target=print).start()
    say({"skip": "RLIMIT_NPROC does not bind here"})
    sys.exit()
except RuntimeError:
    pass
"""

WITHOUT_LEVELDB = [kind for kind in TYPES if "LEVELDB" not in kind]


@pytest.mark.parametrize("asynchronous", ["0", "1"])
@pytest.mark.parametrize("kind", WITHOUT_LEVELDB)
def test_without_any_thread_the_caller_does_the_work(kind, asynchronous, calls, tmp_path):
    code = (
        NO_THREADS
        + LIFE
        + "\nassert len(os.listdir('/proc/self/task')) == before and calm() > 0 or kind == 'PMEM'"
    )
    assert (
        run(
            code,
            kind,
            str(tmp_path),
            calls=calls,
            environment={"TF_SSDHASH_ASYNC_COMPACTION": asynchronous},
        )
        > 300
    )


def test_leveldb_without_a_thread_is_refused_and_works_once_there_is_one(calls, tmp_path):
    refused = "failure = error(lambda: make(arguments[0], arguments[1]))\ncalm()\n"
    code = (
        NO_THREADS
        + refused
        + LIFE.replace("say(len(model.counts))", "say([failure, len(model.counts)])")
    )
    failure, rows = run(code, "DRAM_LEVELDB", str(tmp_path), calls=calls)
    assert (
        failure[0] == "ResourceExhaustedError"
        and "thread 'mt-leveldb' could not be started" in failure[1]
    ), failure
    assert rows > 300


@pytest.fixture
def open_folder():
    """A folder that every user can write. Not in tmp_path: each pytest that starts closes the folder above it to other users."""
    with tempfile.TemporaryDirectory(prefix="tf_multitier-", dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        yield folder


@pytest.mark.parametrize("kind", ["SSDHASH", "DRAM_SSDHASH", "DRAM_PMEM"])
def test_a_limit_on_processes_is_survived(kind, open_folder):
    assert run(NOBODY + LIFE, kind, open_folder) > 300


def test_threads_that_fail_now_and_then_change_nothing(calls, tmp_path):
    code = 'attack("pthread_create", -2, 0, errno.EAGAIN)\n' + LIFE
    assert run(code, "DRAM_PMEM_SSDHASH", str(tmp_path), calls=calls) > 300


TENSORFLOW_LIFE = """
def build():
    option = tf_multitier.EmbeddingVariableOption(storage_option=tf_multitier.StorageOption(
        storage_type=getattr(tf_multitier.StorageType, arguments[0]), storage_path=arguments[1],
        storage_size=[64 * 32] * arguments[0].count("_")))
    ev = tf_multitier.get_embedding_variable("ev", 8, initializer=tf.zeros_initializer(), ev_option=option)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(-tf.nn.embedding_lookup(ev, ids))
    train = tf.compat.v1.train.GradientDescentOptimizer(1.0).minimize(loss)
    return ev.prefetch(ids), ids, train, tf.nn.embedding_lookup(ev, ids), tf.compat.v1.train.Saver()

with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    session.run(tf.matmul(tf.ones([300, 300]), tf.ones([300, 300])))  # TensorFlow's own threads
    prefetch, ids, train, values, saver = build()
    attack("pthread_create", 1, 1 << 40, errno.EAGAIN)
    try:
        session.run(tf.compat.v1.global_variables_initializer())
    except tf.errors.ResourceExhaustedError as e:
        calls.calm()  # closing a session starts a thread, too
        say({"refused": str(e)})
        sys.exit()
    for step in range(20):
        session.run(train, {ids: range(step, step + 200)})
    session.run(prefetch, {ids: range(100)})
    expected = session.run(values, {ids: range(250)})
    saver.save(session, arguments[1] + "/model", write_meta_graph=False)
    session.run(train, {ids: range(300)})
    saver.restore(session, arguments[1] + "/model")
    assert (session.run(values, {ids: range(250)}) == expected).all()
    failed = calls.calm()
    say({"sum": float(expected[:, 0].sum()), "failed": failed})
"""


@pytest.mark.parametrize("kind", ["DRAM_SSDHASH", "DRAM_LEVELDB"])
def test_tensorflow_without_further_threads(kind, calls, tmp_path):
    said = run_tensorflow(TENSORFLOW_LIFE, kind, str(tmp_path), calls=calls)
    if kind == "DRAM_LEVELDB":
        assert "thread 'mt-leveldb' could not be started" in said["refused"]
    else:
        assert said["sum"] == 20 * 200 and said["failed"] > 0, said


DESCRIPTORS = """
import resource
kind, folder, rounds = arguments
table = make(kind, folder, keep=kind.endswith("SSDHASH"))
model = Model(table)
random = np.random.default_rng(2)
assert model.train(np.arange(3000))
highest = resource.getrlimit(resource.RLIMIT_NOFILE)
first, limited = 3000, 0
for round in range(rounds):
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(used - 1 + round % 4, highest[1]), highest[1]))
    errors = len(model.errors)
    for step in range(10):
        if model.train(np.arange(first, first + 300)):
            first += 300
        model.lookup(random.integers(0, first, 200))
    limited += len(model.errors) > errors
    resource.setrlimit(resource.RLIMIT_NOFILE, highest)
    model.until_it_trains(random.permutation(first)[:100])
table.drain()
model.check()
say({"rows": len(model.counts), "rounds with errors": limited, "some": model.errors[:3]})
"""


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "PMEM"])
def test_a_limit_of_descriptors_is_an_error_and_goes(kind, tmp_path):
    said = run(DESCRIPTORS, kind, str(tmp_path), 40 if STRESS else 4)
    assert said["rows"] >= 3000, said

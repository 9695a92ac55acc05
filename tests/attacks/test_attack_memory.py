"""Programs that find no memory, at each stage: an error or none, never an abort, and no row is lost."""

import signal

import pytest
from attack_util import HANG
from attack_util import MODEL
from attack_util import SECONDS
from attack_util import STRESS
from attack_util import TYPES
from attack_util import run
from attack_util import run_tensorflow
from engine_process import Process

# What an operation that failed said it did not do was not done: the model says which rows there are.
MEMORY = """
import resource
kind, folder, rounds = arguments
durable = "SSDHASH" in kind
table = make(kind, folder, rows=2000, dim=32, keep=durable)
model = Model(table)
random = np.random.default_rng(3)
assert model.train(np.arange(6000))

def address_space():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

# A thread that starts between the look and the limit takes address space: below what is used, no reserve helps.
def limited(more, work):
    limit = 0
    while limit < address_space():
        resource.setrlimit(resource.RLIMIT_AS, UNLIMITED)
        limit = address_space() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        return work()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, UNLIMITED)

def save():
    try:
        rows = table.export()
    except ERRORS as e:
        model.after()
        model.errors.append(str(e))
        return None
    model.after()
    return rows.keys

# Without the limit, which may leave no memory for Python's lists.
def check_saved(keys):
    assert keys is None or sorted(keys.tolist()) == sorted(model.counts)

def flush():
    try:
        table.flush()
    except ERRORS as e:
        model.errors.append(str(e))
"""

LIMITED = (
    MEMORY
    + """
def train(keys, more):
    grads = np.full((len(keys), 32), -1.0, np.float32)
    try:
        limited(more, lambda: table.apply("sgd", keys, grads, hyper={"learning_rate": 1.0}))
    except ERRORS as e:
        model.errors.append(str(e))
        return
    for key in keys.tolist():
        model.counts[key] = model.counts.get(key, 0) + 1

first = 6000
for round in range(rounds):
    more = int(random.choice([0, 1 << 16, 1 << 20, 4 << 20, 16 << 20, 40 << 20]))
    keys = np.arange(first, first + int(random.choice([100, 20000, 150000])))
    train(keys, more)
    first = max(model.counts) + 1
    some, others = random.permutation(first)[:3000], random.integers(0, first, 20000)
    doomed = random.permutation(first)[:200].tolist()
    train(some, more)
    limited(more, lambda: model.lookup(others))
    limited(more, lambda: model.remove(doomed))
    model.settle()
    check_saved(limited(more, save))
    if durable:
        limited(more, flush)
model.until_it_trains(np.arange(100))
table.drain()
model.check()
refused_opens = 0
if durable:
    path = table.path
    table.close()
    opened = []
    while not opened:
        more = (1 << 16) << refused_opens
        try:
            limited(more, lambda: opened.append(engine.Table.open(path)))
        except ERRORS as e:
            refused_opens += 1
    model.table = table = opened[0]
    model.check()
refused = [e for e in model.errors if "no memory" in e]
say({"errors": len(model.errors), "refused": len(refused), "rows": len(model.counts), "opens": refused_opens, "some": refused[:4]})
"""
)


@pytest.mark.parametrize("kind", ("DRAM",) + TYPES)
def test_a_limit_of_memory_is_an_error_at_each_stage(kind, tmp_path):
    said = run(LIMITED, kind, str(tmp_path), 100 if STRESS else 12)
    assert said["refused"] > 3 and said["rows"] > 3000, said


# The n-th request of 4 KiB or more fails, and so do up to 20 that follow.
REQUESTS = (
    MEMORY
    + """
first, failed = 6000, 0

def after():
    global failed
    failed += calm()

model.after = after
for round in range(rounds):
    for call in ("mmap", "malloc"):
        for work in ("train", "more", "lookup", "save", "flush"):
            keys, some = np.arange(first, first + 5000), random.permutation(first)[:3000]
            others = random.integers(0, first, 5000)
            attack(call, round + 1, int(random.choice([1, 2, 3, 20])), errno.ENOMEM, "", 1 << 12)
            if work == "train":
                model.train(some)
            elif work == "more" and model.train(keys):
                first += 5000
            elif work == "lookup":
                model.lookup(others)
            elif work == "save":
                check_saved(save())
            elif work == "flush" and durable:
                flush()
            after()
model.until_it_trains(np.arange(100))
table.drain()
model.check()
say({"failed": failed, "errors": len(model.errors), "rows": len(model.counts)})
"""
)


@pytest.mark.parametrize("kind", ("DRAM", "DRAM_SSDHASH", "DRAM_PMEM_LEVELDB"))
def test_a_request_for_memory_that_fails_is_an_error_or_nothing(kind, calls, tmp_path):
    said = run(REQUESTS, kind, str(tmp_path), 60 if STRESS else 8, calls=calls)
    assert said["failed"] > 0 and said["rows"] >= 6000, said


# The first request of a thread is for its thread_local variables: the C library would end the process.
FIRST = """
kind, folder = arguments
table = make(kind, folder, rows=2000, dim=32)
attack("first_malloc", 1, 1000, errno.ENOMEM)
model = Model(table)
assert model.train(np.arange(20000)), model.errors
table.drain()
model.check()
say(calm())
"""


@pytest.mark.parametrize("kind", ("DRAM_SSDHASH", "DRAM_LEVELDB"))
def test_a_thread_whose_first_request_for_memory_fails_works(kind, calls, tmp_path):
    assert run(FIRST, kind, str(tmp_path), calls=calls) > 0


# TensorFlow's own threads, kernels and arenas are made before the limit; then steps, saves and restores run under it.
TENSORFLOW = """
import resource
kind, folder, rounds, seed = arguments

def build():
    option = tf_multitier.EmbeddingVariableOption(storage_option=tf_multitier.StorageOption(
        storage_type=getattr(tf_multitier.StorageType, kind), storage_path=folder,
        storage_size=[2000 * 128] * kind.count("_")))
    ev = tf_multitier.get_embedding_variable("ev", 32, initializer=tf.zeros_initializer(), ev_option=option)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(-tf.nn.embedding_lookup(ev, ids))
    train = tf.compat.v1.train.GradientDescentOptimizer(1.0).minimize(loss)
    # Not the Saver's restore: its RestoreV2 op ends the process where it cannot start threads.
    restore = ev.restore_from(folder + "/model")
    return ids, train, tf.nn.embedding_lookup(ev, ids), tf.compat.v1.train.Saver(), restore

def address_space():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

def limited(more, work):
    limit = 0
    while limit < address_space():  # a thread that starts meanwhile takes some
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        limit = address_space() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        return work()
    except (tf.errors.OpError, MemoryError) as e:
        failed.append([type(e).__name__, str(e)[:300]])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

counts, failed = {}, []
random = np.random.default_rng(seed)
config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
    ids, train, values, saver, restore = build()
    session.run(tf.compat.v1.global_variables_initializer())

    def step(keys):
        session.run(train, {ids: keys})
        return True

    def look(keys):
        found = session.run(values, {ids: keys})
        expected = np.array([counts.get(key, 0) for key in keys.tolist()], np.float32)
        assert (found == expected[:, None]).all()

    def trained(keys, more):
        if limited(more, lambda: step(keys)):
            for key in keys.tolist():
                counts[key] = counts.get(key, 0) + 1

    trained(np.arange(5000), 1 << 40)
    look(np.arange(6000))
    saver.save(session, folder + "/model", write_meta_graph=False)
    first = 5000
    for round in range(rounds):
        more = int(random.choice([0, 1 << 20, 8 << 20, 40 << 20, 100 << 20]))
        new = np.arange(first, first + int(random.integers(1, 20000)))
        first += len(new)
        trained(new, more)
        trained(random.permutation(first)[:3000], more)
        limited(more, lambda: look(random.integers(0, first, 10000)))
        if limited(more, lambda: saver.save(session, folder + "/model", write_meta_graph=False)):
            saved = dict(counts)
            trained(random.permutation(first)[:1000], 1 << 40)
            if limited(more, lambda: session.run(restore) or True):
                counts = saved
        look(np.arange(first))
    say({"failed": failed, "rows": len(counts)})
"""


# Thread t alone trains the keys k of k % 8 == t. One in four requests of 1 KiB or more fails, by chance; what Python makes
# between an update and its note in the journal is smaller.
THREADS = """
import threading
kind, folder, seconds = arguments
THREADS, KEYS = 8, 4000
table = make(kind, folder, rows=300, dim=16)
journal = np.zeros(KEYS, np.int64)
end, failures, refused = time.time() + seconds, [], [0] * THREADS
started = threading.Barrier(THREADS + 1)
batches = [[np.random.default_rng([t, i]).choice(np.arange(t, KEYS, THREADS), 100, replace=False) for i in range(40)]
           for t in range(THREADS)]
ones = np.full((100, 16), -1.0, np.float32)

def trainer(t):
    started.wait()
    step = 0
    while time.time() < end:
        keys = batches[t][step % 40]
        step += 1
        try:
            table.apply("sgd", keys, ones, hyper={"learning_rate": 1.0})
        except ERRORS as e:
            refused[t] += 1
            continue
        journal[keys] += 1
        try:
            table.export() if t == 0 else table.lookup(keys)
        except ERRORS:
            refused[t] += 1

def guarded(t):
    try:
        trainer(t)
    except BaseException as e:
        failures.append(repr(e))

workers = [threading.Thread(target=guarded, args=(t,)) for t in range(THREADS)]
for worker in workers: worker.start()
started.wait()
attack("malloc", -4, 0, errno.ENOMEM, "", 1 << 10)
workers[0].join(seconds)
failed = calm()
for worker in workers: worker.join()
Model(table).until_it_drains()
values = table.lookup(np.arange(KEYS))[:, 0]
rows = table.export()
say({"failures": failures[:3], "failed": failed, "refused": sum(refused), "updates": int(journal.sum()),
     "exact": bool((values == journal).all()), "exported": sorted(rows.keys.tolist()) == np.flatnonzero(journal).tolist()})
"""


@pytest.mark.parametrize(
    "kind", ("DRAM", "SSDHASH", "DRAM_PMEM", "DRAM_LEVELDB", "DRAM_PMEM_SSDHASH")
)
def test_eight_threads_count_exactly_while_requests_fail(kind, calls, tmp_path):
    said = run(THREADS, kind, str(tmp_path), SECONDS / 8 if STRESS else 2, calls=calls)
    assert not said["failures"] and said["exact"] and said["exported"], said
    assert said["failed"] > 10 and said["updates"] > 1000, said


# The same over a kept table that is flushed meanwhile, with a limit of address space. At the end it waits to be killed, or all
# requests of `least` bytes or more fail. `begun` lies in a file: the updates that were called; the last number counts those of
# all keys. `flushed` has what was done before the last flush that succeeded.
KILLED = """
import resource, signal, threading
kind, folder, seconds, least = arguments
THREADS, KEYS = 4, 4000
table = make(kind, folder, rows=300, dim=16, keep=True)
begun = np.memmap(folder + "/begun", np.int64, "w+", shape=(KEYS + 1,))
done = np.zeros(KEYS, np.int64)
batches = [[np.random.default_rng([t, i]).choice(np.arange(t, KEYS, THREADS), 100, replace=False) for i in range(40)]
           for t in range(THREADS)]
ones = np.full((100, 16), -1.0, np.float32)

def address_space():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

def trainer(t):
    step = 0
    while not stop.is_set():
        keys = batches[t][step % 40]
        step += 1
        begun[keys] += 1
        try:
            table.apply("sgd", keys, ones, hyper={"learning_rate": 1.0})
            done[keys] += 1
        except ERRORS:
            begun[keys] -= 1

stop = threading.Event()
trainers = [threading.Thread(target=trainer, args=(t,), daemon=True) for t in range(THREADS)]
for one in trainers: one.start()
while np.count_nonzero(done) < 1000: os.sched_yield()  # under the limit there may be no memory to begin with
limit = 0
while limit < address_space():  # a thread that starts meanwhile takes some
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    limit = address_space() + (8 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
attack("malloc", -20, 0, errno.ENOMEM, "", 1 << 10)
end, flushes, before = time.time() + seconds, 0, np.zeros(KEYS, np.int64)
while time.time() < end or flushes == 0:
    try:
        np.copyto(before, done)
        table.flush()
        with open(folder + "/new", "wb") as file:
            file.write(before.tobytes())
        os.rename(folder + "/new", folder + "/flushed")
        flushes += 1
    except ERRORS:
        pass
say({"path": table.path, "failed": calm(), "flushes": flushes})
if least == 0:
    attack("malloc", -20, 0, errno.ENOMEM, "", 1 << 10)
    wait()
# One operation is granted what it may need, and then no request is: all of the reserve is given back in vain.
stop.set()
for one in trainers: one.join()
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
keys, many = np.arange(KEYS), np.full((KEYS, 16), -1.0, np.float32)
attack("malloc", -1, 0, errno.ENOMEM, "", least)
while True:
    begun[KEYS] += 1
    try:
        table.apply("sgd", keys, many, hyper={"learning_rate": 1.0})
    except ERRORS:
        begun[KEYS] -= 1
"""

RECOVERED = """
path, folder = arguments
found = engine.Table.open(path, recover=True).lookup(np.arange(4000))[:, 0]
flushed, begun = (np.fromfile(folder + "/" + name, np.int64) for name in ("flushed", "begun"))
begun = begun[:4000] + begun[4000]
wrong = (found < flushed) | (found > begun)
say({"wrong": [np.flatnonzero(wrong)[:5].tolist(), flushed[wrong][:5].tolist(), found[wrong][:5].tolist(), begun[wrong][:5].tolist()],
     "sum": int(flushed.sum())})
"""


def flushing(kind, calls, folder, least):
    """A process that has flushed; what it said."""
    process = Process(
        MODEL + KILLED,
        kind,
        str(folder),
        SECONDS / 8 if STRESS else 1.5,
        least,
        environment={"LD_PRELOAD": calls, "ATTACK_TIMEOUT": str(HANG)},
    )
    said = process.hear()
    assert said["failed"] > 0 and said["flushes"] > 0, said
    return process, said


def expect_flushed_rows(said, folder):
    found = run(RECOVERED, said["path"], str(folder))
    assert found["wrong"] == [[], [], [], []] and found["sum"] > 0, (said, found)


@pytest.mark.parametrize("kind", ["SSDHASH", "DRAM_SSDHASH"])
def test_a_process_killed_while_requests_fail_loses_no_flushed_row(kind, calls, tmp_path):
    process, said = flushing(kind, calls, tmp_path, 0)
    process.kill()
    expect_flushed_rows(said, tmp_path)


# Nothing is left for operations that have begun, nor in the reserve: the engine ends the process.
@pytest.mark.parametrize("kind", ["SSDHASH", "DRAM_SSDHASH"])
def test_a_process_that_the_engine_ends_loses_no_flushed_row(kind, calls, tmp_path, capfd):
    process, said = flushing(kind, calls, tmp_path, 1 << 14)
    assert process.popen.wait(HANG) == -signal.SIGABRT
    assert "tf_multitier: no memory is left in the middle of an operation" in capfd.readouterr().err
    expect_flushed_rows(said, tmp_path)


# TensorFlow's own small requests may find none either: they take from the engine's reserve.
@pytest.mark.parametrize("kind", ["DRAM_SSDHASH", "DRAM_LEVELDB"])
def test_tensorflow_under_a_limit_fails_or_works_and_loses_no_row(kind, tmp_path):
    for seed in range(20 if STRESS else 1):
        (tmp_path / str(seed)).mkdir()
        said = run_tensorflow(TENSORFLOW, kind, str(tmp_path / str(seed)), 5, seed + 1)
        assert said["rows"] >= 5000, said
        assert {name for name, _ in said["failed"]} <= {"ResourceExhaustedError", "MemoryError"}, (
            said
        )

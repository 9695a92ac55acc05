"""Programs that find no large memory: an error or none, and no row is lost. Small memory ends the process, not flushed rows."""

import signal

import pytest
from attack_util import HANG
from attack_util import MODEL
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

# A thread that starts between the look and the limit takes address space.
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
    more = int(random.choice([256, 320])) << 20
    train(np.arange(first, first + int(random.choice([100, 20000, 1000000]))), more)
    first = max(model.counts) + 1
    some, others = random.permutation(first)[:3000], random.integers(0, first, 20000)
    doomed = random.permutation(first)[:200].tolist()
    train(some, more)
    limited(more, lambda: model.lookup(others))
    limited(more, lambda: model.lookup(np.arange(1000000)))
    limited(more, lambda: model.remove(doomed))
    model.settle()
    check_saved(limited(more, save))
    if durable:
        limited(more, flush)
model.until_it_trains(np.arange(100))
table.drain()
model.check()
if durable:
    path = table.path
    table.close()
    model.table = table = engine.Table.open(path)
    model.check()
refused = [e for e in model.errors if "no memory for" in e]
say({"errors": model.errors[:4], "refused": len(refused), "rows": len(model.counts)})
"""
)


@pytest.mark.parametrize("kind", ("DRAM",) + TYPES)
def test_a_limit_of_memory_is_an_error_of_large_batches(kind, tmp_path):
    said = run(LIMITED, kind, str(tmp_path), 100 if STRESS else 8)
    assert said["refused"] > 3 and said["rows"] > 3000, said


# The n-th mapping fails, and so do up to 20 that follow.
REQUESTS = (
    MEMORY
    + """
first, failed = 6000, 0

def after():
    global failed
    failed += calm()

model.after = after
for round in range(rounds):
    for work in ("train", "more", "lookup", "save", "flush"):
        keys, some = np.arange(first, first + 20000), random.permutation(first)[:3000]
        others = random.integers(0, first, 20000)
        attack("mmap", round + 1, int(random.choice([1, 2, 3, 20])), errno.ENOMEM)
        if work == "train":
            model.train(some)
        elif work == "more" and model.train(keys):
            first += 20000
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
def test_a_mapping_that_fails_is_an_error_or_nothing(kind, calls, tmp_path):
    said = run(REQUESTS, kind, str(tmp_path), 60 if STRESS else 8, calls=calls)
    assert said["failed"] > 0 and said["rows"] >= 6000, said


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
        more = int(random.choice([256, 320])) << 20
        new = np.arange(first, first + int(random.choice([20000, 1000000])))
        trained(new, more)
        first = max(counts) + 1
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


# A kept table is flushed while threads train. Then no request of 16 KiB or more succeeds: the process ends. `begun` lies in a
# file: the updates that were called. `flushed` has what was done before the last flush.
ENDED = """
import threading
kind, folder, flushes = arguments
THREADS, KEYS = 4, 4000
table = make(kind, folder, rows=300, dim=16, keep=True)
begun = np.memmap(folder + "/begun", np.int64, "w+", shape=(KEYS,))
done = np.zeros(KEYS, np.int64)
batches = [[np.random.default_rng([t, i]).choice(np.arange(t, KEYS, THREADS), 100, replace=False) for i in range(40)]
           for t in range(THREADS)]
ones = np.full((KEYS, 16), -1.0, np.float32)

def update(keys):
    begun[keys] += 1
    table.apply("sgd", keys, ones[:len(keys)], hyper={"learning_rate": 1.0})
    done[keys] += 1

def trainer(t):
    for step in range(1 << 40):
        update(batches[t][step % 40])

for t in range(THREADS):
    threading.Thread(target=trainer, args=(t,), daemon=True).start()
while np.count_nonzero(done) < 1000: os.sched_yield()
for _ in range(flushes):
    before = done.copy()
    table.flush()
before.tofile(folder + "/flushed")
say({"path": table.path})
attack("malloc", -1, 0, errno.ENOMEM, "", 1 << 14)
while True:
    try:
        update(np.arange(KEYS))
    except MemoryError:  # of numpy
        pass
"""

RECOVERED = """
path, folder = arguments
found = engine.Table.open(path, recover=True).lookup(np.arange(4000))[:, 0]
flushed, begun = (np.fromfile(folder + "/" + name, np.int64) for name in ("flushed", "begun"))
wrong = (found < flushed) | (found > begun)
say({"wrong": [np.flatnonzero(wrong)[:5].tolist(), flushed[wrong][:5].tolist(), found[wrong][:5].tolist(), begun[wrong][:5].tolist()],
     "sum": int(flushed.sum())})
"""


@pytest.mark.parametrize("kind", ["SSDHASH", "DRAM_SSDHASH"])
def test_a_process_that_ends_for_want_of_memory_loses_no_flushed_row(kind, calls, tmp_path, capfd):
    process = Process(
        MODEL + ENDED,
        kind,
        str(tmp_path),
        50 if STRESS else 5,
        environment={"LD_PRELOAD": calls, "ATTACK_TIMEOUT": str(HANG)},
    )
    said = process.hear()
    assert process.popen.wait(HANG) == -signal.SIGABRT
    assert "std::bad_alloc" in capfd.readouterr().err
    found = run(RECOVERED, said["path"], str(tmp_path))
    assert found["wrong"] == [[], [], [], []] and found["sum"] > 0, found


@pytest.mark.parametrize("kind", ["DRAM_SSDHASH", "DRAM_LEVELDB"])
def test_tensorflow_under_a_limit_fails_or_works_and_loses_no_row(kind, tmp_path):
    for seed in range(20 if STRESS else 1):
        (tmp_path / str(seed)).mkdir()
        said = run_tensorflow(TENSORFLOW, kind, str(tmp_path / str(seed)), 5, seed + 1)
        assert said["rows"] >= 5000, said
        kinds = {name for name, _ in said["failed"]}
        assert "ResourceExhaustedError" in kinds, said
        assert kinds <= {"ResourceExhaustedError", "MemoryError"}, said

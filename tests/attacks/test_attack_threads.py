"""Eight threads train, read, save and remove at once; values count updates, so that a lost, doubled or foreign one shows."""

import pytest
from attack_util import SECONDS
from attack_util import STRESS
from attack_util import TYPES
from attack_util import run

# Thread t alone trains the keys k of k % 8 == t, some of them every step, some seldom; all read all keys. A value that is read
# lies between the counts before and after the read.
COUNTING = """
import threading
kind, folder, seconds = arguments
THREADS, KEYS = 8, 4000
table = make(kind, folder, rows=300, dim=4)
done = np.zeros(KEYS, np.int64)      # updates that have returned
begun = np.zeros(KEYS, np.int64)     # updates that were called
end, failures = time.time() + seconds, []

def trainer(t):
    random = np.random.default_rng(t)
    own = np.arange(t, KEYS, THREADS)
    while time.time() < end and not failures:
        keys = random.choice(own, int(random.integers(1, 100)), replace=False)
        if random.random() < 0.5:
            keys = keys[keys < KEYS // 8]
        keys = np.unique(keys)
        begun[keys] += 1
        table.apply("sgd", keys, np.full((len(keys), 4), -1.0), hyper={"learning_rate": 1.0})
        done[keys] += 1
        looked = random.integers(0, KEYS, 200)
        least = done[looked].copy()
        values = table.lookup(looked)[:, 0]
        most = begun[looked]
        wrong = (values < least) | (values > most)
        if wrong.any():
            failures.append([looked[wrong][:5].tolist(), least[wrong][:5].tolist(), values[wrong][:5].tolist()])

def saver():
    while time.time() < end and not failures:
        least = done.copy()
        rows = table.export()
        most = begun.copy()
        found = np.zeros(KEYS, np.int64)
        found[rows.keys] = rows.data[:, 0]
        if len(rows.keys) != len(set(rows.keys.tolist())) or ((found < least) | (found > most)).any():
            failures.append(["export", int((found < least).sum()), int((found > most).sum())])

def guarded(work):
    try:
        work()
    except BaseException as e:
        failures.append(repr(e))

workers = [threading.Thread(target=guarded, args=(lambda t=t: trainer(t),)) for t in range(THREADS)]
workers.append(threading.Thread(target=guarded, args=(saver,)))
for worker in workers: worker.start()
for worker in workers: worker.join()
table.drain()
values = table.lookup(np.arange(KEYS))[:, 0]
say({"failures": failures[:3], "exact": bool((values == done).all()), "updates": int(done.sum())})
"""


@pytest.mark.parametrize("kind", ("DRAM",) + TYPES)
def test_eight_threads_count_exactly(kind, tmp_path):
    said = run(COUNTING, kind, str(tmp_path), SECONDS / 8 if STRESS else 1.5)
    assert not said["failures"] and said["exact"] and said["updates"] > 100, said

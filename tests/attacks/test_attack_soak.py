"""A window of keys that drifts, with removal: memory, descriptors, threads and disk stay within bounds computed beforehand."""

import pytest
from attack_util import SECONDS
from attack_util import STRESS
from attack_util import run

import tf_multitier

DIM, WINDOW, DRAM = 32, 20_000, 2_000
# 16 helpers, 2 of SSDHASH, 1 of demotion, 1 of LevelDB, 2 of its compaction.
MOST_THREADS = 16 + 2 + 1 + 1 + 2
# The allocator's and the program's own: the model has a dictionary of WINDOW keys, and a list of them while it compares.
OWN_MEMORY = 16 << 20

# `memory` is anonymous: mapped files are the page cache's.
SOAK = """
kind, folder, seconds, DIM, WINDOW, DRAM = arguments
table = make(kind, folder, rows=DRAM, dim=DIM)
model = Model(table)
random = np.random.default_rng(5)

def disk():
    used = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                used += os.stat(os.path.join(base, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return used

def memory():
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon"))

def used():
    return {"memory": memory(), "disk": disk(), "threads": len(os.listdir("/proc/self/task")),
            "descriptors": len(os.listdir("/proc/self/fd"))}

start = used()
assert model.train(np.arange(WINDOW))
first, steps, halves = 0, 0, [dict.fromkeys(start, 0), dict.fromkeys(start, 0)]
began = time.time()
while time.time() < began + seconds or steps < 60:
    model.remove(list(range(first, first + 200)))
    first += 200
    assert not model.errors, model.errors
    assert model.train(np.arange(first + WINDOW - 200, first + WINDOW))
    assert model.train(first + random.permutation(WINDOW)[:300])
    model.lookup(first + random.integers(0, WINDOW, 300))
    steps += 1
    if steps % 20 == 0:
        table.drain()
        most, now = halves[time.time() > began + seconds / 2], used()
        most.update((name, max(now[name], most[name])) for name in now)
    if steps % 2000 == 0:
        model.check()
table.drain()
model.check()
say({"start": start, "halves": halves, "steps": steps, "rows": len(model.counts)})
"""


@pytest.mark.parametrize("kind", ["DRAM_PMEM", "DRAM_SSDHASH", "DRAM_LEVELDB"])
def test_a_drifting_window_stays_within_bounds(kind, tmp_path):
    said = run(SOAK, kind, str(tmp_path), SECONDS / 3 if STRESS else 2, DIM, WINDOW, DRAM)
    print(kind, said)
    option = tf_multitier.StorageOption(kind, str(tmp_path), [DRAM * DIM * 4])
    bound = tf_multitier.memory(WINDOW, DIM, "sgd", option, batch_keys=WINDOW)
    start, (early, late) = said["start"], said["halves"]
    for most in (early, late):
        assert most["disk"] <= bound.disk_bytes, (said, bound)
        assert most["memory"] <= start["memory"] + bound.memory_bytes + OWN_MEMORY, (said, bound)
        assert most["threads"] <= start["threads"] + MOST_THREADS, said
        assert most["descriptors"] <= start["descriptors"] + 64, said
    if STRESS:  # what is in use does not grow with time
        assert late["memory"] <= early["memory"] + (4 << 20), said
        # A helper starts when it first has work, which may be late; the bound above holds for all of them.
        assert late["threads"] <= early["threads"] + 4, said
        assert late["descriptors"] <= early["descriptors"] + 8, said

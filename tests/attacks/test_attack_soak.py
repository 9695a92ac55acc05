"""A window of keys that drifts, with removal: memory, descriptors, threads and disk stay within bounds computed beforehand."""

import pytest
from attack_util import SECONDS
from attack_util import STRESS
from attack_util import run

# 16 helpers, 2 of SSDHASH, 1 of demotion, 1 of LevelDB, and the program's own.
MOST_THREADS = 16 + 2 + 1 + 1

SOAK = """
import resource
kind, folder, seconds = arguments
DIM, WINDOW, DRAM = 32, 20000, 2000
table = make(kind, folder, rows=DRAM, dim=DIM)
model = Model(table)
random = np.random.default_rng(5)

def used():
    files = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                files += os.stat(os.path.join(base, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return {"memory": int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize(), "disk": files,
            "threads": len(os.listdir("/proc/self/task")), "descriptors": len(os.listdir("/proc/self/fd"))}

start = used()
first, steps, most = 0, 0, None
assert model.train(np.arange(WINDOW))
begun = time.time()
while time.time() < begun + seconds or steps < 60:
    gone = np.arange(first, first + 200)
    model.remove(gone.tolist())
    first += 200
    assert not model.errors, model.errors
    assert model.train(np.arange(first + WINDOW - 200, first + WINDOW))
    assert model.train(first + random.permutation(WINDOW)[:300])
    model.lookup(first + random.integers(0, WINDOW, 300))
    steps += 1
    if steps % 20 == 0:
        table.drain()
        now = used()
        most = {name: max(now[name], (most or now)[name]) for name in now}
    if steps % 2000 == 0:
        model.check()
table.drain()
model.check()
say({"start": start, "most": most, "steps": steps, "live": len(model.counts) * (DIM * 4 + 64)})
"""


@pytest.mark.parametrize("kind", ["DRAM_PMEM", "DRAM_SSDHASH", "DRAM_LEVELDB"])
def test_a_drifting_window_stays_within_bounds(kind, tmp_path):
    said = run(SOAK, kind, str(tmp_path), SECONDS / 3 if STRESS else 2)
    start, most = said["start"], said["most"]
    # SSDHASH: 1.5 times the live records and four segments of 1 MiB. LevelDB keeps removed rows until it compacts: two logs of
    # 16 MiB, and all live rows twice.
    disk = {
        "DRAM_PMEM": 2 * said["live"] + (8 << 20),
        "DRAM_SSDHASH": 1.5 * said["live"] + (5 << 20),
        "DRAM_LEVELDB": 2 * said["live"] + (40 << 20),
    }[kind]
    assert most["disk"] <= disk, said
    assert most["threads"] <= start["threads"] + MOST_THREADS, said
    assert most["descriptors"] <= start["descriptors"] + 600, said
    # Rows and index take less than 8 MiB; LevelDB has two memory tables of 16 MiB and a cache of 8 MiB;
    # SSDHASH two heads of two buffers of 2 MiB. The rest is the allocator's.
    assert most["memory"] <= start["memory"] + (64 << 20), said

"""Disks that fill up and later have room again, or become read-only: flushed rows exist after reopening."""

import pytest
from attack_util import run
from engine_process import MOUNT

FULL = (
    MOUNT
    + """
kind, folder = arguments
mount(folder, "size=8m")
table = make(kind, folder, rows=100, dim=32, keep=True)
model = Model(table)
first, refused = 0, 0
while refused < 3:
    assert first < 200000
    if model.train(np.arange(first, first + 200)):
        first += 200
        model.lookup(np.arange(first - 200, first))
    else:
        refused += 1
flushed = True
try:
    table.flush()
except ERRORS:
    flushed = False
model.check()
remount(folder, "size=64m")
model.until_it_trains(np.arange(50))
model.until_it_trains(np.arange(first, first + 500))
table.drain()
table.flush()
model.check()
path = table.path
table.close()
model.table = table = engine.Table.open(path)
model.check()
say({"rows": len(model.counts), "flushed when full": flushed})
"""
)


@pytest.mark.parametrize("kind", ["SSDHASH", "DRAM_SSDHASH"])
def test_a_kept_table_survives_a_full_disk(kind, tmp_path):
    assert run(FULL, kind, str(tmp_path))["rows"] > 2000


# ext4 on a file, mounted for the process alone.
EXT4 = (
    MOUNT
    + """
def tool(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as e:
        done = subprocess.CompletedProcess(command, 1, stderr=str(e))
    if done.returncode:
        say({"skip": done.stderr})
        sys.exit()

kind, folder = arguments[:2]
disk, place = folder + "/disk", folder + "/place"
checked(libc.unshare(0x00020000), "no mount namespace")
checked(libc.mount(None, b"/", None, 0x4000 | 0x40000, None), "mount")
if not os.path.exists(disk):
    os.mkdir(place)
    with open(disk, "wb") as file:
        file.truncate(96 << 20)
    tool("mkfs.ext4", "-q", "-F", disk)
tool("mount", "-o", "loop", disk, place)
"""
)

# `abort` is what errors of its disk do to it: files that are open for writing stay open, and no write succeeds.
READ_ONLY = (
    EXT4
    + """
random = np.random.default_rng(7)
table = make(kind, place, rows=100, dim=32, keep="SSDHASH" in kind)
model = Model(table)
for step in range(20):
    assert model.train(random.permutation(4000)[:500])
"""
)

KEPT = """
table.flush()
flushed = sorted(model.counts.items())
for step in range(5):
    assert model.train(random.permutation(4000)[:500])
tool("mount", "-o", "remount,abort", place)
for step in range(20):
    model.train(random.permutation(5000)[:300])
    model.lookup(random.integers(0, 5000, 300))
for key in range(0, 4000, 100):
    model.train([key])
model.check()
errors = [error(table.flush), error(table.drain), error(table.close)]
say({"path": table.path, "flushed": flushed, "counts": sorted(model.counts.items()), "refused": model.errors, "errors": errors})
"""

REOPENED = """
table = engine.Table.open(arguments[2])
keys = np.array([key for key, _ in arguments[4]])
flushed = dict(arguments[3])
found = table.lookup(keys)[:, 0]
model = Model(table)
least, most = np.array([flushed.get(int(key), 0) for key in keys]), np.array([count for _, count in arguments[4]])
assert ((found >= least) & (found <= most)).all(), (found[:20], least[:20], most[:20])
fill(table, 4000)
table.flush()
table.close()
say(len(keys))
"""


@pytest.mark.parametrize("kind", ["SSDHASH", "DRAM_SSDHASH"])
def test_a_file_system_that_becomes_read_only_loses_no_flushed_row(kind, tmp_path):
    said = run(READ_ONLY + KEPT, kind, str(tmp_path))
    assert said["refused"] and all("Read-only file system" in error for error in said["refused"]), (
        said["refused"][:3]
    )
    assert all(failed and "Read-only file system" in failed[1] for failed in said["errors"]), said[
        "errors"
    ]
    assert (
        run(EXT4 + REOPENED, kind, str(tmp_path), said["path"], said["flushed"], said["counts"])
        >= 3900
    )


# Pages of files that are mapped are written to as before, and stay in the page cache. What needs a larger file is refused.
MAPPED = """
os.sync()
tool("mount", "-o", "remount,abort", place)
known = np.array(sorted(model.counts))
for step in range(20):
    assert model.train(random.permutation(known)[:300]), model.errors
    model.lookup(random.integers(0, 4000, 300))
first = 4000
while not model.errors and first < 200000:
    model.train(np.arange(first, first + 1000))
    first += 1000
model.check()
say(model.errors)
"""


@pytest.mark.parametrize("kind", ["PMEM", "DRAM_PMEM"])
def test_mapped_files_of_a_file_system_that_becomes_read_only_cannot_grow(kind, tmp_path):
    (refused,) = run(READ_ONLY + MAPPED, kind, str(tmp_path))
    assert "Read-only file system" in refused

"""Calls of the operating system that fail: an error or none, every row right, and all as before once they work again."""

import pytest
from attack_util import STRESS
from attack_util import TYPES
from attack_util import run

CALLS = (
    "open",
    "read",
    "pread",
    "write",
    "pwrite",
    "fsync",
    "rename",
    "unlink",
    "fallocate",
    "truncate",
    "mmap",
)
MAPPED = (
    "open",
    "fallocate",
    "truncate",
    "mmap",
)  # the calls of a tier of mapped files, once for each file

# Each call of each kind fails once or a few times, with each of the errors a disk gives, while rows are trained, read, removed,
# flushed and saved. What is done after that, and what a later process opens, is compared with the model.
FAILING = """
kind, folder, kinds_of_call, rounds, seed = arguments
durable = "SSDHASH" in kind
# A tier of memory in files grows by large pieces, and SSDHASH writes large ones: wide rows make them do so often.
table = make(kind, folder, rows=100, dim=2048 if kind.endswith("PMEM") else 512 if durable else 8, keep=durable)
model = Model(table)
random = np.random.default_rng(seed)
assert model.train(np.arange(1500))
first, failed = 1500, {call: 0 for call in kinds_of_call}

def step(first):
    "Whether the new rows were trained."
    added = model.train(np.arange(first, first + 150))
    model.train(random.permutation(first)[:100])
    model.lookup(random.integers(0, first, 150))
    model.lookup(random.integers(0, first, 150))
    for work in [table.flush] * durable + [table.compact, table.export]:
        if random.random() < 0.4:
            try:
                rows = work()
            except ERRORS as e:
                model.errors.append(str(e))
            else:
                assert rows is None or sorted(rows.keys.tolist()) == sorted(model.counts), "export leaves rows out"
    if random.random() < 0.3:
        model.remove(random.permutation(first)[:20].tolist())
    return added

for round in range(rounds):
    for call in random.permutation(kinds_of_call).tolist():
        errors = [errno.EIO] if call in ("read", "pread", "fsync") else [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENOMEM]
        nth = -int(random.integers(2, 30)) if random.random() < 0.5 else int(random.integers(1, 20))
        nth = 1 if kind.endswith("PMEM") or durable and call != "pread" else nth  # the others are few
        attack(call, nth, int(random.integers(1, 10)), int(random.choice(errors)), folder, int(random.integers(2)))
        first += 150 * step(first)
        failed[call] += calm()
        model.settle()
    model.until_it_trains(random.permutation(first)[:50])
    if round % 5 == 4:
        model.until_it_drains()
        model.check()
model.until_it_drains()
model.check()
if durable:
    path = table.path
    table.close()
    model.table = table = engine.Table.open(path)
    model.check()
say({"failed": failed, "errors": len(model.errors), "rows": len(model.counts)})
"""


@pytest.mark.parametrize("kind", TYPES)
def test_calls_that_fail_lose_no_row(kind, calls, tmp_path):
    kinds_of_call = MAPPED if kind.endswith("PMEM") else CALLS
    # After a failed write LEVELDB refuses writes for up to a second, so fewer calls are reached: it has more rounds.
    rounds = 200 if STRESS else 14 if kind in ("LEVELDB", "DRAM_LEVELDB") else 6
    said = run(FAILING, kind, str(tmp_path), kinds_of_call, rounds, 11, calls=calls)
    reached = {call for call, times in said["failed"].items() if times > 0}
    if "SSDHASH" in kind:
        assert reached == {*CALLS} - {"read", "write", "rename"}, said
    assert len(reached) > 1 and said["rows"] > 1000, said


# Opening what a process left, with a call that fails: an error, and nothing is changed by it.
REOPEN = """
kind, folder, kinds_of_call, rounds = arguments
table = make(kind, folder, rows=100, keep=True)
model = Model(table)
for step in range(6):
    assert model.train(np.arange(step * 100, step * 100 + 500))
model.remove(list(range(100, 200)))
path = table.path
table.close()
refused = opened = 0
for round in range(rounds):
    for call in kinds_of_call:
        attack(call, round + 1, 1, errno.EIO, folder)
        try:
            table = engine.Table.open(path)
        except ERRORS + (ValueError, OSError) as e:
            refused += 1
            calm()
            continue
        calm()
        model.table = table
        model.check()
        opened += 1
        table.close()
model.table = table = engine.Table.open(path)
model.check()
say({"refused": refused, "opened": opened})
"""


@pytest.mark.parametrize("kind", ["SSDHASH", "DRAM_PMEM_SSDHASH"])
def test_opening_with_a_failing_call_is_refused_or_right(kind, calls, tmp_path):
    said = run(
        REOPEN,
        kind,
        str(tmp_path),
        ("open", "pread", "read", "rename", "fsync"),
        40 if STRESS else 5,
        calls=calls,
    )
    assert said["refused"] > 0, said

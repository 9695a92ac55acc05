"""Kept tables whose process is killed in upsert and clear: acknowledged rows are there, and every row is whole."""

import random
import time

import numpy as np
import pytest
from lives import Lives

from tf_multitier import engine

DIM, KEYS, BATCH = 16, 2000, 400
ROUNDS = 20
_OPTIONS = dict(storage_type="DRAM_SSDHASH", storage_size=[20 * 2 * DIM * 4], keep=True, name="t")


def keys_of(number):
    """The keys of an upsert. Value and slot of its rows are its number."""
    return np.random.default_rng(number).choice(KEYS, BATCH, replace=False)


def live(path, operation, say):
    """Upserts, clears and flushes until it is killed. It tells of an operation before it, of a flush after it.

    path: the instance. operation: "upsert" or "clear", of which there is more. say: a function of what it tells.
    """
    table = engine.Table.open(path)
    begin = 1 + int(table.export().data.max(initial=0))
    for number in range(begin, begin + 10**6):
        if operation == "clear" and number % 3 == 0:
            say("clear")
            table.clear()
        keys = keys_of(number)
        values = np.full((BATCH, DIM), number, np.float32)
        say("upsert", number)
        table.upsert(keys, {"value": values, "m": values}, versions=np.full(BATCH, number))
        if number % 4 == 0:
            table.flush()
            say("flushed")


def told(states, line):
    """The states that each key may have after what the program told. None: no row."""
    if line == "clear":
        for allowed in states:
            allowed.append(None)
    elif line == "flushed":
        for allowed in states:
            del allowed[:-1]
    else:
        number = int(line.split()[1])
        for key in keys_of(number):
            states[key].append(number)


def read(path):
    """What each key has. AssertionError if a row is not whole."""
    with engine.Table.open(path) as table:
        rows = table.export()
    assert (rows.data == rows.versions[:, None]).all(), "a row is not whole"
    found = [None] * KEYS
    for key, version in zip(rows.keys.tolist(), rows.versions.tolist(), strict=True):
        assert found[key] is None, f"key {key} is there twice"
        found[key] = version
    return found


@pytest.mark.parametrize("operation", ["upsert", "clear"])
def test_killed_in_a_transfer_nothing_acknowledged_is_lost_and_every_row_is_whole(
    operation, tmp_path
):
    with engine.Table(
        DIM, slots=[("m", DIM, 0.0)], storage_path=str(tmp_path), **_OPTIONS
    ) as table:
        path = table.path
    states = [[None] for _ in range(KEYS)]
    random.seed(operation)
    killed_in, flushes, number = set(), 0, 0
    life = f"test_killed_transfers.live({path!r}, {operation!r}, say)"
    with Lives("import test_killed_transfers", life) as lives:
        # A clear is short: more rounds follow if none was killed in one.
        while number < ROUNDS or (operation not in killed_in and number < 5 * ROUNDS):
            number += 1
            with lives.begin() as child:
                said = [child.line()]
                time_left = time.monotonic() + random.random() * 0.1
                while time.monotonic() < time_left:
                    child.wait(max(0.0, time_left - time.monotonic()))
                    if time.monotonic() < time_left:
                        said.append(child.line())
            said += child.rest()
            for line in said:
                told(states, line)
                flushes += line == "flushed"
            killed_in.add(said[-1].split()[0])
            found = read(path)
            for key, (state, allowed) in enumerate(zip(found, states, strict=True)):
                assert state in allowed, f"round {number}: key {key}: {state} is none of {allowed}"
            states = [[state] for state in found]
    assert operation in killed_in and flushes > 0

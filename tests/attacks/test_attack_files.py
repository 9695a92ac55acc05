"""Files that change while no process has them open: a read returns the right row or an error, never a foreign or torn row."""

import os
import shutil

import numpy as np
import pytest
from attack_util import STRESS

from tf_multitier import engine

DIM = 4
ERRORS = (engine.EngineError, ValueError, NotImplementedError, OSError)


def train(table, keys):
    table.apply("sgd", keys, np.full((len(keys), DIM), -1.0), hyper={"learning_rate": 1.0})


def zero(path, random):
    size = os.path.getsize(path)
    begin = int(random.integers(size))
    with open(path, "r+b") as file:
        file.seek(begin)
        file.write(bytes(min(size - begin, int(random.integers(1, 8192)))))


def flip(path, random):
    place = int(random.integers(os.path.getsize(path)))
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << int(random.integers(8))]))


def scramble(path, random):
    size = os.path.getsize(path)
    begin = int(random.integers(size))
    with open(path, "r+b") as file:
        file.seek(begin)
        file.write(random.bytes(min(size - begin, int(random.integers(1, 600)))))


def lengthen(path, random):
    with open(path, "ab") as file:
        file.write(random.bytes(int(random.integers(1, 6000))))


def swap(path, random):
    """The content of another file of the folder, or of this one turned around."""
    folder = os.path.dirname(path)
    others = sorted(set(os.listdir(folder)) - {os.path.basename(path)})
    others = [name for name in others if os.path.isfile(os.path.join(folder, name))]
    if not others:
        return zero(path, random)
    return shutil.copyfile(os.path.join(folder, others[int(random.integers(len(others)))]), path)


def cut(path, random):
    os.truncate(path, int(random.integers(os.path.getsize(path))))


def delete(path, random):
    os.remove(path)


MUTATIONS = {
    change.__name__: change for change in (zero, flip, scramble, lengthen, swap, cut, delete)
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A closed table whose keys have values from 1 to 5, and its values."""
    table = engine.Table(
        dim=DIM,
        storage_type="SSDHASH",
        storage_path=tmp_path_factory.mktemp("kept"),
        keep=True,
    )
    for most in (3000, 2000, 1000, 500, 200):
        train(table, np.arange(most))
        table.flush()
    table.remove(np.arange(2900, 3000))
    path = table.path
    table.close()
    with engine.Table.open(path) as table:
        expected = table.lookup(np.arange(3100))[:, 0]
    return path, expected


def files_of(path):
    return sorted(
        os.path.join(base, name)
        for base, _, names in os.walk(path)
        for name in names
        if os.path.getsize(os.path.join(base, name)) and not name.startswith("LOG")
    )


def read_all(table, expected):
    """Keys whose value is another, and keys that are refused, in batches: a batch with a damaged row fails."""
    wrong, refused = [], []
    for begin in range(0, len(expected), 100):
        keys = np.arange(begin, min(begin + 100, len(expected)))
        try:
            found = table.lookup(keys)
        except engine.EngineError:
            refused += keys.tolist()
            continue
        assert (found == found[:, :1]).all(), "a torn row"
        wrong += keys[found[:, 0] != expected[keys]].tolist()
    return wrong, refused


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
def test_a_changed_file_is_refused_or_harmless(kept, mutation, tmp_path):
    path, expected = kept
    random = np.random.default_rng(len(mutation))
    changed = 0
    for file in files_of(path):
        for _ in range(20 if STRESS else 2):
            copy = str(tmp_path / "copy")
            shutil.copytree(path, copy)
            damaged = os.path.join(copy, os.path.relpath(file, path))
            MUTATIONS[mutation](damaged, random)
            changed += 1
            at = f"{mutation} of {os.path.relpath(file, path)}"
            try:
                table = engine.Table.open(copy, keep=False)
            except ERRORS:
                shutil.rmtree(copy)
                continue
            with table:
                wrong, refused = read_all(table, expected)
                if refused:  # the documented cure
                    train(table, np.arange(5000, 5010))
                    damaged_keys = [key for key in refused if engine_error(table, key)]
                    table.remove(damaged_keys)
                    assert (table.lookup(damaged_keys) == 0).all(), at
                else:
                    # Every row is there that is read, and none that is not.
                    rows = table.export()
                    assert (rows.data[:, 0] == table.lookup(rows.keys)[:, 0]).all() and len(
                        rows.keys
                    ) == len(table), at
                assert not wrong, (at, wrong[:5], [float(expected[key]) for key in wrong[:5]])
            shutil.rmtree(copy, ignore_errors=True)
    assert changed >= 6


def engine_error(table, key):
    try:
        table.lookup([key])
    except engine.EngineError:
        return True
    return False

"""Files of a kept table that are lost, cut, zeroed or swapped: Table.open names the file, or every flushed row is there."""

import os
import shutil
import struct

import numpy as np
import pytest
from engine_process import Process

from tf_multitier import engine

KEYS = np.arange(3000)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The instance directory of a table that was flushed, and then killed while it wrote on; and its rows at the flush."""
    process = Process(
        """
        table = engine.Table(dim=4, storage_type="SSDHASH", storage_path=arguments[0], keep=True)
        for step in range(3):  # each leaves files of its own
            fill(table, 3000)
            table.close()
            table = engine.Table.open(table.path)
        table.remove([7])
        table.flush()
        say([table.path, table.lookup(np.arange(3000)).tolist()])
        fill(table, 50, first=100)
        wait()
    """,
        str(tmp_path_factory.mktemp("store")),
    )
    path, rows = process.hear()
    process.kill()
    return path, np.array(rows, np.float32)


def files_of(path):
    below = os.path.join(path, "ssdhash")
    return sorted(
        os.path.join(below, name)
        for name in os.listdir(below)
        if os.path.getsize(os.path.join(below, name))
    )


def newest_contents(path):
    """The contents of a slot file, as docs/formats/slot_file.md describes it."""
    with open(path, "rb") as file:
        slots = np.frombuffer(file.read(), np.uint8).reshape(2, -1, 512)
    newest = max(slots, key=lambda slot: struct.unpack_from("<Q", slot[0], 488)[0])
    return newest[:, :484].tobytes()[: struct.unpack_from("<I", newest[0], 496)[0]]


def named_by_the_list(path):
    """The files that must not be lost: the list itself, and the files in it (docs/formats/)."""
    below = os.path.join(path, "ssdhash")
    data = newest_contents(os.path.join(below, "ssd.list"))
    names = ["ssd.list", "ssd.id"]
    for i in range(struct.unpack_from("<I", data, 28)[0]):
        names.append("ssd-%016x-%d.seg" % struct.unpack_from("<QI", data, 32 + 40 * i))
    return [os.path.join(below, name) for name in names]


def opens_whole(path, rows, *names):
    """Whether the table opens with every flushed row, or newer ones; else its error must name one of `names`."""
    try:
        table = engine.Table.open(path, keep=True)
    except engine.DataLossError as error:
        assert any(f"'{name}'" in str(error) for name in names), (names, error)
        return False
    found = table.lookup(KEYS)
    table.close()
    later = np.isin(KEYS, np.arange(100, 150))  # written on since the flush
    np.testing.assert_array_equal(found[~later], rows[~later])
    assert np.isin(found[later] - rows[later], (0, 1)).all()
    return True


def empty(path):
    os.truncate(path, 0)


def cut(path):
    """Short of what was flushed, and not at the end of a block."""
    os.truncate(path, min(os.path.getsize(path) // 3, 5001))


def zero(path):
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.write(bytes(size))


@pytest.mark.parametrize("lose", [os.unlink, empty, cut, zero])
def test_every_flushed_file_that_is_lost_is_named(killed, lose, tmp_path):
    path, rows = killed
    must = named_by_the_list(path)
    assert len(must) > 2
    for number, file in enumerate(files_of(path)):
        copy = shutil.copytree(path, tmp_path / str(number))
        lost = os.path.join(copy, os.path.relpath(file, path))
        lose(lost)
        assert not opens_whole(copy, rows, lost) or file not in must, file
        shutil.rmtree(copy)


def test_files_that_were_swapped_are_named(killed, tmp_path):
    path, rows = killed
    files = [file for file in named_by_the_list(path) if file.endswith(".seg")]
    assert len(files) > 1
    for other in files[1:]:
        copy = shutil.copytree(path, tmp_path / "copy")
        a, b = (os.path.join(copy, os.path.relpath(file, path)) for file in (files[0], other))
        os.rename(a, a + "+")
        os.rename(b, a)
        os.rename(a + "+", b)
        assert not opens_whole(copy, rows, a, b)
        shutil.rmtree(copy)


def test_recovery_says_what_open_found(killed, tmp_path):
    path, _ = killed
    copy = shutil.copytree(path, tmp_path / "copy")
    with engine.Table.open(copy) as table:
        found = table.recovery
        assert found["rows"] == len(table) == 2999
        assert (
            found["damaged_records"] == 0
            and found["first_damage"] == ""
            and found["lost_headers"] == 0
        )
        assert found["records"] >= 2999
        assert found["files"] >= found["listed_files"] == len(named_by_the_list(path)) - 2
        assert found["unsealed_files"] == 1
    with engine.Table.open(copy) as table:
        assert 0 < table.recovery["listed_files"] <= table.recovery["files"]
    assert engine.Table(dim=4).recovery is None

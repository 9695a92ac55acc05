"""Flipped bits and copied records in the files of a table: reported or harmless, never a wrong row."""

import os
import re
import shutil

import numpy as np
import pytest
from engine_util import STRESS
from engine_util import files_of
from engine_util import flip
from engine_util import train

from tf_multitier import engine


def kind_of(file):
    name = os.path.basename(file)
    return (
        name.split("-")[0] + os.path.splitext(name)[1]
        if "-" in name
        else os.path.splitext(name)[1] or name
    )


def test_a_flipped_bit_is_reported_or_harmless_never_a_wrong_row(tmp_path):
    with engine.Table(
        dim=4,
        initializer="uniform",
        a=-1.0,
        b=1.0,
        seed=9,
        storage_type="SSDHASH",
        storage_path=tmp_path / "store",
        keep=True,
    ) as table:
        train(table, np.arange(400))
        path = table.path
    with engine.Table.open(path) as table:
        train(table, np.arange(0, 400, 3))
        keys = np.arange(500)
        expected = table.lookup(keys)
    seen, refused, lost = set(), set(), set()
    random = np.random.default_rng(2)
    for file in files_of(path):
        for _ in range(60 if STRESS else 12):
            copy = str(tmp_path / "copy")
            shutil.copytree(path, copy)
            damaged = os.path.join(copy, os.path.relpath(file, path))
            where = int(random.integers(os.path.getsize(damaged)))
            flip(damaged, where, int(random.integers(8)))
            seen.add(kind_of(file))
            at = f"{damaged} at {where}"
            try:
                table = engine.Table.open(copy, keep=False)
            except (engine.EngineError, NotImplementedError, ValueError) as error:
                assert not isinstance(error, engine.ResourceExhaustedError), at
                assert copy in str(error), (at, error)
                refused.add(kind_of(file))
                shutil.rmtree(copy)
                continue
            with table:
                bad = []
                for key in keys.tolist():
                    try:
                        row = table.lookup([key])[0]
                    except engine.DataLossError as error:
                        assert f"key {key} " in str(error) and os.path.dirname(damaged) in str(
                            error
                        ), (at, error)
                        assert os.path.basename(damaged) in str(error), (at, error)
                        assert "offset" in str(error), (at, error)
                        bad.append(key)
                        continue
                    np.testing.assert_array_equal(row, expected[key], err_msg=f"{at}, key {key}")
                if bad:
                    lost.add(kind_of(file))
                    assert table.remove(bad) == len(bad), at
                    assert len(table.lookup(keys)) == 500
                    assert (table.frequency(bad) == 0).all()
                    train(table, bad)
    assert "instance.table" in {os.path.basename(f) for f in files_of(path)}
    assert refused and lost, (seen, refused, lost)


def test_flipped_bits_in_mapped_rows_are_found(tmp_path):
    table = engine.Table(
        dim=4, storage_type="DRAM_PMEM", storage_path=tmp_path, storage_size=[4 * 32]
    )
    train(table, np.arange(300))
    table.drain()
    keys = np.arange(300)
    expected = table.lookup(keys)
    files = [file for file in files_of(table.path) if file.endswith(".pmem")]
    size = os.path.getsize(files[0])
    for offset in range(4096 + 40, size, 640):  # a bit of every tenth row
        flip(files[0], offset, 3)
    bad = []
    for key in keys.tolist():
        try:
            np.testing.assert_array_equal(table.lookup([key])[0], expected[key])
        except engine.DataLossError as error:
            assert (
                f"key {key} " in str(error) and files[0] in str(error) and "offset" in str(error)
            ), error
            bad.append(key)
    assert 10 < len(bad) < 100
    assert table.remove(bad) == len(bad)
    assert len(table) == 300 - len(bad)
    table.lookup(keys)


def test_a_record_copied_over_another_one_in_a_mapped_file_is_damage_and_no_absent_key(tmp_path):
    table = engine.Table(
        dim=4, storage_type="DRAM_PMEM", storage_path=tmp_path, storage_size=[4 * 32]
    )
    train(table, np.arange(300))
    table.drain()
    file = next(file for file in files_of(table.path) if file.endswith(".pmem"))
    with open(file, "r+b") as mapped:
        mapped.seek(4096 + 10 * 64)
        record = mapped.read(64)
        key = int.from_bytes(mapped.read(64)[8:16], "little", signed=True)
        mapped.seek(4096 + 11 * 64)
        mapped.write(record)
    with pytest.raises(
        engine.DataLossError,
        match=f"key {key} .*'{file}' at offset {4096 + 11 * 64}: its checksum is wrong",
    ):
        table.lookup([key])
    assert table.remove([key]) == 1
    table.lookup(np.arange(300))


def test_names_that_are_taken_do_not_stop_mapped_files_from_growing(tmp_path):
    table = engine.Table(
        dim=4, storage_type="DRAM_PMEM", storage_path=tmp_path, storage_size=[4 * 32]
    )
    folder = os.path.join(table.path, "pmem")
    for number in (1, 2, 4):
        with open(os.path.join(folder, f"rows-{number:06}.pmem"), "w") as file:
            file.write("not ours")
    train(table, np.arange(20000))
    table.drain()
    assert len(table) == 20000 and table.lookup(np.arange(20000)).shape == (20000, 4)
    with open(os.path.join(folder, "rows-000002.pmem")) as file:
        assert file.read() == "not ours"


@pytest.mark.parametrize("kind", ["DRAM_SSDHASH", "DRAM_PMEM"])
def test_what_reads_all_rows_names_the_key_of_the_damaged_one(kind, tmp_path):
    table = engine.Table(
        dim=4,
        storage_type=kind,
        storage_path=tmp_path,
        storage_size=[4 * 32],
        keep=kind == "DRAM_SSDHASH",
    )
    train(table, np.arange(1, 3001))
    table.drain()
    path = table.path
    if kind == "DRAM_SSDHASH":  # its last writes are in memory until it is closed
        table.close()
    for file in files_of(path):
        if file.endswith("ssd.list"):  # refused as a whole: tests/kept/test_kept_lost_files.py
            continue
        for offset in range(
            4096 + 40, min(os.path.getsize(file), 100_000), 16384
        ):  # records of each format
            flip(file, offset, 3)
    if kind == "DRAM_SSDHASH":
        table = engine.Table.open(path)
    removed = 0
    while True:  # the steps of a user who cannot save
        try:
            rows = table.export()
            break
        except engine.DataLossError as error:
            key = int(
                re.search(r"^table 'table': reading all rows, key (\d+): tier ", str(error))[1]
            )
            assert "key 0" not in str(error)
            with pytest.raises(engine.DataLossError):
                table.lookup([key])
            assert table.remove([key]) == 1
            removed += 1
    assert 2 < removed < 100 and len(rows) == len(table) == 3000 - removed


@pytest.mark.parametrize("answer", ["reinit", "drop"])
def test_damaged_rows_begin_anew_or_go_where_the_option_says_so(answer, tmp_path):
    table = engine.Table(
        dim=4,
        storage_type="DRAM_PMEM",
        storage_path=tmp_path,
        storage_size=[4 * 32],
        on_corruption=answer,
    )
    train(table, np.arange(300))
    table.drain()
    expected = table.lookup(np.arange(300))
    for file in files_of(table.path):
        if file.endswith(".pmem"):
            for offset in range(4096 + 40, os.path.getsize(file), 640):
                flip(file, offset, 3)
    found = table.lookup(np.arange(300))
    table.drain()
    changed = (found != expected).any(1)
    assert 10 < changed.sum() < 100 and (found[changed] == 0).all()
    assert len(table) == (300 if answer == "reinit" else 300 - changed.sum())
    if answer == "drop":
        assert sorted(table.pop_dropped()) == np.flatnonzero(changed).tolist()

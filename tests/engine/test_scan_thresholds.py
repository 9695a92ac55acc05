"""Scans with thresholds over SSDHASH: files whose rows are all below them are not read, and no other row is missed."""

import numpy as np
import pytest

from tf_multitier import engine

DIM, ROWS = 64, 20_000
HYPER = {"learning_rate": 1.0}


def train(table, keys, step):
    table.apply("sgd", keys, np.ones((len(keys), DIM)), hyper=HYPER, global_step=step)


def scanned(table, **thresholds):
    """(keys, bytes that the last tier has read for them)."""
    read = lambda: table.stats()["tiers"][-1]["device_read_bytes"]
    before, cursor, keys = read(), 0, []
    while True:
        rows, cursor = table.scan(cursor, 1000, **thresholds)
        keys += rows.keys.tolist()
        if not cursor:
            return sorted(keys), read() - before


@pytest.mark.parametrize("kind", ["SSDHASH", "DRAM_SSDHASH"])
@pytest.mark.parametrize("threshold", ["min_version", "min_frequency"])
def test_a_scan_of_one_percent_reads_few_files(tmp_path, kind, threshold):
    size = [100 * DIM * 4] * kind.count("_")
    table = engine.Table(
        DIM, storage_type=kind, storage_path=str(tmp_path), storage_size=size, keep=True, name="t"
    )
    train(table, np.arange(ROWS), 1)
    newest = np.random.default_rng(1).choice(ROWS, ROWS // 100, replace=False)
    train(table, newest, 2)
    train(table, newest, 3)
    table.drain()
    for opened in (False, True):
        if opened:
            table.close()
            table = engine.Table.open(tmp_path, "t")
        everything, all_bytes = scanned(table)
        assert everything == list(range(ROWS))
        keys, some_bytes = scanned(table, **{threshold: 3})
        assert keys == sorted(newest.tolist())
        assert some_bytes < 0.3 * all_bytes
        assert scanned(table, **{threshold: 4}) == ([], 0)
    table.close()


def test_no_row_is_missed_where_rows_change_move_and_come_back(tmp_path):
    table = engine.Table(
        DIM,
        storage_type="DRAM_SSDHASH",
        storage_path=str(tmp_path),
        storage_size=[50 * DIM * 4],
        keep=True,
        name="t",
    )
    rng = np.random.default_rng(2)
    versions = {}
    for step in range(1, 60):
        keys = rng.choice(3000, 200, replace=False)
        if step % 7 == 0:  # older than what is there
            table.upsert(keys, {"value": np.zeros((200, DIM))}, versions=np.full(200, step - 30))
            versions |= dict.fromkeys(keys.tolist(), step - 30)
        else:
            train(table, keys, step)
            versions |= dict.fromkeys(keys.tolist(), step)
        if step % 5 == 0:
            gone = rng.choice(3000, 100, replace=False)
            table.remove(gone)
            for key in gone.tolist():
                versions.pop(key, None)
        if step % 11 == 0:
            table.compact()
        if step == 30:
            table.close()
            table = engine.Table.open(tmp_path, "t")
        least = int(rng.integers(-5, step + 2))
        expected = sorted(key for key, version in versions.items() if version >= least)
        assert scanned(table, min_version=least)[0] == expected
    table.close()

"""Tables that outlive their process: flush, close, and Table.open."""

import json
import os

import numpy as np
import pytest
from engine_process import Process
from engine_util import content
from engine_util import kept
from engine_util import train

from tf_multitier import engine

# Every type whose last tier survives its process.
DURABLE = ("SSDHASH", "DRAM_SSDHASH", "DRAM_PMEM_SSDHASH")


@pytest.mark.parametrize("kind", DURABLE)
def test_a_closed_table_opens_as_it_was(kind, tmp_path):
    with kept(tmp_path, kind) as table:
        for step in range(5):
            train(table, np.arange(-50, 150) * (step + 1), step)
        table.remove([0, 5, 7])
        expected, columns, path = content(table), table.columns, table.path
        absent = table.lookup([0, 123456])
    for _ in range(2):  # an opened table can be closed and opened again
        with engine.Table.open(path) as table:
            assert content(table) == expected
            assert table.columns == columns and table.path == path and table.name == "ev"
            np.testing.assert_array_equal(table.lookup([0, 123456]), absent)
            train(table, [1, 2, 3000])
            expected = content(table)


@pytest.mark.parametrize("kind", DURABLE)
def test_flush_acknowledges_what_was_done_before(kind, tmp_path):
    process = Process(
        """
        table = engine.Table(dim=4, storage_type=arguments[1], storage_path=arguments[0], storage_size=[64] * arguments[1].count("_"),
                             keep=True)
        fill(table, 500)
        table.remove([3])
        table.flush()
        fill(table, 100, first=450)
        say(table.path)
        wait()
    """,
        str(tmp_path),
        kind,
    )
    path = process.hear()
    process.kill()
    with engine.Table.open(path, keep=False) as table:
        assert set(range(450)) - {3} <= set(table.export().keys.tolist()) <= set(range(550)) - {3}
        np.testing.assert_array_equal(table.lookup(np.arange(4, 450)), np.ones((446, 4)))
        assert set(table.lookup(np.arange(450, 500)).ravel()) <= {1.0, 2.0}
        np.testing.assert_array_equal(table.lookup([3]), np.zeros((1, 4)))
    assert os.listdir(tmp_path) == []


def test_every_option_comes_back(tmp_path):
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
    with kept(
        tmp_path,
        initializer="matrix",
        matrix=matrix,
        slots=[("m", 4, 0.1), ("s", 1, -2.5)],
        filter="counter",
        filter_freq=3,
        default_value_no_permission=0.7,
        steps_to_live=10,
        cache_strategy="LRU",
        name="part/0 é",
    ) as table:
        train(table, [1, 1, 1, 2], step=5)
        value, path, columns = table.lookup([1]), table.path, table.columns
    with engine.Table.open(tmp_path, name="part/0 é") as table:
        np.testing.assert_array_equal(table.lookup([1]), value)
        np.testing.assert_array_equal(
            table.lookup([2]), np.full((1, 4), np.float32(0.7))
        )  # not admitted
        assert table.columns == columns and table.path == path
        train(table, [4, 4, 4], step=20)
        assert table.expire(20) == 1 and table.total_count() == 1
        table.remove([4])
    options = json.loads(
        (tmp_path / os.path.relpath(path, tmp_path) / "instance.table")
        .read_bytes()
        .split(b"\n", 1)[1]
    )["options"]
    assert options["cache_strategy"] == "LRU" and options["initializer"]["matrix_rows"] == 3


def test_a_table_that_is_collected_is_flushed(tmp_path):
    table = kept(tmp_path)
    train(table, range(100))
    expected, path = content(table), table.path
    del table
    assert content(engine.Table.open(path)) == expected


def test_closed_tables_refuse_everything(tmp_path):
    table = kept(tmp_path)
    table.close()
    table.close()
    for call in (
        lambda: table.lookup([1]),
        table.total_count,
        table.stats,
        table.flush,
        lambda: train(table, [1]),
    ):
        with pytest.raises(engine.FailedPreconditionError, match="table 'ev' is closed"):
            call()


def test_files_of_a_table_that_is_not_kept_go_with_it(tmp_path):
    table = engine.Table(dim=4, storage_type="SSDHASH", storage_path=tmp_path)
    train(table, range(10))
    assert os.path.isdir(table.path)
    table.close()
    assert os.listdir(tmp_path) == []
    assert engine.Table(dim=4).path is None


@pytest.mark.parametrize("kind", ["PMEM", "DRAM_PMEM", "LEVELDB", "DRAM_PMEM_LEVELDB"])
def test_another_last_tier_than_ssdhash_is_not_recovered_and_says_why(kind, tmp_path):
    with pytest.raises(
        NotImplementedError,
        match=f"keep: expected a storage_type .*, found {kind}: .*; use SSDHASH, or a checkpoint",
    ):
        kept(tmp_path / "new", kind)
    assert os.listdir(tmp_path) == []
    with engine.Table(dim=4, storage_type=kind, storage_path=tmp_path) as table:
        train(table, range(10))
        with pytest.raises(
            engine.FailedPreconditionError, match="flush: expected a durable last tier"
        ):
            table.flush()
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_opened_is_refused_by_name_and_left_alone(tmp_path):
    with kept(tmp_path, matrix=np.ones((2, 4)), initializer="matrix") as table:
        train(table, range(10))
        path = table.path
    options = os.path.join(path, "instance.table")
    with open(options, "rb") as file:
        original = file.read()

    def refused(error, message, text=None, **kwargs):
        if text is not None:
            with open(options, "wb") as file:
                file.write(text)
        for _ in range(2):  # the refusal let go of the lock
            with pytest.raises(error, match=message):
                engine.Table.open(path, **kwargs)
        with open(options, "wb") as file:
            file.write(original)

    refused(ValueError, "expected recover=True, found False", recover=False)
    refused(
        NotImplementedError,
        "instance.table': expected format version 1, found 2",
        original.replace(b"multitier-table 1", b"multitier-table 2"),
    )
    refused(
        engine.DataLossError,
        "instance.table' at offset .*: expected checksum [0-9a-f]{8}, found [0-9a-f]{8}",
        original.replace(b'"dim": 4', b'"dim": 5'),
    )
    refused(
        engine.DataLossError, "instance.table' at offset 0: expected a valid header, found b''", b""
    )
    os.rename(options, options + ".away")
    with pytest.raises(
        engine.FailedPreconditionError, match="expected file instance.table, found none"
    ):
        engine.Table.open(path)
    os.rename(options + ".away", options)
    matrix = os.path.join(path, "instance.matrix")
    os.rename(matrix, matrix + ".away")
    refused(engine.DataLossError, "expected file '.*instance.matrix', found none")
    os.rename(matrix + ".away", matrix)
    os.rename(os.path.join(path, "ssdhash"), os.path.join(path, "away"))
    refused(engine.DataLossError, "ssdhash' is missing")
    os.rename(os.path.join(path, "away"), os.path.join(path, "ssdhash"))
    with pytest.raises(engine.NotFoundError, match="open of instance"):
        engine.Table.open(tmp_path)
    with pytest.raises(engine.NotFoundError, match="expected a kept instance in '.*', found none"):
        engine.Table.open(tmp_path, name="other")
    assert len(engine.Table.open(path)) == 10


def test_one_of_several_instances_must_be_named_by_its_path(tmp_path):
    tables = [kept(tmp_path) for _ in range(2)]
    paths = [table.path for table in tables]
    for table in tables:
        table.close()
    with pytest.raises(
        ValueError, match="expected one kept instance in .*, found instance-.*, instance-"
    ):
        engine.Table.open(tmp_path, name="ev")
    engine.Table.open(paths[0], keep=False).close()
    assert engine.Table.open(tmp_path, name="ev").path == paths[1]


def test_a_live_instance_is_refused_with_its_holder(tmp_path):
    process = Process(
        """
        table = engine.Table(dim=4, storage_type="SSDHASH", storage_path=arguments[0], keep=True)
        fill(table, 10)
        table.flush()
        say(table.path)
        wait()
    """,
        str(tmp_path),
    )
    path = process.hear()
    for call in (engine.Table.open, engine.salvage):
        with pytest.raises(
            engine.FailedPreconditionError, match=f"in use by process {process.pid}$"
        ):
            call(path)
    process.kill()
    with engine.Table.open(path) as table:
        assert len(table) == 10
        with pytest.raises(
            engine.FailedPreconditionError, match=rf"in use by process {os.getpid()} \(this one\)"
        ):
            engine.Table.open(path)

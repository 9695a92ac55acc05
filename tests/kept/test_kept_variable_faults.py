"""Variables with StorageOption(keep=True) whose files are damaged or lost, or whose process is killed."""

import os

import numpy as np
import pytest
import tensorflow as tf
from kept_util import instances
from kept_util import KEYS
from kept_util import Program
from lives import KILLS
from lives import Lives


def test_a_damaged_description_is_refused_by_name_and_replaced_by_a_restore(tmp_path):
    with Program(tmp_path / "rows") as first:
        first.session.run(first.init)
        first.run(first.train, KEYS)
        saved = first.save(str(tmp_path / "model"))
    (instance,) = instances(tmp_path / "rows")
    facts = tmp_path / "rows" / instance / "instance.variable"
    data = bytearray(facts.read_bytes())
    data[-5] ^= 1
    facts.write_bytes(data)
    with Program(tmp_path / "rows") as second:
        with pytest.raises(tf.errors.DataLossError, match=r"instance\.variable"):
            second.session.run(second.init)
        second.restore(saved)
        assert second.session.run(second.count) == 500
    assert len(instances(tmp_path / "rows")) == 1


def test_rows_that_cannot_be_opened_are_read_from_the_checkpoint(tmp_path):
    with Program(tmp_path / "rows") as first:
        first.session.run(first.init)
        first.run(first.train, KEYS)
        saved = first.save(str(tmp_path / "model"))
        trained = first.table(KEYS)
    (instance,) = instances(tmp_path / "rows")
    folder = tmp_path / "rows" / instance / "ssdhash"
    for name in os.listdir(folder):
        if name != "ssd.list":
            os.remove(folder / name)
    with Program(tmp_path / "rows") as second:
        second.restore(saved)
        np.testing.assert_array_equal(second.table(KEYS), trained)


def _damaged(folder, how):
    """Damages the largest file with rows of a kept directory. Returns its path."""
    names = [
        os.path.join(below, name)
        for below, _, names in os.walk(folder)
        for name in names
        if name.endswith((".seg", ".ldb", ".log"))
    ]
    path = max(names, key=os.path.getsize)
    if how == "lost":
        os.remove(path)
    elif how == "cut":
        os.truncate(path, os.path.getsize(path) // 2)
    else:
        with open(path, "r+b") as file:
            file.seek(os.path.getsize(path) // 3)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 4]))
    return path


def _kept_and_saved(tmp_path, kind, how):
    """Rows that were saved and closed, and then damaged. Returns (prefix, values, the damaged file)."""
    with Program(tmp_path / "rows", kind) as first:
        first.session.run(first.init)
        first.run(first.train, KEYS)
        saved = first.save(str(tmp_path / "model"))
        trained = first.table(KEYS)
    (instance,) = instances(tmp_path / "rows")
    return saved, trained, _damaged(tmp_path / "rows" / instance, how)


KINDS = ["DRAM_SSDHASH", "SSDHASH"]


@pytest.mark.parametrize("how", ["lost", "cut"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_or_cut_file_is_named_and_a_restore_reads_the_checkpoint(tmp_path, kind, how):
    saved, trained, path = _kept_and_saved(tmp_path, kind, how)
    with Program(tmp_path / "rows", kind) as second:
        with pytest.raises(tf.errors.DataLossError, match=os.path.basename(path)):
            second.session.run(second.init)
    with Program(tmp_path / "rows", kind) as third:
        third.restore(saved)
        np.testing.assert_array_equal(third.table(KEYS), trained)
        assert third.session.run(third.count) == len(KEYS)


@pytest.mark.parametrize("again", ["in the same session", "in the next session"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_which_damage_was_met_are_read_from_the_checkpoint(tmp_path, kind, again):
    saved, trained, path = _kept_and_saved(tmp_path, kind, "flipped")
    with Program(tmp_path / "rows", kind) as second:
        second.restore(saved)
        # In place: opening does not read all records.
        with pytest.raises(tf.errors.DataLossError, match=os.path.basename(path)):
            second.table(KEYS)
        if again == "in the same session":
            second.restore(saved)
            np.testing.assert_array_equal(second.table(KEYS), trained)
    with Program(tmp_path / "rows", kind) as third:
        third.restore(saved)
        np.testing.assert_array_equal(third.table(KEYS), trained)
        assert third.session.run(third.count) == len(KEYS)


_KILLED = """
path = Path({folder!r})
program = Program(path / "rows", {kind!r})
latest = tf.train.latest_checkpoint(str(path))
program.session.run(program.init)
if latest:
    program.restore(latest)
for step in range(int(latest.rpartition("-")[2]) + 1 if latest else 0, 10**6):
    program.run(program.train, np.random.randint(0, 5000, 256))
    if step % 5 == 0:
        total = program.table(np.arange(5000)).sum(dtype=np.float64)
        saved = program.save(str(path / "model"), global_step=step)
        say(saved, total)
"""


def test_a_killed_process_leaves_the_rows_of_its_checkpoint(tmp_path):
    kind = "DRAM_SSDHASH"
    imports = "from pathlib import Path; import numpy as np, tensorflow as tf; from kept_util import Program"
    totals = {}
    with Lives(imports, _KILLED, folder=str(tmp_path), kind=kind) as lives:
        for seed in range(KILLS // 2):  # of each kind
            random = np.random.default_rng(seed)
            with lives.begin() as life:
                lines = [life.line() for _ in range(1 + random.integers(3))]
                life.wait(random.random() * 0.03)  # somewhere in the next step or save
            for line in lines + life.rest():
                prefix, total = line.split()
                totals[prefix] = float(total)
            latest = tf.train.latest_checkpoint(str(tmp_path))
            with Program(tmp_path / "rows", kind) as program:
                program.session.run(program.init)
                program.restore(latest)
                if latest in totals:  # killed after the save and before it said so
                    total = program.table(np.arange(5000)).sum(dtype=np.float64)
                    assert total == totals[latest]
            assert len(instances(tmp_path / "rows")) == 1

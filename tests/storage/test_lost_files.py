"""Files of a tier that are deleted, cut, zeroed or replaced while a table uses them, and calls that fail: every row reads as what it
is or as lost, what reads all rows says so, and the documented cures work."""

import os
import re
import shutil
import subprocess
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from engine_process import run
from storage_util import Model
from storage_util import option

from tf_multitier import engine

v1 = tf.compat.v1
ROWS, DIM = 6000, 64


def train(table, keys):
    keys = np.asarray(keys)
    hyper = dict.fromkeys(engine.update_rules()["adagrad"].hyperparameters, 0.1)
    grads = np.sin(np.arange(DIM * len(keys), dtype=np.float32)).reshape(-1, DIM)
    table.apply("adagrad", keys, grads, hyper=hyper)


def expected_rows():
    """The values of the rows that `make` trains, from a table in memory."""
    table = engine.Table(dim=DIM)
    train_all(table)
    return table.lookup(np.arange(ROWS))


def train_all(table):
    for first in range(0, ROWS, 500):
        train(table, np.arange(first, first + 500))


def make(kind, path, **options):
    table = engine.Table(
        dim=DIM,
        storage_type=kind,
        storage_path=path,
        storage_size=[8 * DIM * 4] * kind.count("_"),
        **options,
    )
    train_all(table)
    table.drain()
    table.compact()
    return table


def files_of(path, suffix=""):
    return sorted(
        os.path.join(base, name)
        for base, _, names in os.walk(path)
        for name in names
        if name.endswith(suffix)
        and not name.startswith("instance")
        and os.path.getsize(os.path.join(base, name))
    )


def test_a_folder_that_is_deleted_in_use_is_named_with_the_cure(tmp_path):
    table = make("DRAM_SSDHASH", tmp_path / "rows")
    shutil.rmtree(tmp_path / "rows")
    lost = "rows.*found this one or its folder deleted: restore the last checkpoint"
    with pytest.raises(engine.DataLossError, match=lost):
        for _ in range(20):  # the open segment takes some more
            train_all(table)
            table.drain()


def zero(file, share=0.5):
    """Zeroes a stretch in the middle."""
    size = os.path.getsize(file)
    with open(file, "r+b") as out:
        out.seek(int(size * (1 - share) / 2))
        out.write(b"\0" * int(size * share))


def damage(file, how):
    if how == "cut":
        os.truncate(file, os.path.getsize(file) // 2)
    else:
        zero(file)


def lost_keys(table, expected):
    """The keys that read as lost; every other one reads as it should."""
    lost = []
    for some in np.split(np.arange(len(expected)), len(expected) // 50):
        try:
            np.testing.assert_array_equal(table.lookup(some), expected[some])
            continue
        except engine.DataLossError:
            pass
        for key in some.tolist():
            try:
                np.testing.assert_array_equal(
                    table.lookup([key])[0], expected[key], err_msg=f"key {key}"
                )
            except engine.DataLossError as error:
                assert f"key {key}" in str(error), error
                lost.append(key)
    return lost


def kinds_of_names(table):
    """The files of a table, grouped by their names without numbers."""
    kinds = {}
    for file in files_of(table.path):
        kinds.setdefault(re.sub(r"\d+", "N", os.path.basename(file)), []).append(file)
    return kinds


DAMAGES = [
    (kind, how)
    for kind in ["LEVELDB", "DRAM_LEVELDB", "SSDHASH", "DRAM_SSDHASH", "DRAM_PMEM_LEVELDB"]
    for how in ["cut", "zeroed"]
]


# A mapped file that is cut ends the process: docs/limitations.md.
@pytest.mark.parametrize(("kind", "how"), [*DAMAGES, ("DRAM_PMEM", "zeroed")])
def test_a_file_that_is_damaged_while_open_loses_no_row_in_silence(kind, how, tmp_path):
    names = kinds_of_names(make(kind, tmp_path / "first"))
    found, expected = 0, expected_rows()
    for name in sorted(names):
        if name.endswith(".pmem") and how == "cut":
            continue
        table = make(kind, tmp_path / name)
        files = kinds_of_names(table)[name]
        # The first and the last one of SSDHASH hold few records.
        damage(files[len(files) // 2], how)
        lost = lost_keys(table, expected)
        found += len(lost)
        try:
            assert len(table.export()) == ROWS == len(table), (name, lost)
            assert not lost
        except engine.DataLossError as error:
            assert "reading all rows" in str(error), error
            assert lost, (name, error)
        # The keys are forgotten, and all others can be read and exported.
        assert table.remove(lost) == len(lost)
        rows = table.export()
        assert sorted(rows.keys) == sorted(set(range(ROWS)) - set(lost)), name
    assert found > 0, "the damage met no row"


CLOSED = """
    import glob, resource
    directory, how = arguments
    # The process keeps few files open: the other ones are opened again for each read.
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    table = engine.Table(dim=64, storage_type="SSDHASH", storage_path=directory)
    for group in range(20):
        fill(table, 5000, value=1.0 + group, first=5000 * group)
    table.drain()
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    open_files = {os.readlink(link) for link in links if os.path.islink(link)}
    segments = sorted(glob.glob(os.path.join(table.path, "ssdhash", "*.seg")))
    closed = [segment for segment in segments if segment not in open_files]
    closed = closed[len(closed) // 2 :]
    if how == "deleted":
        os.remove(closed[0])
    else:
        os.rename(closed[0], closed[0] + "_")
        os.rename(closed[1], closed[0])
        os.rename(closed[0] + "_", closed[1])
    wrong, lost = [], []
    for key in range(0, 100000, 50):
        try:
            if (table.lookup([key]) != 1.0 + key // 5000).any():
                wrong.append(key)
        except engine.DataLossError:
            lost.append(key)
    say([wrong, len(lost), error(table.export)])
"""


@pytest.mark.parametrize("how", ["deleted", "swapped"])
def test_a_file_that_is_lost_while_closed_is_data_loss_for_its_rows(how, tmp_path):
    wrong, lost, exported = run(CLOSED, str(tmp_path), how)
    assert wrong == [] and 0 < lost < 2000
    assert exported[0] == "DataLossError" and "reading all rows" in exported[1]


def flush_refused(table, files):
    """Whether flush says that one of the files is lost, each time; all rows can then still be read and exported."""
    try:
        table.flush()
        return False
    except engine.DataLossError as error:
        assert any(os.path.basename(file) in str(error) for file in files), error
    for ends in (table.flush, table.close):
        with pytest.raises(engine.DataLossError):
            ends()
    rows = table.lookup(np.arange(ROWS + 1))
    exported = table.export()
    assert sorted(exported.keys) == list(range(ROWS + 1))
    fresh = engine.Table(dim=DIM)
    fresh.import_rows(exported)
    np.testing.assert_array_equal(fresh.lookup(np.arange(ROWS + 1)), rows)
    return True


OF_SSDHASH = ["ssd-N-N.seg", "ssd.id"]
KEPT = {
    "SSDHASH": OF_SSDHASH,
    "DRAM_SSDHASH": OF_SSDHASH,
    "DRAM_PMEM_SSDHASH": OF_SSDHASH,
}
# A segment that is replaced: rows are written to one that has no name any more.
WRITTEN = ["ssd-N-N.seg"]


def lose(file, how):
    if how == "deleted":
        os.remove(file)
    else:  # as by a backup that is put back
        shutil.copy(file, file + "_")
        os.rename(file + "_", file)


@pytest.mark.parametrize("how", ["deleted", "replaced"])
@pytest.mark.parametrize("kind", sorted(KEPT))
def test_no_row_is_acknowledged_into_a_file_that_is_lost_while_open(kind, how, tmp_path):
    def start(path):
        table = make(kind, path, keep=True)
        train(table, [0])
        table.flush()
        return table

    refused = []
    for name in sorted(kinds_of_names(start(tmp_path / "first"))):
        table = start(tmp_path / name)
        files = kinds_of_names(table)[name]
        for file in files:
            lose(file, how)
        train(table, [ROWS])
        if name.endswith(".pmem"):
            continue  # of no use to recovery
        if flush_refused(table, files):
            refused.append(name)
            continue
        # It was acknowledged, so it is found again.
        path, rows = table.path, table.lookup(np.arange(ROWS + 1))
        table.close()
        with engine.Table.open(path) as table:
            np.testing.assert_array_equal(table.lookup(np.arange(ROWS + 1)), rows)
    must = [name for name in KEPT[kind] if how == "deleted" or name in WRITTEN]
    assert set(must) <= set(refused)


@pytest.mark.parametrize("kind", sorted(KEPT))
def test_a_kept_table_whose_files_are_all_lost_is_no_empty_table(kind, tmp_path):
    table = make(kind, tmp_path, keep=True)
    table.flush()
    path = table.path
    table.close()
    for file in files_of(path):
        if os.path.dirname(file) != path:
            os.remove(file)
    with pytest.raises(engine.DataLossError):
        engine.Table.open(path)


# After a failed write the tier closes LevelDB and opens it again. A file is deleted before that, or after it.
GONE = """
    import resource, glob
    directory, before = arguments
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    table = engine.Table(dim=64, storage_type="LEVELDB", storage_path=directory)
    for first in range(0, 8000, 1000):
        fill(table, 1000, first=first)
    table.compact()
    fill(table, 100, first=8000)

    def files():
        return sorted(glob.glob(os.path.join(table.path, "leveldb", "*.ldb")), key=os.path.getsize)

    assert files()
    away = files()[-1]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    fill(table, 1000, first=10000)  # they stay in memory
    refused = error(table.drain)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if before:
        os.remove(away)
    import time
    began = time.time()
    while time.time() < began + 20:  # it is opened again once a second
        went_on = error(table.drain)
        if went_on is None or went_on[0] == "DataLossError":
            break
    if not before:
        os.remove(away)
    right = lost = 0
    for key in range(0, 8100, 9):
        try:
            assert (table.lookup([key]) == 1).all(), key
            right += 1
        except engine.DataLossError:
            lost += 1
    say([refused[0], went_on, error(table.export), right, lost])
"""


@pytest.mark.parametrize("before", [True, False])
def test_a_missing_table_file_is_data_loss_and_no_empty_database_is_made(before, tmp_path):
    refused, went_on, exported, right, lost = run(GONE, str(tmp_path), before)
    assert refused == "ResourceExhaustedError"
    assert (went_on or [None])[0] == ("DataLossError" if before else None), went_on
    if exported is not None:  # LevelDB may have had the file open all along, and lost nothing
        assert exported[0] == "DataLossError" and lost > 0, (exported, lost)
    assert right > 0 and right + lost == 900
    assert before or lost > 0


DESCRIPTORS = """
    import resource, time
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    table = engine.Table(dim=64, storage_type="LEVELDB", storage_path=arguments[0])
    for first in range(0, 8000, 1000):
        fill(table, 1000, first=first)
    table.compact()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    fill(table, 1000, first=10000)
    assert error(table.drain)[0] == "ResourceExhaustedError"
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, most))
    time_to_go_on = time.time() + 20
    kinds = set()
    while time.time() < time_to_go_on and len(kinds) < 1:
        refused = error(table.drain)
        kinds |= {refused[0]} if refused and "Too many open files" in refused[1] else set()
    wrong = [k for k in range(0, 8000, 50) if (table.lookup([k]) != 1).any()]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    while error(table.drain):
        assert time.time() < time_to_go_on + 20
    say([sorted(kinds), wrong, error(table.export)])
"""


def test_want_of_descriptors_is_resource_exhausted_and_rows_stay_readable(tmp_path):
    kinds, wrong, exported = run(DESCRIPTORS, str(tmp_path))
    assert kinds == ["ResourceExhaustedError"] and wrong == [] and exported is None


def damaged_leveldb(tmp_path):
    """A table with a zeroed stretch that compaction has met; its rows; and the keys that are lost."""
    table = make("LEVELDB", tmp_path)
    expected = expected_rows()
    zero(max(files_of(table.path, ".ldb"), key=os.path.getsize), share=0.2)
    train(table, [ROWS - 1])
    with pytest.raises(engine.DataLossError, match="compacting"):
        table.compact()
    expected[ROWS - 1] = table.lookup([ROWS - 1])[0]
    return table, expected, lost_keys(table, expected)


def test_keys_in_a_zeroed_stretch_are_removed_and_the_others_move_to_another_table(tmp_path):
    table, expected, lost = damaged_leveldb(tmp_path)
    assert 10 < len(lost) < ROWS // 2
    with pytest.raises(engine.DataLossError, match=f"key {lost[0]}"):
        table.lookup(lost)
    for key in lost:
        assert table.remove([key]) == 1
    assert table.lookup(lost).shape == (len(lost), DIM) and (table.frequency(lost) == 0).all()
    with pytest.raises(engine.DataLossError):
        table.drain()  # the tier does not know of the removals yet
    rows = table.export()
    fresh = engine.Table(dim=DIM, storage_type="LEVELDB", storage_path=tmp_path / "fresh")
    fresh.import_rows(rows)
    kept = np.setdiff1d(np.arange(ROWS), lost)
    np.testing.assert_array_equal(fresh.lookup(kept), expected[kept])
    assert len(fresh) == len(kept)


def test_a_variable_with_a_zeroed_stretch_is_saved_without_its_lost_keys_and_restored(tmp_path):
    with tf.Graph().as_default():
        save_without_lost_keys_and_restore(tmp_path)


def save_without_lost_keys_and_restore(tmp_path):
    model = Model(option("LEVELDB", tmp_path / "store"), dim=DIM)
    reference = Model(None, name="in_memory", dim=DIM)
    saver, key, path = (
        v1.train.Saver({"ev": model.ev}),
        v1.placeholder(tf.int64, [None]),
        str(tmp_path / "model.ckpt"),
    )
    remove, compact = model.ev.remove(key), model.ev.compact()
    with tf.compat.v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for first in range(0, ROWS, 500):
            for one in (model, reference):
                one.run(session, np.arange(first, first + 500))
        session.run(compact)
        expected = reference.look_up(session, np.arange(ROWS))
        zero(max(files_of(tmp_path / "store", ".ldb"), key=os.path.getsize), share=0.02)
        lost = []
        while True:
            try:
                saver.save(session, path)
                break
            except tf.errors.DataLossError as error:
                lost.append(int(re.search(r"reading all rows, key (\d+)", str(error))[1]))
                session.run(remove, {key: [lost[-1]]})
        assert 10 < len(lost) < ROWS // 2
        saver.restore(session, path)
        kept = np.setdiff1d(np.arange(ROWS), lost)
        np.testing.assert_array_equal(model.look_up(session, kept), expected[kept])
        model.run(session, np.arange(ROWS))
        session.run(compact)
        assert session.run(model.ev.total_count()) == ROWS


UNLINK = """
    #define _GNU_SOURCE
    #include <errno.h>
    #include <fcntl.h>
    #include <string.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    int unlink(const char* path) {
      if (strstr(path, "instance.claim-") != NULL) { errno = EIO; return -1; }
      return syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    }
"""

REOPENED = """
    table = engine.Table(dim=4, storage_type="SSDHASH", storage_path=arguments[0], keep=True)
    fill(table, 100)
    path = table.path
    for again in range(3):
        table.close()
        assert [name for name in os.listdir(path) if name.startswith("instance.claim-")]
        table = engine.Table.open(path)
        assert error(lambda: engine.Table.open(path))[0] == "FailedPreconditionError"
    say(len(table))
"""


def test_a_claim_that_could_not_be_deleted_does_not_block_the_next_owner(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for a library of failing calls")
    source, library = tmp_path / "unlink.c", tmp_path / "unlink.so"
    source.write_text(textwrap.dedent(UNLINK))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    assert run(REOPENED, str(tmp_path / "store"), environment={"LD_PRELOAD": str(library)}) == 100

"""What a restore takes over, into variables that differ from the saved one; and that damage is found before anything changes."""

import contextlib
import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios

import forks
import numpy as np
import pytest
import tensorflow as tf
from variable_util import initialized_session
from variable_util import make

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import engine
from tf_multitier._src.variable import process_state

v1 = tf.compat.v1
DIM = 4


def rows_of(keys, dim=DIM, slots=(), frequencies=None):
    """engine.Rows: element j of the value of key k is k + j / 16, and slot i's are k + i + 1."""
    keys = np.asarray(keys, np.int64)
    value = keys[:, None] + np.arange(dim) / 16
    columns = [("value", dim, 0.0)] + [(name, width, initial) for name, width, initial in slots]
    parts = [value] + [
        np.repeat(keys[:, None] + i + 1, width, axis=1) for i, (_, width, _) in enumerate(slots)
    ]
    return engine.Rows(
        columns,
        keys,
        np.ones(len(keys), np.int64) if frequencies is None else np.asarray(frequencies, np.int64),
        np.arange(len(keys), dtype=np.int64),
        np.concatenate(parts, axis=1).astype(np.float32),
    )


def written(path, rows, name="ev", **kwargs):
    with checkpoint.Writer(str(path)) as writer:
        writer.add_table(name, rows, **kwargs)
    return str(path)


def exported(session, ev):
    """{key: (row, frequency, version)} and the names of the columns."""
    found, columns = {}, []
    for part in ev.parts:
        saved = session.run(part.export_rows())
        columns = [c["name"] for c in json.loads(saved.manifest)["columns"]]
        for i, key in enumerate(saved.keys.tolist()):
            found[key] = (saved.rows[i].tolist(), saved.frequencies[i], saved.versions[i])
    return found, columns


def minimize(ev, optimizer, ids=(1,)):
    return optimizer.minimize(tf.reduce_sum(tf.nn.embedding_lookup(ev, list(ids))))


FRESH = """
import json, sys
import tensorflow as tf, tf_multitier
v1 = tf.compat.v1
for initialized in (True, False):
    with tf.Graph().as_default(), v1.Session() as session:
        ev = tf_multitier.get_embedding_variable("ev", 4)
        loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, [1]))
        train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        if initialized:
            session.run(v1.global_variables_initializer())
        session.run(ev.restore_from(sys.argv[1]))
        for _ in range(3):
            session.run(train)
        saved = session.run(ev.export_rows())
    print([c["name"] for c in json.loads(saved.manifest)["columns"]], saved.rows[2].tolist())
    print("the next graph", file=sys.stderr, flush=True)
"""


def test_another_optimizer_starts_fresh_and_the_log_says_so_once(tmp_path):
    path = written(tmp_path / "model", rows_of(range(9), slots=[("ev/Adagrad", DIM, 0.1)]))
    done = subprocess.run(
        [sys.executable, "-c", FRESH, path],
        env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="0"),
        capture_output=True,
        text=True,
        check=True,
    )
    row = [2 + j / 16 for j in range(DIM)] + [3.0] * DIM + [0.0] * DIM
    assert done.stdout.splitlines() == [f"{['value', 'ev/Adagrad', 'ev/Momentum']} {row}"] * 2
    message = "its 9 rows had no ev/Momentum: these slots begin with their initial values"
    logged = done.stderr.split("the next graph")
    assert [text.count(message) for text in logged] == [1, 1, 0], done.stderr


@pytest.mark.parametrize("parts", [1, 2])
def test_slots_follow_a_variable_that_is_restored_under_another_name(tmp_path, parts):
    path = written(tmp_path / "model", rows_of(range(9), slots=[("ev/Adagrad", DIM, 0.1)]))
    with tf.Graph().as_default():
        ev = make("scope/new", DIM, parts)
        v1.train.init_from_checkpoint(path, {"ev": list(ev.parts) if parts > 1 else ev})
        train = minimize(ev, v1.train.AdagradOptimizer(0.1))
        with initialized_session() as session:
            session.run(train)
            found, columns = exported(session, ev)
    assert columns == ["value", "scope/new/Adagrad"]
    assert found[5][0][DIM:] == [6.0] * DIM and found[1][0][DIM:] == [3.0] * DIM


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("dim", [2, 7])
def test_resize_cuts_or_fills_from_the_initializer(tmp_path, parts, dim):
    slots = [("ev/Adagrad", DIM, 0.25), ("ev/step", 1, 0.0)]
    path = written(tmp_path / "model", rows_of(range(50), slots=slots), partitions=2)
    with tf.Graph().as_default(), v1.Session() as session:
        ev = make(dim=dim, parts=parts)
        initial = tf.nn.embedding_lookup(ev, np.arange(50))
        session.run(v1.global_variables_initializer())
        before = session.run(initial)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"dim {dim}, found dim {DIM}"):
            session.run(ev.restore_from(path))
        np.testing.assert_array_equal(session.run(initial), before)
        session.run(ev.restore_from(path, resize=True))
        found, columns = exported(session, ev)
    assert columns == ["value", "ev/Adagrad", "ev/step"] and len(found) == 50
    kept = min(dim, DIM)
    for key in range(50):
        row = found[key][0]
        assert row[:kept] == [key + j / 16 for j in range(kept)]
        np.testing.assert_array_equal(np.float32(row[kept:dim]), before[key, kept:])
        assert row[dim : 2 * dim] == [key + 1.0] * kept + [0.25] * (dim - kept)
        assert row[2 * dim :] == [key + 2.0]


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("how", ["Saver", "IncrementalSaver"])
def test_a_saver_resizes_only_when_it_was_built_to(tmp_path, parts, how):
    path = written(tmp_path / "model", rows_of(range(50)), partitions=2)
    found = []
    for resize in (False, True):
        with tf.Graph().as_default(), v1.Session() as session:
            ev = make(dim=7, parts=parts)
            block = tf_multitier.train.resize_on_restore if resize else contextlib.nullcontext
            with block():
                saver = getattr(
                    tf_multitier.train if how == "IncrementalSaver" else v1.train, how
                )()
            session.run(v1.global_variables_initializer())
            if not resize:
                message = "expected dim 7, found dim 4 .*resize=True.*resize_on_restore"
                with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                    saver.restore(session, path)
                continue
            saver.restore(session, path)
            found.append(exported(session, ev)[0])
            session.run(ev.restore_from(path, resize=True))
            found.append(exported(session, ev)[0])
    assert found[0] == found[1] and len(found[0]) == 50


def test_a_slot_of_another_dim_is_refused(tmp_path):
    path = written(tmp_path / "model", rows_of(range(9), slots=[("ev/Adagrad", 3, 0.1)]))
    with tf.Graph().as_default():
        ev = make(dim=DIM)
        minimize(ev, v1.train.AdagradOptimizer(0.1))
        with initialized_session() as session:
            message = "slot 'ev/Adagrad': expected dim 4, found dim 3 in checkpoint .*model"
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                session.run(ev.restore_from(path))
            assert session.run(ev.total_count()) == 0


@pytest.mark.parametrize("strategy", [None, "LRU", "LFU"])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_hottest_rows_come_first_into_the_first_tier(tmp_path, strategy, parts):
    frequencies = np.random.default_rng(0).permutation(4000) + 1
    path = written(tmp_path / "model", rows_of(range(4000), frequencies=frequencies), partitions=3)
    option = tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption(
            "DRAM_SSDHASH",
            str(tmp_path / "ssd"),
            storage_size=[500 * 16 // parts],
            cache_strategy=strategy,
        )
    )
    with tf.Graph().as_default(), v1.Session() as session:
        ev = make(dim=DIM, parts=parts, ev_option=option)
        session.run(v1.global_variables_initializer())
        session.run(ev.restore_from(path))
        session.run(ev.drain())
        tiers = session.run(ev.lookup_tier(np.arange(4000)))
        assert session.run(ev.get_frequency(np.arange(4000))).tolist() == frequencies.tolist()
    above = frequencies[tiers == 0]
    assert 490 <= len(above) <= 500
    assert (
        above > 3000
    ).all()  # each part has its own 250 rows: the hottest 500 are not cut evenly
    assert parts > 1 or set(np.arange(3520, 4001)) <= set(above.tolist())


@pytest.mark.parametrize(
    "hot, cold, passes", [(1000, 1, 3), (400, 1, 3), (1, 1, 2)], ids=["too-many", "fit", "equal"]
)
def test_of_rows_with_one_frequency_as_many_as_fit_come_into_the_first_tier(
    tmp_path, hot, cold, passes
):
    """Also where the rows of the highest frequency do not fit. Rows of one frequency are read twice: counted, and imported."""
    frequencies = np.random.default_rng(0).permutation(np.repeat([7, cold], [hot, 4000 - hot]))
    frequencies = np.where(hot == 1, 1, frequencies)
    path = written(tmp_path / "model", rows_of(range(4000), frequencies=frequencies))
    option = tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption(
            "DRAM_SSDHASH",
            str(tmp_path / "ssd"),
            storage_size=[500 * 16],
            cache_strategy="LRU",
        )
    )
    state = process_state.ProcessState()
    with tf.Graph().as_default(), v1.Session() as session:
        ev = make(dim=DIM, ev_option=option)
        session.run(v1.global_variables_initializer())
        before = state.read()["restored_rows"]["done"]
        session.run(ev.restore_from(path))
        assert state.read()["restored_rows"]["done"] - before == passes * 4000
        session.run(ev.drain())
        tiers = session.run(ev.lookup_tier(np.arange(4000)))
        assert session.run(ev.get_frequency(np.arange(4000))).tolist() == frequencies.tolist()
    above = frequencies[tiers == 0]
    assert 475 <= len(above) <= 500
    assert np.count_nonzero(above == 7) == (len(above) if hot == 1000 else 400 if hot == 400 else 0)


def test_admission_frequencies_and_versions_survive_into_lower_tiers(tmp_path):
    rows = rows_of(range(300), frequencies=np.arange(300))
    rows.counted_keys = np.arange(1000, 1010)
    rows.counted_frequencies = np.full(10, 3)
    rows.counted_versions = np.full(10, 7)
    path = written(tmp_path / "model", rows)
    option = tf_multitier.EmbeddingVariableOption(
        filter_option=tf_multitier.CounterFilter(5),
        storage_option=tf_multitier.StorageOption(
            "DRAM_SSDHASH", str(tmp_path / "ssd"), storage_size=[64 * 16]
        ),
    )
    with tf.Graph().as_default(), v1.Session() as session:
        ev = make(dim=DIM, ev_option=option)
        session.run(v1.global_variables_initializer())
        session.run(ev.restore_from(path))
        found, _ = exported(session, ev)
        counted = session.run(ev.export_rows()).counted
    assert [found[k][1:] for k in range(300)] == [(k, k) for k in range(300)]
    assert counted.tolist() == [[k, 3, 7] for k in range(1000, 1010)]


class Trained:
    """A trained variable of two parts, whose ops are built once."""

    def __init__(self, session, ev):
        self._session = session
        self._path = v1.placeholder(tf.string, [])
        self._restore = ev.restore_from(self._path)
        self._export = [part.export_rows() for part in ev.parts]

    def restore(self, path):
        self._session.run(self._restore, {self._path: path})

    def content(self):
        return [[field.tolist() for field in part[1:]] for part in self._session.run(self._export)]

    def refuses(self, path, error, *words):
        before = self.content()
        with pytest.raises(error) as caught:
            self.restore(path)
        assert all(word in str(caught.value) for word in words), str(caught.value)
        assert self.content() == before


@pytest.fixture
def trained():
    with tf.Graph().as_default():
        ev = make(dim=DIM, parts=2)
        train = minimize(ev, v1.train.AdagradOptimizer(0.1), range(20))
        with initialized_session() as session:
            session.run(train)
            yield Trained(session, ev)


def part_files(path):
    saved = checkpoint.load(path)
    return [part.path for part in next(iter(saved.tables.values())).parts]


def test_files_of_parts_that_were_swapped_are_found(tmp_path, trained):
    keys = engine_keys_of_equal_parts(20)
    path = written(tmp_path / "model", rows_of(keys), partitions=2)
    first, second = part_files(path)
    os.rename(first, first + ".moved")
    os.rename(second, first)
    os.rename(first + ".moved", second)
    trained.refuses(
        path, tf.errors.DataLossError, f"checkpoint part {path}", "expected keys of part"
    )


def engine_keys_of_equal_parts(n):
    """n keys of each of two parts."""
    from tf_multitier import _engine

    owners = _engine.partitions_of(np.arange(10 * n, dtype=np.int64), 2)
    return np.concatenate([np.flatnonzero(np.asarray(owners) == part)[:n] for part in range(2)])


def test_a_file_of_another_variable_is_found(tmp_path, trained):
    path = written(tmp_path / "model", rows_of(range(20)))
    other = written(tmp_path / "other", rows_of(range(20), slots=[("ev/Adagrad", DIM, 0.1)]))
    shutil.copy(part_files(other)[0], part_files(path)[0])
    trained.refuses(path, tf.errors.DataLossError, part_files(path)[0])


def test_every_cut_and_every_flipped_bit_of_a_part_file_is_found(tmp_path, trained):
    path = written(tmp_path / "model", rows_of(range(20)))
    [file] = part_files(path)
    good = open(file, "rb").read()
    for at in range(0, len(good), 7):
        open(file, "wb").write(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        trained.refuses(path, tf.errors.DataLossError, file)
        open(file, "wb").write(good[:at])
        trained.refuses(path, tf.errors.DataLossError, file)
    os.remove(file)
    trained.refuses(path, tf.errors.NotFoundError, file)


def test_a_flipped_bit_of_tensorflows_files_never_gives_other_rows(tmp_path, trained):
    path = written(tmp_path / "model", rows_of(range(20)))
    trained.restore(path)
    expected, errors = trained.content(), 0
    for suffix, step in ((".index", 3), (".data-00000-of-00001", 37)):
        file = path + suffix
        good = open(file, "rb").read()
        for at in range(0, len(good), step):
            open(file, "wb").write(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
            try:
                trained.restore(path)
            except tf.errors.OpError as error:
                errors += 1
                assert path in str(error), str(error)
            assert trained.content() == expected
        open(file, "wb").write(good)
    assert errors > 20


def test_a_key_that_comes_twice_is_found(tmp_path, trained, monkeypatch):
    from tf_multitier.checkpoint import writer

    monkeypatch.setattr(writer, "_check_distinct", lambda *unused: None)
    path = written(tmp_path / "model", rows_of([1, 2, 3, 2]))
    trained.refuses(path, tf.errors.DataLossError, path, "distinct keys, found")


@pytest.mark.parametrize("by_saver", [False, True])
@pytest.mark.parametrize("sharded", [False, True])
def test_damage_of_one_part_leaves_all_parts_as_they_were(tmp_path, by_saver, sharded):
    keys = engine_keys_of_equal_parts(20)
    path = written(tmp_path / "model", rows_of(keys), partitions=2)
    with tf.Graph().as_default():
        ev = make(dim=DIM, parts=2)
        saver = v1.train.Saver(sharded=sharded)
        train = minimize(ev, v1.train.GradientDescentOptimizer(0.1), range(20))
        with initialized_session() as session:
            session.run(train)
            before = exported(session, ev)
            good = [open(file, "rb").read() for file in part_files(path)]
            for part, file in enumerate(part_files(path)):
                open(file, "wb").write(good[part][:-1] + b"?")
                with pytest.raises(tf.errors.DataLossError, match=os.path.basename(file)):
                    if by_saver:
                        saver.restore(session, path)
                    else:
                        session.run(ev.restore_from(path))
                assert exported(session, ev) == before
                open(file, "wb").write(good[part])
            saver.restore(session, path)
            assert sorted(exported(session, ev)[0]) == sorted(keys.tolist())


def test_a_manifest_that_is_no_json_names_checkpoint_and_tensor(tmp_path, trained):
    path = str(tmp_path / "model")
    with checkpoint.Writer(path) as writer:
        writer.add_tensor("ev/part_0-of-1/manifest", np.array("{", object))
        writer.add_tensor("ev/partition_of_bucket", np.zeros(1024, np.int32))
    trained.refuses(path, tf.errors.DataLossError, path, "ev/part_0-of-1/manifest")


@pytest.mark.parametrize("rows,shown_rows", [(7, b"7.00/7.00"), (600_000, b"600k/600k")])
def test_a_restore_shows_a_bar_on_a_terminal(tmp_path, rows, shown_rows):
    path = written(tmp_path / "model", rows_of(range(rows), dim=16))
    program = f"""
import tensorflow as tf, tf_multitier
tf.compat.v1.disable_eager_execution()
ev = tf_multitier.get_embedding_variable("ev", 16)
with tf.compat.v1.Session() as session, tf_multitier.checkpoint.progress():
    session.run(ev.restore_from({path!r}))
"""
    terminal, ours = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    with open(os.devnull, "r+b") as nothing, os.fdopen(ours, "wb") as errors:
        streams = [nothing, nothing, errors]
        assert forks.Program(["-c", program], None, None, streams).wait(300) == 0
    shown = b""
    with contextlib.suppress(OSError):  # what Linux says at the end
        while block := os.read(terminal, 4096):
            shown += block
    assert b"restore: 100%" in shown and shown_rows in shown, shown
    quiet = forks.run(["-c", program])
    assert quiet.returncode == 0 and "restore:" not in quiet.stderr

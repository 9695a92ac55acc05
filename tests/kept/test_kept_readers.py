"""Read-only variables that use kept rows in place: many processes, one copy of the rows on the disk."""

import hashlib
import os
import shutil
import signal
import textwrap

import forks
import numpy as np
import pytest
import tensorflow as tf
from kept_util import instances
from paths import environment

import tf_multitier
from worlds import needs_eager

DIM = 4
KEYS = np.arange(500)
ABSENT = np.arange(1000, 1010)


def build(path, kind="DRAM_SSDHASH", parts=None, dim=DIM, **storage):
    """A variable that keeps its rows, and a lookup of fed keys."""
    sizes = [4096] if kind.startswith("DRAM") else None
    option = tf_multitier.EmbeddingVariableOption(
        storage_option=tf_multitier.StorageOption(kind, str(path), sizes, keep=True, **storage)
    )
    partitioner = None if parts is None else tf.compat.v1.fixed_size_partitioner(parts)
    ev = tf_multitier.get_embedding_variable(
        "ev",
        embedding_dim=dim,
        initializer=tf.compat.v1.random_uniform_initializer(seed=3),
        partitioner=partitioner,
        ev_option=option,
    )
    keys = tf.compat.v1.placeholder(tf.int64, [None])
    return ev, keys, tf.nn.embedding_lookup(ev, keys)


class Trainer:
    """A session that trains. On exit it closes the rows."""

    def __init__(self, path, optimizer=tf.compat.v1.train.AdagradOptimizer, **options):
        with tf.Graph().as_default() as graph:
            self.ev, self.keys, self.rows = build(path, **options)
            self.train = optimizer(0.1).minimize(tf.reduce_sum(self.rows * self.rows))
            self.saver = tf.compat.v1.train.Saver()
            self.init = tf.compat.v1.global_variables_initializer()
        self.session = tf.compat.v1.Session(graph=graph)

    def __enter__(self):
        self.session.run(self.init)
        return self

    def __exit__(self, *_):
        self.session.close()
        del self.session

    def run(self, what, keys=KEYS):
        return self.session.run(what, {self.keys: keys})

    def save(self, prefix):
        with self.session.graph.as_default():
            return self.saver.save(self.session, str(prefix))


class Reader:
    """A session whose variable reads the rows in place."""

    def __init__(self, path, **options):
        with tf.Graph().as_default() as graph, tf_multitier.serving.read_only(in_place=True):
            self.ev, self.keys, self.rows = build(path, **options)
            self.saver = tf.compat.v1.train.Saver()
            self.init = tf.compat.v1.global_variables_initializer()
            self.count = self.ev.total_count()
            self.tiers = self.ev.lookup_tier(self.keys)
        self.session = tf.compat.v1.Session(graph=graph)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session.close()
        del self.session

    def open(self):
        self.session.run(self.init)
        return self

    def restore(self, prefix):
        with self.session.graph.as_default():
            self.saver.restore(self.session, prefix)
        return self

    def run(self, what, keys=KEYS):
        return self.session.run(what, {self.keys: keys})


def kept_rows(path, steps=3, **options):
    """Trains and closes. Returns the rows of KEYS and ABSENT."""
    with Trainer(path, **options) as trainer:
        for n in range(steps):
            trainer.run(trainer.train, KEYS[n * 50 :])
        trainer.run(trainer.train)
        return trainer.run(trainer.rows, np.append(KEYS, ABSENT))


def files(path):
    """{name: (digest, time of the last change)} of all files below a path."""
    found = {}
    for directory, _, names in os.walk(path):
        found[directory] = os.stat(directory).st_mtime_ns
        for name in names:
            file = os.path.join(directory, name)
            with open(file, "rb") as opened:
                digest = hashlib.sha256(opened.read()).hexdigest()
            found[file] = digest, os.stat(file).st_mtime_ns
    return found


READER = textwrap.dedent(
    """
    import os, signal, sys
    import numpy as np
    import test_kept_readers as t
    with t.Reader(sys.argv[1]) as reader:
        rows = reader.open().run(reader.rows, np.append(t.KEYS, t.ABSENT))
        np.save(sys.argv[2], rows)
        print("opened", flush=True)
        if sys.stdin.readline() == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        np.testing.assert_array_equal(
            reader.run(reader.rows, np.append(t.KEYS, t.ABSENT)), rows
        )
    """
)


def start_reader(path, rows, start=forks.start):
    return start(["-c", READER, path, rows], env=environment())


def wait_until_open(process):
    assert "opened" in process.stdout.readline()


@pytest.mark.parametrize("kind", ["SSDHASH", "DRAM_SSDHASH"])
@pytest.mark.parametrize("parts", [None, 3])
def test_a_reader_finds_the_rows_and_changes_no_file(tmp_path, kind, parts):
    trained = kept_rows(tmp_path / "rows", kind=kind, parts=parts)
    before = files(tmp_path / "rows")
    with Reader(tmp_path / "rows", kind=kind, parts=parts) as reader:
        reader.open()
        for _ in range(3):
            np.testing.assert_array_equal(reader.run(reader.rows, np.append(KEYS, ABSENT)), trained)
        assert reader.session.run(reader.count) == len(KEYS)
        assert reader.ev.read_only
    assert files(tmp_path / "rows") == before


def test_two_processes_read_one_directory_at_once(tmp_path):
    trained = kept_rows(tmp_path / "rows")
    before = files(tmp_path / "rows")
    readers = [start_reader(tmp_path / "rows", tmp_path / f"{i}.npy") for i in range(2)]
    for reader in readers:
        wait_until_open(reader)
    assert files(tmp_path / "rows") == before
    for i, reader in enumerate(readers):
        reader.communicate("\n")
        assert reader.returncode == 0
        np.testing.assert_array_equal(np.load(tmp_path / f"{i}.npy"), trained)
    assert files(tmp_path / "rows") == before
    with Trainer(tmp_path / "rows") as trainer:
        np.testing.assert_array_equal(trainer.run(trainer.rows), trained[: len(KEYS)])


def test_a_reader_that_is_killed_leaves_no_trace(tmp_path):
    trained = kept_rows(tmp_path / "rows")
    before = files(tmp_path / "rows")
    reader = start_reader(tmp_path / "rows", tmp_path / "rows.npy")
    wait_until_open(reader)
    reader.communicate("kill")
    assert reader.returncode == -signal.SIGKILL
    assert files(tmp_path / "rows") == before
    with Trainer(tmp_path / "rows") as trainer:
        np.testing.assert_array_equal(trainer.run(trainer.rows), trained[: len(KEYS)])


def test_readers_go_on_with_their_rows_while_a_trainer_changes_them(tmp_path):
    trained = kept_rows(tmp_path / "rows")
    reader = start_reader(tmp_path / "rows", tmp_path / "rows.npy")
    wait_until_open(reader)
    with Reader(tmp_path / "rows") as here:
        here.open()
        with Trainer(tmp_path / "rows") as trainer:
            for _ in range(30):
                trainer.run(trainer.train, np.arange(2000))
            with trainer.session.graph.as_default():
                trainer.session.run(trainer.ev.compact())
                older = trainer.save(tmp_path / "model")
                trainer.run(trainer.train)
                trainer.saver.restore(trainer.session, older)  # into another directory
            newer = trainer.run(trainer.rows)
        np.testing.assert_array_equal(here.run(here.rows, np.append(KEYS, ABSENT)), trained)
    reader.communicate("\n")
    assert reader.returncode == 0
    with Reader(tmp_path / "rows") as again:
        np.testing.assert_array_equal(again.open().run(again.rows), newer)


def test_rows_that_a_trainer_uses_are_refused_with_its_pid(tmp_path):
    kept_rows(tmp_path / "rows")
    with Trainer(tmp_path / "rows") as trainer, Reader(tmp_path / "rows") as reader:
        with pytest.raises(
            tf.errors.FailedPreconditionError, match=f"in use by process {os.getpid()}"
        ):
            reader.open()
        trainer.run(trainer.train)
    with Reader(tmp_path / "rows") as reader:
        assert reader.open().session.run(reader.count) == len(KEYS)


TRAINER = textwrap.dedent(
    """
    import sys
    import test_kept_readers as t
    with t.Trainer(sys.argv[1]) as trainer:
        trainer.run(trainer.train)
        print("trained", flush=True)
        sys.stdin.readline()
    """
)


def test_rows_of_another_process_that_trains_are_refused_then_and_after_it_is_killed(tmp_path):
    kept_rows(tmp_path / "rows")
    with forks.start(["-c", TRAINER, tmp_path / "rows"], env=environment()) as process:
        assert "trained" in process.stdout.readline()
        with Reader(tmp_path / "rows") as reader:
            with pytest.raises(tf.errors.FailedPreconditionError, match=f"process {process.pid}"):
                reader.open()
    with Reader(tmp_path / "rows") as reader:
        with pytest.raises(
            tf.errors.FailedPreconditionError, match="expected rows that were closed"
        ):
            reader.open()


def test_a_reader_takes_no_lock_that_keeps_a_trainer_of_its_process_away(tmp_path):
    kept_rows(tmp_path / "rows")
    with Reader(tmp_path / "rows") as reader:
        reader.open()
        with Trainer(tmp_path / "rows") as trainer:
            trainer.run(trainer.train)
            with Reader(tmp_path / "rows") as second:
                with pytest.raises(tf.errors.FailedPreconditionError, match="in use"):
                    second.open()
            # Looking at the lock has not released it.
            refused = start_reader(tmp_path / "rows", tmp_path / "rows.npy", start=forks.run)
            assert "in use" in refused.stderr and refused.returncode != 0


def test_a_restore_takes_the_rows_of_the_checkpoint_alone(tmp_path):
    with Trainer(tmp_path / "rows") as trainer:
        trainer.run(trainer.train)
        older = trainer.save(tmp_path / "older")
        trainer.run(trainer.train)
        saved = trainer.save(tmp_path / "model")
        trained = trainer.run(trainer.rows)
    before = files(tmp_path / "rows")
    with Reader(tmp_path / "rows") as reader:
        np.testing.assert_array_equal(reader.restore(saved).run(reader.rows), trained)
        with pytest.raises(tf.errors.FailedPreconditionError, match="those of another checkpoint"):
            reader.restore(older)
        np.testing.assert_array_equal(reader.run(reader.rows), trained)
    assert files(tmp_path / "rows") == before
    with Trainer(tmp_path / "rows") as trainer:
        trainer.run(trainer.train)
    with Reader(tmp_path / "rows") as reader:
        with pytest.raises(tf.errors.FailedPreconditionError, match="changed after the last save"):
            reader.restore(saved)


def test_training_and_changes_are_refused(tmp_path):
    kept_rows(tmp_path / "rows")
    with Reader(tmp_path / "rows") as reader:
        with reader.session.graph.as_default():
            optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
            with pytest.raises(ValueError, match="read_only"):
                optimizer.minimize(tf.reduce_sum(reader.rows), var_list=[reader.ev])
            remove, compact = reader.ev.remove(KEYS), reader.ev.compact()
        reader.open()
        with pytest.raises(tf.errors.FailedPreconditionError, match="read-only"):
            reader.session.run(remove)
        with pytest.raises(tf.errors.FailedPreconditionError, match="read-only"):
            reader.session.run(compact)


def test_rows_in_memory_have_no_slots(tmp_path):
    kept_rows(tmp_path / "rows", optimizer=tf.compat.v1.train.AdamOptimizer)
    with Reader(tmp_path / "rows") as reader:
        reader.open()
        for _ in range(2):  # 256 rows of 16 bytes fit into 4096 bytes
            reader.run(reader.rows, KEYS[:256])
        assert (reader.run(reader.tiers, KEYS[:256]) == 0).all()


def test_sessions_of_a_process_share_the_table(tmp_path):
    kept_rows(tmp_path / "rows")
    with Reader(tmp_path / "rows") as one, Reader(tmp_path / "rows") as two:
        one.open()
        two.open()
        assert [t.users for t in tf_multitier.serving.shared_tables() if t.variable == "ev"] == [2]


def test_a_directory_without_rows_is_refused(tmp_path):
    with Reader(tmp_path / "rows") as reader:
        with pytest.raises(tf.errors.FailedPreconditionError, match="expected kept rows"):
            reader.open()
    assert not os.path.exists(tmp_path / "rows")


@pytest.mark.parametrize("options", [{"dim": 8}, {"parts": 2}])
def test_rows_of_another_shape_are_refused(tmp_path, options):
    kept_rows(tmp_path / "rows", parts=None if "dim" in options else 3)
    before = files(tmp_path / "rows")
    with Reader(tmp_path / "rows", **options) as reader:
        with pytest.raises(tf.errors.FailedPreconditionError, match="expected (dim 8|part . of 2)"):
            reader.open()
    assert files(tmp_path / "rows") == before


def test_files_that_processes_cannot_share_are_refused(tmp_path):
    kind = "DRAM_PMEM_SSDHASH"
    kept_rows(tmp_path / "rows", kind=kind)
    before = files(tmp_path / "rows")
    with pytest.raises(NotImplementedError, match=f"'ev': in_place: expected .* found {kind}"):
        Reader(tmp_path / "rows", kind=kind)
    assert files(tmp_path / "rows") == before


@pytest.mark.parametrize("damage", ["delete", "cut", "list", "facts"])
def test_lost_and_damaged_files_are_errors_with_their_names(tmp_path, damage):
    kept_rows(tmp_path / "rows")
    names = {"list": "ssd.list", "facts": "instance.variable"}
    found = [
        os.path.join(directory, name)
        for directory, _, all_names in os.walk(tmp_path / "rows")
        for name in all_names
        if (name == names[damage] if damage in names else name.startswith("ssd-"))
    ]
    file = found[0]
    if damage in ("delete", "list"):
        os.remove(file)
    else:
        os.truncate(file, os.path.getsize(file) // 2)
    before = files(tmp_path / "rows")
    with Reader(tmp_path / "rows") as reader:
        with pytest.raises(tf.errors.DataLossError, match=os.path.basename(file)):
            reader.open()
    assert files(tmp_path / "rows") == before


def test_a_damaged_row_is_an_error_for_its_readers_alone(tmp_path):
    trained = kept_rows(tmp_path / "rows", kind="SSDHASH")
    file = max(
        (os.path.join(d, n) for d, _, names in os.walk(tmp_path / "rows") for n in names),
        key=os.path.getsize,
    )
    with open(file, "r+b") as opened:
        bytes_ = opened.read()
        at = bytes_.rindex(trained[7].tobytes())
        opened.seek(at)
        opened.write(b"\xff")
    before = files(tmp_path / "rows")
    with Reader(tmp_path / "rows", kind="SSDHASH") as reader:
        reader.open()
        with pytest.raises(tf.errors.DataLossError, match="key 7"):
            reader.run(reader.rows)
        others = np.delete(KEYS, 7)
        np.testing.assert_array_equal(reader.run(reader.rows, others), trained[others])
    for on_corruption in "drop", "reinit":
        with Reader(tmp_path / "rows", kind="SSDHASH", on_corruption=on_corruption) as reader:
            reader.open().run(reader.rows)
            np.testing.assert_array_equal(reader.run(reader.rows, others), trained[others])
    assert files(tmp_path / "rows") == before


def test_variables_without_kept_rows_are_restored_as_before(tmp_path):
    def model(path):
        option = tf_multitier.EmbeddingVariableOption(
            storage_option=tf_multitier.StorageOption("DRAM_SSDHASH", str(path), [4096])
        )
        return tf_multitier.get_embedding_variable("plain", DIM, ev_option=option)

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ev = model(tmp_path / "rows")
        loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, tf.constant(KEYS)))
        train = tf.compat.v1.train.GradientDescentOptimizer(1.0).minimize(loss)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train)
        saved = tf.compat.v1.train.Saver().save(session, str(tmp_path / "model"))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with tf_multitier.serving.read_only(in_place=True):
            ev = model(tmp_path / "rows")
        tf.compat.v1.train.Saver().restore(session, saved)
        assert session.run(ev.total_count()) == len(KEYS)


@needs_eager
def test_eager_variables_read_in_place(tmp_path):
    trained = kept_rows(tmp_path / "rows")
    with tf_multitier.serving.read_only(in_place=True):
        ev = tf_multitier.get_embedding_variable(
            "ev",
            DIM,
            ev_option=tf_multitier.EmbeddingVariableOption(
                storage_option=tf_multitier.StorageOption(
                    "DRAM_SSDHASH", str(tmp_path / "rows"), [4096], keep=True
                )
            ),
        )
    np.testing.assert_array_equal(tf.nn.embedding_lookup(ev, KEYS), trained[: len(KEYS)])


def test_in_place_must_be_a_bool():
    with pytest.raises(TypeError, match="in_place: expected True or False, found 2"):
        with tf_multitier.serving.read_only(in_place=2):
            pass


def test_a_damaged_older_directory_does_not_hide_the_rows_of_the_checkpoint(tmp_path):
    with Trainer(tmp_path / "rows") as trainer:
        trainer.run(trainer.train)
        saved = trainer.save(tmp_path / "model")
        trained = trainer.run(trainer.rows)
    (instance,) = instances(tmp_path / "rows")
    newest = tmp_path / "rows" / instance
    older = newest.with_name("instance-0")
    shutil.copytree(newest, older)
    facts = bytearray((older / "instance.variable").read_bytes())
    facts[-5] ^= 1
    (older / "instance.variable").write_bytes(facts)
    with Reader(tmp_path / "rows") as reader:
        np.testing.assert_array_equal(reader.restore(saved).run(reader.rows), trained)
    with Reader(tmp_path / "rows") as reader:  # which one is newer is not known
        with pytest.raises(tf.errors.DataLossError, match=r"instance-0/instance\.variable"):
            reader.open()


def test_a_delta_is_not_read_in_place(tmp_path):
    with Trainer(tmp_path / "rows") as trainer:
        with trainer.session.graph.as_default():
            saver = tf_multitier.train.IncrementalSaver()
            trainer.run(trainer.train)
            saver.save(trainer.session, str(tmp_path / "model"))
            trainer.run(trainer.train, KEYS[:50])
            delta = saver.save_incremental(trainer.session, str(tmp_path / "model"))
    before = files(tmp_path / "rows")
    with Reader(tmp_path / "rows") as reader:
        with reader.session.graph.as_default():
            restore = reader.ev.restore_from(delta)
        with pytest.raises(tf.errors.FailedPreconditionError, match="in place.*or deltas"):
            reader.session.run(restore)
    assert before == files(tmp_path / "rows")

"""Saves that link the segments of an SSDHASH tier in place of writing their rows: docs/formats/table_part.md."""

import glob
import json
import os
import shutil
import struct

import forks
import numpy as np
import pytest
import tensorflow as tf
from lives import KILLS
from lives import Lives
from paths import environment

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import engine
from tf_multitier.inspect import __main__ as inspect

v1 = tf.compat.v1
DIM = 16
KEYS = np.arange(30_000)


def storage(path, kind="DRAM_SSDHASH", **more):
    sizes = [2000 * DIM * 8] * kind.count("_")
    return tf_multitier.StorageOption(kind, str(path) if path else None, sizes, **more)


class Program:
    """A session of its own with one variable, whose rows are below DRAM except for 2,000."""

    def __init__(self, path, kind="DRAM_SSDHASH", parts=1, optimizer=None, saver=None, **more):
        self.graph = tf.Graph()
        with self.graph.as_default():
            option = tf_multitier.EmbeddingVariableOption(
                storage_option=storage(path, kind, **more) if kind != "DRAM" else None
            )
            self.ev = tf_multitier.get_embedding_variable(
                "ev",
                DIM,
                initializer=v1.random_uniform_initializer(-1, 1, seed=3),
                partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
                ev_option=option,
            )
            self.keys = v1.placeholder(tf.int64, [None])
            self.rows = tf.nn.embedding_lookup(self.ev, self.keys)
            step = v1.train.get_or_create_global_step()
            optimizer = optimizer or v1.train.AdagradOptimizer(0.1)
            self.train = optimizer.minimize(tf.reduce_sum(self.rows**2), step)
            self.remove = self.ev.remove(self.keys)
            self.compact = [part.compact() for part in self.ev.parts]
            self.exports = [part.export_rows() for part in self.ev.parts]
            self.stats = [part.stats() for part in self.ev.parts]
            self.saver = saver() if saver else v1.train.Saver(max_to_keep=1)
            self.init = v1.global_variables_initializer()
        self.session = v1.Session(graph=self.graph)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session.close()
        del self.session

    def run(self, what, keys=()):
        return self.session.run(what, {self.keys: np.asarray(keys, np.int64)})

    def fill(self):
        self.run(self.init)
        for keys in np.split(KEYS, 10):
            self.run(self.train, keys)
        return self

    def save(self, prefix, **more):
        with self.graph.as_default():
            return self.saver.save(self.session, str(prefix), **more)

    def restore(self, prefix):
        with self.graph.as_default():
            self.saver.restore(self.session, str(prefix))

    def linked_bytes(self):
        return sum(part["linked_bytes"] for part in self.session.run(self.stats))

    def content(self):
        """{key: (frequency, version, row)} of all parts."""
        found = {}
        for rows in self.session.run(self.exports):
            facts = zip(rows.frequencies.tolist(), rows.versions.tolist(), rows.rows.tolist())
            found |= dict(zip(rows.keys.tolist(), facts))
        return found


def linked_files(prefix):
    """The linked files of a checkpoint, from its manifests."""
    return [path for part in checkpoint.load(prefix).tables["ev"].parts for path in part.linked]


def saved_rows(prefix):
    rows = checkpoint.load(prefix).tables["ev"].read()
    facts = zip(rows.frequencies.tolist(), rows.versions.tolist(), rows.data.tolist())
    return dict(zip(rows.keys.tolist(), facts))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint with linked files, whose table is deleted; and its content."""
    path = tmp_path_factory.mktemp("linked")
    with Program(path / "rows").fill() as program:
        content = program.content()
        prefix = program.save(path / "model")
    assert linked_files(prefix)
    return prefix, content


def copied(prefix, target):
    for path in glob.glob(prefix + ".*"):
        shutil.copy(path, target)
    return str(target / os.path.basename(prefix))


@pytest.mark.parametrize(
    "kind, parts", [("DRAM_SSDHASH", 2), ("SSDHASH", 1), ("HBM_DRAM_SSDHASH", 1)]
)
def test_segments_are_linked_and_the_checkpoint_is_the_table_of_its_moment(
    tmp_path, kind, parts, emulated_device
):
    with Program(tmp_path / "rows", kind, parts).fill() as program:
        program.run(program.rows, KEYS[3000:4000])  # clean copies come up
        content = program.content()
        prefix = program.save(tmp_path / "model")
        files = linked_files(prefix)
        program.content()  # an export is no save
        assert program.linked_bytes() == sum(map(os.path.getsize, files)) > 1 << 20
        assert all(os.stat(path).st_nlink == 2 for path in files)
        linked = [json.loads(part.manifest) for part in checkpoint.load(prefix).tables["ev"].parts]
        assert sum(one["rows"] for part in linked for one in part["linked"]) > len(KEYS) // 2
        # The table goes on: rows change, go, and move to other segments.
        for keys in np.split(KEYS, 10)[:3]:
            program.run(program.train, keys)
        program.run(program.remove, KEYS[::2])
        program.run(program.compact)
        assert saved_rows(prefix) == content
    assert not glob.glob(str(tmp_path / "rows" / "*" / "*" / "*"))
    assert saved_rows(prefix) == content


@pytest.mark.parametrize(
    "kind, parts", [("DRAM", 1), ("DRAM_SSDHASH", 3), ("DRAM_LEVELDB", 1), ("SSDHASH", 2)]
)
def test_linked_rows_are_restored_into_other_tiers_and_parts(tmp_path, saved, kind, parts):
    prefix, content = saved
    with Program(tmp_path / "other", kind, parts) as program:
        program.restore(prefix)
        assert program.content() == content


def test_linked_rows_are_restored_for_another_optimizer(tmp_path, saved):
    prefix, content = saved
    with Program(tmp_path / "other", optimizer=v1.train.FtrlOptimizer(0.1)) as program:
        program.restore(prefix)
        found = program.content()
    assert found.keys() == content.keys()
    for key in (0, 12_345, 29_999):
        assert found[key][2][:DIM] == content[key][2][:DIM]


def test_the_same_rows_with_and_without_links(tmp_path, monkeypatch):
    with Program(tmp_path / "rows").fill() as program:
        program.saver = None
        with program.graph.as_default():
            program.saver = v1.train.Saver(max_to_keep=5)
        prefix = program.save(tmp_path / "linked")
        monkeypatch.setenv("TF_MULTITIER_LINKED_SAVES", "0")
        plain = program.save(tmp_path / "plain")
        assert linked_files(plain) == [] and program.linked_bytes() == 0
        monkeypatch.setenv("TF_MULTITIER_LINKED_SAVES", "maybe")
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match="TF_MULTITIER_LINKED_SAVES: expected 0 or 1, found 'maybe'",
        ):
            program.save(tmp_path / "bad")
    manifest = json.loads(checkpoint.load(plain).tables["ev"].parts[0].manifest)
    assert "linked" not in manifest
    assert saved_rows(prefix) == saved_rows(plain)
    assert not glob.glob(str(tmp_path / "bad.*"))


def test_another_file_system_gets_all_rows_written(tmp_path):
    memory = "/dev/shm"
    if not os.path.isdir(memory) or os.stat(memory).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("no second file system")
    with Program(tmp_path / "rows").fill() as program:
        content = program.content()
        target = f"{memory}/tf_multitier_{os.getpid()}"
        os.mkdir(target)
        try:
            prefix = program.save(target + "/model")
            assert linked_files(prefix) == [] and program.linked_bytes() == 0
            assert saved_rows(prefix) == content
        finally:
            shutil.rmtree(target)


def test_rotation_and_saves_of_the_same_prefix_leave_no_links(tmp_path):
    with Program(tmp_path / "rows").fill() as program:
        for step in range(3):
            prefix = program.save(tmp_path / "model", global_step=step)
            program.run(program.train, KEYS[:100])
        assert linked_files(prefix)
        names = {os.path.basename(path).split(".")[0] for path in glob.glob(f"{tmp_path}/model*")}
        assert names == {"model-2"}
        before = program.content()
        for _ in range(2):
            prefix = program.save(tmp_path / "other")
        assert saved_rows(prefix) == before
        program.save(tmp_path / "last")
    assert not glob.glob(f"{tmp_path}/model*") and not glob.glob(f"{tmp_path}/other*")


def test_saves_of_one_prefix_keep_two_sets_of_files_at_most(tmp_path, monkeypatch):
    monkeypatch.setenv(
        "TF_MULTITIER_LINKED_SAVES", "0"
    )  # a tier may delete its name of a link, which makes the link newer
    prefix = str(tmp_path / "model")
    with Program(tmp_path / "rows", parts=2).fill() as program:
        files = []
        for _ in range(4):
            program.run(program.train, KEYS[:500])
            program.save(prefix)
            parts = checkpoint.load(prefix).tables["ev"].parts
            files.append({path for part in parts for path in part.files})
            for other in ("model-x.data-abcde-of-fghij", "model.data-abcde-of-fghij.txt"):
                (tmp_path / other).touch()
            assert set(glob.glob(prefix + ".data-?????-of-[a-z]????")) == set().union(*files[-2:])
        content = program.content()
    assert saved_rows(prefix) == content
    assert len(glob.glob(prefix + "*fghij*")) == 2, "files that are not of this checkpoint stay"


def test_a_failed_save_removes_its_links(tmp_path):
    program = """
import resource, signal, sys
import tensorflow as tf
import test_linked_saves as test
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with test.Program(sys.argv[1] + "/rows").fill() as program:
    good = program.save(sys.argv[1] + "/good")
    resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))
    try:
        program.save(sys.argv[1] + "/bad")
    except tf.errors.OpError as error:
        print("refused:", error.message)
    assert not test.glob.glob(sys.argv[1] + "/bad*"), test.glob.glob(sys.argv[1] + "/bad*")
    print(len(test.linked_files(good)), "links")
"""
    done = forks.run(["-c", program, str(tmp_path)], environment())
    assert done.returncode == 0 and done.stdout.startswith("refused: "), done.stderr[-2000:]
    assert done.stdout.endswith(" links\n") and " 0 links" not in done.stdout


def damaged(prefix, how):
    """Damages the second linked file. Returns its path."""
    path, other = linked_files(prefix)[1], linked_files(prefix)[0]
    size = os.path.getsize(path)
    if how == "lost":
        os.remove(path)
    elif how == "cut":
        os.truncate(path, size - 4096)
    elif how == "swapped":
        os.replace(path, path + "x")
        os.replace(other, path)
        os.replace(path + "x", other)
    else:
        with open(path, "r+b") as file:
            file.seek(size // 2 if how == "flipped" else 20)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 4]))
    return other if how == "swapped" and os.path.getsize(other) != os.path.getsize(path) else path


@pytest.mark.parametrize("how", ["lost", "cut", "swapped", "flipped", "flipped header"])
def test_a_damaged_linked_file_is_named_and_changes_nothing(tmp_path, saved, how, capsys):
    prefix = copied(saved[0], tmp_path)
    path = damaged(prefix, how)
    with Program(tmp_path / "other") as program:
        program.run(program.init)
        program.run(program.train, [1, 2])
        before = program.content()
        with pytest.raises((tf.errors.DataLossError, tf.errors.NotFoundError)) as failed:
            program.restore(prefix)
        named = [
            one for one in linked_files(prefix) if os.path.basename(one) in failed.value.message
        ]
        assert named and (how == "swapped" or named == [path]), failed.value.message
        assert program.content() == before
    with pytest.raises((engine.DataLossError, engine.NotFoundError, FileNotFoundError)) as failed:
        saved_rows(prefix)
    assert os.path.basename(named[0]) in str(failed.value)
    assert inspect.main([prefix, "--verify"]) == 1
    assert os.path.basename(named[0]) in capsys.readouterr().out


def test_tools_read_linked_rows(tmp_path, saved, capsys):
    prefix, content = saved
    assert inspect.main([prefix, "--verify", "--diff", prefix]) == 0
    assert inspect.main([prefix, "--keys=12345", "--json"]) == 0
    shown = capsys.readouterr().out
    assert "12345" in shown
    table = checkpoint.load(prefix).tables["ev"]
    assert table.parts[0].bytes == sum(map(os.path.getsize, glob.glob(prefix + ".data-[a-z]*")))
    assert checkpoint.save_npz(table, tmp_path / "rows.npz") == len(content)


def test_format_pages_are_enough_to_read_linked_rows(saved):
    """A reader made from docs/formats/table_part.md and docs/formats/ssdhash.md alone."""
    prefix, content = saved
    bundle = tf.train.load_checkpoint(prefix)
    manifest = json.loads(bundle.get_tensor("ev/part_0-of-1/manifest"))
    part = open(f"{prefix}.{manifest['file']}", "rb").read()
    dims = [column["dim"] for column in manifest["columns"]]
    entry = np.dtype(
        [("key", "<i8"), ("version", "<i8"), ("frequency", "<u4"), ("data", "<f4", sum(dims))]
    )
    at, found = 8, {}
    while True:
        kind, entries, size = struct.unpack_from("<IIQ", part, at)
        payload = part[at + 16 : at + 16 + size]
        at += 16 + size + 4
        if kind == 5:
            break
        if kind == 2:
            for row in np.frombuffer(payload, entry):
                found[int(row["key"])] = row["data"].tolist()
            continue
        assert kind == 8
        number, slots, header_bytes = struct.unpack_from("<III", payload)
        header = payload[12 : 12 + header_bytes]
        bits = np.unpackbits(
            np.frombuffer(payload, np.uint8, offset=12 + header_bytes), bitorder="little"
        )
        rows = np.flatnonzero(bits[:slots])
        linked = manifest["linked"][number]
        assert len(rows) == entries == linked["rows"]
        segment = open(f"{prefix}.{linked['file']}", "rb").read()
        assert len(segment) == linked["bytes"] and segment[:header_bytes] == header
        row_bytes, per_block = struct.unpack_from("<II", header, 48)
        for slot in rows.tolist():
            length = 36 + row_bytes
            place = (
                slot // per_block * 4096 + slot % per_block * length if per_block else slot * length
            )
            (key,) = struct.unpack_from("<q", segment, header_bytes + place)
            begin, data = header_bytes + place + 36, []
            for dim in dims:
                data += np.frombuffer(segment, "<f4", dim, begin).tolist()
                begin += -(-dim * 4 // 16) * 16
            found[key] = data
    assert found == {key: row for key, (_, _, row) in content.items()}


def test_a_chain_on_a_linked_base_is_restored_and_merged(tmp_path):
    saver = lambda: tf_multitier.train.IncrementalSaver()
    with Program(tmp_path / "rows", parts=2, saver=saver).fill() as program:
        with program.graph.as_default():
            base = program.saver.save(program.session, str(tmp_path / "model"), global_step=1)
            for _ in range(2):
                program.run(program.train, KEYS[::50])
                program.run(program.remove, KEYS[7::100])
                newest = program.saver.save_incremental(
                    program.session, str(tmp_path / "model"), global_step=2
                )
        content = program.content()
    assert linked_files(base)
    assert saved_rows(newest) == content
    checkpoint.merge(base, tmp_path / "merged")
    assert saved_rows(str(tmp_path / "merged")) == content
    assert linked_files(str(tmp_path / "merged")) == []
    with Program(tmp_path / "other", "DRAM") as program:
        program.restore(newest)
        assert program.content() == content


def test_a_kept_table_stays_and_its_checkpoint_stays(tmp_path):
    with Program(tmp_path / "rows", keep=True).fill() as program:
        prefix = program.save(tmp_path / "model")
        content = program.content()
    assert linked_files(prefix)
    with Program(tmp_path / "rows", keep=True) as program:
        program.restore(prefix)
        assert program.content() == content
        for keys in np.split(KEYS, 10):
            program.run(program.train, keys)
        program.run(program.compact)
    shutil.rmtree(tmp_path / "rows")
    assert saved_rows(prefix) == content


def test_objects_are_saved_with_links(tmp_path):
    option = tf_multitier.EmbeddingVariableOption(storage_option=storage(tmp_path / "rows"))
    variable = tf_multitier.get_embedding_variable("objects", DIM, ev_option=option)
    optimizer = tf_multitier.optimizers.SGD(0.5)

    def train():
        for keys in np.split(KEYS, 10):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, keys) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    train()
    train()
    values = tf.nn.embedding_lookup(variable, KEYS).numpy()
    path = tf.train.Checkpoint(variable=variable).save(str(tmp_path / "model"))
    assert len(glob.glob(path + ".data-[a-z]*")) > 1
    train()
    tf.train.Checkpoint(variable=variable).restore(path).assert_consumed()
    np.testing.assert_array_equal(tf.nn.embedding_lookup(variable, KEYS).numpy(), values)


_SAVES = """
with test.Program({folder!r} + "/rows").fill() as program:
    for step in range(1000):
        program.run(program.train, test.KEYS[step % 10 :: 10])
        program.save({folder!r} + "/model", global_step=step)
        say(step)
"""


def test_a_kill_leaves_a_whole_checkpoint(tmp_path):
    with Lives("import test_linked_saves as test", _SAVES, folder=str(tmp_path)) as lives:
        for seed in range(KILLS):
            random = np.random.default_rng(seed)
            with lives.begin() as life:
                done = [life.line() for _ in range(1 + random.integers(3))][-1]
                life.wait(random.random() * 0.05)  # somewhere in the next step or save
            done = int(([done] + life.rest())[-1])
            prefix = tf.train.latest_checkpoint(str(tmp_path))
            step = int(prefix.rsplit("-", 1)[1])
            assert step >= done and linked_files(prefix)
            rows = checkpoint.load(prefix).tables["ev"].read()
            order = np.argsort(rows.keys)
            np.testing.assert_array_equal(rows.keys[order], KEYS)
            # Each save follows an update of every tenth key.
            expected = 1 + (step - KEYS % 10 + 10) // 10
            np.testing.assert_array_equal(rows.frequencies[order], expected)
            for file in os.listdir(tmp_path):  # the next life begins at step 0
                if file.startswith(("model", "checkpoint")):
                    os.remove(tmp_path / file)

"""Manifests, options and headers that say what no writer would, with checksums that are right: a reader gives the rows that are there,
or DataLossError that names the file. It never gives other rows, another error, or takes memory for what the file only claims.

A bounded choice of the changes, or all of them with TF_MULTITIER_STRESS=1.
"""

import glob
import json
import os
import random
import shutil

import hostile
import numpy as np
import pytest
import tensorflow as tf
from attack_util import STRESS

import tf_multitier
from tf_multitier import _engine
from tf_multitier import checkpoint
from tf_multitier import engine
from tf_multitier._src.options import option_record
from tf_multitier.inspect import storage as inspect_storage

v1 = tf.compat.v1
DIM = 4
KEYS = np.arange(300)
# NotImplementedError and UnimplementedError: another format version.
DAMAGE = (
    engine.DataLossError,
    NotImplementedError,
    tf.errors.DataLossError,
    tf.errors.UnimplementedError,
)


def chosen(changes, most):
    """All changes, or as many as there is time for, always of other places."""
    changes = list(changes)
    return changes if STRESS or len(changes) <= most else random.Random(7).sample(changes, most)


def outcome(at, path, act, others=()):
    """What `act` returns; None where it raises what a damaged file at `path` raises."""
    try:
        return act()
    except (*DAMAGE, *others) as error:
        message = getattr(error, "message", str(error))
        assert os.path.basename(path) in message, (at, error)
        return None
    except Exception as error:
        raise AssertionError(f"{at}: {type(error).__name__}: {str(error)[:300]}") from error


def train(table, keys):
    table.apply("sgd", keys, np.full((len(keys), DIM), -1.0), hyper={"learning_rate": 1.0})


@pytest.fixture(scope="module", params=["SSDHASH", "DRAM_SSDHASH"])
def kept(request, tmp_path_factory):
    """The directory of a closed table, and the values of KEYS."""
    table = engine.Table(
        DIM,
        "matrix",
        matrix=np.ones((3, DIM), np.float32),
        slots=[("slot", DIM, 0.5)],
        filter="counter",
        filter_freq=1,
        storage_type=request.param,
        storage_path=tmp_path_factory.mktemp("kept"),
        storage_size=[1 << 20] if request.param == "DRAM_SSDHASH" else (),
        keep=True,
    )
    for most in (300, 100):
        train(table, KEYS[:most])
    values, path = table.lookup(KEYS), table.path
    table.close()
    return path, values


def copy_of(path, tmp_path):
    copy = str(tmp_path / "copy" / os.path.basename(path))
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    shutil.copytree(path, copy)
    return copy


def test_options_of_a_kept_table(kept, tmp_path):
    path, values = kept
    with open(os.path.join(path, "instance.table"), "rb") as file:
        options = json.loads(file.read().partition(b"\n")[2])
    record = option_record.from_json(options["options"])
    options["options"] |= option_record.complete(record, in_table=True)
    refused = 0
    for at, text in chosen(hostile.mutations(options), 250):
        copy = copy_of(path, tmp_path)
        hostile.write_options(copy, text)
        # The engine's own refusal of what it has no room for is no damage.
        table = outcome(at, "instance", lambda: engine.Table.open(copy, keep=False), (MemoryError,))
        if table is None:
            refused += 1
            continue
        with table:
            np.testing.assert_array_equal(table.lookup(KEYS), values, err_msg=at)
    assert refused > 50


def test_options_of_a_kept_table_take_no_memory_for_rows_that_it_does_not_have(kept, tmp_path):
    path, values = kept
    with open(os.path.join(path, "instance.table"), "rb") as file:
        options = json.loads(file.read().partition(b"\n")[2])
    options["options"]["initial_rows"] = 2**31
    copy = copy_of(path, tmp_path)
    hostile.write_options(copy, json.dumps(options))
    with engine.Table.open(copy, keep=False) as table:
        assert table.stats()["index_bytes"] < 1 << 20
        np.testing.assert_array_equal(table.lookup(KEYS), values)


def test_options_of_a_table_that_is_salvaged(kept, tmp_path):
    path, values = kept
    with open(os.path.join(path, "instance.table"), "rb") as file:
        options = json.loads(file.read().partition(b"\n")[2])
    for at, text in chosen(hostile.mutations(options), 60):
        copy = copy_of(path, tmp_path)
        hostile.write_options(copy, text)
        try:
            found = engine.salvage(copy)
        except (engine.FailedPreconditionError, ValueError) as error:
            assert "instance" in str(error), (at, error)
            found = engine.salvage(copy, "int64") if "pass key_dtype" in str(error) else None
        if found is not None:
            order = np.argsort(found.rows.keys)
            np.testing.assert_array_equal(found.rows.data[order, :DIM], values, err_msg=at)


def test_headers_of_segments(kept, tmp_path):
    path, values = kept
    [segment] = glob.glob(os.path.join(path, "ssdhash", "*.seg"))[:1]
    columns = [("value", DIM, 0.0), ("slot", DIM, 0.5)]
    numbers = [0, 1, 3, 16, 255, 2**16, 2**20 + 1, 2**30 + 1, 2**31, 2**32 - 1]
    places = [
        12,
        40,
        44,
        48,
        52,
        56,
        60,
        68,
    ]  # columns, kind, slots, row bytes, in a block; dtype, dim, length of a name
    changes = [(place, number) for place in places for number in numbers]
    for place, number in chosen(changes, 40):
        copy = copy_of(path, tmp_path)
        changed = os.path.join(copy, os.path.relpath(segment, path))

        def change(contents, place=place, number=number):
            contents[place : place + 4] = np.array([number], "<u4").tobytes()

        hostile.write_segment(changed, change)
        at = f"{number} at {place}"
        found = outcome(at, copy, lambda: engine.salvage(copy))
        assert found is not None, at
        # A header that another table may have is what salvage goes by.
        if [tuple(column) for column in found.rows.columns] == columns and place != 56:
            own = values[np.minimum(found.rows.keys, len(KEYS) - 1)]
            np.testing.assert_array_equal(found.rows.data[:, :DIM], own, err_msg=at)
        table = outcome(at, copy, lambda: engine.Table.open(copy, keep=False))
        if table is not None:
            with table:
                np.testing.assert_array_equal(table.lookup(KEYS), values, err_msg=at)


class Program:
    """A Session with a variable, whose values count the updates of a key."""

    def __init__(self, storage=None, key_dtype=tf.int64):
        self.graph = tf.Graph()
        with self.graph.as_default():
            option = tf_multitier.EmbeddingVariableOption(storage_option=storage)
            self.ev = tf_multitier.get_embedding_variable(
                "ev", DIM, key_dtype=key_dtype, ev_option=option, initializer=v1.zeros_initializer()
            )
            self.ids = v1.placeholder(key_dtype, [None])
            self.rows = tf.nn.embedding_lookup(self.ev, self.ids)
            self.train = v1.train.AdagradOptimizer(1.0).minimize(-tf.reduce_sum(self.rows))
            self.saver = tf_multitier.train.IncrementalSaver()
            self.init = v1.global_variables_initializer()
            self.count = self.ev.total_count()
        self.session = v1.Session(graph=self.graph)

    def run(self, op, ids=KEYS):
        return self.session.run(op, {self.ids: ids})

    def save(self, prefix, delta=False):
        with self.graph.as_default():
            save = self.saver.save_incremental if delta else self.saver.save
            return save(self.session, prefix, **({} if delta else {"write_meta_graph": False}))

    def restore(self, prefix):
        with self.graph.as_default():
            self.saver.restore(self.session, prefix)


@pytest.fixture(scope="module", params=["int64", "uint64", "frozen"])
def saved(request, tmp_path_factory):
    """(prefix of a checkpoint, values, a program that restores it)."""
    folder = tmp_path_factory.mktemp(request.param)
    program = Program(key_dtype=tf.uint64 if request.param == "uint64" else tf.int64)
    program.session.run(program.init)
    for most in (300, 100):
        program.run(program.train, KEYS[:most])
    prefix = program.save(str(folder / "model"))
    if request.param == "frozen":
        prefix = str(folder / "frozen")
        tf_multitier.serving.freeze(str(folder / "model"), prefix)
    return prefix, program.run(program.rows), program


def load_all(prefix):
    """{key: value} of the rows of all tables."""
    rows = checkpoint.load(prefix).tables["ev"].read()
    return dict(zip(rows.keys.tolist(), rows.data[:, :DIM].tolist()))


def test_manifests_of_a_checkpoint(saved, tmp_path):
    prefix, values, program = saved
    tensors = hostile.tensors_of(prefix)
    name = "ev/part_0-of-1/manifest"
    manifest = json.loads(tensors[name])
    [part] = glob.glob(prefix + ".data-[a-z]*")
    copy = str(tmp_path / "copied" / "model")
    os.makedirs(os.path.dirname(copy))
    shutil.copyfile(part, copy + part.removeprefix(prefix))
    expected = dict(zip(KEYS.tolist(), values.tolist()))
    refused = 0
    for at, text in chosen(hostile.mutations(manifest), 300):
        hostile.write_bundle(copy, tensors | {name: text.encode("utf-8", "surrogatepass")})
        found = outcome(at, copy, lambda: load_all(copy), (engine.NotFoundError,))
        assert found in (None, expected), at
        refused += found is None
        # What does not fit the variable is no damage; its message names the checkpoint all the same.
        others = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError)
        outcome(at, copy, lambda: program.restore(copy), others)
        np.testing.assert_array_equal(program.run(program.rows), values, err_msg=at)
    assert refused > 50


def test_blocks_of_a_part_file(saved, tmp_path):
    prefix, _, _ = saved
    manifest = json.loads(hostile.tensors_of(prefix)["ev/part_0-of-1/manifest"])
    [part] = glob.glob(prefix + ".data-[a-z]*")
    with open(part, "rb") as file:
        data = file.read()
    end = np.array([300, 0], "<i8").tobytes()
    rows = data[8 + 16 : len(data) - 36 - 4]
    [kind, entries] = np.frombuffer(data, "<u4", 2, 8).tolist()
    assert data == data[:8] + hostile.block(kind, entries, rows) + hostile.block(5, 1, end)
    numbers = [0, 1, 299, 301, 2**16, 2**31, 2**32 - 1]
    changes = [(kind, n, rows, None) for n in numbers] + [
        (n, entries, rows, None) for n in range(12)
    ]
    changes += [(kind, entries, rows, n) for n in (0, len(rows) + 1, 2**30, 2**63, 2**64 - 1)]
    changes += [(kind, entries, rows[:n], None) for n in (0, 1, len(rows) - 1)]
    file = str(tmp_path / manifest["file"])
    for change in changes:
        blocks = [hostile.block(*change), hostile.block(5, 1, end)]
        manifest["checksum"] = hostile.crc32c(b"".join(block[-4:] for block in blocks))
        with open(file, "wb") as out:
            out.write(data[:8] + b"".join(blocks))

        def read():
            reader = _engine.PartReader(file, json.dumps(manifest))
            return [block["data"][:, :DIM] for block in iter(reader.next, None)]

        at = (change[0], change[1], len(change[2]), change[3])
        found = outcome(at, file, read)
        is_whole = change[:2] == (kind, entries) and change[2] is rows and change[3] is None
        assert (found is not None) == is_whole, at


@pytest.fixture(scope="module")
def kept_variable(tmp_path_factory):
    """The storage path of a variable that was closed, and the values of KEYS."""
    folder = tmp_path_factory.mktemp("variable")
    storage = tf_multitier.StorageOption("DRAM_SSDHASH", str(folder / "rows"), [4096], keep=True)
    program = Program(storage)
    program.session.run(program.init)
    program.run(program.train)
    program.save(str(folder / "model"))
    values = program.run(program.rows)
    program.session.close()
    return str(folder / "rows"), values


def test_descriptions_of_a_kept_variable(kept_variable, tmp_path):
    path, values = kept_variable
    [facts_file] = glob.glob(os.path.join(path, "ev", "*", "instance.variable"))
    with open(facts_file, "rb") as file:
        facts = json.loads(file.read().partition(b"\n")[2])
    changes = list(hostile.mutations(facts))
    for at, text in hostile.mutations(json.loads(facts["checkpoint"])):
        changes.append((f"checkpoint: {at}", json.dumps(facts | {"checkpoint": text})))
    copy = str(tmp_path / "rows")
    storage = tf_multitier.StorageOption("DRAM_SSDHASH", copy, [4096], keep=True)
    for at, text in chosen(changes, 60):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        instance = os.path.join(copy, os.path.relpath(os.path.dirname(facts_file), path))
        hostile.write_facts(instance, text)
        [described] = inspect_storage.describe(copy, verify=False)["instances"]
        assert "variable" in described or "instance.variable" in described["damage"], at
        program = Program(storage)
        start = lambda program=program: program.session.run(program.init) or "opened"
        # FailedPrecondition: what is kept is of another variable.
        opened = outcome(at, instance, start, (tf.errors.FailedPreconditionError,))
        if opened and program.session.run(program.count):
            np.testing.assert_array_equal(program.run(program.rows), values, err_msg=at)
        program.session.close()
        del program, start

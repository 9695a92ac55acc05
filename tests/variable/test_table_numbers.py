"""Variables whose initializer is a list: the initial value by table and column, against tables with one initializer each."""

import json

import numpy as np
import pytest
import tensorflow as tf
from pairs import WORLDS
from pairs import pairwise
from storage_util import option
from variable_util import sparse
from worlds import needs_eager
from worlds import same_bits

import tf_multitier
from tf_multitier import engine
from tf_multitier import lookup
from tf_multitier import nn

v1 = tf.compat.v1
DIM = 6
SPLIT = 2  # table 1, 4, 7, ... has another initializer from this column on


def uniform(table):
    return v1.random_uniform_initializer(-1.0 - table, 1.0 + table, seed=table % 2)


NORMAL = v1.random_normal_initializer(0.0, 2.0, seed=9)


def initializers(count):
    return [[(0, uniform(t)), (SPLIT, NORMAL)] if t % 3 == 1 else uniform(t) for t in range(count)]


def initial(key, table):
    """What `initializers` say, from tables of the engine with one initializer each."""
    low, high = float(-1 - table), float(1 + table)
    value = engine.Table(DIM, "uniform", a=low, b=high, seed=table % 2).lookup([key])[0]
    if table % 3 == 1:
        value[SPLIT:] = engine.Table(DIM, "normal", a=0.0, b=2.0, seed=9).lookup([key])[0, SPLIT:]
    return value


def make(count=3, parts=1, storage=None):
    return tf_multitier.get_embedding_variable(
        "ev",
        DIM,
        initializer=initializers(count),
        partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None,
        ev_option=tf_multitier.EmbeddingVariableOption(storage_option=storage),
    )


class Reference:
    """Rows in NumPy, trained by SGD on the sum of the looked up values."""

    def __init__(self):
        self.rows = {}

    def values(self, ids, tables):
        first = {}
        for key, table in zip(np.ravel(ids).tolist(), np.ravel(tables).tolist()):
            first.setdefault(key, table)
        rows = [self.rows.get(k, initial(k, first[k])) for k in np.ravel(ids).tolist()]
        return np.reshape(np.stack(rows), (*np.shape(ids), DIM))

    def train(self, ids, tables, rate):
        for row, key in zip(self.values(ids, tables).reshape(-1, DIM), np.ravel(ids).tolist()):
            self.rows.setdefault(key, row)
        for key, count in zip(*np.unique(ids, return_counts=True)):
            self.rows[key] = self.rows[key] - np.float32(rate) * np.float32(count)


@pairwise(
    world=WORLDS,
    count=[1, 3, 300],
    parts=[1, 3],
    kind=["DRAM", "DRAM_SSDHASH", "HBM_DRAM"],
)
def test_rows_begin_with_the_values_of_their_tables(
    world, count, parts, kind, tmp_path, emulated_device
):
    storage = None if kind == "DRAM" else option(kind, tmp_path, row_bytes=32, rows=16)
    ev = make(count, parts, storage)
    look = lambda ids, tables: lookup.embedding_lookup(ev, ids, tables=tables)
    peek = lambda ids, tables: ev.peek(ids, tables=tables)

    def loss(ids, tables, more):
        second = look(more, more % count)
        return tf.reduce_sum(look(ids, tables)) + tf.reduce_sum(second)

    step = world.step(loss, [ev], "sgd", 0.5)
    rng, reference = np.random.default_rng(1), Reference()
    for _ in range(3):
        ids = rng.integers(-30, 30, (7, 4))
        ids[3:, 0] = ids[0, 0]  # repeated, perhaps of several tables
        tables = rng.integers(0, count, (7, 4))
        more = rng.integers(100, 200, 20)
        same_bits(world.run(look, ids, tables), reference.values(ids, tables))
        same_bits(world.run(peek, ids, tables.astype(np.int32)), reference.values(ids, tables))
        step(ids, tables, more)
        reference.train(ids, tables, 0.5)
        reference.train(more, more % count, 0.5)
    assert world.run(ev.total_count) == len(reference.rows)
    ids = np.array(sorted(reference.rows))
    others = rng.integers(0, count, ids.shape)  # rows keep their values
    same_bits(world.run(look, ids, others), reference.values(ids, others))


@pytest.mark.parametrize("parts", [1, 3])
def test_pooled_lookups_and_padding_take_numbers(world, parts):
    ev = make(3, parts)
    rows, ids, tables = [0, 0, 1, 2], [5, 6, 7, 5], [2, 1, 0, 0]
    expected = Reference().values(ids, tables)
    given = sparse(rows, ids, [4, 3])
    found = world.run(
        lambda: (
            lookup.embedding_lookup_sparse(ev, given, combiner="sum", tables=tables),
            lookup.safe_embedding_lookup_sparse(
                ev, given, combiner="sum", padding_idx=6, tables=tables
            ),
            lookup.embedding_lookup(ev, ids, padding_idx=5, tables=tables),
        )
    )
    zeros = np.zeros(DIM, np.float32)
    same_bits(found[0], np.stack([expected[0] + expected[1], expected[2], expected[3], zeros]))
    same_bits(found[1], np.stack([expected[0], expected[2], expected[3], zeros]))
    same_bits(found[2], np.stack([zeros, expected[1], expected[2], zeros]))
    loss = lambda: tf.reduce_sum(lookup.embedding_lookup(ev, ids, padding_idx=5, tables=tables))
    world.step(loss, [ev], "sgd", 0.5)()
    assert world.run(lambda: ev.export()[0]).tolist() == [6, 7]


def test_changed_gradients_keep_their_numbers_and_rebuilt_ones_are_refused(world):
    ev = make()
    ids = np.array([1, 2, 1])
    loss = lambda ids: tf.reduce_sum(lookup.embedding_lookup(ev, ids, tables=[2, 1, 0]))
    halved = lambda pairs: [(tf.IndexedSlices(g.values * 0.5, g.indices), v) for g, v in pairs]
    world.step(loss, [ev], "sgd", 1.0, change=halved)(ids)
    expected = np.stack([initial(1, 2) - 1, initial(2, 1) - np.float32(0.5)])
    same_bits(world.run(lambda: ev.export()[1]), expected)

    rebuilt = lambda pairs: [(tf.IndexedSlices(g.values, g.indices + 1), v) for g, v in pairs]
    message = (
        "ev.*expected the table number of key 3, which has no row.*train the gradient of a lookup"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        world.step(loss, [ev], "sgd", 1.0, change=rebuilt)(ids)
    same_bits(world.run(lambda: ev.export()[1]), expected)
    # Rows that are there are trained.
    flipped = lambda pairs: [(tf.IndexedSlices(g.values, 3 - g.indices), v) for g, v in pairs]
    world.step(loss, [ev], "sgd", 1.0, change=flipped)(ids)
    same_bits(world.run(lambda: ev.export()[1]), expected - np.float32([[1], [2]]))


@pytest.mark.parametrize("parts", [1, 3])
def test_wrong_numbers_are_refused_before_anything_changes(world, parts):
    ev = make(3, parts)
    ids = np.array([1, 2])
    lookups = {
        "lookup": lambda ids, tables: lookup.embedding_lookup(ev, ids, tables=tables),
        "peek": lambda ids, tables: ev.peek(ids, tables=tables),
    }
    for read in lookups.values():
        for tables, found in ([0, 3], 3), ([-1, 0], -1), ([2**32, 0], 2**32):
            with pytest.raises(
                tf.errors.InvalidArgumentError,
                match=rf"tables: expected 0 to 2, found tables\[\d\] = {found}",
            ):
                world.run(read, ids, np.array(tables, np.int64))
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="tables: expected"):
            world.run(read, ids, np.array([0, 1, 2]))
        with pytest.raises(TypeError, match="tables: expected integers, found float32"):
            world.run(lambda: read(ids, np.float32([0, 1])))
        with pytest.raises(ValueError, match=r"shape of the ids, \(2,\), found \(2, 1\)"):
            world.run(lambda: read(ids, [[0], [1]]))
    cure = "initializer is a list of 3; found none: pass tables= to tf_multitier.lookup"
    for build in (
        lambda: lookup.embedding_lookup(ev, ids),
        lambda: tf.nn.embedding_lookup(ev, ids),
        lambda: tf.nn.embedding_lookup_sparse(ev, sparse([0], [1], [1, 1]), None),
        lambda: nn.group_embedding_lookup([ev], [ids]),
        lambda: ev.peek(ids),
    ):
        with pytest.raises(ValueError, match=cure):
            world.run(build)
    with pytest.raises(ValueError, match="default_id: expected None with tables"):
        lookup.safe_embedding_lookup_sparse(ev, sparse([0], [1], [1, 1]), default_id=1, tables=[0])
    assert world.run(ev.total_count) == 0


@pytest.mark.parametrize(
    "initializer, error, message",
    [
        ([], ValueError, "found an empty list"),
        ([[(1, 0.5)]], ValueError, r"initializer\[0\]: expected first columns from 0.*\[1\]"),
        ([0.5, [(0, 1.0), (6, 2.0)]], ValueError, r"initializer\[1\].*below 6, found \[0, 6\]"),
        ([[(0, 1.0), (3, 2.0), (2, 0.0)]], ValueError, r"found \[0, 3, 2\]"),
        ([[(0, 1.0), 2.0]], TypeError, r"initializer\[0\]: expected pairs"),
        (
            [tf.keras.initializers.Orthogonal()],
            ValueError,
            r"initializer\[0\]: expected a number or",
        ),
        ([0.5] * 65536, ValueError, "expected 1 to 65535 tables, found 65536"),
    ],
)
def test_wrong_lists_are_refused(graph, initializer, error, message):
    with pytest.raises(error, match=message):
        tf_multitier.get_embedding_variable("ev", DIM, initializer=initializer)


def test_lists_of_numbers_are_tables_and_lists_of_rows_a_matrix(graph):
    assert tf_multitier.get_embedding_variable("a", 2, initializer=[0.5, 1]).num_tables == 2
    matrix = tf_multitier.get_embedding_variable("b", 2, initializer=[[0.0, 1.0], [2.0, 3.0]])
    assert matrix.num_tables == 1
    assert matrix.table_options["initializer"]["kind"] == "matrix"


@needs_eager
def test_a_checkpoint_brings_its_initializers(tmp_path):
    first = make(parts=3)
    path = tf.train.Checkpoint(v=first).save(str(tmp_path / "c"))
    other = [tf_multitier.TruncatedNormal(seed=t) for t in range(3)]
    second = tf_multitier.get_embedding_variable("ev", DIM, initializer=other)
    ids, tables = [1, 2, 3], [0, 1, 2]
    tf.train.Checkpoint(v=second).restore(path)
    same_bits(lookup.embedding_lookup(second, ids, tables=tables), Reference().values(ids, tables))
    manifest = json.loads(second.export_rows().manifest.numpy())
    assert [len(each["columns"]) for each in manifest["initializers"]] == [1, 2, 1]
    fewer = tf_multitier.get_embedding_variable("ev", DIM, initializer=[0.0, 1.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected 2 tables.*found 3"):
        tf.train.Checkpoint(v=fewer).restore(path)


@needs_eager
@pytest.mark.parametrize("eagerly", [True, False])
def test_models_of_keras_train_rows_of_tables(eagerly):
    import keras

    kt = pytest.importorskip("tf_multitier.keras")

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.ev = make(parts=3)

        def call(self, inputs):
            ids, tables = inputs
            first = lookup.embedding_lookup(self.ev, ids, tables=tables)
            second = lookup.embedding_lookup(self.ev, ids + 1000, tables=tables)
            return tf.reduce_sum(first + second, 1)

    model, reference = Model(), Reference()
    model.compile(
        kt.with_rows(keras.optimizers.SGD(0.5)),
        lambda _, rows: tf.reduce_sum(rows, 1),
        run_eagerly=eagerly,
    )
    ids, tables = np.arange(8).reshape(4, 2), np.array([[0, 1], [2, 0], [1, 2], [0, 1]])
    model.fit((ids, tables), np.zeros(4), batch_size=4, verbose=0)
    values = lookup.embedding_lookup(model.ev, ids + 1000, tables=tables)
    same_bits(values, reference.values(ids + 1000, tables) - np.float32(0.5 / 4))


def test_the_engine_takes_numbers():
    record = [
        {"columns": [(0, {"kind": "uniform", "a": -1.0 - t, "b": 1.0 + t, "seed": t % 2})]}
        for t in range(3)
    ]
    record[1]["columns"].append((SPLIT, {"kind": "normal", "a": 0.0, "b": 2.0, "seed": 9}))
    table = engine.Table(DIM, initializers=record)
    ids, tables = [5, 6, 5], [2, 1, 0]
    same_bits(table.lookup(ids, tables=tables), Reference().values(ids, tables))
    table.apply("sgd", ids, np.zeros((3, DIM)), hyper={"learning_rate": 1.0}, tables=tables)
    same_bits(table.peek([6, 5], tables=[0, 0]), Reference().values([6, 5], [1, 2]))
    with pytest.raises(ValueError, match=r"tables: expected 0 to 2, found tables\[1\] = 3"):
        table.lookup(ids, tables=[0, 3, 0])
    with pytest.raises(ValueError, match="because the initializers are a list of 3"):
        table.peek(ids)
    with pytest.raises(ValueError, match="expected the table number of key 7"):
        table.apply("sgd", [5, 7], np.zeros((2, DIM)), hyper={"learning_rate": 1.0})
    assert len(table) == 2

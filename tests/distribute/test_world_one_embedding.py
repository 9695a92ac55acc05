"""Embeddings of several tables in a world of processes, and the same program in one process."""

import json

import numpy as np
import pytest
import tensorflow as tf

from cluster_util import launch
from worlds import needs_eager

pytestmark = needs_eager

# Ids of all tables are drawn from one range, so most are asked in several tables, by both ranks. `of_world` makes, from the gradients of
# this process, those of all.
PROGRAM = """
import numpy as np
import tensorflow as tf
from tf_multitier import one_embedding as oe

KEYS = np.arange(60)
TABLES = np.arange(60) % 3

def embedding_of(name, folder, **options):
    tables = [
        oe.make_table_options(initializer)
        for initializer in (oe.make_uniform_initializer(-1, 1), oe.make_constant_initializer(5), oe.make_normal_initializer(10, 0.1))
    ]
    store = oe.make_cached_ssd_store_options(8, f"{folder}/{name}")
    return oe.MultiTableEmbedding(name, 4, tf.float32, tf.int64, tables, store, padding_idx=-1, **options)

def batch_of(rank, step):
    random = np.random.default_rng([rank, step])
    ids = random.integers(-1, 40, (5 * step * (rank + 1) % 12, 3))
    flat = random.integers(0, 40, 7)
    return ids, flat, random.integers(0, 3, 7)

def step_of(embedding, of_world):
    optimizer = oe.Optimizer(tf.keras.optimizers.Adagrad(0.5), [embedding])

    def step(ids, flat, tables):
        with tf.GradientTape() as tape:
            columns, others = embedding(ids), embedding(flat, tables)
            loss = tf.reduce_sum(columns * tf.cast(ids + 2, tf.float32)[..., None]) + tf.reduce_sum(others**2)
        grads = of_world(tape.gradient(loss, embedding.parameters()))
        optimizer.apply_gradients(zip(grads, embedding.parameters()))
        return columns, others

    return optimizer, step

def known_of(embedding):
    variable = embedding.variable
    known = variable.peek(KEYS, tables=TABLES), variable.get_frequency(KEYS), embedding(KEYS, TABLES, training=False)
    return [its.numpy().tolist() for its in known]
"""

IN_WORLD = """
import json
import re
import tf_multitier
strategy = tf_multitier.distribute.CollectiveStrategy()
rank = strategy.rank()

def refused(kind, message, call):
    try:
        found = call()
    except kind as error:
        assert re.search(message, str(error)), error
        return
    raise AssertionError(f"expected {message}, found {found}")

def of_world(grads):
    return strategy.reduce_gradients(grads, OP)

with strategy.scope():
    refused(
        NotImplementedError,
        "on_repeated_id: expected 'share' in a world of 2 processes, .* found 'error': give each table ids of its own",
        lambda: embedding_of("other", folder, on_repeated_id="error"),
    )
    embedding = embedding_of("one", folder)
    drawn = tf_multitier.get_embedding_variable("drawn", 2, initializer=[tf.keras.initializers.RandomNormal() for _ in range(2)])
alike = drawn.peek([1, 1], tables=[0, 1]).numpy(), tf_multitier.lookup.embedding_lookup(drawn, [[1]], tables=[[1]]).numpy()
print("drawn", *map(np.ndarray.tolist, alike))
refused(
    tf.errors.InvalidArgumentError, "'one'.*: tables: expected 0 to 2, found tables.1. = 3", lambda: embedding([1, 2], [0, 3])
)
refused(
    tf.errors.InvalidArgumentError, "'drawn': tables: expected 0 to 1, found", lambda: drawn.peek([1, 2], tables=[0, 2])
)
optimizer, step = step_of(embedding, of_world)
if IN_FUNCTION:
    step = tf.function(step, reduce_retracing=True)
for i in range(4):
    rows = [each.numpy().tolist() for each in step(*map(tf.constant, batch_of(rank, i)))]
    print(f"step{i}", json.dumps(rows))
refused(
    (ValueError, tf.errors.AbortedError),
    "expected 'of-0', the name in rank 0, found another|an error in rank 1",
    lambda: embedding.save_snapshot(f"of-{rank}"),
)
known = known_of(embedding)
print("known", json.dumps(known))
checkpoint = tf.train.Checkpoint(embedding=embedding, optimizer=optimizer)
manager = tf_multitier.distribute.CheckpointManager(strategy, checkpoint, folder + "/saved")
path = manager.save(4)
step(*map(tf.constant, batch_of(rank, 9)))
assert known_of(embedding) != known
assert manager.restore() == path and known_of(embedding) == known
print("path", path)

if IN_FUNCTION:  # a step of `fit` is one
    with strategy.scope():
        inputs = tf.keras.Input([3], dtype="int64")
        flat = tf.keras.layers.Flatten()(embedding.keras_layer()(inputs))
        model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(flat))
    model.compile(strategy.optimizer(tf.keras.optimizers.SGD(0.0)), "mse")
    every = [np.random.default_rng(q).integers(100, 130, (64, 3)) for q in range(2)]
    examples = tf.data.Dataset.from_tensor_slices((every[rank], np.ones([64, 1]))).batch(16)
    model.fit(strategy.dataset(examples), verbose=0)
    asked = np.concatenate([each[i : i + 16] for i in range(0, 64, 16) for each in every]).ravel()
    its_ids, first, counts = np.unique(asked, return_index=True, return_counts=True)
    assert embedding.variable.get_frequency(its_ids).numpy().tolist() == counts.tolist()
    initial = embedding_of("initial", f"{folder}/{rank}").variable.peek(its_ids, tables=first % 3)
    assert np.array_equal(embedding.variable.peek(its_ids, tables=(first + 1) % 3), initial)
"""


@pytest.mark.parametrize(
    "in_function, op, scale", [(True, "mean", 0.5), (True, "sum", 1.0), (False, "mean", 0.5)]
)
def test_three_tables_train_in_two_processes_as_in_one(tmp_path, in_function, op, scale):
    code = IN_WORLD.replace("OP", repr(op)).replace("IN_FUNCTION", str(in_function))
    lines, _ = launch(tmp_path, PROGRAM + code, "--workers=2")
    own = [dict(line.split(" ", 1) for line in lines[f"worker {rank}"]) for rank in range(2)]
    for name in ("known", "drawn", "path"):
        assert own[0][name] == own[1][name]
    here: dict = {}
    exec(PROGRAM, here)
    embedding = here["embedding_of"]("one", tmp_path / "alone")
    _, step = here["step_of"](
        embedding, lambda grads: [tf.IndexedSlices(g.values * scale, g.indices) for g in grads]
    )
    step = tf.function(step, reduce_retracing=True)
    for i in range(4):
        batches = [here["batch_of"](rank, i) for rank in range(2)]
        rows = step(*[tf.concat(pair, 0) for pair in zip(*batches)])
        found = [json.loads(its[f"step{i}"]) for its in own]
        for whole, of_ranks, given in zip(rows, zip(*found), zip(*batches)):
            of_ranks = [np.reshape(of, (*np.shape(ids), 4)) for of, ids in zip(of_ranks, given)]
            np.testing.assert_allclose(np.concatenate(of_ranks), whole, rtol=1e-6)
    known, of_world = here["known_of"](embedding), json.loads(own[0]["known"])
    for its, wanted in zip(of_world, known, strict=True):
        np.testing.assert_allclose(its, wanted, rtol=1e-6)
        assert its[40:] == wanted[40:]  # ids without a row: the initial values of their tables
    again = here["embedding_of"]("again", tmp_path / "again")
    tf.train.Checkpoint(embedding=again).restore(own[0]["path"]).expect_partial()
    assert here["known_of"](again) == of_world


# Values are constants of tables, and then the numbers of occurrences: the rate undoes the mean.
SESSION = """
import json
import numpy as np
import tf_multitier
import tf_multitier.v1 as tf
from tf_multitier import one_embedding as oe
strategy = tf_multitier.distribute.CollectiveStrategy()
rank = strategy.rank()
with tf.Graph().as_default():
    tables = [oe.make_table_options(oe.make_constant_initializer(1000 * (t + 1))) for t in range(3)]
    with strategy.scope():
        embedding = oe.MultiTableEmbedding("e", 2, tf.float32, tf.int64, tables, oe.make_device_mem_store_options(folder, 1000))
    ids = tf.placeholder(tf.int64, [None, 3])
    losses = [-tf.reduce_sum(embedding(each)) for each in (ids, ids[:, ::-1])]
    optimizer = strategy.optimizer(tf.train.GradientDescentOptimizer(2.0))
    # The gradient of one lookup, and of two with another norm.
    train = [optimizer.minimize(loss, var_list=embedding.parameters()) for loss in (losses[0], sum(losses) * 2.0)]
    keys = tf.range(40, dtype=tf.int64)
    known = embedding.variable.peek(keys, tables=tf.zeros_like(keys))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for step in range(4):
            session.run(train[step % 2], {ids: np.random.default_rng([rank, step]).integers(0, 40, [2 + step + rank, 3])})
        print("known", json.dumps(session.run(known)[:, 1].tolist()))
"""


def test_a_session_trains_three_tables_in_two_processes(tmp_path):
    lines, _ = launch(tmp_path, SESSION, "--workers=2")
    rows: dict = {}
    for step in range(4):
        batches = [
            np.random.default_rng([rank, step]).integers(0, 40, [2 + step + rank, 3])
            for rank in range(2)
        ]
        forms = (
            [(batches, 1)] if step % 2 == 0 else [(batches, 2), ([b[:, ::-1] for b in batches], 2)]
        )
        for its, gradient in forms:
            for key, table in [
                (int(k), t) for batch in its for ids in batch for t, k in enumerate(ids)
            ]:
                rows[key] = rows.get(key, 1000 * (table + 1)) + gradient
    expected = [float(rows.get(key, 1000)) for key in range(40)]
    for own in lines.values():
        assert json.loads(own[0].removeprefix("known ")) == expected

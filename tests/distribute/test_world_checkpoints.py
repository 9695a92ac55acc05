"""Checkpoints of a world of processes: other sizes of it, one process and back, processes that fail, are late or are killed."""

import glob
import json
import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from cluster_util import launch
from tf_multitier._src.processes import world as worlds

# Two variables with frequencies and the slots of Adam, a dense one, and 5 steps on other ids in each process.
FRONT_ENDS = """
from tf_multitier import dynamicemb, one_embedding

class FrontEnds:
    def __init__(self, folder):
        config = dynamicemb.EmbeddingConfig(name="t", embedding_dim=4, num_embeddings=1000, feature_names=["f"])
        options = dynamicemb.DynamicEmbTableOptions(score_strategy=dynamicemb.DynamicEmbScoreStrategy.LFU)
        fused = {"optimizer": dynamicemb.EmbOptimType.ADAM, "learning_rate": 0.1}
        self.collection = dynamicemb.EmbeddingCollection([config]).create({"t": options}, fused)
        store = one_embedding.make_cached_ssd_store_options(8, folder + "/store")
        tables = [one_embedding.make_table_options(one_embedding.make_normal_initializer())]
        self.embedding = one_embedding.MultiTableEmbedding("one", 4, tf.float32, tf.int64, tables, store)
        self.optimizer = tf_multitier.optimizers.Adam(0.1)

    def step(self, strategy, ids):
        with tf.GradientTape(persistent=True) as tape:
            ids = tf.constant(ids)
            losses = [tf.reduce_sum(v * v) for v in (self.collection({"f": ids})["f"], self.embedding(ids))]
        for loss, of, train in (
            (losses[0], self.collection, lambda grads: self.collection.apply_gradients(grads)),
            (losses[1], self.embedding, lambda grads: self.optimizer.apply_gradients(zip(grads, self.embedding.parameters()))),
        ):
            its = of.parameters()
            train(strategy.reduce_gradients(tape.gradient(loss, its), "sum", its))

    def save(self, folder, name):
        dynamicemb.DynamicEmbDump(folder, self.collection, optim=True)
        self.embedding.save_snapshot(name)

    def load(self, folder, name):
        dynamicemb.DynamicEmbLoad(folder, self.collection, optim=True)
        self.optimizer.build([self.embedding.variable])
        self.embedding.load_snapshot(name)
"""
BEGIN = (
    FRONT_ENDS
    + """
import glob
import threading
import numpy as np
import tensorflow as tf
import tf_multitier
from tf_multitier.distribute import CheckpointManager, CollectiveStrategy, saving

strategy = CollectiveStrategy(timeout=60)
rank, size = strategy.rank(), strategy.world_size()
directory = folder + "/shared"

def new(name):
    return tf_multitier.get_embedding_variable(name, 4, steps_to_live=100)

with strategy.scope():
    tables = [new("users"), new("items")]
    front_ends = FrontEnds(folder)
dense = tf.Variable([1.0 + rank], trainable=False)
optimizer = tf_multitier.optimizers.Adam(0.1)
checkpoint = tf.train.Checkpoint(tables=tables, dense=dense, optimizer=optimizer)
manager = CheckpointManager(strategy, checkpoint, directory, max_to_keep=2)

@tf.function(reduce_retracing=True)
def step(ids):
    with tf.GradientTape() as tape:
        loss = sum(tf.reduce_sum(v * v) for v in tf_multitier.nn.group_embedding_lookup(tables, [ids, ids + 7]))
    variables = [part for table in tables for part in table.parts]
    grads = strategy.reduce_gradients(tape.gradient(loss, variables), "sum")
    optimizer.apply_gradients(zip(grads, variables))

def train_front_ends(steps):
    for i in range(steps):
        front_ends.step(strategy, np.random.default_rng([i, rank]).integers(0, 300, 40))

def train(steps):
    for i in range(steps):
        step(tf.constant(np.random.default_rng([i, rank]).integers(0, 300, 40)))

def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {getattr(error, 'message', error)}"
    return "none"
"""
)
TWO = """
assert manager.restore_or_initialize() is None and manager.latest_checkpoint is None and manager.checkpoints == []
for _ in range(3):
    train(2)
    path = manager.save(int(optimizer.iterations))
assert path == manager.latest_checkpoint == f"{directory}/ckpt-6", path
assert manager.checkpoints == [f"{directory}/ckpt-4", f"{directory}/ckpt-6"]
strategy.barrier()

print("alone:", error_of(lambda: checkpoint.write(folder + "/alone")))
outside = new("outside")
print("outside:", error_of(lambda: CheckpointManager(strategy, tf.train.Checkpoint(it=outside), directory).save(1)))
own = f"{folder}/own{rank}"
print("directory:", error_of(lambda: CheckpointManager(strategy, checkpoint, own)))
print("step:", error_of(lambda: manager.save(20 + rank)))
others = tf.train.Checkpoint(tables=tables[: 2 - rank])
print("variables:", error_of(lambda: CheckpointManager(strategy, others, directory).save(30)))
train_front_ends(2)
assert front_ends.collection.tables_by_name["t"].options.max_capacity == 512  # of 1000 / 2
front_ends.save(f"{folder}/dump", "day-1")
strategy.barrier()
print("again:", error_of(lambda: dynamicemb.DynamicEmbDump(f"{folder}/dump", front_ends.collection)))
print("folder:", error_of(lambda: dynamicemb.DynamicEmbDump(f"{folder}/own{rank}", front_ends.collection)))
print("snapshot:", error_of(lambda: front_ends.embedding.load_snapshot("day-2")))

weights = tf.Variable([1.0 * rank], name="weights")
its = CheckpointManager(strategy, tf.train.Checkpoint(tables=tables, w=weights), folder + "/weights")
print("trainable:", error_of(lambda: its.save(1)))
strategy.broadcast_variables([weights])
its.save(2)

write = manager._write
def fail(bundle):
    write(bundle)
    raise OSError("the disk is full")
# Rank 1 is in the next save when rank 0 looks for what saves before have left.
remove = manager._remove_leftovers
def remove_late():
    while not glob.glob(directory + "/.saving-*-6/rank-1.json"):
        threading.Event().wait(0.01)
    remove()
if rank == 1:
    manager._write = fail
else:
    manager._remove_leftovers = remove_late
print("failed:", error_of(lambda: manager.save(40)))
manager._write, manager._remove_leftovers = write, remove
assert manager.latest_checkpoint == path and manager.save(6) == path
# Rank 0 fails three times before rank 1, which has done its part, looks for the end of the first save.
wait = saving.Together._wait
def wait_late(self, *given):
    while not any('"failed"' in open(name).read() for name in glob.glob(directory + "/.saving-*-9/rank-0.json")):
        threading.Event().wait(0.01)
    wait(self, *given)
if rank == 0:
    manager._write = fail
else:
    saving.Together._wait = wait_late
for i in range(3):
    print(f"early {i}:", error_of(lambda: manager.save(60)))
manager._write, saving.Together._wait = write, wait
assert manager.latest_checkpoint == path and manager.save(6) == path
assert not glob.glob(f"{directory}/.saving-{manager._run}-[1-9]") or rank
strategy.barrier()
if rank == 0:
    manager._world.timeout = 2
    print("late:", error_of(lambda: manager.save(50)))
    manager._world.timeout = 60
strategy.barrier()
"""
# A chain of deltas. A process that does not know what has changed lets all write all rows.
CHAIN = """
chain = CheckpointManager(strategy, checkpoint, folder + "/chain", max_to_keep=1, max_deltas=2)
def save_in_chain(number):
    train(1)
    tables[0].remove(tf.range(40 * number, 40 * number + 20))
    dense.assign_add([1.0])
    return chain.save(number)
saved = [save_in_chain(i) for i in range(4)]
if rank == 1:
    tables[1].clear()
CheckpointManager(strategy, checkpoint, folder + "/other", max_deltas=1).save(0)  # tables know the changes since one save
saved += [save_in_chain(i) for i in (4, 5)]
names = ["ckpt-0", "ckpt-0.delta-0001", "ckpt-0.delta-0002", "ckpt-3", "ckpt-4", "ckpt-4.delta-0001"]
assert saved == [f"{folder}/chain/{name}" for name in names], saved
assert chain.checkpoints == saved[-2:] and chain.latest_checkpoint == saved[-1]
assert CheckpointManager(strategy, checkpoint, folder + "/all").save(0)
"""
CHAIN_AGAIN = """
chain = CheckpointManager(strategy, checkpoint, folder + "/chain", max_to_keep=2, max_deltas=2)
assert chain.restore() == folder + "/chain/ckpt-4.delta-0001"
assert chain.save(6) == folder + "/chain/ckpt-6"
strategy.barrier()
"""
# The same rows and values as before, after a save of what was restored.
AGAIN = """
def save_again():
    assert manager.restore_or_initialize() == manager.latest_checkpoint
    dense.assign(dense + rank)
    print(dense.numpy().tolist(), int(optimizer.iterations), manager.save(100 + size))
    train(2)
"""
FRONT_ENDS_AGAIN = """
train_front_ends(1)
front_ends.load(folder + "/dump", "day-1")
own = int(front_ends.embedding.variable.total_count())
print("loaded", size, 0 < own < len(set(np.concatenate([np.random.default_rng([i, r]).integers(0, 300, 40) for i in (0, 1) for r in (0, 1)]))))
front_ends.save(folder + "/dump3", "day-3")
"""
# In its first life, rank 1 is killed when it has written its part.
KILLED = """
life = f"{folder}/life{rank}"
if not os.path.exists(life):
    open(life, "w").close()
    save_again()
    write = manager._write
    def die(bundle):
        write(bundle)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        manager._write = die
    manager.save(200)
print("restored", manager.restore())
assert glob.glob(directory + "/.saving-*") and not glob.glob(directory + "/ckpt-200.index")
strategy.barrier()
manager.save(201)
"""


def _rows(path):
    """{variable: its columns, and its rows in the order of their keys}."""
    found = {}
    for name, table in tf_multitier.checkpoint.load(path).tables.items():
        rows = table.read()
        order = np.argsort(rows.keys)
        arrays = [a[order] for a in (rows.keys, rows.frequencies, rows.versions, rows.data)]
        found[name] = ([column[:2] for column in rows.columns], *map(np.ndarray.tolist, arrays))
    return found


def _dumped(path, world):
    """The rows of a dump of `front_ends`: keys, frequencies, values, states, in the order of their keys."""
    types = {"keys": np.int64, "scores": np.int64, "values": np.float32, "opt_values": np.float32}
    read = lambda item, rank: np.fromfile(
        path / "model" / f"t_emb_{item}.rank_{rank}.world_size_{world}", types[item]
    )
    found = {item: np.concatenate([read(item, r) for r in range(world)]) for item in types}
    order = np.argsort(found["keys"])
    return [array.reshape(len(order), -1)[order].tolist() for array in found.values()]


def _snapshot(root, name, world):
    """The rows of a snapshot of `front_ends` with their states, in the order of their keys."""
    paths = [str(root / f"{rank}-{world}") for rank in range(world)]
    reader = tf_multitier.one_embedding.make_persistent_table_reader
    with reader(paths, name, tf.int64, tf.float32, 12) as pieces:
        keys, rows = map(np.concatenate, zip(*pieces))
    order = np.argsort(keys)
    return keys[order].tolist(), rows[order].tolist()


def _files(directory):
    """The prefixes of the files in a directory."""
    return {os.path.splitext(name)[0] for name in os.listdir(directory)}


def _restored_by_evaluator(path, monkeypatch):
    """Restores a checkpoint in this process, the evaluator of a cluster, and saves it to the directory."""
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"], "evaluator": ["127.0.0.1:3"]}
    task = {"type": "evaluator", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    monkeypatch.setattr(worlds, "_connected", [])
    with pytest.raises(ValueError, match="timeout: expected more than 0 and at most 1e9 seconds"):
        tf_multitier.distribute.CollectiveStrategy(timeout=0)
    strategy = tf_multitier.distribute.CollectiveStrategy()
    monkeypatch.undo()
    assert (strategy.rank(), strategy.world_size()) == (0, 1)
    manager = tf_multitier.distribute.CheckpointManager
    for make in (lambda: strategy.checkpoints("", 5), lambda: manager(strategy, None, "")):
        with pytest.raises(ValueError, match="directory: expected a path, found ''"):
            make()
    with strategy.scope():
        tables = [
            tf_multitier.get_embedding_variable(name, 4, steps_to_live=100)
            for name in ("users", "items")
        ]
    dense, optimizer = tf.Variable([0.0]), tf_multitier.optimizers.Adam(0.1)
    checkpoint = tf.train.Checkpoint(tables=tables, dense=dense, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, os.path.dirname(path), max_to_keep=2)
    assert manager.restore_or_initialize() == path
    assert (dense.numpy().tolist(), int(optimizer.iterations)) == ([1.0], 6)
    return manager.save(101)


def _check_front_ends_alone(folder, rows, snapshot):
    """Loads and saves what a world of 3 saved, in this process."""
    names, store = {"tf": tf, "tf_multitier": tf_multitier}, folder / "store"
    exec(FRONT_ENDS, names)
    front_ends = names["FrontEnds"](str(folder))
    front_ends.load(str(folder / "dump3"), "day-3")
    front_ends.save(str(folder / "dump1"), "day-4")
    assert _dumped(folder / "dump1", 1) == rows
    assert _snapshot(store, "day-4", 1) == snapshot
    shutil.copytree(store / "0-2/snapshots/day-1", store / "0-1/snapshots/day-5")
    for place in ("0-2", "1-2"):
        shutil.copytree(store / place / "snapshots/day-1", store / place / "snapshots/day-3")
    with pytest.raises(ValueError, match=r"of one other size, found it of worlds of \[2, 3\]"):
        front_ends.embedding.load_snapshot("day-3")
    with pytest.raises(
        ValueError, match="found those of rank 0 of a world of 2: give make_persist"
    ):
        front_ends.embedding.load_snapshot("day-5")
    with pytest.raises(ValueError, match="rank 0 of a world of 1 in .*, found .* of a world of 2"):
        _snapshot(store, "day-5", 1)


def _check_chain(chain, expected):
    """The newest delta of a world of 2, and what a world of 3 saved of it, have the rows of a checkpoint of all rows."""
    delta, again = str(chain / "ckpt-4.delta-0001"), str(chain / "ckpt-6")
    assert _files(chain) == {"checkpoint", "ckpt-4", "ckpt-4.delta-0001", "ckpt-6"}
    assert _rows(delta) == _rows(again) == _rows(expected)
    names = [table.name for table in tf_multitier.checkpoint.load(delta).tables.values()]
    tables = [
        tf_multitier.get_embedding_variable(name, 4, steps_to_live=100)
        for name in sorted(set(names), reverse=True)
    ]
    frozen = str(chain / "frozen")
    assert tf_multitier.serving.freeze(delta, frozen) > 0
    assert {n: rows[1] for n, rows in _rows(frozen).items()} == {
        n: rows[1] for n, rows in _rows(delta).items()
    }
    dense = tf.Variable([0.0])
    checkpoint = tf.train.Checkpoint(tables=tables, dense=dense)
    checkpoint.restore(delta).expect_partial()
    keys = range(307)
    found = [(table.get_frequency(keys).numpy(), table.peek(keys).numpy()) for table in tables]
    assert dense.numpy().tolist() == [7.0] and sum(of.sum() for of, _ in found) > 500
    checkpoint.restore(expected).expect_partial()
    for (frequency, values), table in zip(found, tables):
        assert np.array_equal(frequency, table.get_frequency(keys))
        assert np.array_equal(values, table.peek(keys))


def test_a_checkpoint_of_a_world_is_restored_by_worlds_of_other_sizes_and_by_one_process(
    tmp_path, monkeypatch
):
    lines, _ = launch(tmp_path, BEGIN + TWO + CHAIN, "--workers=2")
    directory = tmp_path / "shared"
    left = _files(directory) - {"checkpoint", "ckpt-4", "ckpt-6"}
    assert all(name.startswith(".saving-") for name in left), left
    assert not glob.glob(str(tmp_path / "alone*"))
    weights = {name for name in _files(tmp_path / "weights") if name[0] != "."}
    assert weights == {"checkpoint", "ckpt-2"}
    first = _rows(str(directory / "ckpt-6"))
    assert sum(first["users"][2]) == 2 * 6 * 40 and len(first["users"][0]) == 3
    for begin, cure, ranks in (
        ("alone: NotImplementedError", "tf_multitier.distribute.CheckpointManager", (0, 1)),
        ("outside: NotImplementedError", "make it in `with strategy.scope():`", (0, 1)),
        ("directory: ValueError", "rank 1 does not see the files of rank 0", (0, 1)),
        ("step: ", "expected step 2", (0, 1)),
        ("variables: ", "found users in rank 1", (0, 1)),
        ("again: FileExistsError", "pass allow_overwrite=True", (0,)),
        ("again: AbortedError", "found an error in rank 0", (1,)),
        ("folder: ValueError", "rank 1 does not see the files of rank 0", (0, 1)),
        ("snapshot: FileNotFoundError", "expected one of those there are, day-1", (0, 1)),
        ("trainable: ", "found 1 others in rank 1, the first 'weights:0': pass their", (0, 1)),
        ("failed: OSError", "the disk is full", (1,)),
        ("failed: AbortedError", "rank 1 failed: OSError: the disk is full", (0,)),
        *((f"early {i}: OSError", "the disk is full", (0,)) for i in range(3)),
        *((f"early {i}: AbortedError", "rank 0 failed: OSError", (1,)) for i in range(3)),
        ("late: DeadlineExceededError", "expected rank 1 to save within 2 seconds", (0,)),
    ):
        for rank in ranks:
            own = lines[f"worker {rank}"]
            assert any(line.startswith(begin) and cure in line for line in own), (begin, own)

    again = AGAIN + "save_again()" + FRONT_ENDS_AGAIN + CHAIN_AGAIN
    lines, _ = launch(tmp_path, BEGIN + again, "--workers=3")
    _check_chain(tmp_path / "chain", str(tmp_path / "all" / "ckpt-0"))
    path = str(directory / "ckpt-103")
    own = [[f"[{1.0 + r}] 6 {path}", "loaded 3 True"] for r in range(3)]
    assert lines == {f"worker {r}": own[r] for r in range(3)}
    rows, snapshot = _dumped(tmp_path / "dump", 2), _snapshot(tmp_path / "store", "day-1", 2)
    assert sum(f for (f,) in rows[1]) == 2 * 2 * 40 and len(snapshot[0]) == len(rows[0]) > 100
    assert _dumped(tmp_path / "dump3", 3) == rows
    assert _snapshot(tmp_path / "store", "day-3", 3) == snapshot
    _check_front_ends_alone(tmp_path, rows, snapshot)
    assert _rows(path) == first
    assert tf_multitier.checkpoint.load(path).tables["users"].num_partitions == 3
    path = _restored_by_evaluator(path, monkeypatch)
    assert _rows(path) == first

    lines, said = launch(tmp_path, BEGIN + AGAIN + KILLED, "--workers=2", "--max_restarts=1")
    assert any("signal 9" in line or "137" in line for line in said), said
    path = str(directory / "ckpt-102")
    assert lines == {f"worker {r}": [f"[{1.0 + r}] 6 {path}", f"restored {path}"] for r in range(2)}
    assert _rows(path) == first
    assert _files(directory) == {"checkpoint", "ckpt-102", "ckpt-201"}
    assert _rows(str(directory / "ckpt-201")) == first


# `fit` of a model of Keras, which is saved every 3 of 8 batches and at the end, then of a model that is restored.
KERAS = """
import keras

saves = strategy.checkpoints(folder + "/keras", every=3, max_to_keep=4)

def new_model(is_built=True):
    with strategy.scope():
        layers = [tf_multitier.keras.Embedding(4, name="users"), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        if is_built:
            model(x[:1])
    model.compile(strategy.optimizer("adam"), "mse", jit_compile=False)
    return model

random = np.random.default_rng(rank)
x, y = random.integers(0, 100, (64, 3)), random.random((64, 1), np.float32)
print("unbuilt:", error_of(lambda: saves.restore(new_model(is_built=False))))
model = new_model()
assert saves.restore(model) is None
model.fit(x, y, batch_size=8, shuffle=False, callbacks=[saves], verbose=0)
again = new_model()
others = strategy.checkpoints(folder + "/keras", every=3)
assert others.restore(again) == 8
assert np.array_equal(again.layers[-1].kernel, model.layers[-1].kernel)
for a, b in zip(again.optimizer.variables, model.optimizer.variables):
    assert "rows" in a.path or np.array_equal(a, b), a.path
strategy.export_saved_model(model, folder + "/serve/1")
print("exists:", error_of(lambda: strategy.export_saved_model(model, folder + "/serve/1")))

def module():
    made = tf.Module()
    made.table = tables[0]
    look_up = lambda ids: tf.nn.embedding_lookup(tables[0], ids)
    made.look_up = tf.function(look_up, input_signature=[tf.TensorSpec([None], tf.int64)])
    return made

train(2)
looks_up = module()
values = looks_up.look_up(np.arange(200))
strategy.export_saved_model(looks_up, folder + "/serve/2")
looks_up.outside = new("outside")
print("outside:", error_of(lambda: strategy.export_saved_model(looks_up, folder + "/serve/3")))
if rank == 0:
    np.save(folder + "/module.npy", values)
if rank == 0:
    np.save(folder + "/served.npy", model.predict(x, verbose=0))
else:
    model.predict(x, verbose=0)
values = [each.predict(x, verbose=0).tolist() for each in (model, again)]
model.fit(x, y, batch_size=8, verbose=0)
print("rows", values[0] == values[1])
"""


def test_fit_saves_checkpoints_that_the_next_model_and_one_process_restore(tmp_path):
    lines, _ = launch(tmp_path, BEGIN + KERAS, "--workers=2")
    for own in lines.values():
        assert own[0].startswith("unbuilt: ValueError") and own[-1] == "rows True", own
    for begin in ("exists: FileExistsError", "outside: NotImplementedError"):
        assert any(line.startswith(begin) for line in lines["worker 0"]), lines
    assert sorted(os.listdir(tmp_path / "serve")) == ["1", "2"]
    for folder, name, ids, function in (
        ("1", "served", np.random.default_rng(0).integers(0, 100, (64, 3)), "serve"),
        ("2", "module", np.arange(200), "look_up"),
    ):
        loaded = tf.saved_model.load(str(tmp_path / "serve" / folder))
        values = np.load(tmp_path / f"{name}.npy")
        assert np.array_equal(getattr(loaded, function)(ids), values) and np.std(values) > 0
    files = _files(tmp_path / "keras")
    assert files == {"checkpoint", "ckpt-3", "ckpt-6", "ckpt-8"}, files

    path = str(tmp_path / "keras" / "ckpt-8")
    with tf_multitier.serving.Model(str(tmp_path / "serve" / "2")) as of_another:
        with pytest.raises(
            ValueError, match="expected the embedding variable 'users' of .*, found"
        ):
            of_another.reload(path)
    model = keras.Sequential(
        [tf_multitier.keras.Embedding(4), keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile(tf_multitier.keras.with_rows("adam"), "mse")
    model(np.zeros([1, 3], np.int64))
    model.optimizer.build(model.trainable_variables)
    status = tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(path)
    status.assert_existing_objects_matched()
    with tf_multitier.serving.Model(str(tmp_path / "serve" / "1")) as served:
        served.reload(path)
        ids = np.arange(99).reshape(33, 3)
        with served.pin() as version:
            [input_name] = version.signatures["serving_default"][0]
        [found] = served.run({input_name: ids}).values()
    np.testing.assert_allclose(found, model(ids), rtol=1e-5, atol=1e-6)
    [table] = list(tf_multitier.checkpoint.load(path).tables.values())
    assert int(model.optimizer.iterations) == 8
    assert int(model.layers[0].embeddings.total_count()) == table.num_rows > 50

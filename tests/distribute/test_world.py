"""A world of processes: questions about keys, lookups in functions that are called twice, and what other ranks must have alike."""

import json

import pytest
import tensorflow as tf

import tf_multitier
from cluster_util import launch
from tf_multitier._src.processes import world as worlds
from worlds import needs_eager

BEGIN = """
import re
import numpy as np
import tensorflow as tf
import tf_multitier
from tf_multitier.distribute import CollectiveStrategy

heard = []
signal.signal(signal.SIGTERM, lambda *unused: heard.append(True))
del os.environ["TF_CONFIG"]
cluster = tf.train.ClusterSpec(TF_CONFIG["cluster"])
strategy = CollectiveStrategy(tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type=job, task_id=index), timeout=60)
rank = strategy.rank()
signal.raise_signal(signal.SIGTERM)  # TensorFlow would take it
assert heard
signal.signal(signal.SIGTERM, signal.SIG_DFL)

def refused(kind, message, call):
    try:
        found = call()
    except kind as error:
        assert re.search(message, str(error)), error
        return
    raise AssertionError(f"expected {message}, found {found}")

with strategy.scope():
    users = tf_multitier.get_embedding_variable("users", 4, initializer=tf.zeros_initializer())
optimizer = tf_multitier.optimizers.SGD(1.0)

def train(variables, look_up):
    with tf.GradientTape() as tape:
        loss = look_up()
    grads = strategy.reduce_gradients(tape.gradient(loss, variables), "sum", variables)
    pairs = zip(grads, variables)
    optimizer.apply_gradients(pairs)
"""

KEYS = """
for i in range(3):
    ids = tf.constant([1, 2, rank, 10 + i])
    train(list(users), lambda: tf.reduce_sum(tf.gather(users, ids)))
refused(RuntimeError, "CollectiveStrategy: expected one in a process, found a second", CollectiveStrategy)
assert users.num_partitions == 2 and len(users.parts) == 1
assert users.get_frequency([[1, 2], [10, 99]]).numpy().tolist() == [[9, 6], [2, 0]]
assert users.get_version([10, 11, 99] if rank else []).numpy().tolist() == ([0, 1, -1] if rank else [])
assert users.peek([2, 10]).numpy()[:, 0].tolist() == [-6.0, -2.0]
asked = tf.function(lambda ids: users.lookup_tier(ids))
assert asked(tf.constant([10, 99] if rank == 0 else [1])).numpy().tolist() == ([0, -1] if rank == 0 else [0])
assert int(users.remove([2, 11, 99] if rank == 0 else [12])) == (2 if rank == 0 else 1)
rows = users.export()[0].numpy().tolist()
assert set(rows) <= {0, 1, 10} and int(users.total_count()) == len(rows)
print("rows", *rows)
assert int(users.prefetch([0, 1])) == 0  # one tier
users.reserve(1000)
one = "expected a variable of one process, found one that is divided among the processes of a CollectiveStrategy"
refused(NotImplementedError, "upsert: " + one, lambda: users.upsert([1], [[1.0] * 4]))
refused(NotImplementedError, "freeze: " + one, lambda: users.freeze(folder + "/frozen"))
refused(NotImplementedError, "prefetch_embeddings: " + one, lambda: list(
    tf.data.Dataset.from_tensors([1]).apply(tf_multitier.data.prefetch_embeddings(lambda ids: {users: ids}))
))

@tf.function
def tower(ids):
    return tf.reduce_sum(tf.nn.embedding_lookup(users, ids))

# Both calls have the same instance keys. The sizes of the ranks differ, so they trace at different steps.
@tf.function
def step(first, second):
    train(list(users), lambda: tower(first) + 2.0 * tower(second))

wanted = np.zeros(40)
for i in range(20):
    for each in range(2):
        random = np.random.default_rng([i, each])
        first, second = random.integers(20, 40, (i * 7) % 9 * each), random.integers(20, 40, 5)
        np.add.at(wanted, first, -1.0)
        np.add.at(wanted, second, -2.0)
        if each == rank:
            mine = tf.constant(first, tf.int64), tf.constant(second, tf.int64)
    step(*mine)
assert users.peek(range(20, 40)).numpy()[:, 3].tolist() == wanted[20:].tolist()

# Rows are rounded to the type of the wire, and so is the sum of each rank.
ids = tf.constant([50, 51, 50])
scaled = [tf.constant([[0.1, 1.2, 2.3, 0.7]]) * (1.0 + each / 3) for each in range(2)]
weighted = lambda: tf.reduce_sum(tf.gather(users, ids) * scaled[rank])
train(list(users), weighted)
for wire in (tf.bfloat16, tf.half):
    rounded = lambda x: tf.cast(tf.cast(x, wire), tf.float32)
    before = users.peek([50, 51])
    tf_multitier.distribute.set_wire_dtype(wire)
    found = tf.gather(users, ids)
    train(list(users), weighted)
    tf_multitier.distribute.set_wire_dtype(None)
    np.testing.assert_array_equal(found, tf.gather(rounded(before), [0, 1, 0]))
    assert (rounded(before) != before).numpy().any()
    sums = tf.add(*[rounded(each * [[2.0], [1.0]]) for each in scaled])
    np.testing.assert_array_equal(users.peek([50, 51]), before - sums)

threads = len(os.listdir("/proc/self/task"))
for _ in range(50):
    step(*mine)
assert len(os.listdir("/proc/self/task")) < threads + 50  # 400 collectives, each with a timeout

@tf.function
def of_first(tensor):
    return strategy.broadcast(tensor), strategy.broadcast(tensor + 1), strategy.all_reduce(tensor), strategy.broadcast(tensor + 2)

for i in range(50):
    assert [int(each) for each in of_first(tf.constant(i + 1000 * rank))] == [i, i + 1, 2 * i + 1000, i + 2]
for its_type in (tf.float32, tf.float64, tf.half, tf.bfloat16, tf.int8, tf.uint16, tf.uint32, tf.int64, tf.bool, tf.complex64):
    bits = [np.random.default_rng(each).bytes(3 * its_type.size) for each in range(2)]
    bits = [np.frombuffer(each, np.uint8) & (1 if its_type == tf.bool else 255) for each in bits]
    first, mine = bits[0].view(its_type.as_numpy_dtype), bits[rank].view(its_type.as_numpy_dtype)
    assert strategy.broadcast(mine).numpy().tobytes() == first.tobytes()
assert np.signbit(strategy.broadcast(tf.constant([1.0 if rank else -0.0]))) and strategy.broadcast(tf.zeros([0])).shape == [0]
refused(ValueError, "all_reduce: op: expected 'sum' for int32", lambda: strategy.all_reduce(tf.constant([1]), "mean"))
refused(TypeError, "grads: expected a list of gradients", lambda: strategy.reduce_gradients(tf.ones([2])))
refused(ValueError, "broadcast: expected tensors of known shapes and types of numbers", lambda: strategy.broadcast("name"))
strategy.barrier()
"""

CLIPPED = """
import logging
with strategy.scope():
    made = [tf.Variable(value) for value in (rank, rank + 1.0, [rank == 0], tf.constant(rank, tf.uint8))]
assert [each.numpy().tolist() for each in made] == [0, 1.0, [True], 0]
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage()) if "learning rates" in record.getMessage() else None
tf.get_logger().addHandler(handler)
weights = tf.Variable([0.0, 0.0])

def step(change, reduce=lambda grads: strategy.reduce_gradients(grads, "sum")):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(users, [1, 2])) + tf.reduce_sum(weights)
    grads = tape.gradient(loss, [users, weights])
    rows, of_weights = change(reduce(grads), grads)
    optimizer.apply_gradients([(rows, users)])
    weights.assign_sub(of_weights)

def rows_of(change):
    return lambda grads, raw: ([tf.IndexedSlices(change(grads[0][0].values), grads[0][0].indices)], grads[1])

def in_branch(grads, raw):
    tf.cond(weights[0] < 100.0, lambda: optimizer.apply_gradients([(grads[0], users)]), lambda: tf.constant(0, tf.int64))
    return grads

def both_modes(change, *arguments):
    call = lambda: step(change, *arguments)
    return [call, tf.function(call)]

# The sums of two ranks are 2: the norm is that of 2 rows of 4, and of 2 weights.
half = lambda grads, raw: strategy.clip_by_global_norm(grads, 40.0 ** 0.5 / 2)[0]
for call in both_modes(half):
    call()
assert users.peek([1, 2]).numpy().tolist() == [[-2.0] * 4] * 2, users.peek([1, 2])
assert weights.numpy().tolist() == [-2.0, -2.0], weights
assert said == ["tf_multitier: gradients are the sum over 2 processes; learning rates are unchanged"][rank:], said
for change in (lambda values: values * 0.5, lambda values: tf.clip_by_norm(values, 2.0, axes=[1])):
    tf.function(lambda: step(rows_of(change)))()
tf.function(lambda: step(in_branch))()
assert users.peek([1, 2]).numpy().tolist() == [[-8.0] * 4] * 2, users.peek([1, 2])

of_this_rank = [
    lambda grads, raw: tf.nest.pack_sequence_as(raw, tf.clip_by_global_norm(tf.nest.flatten(grads), 1.0)[0]),
    rows_of(lambda values: tf.clip_by_norm(values, 1.0)),
    rows_of(lambda values: values / tf.reduce_max(values)),
    rows_of(lambda values: tf.where(tf.reduce_all(values > 0.0), values, 0.0)),
]
for change in of_this_rank:
    eagerly, traced = both_modes(change)
    refused(ValueError, "found other values, eagerly, of which the other ranks do not know: use strategy.clip_by_global_norm", eagerly)
    refused(ValueError, "expected a norm of the rows of all ranks, found that of tf.clip_by_global_norm", traced)
def clipped_before(grads):
    flat = tf.nest.flatten(grads)
    return strategy.reduce_gradients(tf.nest.pack_sequence_as(grads, tf.clip_by_global_norm(flat, 1.0)[0]), "sum")
refused(ValueError, "expected a norm of the rows of all ranks", tf.function(lambda: step(lambda grads, raw: grads, clipped_before)))
for call in both_modes(lambda grads, raw: raw):
    refused(ValueError, "expected that of the world, found that of this process", call)

twice = "reduce_gradients: gradient .: expected that of this process, found that of the world: reduce gradients once"
for place in (0, 1):
    for call in both_modes(lambda grads, raw: strategy.reduce_gradients(grads[place : place + 1])) + both_modes(
        lambda grads, raw: strategy.reduce_gradients(half(grads, raw)[place : place + 1], variables=[[users, weights][place]])
    ):
        refused(ValueError, twice, call)
of_world = strategy.optimizer(tf_multitier.optimizers.SGD(1.0))
for call in both_modes(lambda grads, raw: of_world.apply_gradients([(grads[0], users)])):
    refused(ValueError, twice, call)
strategy.barrier()
"""

ALIKE = """
from tf_multitier import _build_info
from tf_multitier._src.processes import world as worlds
from tf_multitier._src.tensorflow.library import ops
with strategy.scope():
    items = tf_multitier.get_embedding_variable("items", 4 + 4 * rank)
    pages = tf_multitier.get_embedding_variable("pages", 4, initializer=tf.constant_initializer(float(rank)))
other = f"rank {rank}: expected lookups of the same embedding variables, of the same dims and options, in the same order on all ranks"
refused(tf.errors.InvalidArgumentError, other, lambda: tf.nn.embedding_lookup(items, [1]))
refused(tf.errors.InvalidArgumentError, other, lambda: tf.function(lambda: tf.nn.embedding_lookup(pages, [1]))())
refused(tf.errors.InvalidArgumentError, other, lambda: tf.nn.embedding_lookup(users if rank else pages, [1]))
refused(tf.errors.InvalidArgumentError, other, lambda: users.peek([1]) if rank else users.get_frequency([1]))
sizes = worlds._PADDED[:]
worlds._PADDED[1:] = []
large = "expected at most 256 numbers for each rank in the request or the answer"
refused(tf.errors.InvalidArgumentError, large, lambda: tf.nn.embedding_lookup(users, np.arange(2000 * (1 - rank))))
worlds._PADDED[:] = sizes
built_from, _build_info.SOURCES = _build_info.SOURCES, f"source{rank}"
refused(tf.errors.InvalidArgumentError, other, lambda: tf.nn.embedding_lookup(users, [1]))
mine = rf"here: .*, tf_multitier {tf_multitier.__version__} .sources source{rank}"
refused(tf.errors.InvalidArgumentError, mine, lambda: tf.nn.embedding_lookup(users, [1]))
_build_info.SOURCES = built_from
tf.nn.embedding_lookup(users, [1])  # the world is still whole
if rank == 0:
    strategy._world.timeout = 3
    number = ops.multitier_progress()[0] + 1
    late = (
        "rank 0 of 2: expected all ranks in the same step within 60 seconds, found one that is late or dead "
        f".collective {number} of this process, all ranks answer.: let train,"
    )
    refused(tf.errors.DeadlineExceededError, late, tf.function(lambda: strategy.barrier()))  # nobody uses its result
    open(folder + "/late", "w").close()
else:
    while not os.path.exists(folder + "/late"):
        select.select([], [], [], 0.1)
os._exit(0)  # TensorFlow's end waits for the other processes
"""


def test_owners_answer_for_their_keys_and_functions_may_be_called_twice_in_a_step(tmp_path):
    lines, _ = launch(tmp_path, BEGIN + KEYS, "--workers=2")
    rows = [lines[f"worker {rank}"][0].split()[1:] for rank in range(2)]
    assert sorted(rows[0] + rows[1]) == ["0", "1", "10"]


def test_gradients_are_reduced_once_and_clipped_by_the_norm_of_all_ranks(tmp_path):
    launch(tmp_path, BEGIN + CLIPPED, "--workers=2")


def test_what_ranks_have_not_alike_is_an_error_on_all(tmp_path):
    launch(tmp_path, BEGIN + ALIKE, "--workers=2")


@needs_eager
def test_a_strategy_that_is_made_after_tensorflow_has_begun_is_refused(monkeypatch):
    before = worlds.connected()
    tf.constant(0)
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(RuntimeError, match="CollectiveStrategy: expected to be made before any"):
        tf_multitier.distribute.CollectiveStrategy()
    assert worlds.connected() is before

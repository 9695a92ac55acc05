"""Parameter servers of TensorFlow 2: where variables are, exact counts, checkpoints, refusals, processes that are killed."""

from cluster_util import launch

# 20 steps train the keys 1, 2, 2 and 100 + i.
PROGRAM = """
import tensorflow as tf
import tf_multitier
if job != "chief":
    tf_multitier.distribute.serve()
    sys.exit()
fixed = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver, fixed)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

def new(name, parts=None):
    partitioner = None if parts is None else tf.compat.v1.fixed_size_partitioner(parts)
    return tf_multitier.get_embedding_variable(name, 4, initializer=tf.zeros_initializer(), partitioner=partitioner)

def step_of(variables, optimizer):
    def step(ids):
        with tf.GradientTape() as tape:
            loss = -sum(tf.reduce_sum(tf.nn.embedding_lookup(each, ids)) for each in variables)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))
    return tf.function(lambda ids: strategy.run(step, (ids,)))

def train(step, begin=100):
    for i in range(20):
        coordinator.schedule(step, args=(tf.constant([1, 2, 2, begin + i], tf.int64),))
    coordinator.join()

def counts(variable):
    found = variable.get_frequency([1, 2, 105]).numpy().tolist()
    assert found == variable.peek([1, 2, 105]).numpy()[:, 0].tolist()
    return *found, int(variable.total_count())

def devices(variable):
    return [part.device.removesuffix("/device:CPU:0") for part in variable.parts]
"""
RUN = """
outside = new("outside", 1)
with strategy.scope():
    users, items, more = new("users"), new("items", 1), new("more", 3)
    optimizer = tf_multitier.optimizers.SGD(1.0)
server = "/job:ps/replica:0/task:{}".format
assert devices(users) == [server(0), server(1)] and devices(items) == [server(0)], (devices(users), devices(items))
assert devices(more) == [server(1), server(0), server(1)], devices(more)
train(step_of([users, items, more], optimizer))
assert {*map(counts, (users, items, more))} == {(20, 40, 1, 22)} and int(optimizer.iterations) == 20
assert int(more.remove([1, 2, *range(100, 110)])) == 12 and int(more.total_count()) == 10
assert more.get_version([1, 119]).numpy()[0] == -1 and not more.get_frequency([1, 105]).numpy().any()

path = tf.train.Checkpoint(users=users, items=items, optimizer=optimizer).save(folder + "/model")
for parts in (1, 3, None):
    with strategy.scope():
        restored = new("users", parts)
    tf.train.Checkpoint(users=restored).restore(path).expect_partial()
    assert counts(restored) == (20, 40, 1, 22), parts
local = new("users", 1)
tf.train.Checkpoint(users=local).restore(path).expect_partial()
assert counts(local) == (20, 40, 1, 22)

with strategy.scope():
    first, second = new("first", 1), new("second")
    adagrad = tf_multitier.optimizers.Adagrad(1.0)

@tf.function
def grouped(ids):
    ragged = tf.RaggedTensor.from_row_splits(ids, tf.constant([0, 2, 4], tf.int64))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_multitier.nn.group_embedding_lookup_sparse([first, second], [ragged] * 2, "sum", concat=True))
    adagrad.apply_gradients(zip(tape.gradient(loss, [first, second]), [first, second]))

train(grouped)
assert [each.get_frequency([1, 2, 105]).numpy().tolist() for each in (first, second)] == [[20, 40, 1]] * 2

with strategy.scope():
    tabled = tf_multitier.get_embedding_variable("tabled", 4, initializer=[100.0, 200.0])

@tf.function
def in_tables(ids):
    with tf.GradientTape() as tape:
        loss = -tf.reduce_sum(tf_multitier.lookup.embedding_lookup(tabled, ids, tables=[0, 1, 0, 1]))
    optimizer.apply_gradients([(tape.gradient(loss, tabled), tabled)])

train(in_tables)
assert tabled.peek([1, 2, 105], tables=[1, 0, 0]).numpy()[:, 0].tolist() == [120.0, 240.0, 201.0]

def refused(call):
    try:
        call()
    except NotImplementedError as error:
        print(str(error).strip().splitlines()[-1].strip().removeprefix("NotImplementedError: "))

class Held(tf.keras.Layer):
    def __init__(self):
        super().__init__()
        self.table = users

def keras_layer():
    with strategy.scope():
        tf_multitier.keras.Embedding(4)(tf.constant([1]))

def tape_outside():
    with tf.GradientTape():
        tf.function(lambda: tf.reduce_sum(tf.nn.embedding_lookup(users, [1])))()

def dynamicemb():
    de = tf_multitier.dynamicemb
    config = de.EmbeddingConfig(name="t", embedding_dim=4, num_embeddings=64, feature_names=["t"])
    with strategy.scope():
        de.EmbeddingCollection(tables=[config], device="meta").create({"t": de.DynamicEmbTableOptions()}, {})

def load():
    module = tf.Module()
    module.table = outside
    module.look_up = tf.function(lambda: tf.nn.embedding_lookup(module.table, [1]), input_signature=[])
    tf.saved_model.save(module, folder + "/saved")
    with strategy.scope():
        tf.saved_model.load(folder + "/saved")

def by_size():
    strategy.extended._variable_partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(1, 2)
    with strategy.scope():
        new("by size")

refused(lambda: coordinator.schedule(tf.function(lambda: tf.nn.embedding_lookup(outside, [1]))))
refused(lambda: coordinator.schedule(step_of([outside], optimizer), args=(tf.constant([1], tf.int64),)))
refused(lambda: coordinator.schedule(tf.function(lambda: outside.get_frequency([1]))))
refused(tape_outside)
refused(dynamicemb)
refused(keras_layer)
refused(Held)
refused(load)
refused(by_size)
with tf.device("/job:chief/task:0"):
    chief = new("chief", 1)
refused(lambda: coordinator.schedule(step_of([chief], optimizer), args=(tf.constant([1], tf.int64),)))
assert tf.nn.embedding_lookup(outside, [1]).shape == (1, 4) and int(outside.total_count()) == 0
"""
UNREACHED = (
    "a lookup of embedding variable '{0}': expected embedding variables on parameter servers, found '{0}' on "
    "/job:chief/replica:0/task:0/device:CPU:0, which workers do not reach: make it in the scope of the ParameterServerStrategy"
)
KERAS = "expected rows in this process, because Keras 3 does not support parameter servers, found them on a server"


def test_variables_are_on_the_servers_where_scheduled_steps_train_them_exactly_and_are_saved(
    tmp_path,
):
    lines, ends = launch(tmp_path, PROGRAM + RUN, "--workers=3", "--ps=2")
    look_up, train, query, tape, dynamicemb, layer, held, load, by_size, chief = lines["chief 0"]
    assert look_up == train == UNREACHED.format("outside") and chief == UNREACHED.format("chief")
    assert query == UNREACHED.format("outside").replace("a lookup", "a use")
    assert "expected a tape in the tf.function that looks up, found one outside of it" in tape
    assert "found the scope of a ParameterServerStrategy" in dynamicemb
    assert layer.startswith("layer 'embedding': embedding variable") and KERAS in layer
    assert "embedding variable 'users'" in held and KERAS in held
    assert (
        "embedding variable 'outside' of a SavedModel: expected a SavedModel that is loaded out"
        in load
    )
    assert "expected a FixedShardsPartitioner" in by_size and "MinSizePartitioner" in by_size
    assert ends == []


# Its chief ends where a server is absent, also if it has not started again: the launcher starts the chief again.
KILLED = """
def run():
    with strategy.scope():
        users = new("users")
        optimizer = tf_multitier.optimizers.SGD(1.0)
    step = step_of([users], optimizer)
    saved = tf.train.Checkpoint(users=users, optimizer=optimizer)
    checkpoint = tf.train.CheckpointManager(saved, folder + "/models", 3)
    if checkpoint.restore_or_initialize() is None:
        train(step)
        checkpoint.save()
        end_task("worker0", signal.SIGKILL)
        train(step, 200)
        one, two, *_ = counts(users)
        print("worker", one, two)
        end_task("ps1", signal.SIGKILL)
        train(step, 300)
    print("restored", *counts(users), int(optimizer.iterations))
    train(step, 400)
    print("trained", *counts(users))

try:
    run()
except tf.errors.UnavailableError:
    os._exit(9)  # TensorFlow's coordinator may wait for ever when the interpreter ends
"""


def test_a_worker_and_a_server_that_are_killed(tmp_path):
    arguments = ("--workers=3", "--ps=2", "--max_restarts=9")
    lines, ends = launch(tmp_path, PROGRAM + KILLED, *arguments)
    # A chief that starts again before the server has, ends again: it restores more than once.
    (name, one, two), *restored, trained = (line.split() for line in lines["chief 0"])
    # The step that the worker had in hand is run again: it may count twice.
    assert name == "worker" and 40 <= int(one) <= 41 and int(two) == 2 * int(one)
    assert restored and all(line == ["restored", "20", "40", "1", "22", "20"] for line in restored)
    assert trained == ["trained", "40", "80", "1", "42"]
    failed = {line.split()[1] + line.split()[2] for line in ends if "ended with" in line}
    assert failed == {"worker0", "ps1", "chief0"}

"""Tables of dynamicemb in a world of processes, and the same program in one process."""

import json

import numpy as np
import tensorflow as tf

from cluster_util import launch
from worlds import needs_eager

pytestmark = needs_eager

# `of_world` makes, from the gradients of this process, those of all.
PROGRAM = """
import numpy as np
import tensorflow as tf
from tf_multitier import dynamicemb as de

def model_of(world_size):
    configs = [
        de.EmbeddingConfig("users", 4, 1000, ["user", "friend"]),
        de.EmbeddingConfig("items", 2, 100, ["item"]),
    ]
    ones = de.DynamicEmbInitializerArgs(mode=de.DynamicEmbInitializerMode.CONSTANT, value=1.0)
    options = {
        name: de.DynamicEmbParameterConstraints(
            use_dynamicemb=True,
            dynamicemb_options=de.DynamicEmbTableOptions(score_strategy=strategy, initializer_args=ones),
        )
        for name, strategy in (("users", de.DynamicEmbScoreStrategy.STEP), ("items", de.DynamicEmbScoreStrategy.LFU))
    }
    module = de.EmbeddingCollection(configs, "meta")
    planner = de.DynamicEmbeddingShardingPlanner(
        configs, de.Topology(world_size=world_size), constraints=options, debug=False
    )
    sharders = [de.DynamicEmbeddingCollectionSharder({"optimizer": de.EmbOptimType.EXACT_ADAGRAD, "learning_rate": 0.5})]
    plan = planner.collective_plan(module, sharders)
    return de.DistributedModelParallel(module, "meta", sharders, plan)

def batch_of(rank, step):
    random = np.random.default_rng([rank, step])
    sizes = {"user": 3 + rank, "friend": 5, "item": step}
    return {name: tf.constant(random.integers(0, 30, n)) for name, n in sizes.items()}

def train(model, batches, of_world):
    @tf.function(reduce_retracing=True)
    def step(features):
        with tf.GradientTape() as tape:
            rows = model(features)
            loss = tf.add_n([tf.reduce_sum(its * tf.cast(features[name] + 1, tf.float32)[:, None]) for name, its in rows.items()])
        model.apply_gradients(of_world(tape.gradient(loss, model.parameters())))
    for batch in batches:
        step(batch)

def known_of(model):
    known = [model.module.tables_by_name["users"].options.max_capacity]
    keys = tf.range(30, dtype=tf.int64)
    for variable in model.parameters():
        each = variable.peek(keys), variable.get_frequency(keys), variable.get_version(keys)
        known += [its.numpy().tolist() for its in each]
    return known
"""

IN_WORLD = """
import json
import keras
import tf_multitier
strategy = tf_multitier.distribute.CollectiveStrategy()
rank = strategy.rank()
try:
    model_of(3)
except ValueError as error:
    assert "expected one for a world of 2, found one for 3" in str(error), error
model = model_of(2)
train(model, [batch_of(rank, i) for i in range(4)], lambda grads: strategy.reduce_gradients(grads, "sum", model.parameters()))
print("known", json.dumps(known_of(model)))

with strategy.scope():
    try:
        de.EmbeddingCollection([de.EmbeddingConfig("static", 4, 100, ["s"])]).create({"static": None}, {})
    except NotImplementedError as error:
        assert "expected DynamicEmbTableOptions in a world of several processes" in str(error), error
    inputs = keras.Input([3], dtype="int64")
    rows = model.module.keras_layer()({"user": inputs})["user"]
    layers = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
layers.compile(strategy.optimizer(keras.optimizers.SGD(0.1)), "mse")
ids = np.random.default_rng(rank).integers(100, 130, (64, 3))
layers.fit(strategy.dataset(tf.data.Dataset.from_tensor_slices((ids, np.ones([64, 1]))).batch(16)), epochs=2, verbose=0)
users = model.parameters()[0]
every = [np.random.default_rng(q).integers(100, 130, (64, 3)) for q in range(2)]
expected = 2 * np.bincount(np.concatenate(every).ravel(), minlength=130)[100:]
assert users.get_frequency(np.arange(100, 130)).numpy().tolist() == expected.tolist()
"""


def test_tables_train_in_two_processes_as_in_one(tmp_path):
    lines, _ = launch(tmp_path, PROGRAM + IN_WORLD, "--workers=2")
    known = {line for its in lines.values() for line in its if line.startswith("known")}
    assert len(known) == 1
    here: dict = {}
    exec(PROGRAM, here)
    model = here["model_of"](1)
    batches = [(here["batch_of"](0, i), here["batch_of"](1, i)) for i in range(4)]
    whole = [
        {name: tf.concat([its[name] for its in pair], 0) for name in pair[0]} for pair in batches
    ]
    here["train"](model, whole, lambda grads: grads)
    (capacity, *found), (of_one, *expected) = json.loads(known.pop()[6:]), here["known_of"](model)
    assert (capacity, of_one) == (512, 1024)
    for its, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(its, wanted, rtol=1e-6)

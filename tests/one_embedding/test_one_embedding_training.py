"""Embeddings of one_embedding against dense NumPy tables, in every way to run a program, store and rule; to the bit."""

import keras
import numpy as np
import pytest
import reference_rules
import tensorflow as tf
import worlds
from one_embedding_util import F
from one_embedding_util import device_store
from one_embedding_util import embedding
from one_embedding_util import ssd_store
from one_embedding_util import table_rows
from one_embedding_util import tables_of

import tf_multitier
from tf_multitier import one_embedding

STEPS, BATCH, IDS = 20, 6, 12


def _adam(step):
    powers = [F(beta) for beta in (0.9, 0.999)]
    for _ in range(step):
        powers = [power * F(beta) for power, beta in zip(powers, (0.9, 0.999))]
    beta1_power, beta2_power = powers
    return dict(
        learning_rate=0.1,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-7,
        beta1_power=beta1_power,
        beta2_power=beta2_power,
    )


# {rule: (Keras' optimizer, hyperparameters of a step, states per element)}.
RULES = {
    "sgd": (lambda: keras.optimizers.SGD(0.1), lambda step: dict(learning_rate=0.1), 0),
    "momentum": (
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        lambda step: dict(learning_rate=0.1, momentum=0.9, use_nesterov=1),
        1,
    ),
    "adagrad": (lambda: keras.optimizers.Adagrad(0.1), lambda step: dict(learning_rate=0.1), 1),
    "adam": (lambda: keras.optimizers.Adam(0.1), _adam, 2),
    "ftrl": (
        lambda: one_embedding.Ftrl(0.1, lambda1=0.01, lambda2=0.02),
        lambda step: dict(
            learning_rate=0.1, learning_rate_power=-0.5, l1=0.01, l2=0.01, l2_shrinkage=0
        ),
        2,
    ),
}

# Pairwise: how the program runs, tables, dims, rule, store.
CASES = [
    ("session", 3, 4, "sgd", "device"),
    ("session", 26, [4, 3], "momentum", "partitions"),
    ("eager", 1, 5, "ftrl", "device"),
    ("eager", 26, 4, "momentum", "ssd"),
    ("eager", 3, [3, 2], "sgd", "hbm"),
    ("function", 300, 4, "adam", "device"),
    ("function", 3, [2, 6], "adagrad", "ssd"),
    ("function", 1, 8, "sgd", "ssd"),
    ("function", 26, 3, "ftrl", "partitions"),
    ("session", 300, 2, "adagrad", "hbm"),
]


def _store(kind, path, dim, states):
    """Room for 16 rows of a cache, or for all."""
    elements = np.sum(dim) * (1 + states)
    return ssd_store(path, 16, elements) if kind == "ssd" else device_store(path)


def _made(kind, tables, dim, rule, store, path):
    made = embedding(
        path,
        tables_of(tables, np.size(dim)),
        dim,
        store=_store(store, path, dim, RULES[rule][2]),
    )
    if store == "hbm":
        made.to("cuda")
    partitioner = tf.compat.v1.fixed_size_partitioner(3) if store == "partitions" else None
    with tf.compat.v1.variable_scope("", partitioner=partitioner):
        assert len(made.parameters()) == (3 if store == "partitions" else 1)
    return made


def _step(world, kind, made, rule):
    """A function of ids and the gradient of their rows."""

    def loss(ids, weights):
        return tf.reduce_sum(made(ids) * weights)

    if kind == "session":
        # The v1 optimizers of worlds.py, with the hyperparameters of RULES.
        v1 = tf.compat.v1.train
        optimizer = {
            "sgd": lambda: v1.GradientDescentOptimizer(0.1),
            "momentum": lambda: v1.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
            "adagrad": lambda: v1.AdagradOptimizer(0.1),
        }[rule]()

        def train(ids, weights):
            return optimizer.minimize(loss(ids, weights), var_list=made.parameters())

        return lambda ids, weights: world.run(train, ids, weights)
    optimizer = one_embedding.Optimizer(RULES[rule][0](), [made])

    def train(ids, weights):
        with tf.GradientTape() as tape:
            value = loss(ids, weights)
        gradients = tape.gradient(value, made.parameters())
        optimizer.apply_gradients(zip(gradients, made.parameters()))

    return lambda ids, weights: world.run(train, ids, weights)


@pytest.mark.parametrize(("kind", "tables", "dim", "rule", "store"), CASES)
def test_rows_are_those_of_dense_tables(kind, tables, dim, rule, store, tmp_path, emulated_device):
    if kind != "session" and not worlds.has_eager():
        pytest.skip("eager execution is off in v1 behaviour")
    rng = np.random.default_rng(1)
    all_ids = np.arange(tables)[:, None] * 1000 + np.arange(IDS)
    with worlds.make_world(kind) as world:
        made = _made(kind, tables, dim, rule, store, tmp_path)
        step = _step(world, kind, made, rule)
        read = lambda ids: made(tf.transpose(ids), training=False)
        first = np.swapaxes(world.run(read, all_ids), 0, 1)
        rows = dict(zip(all_ids.ravel().tolist(), first.reshape(-1, first.shape[-1])))
        reference = reference_rules.Rows(rule, rows, RULES[rule][1])
        for _ in range(STEPS):
            ids = np.arange(tables) * 1000 + rng.integers(0, IDS, (BATCH, tables))
            weights = rng.normal(size=(BATCH, tables, np.sum(dim))).astype(F)
            step(ids, weights)
            reference.train(ids, weights)
        found = np.swapaxes(world.run(read, all_ids), 0, 1)
        frequencies = world.run(lambda ids: made.variable.get_frequency(ids), all_ids)
    for t in range(tables):
        for i, key in enumerate(all_ids[t].tolist()):
            np.testing.assert_array_equal(found[t, i], reference.rows[key], f"id {key}")
            assert frequencies[t, i] == reference.counts.get(key, 0)


@worlds.needs_eager
@pytest.mark.parametrize(
    "settings",
    [{}, {"clipnorm": 0.1}, {"clipvalue": 0.01}, {"global_clipnorm": 0.1}, {"weight_decay": 0.5}],
)
def test_rows_and_dense_variables_follow_schedule_clipping_and_decay(settings, tmp_path):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.125])
    made = embedding(tmp_path, tables_of(1))
    optimizer = one_embedding.Optimizer(keras.optimizers.SGD(schedule, **settings), [made])
    start = made([7, 8]).numpy()
    rows, dense = tf.Variable(start), tf.Variable(np.ones((2, 4), F))
    ours = tf.Variable(dense)
    plain = keras.optimizers.SGD(schedule, **settings)
    for _ in range(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(made([7, 8]) * ours)
        variables = [ours, *made.parameters()]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(rows * dense)
        plain.apply_gradients(zip(tape.gradient(loss, [dense, rows]), [dense, rows]))
    assert not np.array_equal(made([7, 8]), start)
    np.testing.assert_allclose(made([7, 8]), rows, rtol=1e-6)
    np.testing.assert_allclose(ours, dense, rtol=1e-6)


@worlds.needs_eager
def test_several_calls_a_step_update_each_key_once(tmp_path):
    made = embedding(tmp_path, tables_of(1))
    optimizer = one_embedding.Optimizer(keras.optimizers.Adagrad(0.1), [made])
    row = made([5]).numpy()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(made([5, 5])) + tf.reduce_sum(made([[5], [6]]) * 2.0)
        gradients = tape.gradient(loss, made.parameters())
        optimizer.apply_gradients(zip(gradients, made.parameters()))

    reference = reference_rules.Rows("adagrad", {5: row[0]}, RULES["adagrad"][1])
    for _ in range(3):
        step()
        reference.train([5], np.full((1, 4), 4, F))
    np.testing.assert_array_equal(made([5])[0], reference.rows[5])
    assert {key: count for key, (_, count) in table_rows(made).items()} == {5: 9, 6: 3}


@worlds.needs_eager
def test_an_embedding_that_is_not_trained_is_an_error(tmp_path):
    made, other = (embedding(tmp_path / n, tables_of(1), name=n) for n in "ab")
    optimizer = one_embedding.Optimizer(keras.optimizers.SGD(0.1), [made, other])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(made([5]))
    gradient = tape.gradient(loss, made.variable)
    with pytest.raises(ValueError, match="expected the parameters of embedding 'b'"):
        optimizer.apply_gradients([(gradient, made.variable)])
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="found a graph: .* var_list"):
        optimizer.apply_gradients([])
    pairs = "Optimizer: expected pairs of a gradient and a variable, found"
    for given in (None, [gradient], [(gradient, gradient)], [(gradient, "a")]):
        with pytest.raises(TypeError, match=pairs):
            optimizer.apply_gradients(given)
    with pytest.raises(TypeError, match=r"expected tf.IndexedSlices or a tensor, found \[1.0\]"):
        optimizer.apply_gradients([([1.0], made.variable), (None, other.variable)])
    assert not table_rows(made)


@worlds.needs_eager
@pytest.mark.parametrize("is_layer", [False, True])
@pytest.mark.parametrize("function", [False, True])
def test_weights_of_a_keras_model_are_parameters(function, is_layer, tmp_path):
    class Model(keras.Model):
        """Holds an embedding, or calls its layer."""

        def __init__(self, made):
            super().__init__()
            self.embedding = made.keras_layer() if is_layer else made
            self.scale = self.add_weight(shape=(), initializer="ones")

        def call(self, ids):
            """The scaled rows."""
            return self.embedding(ids) * self.scale

    made = embedding(tmp_path, tables_of(1))
    model = Model(made)
    start = model(np.array([5])).numpy()
    optimizer = one_embedding.Optimizer(keras.optimizers.SGD(0.5), [made])

    def step(ids, twice):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(ids))
        variables = [*model.trainable_variables, *(made.parameters() if twice else [])]
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))

    run = tf.function(step) if function else step
    for twice in (True, False):
        model.scale.assign(1)
        run(tf.constant([5], tf.int64), twice)
    np.testing.assert_array_equal(made([5]), start - F(0.5) - F(0.5))
    two = [(tf.IndexedSlices(tf.ones([1, 4]), [5]), made.variable) for _ in range(2)]
    with pytest.raises(ValueError, match="expected one gradient for 'e:0', found two"):
        optimizer.apply_gradients(two)
    if is_layer:
        model.embedding.optimizer = tf_multitier.optimizers.SGD(0.1)
        with pytest.raises(ValueError, match="a layer without an optimizer .* found SGD"):
            step(tf.constant([5], tf.int64), False)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: keras.optimizers.RMSprop(), "found RMSprop"),
        (lambda: keras.optimizers.SGD(use_ema=True), "use_ema"),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "no loss scaling"),
        (lambda: one_embedding.Ftrl(weight_decay=0.1), "expected 0, found 0.1: use lambda2"),
        (lambda: one_embedding.SmartDecayAdam(), "catches up"),
    ],
)
def test_what_rows_have_no_rule_for_is_refused_with_its_reason(make, reason):
    with pytest.raises(NotImplementedError, match=reason):
        one_embedding.Optimizer(make(), [])

"""Lookups inside of tf.recompute_grad and keras.remat, and zeros for variables that a loss does not use."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from test_tf2_gradients import loss_of
from test_tf2_gradients import make
from test_tf2_gradients import PATHS
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
optimizers = tf_multitier.optimizers

# Where TensorFlow runs its own code for ragged ids: each key counts once, and partitioned variables are refused.
RECOMPUTED = [path for path in PATHS if path != "ragged v1"]
SOME = ["dense", "sparse weights", "group sparse", "twice"]
CASES = [("eager", path, 1) for path in RECOMPUTED]
CASES += [(where, path, 3) for where in ("inside", "around") for path in SOME]


def trained(path, wrap, where, parts):
    """Three steps: (rows sorted by key, the gradients of a dense variable and of an argument)."""
    ev, factor, optimizer = make(parts=parts), tf.Variable(2.0), optimizers.Adagrad(0.1)
    wrapped = wrap(lambda x: loss_of(path, ev) * factor * x)
    forward = tf.function(wrapped) if where == "around" else wrapped

    def step():
        x = tf.constant(3.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = forward(x)
        gradient, *others = tape.gradient(loss, [ev, factor, x])
        optimizer.apply_gradients([(gradient, ev)])
        return others

    step = tf.function(step) if where == "inside" else step
    others = [step() for _ in range(3)]
    exported = [part.numpy() for part in ev.export()]
    order = np.argsort(exported[0])
    return [part[order] for part in exported], others


@pytest.mark.parametrize(("where", "path", "parts"), CASES)
def test_a_recomputed_lookup_trains_and_counts_as_one_that_is_not(where, path, parts):
    (keys, values, *counts), others = trained(path, tf.recompute_grad, where, parts)
    (expected_keys, expected, *expected_counts), dense = trained(path, lambda f: f, where, parts)
    same_bits([keys, counts], [expected_keys, expected_counts])  # versions and frequencies
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    np.testing.assert_allclose(others, dense, rtol=1e-5)


def test_the_function_runs_again_in_the_backward_pass_and_may_take_ids():
    ev, runs = make(), []

    @tf.recompute_grad
    def square(ids):
        runs.append(len(runs))
        return tf.nn.embedding_lookup(ev, ids) ** 2

    ids = tf.constant([7, 2**62 + 1, -5], tf.int64)  # keys whose bits are no float of their value
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(square(ids))
    assert len(runs) == 1
    gradient = tape.gradient(loss, ev)
    assert len(runs) == 2
    same_bits(gradient.indices, ids)
    same_bits(gradient.values, 2 * tf.nn.embedding_lookup(ev, ids))


def test_a_variable_read_by_two_recomputed_functions_is_updated_once():
    ev, optimizer = make(), optimizers.Adagrad(0.1)
    layer = tf.recompute_grad(lambda x: x * tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 1, 2])))

    @tf.function
    def step():
        with tf.GradientTape(persistent=True) as tape:
            loss = layer(layer(tf.constant(1.0))) + tf.reduce_sum(tf.nn.embedding_lookup(ev, [3]))
        optimizer.apply_gradients([(tape.gradient(loss, ev), ev)])

    step()
    assert ev.get_frequency([1, 2, 3]).numpy().tolist() == [4, 2, 1]
    assert ev.get_version([1, 2, 3]).numpy().tolist() == [0, 0, 0]


@pytest.mark.parametrize("compiled", [lambda f: f, tf.function], ids=["eager", "function"])
def test_a_variable_that_a_recomputed_function_reads_in_vain_is_not_trained(compiled):
    a, b, optimizer = make("a"), make("b"), optimizers.SGD(0.1)

    @tf.recompute_grad
    def first(x):
        used, _ = tf_multitier.nn.group_embedding_lookup([a, b], [[1], [2]])
        return tf.reduce_sum(used) * x

    @compiled
    def step():
        with tf.GradientTape() as tape:
            loss = first(tf.constant(1.0))
        optimizer.apply_gradients(zip(tape.gradient(loss, [a, b]), [a, b]))

    step()
    assert (int(a.total_count()), int(b.total_count())) == (1, 0)


def test_recompute_grad_around_the_rest_of_a_model_works():
    ev = make()
    squared = tf.recompute_grad(lambda values: values**2)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(squared(tf.nn.embedding_lookup(ev, [1, 2])))
    gradient = tape.gradient(loss, ev)
    np.testing.assert_allclose(gradient.values, 2 * tf.nn.embedding_lookup(ev, [1, 2]), rtol=1e-6)


def test_other_slices_become_dense_as_before():
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([0, 2]), tf.constant([3, 3]))
    assert tf.convert_to_tensor(slices).numpy().tolist() == [[1.0] * 3, [0.0] * 3, [1.0] * 3]
    static = tf.Variable(tf.ones([5, 3]))
    looked_up = tf.recompute_grad(lambda x: tf.nn.embedding_lookup(static, [1, 1]) * x)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(looked_up(tf.constant(2.0)))
    assert tf.convert_to_tensor(tape.gradient(loss, static)).numpy()[1].tolist() == [4.0] * 3
    none = tf.IndexedSlices(tf.ones([0, 4]), tf.zeros([0], tf.int64), tf.constant([0, 4]))
    assert tf.convert_to_tensor(none).shape == [0, 4]


@pytest.mark.parametrize("compiled", [lambda f: f, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize(
    "use",
    [
        lambda g, h: tf.add_n([g, h]),
        lambda g, h: g.values[0] + h,
        lambda g, h: tf.clip_by_norm(tf.convert_to_tensor(g), 1.0),
    ],
)
def test_a_gradient_of_keys_in_dense_arithmetic_names_what_to_do(use, compiled):
    ev = make()

    @compiled
    def both(ids):
        with tf.GradientTape(persistent=True) as tape:
            losses = [tf.reduce_sum(tf.nn.embedding_lookup(ev, ids + i)) for i in range(2)]
        return use(*[tape.gradient(loss, ev) for loss in losses])

    with pytest.raises(NotImplementedError, match="take the gradient of the sum of the losses"):
        both(tf.constant([1, 2, 2]))


# ---- zeros


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("compiled", [lambda f: f, tf.function], ids=["eager", "function"])
def test_zeros_for_a_variable_that_the_loss_does_not_use_train_nothing(compiled, parts):
    used, unused = make("used", parts=parts), make("unused", parts=parts)
    optimizer = optimizers.Adagrad(0.1)

    @compiled
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(used, [1, 2]))
        zero = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(loss, [used, unused], unconnected_gradients=zero)
        optimizer.apply_gradients(zip(gradients, [used, unused]))
        return gradients[1]

    for zeros in tf.nest.flatten(step()):
        assert zeros.shape == (0, 4)
    assert int(used.total_count()) == 2 and int(unused.total_count()) == 0
    assert int(optimizer.iterations) == 1


CHANGES = {
    "halved": lambda grads: [None, grads[1] * 0.5],
    "by norm": lambda grads: [None, tf.clip_by_norm(grads[1], 1.0)],
    "by global norm": lambda grads: tf.clip_by_global_norm(grads, 1.0)[0],
    "by value": lambda grads: [None, tf.clip_by_value(grads[1], -1.0, 1.0)],
}


@pytest.mark.parametrize("change", sorted(CHANGES))
@pytest.mark.parametrize("compiled", [lambda f: f, tf.function], ids=["eager", "function"])
def test_zeros_that_were_clipped_or_scaled_train_nothing(compiled, change):
    used, unused, optimizer = make("used"), make("unused"), optimizers.Adagrad(0.1)

    @compiled
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(used, [1, 2]))
        zero = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(loss, [used, unused], unconnected_gradients=zero)
        pairs = [(gradients[0], used), (CHANGES[change](gradients)[1], unused)]
        optimizer.apply_gradients(pairs)

    step()
    assert int(used.total_count()) == 2 and int(unused.total_count()) == 0
    assert int(optimizer.iterations) == 1


# ---- what is refused


@pytest.mark.parametrize("wrap", ["recompute_grad", "custom_gradient"])
@pytest.mark.parametrize("how", ["argument", "in a list", "keyword"])
@pytest.mark.parametrize("compiled", [lambda f: f, tf.function], ids=["eager", "function"])
def test_a_variable_as_an_argument_is_refused_by_name(compiled, how, wrap):
    ev = make("users")
    forward = lambda x, its: tf.reduce_sum(tf.nn.embedding_lookup(tf.nest.flatten(its)[0], [1])) * x
    if wrap == "recompute_grad":
        wrapped = tf.recompute_grad(forward)
    else:
        wrapped = tf.custom_gradient(lambda x, its: (forward(x, its), lambda dy: (dy, None)))
    given = [ev] if how == "in a list" else ev

    @compiled
    def loss(x):
        return wrapped(x, its=given) if how == "keyword" else wrapped(x, given)

    refusals = (NotImplementedError, ValueError)  # in functions, TensorFlow refuses keywords
    with pytest.raises(refusals, match="'users' .* enclosing scope|supports keywords") as refused:
        with tf.GradientTape():
            loss(tf.constant(2.0))
    assert refused.type is NotImplementedError or how == "keyword"


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("shape", [[2, 4], [2, 5], [2, 6], [2, 8], [6], []])
@pytest.mark.parametrize("compiled", [lambda f: f, tf.function], ids=["eager", "function"])
def test_a_dense_result_of_a_custom_gradient_is_refused(compiled, shape, is_known):
    ev = make()

    @tf.custom_gradient
    def sums(x):
        def gradients(dy, variables):
            del variables
            size = shape if is_known else tf.cast(tf.constant(shape, tf.float32) + 0 * dy, tf.int32)
            return dy, [tf.ones(size)]

        return x * tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 2])), gradients

    @compiled
    def gradient(x):
        with tf.GradientTape() as tape:
            loss = sums(x)
        return tape.gradient(loss, ev).values

    refusals = (TypeError, tf.errors.InvalidArgumentError)
    with pytest.raises(refusals, match="expected IndexedSlices of keys, found a dense tensor"):
        gradient(tf.constant(2.0))


# ---- Keras


def keras_model(how):
    keras = pytest.importorskip("keras")
    kt = pytest.importorskip("tf_multitier.keras")

    class Pooled(keras.layers.Layer):
        """An embedding in a function that is recomputed.

        No dense layer is in it: Keras 3.15 may update a weight before the recomputed function reads it. Two `keras.layers.Dense`
        in keras.remat, without this package, then have one of two results.
        """

        def __init__(self):
            super().__init__()
            self.rows = kt.Embedding(
                4, "ones", combiner="mean", optimizer=optimizers.Adagrad(0.1), name="rows"
            )
            self.recomputed = keras.remat(self.inner)

        def build(self, shape):
            self.rows.build(shape)

        def inner(self, ids):
            return tf.exp(self.rows(ids))

        def call(self, ids):
            return self.recomputed(ids)

    keras.utils.set_random_seed(1)
    ids = keras.Input((3,), dtype="int64")
    if how == "remat":
        layer = Pooled()
        return keras.Model(ids, keras.layers.Dense(1)(layer(ids))), layer.rows
    with keras.RematScope(mode="full" if how.startswith("scope") else None):
        features = {"a": {"output_dim": 4, "embeddings_initializer": "ones"}}
        rows = kt.GroupEmbedding(features, concat=True, optimizer=optimizers.Adagrad(0.1))
        if how != "scope of a group":
            rows = kt.Embedding(4, "ones", combiner="mean", optimizer=optimizers.Adagrad(0.1))
        pooled = rows({"a": ids} if how == "scope of a group" else ids)
    # Outside: Keras 3.15 fails in `fit` for its own layers that take `training`.
    return keras.Model(ids, keras.layers.Dense(1)(keras.ops.exp(pooled))), rows


def test_rematerialized_keras_models_train_as_others():
    ids = np.random.default_rng(0).integers(0, 50, (64, 3))
    labels = ids.sum(1, keepdims=True).astype(np.float32) / 50
    results = {}
    for how in ("plain", "scope", "scope of a group", "remat"):
        made, rows = keras_model(how)
        made.compile("sgd", "mse")
        history = made.fit(ids, labels, batch_size=16, epochs=2, shuffle=False, verbose=0)
        keys, _, *counts = rows.tables[0].export()
        results[how] = keys.numpy(), [c.numpy() for c in counts], history.history["loss"]
    for keys, counts, losses in results.values():
        same_bits([keys, counts], results["plain"][:2])
        np.testing.assert_allclose(losses, results["plain"][2], rtol=1e-5)


@pytest.mark.parametrize("kind", ["function", "cond"])
def test_a_function_or_a_branch_that_looks_up_is_recomputed_in_a_function(kind):
    ev = make()
    ids = tf.constant([1, 2, 1], tf.int64)
    forward = lambda x: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)) * x
    inner = {
        "function": tf.function(forward),
        "cond": lambda x: tf.cond(x > 0, lambda: forward(x), lambda: -forward(x)),
    }[kind]
    recomputed = tf.recompute_grad(inner)

    def gradients(of):
        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = of(tf.constant(2.0))
            gradient = tape.gradient(loss, ev)
            return gradient.indices, gradient.values

        return [tensor.numpy().tolist() for tensor in step()]

    found, expected = (sorted(zip(*gradients(of))) for of in (recomputed, inner))
    assert found == expected and len(found) > 0


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.float64])
def test_variables_of_others_without_rows_stay_as_they_are(dtype):
    other = tf.Variable(tf.zeros([0, 4], dtype))
    recomputed = tf.recompute_grad(
        lambda x: tf.reduce_sum(tf.gather(other, tf.zeros([0], tf.int32))) * x
    )
    with tf.GradientTape() as tape:
        loss = recomputed(tf.constant(2, dtype))
    gradient = tf.convert_to_tensor(tape.gradient(loss, other))
    assert (gradient.shape, gradient.dtype) == ([0, 4], dtype)

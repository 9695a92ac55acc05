"""The three ways to run a TensorFlow program, for tests that hold in each: a Session, eagerly, and tf.function.

A test that takes the fixture `world` runs three times. It makes its variables in the test's body, which runs in the world's graph
if it has one, and gives the world functions of tensors:

    def test_a_row_is_trained(world):
        ev = make()
        step = world.step(lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)), [ev], "sgd", 1.0)
        step([1, 2])                                          arrays are fed
        keys, *_ = world.run(ev.export)                       results are arrays
        values = world.run(lambda ids: tf.nn.embedding_lookup(ev, ids), [1, 2])

Give `run` the same function again rather than an equal one: it is built or traced once.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier._src.training import rules

v1 = tf.compat.v1
WORLDS = ("session", "eager", "function")


def _v1_adamw(rate):
    """AdamW whose decay is scaled as in TensorFlow 2: by the learning rate without the correction of its bias."""

    def decay():
        beta_1, beta_2 = made._beta_powers()
        return tf.constant(0.1) * tf.sqrt(tf.square(1 - beta_1) / (1 - beta_2))

    made = tf_multitier.train.AdamWOptimizer(decay, learning_rate=rate, epsilon=1e-7)
    return made


class _RMSPropFromZero(v1.train.RMSPropOptimizer):
    """RMSProp whose mean of squares begins at 0, as in TensorFlow 2, and not at 1."""


@rules.register_rule(_RMSPropFromZero)
def _rmsprop_from_zero(optimizer):
    return rules.bound(rules._rmsprop(optimizer).rule, rms=0.0)


class AdagradWithEpsilon(v1.train.AdagradOptimizer):
    """Adagrad with an epsilon of 1e-8."""


@rules.register_rule(AdagradWithEpsilon)
def _adagrad_with_epsilon(optimizer):
    slots, hyper = rules._adagrad(optimizer)[1:]
    return rules.Binding("adagrad_epsilon", slots, lambda o, v: [*hyper(o, v), 1e-8])


# {rule: (v1 optimizer, or None, optimizer of TensorFlow 2)} with equal hyperparameters.
OPTIMIZERS = {
    "sgd": (
        lambda rate=0.1: v1.train.GradientDescentOptimizer(rate),
        lambda rate=0.1: tf_multitier.optimizers.SGD(rate),
    ),
    "momentum": (
        lambda rate=0.1: v1.train.MomentumOptimizer(rate, 0.9, use_nesterov=True),
        lambda rate=0.1: tf_multitier.optimizers.Momentum(rate, 0.9, nesterov=True),
    ),
    "adagrad": (
        lambda rate=0.1: v1.train.AdagradOptimizer(rate),
        lambda rate=0.1: tf_multitier.optimizers.Adagrad(rate),
    ),
    "adagrad_epsilon": (
        lambda rate=0.1: AdagradWithEpsilon(rate),
        lambda rate=0.1: tf_multitier.optimizers.Adagrad(rate, epsilon=1e-8),
    ),
    "rowwise_adagrad": (
        lambda rate=0.1: tf_multitier.train.RowwiseAdagradOptimizer(rate),
        lambda rate=0.1: tf_multitier.optimizers.RowwiseAdagrad(rate),
    ),
    "adam": (
        lambda rate=0.1: v1.train.AdamOptimizer(rate, epsilon=1e-7),
        lambda rate=0.1: tf_multitier.optimizers.Adam(rate),
    ),
    "ftrl": (
        lambda rate=0.1: v1.train.FtrlOptimizer(rate, l1_regularization_strength=0.01, beta=0.5),
        lambda rate=0.1: tf_multitier.optimizers.Ftrl(
            rate, l1_regularization_strength=0.01, beta=0.5
        ),
    ),
    "adadelta": (
        lambda rate=0.1: v1.train.AdadeltaOptimizer(rate, epsilon=1e-7),
        lambda rate=0.1: tf_multitier.optimizers.Adadelta(rate),
    ),
    "adamw": (
        lambda rate=0.1: _v1_adamw(rate),
        lambda rate=0.1: tf_multitier.optimizers.AdamW(rate, weight_decay=0.1),
    ),
    "rmsprop": (
        lambda rate=0.1: _RMSPropFromZero(rate, momentum=0.5, epsilon=1e-7),
        lambda rate=0.1: tf_multitier.optimizers.RMSprop(rate, momentum=0.5),
    ),
    "centered_rmsprop": (
        lambda rate=0.1: _RMSPropFromZero(rate, epsilon=1e-7, centered=True),
        lambda rate=0.1: tf_multitier.optimizers.RMSprop(rate, centered=True),
    ),
    "adam_amsgrad": (None, lambda rate=0.1: tf_multitier.optimizers.Adam(rate, amsgrad=True)),
    "adamax": (None, lambda rate=0.1: tf_multitier.optimizers.Adamax(rate)),
    "lion": (None, lambda rate=0.1: tf_multitier.optimizers.Lion(rate)),
    "nadam": (None, lambda rate=0.1: tf_multitier.optimizers.Nadam(rate)),
}
TF2_ALONE = {rule for rule, (of_v1, _) in OPTIMIZERS.items() if of_v1 is None}


class SessionWorld:
    """A v1 graph and its Session."""

    is_graph, is_eager = True, False

    def __init__(self):
        self.graph = tf.Graph()
        self.session = None
        self._initialized = set()
        self._built = {}  # {(function, types of its arguments): (placeholders, results)}

    def __enter__(self):
        self._default = self.graph.as_default()
        self._default.__enter__()
        return self

    def __exit__(self, *error):
        self._default.__exit__(*error)
        if self.session is not None:
            self.session.close()

    def run(self, function, *arrays):
        """The results of a function of tensors. Its variables are initialised before its first run."""
        arrays = [np.asarray(array) for array in arrays]
        key = (function, *((array.dtype, array.ndim) for array in arrays))
        if key not in self._built:
            fed = [v1.placeholder(array.dtype, [None] * array.ndim) for array in arrays]
            self._built[key] = fed, function(*fed)
        fed, results = self._built[key]
        self._open()
        return None if results is None else self.session.run(results, dict(zip(fed, arrays)))

    def stats(self, variable):
        return self.run(variable.stats)

    def _open(self):
        if self.session is None:
            self.session = v1.Session(graph=self.graph)
        new = [v for v in v1.global_variables() if id(v) not in self._initialized]
        self.session.run([variable.initializer for variable in new])
        self._initialized |= set(map(id, new))

    def with_gradients(self, function, sources):
        """(values, gradients of the sources) of a function that returns (values, loss). For use in `run`."""
        values, loss = function()
        return values, tf.gradients(loss, sources)

    def step(self, loss, variables, rule="sgd", rate=0.1, change=None):
        """A function of arrays that trains the variables once. `change` takes and gives pairs of gradient and variable.

        counts=False: it leaves the global step as it is, so that several variables train at the same one. Optimizers of
        TensorFlow 2 count their own steps.
        """
        optimizer, parts = OPTIMIZERS[rule][0](rate), parts_of(variables)
        step = v1.train.get_or_create_global_step()

        def train(*fed):
            pairs = optimizer.compute_gradients(loss(*fed), parts)
            return optimizer.apply_gradients(change(pairs) if change else pairs)

        def train_and_count(*fed):
            with tf.control_dependencies([train(*fed)]):
                return v1.assign_add(step, 1).op

        def run(*arrays, counts=True):
            self.run(train_and_count if counts else train, *arrays)

        return run

    def variables(self, make):
        with self.graph.as_default():
            self.made = make()
        return self.made

    def train(self, loss, rule, batches):
        with self.graph.as_default():
            step = self.step(lambda *batch: loss(self.made, batch), self.made, rule)
            for batch in batches:
                step(*batch)

    def ask(self, question):
        with self.graph.as_default():
            return self.run(lambda: question(self.made))


class EagerWorld:
    """Eager execution."""

    is_graph, is_eager = False, True

    def __init__(self):
        self._compiled = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        del error

    def compiled(self, function):
        return function

    def run(self, function, *arrays):
        if function not in self._compiled:
            self._compiled[function] = self.compiled(lambda *given: _results(function(*given)))
        answer = self._compiled[function](*[tf.constant(np.asarray(array)) for array in arrays])
        as_array = lambda result: result.numpy() if tf.is_tensor(result) else result
        return tf.nest.map_structure(as_array, answer)

    def stats(self, variable):
        return variable.stats()

    def with_gradients(self, function, sources):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            values, loss = function()
        return values, tape.gradient(loss, sources)

    def step(self, loss, variables, rule="sgd", rate=0.1, change=None):
        optimizer, parts = OPTIMIZERS[rule][1](rate), parts_of(variables)

        def train(*batch):
            with tf.GradientTape() as tape:
                value = loss(*batch)
            pairs = list(zip(tape.gradient(value, parts), parts))
            optimizer.apply_gradients(change(pairs) if change else pairs)

        def run(*arrays, counts=True):
            del counts
            self.run(train, *arrays)

        return run

    def variables(self, make):
        self.made = make()
        return self.made

    def train(self, loss, rule, batches):
        step = self.step(lambda *batch: loss(self.made, batch), self.made, rule)
        for batch in batches:
            step(*batch)

    def ask(self, question):
        return self.run(lambda: question(self.made))


class FunctionWorld(EagerWorld):
    """Every step and every question is a tf.function."""

    is_eager = False

    def compiled(self, function):
        return tf.function(function, reduce_retracing=True)


def _results(answer):
    """The answer of a query. In a function, one without a result is an operation."""
    return None if isinstance(answer, tf.Operation) else answer


def make_world(name):
    return {"session": SessionWorld, "eager": EagerWorld, "function": FunctionWorld}[name]()


def parts_of(variables):
    return [part for variable in variables for part in variable.parts]


def same_bits(first, second):
    """Asserts that two nested results are equal to the bit."""
    for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_array_equal(a, b)
        if a.dtype != object:  # zeros of both signs are equal
            assert a.tobytes() == b.astype(a.dtype).tobytes(), f"other signs: {a} and {b}"


def has_eager():
    """False in v1 behaviour (conftest.py)."""
    return tf.compat.v1.executing_eagerly_outside_functions()


needs_eager = pytest.mark.skipif(
    not has_eager(),
    reason="eager execution is off in v1 behaviour",
)

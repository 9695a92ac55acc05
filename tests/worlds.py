"""The three ways to run a TensorFlow program, for tests that must give the same bits in each: a Session, eagerly, and tf.function.

world = make_world("function")
world.variables(lambda: [tf_multitier.get_embedding_variable(...)])
world.train(loss, optimizer, batches)      loss: function of (variables, batch) -> scalar
world.ask(lambda variables: variables[0].export())
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier

v1 = tf.compat.v1
WORLDS = ("session", "eager", "function")

# {rule: (v1 optimizer, optimizer of TensorFlow 2)} with equal hyperparameters. None: the two differ, in initial slots or in how
# the decay is scaled.
OPTIMIZERS = {
    "sgd": (
        lambda: v1.train.GradientDescentOptimizer(0.1),
        lambda: tf_multitier.optimizers.SGD(0.1),
    ),
    "momentum": (
        lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
        lambda: tf_multitier.optimizers.Momentum(0.1, 0.9, nesterov=True),
    ),
    "adagrad": (
        lambda: v1.train.AdagradOptimizer(0.1),
        lambda: tf_multitier.optimizers.Adagrad(0.1),
    ),
    "rowwise_adagrad": (
        lambda: tf_multitier.train.RowwiseAdagradOptimizer(0.1),
        lambda: tf_multitier.optimizers.RowwiseAdagrad(0.1),
    ),
    "adam": (
        lambda: v1.train.AdamOptimizer(0.1, epsilon=1e-7),
        lambda: tf_multitier.optimizers.Adam(0.1),
    ),
    "ftrl": (
        lambda: v1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01, beta=0.5),
        lambda: tf_multitier.optimizers.Ftrl(0.1, l1_regularization_strength=0.01, beta=0.5),
    ),
    "adadelta": (
        lambda: v1.train.AdadeltaOptimizer(0.1, epsilon=1e-7),
        lambda: tf_multitier.optimizers.Adadelta(0.1),
    ),
    "adamw": (None, lambda: tf_multitier.optimizers.AdamW(0.1, weight_decay=0.1)),
    "rmsprop": (None, lambda: tf_multitier.optimizers.RMSprop(0.1, momentum=0.5)),
    "centered_rmsprop": (None, lambda: tf_multitier.optimizers.RMSprop(0.1, centered=True)),
}


class SessionWorld:
    """A v1 graph and its Session."""

    def __init__(self):
        self.graph = tf.Graph()
        self.session = None

    def variables(self, make):
        with self.graph.as_default():
            self.made = make()
        return self.made

    def train(self, loss, rule, batches):
        with self.graph.as_default():
            step = v1.train.get_or_create_global_step()
            fed = [v1.placeholder(b.dtype, [None] * b.ndim) for b in batches[0]]
            train = OPTIMIZERS[rule][0]().minimize(
                loss(self.made, fed), global_step=step, var_list=parts_of(self.made)
            )
            self._open()
            for batch in batches:
                self.session.run(train, dict(zip(fed, batch)))

    def _open(self):
        if self.session is None:
            self.session = v1.Session(graph=self.graph)
            self.session.run(v1.global_variables_initializer())

    def ask(self, question):
        with self.graph.as_default():
            answer = question(self.made)
            self._open()
            return self.session.run(answer)


class EagerWorld:
    """Eager execution."""

    def variables(self, make):
        self.made = make()
        return self.made

    def train(self, loss, rule, batches):
        optimizer = OPTIMIZERS[rule][1]()
        variables = parts_of(self.made)

        def step(*batch):
            with tf.GradientTape() as tape:
                value = loss(self.made, batch)
            optimizer.apply_gradients(zip(tape.gradient(value, variables), variables))

        step = self.compiled(step)
        for batch in batches:
            step(*[tf.constant(array) for array in batch])

    def compiled(self, function):
        return function

    def ask(self, question):
        answer = self.compiled(lambda: question(self.made))()
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), answer)


class FunctionWorld(EagerWorld):
    """Every step and every question is a tf.function."""

    def compiled(self, function):
        return tf.function(function, reduce_retracing=True)


def make_world(name):
    return {"session": SessionWorld, "eager": EagerWorld, "function": FunctionWorld}[name]()


def parts_of(variables):
    return [part for variable in variables for part in variable.parts]


def same_bits(first, second):
    """Asserts that two nested results are equal to the bit."""
    for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
        np.testing.assert_array_equal(a, b)


needs_eager = pytest.mark.skipif(
    not tf.compat.v1.executing_eagerly_outside_functions(),
    reason="eager execution is off in v1 behaviour",
)

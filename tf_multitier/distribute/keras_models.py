"""Models of Keras in a world of processes: what `fit` and `evaluate` do beyond the steps of their optimizers.

    optimizers              refuse gradients that were not reduced
    the first step of fit   all ranks have the dense weights of rank 0, frozen ones too
    each step               statistics of layers, such as those of BatchNormalization, are the means over the ranks
    logs                    of an epoch, and of evaluate(), are those of the examples of all ranks
    save, save_weights      refuse divided rows, before they make a file

This is for models that a strategy's optimizer trains, or that have rows divided among the processes.
"""

from __future__ import annotations

import functools
import weakref

import keras
import tensorflow as tf

from tf_multitier._src.processes import reduced_gradients
from tf_multitier._src.processes import world as worlds
from tf_multitier._src.processes.world_keys import no_save_alone
from tf_multitier._src.tensorflow.internals import EagerTensor
from tf_multitier.distribute import keras_world
from tf_multitier.keras import keras_internals
from tf_multitier.keras.rows import Rows


@functools.cache
def install() -> None:
    """Lets Keras train and evaluate the models of the world of this process so. Other models are as before."""
    keras_internals.wrap_logs(_logs_of_world)
    keras.Model.make_train_function = _made_for_world(keras.Model.make_train_function)
    keras.optimizers.Optimizer.apply = _checked(keras.optimizers.Optimizer.apply)
    keras.Model.save = _saved_by_all(keras.Model.save)
    keras.Model.save_weights = _saved_by_all(keras.Model.save_weights)


def _world_of(model):
    """The world of several processes that trains a model, or None."""
    world = worlds.connected()
    if world is None or world.size == 1:
        return None
    is_trained = isinstance(getattr(model, "optimizer", None), keras_world.OfWorld)
    is_divided = any(
        isinstance(v, Rows) and v.embedding_variable.of_world is not None for v in model.weights
    )
    return world if is_trained or is_divided else None


# ---- gradients


def _checked(original):
    """Refuses gradients of dense variables that were not reduced. Eagerly, saves find what they did."""

    @functools.wraps(original)
    def apply(self, grads, trainable_variables=None):
        world = worlds.connected()
        if world is not None and world.size > 1 and not isinstance(self, keras_world.OfWorld):
            grads = list(grads)
            for i, grad in enumerate(grads):
                values = grad.values if isinstance(grad, tf.IndexedSlices) else grad
                if isinstance(values, tf.Tensor) and not isinstance(values, EagerTensor):
                    reduced_gradients.check(f"optimizer '{self.name}': gradient {i}", grad)
        return original(self, grads, trainable_variables)

    return apply


def _refuse_scaled_loss(model):
    """NotImplementedError: LossScaleOptimizer skips steps by the gradients of one rank."""
    optimizer = getattr(model, "optimizer", None)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise NotImplementedError(
            f"fit of model '{model.name}': expected an optimizer of the strategy, found a LossScaleOptimizer, by which each rank would skip "
            "other steps: compile the model with auto_scale_loss=False"
        )


# ---- weights


def _saved_by_all(original):
    @functools.wraps(original)
    def save(self, *args, **kwargs):
        for one in self.weights:
            if isinstance(one, Rows):
                variable = one.embedding_variable
                no_save_alone(variable.variable_name, variable.of_world)
        return original(self, *args, **kwargs)

    return save


def _made_for_world(original):
    @functools.wraps(original)
    def make_train_function(self, force=False):
        connected = worlds.connected()
        if connected is not None and connected.size > 1:
            _refuse_scaled_loss(self)
        world = _world_of(self) if self.train_function is None or force else None
        if world is None:
            return original(self, force)
        if isinstance(self.optimizer, keras_world.OfWorld):
            self.optimizer.frozen = functools.partial(_frozen_weights, weakref.ref(self))
        world.give_first([v for v in self.weights if not isinstance(v, Rows)])
        for layer in keras_internals.layers_of(self):
            if isinstance(layer, keras.layers.Normalization):
                layer.finalize_state()  # computes from its weights what it uses
        step = self.train_step

        def train_step(*args, **kwargs):
            logs = step(*args, **kwargs)
            _share_statistics(self, world)
            return logs

        self.train_step = train_step
        try:
            return original(self, force)
        finally:
            del self.train_step

    return make_train_function


def _frozen_weights(its_model):
    """The dense weights of layers that are not trained; statistics are others."""
    layers = keras_internals.layers_of(its_model())
    weights = [v for layer in layers for v in keras_internals.own_weights(layer)[0]]
    return [v for v in weights if not v.trainable and not isinstance(v, Rows)]


def _share_statistics(model, world):
    """Gives the statistics of layers the means over the ranks. In float64, equal ones keep their bits."""
    kept = [
        v
        for layer in keras_internals.layers_of(model)
        for v in keras_internals.own_weights(layer)[1]
    ]
    kept = [v for v in kept if not isinstance(v, Rows) and tf.as_dtype(v.dtype).is_floating]
    if kept:
        values = [tf.cast(tf.convert_to_tensor(v), tf.float64) for v in kept]
        for variable, value in zip(kept, world.all_reduce(values, mean=True)):
            variable.assign(tf.cast(value, variable.dtype))


# ---- logs


def _logs_of_world(original):
    @functools.wraps(original)
    def logs_of_world(self, logs):
        world = _world_of(self)
        if world is None:
            return original(self, logs)
        variables = self.metrics_variables
        with keras.StatelessScope(state_mapping=list(zip(variables, _summed(world, variables)))):
            return original(self, logs)

    return logs_of_world


def _summed(world, variables):
    """The values of the variables of metrics over all ranks: sums, means, or those of rank 0, as each says."""
    found: list = [None] * len(variables)
    for sent in (tf.float64, tf.int64):
        numbers = [i for i, v in enumerate(variables) if _sent(v) == sent]
        if not numbers:
            continue
        values = [_share(world, variables[i], sent) for i in numbers]
        for i, value in zip(numbers, world.all_reduce(values, mean=False)):
            found[i] = tf.cast(value, variables[i].dtype)
    return found


def _sent(variable):
    return tf.float64 if tf.as_dtype(variable.dtype).is_floating else tf.int64


def _share(world, variable, sent):
    """What a rank adds to the value over all ranks."""
    value = tf.cast(tf.convert_to_tensor(variable), sent)
    if variable.aggregation == "mean":
        return value / world.size
    return value if variable.aggregation == "sum" or world.rank == 0 else tf.zeros_like(value)

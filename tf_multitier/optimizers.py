"""Optimizers of embedding variables for TensorFlow 2: eager execution and tf.function.

    optimizer = tf_multitier.optimizers.Adagrad(0.1)
    with tf.GradientTape() as tape:
        loss = ...
    variables = [user, item]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

They have the argument names and defaults of `tf.keras.optimizers`. The update rules are those of the engine (cc/optimizer/). They are
lazy: a step changes only the rows that have a gradient. The gradients of a key are summed first, so a step updates each row once. One
op updates all variables of a group lookup.

For Keras' optimizers with rows, see keras/optimizers.py; for v1 optimizers, rules.py.

`iterations`, the hyperparameters and the beta powers are tf.Variables, so tf.train.Checkpoint saves them. An update stores
`iterations` as the version of the rows that it changes. Slots are columns of the rows and are saved with the embedding variables.
They have the names that the optimizers of `tf.compat.v1.train` give them (`user/Adagrad`), so each kind can restore the other's
checkpoints.

Dense variables need an optimizer of their own, for example one of `tf.keras.optimizers`. The optimizers of v1 graphs are those of
`tf.compat.v1.train`, which rules.py maps to the engine's rules, and those of train/.
"""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.training.moment_optimizers import Adam
from tf_multitier._src.training.moment_optimizers import Adamax
from tf_multitier._src.training.moment_optimizers import AdamW
from tf_multitier._src.training.moment_optimizers import Lion
from tf_multitier._src.training.moment_optimizers import Nadam
from tf_multitier._src.training.row_optimizer import at_least_0
from tf_multitier._src.training.row_optimizer import RATE
from tf_multitier._src.training.row_optimizer import RATE_OF_SGD
from tf_multitier._src.training.row_optimizer import RowOptimizer
from tf_multitier._src.training.row_optimizer import scalar

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lion",
    "Momentum",
    "Nadam",
    "RMSprop",
    "RowOptimizer",
    "RowwiseAdagrad",
]


def __dir__():
    return sorted(__all__)


class SGD(RowOptimizer):
    """w -= learning_rate * g. See tf.keras.optimizers.SGD; with momentum, use Momentum."""

    _RULE, _V1_NAME = "sgd", "GradientDescent"

    def __init__(
        self,
        learning_rate: typing.Any = RATE_OF_SGD,
        name: str | None = None,
        *,
        weight_decay: typing.Any = None,
    ) -> None:
        super().__init__(learning_rate, name, weight_decay)


class Momentum(RowOptimizer):
    """m = momentum * m + g; w -= learning_rate * m. See tf.keras.optimizers.SGD with momentum."""

    _RULE, _V1_NAME = "momentum", "Momentum"

    def __init__(
        self,
        learning_rate: typing.Any = RATE_OF_SGD,
        momentum: typing.Any = 0.9,
        nesterov: bool = False,
        name: str | None = None,
        *,
        weight_decay: typing.Any = None,
    ) -> None:
        super().__init__(learning_rate, name, weight_decay, momentum=momentum)
        self.nesterov = boolean("Momentum: nesterov", nesterov)

    def _hyper(self, learning_rate):
        return [*super()._hyper(learning_rate), tf.constant(1.0 if self.nesterov else 0.0)]


class Adagrad(RowOptimizer):
    """accumulator += g * g; w -= learning_rate * g / sqrt(accumulator). See tf.keras.optimizers.Adagrad.

    With an epsilon, w -= learning_rate * g / (sqrt(accumulator) + epsilon), as in FBGEMM's EXACT_ADAGRAD. That of Keras is inside of
    the root. Without one, initial_accumulator_value must be above 0.
    """

    _V1_NAME = "Adagrad"

    def __init__(
        self,
        learning_rate: typing.Any = RATE,
        initial_accumulator_value: float = 0.1,
        epsilon: typing.Any = None,
        name: str | None = None,
        *,
        weight_decay: typing.Any = None,
    ) -> None:
        if epsilon is None:
            super().__init__(learning_rate, name, weight_decay)
            self.epsilon, self._RULE = None, "adagrad"
        else:
            super().__init__(learning_rate, name, weight_decay, epsilon=epsilon)
            self._RULE = "adagrad_epsilon"
        if epsilon is None and not initial_accumulator_value > 0:
            raise ValueError(
                f"initial_accumulator_value: expected more than 0 without an epsilon, found {initial_accumulator_value}"
            )
        self.initial_accumulator_value = at_least_0(initial_accumulator_value)

    def _initial_values(self):
        return {"accumulator": self.initial_accumulator_value}


class RowwiseAdagrad(RowOptimizer):
    """Adagrad with one accumulator per row: accumulator += mean(g * g); w -= learning_rate * g / (sqrt(accumulator) + epsilon).

    Source: FBGEMM's EXACT_ROWWISE_ADAGRAD.
    """

    _RULE, _V1_NAME = "rowwise_adagrad", "RowwiseAdagrad"

    def __init__(
        self,
        learning_rate: typing.Any = RATE_OF_SGD,
        epsilon: typing.Any = 1e-8,
        initial_accumulator_value: float = 0.0,
        name: str | None = None,
        *,
        weight_decay: typing.Any = None,
    ) -> None:
        super().__init__(learning_rate, name, weight_decay, epsilon=epsilon)
        self.initial_accumulator_value = at_least_0(initial_accumulator_value)

    def _initial_values(self):
        return {"accumulator": self.initial_accumulator_value}


class RMSprop(RowOptimizer):
    """RMSprop, plain or centered, with momentum. See tf.keras.optimizers.RMSprop."""

    _V1_NAME = "RMSProp"

    def __init__(
        self,
        learning_rate: typing.Any = RATE,
        rho: typing.Any = 0.9,
        momentum: typing.Any = 0.0,
        epsilon: typing.Any = 1e-7,
        centered: bool = False,
        name: str | None = None,
        *,
        weight_decay: typing.Any = None,
    ) -> None:
        super().__init__(
            learning_rate, name, weight_decay, rho=rho, momentum=momentum, epsilon=epsilon
        )
        self.centered = boolean("RMSprop: centered", centered)
        self._RULE = "centered_rmsprop" if centered else "rmsprop"

    def _initial_values(self):
        return {"rms": 0.0}  # 1.0 is that of v1


class Ftrl(RowOptimizer):
    """FTRL-Proximal. See tf.keras.optimizers.Ftrl."""

    _RULE, _V1_NAME = "ftrl", "Ftrl"

    def __init__(
        self,
        learning_rate: typing.Any = RATE,
        learning_rate_power: typing.Any = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: typing.Any = 0.0,
        l2_regularization_strength: typing.Any = 0.0,
        l2_shrinkage_regularization_strength: typing.Any = 0.0,
        beta: typing.Any = 0.0,
        name: str | None = None,
        *,
        weight_decay: typing.Any = None,
    ) -> None:
        super().__init__(
            learning_rate,
            name,
            weight_decay,
            learning_rate_power=learning_rate_power,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
            l2_shrinkage_regularization_strength=l2_shrinkage_regularization_strength,
        )
        self.initial_accumulator_value = at_least_0(initial_accumulator_value)
        with tf.init_scope():
            self.beta = scalar(beta, "beta")

    def _initial_values(self):
        return {"accum": self.initial_accumulator_value}

    def _hyper(self, learning_rate):
        rate, power, l1, l2, shrinkage = super()._hyper(learning_rate)
        return [rate, power, l1, l2 + self._now(self.beta) / (2 * rate), shrinkage]


class Adadelta(RowOptimizer):
    """Adadelta. See tf.keras.optimizers.Adadelta."""

    _RULE, _V1_NAME = "adadelta", "Adadelta"

    def __init__(
        self,
        learning_rate: typing.Any = RATE,
        rho: typing.Any = 0.95,
        epsilon: typing.Any = 1e-7,
        name: str | None = None,
        *,
        weight_decay: typing.Any = None,
    ) -> None:
        super().__init__(learning_rate, name, weight_decay, rho=rho, epsilon=epsilon)

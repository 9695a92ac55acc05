"""Optimizers of optimizers.py with a moving mean of the gradients: Adam and AdamW."""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.training.row_optimizer import RATE
from tf_multitier._src.training.row_optimizer import RowOptimizer
from tf_multitier._src.training.row_optimizer import scalar


class Adam(RowOptimizer):
    """Adam. A row's moments change in steps that have a gradient for it only. See tf.keras.optimizers.Adam; without amsgrad."""

    _RULE, _V1_NAME = "adam", "Adam"

    def __init__(
        self,
        learning_rate: typing.Any = RATE,
        beta_1: typing.Any = 0.9,
        beta_2: typing.Any = 0.999,
        epsilon: typing.Any = 1e-7,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, name, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)
        # beta_1 and beta_2 to the power of the next step, as products, which is how v1's Adam computes them.
        with tf.init_scope():
            betas = [self._now(self.hyperparameters[key]) for key in ("beta_1", "beta_2")]
            self.beta_1_power = tf.Variable(betas[0], trainable=False, name="beta_1_power")
            self.beta_2_power = tf.Variable(betas[1], trainable=False, name="beta_2_power")

    def _hyper(self, learning_rate):
        powers = [tf.identity(self.beta_1_power), tf.identity(self.beta_2_power)]
        return [*super()._hyper(learning_rate), *powers]

    def _step_done(self):
        self.beta_1_power.assign(self.beta_1_power * self._now(self.hyperparameters["beta_1"]))
        self.beta_2_power.assign(self.beta_2_power * self._now(self.hyperparameters["beta_2"]))


class AdamW(Adam):
    """Adam with decoupled weight decay: w -= learning_rate * weight_decay * w, in rows that have a gradient.

    See tf.keras.optimizers.AdamW; without amsgrad.
    """

    _RULE, _V1_NAME = "adamw", "AdamW"

    def __init__(
        self,
        learning_rate: typing.Any = RATE,
        weight_decay: typing.Any = 0.004,
        beta_1: typing.Any = 0.9,
        beta_2: typing.Any = 0.999,
        epsilon: typing.Any = 1e-7,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name)
        with tf.init_scope():
            self.weight_decay = scalar(weight_decay, "weight_decay")

    def _hyper(self, learning_rate):
        # The rule multiplies the decay by the bias-corrected rate, alpha. This cancels the correction. Not as a quotient by a root:
        # in a tf.function Grappler makes that a product with rsqrt, which has other bits.
        rate, beta_1, beta_2, epsilon, power_1, power_2 = super()._hyper(learning_rate)
        decay = self._now(self.weight_decay) * tf.sqrt(tf.square(1 - power_1) / (1 - power_2))
        return [rate, beta_1, beta_2, epsilon, power_1, power_2, decay]

"""Optimizers of optimizers.py with a moving mean of the gradients: Adam, AdamW, Nadam, Adamax and Lion.

They are lazy, as all are: a row's means, and the row, move in steps that have a gradient for it only. Adam can catch up.
"""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.training.row_optimizer import RATE
from tf_multitier._src.training.row_optimizer import RowOptimizer


class _WithPowers(RowOptimizer):
    """beta_1 and beta_2 to the power of the next step, as products, which is how v1's Adam computes them."""

    def __init__(
        self,
        learning_rate: typing.Any,
        beta_1: typing.Any,
        beta_2: typing.Any,
        epsilon: typing.Any,
        name: str | None,
        weight_decay: typing.Any,
    ) -> None:
        super().__init__(
            learning_rate, name, weight_decay, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon
        )
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


_CATCH_UP_ALONE = "expected catch_up without it, found {}: leave one of the two out"


class Adam(_WithPowers):
    """Adam. See tf.keras.optimizers.Adam.

    With catch_up, an update of a row first makes the moves that the row missed since its last update: those by which Adam moves all rows
    of a dense table in each step without a gradient for them. The row's version says how many they are. Given the same gradients, a row is
    then, right after each of its updates, what it would be in a dense table. Between updates it stays where its last one left it:
    lookups read that, also the one that a step's gradient comes from. Rows that do not return do not get their last moves.

    The optimizer keeps the rate of each step in `past_rates`, 4 bytes each, up to the last step that changed it: without a schedule
    about 16,000. Save and restore it together with the rows. catch_up needs versions that are steps (`score`), is not for tables in HBM,
    and excludes amsgrad and weight_decay.
    """

    _RULE, _V1_NAME = "adam", "Adam"

    def __init__(
        self,
        learning_rate: typing.Any = RATE,
        beta_1: typing.Any = 0.9,
        beta_2: typing.Any = 0.999,
        epsilon: typing.Any = 1e-7,
        name: str | None = None,
        *,
        amsgrad: bool = False,
        weight_decay: typing.Any = None,
        catch_up: bool = False,
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name, weight_decay)
        of = type(self).__name__
        self.amsgrad = boolean(f"{of}: amsgrad", amsgrad)
        self.catch_up = boolean(f"{of}: catch_up", catch_up)
        if amsgrad:
            self._RULE = "adam_amsgrad"
        if not catch_up:
            return
        if amsgrad:
            raise ValueError(f"{of}: {_CATCH_UP_ALONE.format('amsgrad=True')}")
        with tf.init_scope():
            self.past_rates = tf.Variable(
                tf.zeros([0]), shape=[None], trainable=False, name="past_rates"
            )

    def _rule_of(self, variable, hyper):
        rule, hyper = super()._rule_of(variable, hyper)
        if not self.catch_up:
            return rule, hyper
        if rule != self._RULE or self.ema_momentum is not None:
            found = "use_ema" if rule == self._RULE else "a weight_decay"
            raise ValueError(
                f"{type(self).__name__}: embedding variable '{variable.variable_name}': {_CATCH_UP_ALONE.format(found)}"
            )
        return "adam_catch_up", hyper

    def _hyper(self, learning_rate):
        hyper = super()._hyper(learning_rate)
        return [*hyper, self.past_rates.read_value()] if self.catch_up else hyper

    def _update_rows(self, pairs, step, hyper):
        super()._update_rows(pairs, step, hyper)
        if self.catch_up:
            rate, _, _, _, power_1, power_2, known = hyper
            self._note_rate(rate * tf.sqrt(1 - power_2) / (1 - power_1), known)

    def _note_rate(self, rate, known):
        """Adds the rate of this step to `known`, those of the steps before. The last is that of later steps, too: so only a change is."""
        last = tf.concat([[rate], known], 0)[-1]
        missing = tf.cast(self.iterations, tf.int32) - tf.size(known)

        def add():
            between = tf.fill([tf.maximum(missing, 0)], last)
            self.past_rates.assign(tf.concat([known, between, [rate]], 0))

        tf.cond(tf.logical_or(tf.size(known) < 1, tf.not_equal(rate, last)), add, lambda: None)


class AdamW(Adam):
    """Adam with decoupled weight decay: w -= learning_rate * weight_decay * w, in rows that have a gradient.

    See tf.keras.optimizers.AdamW.
    """

    _RULE, _V1_NAME = "adamw", "AdamW"
    _DECAYS = True

    def __init__(
        self,
        learning_rate: typing.Any = RATE,
        weight_decay: typing.Any = 0.004,
        beta_1: typing.Any = 0.9,
        beta_2: typing.Any = 0.999,
        epsilon: typing.Any = 1e-7,
        name: str | None = None,
        *,
        amsgrad: bool = False,
    ) -> None:
        if weight_decay is None:
            raise TypeError(
                "AdamW: weight_decay: expected a number, a callable or a schedule, found None: use Adam"
            )
        self._DECAYS = not amsgrad
        super().__init__(
            learning_rate,
            beta_1,
            beta_2,
            epsilon,
            name,
            amsgrad=amsgrad,
            weight_decay=weight_decay,
        )

    def _argument(self, name):
        value = super()._argument(name)
        return 0.0 if name == "weight_decay" and value is None else value

    def _hyper(self, learning_rate):
        hyper = super()._hyper(learning_rate)
        if not self._DECAYS:
            return hyper
        # The rule multiplies the decay by the bias-corrected rate, alpha. This cancels the correction. Not as a quotient by a root:
        # in a tf.function Grappler makes that a product with rsqrt, which has other bits.
        power_1, power_2 = hyper[4:]
        decay = self._now(self.weight_decay) * tf.sqrt(tf.square(1 - power_1) / (1 - power_2))
        return [*hyper, decay]


class Nadam(_WithPowers):
    """Adam with Nesterov's momentum. See tf.keras.optimizers.Nadam."""

    _RULE, _V1_NAME = "nadam", "Nadam"

    def __init__(
        self,
        learning_rate: typing.Any = RATE,
        beta_1: typing.Any = 0.9,
        beta_2: typing.Any = 0.999,
        epsilon: typing.Any = 1e-7,
        name: str | None = None,
        *,
        weight_decay: typing.Any = None,
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name, weight_decay)
        with tf.init_scope():
            # That of the steps before.
            self.momentum_product = tf.Variable(1.0, trainable=False, name="momentum_product")

    def _momentum(self, ahead):
        """The momentum of this step, or of a later one."""
        step = tf.cast(self.iterations + 1 + ahead, tf.float32)
        return self._now(self.hyperparameters["beta_1"]) * (1 - 0.5 * tf.pow(0.96, step))

    def _hyper(self, learning_rate):
        rate, beta_1, beta_2, epsilon, _, power_2 = super()._hyper(learning_rate)
        now = self._momentum(0)
        product = self.momentum_product * now
        return [rate, beta_1, beta_2, epsilon, power_2, now, self._momentum(1), product]

    def _step_done(self):
        super()._step_done()
        self.momentum_product.assign(self.momentum_product * self._momentum(0))


class Adamax(_WithPowers):
    """Adam with the largest gradient, which decays, in place of the mean of squares. See tf.keras.optimizers.Adamax."""

    _RULE, _V1_NAME = "adamax", "Adamax"

    def __init__(
        self,
        learning_rate: typing.Any = RATE,
        beta_1: typing.Any = 0.9,
        beta_2: typing.Any = 0.999,
        epsilon: typing.Any = 1e-7,
        name: str | None = None,
        *,
        weight_decay: typing.Any = None,
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name, weight_decay)

    def _hyper(self, learning_rate):
        return super()._hyper(learning_rate)[:-1]


class Lion(RowOptimizer):
    """Steps of one size by the sign of a mean of gradients. See tf.keras.optimizers.Lion."""

    _RULE, _V1_NAME = "lion", "Lion"

    def __init__(
        self,
        learning_rate: typing.Any = RATE,
        beta_1: typing.Any = 0.9,
        beta_2: typing.Any = 0.99,
        name: str | None = None,
        *,
        weight_decay: typing.Any = None,
    ) -> None:
        super().__init__(learning_rate, name, weight_decay, beta_1=beta_1, beta_2=beta_2)

"""Adagrad with a decaying accumulator, so that the step size does not approach zero."""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.tensorflow.internals import is_resource_variable
from tf_multitier._src.training import rules
from tf_multitier.train.v1_row_optimizer import V1RowOptimizer


class AdagradDecayOptimizer(V1RowOptimizer):
    """Adagrad with a decaying accumulator. Source: DeepRec's `tf.train.AdagradDecayOptimizer`.

    Every `accumulator_decay_step` global steps, each row's accumulator becomes due for one decay: it is multiplied by
    `accumulator_decay_rate`, but not below its initial value. An update of the row first applies one decay that is due, then
    Adagrad's step. Rows that are not updated do not decay.

    Args:
      learning_rate: a number, tensor or callable.
      global_step: the graph's global step variable.
      initial_accumulator_value: > 0.
      accumulator_decay_step: number of global steps between two decays, >= 1.
      accumulator_decay_rate: in (0, 1].
      use_locking: has no effect on embedding variables: two updates of one row never overlap.
      name: name of the optimizer, used for its slots.

    Raises:
      ValueError: a value is out of range, or global_step is None.
    """

    _RULE = "adagrad_decay"

    def __init__(
        self,
        learning_rate: typing.Any,
        global_step: typing.Any,
        initial_accumulator_value: float = 0.1,
        accumulator_decay_step: int = 100000,
        accumulator_decay_rate: float = 0.9,
        use_locking: bool = False,
        name: str = "AdagradDecay",
    ) -> None:
        if initial_accumulator_value <= 0:
            raise ValueError(
                f"initial_accumulator_value: expected more than 0, found {initial_accumulator_value}"
            )
        if accumulator_decay_step < 1:
            raise ValueError(
                f"accumulator_decay_step: expected at least 1, found {accumulator_decay_step}"
            )
        if not 0 < accumulator_decay_rate <= 1:
            raise ValueError(
                f"accumulator_decay_rate: expected more than 0 and at most 1, found {accumulator_decay_rate}"
            )
        if global_step is None:
            raise ValueError(f"{type(self).__name__}: global_step: expected a variable, found None")
        super().__init__(use_locking, name, learning_rate=learning_rate)
        self._global_step = global_step
        self._initial_accumulator_value = initial_accumulator_value
        self._accumulator_decay_step = accumulator_decay_step
        self._accumulator_decay_rate = accumulator_decay_rate

    def _initial_values(self):
        return {"accumulator": self._initial_accumulator_value}

    def hyperparameters(self, var: typing.Any) -> list:
        return [
            self._tensors["learning_rate"],
            self._decay_count,
            self._accumulator_decay_rate,
            self._initial_accumulator_value,
        ]

    def _prepare(self):
        super()._prepare()
        step = self._global_step
        step = step.read_value() if is_resource_variable(step) else tf.identity(step)
        # DeepRec counts with the global step after the update.
        self._decay_count = tf.cast(
            (tf.cast(step, tf.int64) + 1) // self._accumulator_decay_step, tf.float32
        )

    def _update_rows(self, var, value, slots, grad):
        dtype = grad.dtype
        count, rate = (
            tf.cast(self._decay_count, dtype),
            tf.cast(self._accumulator_decay_rate, dtype),
        )
        baseline = tf.cast(self._initial_accumulator_value, dtype)
        accumulator, power = slots["accumulator"], slots["accumulator_decay_power"]
        due = tf.cast(count > power, dtype)
        decayed = tf.maximum(accumulator * rate, baseline)
        accumulator = (
            tf.where(tf.broadcast_to(count > power, tf.shape(accumulator)), decayed, accumulator)
            + grad * grad
        )
        value -= tf.cast(self._tensors["learning_rate"], dtype) * grad / tf.sqrt(accumulator)
        return value, {"accumulator": accumulator, "accumulator_decay_power": power + due}


class AdagradDecayOptimizerV2(AdagradDecayOptimizer):
    """AdagradDecayOptimizer under DeepRec's second name. In DeepRec, V2 stores the decay count in another way."""

    _RULE = "adagrad_decay_v2"

    def __init__(
        self,
        learning_rate: typing.Any,
        global_step: typing.Any,
        initial_accumulator_value: float = 0.1,
        accumulator_decay_step: int = 100000,
        accumulator_decay_rate: float = 0.9,
        use_locking: bool = False,
        name: str = "AdagradDecayV2",
    ) -> None:
        super().__init__(
            learning_rate,
            global_step,
            initial_accumulator_value,
            accumulator_decay_step,
            accumulator_decay_rate,
            use_locking,
            name,
        )


rules.register_rule(AdagradDecayOptimizer)(AdagradDecayOptimizer._binding)
rules.register_rule(AdagradDecayOptimizerV2)(AdagradDecayOptimizerV2._binding)

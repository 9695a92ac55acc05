"""Adagrad with one accumulator per row."""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.training import rules
from tf_multitier.train.v1_row_optimizer import V1RowOptimizer


class RowwiseAdagradOptimizer(V1RowOptimizer):
    """Adagrad with one accumulator per row. Source: FBGEMM's rowwise Adagrad.

    The accumulator a is the sum of the row's mean squared gradients. The update is `w -= lr / (sqrt(a) + epsilon) * g`. Adagrad has
    one accumulator per weight instead. A variable of rank 0 or 1 has one accumulator per element.

    Args:
      learning_rate: a number, tensor or callable.
      epsilon: > 0, added to the square root of the accumulator.
      initial_accumulator_value: >= 0.
      use_locking: has no effect on embedding variables.
      name: name of the optimizer, used for its slots.

    Raises:
      ValueError: a value is out of range.
    """

    _RULE = "rowwise_adagrad"

    def __init__(
        self,
        learning_rate: typing.Any,
        epsilon: float = 1e-8,
        initial_accumulator_value: float = 0.0,
        use_locking: bool = False,
        name: str = "RowwiseAdagrad",
    ) -> None:
        if epsilon <= 0:
            raise ValueError(f"epsilon: expected more than 0, found {epsilon}")
        if initial_accumulator_value < 0:
            raise ValueError(
                f"initial_accumulator_value: expected at least 0, found {initial_accumulator_value}"
            )
        super().__init__(use_locking, name, learning_rate=learning_rate)
        self._epsilon = epsilon
        self._initial_accumulator_value = initial_accumulator_value

    def _initial_values(self):
        return {"accumulator": self._initial_accumulator_value}

    def hyperparameters(self, var: typing.Any) -> list:
        return [self._tensors["learning_rate"], self._epsilon]

    def _update_rows(self, var, value, slots, grad):
        squares = grad * grad
        if grad.shape.rank > 1:
            squares = tf.reduce_mean(squares, axis=list(range(1, grad.shape.rank)), keepdims=True)
        accumulator = slots["accumulator"] + squares
        rate = tf.cast(self._tensors["learning_rate"], grad.dtype)
        value -= rate / (tf.sqrt(accumulator) + tf.cast(self._epsilon, grad.dtype)) * grad
        return value, {"accumulator": accumulator}


rules.register_rule(RowwiseAdagradOptimizer)(RowwiseAdagradOptimizer._binding)

"""StaticTables: trains the tf.Variables of static tables by the rule of the collection's optimizer, in steps of its own.

A step changes the rows that have a gradient, as it does in the other tables. The states are tf.Variables.
"""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier import optimizers as row_optimizers


class StaticTables(tf.Module):
    """The states of static tables, and their updates.

    Args:
      optimizer: of the collection.
      variables: {table: tf.Variable [rows, dim]}.
    """

    def __init__(self, optimizer: row_optimizers.RowOptimizer, variables: dict) -> None:
        super().__init__(name="static_tables")
        self._rule = optimizer._RULE
        self.states = {
            name: [
                tf.Variable(
                    tf.fill(
                        [variable.shape[0], 1 if slot.per_row else variable.shape[1]],
                        slot.initial_value,
                    ),
                    trainable=False,
                    name=f"{name}/state_{i}",
                )
                for i, slot in enumerate(optimizer._slots())
            ]
            for name, variable in variables.items()
        }

    def update(self, trained: typing.Any, hyper: typing.Any) -> None:
        """Trains the tables of [(table, variable, gradient)] with the hyperparameters of a step."""
        for name, variable, gradient in trained:
            if not isinstance(gradient, tf.IndexedSlices):
                gradient = tf.IndexedSlices(gradient, tf.range(variable.shape[0], dtype=tf.int64))
            rows, of_row = tf.unique(gradient.indices)
            sums = tf.math.unsorted_segment_sum(gradient.values, of_row, tf.size(rows))
            its = [variable, *self.states[name]]
            values = _RULES[self._rule](hyper, sums, *[tf.gather(each, rows) for each in its])
            for each, new in zip(its, values):
                each.scatter_update(tf.IndexedSlices(new, rows))


def _sgd(hyper, g, w):
    return (w - hyper[0] * g,)


def _adam(hyper, g, w, m, v):
    rate, beta_1, beta_2, epsilon, power_1, power_2, *decay = hyper
    alpha = rate * tf.sqrt(1 - power_2) / (1 - power_1)
    m = m * beta_1 + g * (1 - beta_1)
    v = v * beta_2 + g * (g * (1 - beta_2))
    step = m / (tf.sqrt(v) + epsilon)
    return w - alpha * (step + decay[0] * w if decay else step), m, v


def _adagrad(hyper, g, w, accumulator):
    rate, epsilon = hyper
    accumulator = accumulator + g * g
    return w - rate * g / (tf.sqrt(accumulator) + epsilon), accumulator


def _rowwise_adagrad(hyper, g, w, accumulator):
    rate, epsilon = hyper
    accumulator = accumulator + tf.reduce_mean(g * g, -1, keepdims=True)
    return w - rate / (tf.sqrt(accumulator) + epsilon) * g, accumulator


_RULES: dict = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adam,
    "adagrad_epsilon": _adagrad,
    "rowwise_adagrad": _rowwise_adagrad,
}

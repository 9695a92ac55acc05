"""The learning rate of rows whose layer has an optimizer of its own.

If the layer's optimizer was given no rate, rows follow that of the model's optimizer, with its schedules and callbacks. If it was given
one, they keep it, and the first change of the model's rate is said.
"""

from __future__ import annotations

import typing
import warnings
import weakref

import keras
import tensorflow as tf

# {optimizer of a model: {whose rows: (their RowOptimizer, its rate at their first step), or None after the warning}}
_kept: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def of_step(owner: str, of_rows: typing.Any, of_model: typing.Any) -> tf.Tensor | None:
    """The learning rate of rows in a step of a model; None: that of their own optimizer, a function.

    Args:
      owner: whose rows they are, for the warning.
      of_rows: their RowOptimizer.
      of_model: the optimizer of Keras.
    """
    if not isinstance(of_rows.learning_rate, tf.Variable):
        return None
    rate = of_model.learning_rate
    if _number(of_rows.rate_is_given):
        kept = _kept.setdefault(of_model, {})
        kept.setdefault(owner, (of_rows, _number(of_rows.learning_rate)))
        if isinstance(rate, keras.Variable):
            _watch(rate, of_model)
        else:
            _say(of_model, owner, "follows a schedule or function")
    return of_rows.rate_unless_given(rate)


def _number(variable):
    with tf.init_scope():
        return float(variable.numpy())


def _watch(rate, of_model):
    """Makes `rate.assign`, of this variable alone, say changes. The setter of the optimizer calls it, and so do programs."""
    if "assign" in vars(rate):
        return
    assign, reference = rate.assign, weakref.ref(of_model)

    def watched(value):
        before = _number(rate)
        result = assign(value)
        optimizer = reference()
        if optimizer is not None and (not tf.executing_eagerly() or _number(rate) != before):
            for owner in _kept.get(optimizer, {}):
                _say(optimizer, owner, "changes")
        return result

    rate.assign = watched


def _say(of_model, owner, what):
    kept = _kept[of_model]
    of_rows, before = kept[owner] or (None, None)
    kept[owner] = None
    if (
        of_rows is not None and _number(of_rows.learning_rate) == before
    ):  # else the program sets it, too
        name = type(of_rows).__name__
        warnings.warn(
            f"{owner}: the learning rate of the model's {type(of_model).__name__} {what}, that of the rows stays {before:g}: give the "
            f"layer tf_multitier.optimizers.{name} without a learning_rate, then rows follow the model, or assign "
            "layer.optimizer.learning_rate",
            stacklevel=4,
        )

"""Optimizer: a Keras optimizer for dense variables, and the row optimizer of the same rule for embeddings."""

from __future__ import annotations

import typing
import warnings

import keras
import tensorflow as tf

from tf_multitier._src.execution import origins
from tf_multitier._src.options.option_values import real
from tf_multitier._src.training import gradient_pairs
from tf_multitier._src.variable.partitioned import is_embedding_variable
from tf_multitier.keras import optimizers as with_rows
from tf_multitier.keras.rows import Rows
from tf_multitier.one_embedding.modules import Embedding

_RULES = ("SGD", "Adagrad", "Adam", "Ftrl")
_REASONS = {
    "SmartDecayAdam": ": one_embedding has no rule that catches up: use keras.optimizers.Adam, or tf_multitier.keras.with_rows(..., catch_up=True)",
    "LossScaleOptimizer": ": rows are float32 or rounded from it, and need no loss scaling: give the optimizer within it",
}


class Optimizer(tf.Module):
    """Trains embeddings and dense variables by one rule.

        optimizer = one_embedding.Optimizer(keras.optimizers.SGD(0.1), [embedding])
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    Rows follow the rule, the learning rate or schedule, the clipping and weight decay of the Keras optimizer. They are lazy: a step
    changes those that have a gradient. `global_clipnorm` covers rows and dense variables together.

    Args:
      optimizer: keras.optimizers.SGD, with or without momentum, Adagrad, Adam or Ftrl.
      embeddings: list of the embeddings that it trains.

    Raises:
      TypeError: an embedding is none.
      NotImplementedError: another optimizer; or one with loss scaling, gradient accumulation or averages of weights.
    """

    def __init__(self, optimizer: typing.Any, embeddings: typing.Any) -> None:
        super().__init__(name="one_embedding_optimizer")
        kind = type(optimizer).__name__
        if type(optimizer) not in [getattr(keras.optimizers, name) for name in _RULES]:
            raise NotImplementedError(
                f"one_embedding.Optimizer: expected {', '.join(_RULES)} of keras.optimizers, found {kind}{_REASONS.get(kind, '')}"
            )
        if not isinstance(embeddings, (list, tuple)) or not all(
            isinstance(embedding, Embedding) for embedding in embeddings
        ):
            raise TypeError(
                f"one_embedding.Optimizer: embeddings: expected a list of embeddings, found {embeddings!r}"
            )
        for refused in ("use_ema", "gradient_accumulation_steps", "loss_scale_factor"):
            if getattr(optimizer, refused, None):
                raise NotImplementedError(
                    f"one_embedding.Optimizer: rows cannot be trained with {refused} of {kind}: expected an optimizer without it"
                )
        self._optimizer = optimizer
        self._embeddings = list(embeddings)
        with tf.init_scope():
            self._row_optimizer = with_rows.row_optimizer_of(optimizer, kind)

    @property
    def row_optimizer(self) -> typing.Any:
        """The optimizer of tf_multitier.optimizers that trains the rows."""
        return self._row_optimizer

    def build(self) -> None:
        """Adds the states of this optimizer to the rows of its embeddings; the first update would."""
        self._row_optimizer.build([embedding.variable for embedding in self._embeddings])

    def apply_gradients(self, grads_and_vars: typing.Any) -> None:
        """Updates rows and dense variables.

        Args:
          grads_and_vars: pairs of a gradient and a variable: dense ones, and `parameters()` of each embedding, or the weights that a
            Keras model has for them. A variable whose gradient is None is not updated.

        Raises:
          RuntimeError: in a graph of v1.
          ValueError: the parameters of an embedding are not among the variables; a variable has two gradients; or no variable has one.
        """
        if origins.is_v1_graph():
            raise RuntimeError(
                "one_embedding.Optimizer: expected eager execution or a tf.function, found a graph: give an optimizer of "
                "tf.compat.v1.train var_list=embedding.parameters()"
            )
        pairs = _one_each(grads_and_vars)
        given = {id(variable) for _, variable in pairs}
        wholes = {}
        for embedding in self._embeddings:
            for parameter in embedding.parameters():
                wholes[id(parameter)] = embedding.variable
                if id(parameter) not in given:
                    raise ValueError(
                        f"one_embedding.Optimizer: expected the parameters of embedding '{embedding.name}' among the variables, found "
                        f"{[getattr(variable, 'name', variable) for _, variable in pairs]}: add embedding.parameters()"
                    )
        trained = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        if not trained:
            raise ValueError(
                "one_embedding.Optimizer: expected a gradient, found none: the loss depends on no variable"
            )
        clipped = with_rows.clipped(
            self._optimizer,
            [gradient for gradient, _ in trained],
            [
                wholes.get(id(variable), variable) if is_embedding_variable(variable) else None
                for _, variable in trained
            ],
        )
        trained = [(gradient, variable) for gradient, (_, variable) in zip(clipped, trained)]
        rows = [pair for pair in trained if is_embedding_variable(pair[1])]
        dense = [pair for pair in trained if not is_embedding_variable(pair[1])]
        absent = [(None, variable) for gradient, variable in pairs if gradient is None]
        for _, variable in absent:
            if is_embedding_variable(variable):
                warnings.warn(
                    f"one_embedding.Optimizer: '{variable.name}' has no gradient: the loss depends on no lookup of it",
                    stacklevel=2,
                )
        if rows:
            self._row_optimizer.apply_gradients(rows)
        if dense:  # Keras also makes the states of those without a gradient, and warns
            absent = [pair for pair in absent if not is_embedding_variable(pair[1])]
            self._optimizer.apply_gradients([*dense, *absent])
        else:
            self._optimizer.iterations.assign_add(1)


def _one_each(grads_and_vars):
    """The pairs, with embedding variables for the weights that Keras has for them. A pair that is given twice is there once."""
    pairs: dict = {}
    for gradient, variable in gradient_pairs.pairs_of("one_embedding.Optimizer", grads_and_vars):
        if not isinstance(variable, Rows) and not hasattr(variable, "assign"):
            raise TypeError(
                f"one_embedding.Optimizer: expected pairs of a gradient and a variable, found a {type(variable).__name__} for a variable"
            )
        if isinstance(variable, Rows):
            if variable.row_optimizer is not None:
                raise ValueError(
                    f"one_embedding.Optimizer: expected a layer without an optimizer for '{variable.path}', found "
                    f"{type(variable.row_optimizer).__name__}: call keras_layer() without one"
                )
            variable = variable.embedding_variable
        is_whole = is_embedding_variable(variable) and variable.is_partitioned
        for its, part in zip(gradient, variable.parts) if is_whole else [(gradient, variable)]:
            first, _ = pairs.setdefault(id(part), (its, part))
            if first is not its and getattr(first, "values", first) is not getattr(
                its, "values", its
            ):
                raise ValueError(
                    f"one_embedding.Optimizer: expected one gradient for '{part.name}', found two: give each variable once"
                )
    return list(pairs.values())


def Ftrl(
    lr: float = 0.001,
    weight_decay: float = 0.0,
    lr_power: float = -0.5,
    initial_accumulator_value: float = 0.1,
    lambda1: float = 0.0,
    lambda2: float = 0.0,
    beta: float = 0.0,
) -> typing.Any:
    """keras.optimizers.Ftrl with the arguments of OneFlow, whose lambda2 is twice Keras' l2_regularization_strength.

    Raises:
      TypeError: an argument but lr is no finite number.
      NotImplementedError: weight_decay.
    """
    numbers = {"lr_power": lr_power, "lambda1": lambda1, "lambda2": lambda2, "beta": beta}
    numbers["initial_accumulator_value"] = initial_accumulator_value
    for name, value in numbers.items():
        real(f"one_embedding.Ftrl: {name}", value)
    if real("one_embedding.Ftrl: weight_decay", weight_decay) != 0:
        raise NotImplementedError(
            f"one_embedding.Ftrl: weight_decay: expected 0, found {weight_decay}: use lambda2, or "
            "keras.optimizers.Ftrl(weight_decay=...), whose decay is decoupled"
        )
    return keras.optimizers.Ftrl(
        learning_rate=lr,
        learning_rate_power=lr_power,
        initial_accumulator_value=initial_accumulator_value,
        l1_regularization_strength=lambda1,
        l2_regularization_strength=lambda2 / 2,
        beta=beta,
    )


def SmartDecayAdam(*unused: typing.Any, **also_unused: typing.Any) -> typing.NoReturn:
    """NotImplementedError: rows have no rule that catches up steps without a gradient."""
    raise NotImplementedError(f"one_embedding.SmartDecayAdam{_REASONS['SmartDecayAdam']}")

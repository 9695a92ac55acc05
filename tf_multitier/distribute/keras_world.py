"""Optimizers of a world, for Model.fit and for loops of one's own: they train with the gradients of all processes.

The class is derived from that of the program's optimizer: of Keras with rows where there is a rule for them, else of Keras alone, or of
tf_multitier.optimizers.
"""

from __future__ import annotations

import typing

import keras
import tensorflow as tf

from tf_multitier import optimizers as row_optimizers
from tf_multitier.keras import optimizers as keras_optimizers
from tf_multitier.keras import rows


class OfWorld:
    """Mixed into a class of Keras' optimizers."""

    if typing.TYPE_CHECKING:
        built: bool
        name: str
        iterations: typing.Any
        learning_rate: typing.Any
        _trainable_variables: list
        _built_for: typing.Any

    _strategy: typing.Any  # of the class
    _op: str = "mean"
    _unseen: typing.Any = (
        None  # function of no arguments: the dense variables that the first step makes
    )
    frozen: typing.Any = (
        list  # function of no arguments: the dense weights of the model that are not trained
    )

    def get_config(self) -> dict:
        """Also has the op, for keras.models.clone_model of a compiled model."""
        return {**super().get_config(), "op": self._op}  # type: ignore[misc]

    @classmethod
    def from_config(cls, config: dict, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """An optimizer of this class with these arguments."""
        config = dict(config)
        op = config.pop("op", cls._op)
        made = super().from_config(config, *args, **kwargs)  # type: ignore[misc]
        made._op = op
        return made

    def build(self, variables: typing.Any) -> None:
        """Also gives all processes the dense values of rank 0.

        Raises:
          NotImplementedError: it is in a LossScaleOptimizer.
        """
        rows.refuse_scaled_loss(f"optimizer '{self.name}'")
        super().build(variables)  # type: ignore[misc]
        dense = [v for v in variables if not isinstance(v, rows.Rows)]
        every = [*dense, *self.frozen()]
        with tf.init_scope():
            are_made = all(bool(v.value.is_initialized()) for v in every)
        if are_made:
            self._strategy.broadcast_variables(dense)
        else:
            self._unseen = lambda: every  # a list would be tracked

    def _check_unseen(self):
        """InvalidArgumentError on all ranks, in the first step, if the dense variables that it makes differ."""
        strategy = self._strategy

        def check():
            values = [tf.convert_to_tensor(v) for v in self._unseen()]
            same = [
                tf.reduce_all(tf.equal(value, first))
                for value, first in zip(values, strategy._world.broadcast(values))
            ]
            is_other = tf.one_hot(strategy.rank(), strategy.world_size())
            [others] = strategy.all_reduce([tf.where(tf.reduce_all(same), 0.0, is_other)])
            message = (
                f"optimizer: rank {strategy.rank()}: expected the dense values of rank 0 in a model that is built in its first step, "
                "found others: make its layers in strategy.scope(), or build it before fit. Ranks:"
            )
            check = tf.debugging.Assert(
                tf.reduce_all(tf.equal(others, 0.0)), [message, tf.where(others > 0.0)]
            )
            with tf.control_dependencies([] if check is None else [check]):
                return tf.constant(0)

        if self._unseen is not None:
            tf.cond(tf.equal(self.iterations.value, 0), check, lambda: tf.constant(0))

    def apply(self, grads: typing.Any, trainable_variables: typing.Any = None) -> None:
        """Updates rows and dense variables with the gradients of the world.

        Raises:
          tf.errors.InvalidArgumentError: ranks have other learning rates.
        """
        variables = trainable_variables
        if variables is None:
            variables = (
                self._built_for() if hasattr(self, "_built_for") else self._trainable_variables
            )
        variables, grads = list(variables), list(grads)
        if not self.built:
            with keras.name_scope(self.name):
                self.build(variables)
        self._check_unseen()
        strategy = self._strategy
        rate = tf.cast(self.learning_rate, tf.float32)
        rates = tf.one_hot(strategy.rank(), strategy.world_size(), rate, 0.0)
        *grads, rates = strategy.reduce_gradients(
            [*grads, rates], self._op, [*variables, None]
        )  # one collective sends both
        message = (
            f"optimizer '{self.name}': rank {strategy.rank()}: expected the same learning rate on all ranks, found others: set it by what "
            "all ranks have alike, such as the logs of epochs. In proportion:"
        )
        check = tf.debugging.Assert(tf.reduce_all(tf.equal(rates, rates[0])), [message, rates])
        with tf.control_dependencies([] if check is None else [check]):
            super().apply(grads, variables)  # type: ignore[misc]


class _RowsOfWorld:
    """Mixed into a class of tf_multitier.optimizers."""

    _strategy: typing.Any
    _op: str

    def apply_gradients(
        self, grads_and_vars: typing.Any, *args: typing.Any, **kwargs: typing.Any
    ) -> tf.Tensor:
        """Updates rows with the gradients of the world."""
        grads, variables = zip(*grads_and_vars)
        pairs = zip(self._strategy.reduce_gradients(grads, self._op, variables), variables)
        return super().apply_gradients(pairs, *args, **kwargs)  # type: ignore[misc]


_classes: dict = {}


def _derived(mixin, base):
    """The class of both, the same for the same two."""
    if (mixin, base) not in _classes:
        made = type(f"{base.__name__}OfWorld", (mixin, base), {"__module__": __name__})
        if mixin is OfWorld:
            made = keras.saving.register_keras_serializable(package="tf_multitier")(made)
        _classes[mixin, base] = made
    return _classes[mixin, base]


def of_world(strategy: typing.Any, optimizer: typing.Any, op: str) -> typing.Any:
    """See CollectiveStrategy.optimizer."""
    is_alone = strategy.world_size() == 1
    if isinstance(optimizer, row_optimizers.RowOptimizer):
        if is_alone:
            return optimizer
        made = _derived(_RowsOfWorld, type(optimizer))(**optimizer.arguments())
    else:
        optimizer = keras.optimizers.get(optimizer)
        if isinstance(optimizer, (keras.optimizers.LossScaleOptimizer, rows.CHOOSERS)):
            raise NotImplementedError(
                f"optimizer: expected one of keras.optimizers that updates variables itself, found {type(optimizer).__name__}: "
                "give it the inner optimizer"
            )
        if keras_optimizers.has_rule(optimizer):
            optimizer = keras_optimizers.with_rows(optimizer)
        if is_alone:
            return optimizer
        made = keras_optimizers.remade(optimizer, _derived(OfWorld, type(optimizer)))
    type(made)._strategy, made._op = strategy, op
    return made

"""RowOptimizer: the base class of the optimizers of optimizers.py: state, slots, hyperparameters, and one step over variables.

`weight_decay` is that of Keras: decoupled, scaled by the learning rate, before the rule's step. A rule has it under the engine's name
"<rule>+weight_decay" (cc/optimizer/decayed_rule.h) with one more hyperparameter. Slots are those of the rule, so a checkpoint with and
one without decay restore each other. A row decays in steps that train it; a dense table of Keras decays all rows in each step.
"""

from __future__ import annotations

import inspect
import numbers
import re
import typing
import weakref

import tensorflow as tf

from tf_multitier._src.execution import eager
from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier._src.processes import strategies
from tf_multitier._src.training import gradient_pairs
from tf_multitier._src.training import group_updates
from tf_multitier._src.training import rules
from tf_multitier._src.training import slot_owners
from tf_multitier._src.training import updates


def scalar(value, name):
    """A number as a variable that is saved; a variable, schedule or callable unchanged.

    Raises:
      TypeError: another type.
    """
    if isinstance(value, tf.Variable) or callable(value):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name}: expected a number, a callable, a schedule or a tf.Variable, found {value!r}"
        ) from None
    return tf.Variable(number, trainable=False, dtype=tf.float32, name=name)


def decays(weight_decay: typing.Any) -> bool:
    """Whether there is a weight decay: None and a plain 0 are none."""
    is_0 = isinstance(weight_decay, numbers.Real) and weight_decay == 0
    return weight_decay is not None and not is_0


def at_least_0(value, name="initial_accumulator_value"):
    if not value >= 0:
        raise ValueError(f"{name}: expected at least 0, found {value}")
    return float(value)


def _takes_a_step(function):
    """Whether a callable takes the step, as a schedule does."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in parameters
    )


class Default(float):
    """A learning rate that the program did not give. In a model of Keras, rows then follow that of the model."""


# What a program of Keras or of v1 uses, and ours do not have: {attribute: what to use}.
_INSTEAD = {
    "minimize": "take the gradients of a tf.GradientTape, and call apply_gradients",
    "compute_gradients": "take the gradients of a tf.GradientTape",
    "apply": "call apply_gradients(zip(gradients, variables))",
    "lr": "use learning_rate",
}

_AS_KERAS = (
    "to clip, change the gradients before apply_gradients; or train a Keras model with an optimizer of Keras that has it, in "
    "tf_multitier.keras.with_rows"
)

# Those of tf.keras.optimizers.
RATE: Default = Default(0.001)
RATE_OF_SGD: Default = Default(0.01)

_Any = typing.TypeVar("_Any", bound="RowOptimizer")


class RowOptimizer(tf.Module):
    """Base class. A subclass names a rule of the engine, and passes the rule's hyperparameters in its order.

    Threads: steps may run at the same time in several threads. Each counts as one of `iterations`.
    """

    # Name of the engine's rule.
    _RULE = ""
    # Name of the v1 optimizer, which gives the columns their names.
    _V1_NAME = ""

    # Whether the rule has a weight decay among its own hyperparameters, the last.
    _DECAYS = False

    def __new__(cls: type[_Any], *unused_args: typing.Any, **arguments: typing.Any) -> _Any:
        """TypeError for an argument that the constructor does not have, such as those of Keras for clipping and averages."""
        known = inspect.signature(cls.__init__).parameters
        takes_all = any(each.kind is each.VAR_KEYWORD for each in known.values())
        for name in arguments:
            if name not in known and not takes_all:
                kind, names = cls.__name__, list(known)[1:]
                momentum = "use Momentum" if name in ("momentum", "nesterov") else None
                raise TypeError(
                    f"tf_multitier.optimizers.{kind}: expected {', '.join(names)}; found {name}{did_you_mean(name, names)}: "
                    f"{momentum or _AS_KERAS}"
                )
        return super().__new__(cls)

    def __init__(
        self,
        learning_rate: typing.Any,
        name: str | None,
        weight_decay: typing.Any = None,
        **hyper: typing.Any,
    ) -> None:
        super().__init__(name=self._scope)
        if not eager.is_outside_of_graphs():
            raise RuntimeError(
                f"tf_multitier.optimizers.{type(self).__name__}: expected eager execution or a tf.function, found a tf.Graph: use "
                "tf.compat.v1.train or tf_multitier.train"
            )
        if isinstance(weight_decay, numbers.Real):
            at_least_0(weight_decay, "weight_decay")
        self._column_name = name or self._V1_NAME
        with tf.init_scope():
            self.iterations = tf.Variable(0, trainable=False, dtype=tf.int64, name="iterations")
            self._learning_rate = scalar(learning_rate, "learning_rate")
            is_given = not isinstance(learning_rate, Default)
            self.rate_is_given = tf.Variable(is_given, trainable=False, name="rate_is_given")
            self.hyperparameters = {key: scalar(value, key) for key, value in hyper.items()}
            is_kept = self._DECAYS or decays(weight_decay)
            self.weight_decay = scalar(weight_decay, "weight_decay") if is_kept else None
        # For an embedding variable, whether its rows have the weight decay.
        self.is_decayed: typing.Callable = lambda variable: True
        # The momentum of a moving average of each row, which the rule then keeps, too: "<rule>+ema" of the engine. None: there is none.
        self.ema_momentum: float | None = None
        self._twins: typing.Any = weakref.WeakSet()

    def __getattr__(self, name: str) -> typing.Any:
        """A hyperparameter by its name. AttributeError with what to use for methods of Keras and v1."""
        kept = vars(self).get("hyperparameters", {})
        if name in kept:
            return kept[name]
        raise self._no_attribute(name)

    def __setattr__(self, name: str, value: typing.Any) -> None:
        """Sets an attribute; of a hyperparameter, its tf.Variable, so that later steps use the value.

        Raises:
          AttributeError: later steps would not use it.
        """
        if name in _INSTEAD:
            raise self._no_attribute(name)
        kept = {**vars(self), **vars(self).get("hyperparameters", {})}
        if name not in kept or name not in inspect.signature(type(self).__init__).parameters:
            super().__setattr__(name, value)
        elif isinstance(kept[name], tf.Variable) and not callable(value):
            kept[name].assign(value)
        else:
            raise AttributeError(
                f"tf_multitier.optimizers.{type(self).__name__}: {name}: expected to keep {kept[name]!r}, found {value!r}: make another "
                "optimizer"
            )

    def _no_attribute(self, name):
        instead = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
        return AttributeError(
            f"tf_multitier.optimizers.{type(self).__name__}: expected an attribute that it has, found '{name}'{instead}"
        )

    @property
    def _scope(self):
        """The name of the class as a name scope, which begins with a letter, of ASCII alone."""
        return re.sub(r"^[_0-9]+|[^A-Za-z0-9_]", "", type(self).__name__) or "RowOptimizer"

    @property
    def learning_rate(self) -> typing.Any:
        """The learning rate as it was given; a number is a tf.Variable."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: typing.Any) -> None:
        self.rate_is_given.assign(True)
        if isinstance(self._learning_rate, tf.Variable) and not callable(value):
            self._learning_rate.assign(value)
            return
        with tf.init_scope():
            value = scalar(value, "learning_rate")
        for optimizer in (self, *self._twins):
            optimizer._learning_rate = value

    def rate_unless_given(self, rate: typing.Any) -> tf.Tensor:
        """The learning rate that the program gave to this optimizer or assigned to it; without one, `rate`. A float32 scalar."""
        return tf.where(
            self.rate_is_given, self._now(self._learning_rate), tf.cast(rate, tf.float32)
        )

    def _now(self, value):
        if isinstance(value, tf.Variable):
            return tf.cast(value, tf.float32)
        value = value(self.iterations) if _takes_a_step(value) else value()
        return tf.cast(value, tf.float32)

    def _hyper(self, learning_rate):
        """The hyperparameters of the rule, in its order, as float32 scalars."""
        return [learning_rate, *[self._now(value) for value in self.hyperparameters.values()]]

    def _argument(self, name):
        """The argument of the constructor that has this name, as the optimizer keeps it."""
        if name == "name":
            return self._column_name
        return self.hyperparameters[name] if name in self.hyperparameters else getattr(self, name)

    def arguments(self) -> dict:
        """{name: value} of the constructor's arguments. A number that is tracked is its tf.Variable."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: self._argument(name) for name in names}

    def get_config(self) -> dict:
        """The constructor's arguments as numbers, strings and schedules, for Keras. A learning rate that was not given is left out."""
        number = lambda v: float(v.numpy()) if isinstance(v, tf.Variable) else v
        config = {name: number(value) for name, value in self.arguments().items()}
        if not self.rate_is_given:
            del config["learning_rate"]
        return config

    @classmethod
    def from_config(cls, config: dict) -> RowOptimizer:
        """An optimizer of this class with these arguments."""
        return cls(**config)

    def twin(self) -> RowOptimizer:
        """An optimizer that shares the hyperparameters of this one, and counts its own steps. It follows `learning_rate` of this one."""
        made = type(self)(**self.arguments())
        made.rate_is_given = self.rate_is_given
        self._twins.add(made)
        return made

    def named_variables(self) -> dict:
        """{name: tf.Variable} of the steps, the hyperparameters that are no functions or schedules, and the beta powers."""
        all_values = {**vars(self), **self.hyperparameters}
        return {name.lstrip("_"): v for name, v in all_values.items() if isinstance(v, tf.Variable)}

    def _step_done(self):
        """Changes the state of the optimizer after a step."""

    def _columns(self, variable):
        """(names, dims, initial values) of the slots of a variable."""
        base = f"{variable.variable_name}/{self._column_name}"
        slots = self._slots()
        names = [base + (f"_{i}" if i else "") for i in range(len(slots))]
        dims = [1 if slot.per_row else variable.embedding_dim for slot in slots]
        values = [slot.initial_value for slot in slots]
        if self.ema_momentum is None:
            return names, dims, values
        names, dims = [self.average_column(variable), *names], [variable.embedding_dim, *dims]
        return names, dims, [0.0, *values]

    def average_column(self, variable: typing.Any) -> str:
        """The name of the slot that has the average of a row minus its value."""
        return f"{variable.variable_name}/{self._column_name}_average_offset"

    def _slots(self):
        """The slots of the rule."""
        return rules.slots_of(self._RULE, self._initial_values())

    def _initial_values(self):
        """{slot: initial value} of the slots that begin otherwise than the engine says."""
        return {}

    def build(self, variables: typing.Any) -> None:
        """Adds the slots of this optimizer to the rows of variables; the first update would. Slots that they have stay as they are.

        Call it before `upsert(slots=...)`, or to read slots, of variables that were not updated yet.

        Args:
          variables: embedding variables, partitioned ones too, or weights of Keras layers that have them.

        Raises:
          TypeError: one is none of these.
          ValueError: one is read-only, or has a slot of that name with another dim or initial value.
        """
        for variable in gradient_pairs.embedding_variables(variables, type(self).__name__):
            for part in variable.parts:
                self._add_slots(part)

    def _add_slots(self, variable):
        """Adds the slots to a table. Returns their (names, initial values)."""
        names, dims, values = self._columns(variable)
        variable.ensure_slots(list(zip(names, dims, values)))
        slot_owners.take(self, variable, names)
        return names, values

    def apply_gradients(
        self, grads_and_vars: typing.Any, name: str | None = None, learning_rate: typing.Any = None
    ) -> tf.Tensor:
        """Updates embedding variables.

        Args:
          grads_and_vars: pairs of a gradient, as a tape gives it for the variable, and the variable, or the weight of a Keras layer
            that has it. The gradient of a partitioned variable is the list of the gradients of its parts. A variable whose gradient
            is None is not updated.
          name: name scope of the ops.
          learning_rate: a number or scalar tensor for this step. None: that of the optimizer.

        Returns:
          int64 scalar: `iterations` after the step.

        Raises:
          TypeError: a dense gradient, a gradient of another dtype, or a variable that is not an embedding variable.
          ValueError: no variable has a gradient, or none is trainable, or one is of this process alone in a CollectiveStrategy.
          NotImplementedError: a tf.distribute strategy has more than one replica, or its steps run elsewhere.
        """
        pairs = gradient_pairs.trained_pairs(list(grads_and_vars), type(self).__name__)
        trained = [variable for _, variable in pairs]
        strategies.check_update(f"tf_multitier.optimizers.{type(self).__name__}", trained)
        with tf.name_scope(name or self._scope):
            step = tf.identity(self.iterations)
            rate = self._now(self._learning_rate) if learning_rate is None else learning_rate
            hyper = self._hyper(tf.cast(rate, tf.float32))
            self._update_rows(pairs, step, hyper)
            self._step_done()
            return self.iterations.assign_add(1, read_value=True)

    def _update_rows(self, pairs, step, hyper):
        """Updates the rows of [(gradient, EmbeddingVariable)] in a step with these hyperparameters."""
        made = []
        for grad, variable in pairs:
            eager.check_use(variable, "an update of embedding variable")
            names, values = self._add_slots(variable)
            its_rule, its_hyper = self._rule_of(variable, hyper)
            if self.ema_momentum is not None:
                # As Keras: the first step makes the values the averages.
                momentum = tf.where(tf.equal(step, 0), 0.0, self.ema_momentum)
                its_rule, its_hyper = f"{its_rule}+ema", [*its_hyper, momentum]
            rule = dict(rule=its_rule, slot_initial_values=values, use_locking=False)
            made.append(updates.update(variable, grad, step, its_hyper, names, rule))
        group_updates.made(made)

    def _rule_of(self, variable, hyper):
        """(rule, hyperparameters) of the update of a variable."""
        if self.weight_decay is None:
            return self._RULE, hyper
        if self._DECAYS:
            return self._RULE, hyper if self.is_decayed(variable) else [*hyper[:-1], 0.0]
        if not self.is_decayed(variable):
            return self._RULE, hyper
        return f"{self._RULE}+weight_decay", [*hyper, self._now(self.weight_decay)]

"""with_rows: optimizers of Keras that also train embedding variables.

An optimizer of `with_rows` has a class that is derived from Keras' class. It takes the gradients of rows out, clips them together with
the others, and passes them to the row optimizer of the same rule with the same learning rate. Keras' code updates the dense variables.
"""

from __future__ import annotations

import inspect
import re
import typing

import keras
import tensorflow as tf

from tf_multitier import optimizers as row_optimizers
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.processes import reduced_gradients
from tf_multitier._src.training.row_optimizer import decays
from tf_multitier.keras import accumulation
from tf_multitier.keras import averages
from tf_multitier.keras import keras_internals
from tf_multitier.keras import keras_versions
from tf_multitier.keras import loads
from tf_multitier.keras.optimizer_states import OptimizerState
from tf_multitier.keras.rows import Rows
from tf_multitier.keras.rows import UpdatesRows


class _WithRows(UpdatesRows):
    """Mixed into a class of Keras' optimizers, `_rule` of _RULES."""

    # Of Keras' class.
    built: typing.Any
    name: typing.Any
    _iterations: typing.Any  # of steps; `iterations` is the number of updates
    gradient_accumulation_steps: typing.Any
    global_clipnorm: typing.Any

    _rule: str
    _kept: accumulation.KeptGradients

    def __init__(self, *args: typing.Any, catch_up: bool = False, **kwargs: typing.Any) -> None:
        super().__init__(*args, **kwargs)
        self.catch_up = boolean("catch_up", catch_up)
        if catch_up and self._rule != "Adam":
            raise ValueError(f"catch_up: expected Adam, found {self._rule}: leave catch_up out")

    def get_config(self) -> dict:
        """As Keras; with catch_up, if rows catch up."""
        config = super().get_config()  # type: ignore[misc]
        return {**config, "catch_up": True} if self.catch_up else config

    @property
    def row_optimizer(self) -> typing.Any:
        """The optimizer of tf_multitier.optimizers that updates rows."""
        if getattr(self, "_rows_by", None) is None:
            with tf.init_scope():
                self._rows_by = row_optimizer_of(self, self._rule)
        return self._rows_by

    def build(self, variables: typing.Any) -> None:
        its = list(variables)
        rows = [variable for variable in its if isinstance(variable, Rows)]
        for variable in rows:
            variable.check()
        if self.gradient_accumulation_steps:
            self._check_accumulation(rows)
        self._built_for = lambda: (
            its
        )  # in a function: Keras would track a list's variables as its own
        was_built = self.built
        super().build(variables)  # type: ignore[misc]
        for variable in rows:
            row_optimizer = variable.row_optimizer or self.row_optimizer
            averages.follow(row_optimizer, self)
            row_optimizer.build([variable])
        if self.gradient_accumulation_steps and not was_built:
            self._kept = accumulation.KeptGradients(rows)

    def _check_accumulation(self, rows):
        for one in rows:
            table = one.embedding_variable
            found = {
                "a CollectiveStrategy": table.of_world is not None,
                "global_clipnorm": self.global_clipnorm,
                "an initializer that is a list (tables=)": table.num_tables > 1,
            }
            for setting, is_found in found.items():
                if is_found:
                    raise NotImplementedError(
                        f"optimizer '{self.name}': embedding variable '{table.variable_name}' cannot be trained with "
                        f"gradient_accumulation_steps and {setting}: expected no more than one of them: train it with larger batches"
                    )

    def add_variable_from_reference(
        self, reference_variable: typing.Any, *args: typing.Any, **kwargs: typing.Any
    ) -> typing.Any:
        """As Keras. For rows None: what an optimizer has for them is a column of theirs, or in accumulation.py."""
        if isinstance(reference_variable, Rows):
            return None
        return super().add_variable_from_reference(reference_variable, *args, **kwargs)  # type: ignore[misc]

    def apply(self, grads: typing.Any, trainable_variables: typing.Any = None) -> None:
        """Updates rows and dense variables. Warns about variables without a gradient, as Keras does.

        Raises:
          ValueError: no variable has a gradient, or there are more or fewer gradients than variables.
        """
        variables = self._built_for() if trainable_variables is None else list(trainable_variables)
        grads = list(grads)
        if len(grads) != len(variables):
            raise ValueError(
                f"optimizer '{self.name}': expected {len(variables)} gradients, one for each variable, found {len(grads)}"
            )
        if not grads:
            return
        if not self.built:
            with keras.name_scope(self.name):
                self.build(variables)
        grads, variables = keras_internals.with_gradients(self, grads, variables)
        if self.gradient_accumulation_steps:
            its = [i for i, v in enumerate(variables) if isinstance(v, Rows)]
            self._accumulate([grads[i] for i in its], [variables[i] for i in its])
        else:
            wholes = [v.whole if isinstance(v, Rows) else None for v in variables]
            grads = clipped(self, grads, wholes)
            self._update_rows([(g, v) for g, v in zip(grads, variables) if isinstance(v, Rows)])
        dense = [(g, v) for g, v in zip(grads, variables) if not isinstance(v, Rows)]
        if dense:
            super().apply([g for g, _ in dense], [v for _, v in dense])  # type: ignore[misc]
        else:
            averages.overwrite_if_due(self, self._built_for())
            self._iterations.assign_add(1)

    def _update_rows(self, rows):
        own = [(g, v.embedding_variable) for g, v in rows if v.row_optimizer is None]
        if own:
            self.row_optimizer.apply_gradients(own)
        for gradient, variable in rows:
            if variable.row_optimizer is not None:
                variable.assign(gradient)

    def _accumulate(self, grads, rows):
        """Keeps gradients of rows, or updates rows by those that were kept and these. Keras does so with those of dense variables."""
        steps = self.gradient_accumulation_steps

        def update():
            means = self._kept.means(grads, rows, steps)
            self._update_rows(list(zip(clipped(self, means, [v.whole for v in rows]), rows)))
            self._kept.clear()
            return True

        def keep():
            self._kept.keep(grads, rows)
            return False

        tf.cond((self._iterations + 1) % steps == 0, update, keep)

    def save_own_variables(self, store: typing.Any) -> None:
        """Also saves the state of the row optimizer."""
        super().save_own_variables(store)  # type: ignore[misc]
        state: typing.Any = OptimizerState.of(self.row_optimizer)
        for name, array in state.variables.items():
            store[f"rows_{state.optimizer}_{name}"] = array
        if self.gradient_accumulation_steps and self.built:
            for name, array in self._kept.arrays().items():
                store[f"kept_{name}"] = array

    def load_own_variables(self, store: typing.Any) -> None:
        """Also loads the state of the row optimizer, and the gradients that it keeps, if Keras loads its own variables.

        Raises:
          ValueError: the gradients are those of other tables.
        """
        names = list(store.keys())
        dense = {key: store[key] for key in names if not key.startswith(("rows_", "kept_"))}
        kept = {key[len("kept_") :]: store[key] for key in names if key.startswith("kept_")}
        its = [key.split("_", 2) for key in names if key.startswith("rows_")]
        with loads.together():
            for rule in sorted({rule for _, rule, _ in its}):
                arrays = {name: store[f"rows_{rule}_{name}"] for _, of, name in its if of == rule}
                state = OptimizerState(rule, arrays)
                state.assign_to(self.row_optimizer, f"optimizer '{self.name}'")
            if (
                self.gradient_accumulation_steps
                and self.built
                and len(dense) == len(self.variables)
            ):
                self._kept.load(kept, f"optimizer '{self.name}'")
            super().load_own_variables(dense)  # type: ignore[misc]


def clipped(optimizer: typing.Any, grads: list, wholes: list) -> list:
    """Gradients, with those of rows clipped as a Keras optimizer clips those of dense variables. By the global norm: all gradients.

    wholes: for each gradient of rows, their variable, whose parts have one norm; for other gradients None.
    """
    grads = list(grads)
    scale = lambda g, factor: reduced_gradients.with_values(g, g.values * factor)
    is_rows = [whole is not None for whole in wholes]
    if optimizer.clipnorm:
        parts: dict = {}
        for i, whole in enumerate(wholes):
            if is_rows[i]:
                parts.setdefault(id(whole), []).append(i)
        norms = _norms_in_world(grads, wholes)
        for its in parts.values():
            values = [grads[i].values for i in its]
            whole = tf.concat(values, 0)
            if its[0] in norms:
                clipped = whole * (
                    optimizer.clipnorm / tf.maximum(norms[its[0]], optimizer.clipnorm)
                )
            else:
                clipped = tf.clip_by_norm(whole, optimizer.clipnorm)
            lengths = [tf.shape(v)[0] for v in values]
            for i, value in zip(its, tf.split(clipped, lengths, num=len(its))):
                grads[i] = reduced_gradients.with_values(grads[i], value)
    elif optimizer.global_clipnorm and any(is_rows):
        norms = _norms_in_world(grads, wholes)
        values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
        norm = tf.linalg.global_norm([norms.get(i, value) for i, value in enumerate(values)])
        factor = optimizer.global_clipnorm / tf.maximum(norm, optimizer.global_clipnorm)
        grads = [scale(g, factor) if isinstance(g, tf.IndexedSlices) else g * factor for g in grads]
    elif optimizer.clipvalue:
        for i, g in enumerate(grads):
            if is_rows[i]:
                limit = optimizer.clipvalue
                grads[i] = reduced_gradients.with_values(
                    g, tf.clip_by_value(g.values, -limit, limit)
                )
    return grads


def _norms_in_world(grads, wholes):
    """{number of a gradient: its norm over all processes}, for those of variables that are divided among processes."""
    divided = [i for i, whole in enumerate(wholes) if whole is not None and whole.world is not None]
    if not divided:
        return {}
    mine = tf.stack([tf.reduce_sum(tf.square(grads[i].values)) for i in divided])
    (sums,) = wholes[divided[0]].world.all_reduce([mine], False)
    return dict(zip(divided, tf.unstack(tf.sqrt(sums))))


# The classes that both have, and the arguments of ours that do not mean what Keras means by their names.
_RULES = sorted(name for name in row_optimizers.__all__ if hasattr(keras.optimizers, name))
_OURS_ALONE = {"self", "learning_rate", "name", "catch_up"}
_OURS_ALONE_IN = {"Adagrad": {"epsilon"}}


def row_optimizer_of(optimizer: typing.Any, rule: str) -> typing.Any:
    """The optimizer of tf_multitier.optimizers that trains rows by the rule of a Keras optimizer, with its learning rate and weight decay."""
    config = optimizer.get_config()
    its_class = getattr(
        row_optimizers, "Momentum" if rule == "SGD" and config.get("momentum") else rule
    )
    names = (
        set(inspect.signature(its_class.__init__).parameters)
        - _OURS_ALONE
        - _OURS_ALONE_IN.get(rule, set())
    )
    arguments: dict = {name: config[name] for name in names}
    arguments["weight_decay"] = lambda: optimizer.weight_decay or 0.0
    if getattr(optimizer, "catch_up", False):
        arguments["catch_up"] = True
    # Keras names an optimizer "adam", the next one "adam_1". By another name, it has slots of its own.
    if not re.fullmatch(rf"{rule}\d*", optimizer.name.replace("_", ""), re.IGNORECASE):
        arguments["name"] = optimizer.name.replace("/", "_")
    made = its_class(lambda: optimizer.learning_rate, **arguments)
    made.is_decayed = lambda variable: (
        decays(optimizer.weight_decay) and keras_internals.is_decayed(optimizer, variable)
    )
    return made


def _derived(name):
    made = type(f"{name}WithRows", (_WithRows, getattr(keras.optimizers, name)), {"_rule": name})
    made.__module__ = __name__
    return keras.saving.register_keras_serializable(package="tf_multitier")(made)


_CLASSES = {name: _derived(name) for name in _RULES}
globals().update({made.__name__: made for made in _CLASSES.values()})


def with_rows(optimizer: typing.Any, catch_up: bool = False) -> typing.Any:
    """An optimizer like `optimizer`, not yet used, that also trains the rows of embedding layers.

    Rows follow its rule, learning rate, schedule, clipping and weight decay. `global_clipnorm` covers rows and dense weights together.
    A row moves and decays only in steps that have a gradient for it.

    Args:
      optimizer: keras.optimizers.SGD, Adagrad, Adam, AdamW, Adamax, Nadam, Lion, RMSprop, Ftrl or Adadelta, or one of their names.
      catch_up: for Adam, rows first make the moves that they missed: see tf_multitier.optimizers.Adam.

    Raises:
      NotImplementedError: another optimizer.
      ValueError: catch_up with another optimizer than Adam.
      TypeError: no optimizer of Keras 3.
    """
    keras_versions.refuse("with_rows: optimizer", optimizer)
    if not isinstance(optimizer, (str, dict, keras.optimizers.Optimizer)):
        raise TypeError(
            f"with_rows: optimizer: expected an optimizer of Keras or its name, found {optimizer!r}: give those of "
            "tf_multitier.optimizers to the layers, as optimizer="
        )
    optimizer = keras.optimizers.get(optimizer)
    name = type(optimizer).__name__
    if not has_rule(optimizer):
        raise NotImplementedError(
            f"with_rows has no rule for {name}; supported: {', '.join(_RULES)}"
        )
    if boolean("with_rows: catch_up", catch_up):
        return remade(optimizer, _CLASSES[name], catch_up=True)
    return remade(optimizer, _CLASSES[name])


def has_rule(optimizer: typing.Any) -> bool:
    """Whether `with_rows` takes an optimizer of this class."""
    name = type(optimizer).__name__
    return name in _CLASSES and type(optimizer) is getattr(keras.optimizers, name, None)


def remade(optimizer: typing.Any, its_class: type, **more: typing.Any) -> typing.Any:
    """A new optimizer of a class, with the configuration of `optimizer`, and more."""
    config = {**optimizer.get_config(), **more}
    rate = optimizer._learning_rate  # the property calls a function
    if callable(rate) and not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        config["learning_rate"] = rate  # in the configuration, a lambda is code that Keras refuses
    made = its_class.from_config(config)  # type: ignore[attr-defined]
    keras_internals.copy_exclusions(optimizer, made)
    return made

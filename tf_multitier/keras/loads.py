"""A load of several layers happens wholly or not at all: `load_weights`, and the load of one layer with several tables.

    together(model)          Keras loads the model in this block
      layer.load_own_variables, Rows.assign     read and check rows, and put what will change into `changes`
      dense_variable.assign                     Keras changes it
    the end of the block     the changes are made; after an error dense variables get their values back

A block within a block is a part of it.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import typing
from collections.abc import Iterator

from tf_multitier.keras import keras_internals

_running: contextvars.ContextVar = contextvars.ContextVar("the load that runs", default=None)


class _Load:
    """A load that runs: functions that change rows and states of optimizers, and temporary files until its end."""

    def __init__(self) -> None:
        self.changes: list = []
        self.files = contextlib.ExitStack()


@contextlib.contextmanager
def together(model: typing.Any = None) -> Iterator[_Load]:
    """Makes the changes of the block at its end.

    model: after an error, its dense variables get their values back, and its layers their attributes, such as constants that
      keras.layers.Normalization computes when it is loaded.
    """
    running = _running.get()
    if running is not None:
        yield running
        return
    give_back = _state_of(model)
    load = _Load()
    token = _running.set(load)
    try:
        with load.files:
            yield load
            for change in load.changes:
                change()
    except BaseException:
        give_back()
        raise
    finally:
        _running.reset(token)


def _state_of(model):
    """A function that gives a model and its optimizer the dense variables and attributes that they have now."""
    if model is None:
        return lambda: None
    attributes = [(layer, dict(vars(layer))) for layer in keras_internals.layers_of(model)]
    variables = [*model.variables, *getattr(getattr(model, "optimizer", None), "variables", ())]
    values = [(v, v.numpy()) for v in variables if not hasattr(v, "embedding_variable")]

    def give_back():
        for layer, before in attributes:
            vars(layer).clear()
            vars(layer).update(before)
        for variable, value in values:
            variable.assign(value)

    return give_back


def _together(place, original):
    """Wraps a function of Keras that loads a model, its argument number `place`."""

    @functools.wraps(original)
    def load(*args, **kwargs):
        model = args[place] if len(args) > place else kwargs["model"]
        if not any(hasattr(weight, "embedding_variable") for weight in model.weights):
            return original(*args, **kwargs)
        with together(model):
            return original(*args, **kwargs)

    return load


keras_internals.wrap_loads(_together)

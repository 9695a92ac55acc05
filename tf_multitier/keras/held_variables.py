"""Embedding variables that a program's own layers and models hold, as weights of them: keras_tracking.py finds them.

    layer._trainable_variables    has Rows for each part of the variable
    layer.save_own_variables      the layer's own writes its other weights, then archives.py writes the rows
    layer                         tracks the variable for tf.train.Checkpoint, which does not look into lists and dicts of Keras

A variable that several layers hold is one weight: Rows.of gives each of them the same Rows.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import typing
import warnings
import weakref

import keras

from tf_multitier._src.variable import keras_tracking
from tf_multitier.keras import dense_weights
from tf_multitier.keras import keras_internals
from tf_multitier.keras import archives
from tf_multitier.keras.rows import Rows

# {layer that was called: the variables of its layers that were looked up}
_known: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_warned: weakref.WeakSet = (
    weakref.WeakSet()
)  # variables that no layer held when a layer looked them up


class HeldRows(Rows):
    """Rows of an embedding variable that the program made. Only the model's optimizer trains them."""

    def __init__(self, part: typing.Any, whole: typing.Any, name: str) -> None:
        owner = f"embedding variable '{part.variable_name}'"
        super().__init__(part, owner, None, whole, name, part.trainable)

    def _cure(self, optimizer):
        return (
            f"compile the model with tf_multitier.keras.with_rows(keras.optimizers.{optimizer}(...)), or write a train_step that gives "
            "its gradient to an optimizer of tf_multitier.optimizers, and the other gradients to the model's"
        )


def track(layer: typing.Any, variable: typing.Any) -> None:
    """Makes the parts of an embedding variable weights of the layer."""
    rows = [_rows(layer, part, variable) for part in variable.parts]
    is_new = [keras_internals.track_weight(layer, one) for one in rows]
    if not any(is_new):
        return  # a layer of tf_multitier, which has its Rows already
    layer.supports_jit = False  # else Keras gives our ops to XLA
    layer._maybe_initialize_trackable()
    names = map("embedding_variable_{}".format, itertools.count())
    free = next(name for name in names if layer._lookup_dependency(name) is None)
    layer._track_trackable(variable, free)
    _save_rows_of(layer)


def untrack(layer: typing.Any, variable: typing.Any) -> None:
    """Undoes `track`, for a variable that was taken out of a list or dict of the layer."""
    for part in variable.parts:
        keras_internals.untrack_weight(layer, Rows.of(part))


def _rows(layer, part, whole):
    found = Rows.of(part)
    if found is not None:
        return found
    name = part._shared_name.rpartition("/")[2]
    if whole is not part:
        name = f"{whole.variable_name.rpartition('/')[2]}_{name}"
    layer_name = getattr(
        layer, "name", type(layer).__name__
    )  # it has none before super().__init__()
    with keras.name_scope(layer_name, caller=layer):
        return HeldRows(part, whole, name)


def _save_rows_of(layer):
    """Makes the layer's `save_own_variables` and `load_own_variables` do so for rows, too."""
    if getattr(layer, "saves_rows", False):
        return
    # Of this layer alone, as Keras replaces `build`.
    object.__setattr__(layer, "saves_rows", True)
    for name, function in (("save_own_variables", save), ("load_own_variables", load)):
        both = functools.partial(function, layer, getattr(layer, name))
        object.__setattr__(layer, name, both)


def save(layer: typing.Any, save_others: typing.Any, store: typing.Any) -> None:
    """`save_own_variables` of a layer: `save_others` writes its weights without the Rows, then archives.py writes the rows."""
    with _without_rows(layer) as rows:
        save_others(store)
    archives.save(rows, store, layer.name)


def load(layer: typing.Any, load_others: typing.Any, store: typing.Any) -> None:
    """`load_own_variables` of a layer, for what `save` wrote, or keras.layers.Embedding."""
    if list(store.keys()) == ["0"] and _is_one_table(layer):
        parts = layer._rows[0].whole.parts
        dense_weights.replace(parts, store["0"], f"layer '{layer.name}'")
        return
    others = [key for key in list(store.keys()) if not archives.is_of_rows(key)]
    with _without_rows(layer) as rows:
        load_others({key: store[key] for key in others})
    archives.load(rows, store, layer.name)


def _is_one_table(layer):
    """Whether the rows of one table are all the weights that a built layer of ours has."""
    rows = getattr(layer, "_rows", [])
    return len({id(one.whole) for one in rows}) == 1 and len(rows) == len(layer.weights)


@contextlib.contextmanager
def _without_rows(layer):
    """A context: Keras' code finds no Rows among the layer's weights. Gives the Rows."""
    lists = keras_internals.own_weights(layer)
    before = [list(weights) for weights in lists]
    rows = [weight for weights in before for weight in weights if isinstance(weight, Rows)]
    for weights in lists:
        weights[:] = [weight for weight in weights if not isinstance(weight, Rows)]
    try:
        yield rows
    finally:
        for weights, its in zip(lists, before):
            weights[:] = its


def looked_up(variable: typing.Any) -> None:
    """See keras_tracking.looked_up."""
    called, trained = keras_internals.called_layer(), keras_internals.model_in_own_step()
    is_held_by_called, is_held_by_trained = _holds(called, variable), _holds(trained, variable)
    expected = "embedding variable '{}': expected an attribute of model '{}' or of one of its layers, found none"
    cure = "assign it, or its layer, to self in the model or in the layer that looks it up"
    if trained is not None and not is_held_by_trained and _is_trainable(variable):
        raise ValueError(
            f"{expected.format(variable.variable_name, trained.name)}: fit would not train its rows: {cure}, or make it, or its layer, "
            "with trainable=False"
        )
    if called is None or is_held_by_called or keras_internals.is_symbolic_call():
        return
    if variable not in _warned and Rows.of(variable.parts[0]) is None:
        _warned.add(variable)
        warnings.warn(
            f"{expected.format(variable.variable_name, called.name)}: the model's weights and saves are without its rows: {cure}",
            stacklevel=4,
        )


def _holds(model, variable):
    """Whether a layer of the model holds the variable, which is then tracked."""
    if model is None:
        return False
    known = _known.setdefault(model, weakref.WeakSet())
    if variable not in known:
        for layer in keras_internals.layers_of(model):
            if variable in keras_tracking.variables_in(*keras_tracking.attributes(layer)):
                track(layer, variable)
                known.add(variable)
    return variable in known


def _is_trainable(variable):
    weights = [Rows.of(part) for part in variable.parts]
    return any(
        (part if weight is None else weight).trainable
        for part, weight in zip(variable.parts, weights)
    )

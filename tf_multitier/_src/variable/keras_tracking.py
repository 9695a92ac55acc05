"""How layers and models of Keras 3 learn of the embedding variables that a program gives them: `self.users = get_embedding_variable(...)`.

Each layer has a tracker, which puts what is assigned to the layer, and to its lists and dicts, into one list for each kind: variables,
layers, metrics. A tracker gets one more kind here: embedding variables. What Keras sees of them is in keras/held_variables.py.

    layer.__init__        assigns `_tracker`: patches.py calls `new_attribute`, which adds the kind
    layer.users = ...     the tracker finds the kind, and gives the variable to keras/held_variables.py
    a lookup in `call`    finds the variables that a tracker does not see: in modules that got them after they were assigned

This file imports no Keras. It does nothing for objects that are no layers of Keras 3 with the TensorFlow backend.
"""

from __future__ import annotations

import collections
import importlib
import sys
import typing
import weakref

import tensorflow as tf

from tf_multitier._src.variable.dense_uses import NoDenseValue

_KIND = "embedding_variables"
_trackers: weakref.WeakSet = weakref.WeakSet()  # those that have the kind


def new_attribute(layer: typing.Any, name: str, value: typing.Any) -> None:
    """Adds the kind to the tracker of a layer when the layer gets its tracker, or, if it was made before, its next attribute."""
    tracker = value if name == "_tracker" else vars(layer).get("_tracker")
    if tracker is None or tracker in _trackers or "layers" not in getattr(tracker, "config", ()):
        return
    _trackers.add(tracker)
    tracker.stored_ids[_KIND] = set()
    tracker.config[_KIND] = (_Test(tracker), _Store(layer))
    for variable in variables_in(*attributes(layer)):
        tracker.track(variable)


class _Test:
    """What a tracker asks of each value: whether it is an embedding variable."""

    def __init__(self, tracker):
        self._tracker = weakref.ref(tracker)

    def __call__(self, value):
        tracker = self._tracker()
        if isinstance(value, tf.Module):
            for variable in variables_in(value):
                tracker.track(variable)
        if not is_ours(value):
            return False
        if tracker.locked and not tracker.is_in_store(_KIND, value):
            # A layer that is built takes no more state of Keras. But these variables are made in `call`, too.
            tracker.locked = False
            tracker.add_to_store(_KIND, value)
            tracker.locked = True
        return True


class _Store(list):
    """The embedding variables of a layer."""

    def __init__(self, layer):
        super().__init__()
        self._layer = weakref.ref(layer)

    def append(self, variable):
        super().append(variable)
        _held().track(self._layer(), variable)

    def __delitem__(self, index):
        variable = self[index]
        super().__delitem__(index)
        _held().untrack(self._layer(), variable)


def _held():
    return importlib.import_module("tf_multitier.keras.held_variables")


def find_listed(root: typing.Any) -> None:
    """Lets tf.train.Checkpoint find what layers with embedding variables have in lists. root: an object that it saves."""
    if _trackers and "tf_multitier.keras.rows" in sys.modules:
        importlib.import_module("tf_multitier.keras.tracked_lists").attach(root)


def is_ours(value: typing.Any) -> bool:
    """Whether a value is an embedding variable of eager execution, partitioned or not."""
    return isinstance(value, NoDenseValue) and not value._in_graph_mode  # type: ignore[attr-defined]


def variables_in(*values: typing.Any) -> list:
    """The embedding variables among these values, in their containers, and in those that are a tf.Module."""
    found: list = []
    seen: set = set()
    todo = collections.deque(values)
    while todo:
        value = todo.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_ours(value):
            found.append(value)
        elif isinstance(value, tf.Module):
            todo.extend(attributes(value))
        elif isinstance(value, dict):
            todo.extend(value.values())
        elif isinstance(value, (list, tuple, set)):
            todo.extend(value)
    return found


def attributes(trackable: typing.Any) -> list:
    """What a program has assigned to a layer or tf.Module, without TensorFlow's own lists of it."""
    return [value for name, value in vars(trackable).items() if not name.startswith("_self_")]


def looked_up(variable: typing.Any) -> None:
    """Every lookup calls this first. In a layer's `call` and in a loss, it tracks the variable if a layer of the model holds it, else warns once.

    Raises:
      ValueError: `fit` runs Keras' own training step, which would not train the variable: no layer of the model holds it.
    """
    if _trackers and is_ours(variable):
        _held().looked_up(variable)

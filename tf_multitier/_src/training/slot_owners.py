"""Which optimizer of TensorFlow 2 has the slots of a table: columns of its rows, found by name, with which a later one goes on."""

from __future__ import annotations

import typing
import warnings
import weakref

import tensorflow as tf

_owners: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # {table: {slot: weak reference}}


def take(optimizer: typing.Any, table: typing.Any, names: list) -> None:
    """Warns if an optimizer without a step gets slots of a table that another one of the process had: Keras' would have new ones."""
    owners, its = _owners.setdefault(table, {}), weakref.ref(optimizer)
    taken = [name for name in names if owners.get(name, its) is not its]
    owners.update(dict.fromkeys(names, its))
    if not taken:
        return
    with tf.init_scope():
        if tf.executing_eagerly() and int(optimizer.iterations.numpy()) == 0:
            warnings.warn(
                f"embedding variable '{table.variable_name}': expected slots '{taken[0]}' that begin anew with this "
                f"{type(optimizer).__name__}, found those of another optimizer, with which it goes on: for new ones, give the optimizer "
                "a name of its own (name=)",
                stacklevel=2,
            )

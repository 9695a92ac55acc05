"""Refuses Keras 2: tf_keras, and TensorFlow's own copy. Its objects and those of this package, which are of Keras 3, do not go together.

Keras 2 takes an object of Keras 3 for something that has no weights, so nothing would train it. There are two ways to meet:

    an object of Keras 2 comes to ours, as an argument            refuse, refuse_call
    Keras 2 gets one of ours, and asks for attributes of its own  Keras3Object
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing

import keras
import tensorflow as tf

from tf_multitier.keras import keras_internals

_KERAS_2 = ("tf_keras", "tensorflow.python.keras")


def _package_of(module):
    """The package of Keras 2 that a module is in, or None."""
    return next((name for name in _KERAS_2 if f"{module}.".startswith(f"{name}.")), None)


@functools.lru_cache(1024)
def _package_of_class(kind):
    return next(filter(None, (_package_of(base.__module__) for base in kind.__mro__)), None)


def _error(what, found, package):
    version = getattr(sys.modules.get(package), "__version__", tf.__version__)
    return TypeError(
        f"{what}: expected Keras 3 (keras {keras.__version__}), found {found} of Keras 2 ({package} {version}): make the whole model "
        "with `import keras`; a program that uses tf.keras runs without TF_USE_LEGACY_KERAS=1"
    )


def refuse(what: str, *things: typing.Any) -> None:
    """TypeError if one of `things` is an object of Keras 2. what: starts the message."""
    for thing in things:
        kind: typing.Any = type(thing)
        package = _package_of_class(kind)
        if package is not None:
            raise _error(what, kind.__name__, package)


def refuse_call(what: str, arguments: typing.Any) -> None:
    """TypeError if a layer is called with a tensor of Keras 2, or by one of its layers. arguments: a structure of tensors."""
    refuse(what, *keras.tree.flatten(arguments))
    for package in _KERAS_2:
        caller = keras_internals.calling_layer_of_keras_2(package)
        if caller is not None:
            raise _error(what, f"a call by {type(caller).__name__}", package)


class Keras3Object:
    """A base of the objects of Keras 3 that refuse Keras 2."""

    def __getattr__(self, name: str) -> typing.Any:
        """Only for names that are not there.

        Raises:
          TypeError: Keras 2 asks.
          AttributeError: others ask.
        """
        frame: typing.Any = inspect.currentframe()
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            package = _package_of(module)
            if package is not None:
                raise _error(f"tf_multitier.keras: {type(self).__name__}", "a use", package)
            if not module.startswith(("tensorflow.", "tf_multitier.keras.")):
                break
            frame = frame.f_back
        return self.__getattribute__(name)  # raises again what a property of that name has raised

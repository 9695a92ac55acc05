"""tf.compat.v1 with the names of tf_multitier added: `import tf_multitier.v1 as tf`.

A v1 script that uses embedding variables changes its import line. `tf.train`, `tf.feature_column`, `tf.data` and `tf.nn` are those of
tf.compat.v1 with our optimizers, columns, pipeline stages and grouped lookups added; `tf.nn`'s lookups take embedding variables as they are. Where
both have a name, the one in `tf` itself is ours; `tf.feature_column` and `tf.train` prefer ours too, which fall through to
TensorFlow's for what is not ours. `from tf_multitier.v1 import *` gives the same
names. This is a module, not a package: `import tf_multitier.v1.math` fails, `from tf_multitier.v1 import math` is
TensorFlow's.

A program that has not used eager execution when it imports this module gets graphs and Sessions, as TensorFlow 1 had them: eager
execution is turned off, so that a v1 script needs no other line changed. In a program that has used it, nothing is switched.
Everything else that `tf.disable_v2_behavior()` does is left to the program.
"""

import sys
import types

import tensorflow.compat.v1 as _v1
from tensorflow.python.eager import context as _context

import tf_multitier as _ours
from tf_multitier import data as _data
from tf_multitier import feature_column as _feature_column
from tf_multitier import nn as _nn
from tf_multitier import train as _train


class _Overlay(types.ModuleType):
    """A module that has the public names of one module and, where that lacks a name, of another."""

    def __init__(self, name, over, under):
        super().__init__(name, under.__doc__)
        self.__dict__.update(_over=over, _under=under, __all__=sorted(set(_public(over)) | set(_public(under))))

    def __getattr__(self, name):
        _refuse_special(self.__name__, name)
        if name in _public(self._over):
            return getattr(self._over, name)
        return getattr(self._under, name)

    def __dir__(self):
        return sorted(set(dir(self._under)) | set(_public(self._over)))


def _public(module):
    """Its public names. TensorFlow lists `__path__` among them in `__all__`."""
    return [n for n in getattr(module, "__all__", None) or dir(module) if not n.startswith("_")]


def _refuse_special(module, name):
    """AttributeError for `__names__`: TensorFlow's __path__ and the like say what its modules are, not what these are."""
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")


data = _Overlay(__name__ + ".data", _data, _v1.data)
feature_column = _Overlay(__name__ + ".feature_column", _feature_column, _v1.feature_column)
train = _Overlay(__name__ + ".train", _train, _v1.train)
nn = _Overlay(__name__ + ".nn", _nn, _v1.nn)

for _module in (data, feature_column, train, nn):
    sys.modules.setdefault(_module.__name__, _module)


__all__ = sorted(set(_public(_v1)) | set(_ours.__all__))


def __getattr__(name):
    _refuse_special(__name__, name)
    if name in _ours.__all__:
        return getattr(_ours, name)
    return getattr(_v1, name)


def __dir__():
    return sorted(set(dir(_v1)) | set(_ours.__all__))


if _context.context_safe() is None:  # made by the first use of eager execution
    _v1.disable_eager_execution()

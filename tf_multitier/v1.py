"""tf.compat.v1 with the names of tf_multitier added: `import tf_multitier.v1 as tf`.

To use embedding variables, a v1 script changes only its import line. `tf.train`, `tf.feature_column`, `tf.data` and `tf.nn` are
those of tf.compat.v1, with our optimizers, columns, pipeline stages and grouped lookups added. If both have a name, it is ours; our
columns then call TensorFlow's for anything that is not ours. The lookups of `tf.nn` accept embedding variables.

`from tf_multitier.v1 import *` gives the same names. This is a module, not a package: `import tf_multitier.v1.math` fails, and
`from tf_multitier.v1 import math` gives TensorFlow's module.

If the program has not used eager execution before the import, the import turns it off, so that the script gets graphs and Sessions
as in TensorFlow 1. Otherwise nothing is switched. The import does nothing else of `tf.disable_v2_behavior()`.
"""

import sys
import types

import tensorflow.compat.v1 as _v1

import tf_multitier as _ours
from tf_multitier import data as _data
from tf_multitier import feature_column as _feature_column
from tf_multitier import nn as _nn
from tf_multitier import train as _train
from tf_multitier._src.tensorflow.internals import eager_context as _eager_context


class _Overlay(types.ModuleType):
    """A module with the public names of two modules. The first takes precedence."""

    def __init__(self, name, over, under):
        super().__init__(name, under.__doc__)
        self.__dict__.update(
            _over=over, _under=under, __all__=sorted(set(_public(over)) | set(_public(under)))
        )

    def __getattr__(self, name):
        _refuse_special(self.__name__, name)
        if name in _public(self._over):
            return getattr(self._over, name)
        return getattr(self._under, name)

    def __dir__(self):
        return sorted(set(dir(self._under)) | set(_public(self._over)))


def _public(module):
    """The public names of a module, without `__path__`, which TensorFlow lists in `__all__`."""
    return [n for n in getattr(module, "__all__", None) or dir(module) if not n.startswith("_")]


def _refuse_special(module, name):
    """AttributeError for special names: TensorFlow's `__path__` and others describe its own modules, not ours."""
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


if _eager_context.context_safe() is None:  # None until the first use of eager execution
    _v1.disable_eager_execution()

"""Runs a DeepRec script, and gives it its own module for `import tensorflow`.

Some names have another meaning in TensorFlow 2 than in TensorFlow 1 (`tf.reduce_sum(x, keep_dims=True)`, `tf.losses`, ...). They
cannot be changed in the module `tensorflow`, because installed packages rely on it. So the script and its own modules get another
module for `import tensorflow`: TensorFlow 1's API (`tensorflow.compat.v1`) with DeepRec's names. `__import__` sees which module
imports. Installed packages, and TensorFlow itself, get the real module.
"""

import builtins
import contextlib
import functools
import os
import runpy
import sys
import sysconfig
import types

import tensorflow

import tf_multitier
from tf_multitier import deeprec
from tf_multitier.deeprec import horovod
from tf_multitier.deeprec import keras_layers
from tf_multitier.deeprec import lookup_arguments
from tf_multitier.deeprec import messages
from tf_multitier.deeprec import numpy_names
from tf_multitier.deeprec import script_modules
from tf_multitier.deeprec import version_check

_v1 = tensorflow.compat.v1

# Modules that are only attributes of `tensorflow`. Importing them by name would load a second copy.
_API = (
    "tensorflow._api.",
    "tensorflow.estimator",
    "tensorflow.feature_column",
    "tensorflow.nn",
    "tensorflow.train",
)

_INSTALLED = tuple(
    os.path.join(os.path.realpath(path), "")
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(os.path.dirname(tensorflow.__file__)),
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    }
)


class _ScriptsTensorFlow(types.ModuleType):
    """TensorFlow 1's API. For other names (`python`, `core`, `contrib`, `__path__`, ...) it has those of the package `tensorflow`."""

    def __init__(self, modules):
        super().__init__("tensorflow", _v1.__doc__)
        self.compat = tensorflow.compat
        self.__dict__.update(script_modules.CONFIG)
        self.python, self.core = modules["tensorflow.python"], modules["tensorflow.core"]
        self.layers = keras_layers.layers()
        for name, content in (
            ("feature_column", script_modules.COLUMNS),
            ("train", script_modules.TRAIN),
            ("nn", lookup_arguments.LOOKUPS),
        ):
            setattr(
                self, name, script_modules.over(getattr(_v1, name), f"tensorflow.{name}", content)
            )

    def __getattr__(self, name):
        if not name.startswith("__") and hasattr(_v1, name):
            return getattr(_v1, name)
        package = sys.modules.get("tensorflow." + name)  # TensorFlow 2 hides `python` and `core`
        return getattr(tensorflow, name) if package is None else package

    def __dir__(self):
        return sorted(set(dir(_v1)) | set(vars(self)))


@functools.cache
def _is_installed(file):
    return file is None or os.path.realpath(file).startswith(_INSTALLED)


def _module_of_api(scripts_tensorflow, name):
    """The module of the API that `import tensorflow.a.b` names. None for packages with files, such as `tensorflow.python`."""
    module = scripts_tensorflow
    for part in name.split(".")[1:]:
        module = getattr(module, part, None)
        if not isinstance(module, types.ModuleType) or not vars(module).get(
            "__name__", ""
        ).startswith(_API):
            return None
    return module


def _importer(original, scripts_tensorflow, modules):
    """An `__import__` that gives the script its own modules for `import tensorflow...`, `import pkg_resources` and modules of NumPy 1."""

    def import_(name, globals=None, locals=None, fromlist=(), level=0):
        package = name.partition(".")[0]
        if (
            level
            or package not in ("tensorflow", "pkg_resources", "numpy")
            or _is_installed((globals or {}).get("__file__"))
        ):
            return original(name, globals, locals, fromlist, level)
        if name == "pkg_resources":
            return version_check.pkg_resources()
        if package == "numpy":
            return numpy_names.module(name, fromlist or ()) or original(
                name, globals, locals, fromlist, level
            )
        module = _module_of_api(scripts_tensorflow, name) or original(
            name, globals, locals, fromlist, level
        )
        module = modules.get(module.__name__, module)
        return scripts_tensorflow if module is tensorflow or not fromlist else module

    return import_


def _count_as_deeprec():
    """Makes `total_count()` of embedding variables give [rows, dim], as in DeepRec. Elsewhere it gives the number of rows alone."""
    tf_multitier.EmbeddingVariable.total_count = tf_multitier.EmbeddingVariable.get_dynamic_shape


def run(script, arguments, deprecations=False):
    """Runs a script as the main program.

    `tf` is defined even if the script does not import it, because examples of DeepRec's manual rely on that.

    Args:
      script: path of the file.
      arguments: the script's `sys.argv[1:]`.
      deprecations: whether deprecation warnings of TensorFlow and Keras are printed.

    Returns:
      The exit status: 0, or 1 if the script raised an exception. The exception is printed.
    """
    with contextlib.nullcontext() if deprecations else messages.without_deprecations():
        deeprec.install()
        _count_as_deeprec()
        horovod.install()
        modules = script_modules.make()
        scripts_tensorflow = _ScriptsTensorFlow(modules)
        sys.argv = [script, *arguments]
        sys.path[0] = os.path.dirname(os.path.abspath(script))
        builtins.__import__ = _importer(builtins.__import__, scripts_tensorflow, modules)
        try:
            runpy.run_path(script, {"tf": scripts_tensorflow}, "__main__")
        except Exception as error:  # noqa: BLE001  Python itself handles SystemExit and KeyboardInterrupt
            messages.report(error)
            return 1
    return 0

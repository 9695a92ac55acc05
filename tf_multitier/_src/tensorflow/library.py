"""Loads the op library and checks that it was built for the installed TensorFlow."""

from __future__ import annotations

import functools
import os
import pathlib
import types
import typing
import weakref

import tensorflow as tf

from tf_multitier import _version

_LIBRARY = "_tf_multitier_ops.so"


def minor_version(version):
    """ "2.21.0rc1" -> "2.21"."""
    return ".".join(version.split(".")[:2])


def check_tensorflow_version(installed, built_for):
    """ImportError if the minor versions differ. The message names both."""
    if minor_version(installed) != minor_version(built_for):
        raise ImportError(
            f"tf_multitier was built for TensorFlow {minor_version(built_for)} and cannot be used with the "
            f"installed TensorFlow {installed}: install tensorflow=={minor_version(built_for)}.* or build "
            "tf_multitier again."
        )


def get_library_path() -> str:
    """The path of the shared library with the ops. `tf.load_op_library` and C++ programs load it: examples/serving."""
    return str(pathlib.Path(__file__).absolute().parents[2] / _LIBRARY)


def _build_info_or_none():
    try:
        from tf_multitier import _build_info
    except ImportError:
        return None
    return _build_info


def build() -> str:
    """The version of the package, with a digest of the sources that it was built from."""
    sources = getattr(_build_info_or_none(), "SOURCES", "unknown")
    return f"{_version.VERSION} (sources {sources})"


def _load():
    _build_info = _build_info_or_none()
    if _build_info is not None:
        check_tensorflow_version(tf.__version__, _build_info.TF_VERSION)
    path = get_library_path()
    if not os.path.exists(path):
        raise ImportError(
            f"tf_multitier is not built: {_LIBRARY} is missing; run `python3 configure.py run` in the "
            "repository, or install the wheel."
        )
    return tf.load_op_library(path)


class _Ops:
    """The generated Python functions of the ops, as attributes.

    The first op in the graph of a function is one whose type has the package's name. In a process without the package,
    TensorFlow's error names the first op of a function that it does not know.
    """

    def __init__(self, library: types.ModuleType):
        self._library = library
        self._named: weakref.WeakSet = weakref.WeakSet()  # graphs of functions that have that op

    def __getattr__(self, name: str) -> typing.Any:
        function = getattr(self._library, name)
        if not callable(function):
            return function

        @functools.wraps(function)
        def call(*args, **kwargs):
            if tf.inside_function():
                self._name_package(tf.compat.v1.get_default_graph())
            return function(*args, **kwargs)

        setattr(self, name, call)  # the next time it is found at once
        return call

    def __dir__(self):
        return dir(self._library)

    def _name_package(self, graph: tf.Graph):
        if graph in self._named:
            return
        self._named.add(graph)
        with tf.control_dependencies(None), tf.device(None):
            self._library.multitier_import_tf_multitier()


# ops.multitier_lookup(...), ...
ops = _Ops(_load())

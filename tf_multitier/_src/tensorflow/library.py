"""Loads the op library that was built for the installed TensorFlow: a checkout has one, a wheel one for each minor version."""

from __future__ import annotations

import functools
import pathlib
import types
import typing
import weakref

import tensorflow as tf

from tf_multitier import _version


def minor_version(version):
    """ "2.21.0rc1" -> "2.21"."""
    return ".".join(version.split(".")[:2])


def library_for(installed, built):
    """The file of the ops. ImportError, which names both, if none is for the minor version of the installed TensorFlow.

    built: {minor version: file}.
    """
    minor = minor_version(installed)
    if minor not in built:
        raise ImportError(
            f"tf_multitier was built for TensorFlow {', '.join(built)} and cannot be used with the installed TensorFlow {installed}: "
            f"install tensorflow=={list(built)[-1]}.* or build tf_multitier again."
        )
    return built[minor]


def get_library_path() -> str:
    """The path of the shared library with the ops. `tf.load_op_library` and C++ programs load it: examples/serving."""
    return str(
        pathlib.Path(__file__).absolute().parents[2]
        / library_for(tf.__version__, _build_info().OPS)
    )


def build() -> str:
    """The version of the package, with a digest of the sources that it was built from."""
    return f"{_version.VERSION} (sources {_build_info().SOURCES})"


def _build_info():
    try:
        from tf_multitier import _build_info as info
    except ImportError:
        raise ImportError(
            "tf_multitier is not built: run `python3 configure.py run` in the repository, or install the wheel."
        ) from None
    return info


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
ops = _Ops(tf.load_op_library(get_library_path()))

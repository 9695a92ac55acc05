"""`tf.layers` of a script: Keras 2's, or an error that says how to get it.

With TensorFlow 2.21, `tf.layers` needs the package tf_keras, and TF_USE_LEGACY_KERAS must be set before TensorFlow is imported
(tf_multitier/_src/tensorflow/start.py).
"""

import importlib.metadata
import importlib.util
import os
import types

import tensorflow as tf

from tf_multitier._src.tensorflow.start import LEGACY_KERAS


def layers():
    """The module for `tf.layers`."""
    sentence = _what_is_missing()
    return _Refusal("tensorflow.layers", sentence) if sentence else tf.compat.v1.layers


def _what_is_missing():
    """The error message, or None if nothing is missing."""
    if importlib.util.find_spec("tf_keras") is None:
        options = (
            "" if _has("tensorflow") else "--no-deps "
        )  # else pip would install a second TensorFlow
        return (
            f"tf.layers needs the package tf_keras: run `pip install {options}'tf_keras==2.21.*'`"
        )
    if os.environ.get(LEGACY_KERAS) not in ("1", "true", "True"):
        return f"tf.layers needs Keras 2: run the program with {LEGACY_KERAS}=1, found {LEGACY_KERAS}={os.environ.get(LEGACY_KERAS)}"
    return None


def _has(package):
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


class _Refusal(types.ModuleType):
    """A module that raises ImportError for every name."""

    def __init__(self, name, sentence):
        super().__init__(name)
        self._sentence = sentence

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(self._sentence)

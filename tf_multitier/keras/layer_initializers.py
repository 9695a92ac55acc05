"""Initializers of Keras as initial values of embedding variables."""

from __future__ import annotations

import typing

import keras
import numpy as np
import tensorflow as tf

from tf_multitier._src.options import initializers
from tf_multitier.keras import keras_internals


def initializer_of_rows(initializer: typing.Any, what: str) -> typing.Any:
    """An initializer of Keras, by name or object, as one that embedding variables know exactly, where there is one.

    keras.initializers.Constant of a matrix [N, dim] gives that matrix: id i starts from its row i modulo N.

    Args:
      what: starts messages.

    Raises:
      ValueError: keras.initializers.Constant of an array that has neither of these shapes: [N, dim], [dim] or [].
    """
    made = keras.initializers.get(initializer)
    if isinstance(made, initializers.KeyInitializer):
        return made
    config = made.get_config() if hasattr(made, "get_config") else {}
    if type(made).__name__ == "Constant" and np.ndim(made.value) > 2:
        raise ValueError(
            f"{what}: expected a Constant of a number or of shape [dim] or [N, dim], found shape {np.shape(made.value)}"
        )
    if type(made).__name__ == "Constant" and np.ndim(made.value) > 0:
        return np.atleast_2d(np.asarray(made.value, np.float32))
    seed = _seed(made, config)
    kinds = {
        "RandomUniform": lambda: tf.random_uniform_initializer(
            config["minval"], config["maxval"], seed
        ),
        "RandomNormal": lambda: tf.random_normal_initializer(
            config["mean"], config["stddev"], seed
        ),
        "TruncatedNormal": lambda: tf.compat.v1.truncated_normal_initializer(
            config["mean"], config["stddev"], seed
        ),
        "Constant": lambda: tf.constant_initializer(config["value"]),
        "Zeros": tf.zeros_initializer,
        "Ones": tf.ones_initializer,
    }
    if type(made).__name__ not in kinds or isinstance(seed, dict):
        return made
    return kinds[type(made).__name__]()


def _seed(initializer, config):
    """The seed that an initializer was made with. Without one: after keras.utils.set_random_seed, what Keras drew for the initializer,
    so that the same program gives the same rows twice in a process; else None, and the variable's name gives the seed."""
    seed = config.get("seed")
    drawn = getattr(initializer, "seed", None)
    is_of_program = keras_internals.seed_of_program() is not None
    is_drawn = seed is None and is_of_program and isinstance(drawn, int)
    return drawn if is_drawn else seed

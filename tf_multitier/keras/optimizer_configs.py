"""Row optimizers as the dicts that Keras writes into a layer's configuration.

A function, for example a learning rate that is a lambda, stays itself in the configuration: `clone_model` passes it on, and Keras turns
it into JSON when it saves the model.
"""

from __future__ import annotations

import typing

import keras

from tf_multitier import optimizers as row_optimizers


def to_config(optimizer: typing.Any) -> typing.Any:
    """An optimizer of tf_multitier.optimizers, or None, as a configuration."""
    if optimizer is None:
        return None
    arguments = {key: _to_config(value) for key, value in optimizer.get_config().items()}
    return {"row_optimizer": type(optimizer).__name__, "arguments": arguments}


def _to_config(value):
    return keras.saving.serialize_keras_object(value) if hasattr(value, "get_config") else value


def from_config(config: typing.Any, layer: str) -> typing.Any:
    """The optimizer of a configuration. Anything else is returned unchanged.

    Raises:
      ValueError: an argument is a lambda from a file, and Keras loads in safe mode.
    """
    if not isinstance(config, dict) or config.get("row_optimizer") not in row_optimizers.__all__:
        return config
    kind = config["row_optimizer"]
    arguments = {
        key: _from_config(value, f"layer '{layer}': {key} of {kind}")
        for key, value in config["arguments"].items()
    }
    return getattr(row_optimizers, kind)(**arguments)


def _from_config(value, what):
    if not isinstance(value, dict):
        return value
    try:
        return keras.saving.deserialize_keras_object(value)
    except ValueError as error:
        if value.get("class_name") != "__lambda__":
            raise
        raise ValueError(
            f"{what}: expected a number, a schedule of keras.optimizers.schedules, or a function registered with "
            "keras.saving.register_keras_serializable, found a lambda, which Keras loads with safe_mode=False only"
        ) from error

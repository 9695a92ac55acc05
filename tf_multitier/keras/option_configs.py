"""EmbeddingVariableOption as the plain dicts and lists that Keras writes into a model's configuration."""

from __future__ import annotations

import enum
import typing

from tf_multitier import config_pb2
from tf_multitier import initializers
from tf_multitier import options
from tf_multitier.option_values import Option


def to_config(value: typing.Any) -> typing.Any:
    """An option, or a field of one, as JSON can have it.

    Raises:
      NotImplementedError: an object that has no configuration, for example an initializer in InitializerOption.
    """
    if value is None or (
        isinstance(value, (bool, int, float, str)) and not isinstance(value, enum.Enum)
    ):
        return value
    if isinstance(value, enum.Enum):
        return {"enum": type(value).__name__, "name": value.name}
    if isinstance(value, (list, tuple)):
        return [to_config(each) for each in value]
    if isinstance(value, Option):
        fields = {name: to_config(field) for name, field in vars(value).items()}
        return {"option": type(value).__name__, "fields": fields}
    raise NotImplementedError(
        f"{value!r} in an ev_option has no configuration: give it as embeddings_initializer, or save the weights only"
    )


def from_config(config: typing.Any) -> typing.Any:
    """The option of a configuration. Anything else is returned unchanged."""
    if isinstance(config, list):
        return tuple(from_config(each) for each in config)
    if not isinstance(config, dict):
        return config
    if "enum" in config:
        return getattr(config_pb2, config["enum"])[config["name"]]
    if "option" not in config:
        return config
    name = config["option"]
    made = object.__new__(getattr(options, name, None) or getattr(initializers, name))
    vars(made).update({name: from_config(field) for name, field in config["fields"].items()})
    return made

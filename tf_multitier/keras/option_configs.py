"""EmbeddingVariableOption as the plain dicts and lists that Keras writes into a model's configuration.

An option is {"option": its class, "fields": its constructor's arguments}, so that reading one makes every check of the constructor.
"""

from __future__ import annotations

import datetime
import enum
import numbers
import typing

from tf_multitier import options
from tf_multitier._src.options import initializers
from tf_multitier._src.options import storage_types
from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier._src.options.option_values import Option

_CLASSES = {
    each.__name__: each
    for each in (
        initializers.DebugInitializer,
        initializers.TruncatedNormal,
        options.CBFFilter,
        options.CounterFilter,
        options.EmbeddingVariableOption,
        options.GlobalStepEvict,
        options.InitializerOption,
        options.L2WeightEvict,
        options.ProbabilisticFilter,
        options.StorageOption,
    )
}
_ENUMS = {each.__name__: each for each in (storage_types.CacheStrategy, storage_types.StorageType)}


def to_config(value: typing.Any) -> typing.Any:
    """An option, or a field of one, as JSON can have it.

    Raises:
      NotImplementedError: an object that has no configuration, for example an initializer in InitializerOption.
    """
    if isinstance(value, enum.Enum):
        return {"enum": type(value).__name__, "name": value.name}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, datetime.timedelta):
        return {"microseconds": value // datetime.timedelta(microseconds=1)}
    if isinstance(value, (list, tuple)):
        return [to_config(each) for each in value]
    if isinstance(value, Option) and type(value).__name__ in _CLASSES:
        fields = {name: to_config(field) for name, field in vars(value).items()}
        return {"option": type(value).__name__, "fields": fields}
    raise NotImplementedError(
        f"{value!r} in an ev_option has no configuration: give it as embeddings_initializer, or save the weights only"
    )


def from_config(config: typing.Any) -> typing.Any:
    """The option of a configuration. Anything else is returned unchanged.

    Raises:
      TypeError, ValueError: an unknown class, member or field, or a bad value.
    """
    if isinstance(config, list):
        return tuple(from_config(each) for each in config)
    if not isinstance(config, dict):
        return config
    if "microseconds" in config:
        return datetime.timedelta(microseconds=config["microseconds"])
    if "enum" in config:
        members = _known("enum", config["enum"], _ENUMS).__members__
        return _known(config["enum"], config.get("name"), members)
    if "option" not in config:
        return config
    made = _known("option", config["option"], _CLASSES)
    try:
        return made(**{name: from_config(field) for name, field in config["fields"].items()})
    except TypeError as error:  # an argument that it does not have
        raise TypeError(f"ev_option: {config['option']}: {error}") from None


def _known(what, name, known):
    if not isinstance(name, str) or name not in known:
        raise ValueError(
            f"ev_option: {what}: expected one of {', '.join(known)}, found {name!r}{did_you_mean(name, known)}"
        )
    return known[name]

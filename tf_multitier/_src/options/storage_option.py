"""StorageOption: the tiers of an embedding variable, their sizes and their directory.

It comes from the variable's arguments, or from environment variables (`storage_option_from_environment`).
"""

from __future__ import annotations

import enum
import importlib
import inspect
import numbers
import os
import typing

from tf_multitier import _engine
from tf_multitier._src.options import option_record
from tf_multitier._src.options.option_values import Option
from tf_multitier._src.options.option_values import one_of
from tf_multitier._src.options.storage_types import CacheStrategy, StorageType
from tf_multitier.external_storage import Storage

ENV_STORAGE_TYPE = "TF_MULTITIER_STORAGE_TYPE"
ENV_STORAGE_PATH = "TF_MULTITIER_STORAGE_PATH"
ENV_STORAGE_SIZE = "TF_MULTITIER_STORAGE_SIZE"
ENV_STORAGE_KEEP = "TF_MULTITIER_STORAGE_KEEP"
_ENVIRONMENT = {
    "storage_type": ENV_STORAGE_TYPE,
    "storage_path": ENV_STORAGE_PATH,
    "storage_size": ENV_STORAGE_SIZE,
    "keep": ENV_STORAGE_KEEP,
}
ENV_DEVICE = "TF_MULTITIER_DEVICE"  # "emulated": types with HBM work without a GPU, for tests

# Storage types for which this build has tiers on every machine. Other types are refused by name when a variable is made.
AVAILABLE_STORAGE_TYPES = tuple(t for t in StorageType if "HBM" not in t.tiers)

TIERS_WITH_FILES = tuple(name for name, kind in _engine.tier_kinds().items() if kind["has_files"])


class StorageOption(Option):
    """The tiers of a variable. Source: DeepRec's `tf.StorageOption`, which has the first four arguments.

    Args:
      {options}

    Raises:
      TypeError, ValueError, NotImplementedError: a bad value, or a missing storage_path or size.
    """

    def __init__(
        self,
        storage_type: str | StorageType | None = None,
        storage_path: str | None = None,
        storage_size: typing.Any = None,
        cache_strategy: str | CacheStrategy | None = None,
        *,
        drop_coldest: bool = False,
        storage_rows: typing.Any = None,
        initial_rows: int = 0,
        on_full: str = "error",
        dropped: str = "keys",
        dropped_bytes: int | str = 8 << 20,
        removed_bytes: int | str = 1 << 20,
        refuse_colder: bool = False,
        on_corruption: str = "error",
        keep: bool = False,
        external_storage: str | type[Storage] | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in OPTIONS}
        self._set(given, "StorageOption.{}".format)

    def _set(self, given, shown):
        """Sets the fields. given: {option: value}. shown: function from a message of an option to the message that is raised."""
        kind = _member(StorageType, given["storage_type"])
        strategy = _member(CacheStrategy, given["cache_strategy"])
        given = {**given, "storage_type": kind, "cache_strategy": strategy}
        checked = option_record.check(given, shown)
        kept = {name: checked[name] for name in given}
        kept["storage_type"] = StorageType.DEFAULT if kind is None else StorageType[_name(kind)]
        kept["storage_path"] = checked["storage_path"] or None
        kept["external_storage"] = checked["external_storage"] or None
        kept["storage_size"] = tuple(checked["storage_size"])
        kept["storage_rows"] = tuple(checked["storage_rows"])
        is_default = checked["cache_strategy"] == "DEFAULT"
        kept["cache_strategy"] = None if is_default else CacheStrategy[checked["cache_strategy"]]
        kept["on_full"] = _name(given["on_full"]) or "error"
        vars(self).update(kept)

    def __setattr__(self, name: str, value: typing.Any) -> None:
        """Sets a field, as the constructor does: all are checked together."""
        if name not in OPTIONS:
            super().__setattr__(name, value)  # AttributeError
        self._set({**vars(self), name: value}, "StorageOption.{}".format)


OPTIONS = tuple(name for name in inspect.signature(StorageOption).parameters)
StorageOption.__doc__ = option_record.documented(StorageOption, OPTIONS)


def _member(kind, value):
    """A member of an enum from its number. Anything else is left to the record, which has names."""
    if isinstance(value, (bool, enum.Enum)) or not isinstance(value, numbers.Integral):
        return os.fsdecode(value) if isinstance(value, bytes) else value
    return kind(value) if value in kind.values() else str(value)


def _name(value):
    return getattr(value, "name", value)


def storage_option_from_environment(environ=None):
    """The StorageOption of variables that are made without one. It is read from TF_MULTITIER_STORAGE_TYPE, _PATH, _SIZE and _KEEP.

    Args:
      environ: mapping to read; None: `os.environ`. _TYPE is a name of `StorageType`, _PATH a directory, _SIZE a
        comma-separated list of sizes, _KEEP 0 or 1.

    Returns:
      A StorageOption; the default one if none of the four is set.

    Raises:
      ValueError: a bad value. The message names the environment variable, what was expected and what was found.
    """
    environ = os.environ if environ is None else environ
    for variable in environ:
        if variable.startswith("TF_MULTITIER_STORAGE_"):
            one_of("environment variable", variable, _ENVIRONMENT.values())
    if ENV_STORAGE_PATH in environ and ENV_STORAGE_TYPE not in environ:
        raise ValueError(
            f"environment variable {ENV_STORAGE_TYPE}: expected a storage type, because {ENV_STORAGE_PATH} is set, found none: "
            "set it, for example to DRAM_SSDHASH"
        )
    given = {}
    for option, variable in _ENVIRONMENT.items():
        value = environ.get(variable)
        if value is None:
            continue
        if option == "storage_size":
            value = value.split(",")
        elif option == "storage_path" and not value:
            raise ValueError(
                f"environment variable {variable}: expected the path of a directory, found ''"
            )
        elif option == "keep":
            if value not in ("0", "1"):
                raise ValueError(
                    f"environment variable {variable}: expected 0 or 1, found {value!r}"
                )
            value = value == "1"
        given[option] = value

    def shown(message):
        for option, variable in _ENVIRONMENT.items():
            if message.startswith(option):
                return f"environment variable {variable}{message.removeprefix(option)}"
        return message

    option = StorageOption()
    if given:
        option._set({**vars(option), "storage_type": None, **given}, shown)
    return option


# Storage types for which the handle op and the engine use another name.
_SAME_TIERS = {
    kind: StorageType["_".join(kind.tiers)]
    for kind in StorageType
    if kind.name != "_".join(kind.tiers)
}


def built_with_cuda() -> bool:
    """Whether types with HBM are left to the machine that holds the variable: it refuses them where it has no GPU."""
    try:
        info = importlib.import_module("tf_multitier._build_info")  # the build writes it
    except ImportError:
        return False
    return getattr(info, "CUDA_VERSION", None) is not None


def check_storage_available(name, storage):
    """The storage type that the variable gets. Types with the same tiers give the same type.

    Raises:
      NotImplementedError: this build has no tiers for the type. The message names the type, the reason and the available types.
    """
    kind = _SAME_TIERS.get(storage.storage_type, storage.storage_type)
    if os.environ.get(ENV_DEVICE) == "emulated" or built_with_cuda():
        return kind
    if kind not in AVAILABLE_STORAGE_TYPES:
        available = ", ".join(t.name for t in AVAILABLE_STORAGE_TYPES if t not in _SAME_TIERS)
        raise NotImplementedError(
            f"embedding variable '{name}': storage_type: expected one of {available}, because this build has no GPU "
            f"tier; found {kind.name}"
        )
    return kind


def storage_record(name, storage):
    """{option: value} of a StorageOption, for the record of the variable `name`.

    Raises:
      NotImplementedError: this build has no tiers for the storage type.
    """
    return {**vars(storage), "storage_type": check_storage_available(name, storage).name}

"""The record of a table's options (cc/options/options.h): values by name, which the engine checks and files keep.

StorageOption(...), engine.Table(...)     values of Python
    |  check(): here their types, in the engine their values
    v
{name: value}                             complete, as JSON has them
    |  text_of(): what differs from the defaults
    v
b'{"version": 1, ...}'                    the attribute `options` of ops, SavedModels, kept files
"""

from __future__ import annotations

import collections.abc
import copy
import enum
import functools
import inspect
import json
import numbers
import os
import re
import textwrap
import typing

import numpy as np

from tf_multitier import _engine
from tf_multitier import external_storage
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier._src.options.option_values import is_finite

VERSION = 1

# {option: what the engine says of it}: name, type, default, text, names or fields, in_table, in_variable.
DESCRIPTIONS = {each["name"]: each for each in json.loads(_engine.describe_options())}


def _encoded(values):
    # A path may have bytes that are not UTF-8.
    text = json.dumps({"version": VERSION, **values}, ensure_ascii=False)
    return text.encode("utf-8", "surrogateescape")


def _decoded(record):
    record = record.encode() if isinstance(record, str) else record
    return json.loads(record.decode("utf-8", "surrogateescape"))


def _integer(name, value, described, error):
    if isinstance(value, numbers.Integral) and not isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, str) and described["unit"] == " bytes":
        return value
    unit = described["unit"] and f" of{described['unit']}"
    text = ", or text such as 4GB or 512 MiB" if described["unit"] == " bytes" else ""
    raise error(f"{name}: expected an integer{unit}{text}, found {value!r}")


def _number(name, value, described, error):
    is_number = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    if not is_number or not is_finite(value):
        raise error(f"{name}: expected a finite number, found {value!r}")
    return float(value)


def _boolean(name, value, described, error):
    return boolean(name, value, error)


def _text(name, value, described, error):
    value = value.name if isinstance(value, enum.Enum) else value
    value = os.fsdecode(value) if isinstance(value, (os.PathLike, bytes)) else value
    if not isinstance(value, str):
        raise error(f"{name}: expected text, found {value!r}")
    return value


def _name(name, value, described, error):
    """The name of an enum's member or of a type."""
    if not isinstance(value, (str, bytes)):
        value = getattr(value, "name", None) or getattr(value, "__name__", None) or value
    if not isinstance(value, str):
        raise error(f"{name}: expected one of {', '.join(described['names'])}; found {value!r}")
    return value


def _integers(name, value, described, error):
    if isinstance(value, collections.abc.Mapping):
        found = {}
        for key, each in value.items():
            tier = key.name if isinstance(key, enum.Enum) else key
            if not isinstance(tier, str):
                raise error(f"{name}: expected {{tier: size}}, found the key {key!r}")
            found[tier] = _integer(f"{name}[{tier!r}]", each, described, error)
        return found
    if isinstance(value, (collections.abc.Set, bytearray)):
        raise error(f"{name}: expected a list or {{tier: size}}, found {value!r}")
    one = isinstance(value, (str, numbers.Number, bytes)) or not isinstance(
        value, collections.abc.Iterable
    )
    return [
        _integer(f"{name}[{i}]", v, described, error)
        for i, v in enumerate([value] if one else value)
    ]


def _struct(name, value, described, error):
    """A dict of fields, or the short form that the engine knows: a number or a name."""
    if not isinstance(value, collections.abc.Mapping):
        if isinstance(value, str):
            return value
        return _number(name, value, described, error)
    fields = {field["name"]: field for field in described["fields"]}
    return {
        key: _plain(f"{name}.{key}", each, fields[key], error) if key in fields else None
        for key, each in value.items()
        if each is not None
    }


def _structs(name, value, described, error):
    """Dicts of fields, or their values in the order of the fields."""
    if isinstance(value, (str, bytes)) or not isinstance(value, collections.abc.Iterable):
        raise error(f"{name}: expected a list, found {value!r}")
    names = [field["name"] for field in described["fields"]]
    found = []
    for i, each in enumerate(value):
        if not isinstance(each, collections.abc.Mapping):
            if not isinstance(each, (tuple, list)) or len(each) != len(names):
                raise error(f"{name}[{i}]: expected ({', '.join(names)}), found {each!r}")
            each = dict(zip(names, each))
        found.append(_struct(f"{name}[{i}]", each, described, error))
    return found


_TYPES = {
    "boolean": _boolean,
    "integer": _integer,
    "integers": _integers,
    "name": _name,
    "number": _number,
    "struct": _struct,
    "structs": _structs,
    "text": _text,
}


def _plain(name, value, described, error):
    if name == "external_storage":
        try:
            value = external_storage.name_of(name, value)
        except TypeError as wrong:
            raise error(str(wrong)) from None
    return _TYPES[described["type"]](name, value, described, error)


def check(
    values: collections.abc.Mapping,
    shown: collections.abc.Callable[[str], str] = str,
    *,
    in_table: bool = False,
    value_dtype: str = "float32",
    wrong_type: type = TypeError,
) -> dict:
    """The complete record {name: value} of these options. Values may have types of Python, such as enums; None is the default.

    Args:
      values: options by name.
      shown: function from a message that begins with the name of an option to the message that is raised.
      in_table: of engine.Table, else of an embedding variable.
      value_dtype: of an embedding variable.
      wrong_type: what is raised for a value of a wrong type.

    Raises:
      ValueError, NotImplementedError: of the engine: "option: expected X, found Y: cure".
      ValueError: an option has nothing to act on.
    """

    def wrong(message):
        return wrong_type(shown(message))

    kind, place = ("a table", "in_table") if in_table else ("an embedding variable", "in_variable")
    known = [name for name, described in DESCRIPTIONS.items() if described[place]]
    for name in values:
        if name not in known:
            raise ValueError(
                shown(
                    f"{name}: expected an option of {kind}, found none of that name{did_you_mean(name, known)}"
                )
            )
    plain = {
        name: _plain(name, value, DESCRIPTIONS[name], wrong)
        for name, value in values.items()
        if value is not None
    }
    try:
        encoded = _encoded(plain)
    except UnicodeEncodeError as error:
        name, value = _not_text(plain) or ("options", error.object)
        raise wrong(f"{name}: expected text in UTF-8, found {value!r}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise wrong(
            f"options: expected integers of 64 bits, found one that is larger: {error}"
        ) from None
    try:
        record = _engine.check_options(encoded, in_table, value_dtype, True)
    except (ValueError, NotImplementedError) as error:
        raise type(error)(shown(str(error))) from None
    complete = _decoded(record)
    del complete["version"]
    try:
        _check_that_all_act(complete, values)
    except ValueError as error:
        raise ValueError(shown(str(error))) from None
    return complete


def _check_that_all_act(record, given):
    """ValueError for a value that differs from the default, and that the other options leave nothing to do."""
    kind = record["storage_type"]
    tiers = {name: tiers for name, _, tiers in _engine.storage_types()}[kind]
    sizes = len(record["storage_size"] or record["storage_rows"])
    if record["storage_path"] and not given.get("storage_type"):
        raise ValueError(
            f"storage_path: expected storage_type with it, found none, which is {kind}, without files: set it, for example to "
            "DRAM_SSDHASH"
        )
    if record["on_full"] == "warn" and sizes < len(tiers):
        raise ValueError(
            f"on_full: expected warn only if the last tier of {kind} has a size, found {sizes} of {len(tiers)} sizes, so it is "
            "never full: set storage_size or storage_rows of each tier, or leave on_full out"
        )
    if (
        record["dropped"] == "rows"
        and not record["drop_coldest"]
        and record["on_corruption"] != "drop"
    ):
        raise ValueError(
            "dropped: expected rows only with drop_coldest=True or on_corruption='drop', found neither, so no row is dropped: "
            "set one of them, or leave dropped out"
        )
    if record["on_corruption"] != "error" and not set(tiers) - {"HBM", "DRAM"}:
        raise ValueError(
            f"on_corruption: expected error, because {kind} has no files, found {record['on_corruption']}: use a storage_type "
            "with files, or leave on_corruption out"
        )


def check_expires(record: dict, where: str) -> None:
    """ValueError if no option of a complete record makes rows expire."""
    if record["steps_to_live"] == 0 and record["l2_weight_threshold"] < 0:
        raise ValueError(
            f"{where}expire: expected an option by which rows expire, found none: set steps_to_live (GlobalStepEvict) or "
            "l2_weight_threshold (L2WeightEvict), or use remove"
        )


def _not_text(plain):
    """(name, value) of the option whose value is no text in UTF-8."""
    for name, value in plain.items():
        try:
            _encoded({name: value})
        except UnicodeEncodeError:
            return name, value
    return None


def text_of(
    values: collections.abc.Mapping, *, in_table: bool = False, value_dtype: str = "float32"
) -> bytes:
    """What differs from the defaults in {name: value} as JSON has them: the form that ops and files have."""
    return _engine.check_options(_encoded(values), in_table, value_dtype, False)


@functools.lru_cache(maxsize=1024)
def _complete(record, in_table, value_dtype):
    values = _decoded(_engine.check_options(record, in_table, value_dtype, True))
    del values["version"]
    return values


def complete(record: bytes | str, *, in_table: bool = False, value_dtype: str = "float32") -> dict:
    """{name: value} of every option, from the form that ops and files have."""
    return copy.deepcopy(_complete(record, in_table, value_dtype))


def changed(record: bytes, **values: typing.Any) -> bytes:
    """The record with other values."""
    given = {**_decoded(record), **values}
    del given["version"]
    return _encoded(given)


def as_json(record: bytes) -> dict:
    """The record as a value of JSON, for a file of JSON."""
    return _decoded(record)


def from_json(record: dict) -> bytes:
    """The record that `as_json` gave."""
    values = dict(record)
    if values.pop("version", None) != VERSION:
        raise NotImplementedError(
            f"options: expected version {VERSION}, found {record.get('version')}: use the release that wrote them"
        )
    return _encoded(of_this_release(values))


def of_this_release(values: dict) -> dict:
    """The values of a file. NotImplementedError if this release does not have one of their options."""
    for name in values:
        if name not in DESCRIPTIONS and name != "version":
            raise NotImplementedError(
                f"{name}: expected an option of this release, found none of that name: use the release that wrote it"
            )
    return values


def documented(function: collections.abc.Callable, names: collections.abc.Iterable | None = None):
    """Puts the texts of the options that a function takes as arguments in place of "{options}" in its docstring."""
    names = inspect.signature(function).parameters if names is None else names
    [(line, indent)] = re.findall(r"^(( *)\{options\})$", function.__doc__ or "", re.MULTILINE)
    lines = []
    for name in names:
        described = DESCRIPTIONS.get(name)
        if described is not None:
            lines += textwrap.wrap(
                f"{name}: {described['text']}",
                130,
                initial_indent=indent,
                subsequent_indent=indent + "  ",
            )
    return (function.__doc__ or "").replace(line, "\n".join(lines))

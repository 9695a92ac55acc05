"""salvage: reads the undamaged records in the files of a table that cannot be opened."""

from __future__ import annotations

import dataclasses
import json
import os
import typing

import numpy as np

from tf_multitier import _engine
from tf_multitier._engine import DataLossError
from tf_multitier._engine import FailedPreconditionError
from tf_multitier.engine import arguments
from tf_multitier.engine import key_types
from tf_multitier.engine import kept
from tf_multitier.engine.rows import Rows

_VARIABLE_FILE = "instance.variable"


@dataclasses.dataclass
class Salvaged:
    """The result of `salvage`.

    Attributes:
      rows: `Rows`: for each key, the newest row that is undamaged. Keys have the type of the table's keys, here and below.
      stale_keys: [n]: keys in `rows` whose newest record is damaged, so that `rows` has an older row.
      lost_keys: [m]: keys that had a row, but have no undamaged record.
      segments: number of files that were read.
      records: number of undamaged records in these files, including older ones and removals.
      damaged_records: number of places without an undamaged record where one is expected.
      missing_segments: number of files that the instance's list names and that are missing. The keys whose newest
        records were in them are not known: `rows` may have older rows of those keys, or none.
      damage: list of str: one message for each file that is damaged, missing or shorter than the list says.
    """

    rows: Rows
    stale_keys: np.ndarray
    lost_keys: np.ndarray
    segments: int
    records: int
    damaged_records: int
    missing_segments: int
    damage: list


def _variable_key_type(instance):
    """The type of keys that the file of a kept variable says.

    Raises:
      DataLossError: it is damaged.
    """
    name = os.path.join(instance, _VARIABLE_FILE)
    try:
        with open(name, encoding="utf-8") as file:
            _, _, text = file.read().partition("\n")
        return json.loads(json.loads(text)["table"]).get("key_dtype") or "int64"
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataLossError(f"'{name}' is damaged: {error}") from None


def _key_type(instance, given):
    """The type of keys in the instance, from its files or, where they do not say it, from the caller."""
    is_variable = os.path.exists(os.path.join(instance, _VARIABLE_FILE))
    try:
        said = (
            _variable_key_type(instance)
            if is_variable
            else kept.decode_options(instance)["key_dtype"]
        )
    except (DataLossError, FailedPreconditionError) as error:
        if given is None:
            raise FailedPreconditionError(
                f"salvage of '{instance}': expected a file that says the type of the keys, found: {error.args[-1]}; pass key_dtype"
            ) from None
        return given
    if given not in (None, said):
        raise ValueError(f"key_dtype: expected {said}, as '{instance}' says, found {given}")
    return said


def salvage(path: str, key_dtype: typing.Any = None) -> Salvaged:
    """Reads all undamaged records in the SSDHASH files of an instance. Use it if `Table.open` refuses the instance or rows are damaged.

    It changes nothing. Pass the rows to `Table.import_rows` of a new table. For LEVELDB files, use
    `plyvel.repair_db(..., paranoid_checks=True)` and then `Table.open`.

    Args:
      path: an instance directory (`Table.path`), or its directory `ssdhash`.
      key_dtype: "int64", "uint64" or "uint32". Needed only if the instance's file of options is lost or damaged.

    Returns:
      A Salvaged.

    Raises:
      NotFoundError: the directory has no such files.
      FailedPreconditionError: a process uses the instance, and the message names it; or no file says the type of the keys, and
        key_dtype is not given.
      ValueError: key_dtype is not what the instance says.
    """
    path = arguments.path("path", path)
    given = None if key_dtype is None else key_types.name_of("key_dtype", key_dtype)
    below = os.path.join(path, "ssdhash")
    instance = None
    if os.path.isdir(below):
        instance = _engine.Instance(path)
    try:
        found = _engine.salvage(below if instance else path)
    finally:
        if instance:
            instance.release()
    its = _key_type(path if instance else os.path.dirname(os.path.abspath(path)), given)
    found["rows"]["keys"] = key_types.from_int64(found["rows"]["keys"], its)
    for name in ("stale_keys", "lost_keys"):
        found[name] = key_types.from_int64(found[name], its)
    return Salvaged(**{**found, "rows": Rows(**found["rows"])})

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
from tf_multitier._src.options import numpy_types
from tf_multitier.engine import arguments
from tf_multitier.engine import kept
from tf_multitier.engine.rows import Rows

_VARIABLE_FILE = "instance.variable"
_VARIABLE_VERSION = 1


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


def _crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _variable_key_type(name):
    """The type of keys that the file `name` of a kept variable says.

    Raises:
      NotImplementedError: another format version.
      DataLossError: it is damaged.
    """
    with open(name, "rb") as file:
        head, _, text = file.read().partition(b"\n")
    fields = head.split()
    if len(fields) != 3 or fields[0] != b"multitier-variable" or not fields[1].isdigit():
        raise DataLossError(
            f"'{name}' is damaged at offset 0: expected a valid header, found {head[:40]!r}"
        )
    if int(fields[1]) != _VARIABLE_VERSION:
        raise NotImplementedError(
            f"'{name}': expected format version {_VARIABLE_VERSION}, found {int(fields[1])}: use the release that wrote it"
        )
    checksum = b"%08x" % _crc32c(text)
    if checksum != fields[2]:
        raise DataLossError(
            f"'{name}' is damaged at offset {len(head) + 1}: expected checksum {fields[2].decode(errors='replace')}, found "
            f"{checksum.decode()}"
        )
    with kept.as_damage(name):
        return kept.options_in(json.loads(text))["key_dtype"]


def _said_key_type(instance):
    """The type of keys that the files of the instance say; None and the reason if they do not say it."""
    variable = os.path.join(instance, _VARIABLE_FILE)
    try:
        if os.path.exists(variable):
            return _variable_key_type(variable), ""
        return kept.key_type(instance), ""
    except FailedPreconditionError:
        return None, f"no file {kept.OPTIONS_FILE} or {_VARIABLE_FILE}"
    except (DataLossError, NotImplementedError) as error:
        return None, error.args[-1]
    except OSError as error:  # a disk that fails
        return None, str(error)


def _key_type(instance, given):
    """The type of keys in the instance, from its files or, where they do not say it, from the caller; and whether they say it."""
    said, reason = _said_key_type(instance)
    if said is None and given is None:
        raise FailedPreconditionError(
            f"salvage of '{instance}': expected a file that says the type of the keys, found: {reason}; pass key_dtype"
        )
    if said is not None and given not in (None, said):
        raise ValueError(f"key_dtype: expected {said}, as '{instance}' says, found {given}")
    return said or given, said is not None


def _typed(keys, its, is_said, path):
    """The engine's keys in the type `its`. The type is refused if it has no such key."""
    if its == "uint32":
        wrong = keys[(keys < 0) | (keys > np.iinfo(np.uint32).max)]
        if wrong.size and is_said:
            raise DataLossError(
                f"salvage of '{path}': expected keys of uint32, as its files say, found key {wrong[0]}; to read the keys as "
                "another type, move these files away and pass key_dtype"
            )
        if wrong.size:
            raise ValueError(
                f"key_dtype: expected int64 or uint64 for '{path}', which has key {wrong[0]}, found uint32"
            )
    return numpy_types.from_int64(keys, its)


def _has_segments(directory):
    try:
        return any(name.endswith(".seg") for name in os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # perhaps: the engine's error says what is wrong


def salvage(path: str, key_dtype: typing.Any = None) -> Salvaged:
    """Reads all undamaged records in the SSDHASH files of an instance. Use it if `Table.open` refuses the instance or rows are damaged.

    It changes nothing. Pass the rows to `Table.import_rows` of a new table.

    Args:
      path: an instance directory (`Table.path`), or its directory `ssdhash`.
      key_dtype: "int64", "uint64" or "uint32". Needed only if the instance's file of options is lost, damaged or of another format version.

    Returns:
      A Salvaged.

    Raises:
      NotFoundError: the directory has no such files.
      FailedPreconditionError: a process uses the instance, and the message names it; or no file says the type of the keys, and
        key_dtype is not given. Raised before the rows are read.
      ValueError: key_dtype is not what the instance says (raised before the rows are read), or it is uint32 and a key is not in
        its range. Nothing tells int64 from uint64 if no file says it.
      DataLossError: the instance says uint32, and a key is not in its range.
    """
    path = arguments.path("path", path)
    given = None if key_dtype is None else numpy_types.key_type("key_dtype", key_dtype)
    files = os.path.join(path, "ssdhash")
    lock = None
    if os.path.isdir(files):
        lock = _engine.Instance(os.fsencode(path))
        instance = path
    else:
        files = path
        instance = os.path.dirname(os.path.abspath(path))
    try:
        if not _has_segments(files):
            raise _engine.NotFoundError(f"salvage of '{files}': expected segment files, found none")
        its, is_said = _key_type(instance, given)
        found = _engine.salvage(os.fsencode(files))
    finally:
        if lock:
            lock.release()
    found["rows"]["keys"] = _typed(found["rows"]["keys"], its, is_said, path)
    for name in ("stale_keys", "lost_keys"):
        found[name] = _typed(found[name], its, is_said, path)
    return Salvaged(**{**found, "rows": Rows(**found["rows"])})

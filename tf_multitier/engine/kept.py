"""Writes and reads the options of a kept table in its instance directory (docs/formats/instance.md).

The file has a line "multitier-table <format version> <crc32 of the rest, 8 hex digits>", then a JSON object. The matrix of an
initializer has a file of its own.
"""

import json
import os
import zlib

import numpy as np

from tf_multitier import _engine
from tf_multitier._engine import DataLossError
from tf_multitier._engine import FailedPreconditionError
from tf_multitier.engine import arguments

OPTIONS_FILE = "instance.table"
_MATRIX_FILE = "instance.matrix"
_OPTIONS_VERSION = 1
# Options that files of older versions do not have.
_NEWER_OPTIONS: dict = {
    "device": "",
    "value_dtype": "float32",
    "key_dtype": "int64",
    "stochastic_rounding": False,
    "lower": None,
    "upper": None,
    "filter_max_keys": 0,
    "not_admitted": None,
    "evaluation": None,
    "score": "step",
    "refuse_colder": False,
    "storage_rows": [],
    "initial_rows": 0,
    "on_full": "error",
    "dropped": "keys",
    "dropped_bytes": 8 << 20,
    "removed_bytes": 1 << 20,
}


def encode_options(options):
    """Encodes `options` as files: a list of (name, bytes)."""
    options = dict(options)
    files = []
    matrix = options.pop("matrix")
    if matrix is not None:
        data = matrix.astype("<f4").tobytes()
        options["matrix"] = {"shape": list(matrix.shape), "crc32": zlib.crc32(data)}
        files.append((_MATRIX_FILE, data))
    text = json.dumps(options, indent=1).encode() + b"\n"
    files.append(
        (OPTIONS_FILE, b"multitier-table %d %08x\n" % (_OPTIONS_VERSION, zlib.crc32(text)) + text)
    )
    return files


def _read_options(path):
    """The options in the instance directory `path`, except the values of the matrix. Raises as `decode_options`."""
    name = os.path.join(path, OPTIONS_FILE)
    try:
        with open(name, "rb") as file:
            head, _, text = file.read().partition(b"\n")
    except FileNotFoundError:
        raise FailedPreconditionError(
            f"open of '{path}': expected file {OPTIONS_FILE}, found none: no engine.Table with keep=True made it"
        ) from None
    fields = head.split()
    if len(fields) != 3 or fields[0] != b"multitier-table" or not fields[1].isdigit():
        raise DataLossError(
            f"'{name}' at offset 0: expected a valid header, found {bytes(head[:40])!r}"
        )
    if int(fields[1]) > _OPTIONS_VERSION:
        raise NotImplementedError(
            f"'{name}': expected a format version up to {_OPTIONS_VERSION}, found {int(fields[1])}"
        )
    checksum = b"%08x" % zlib.crc32(text)
    if checksum != fields[2]:
        raise DataLossError(
            f"'{name}' at offset {len(head) + 1}: expected checksum {fields[2].decode(errors='replace')}, found "
            f"{checksum.decode()}"
        )
    options = json.loads(text)
    for name, value in _NEWER_OPTIONS.items():
        options.setdefault(name, value)
    return options


def key_type(path):
    """The type of keys that the options in the instance directory `path` say. It does not read the matrix.

    Raises as `decode_options`.
    """
    return _read_options(path)["key_dtype"]


def decode_options(path):
    """Reads the options that `encode_options` wrote into the instance directory `path`.

    Raises:
      FailedPreconditionError: the directory has no options.
      NotImplementedError: a newer format version.
      DataLossError: a file is damaged or missing.
    """
    options = _read_options(path)
    options["slots"] = arguments.columns("slots", options["slots"])
    matrix = options.setdefault("matrix", None)
    if matrix is not None:
        name = os.path.join(path, _MATRIX_FILE)
        try:
            with open(name, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            raise DataLossError(f"expected file '{name}', found none") from None
        if zlib.crc32(data) != matrix["crc32"]:
            raise DataLossError(
                f"'{name}' at offset 0: expected checksum {matrix['crc32']:08x}, found {zlib.crc32(data):08x}"
            )
        options["matrix"] = np.frombuffer(data, "<f4").reshape(matrix["shape"]).astype(np.float32)
    return options


def instance_of_name(storage_path, name):
    """The path of the only kept instance of the table `name` below a storage path.

    Raises:
      NotFoundError: there is no kept instance.
      ValueError: there are several.
    """
    directory = _engine.path_of_name(os.fspath(storage_path), name)
    found = []
    if os.path.isdir(directory):
        found = sorted(
            i
            for i in os.listdir(directory)
            if os.path.exists(os.path.join(directory, i, OPTIONS_FILE))
        )
    if not found:
        raise _engine.NotFoundError(
            f"open of table '{name}': expected a kept instance in '{directory}', found none"
        )
    if len(found) > 1:
        raise ValueError(
            f"open of table '{name}': expected one kept instance in '{directory}', found {', '.join(found)}"
        )
    return os.path.join(directory, found[0])

"""Writes and reads the options of a kept table in its instance directory (docs/formats/instance.md).

The file has a line "multitier-table <format version> <crc32 of the rest, 8 hex digits>", then a JSON object. The matrix of an
initializer has a file of its own.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Iterator

import numpy as np

from tf_multitier import _engine
from tf_multitier._engine import DataLossError
from tf_multitier._engine import FailedPreconditionError
from tf_multitier.engine import arguments
from tf_multitier.engine import key_types

OPTIONS_FILE = "instance.table"
_MATRIX_FILE = "instance.matrix"
_OPTIONS_VERSION = 1
# Of a parser or an engine that is given what no table has.
_REFUSALS = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RuntimeError,
    FailedPreconditionError,
)


@contextlib.contextmanager
def as_damage(name: str) -> Iterator[None]:
    """What is refused in the block is damage of the file `name`: DataLossError. Other errors of the engine stay."""
    try:
        yield
    except NotImplementedError:
        raise
    except _REFUSALS as error:
        if isinstance(error, _engine.EngineError) and not isinstance(
            error, FailedPreconditionError
        ):
            raise
        text = f"{error.args[0] if error.args else error}".partition("\n")[0]
        raise DataLossError(
            f"'{name}': expected what a table wrote, found damage: {text}"
        ) from None


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
    with as_damage(name):
        options = json.loads(text)
        key_types.name_of("key_dtype", options["key_dtype"])
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
    with as_damage(os.path.join(path, OPTIONS_FILE)):
        options["slots"] = arguments.columns("slots", options["slots"])
        matrix = options.setdefault("matrix", None)
        if matrix is not None:
            rows, dim = matrix["shape"]
            crc32 = arguments.integer("crc32", matrix["crc32"], 32, signed=False)
            options["matrix"] = _read_matrix(path, rows, arguments.dim("dim", dim), crc32)
    return options


def _read_matrix(path, rows, dim, crc32):
    name = os.path.join(path, _MATRIX_FILE)
    try:
        with open(name, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise DataLossError(f"expected file '{name}', found none") from None
    if zlib.crc32(data) != crc32:
        raise DataLossError(
            f"'{name}' at offset 0: expected checksum {crc32:08x}, found {zlib.crc32(data):08x}"
        )
    if len(data) != 4 * rows * dim:
        raise DataLossError(f"'{name}': expected {rows} x {dim} numbers, found {len(data)} bytes")
    return np.frombuffer(data, "<f4").reshape(rows, dim).astype(np.float32)


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

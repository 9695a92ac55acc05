"""Writes and reads the options of a kept table in its instance directory (docs/formats/instance.md).

The file has a line "multitier-table <format version> <crc32 of the rest, 8 hex digits>", then a JSON object: the record of the
options, and the checksum of the matrix of an initializer, which has a file of its own.
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
from tf_multitier._src.options import option_record
from tf_multitier.engine import arguments

OPTIONS_FILE = "instance.table"
_MATRIX_FILE = "instance.matrix"
_FORMAT_VERSION = 1
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
    except NotImplementedError as error:
        raise NotImplementedError(f"'{name}': {error}") from None
    except _REFUSALS as error:
        if isinstance(error, _engine.EngineError) and not isinstance(
            error, FailedPreconditionError
        ):
            raise
        text = f"{error.args[0] if error.args else error}".partition("\n")[0]
        raise DataLossError(
            f"'{name}': expected what a table wrote, found damage: {text}"
        ) from None


def encode_options(record, matrix):
    """Encodes a record of options, and the matrix or None, as files: a list of (name, bytes)."""
    content = {"options": option_record.as_json(record)}
    files = []
    if matrix is not None:
        data = matrix.astype("<f4").tobytes()
        content["matrix_crc32"] = zlib.crc32(data)
        files.append((_MATRIX_FILE, data))
    text = json.dumps(content, indent=1).encode() + b"\n"
    files.append(
        (OPTIONS_FILE, b"multitier-table %d %08x\n" % (_FORMAT_VERSION, zlib.crc32(text)) + text)
    )
    return files


def _read(path):
    """(The complete record, the checksum of the matrix or None) in the instance directory `path`. Raises as `decode_options`."""
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
    if int(fields[1]) != _FORMAT_VERSION:
        raise NotImplementedError(
            f"'{name}': expected format version {_FORMAT_VERSION}, found {int(fields[1])}: use the release that wrote it"
        )
    checksum = b"%08x" % zlib.crc32(text)
    if checksum != fields[2]:
        raise DataLossError(
            f"'{name}' at offset {len(head) + 1}: expected checksum {fields[2].decode(errors='replace')}, found "
            f"{checksum.decode()}"
        )
    with as_damage(name):
        content = json.loads(text)
        record = options_in(content)
        del content["options"]
        crc32 = None
        if _matrix_rows(record):
            crc32 = arguments.integer("matrix_crc32", content.pop("matrix_crc32"), 32, signed=False)
        if content:
            raise ValueError(f"expected options and matrix_crc32, found {', '.join(content)}")
    return record, crc32


def options_in(content):
    """The complete record of the options in the JSON object of a file."""
    return option_record.complete(option_record.from_json(content["options"]), in_table=True)


def _bytes_of_files(path):
    return sum(
        os.path.getsize(os.path.join(folder, file))
        for folder, _, files in os.walk(path)
        for file in files
    )


def key_type(path):
    """The type of keys that the options in the instance directory `path` say. It does not read the matrix.

    Raises as `decode_options`.
    """
    return _read(path)[0]["key_dtype"]


def decode_options(path):
    """Reads what `encode_options` wrote into the instance directory `path`: (the complete record, the matrix or None).

    Raises:
      FailedPreconditionError: the directory has no options.
      NotImplementedError: another format version, or an option that this release does not have.
      DataLossError: a file is damaged or missing.
    """
    record, crc32 = _read(path)
    row_bytes = 8 + 2 * record["dim"]  # at least: the key, and values of 16 bits
    record["initial_rows"] = min(record["initial_rows"], _bytes_of_files(path) // row_bytes)
    if crc32 is None:
        return record, None
    return record, _read_matrix(path, _matrix_rows(record), record["dim"], crc32)


def _matrix_rows(record):
    return record["initializer"].get("matrix_rows", 0)


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
    directory = os.fsdecode(_engine.path_of_name(os.fsencode(storage_path), name))
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

"""Reads checkpoints that a Saver wrote (docs/formats/table_part.md)."""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import os
import re
import typing
from collections.abc import Iterable
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_multitier import _engine
from tf_multitier._engine import DataLossError
from tf_multitier.checkpoint.bundle import Bundle
from tf_multitier.checkpoint.source import concatenate
from tf_multitier.checkpoint.source import RowSource
from tf_multitier.checkpoint.source import with_keys
from tf_multitier.engine.rows import Rows

_MANIFEST = re.compile(r"(.+)/part_(\d+)-of-(\d+)/(manifest|delta)", re.DOTALL)
_INDEX = "/partition_of_bucket"


@dataclasses.dataclass(frozen=True)
class SavedPart:
    """One part of a saved variable.

    Attributes:
      path: the part file.
      manifest: its manifest, JSON text with the members that were checked.
      num_rows: its number of rows.
      applies: the table's own count of updates when it was saved.
      save_id: names the save, for deltas that continue it; 0: none may.
      since: of a delta, the save_id of the save that it continues; else 0.
      num_removed: of a delta, its number of removed keys.
      linked: the paths of the files that have rows in addition to the part file (docs/formats/table_part.md).
    """

    path: str
    manifest: str
    num_rows: int
    applies: int
    save_id: int = 0
    since: int = 0
    num_removed: int = 0
    linked: tuple[str, ...] = ()

    @property
    def files(self) -> list[str]:
        """The paths of the part file and the linked files."""
        return [self.path, *self.linked]

    @property
    def bytes(self) -> int:
        """The size of all files. FileNotFoundError if one is missing."""
        return sum(os.stat(path).st_size for path in self.files)


class SavedTable(RowSource):
    """An embedding variable in a checkpoint.

    Attributes:
      name: the variable's name.
      names: list of all names, `name` first. A checkpoint of TensorFlow 2 also has the key of the object (object_checkpoint.py).
      columns: list of (name, dim, initial value): the value first, then the optimizer's slots.
      num_rows: number of rows, in all parts.
      dtype: of the values in the part files: "float32", "bfloat16" or "float16". Rows are read as float32, which is exact.
      key_dtype: of the keys: "int64" (int32, too), "uint64" or "uint32".
      frozen: whether it has keys and values alone, for serving: frequencies are read as 0 and versions as -1.
      initializer: dict (kind, a, b, seed, matrix_rows, and of a list of tables initializers) of the initial values of absent keys, or
        None if the checkpoint does not say.
      parts: list of SavedPart, one for each partition.
      applies: the greatest count of updates of a part.
    """

    rows_of_block: type[Rows] = Rows

    def __init__(self, names: list[str], parts: list[SavedPart]) -> None:
        manifest = json.loads(parts[0].manifest)
        self.name, self.names = names[0], names
        self.applies = max(part.applies for part in parts)
        self.parts = parts
        self.columns = [(c["name"], c["dim"], c["initial_value"]) for c in manifest["columns"]]
        self.dtype = manifest["columns"][0]["dtype"]
        self.key_dtype = manifest.get("key_dtype", "int64")
        self.frozen = "frozen" in manifest
        self.num_rows = sum(part.num_rows for part in parts)
        self.initializer = manifest.get("initializer")
        if "initializers" in manifest:
            self.initializer["initializers"] = manifest["initializers"]
        for part in parts:
            found = json.loads(part.manifest).get("key_dtype", "int64")
            if found != self.key_dtype:
                raise DataLossError(
                    f"checkpoint part {part.path}: expected keys of {self.key_dtype}, as in '{parts[0].path}', found {found}"
                )

    @property
    def num_partitions(self) -> int:
        """The number of parts."""
        return len(self.parts)

    @property
    def save_ids(self) -> list[int]:
        """The numbers, one for each part, by which deltas name the save that they continue. 0: none may continue it."""
        return [part.save_id for part in self.parts]

    def blocks(self) -> Iterator[Rows]:
        """Yields the rows of all parts in blocks of about 16 MiB: keys, frequencies, versions, all columns, counted keys.

        Raises:
          FileNotFoundError: a part file is missing.
          DataLossError: a part file is damaged. The message has the file and the offset.
        """
        for part in self.parts:
            yield from self._blocks_of(part)

    def part_blocks(self, index: int) -> Iterator[Rows]:
        """`blocks` of one part."""
        return self._blocks_of(self.parts[index])

    def read_part(self, index: int) -> Rows:
        """The rows of one part in memory. Raises what `blocks` raises."""
        return concatenate(self.columns, self.part_blocks(index), self.key_dtype)

    def count_counted_keys(self, index: int) -> int:
        """How many keys without a row a filter counts in one part. Reads its file, a block at a time. Raises what `blocks` raises."""
        return sum(len(rows.counted_keys) for rows in self._blocks_of(self.parts[index]))

    def _blocks_of(self, part):
        reader = _engine.PartReader(part.path, part.manifest)
        while (block := reader.next()) is not None:
            rows = self.rows_of_block(**block)
            found = [tuple(column[:2]) for column in rows.columns]
            if found != [column[:2] for column in self.columns]:
                raise DataLossError(
                    f"checkpoint part {part.path}: expected the columns of '{self.parts[0].path}', found {found}"
                )
            yield with_keys(rows, self.key_dtype)

    def matrix(self) -> np.ndarray | None:
        """The initial matrix, float32 [matrix_rows, dim], of an initializer of kind "matrix"; else None."""
        return _engine.PartReader(self.parts[0].path, self.parts[0].manifest).matrix()

    def verify(self) -> None:
        """Reads and checks every byte of the part files. Raises what `blocks` raises."""
        for _ in self.blocks():
            pass


TableType = typing.TypeVar("TableType")


class Tables(collections.abc.Mapping[str, TableType]):
    """The embedding variables of a checkpoint. Each is there once, by its first name; each of its names finds it."""

    def __init__(self, tables: Iterable[TableType]) -> None:
        found: list[typing.Any] = list(tables)
        self._tables = {table.name: table for table in found}
        self._by_name = {name: table for table in found for name in table.names}

    def __getitem__(self, name: str) -> TableType:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


class Checkpoint:
    """What a checkpoint has. Of a delta, see `load_chain`.

    Attributes:
      path: the checkpoint's prefix.
      tables: {name: SavedTable}, the embedding variables: each once, and by each of its names.
      tensors: {name: (tf.DType, shape as a list)}, all dense tensors.
    """

    _manifest = "manifest"  # last part of the names of the tensors that have the manifests
    _table_type: type[SavedTable] = SavedTable

    def __init__(self, path: str) -> None:
        self.path = path
        self._bundle = Bundle(path)
        shapes, dtypes = self._bundle.shapes, self._bundle.dtypes
        self.tables = self._find_tables(shapes)
        names = [name for table in self.tables.values() for name in table.names]
        ours = {tensor for name in names for tensor in (name, name + _INDEX)}
        self.tensors = {
            name: (dtypes[name], list(shapes[name]))
            for name in sorted(shapes)
            if name not in ours and not _MANIFEST.fullmatch(name)
        }

    def tensor(self, name: str) -> np.ndarray:
        """The value of a dense tensor. KeyError if there is none of that name."""
        if name not in self.tensors:
            raise KeyError(f"checkpoint '{self.path}' has no dense tensor {name!r}")
        return self._bundle.tensor(name)

    def all_tensors(self) -> dict:
        """{name: (tf.DType, shape)} of dense tensors, and of those that list embedding variables; manifests are left out."""
        shapes, dtypes = self._bundle.shapes, self._bundle.dtypes
        return {n: (dtypes[n], shapes[n]) for n in sorted(shapes) if not _MANIFEST.fullmatch(n)}

    def all_tensor(self, name: str) -> np.ndarray:
        """The value of one of `all_tensors`."""
        return self._bundle.tensor(name)

    def damage(self) -> list[str]:
        """Reads all tensors, one at a time, but no part files. What is damaged."""
        return self._bundle.damage()

    def _find_tables(self, names):
        found: dict[str, dict[int, int]] = {}
        for tensor in names:
            match = _MANIFEST.fullmatch(tensor)
            if match and match[4] == self._manifest:
                found.setdefault(match[1], {})[int(match[2])] = int(match[3])
        its_names: dict[tuple, list[str]] = {}  # {parts: names}
        for name in sorted(
            found, key=lambda name: (name not in names, name)
        ):  # those that are listed first
            its_names.setdefault(tuple(self._parts(name, found[name])), []).append(name)
        tables = [self._table_type(its, list(parts)) for parts, its in its_names.items()]
        return Tables(sorted(tables, key=lambda table: table.name))

    def _parts(self, name, parts):
        count = max(parts.values())
        missing = [i for i in range(count) if parts.get(i) != count]
        if missing:
            raise DataLossError(
                f"checkpoint '{self.path}', variable '{name}': expected {count} parts, found no part {missing[0]}"
            )
        return [self._part(name, i, count) for i in range(count)]

    def _part(self, name, index, count):
        where = f"checkpoint '{self.path}', variable '{name}', manifest of part {index}"
        found = self._bundle.tensor(f"{name}/part_{index}-of-{count}/{self._manifest}")
        try:
            text = _engine.check_manifest(where, found.decode())
        except (AttributeError, UnicodeDecodeError):
            raise DataLossError(f"{where}: expected a text, found {found!r}") from None
        manifest = json.loads(text)
        part = (manifest["partition_index"], manifest["num_partitions"])
        if part != (index, count):
            raise DataLossError(f"{where}: expected part {index} of {count}, found part {part}")
        return SavedPart(
            f"{self.path}.{manifest['file']}",
            text,
            manifest["num_rows"],
            manifest["applies"],
            *(manifest.get(name, 0) for name in ("save_id", "since", "num_removed")),
            tuple(f"{self.path}.{linked['file']}" for linked in manifest.get("linked", ())),
        )


def find_prefix(path: str | os.PathLike) -> str:
    """The prefix of the checkpoint at `path`; see `load`."""
    path = os.fspath(path)
    if os.path.exists(path + ".index"):
        prefix = path
    elif os.path.exists(os.path.join(path, "saved_model.pb")):
        prefix = os.path.join(path, "variables", "variables")
    elif os.path.isdir(path):
        prefix = tf.train.latest_checkpoint(path) or ""
    else:
        prefix = path
    if not os.path.exists(prefix + ".index"):
        raise _engine.NotFoundError(
            f"'{path}': expected the prefix of a checkpoint, a directory with a `checkpoint` file or a SavedModel"
        )
    return prefix

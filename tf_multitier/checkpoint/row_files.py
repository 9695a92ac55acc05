"""Rows in files that other programs read and write: Parquet, NumPy's .npz, and raw arrays.

Keys that a filter counts and has not admitted have no row. They are not in these files.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import zlib
from collections.abc import Iterator

import numpy as np

from tf_multitier._src.options import numpy_types
from tf_multitier.checkpoint.source import key_dtype
from tf_multitier.checkpoint.source import RowSource
from tf_multitier.checkpoint.source import value_dtype
from tf_multitier.engine.rows import Rows

_COLUMNS_KEY = b"tf_multitier.columns"
_DTYPE_KEY = b"tf_multitier.value_dtype"
_KEY_DTYPE_KEY = b"tf_multitier.key_dtype"
_BLOCK_BYTES = 16 << 20

# Page checksums do not cover the footer. So `save_parquet` puts this mark and the footer's CRC-32 in front of it. Parquet readers
# find the footer from the end of the file and skip them; a program that writes the rows again leaves them out.
_FOOTER_MARK = b"TFMT"


def _block_rows(columns):
    """The number of rows in a block of about _BLOCK_BYTES."""
    return max(1, _BLOCK_BYTES // (24 + 4 * sum(dim for _, dim, _ in columns)))


def _split(rows):
    """[(name, float32 [n, dim])] of the columns of Rows."""
    begin, found = 0, []
    for name, dim, _ in rows.columns:
        found.append((name, rows.data[:, begin : begin + dim]))
        begin += dim
    return found


def _arrow():
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise ImportError(
            "Parquet files need pyarrow: pip install 'tf_multitier[deeprec]' or pip install pyarrow"
        ) from None
    return pyarrow


def save_parquet(rows: RowSource | Rows, path: str | os.PathLike) -> int:
    """Writes rows to a Parquet file: int64 `key`, `frequency`, `version`, and a list of `dim` float32 for each column, by its name.

    Keys are uint64 or uint32 if those of the rows are. Values of 16 bits are written as float32, which is exact. The file's metadata
    has the types of both.
    One block of rows is in memory at a time. A file of that name is replaced when the new one is complete. Its pages and its footer
    have checksums, which `load_parquet` verifies.

    Returns:
      The number of rows.
    """
    arrow = _arrow()
    columns = [tuple(column) for column in rows.columns]
    names = ["key", "frequency", "version", *(name for name, _, _ in columns)]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise ValueError(
            f"'{path}': expected columns of different names, found {repeated[0]!r} twice"
        )
    of_keys = key_dtype(rows)
    schema = arrow.schema(
        [
            ("key", getattr(arrow, of_keys)()),
            ("frequency", arrow.int64()),
            ("version", arrow.int64()),
        ]
        + [(name, arrow.list_(arrow.float32(), dim)) for name, dim, _ in columns],
        metadata={
            _COLUMNS_KEY: json.dumps(columns).encode(),
            _DTYPE_KEY: value_dtype(rows).encode(),
            _KEY_DTYPE_KEY: of_keys.encode(),
        },
    )
    path = os.fspath(path)
    count = 0
    with (
        _Replaced(path) as target,
        open(target, "w+b") as file,
    ):
        with arrow.parquet.ParquetWriter(file, schema, write_page_checksum=True) as writer:
            for block in [rows] if isinstance(rows, Rows) else rows.blocks():
                if not len(block):
                    continue
                arrays = [arrow.array(a) for a in (block.keys, block.frequencies, block.versions)]
                for _, data in _split(block):
                    flat = arrow.array(np.ascontiguousarray(data).reshape(-1))
                    arrays.append(arrow.FixedSizeListArray.from_arrays(flat, data.shape[1]))
                writer.write_batch(arrow.record_batch(arrays, schema=schema))
                count += len(block)
        begin, footer = _footer(file)
        file.seek(begin)
        file.write(_FOOTER_MARK + zlib.crc32(footer).to_bytes(4, "little") + footer)
    return count


def _footer(file):
    """(where the footer of a Parquet file begins, its bytes up to the end of the file). (0, all bytes) if there is none."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 8, 0))
    begin = max(size - 8 - int.from_bytes(file.read(4), "little"), 0)
    file.seek(begin)
    return begin, file.read()


class _ParquetRows(RowSource):
    def __init__(self, path, key_dtype):
        self._arrow = _arrow()
        self._path = path
        self._check_footer()
        with self._open() as file:
            schema = file.schema_arrow
            if "key" not in schema.names:
                raise ValueError(f"'{path}': expected a column 'key', found {schema.names}")
            self._has = {name: name in schema.names for name in ("frequency", "version")}
            # Other programs drop columns and keep the metadata.
            written = json.loads((schema.metadata or {}).get(_COLUMNS_KEY, "[]"))
            initial_values = {name: value for name, _, value in written}
            self.columns = [
                (name, dim, initial_values.get(name, 0.0))
                for name, dim in self._columns_of(schema, file)
            ]
            self.num_rows = file.metadata.num_rows
            dtype = (schema.metadata or {}).get(_DTYPE_KEY, b"float32").decode()
            self.dtype = numpy_types.value_type(f"'{path}': value_dtype", dtype)
            said = (schema.metadata or {}).get(_KEY_DTYPE_KEY, b"int64").decode()
            self.key_dtype = numpy_types.key_type(
                f"'{path}': key_dtype", said if key_dtype is None else key_dtype
            )

    def _check_footer(self):
        with open(self._path, "rb") as file:
            begin, footer = _footer(file)
            file.seek(max(begin - 8, 0))
            mark, checksum = file.read(4), file.read(4)
        if mark == _FOOTER_MARK and checksum != zlib.crc32(footer).to_bytes(4, "little"):
            raise ValueError(f"'{self._path}': expected the footer's checksum, found another one")

    @contextlib.contextmanager
    def _open(self):
        # A file, because pyarrow takes a path with a colon for the address of a server.
        with open(self._path, "rb") as stream, self._own_errors():
            yield self._arrow.parquet.ParquetFile(stream, page_checksum_verification=True)

    @contextlib.contextmanager
    def _own_errors(self):
        # Some releases of pyarrow report damage as OSError, and damaged texts and numbers as the others.
        damage = (self._arrow.ArrowException, OSError, UnicodeDecodeError, OverflowError)
        try:
            yield
        except damage as error:
            raise ValueError(f"'{self._path}': {error}") from None

    def _columns_of(self, schema, file):
        found, types = [], self._arrow.types
        for field in schema:
            if field.name in ("key", "frequency", "version"):
                continue
            if types.is_fixed_size_list(field.type):
                dim = field.type.list_size
            elif not types.is_list(field.type) and not types.is_large_list(field.type):
                raise ValueError(
                    f"'{self._path}': expected lists of numbers in column '{field.name}', found {field.type}"
                )
            elif file.metadata.num_rows:
                first = next(file.iter_batches(1, columns=[field.name])).column(0)[0]
                dim = len(first) if first.is_valid else 0
            else:
                raise ValueError(
                    f"'{self._path}': expected rows or lists of a fixed size in column '{field.name}', found no rows of {field.type}"
                )
            if dim < 1:
                raise ValueError(
                    f"'{self._path}': expected lists of numbers in column '{field.name}', found {dim} numbers"
                )
            found.append((field.name, dim))
        if not found:
            raise ValueError(f"'{self._path}': expected a column of lists, the value, found none")
        return found

    def blocks(self) -> Iterator[Rows]:
        found = 0
        with self._open() as file:
            for batch in file.iter_batches(_block_rows(self.columns)):
                n = batch.num_rows
                found += n
                yield Rows(
                    self.columns,
                    self._integers(batch, "key", self.key_dtype),
                    self._integers(batch, "frequency")
                    if self._has["frequency"]
                    else np.zeros(n, np.int64),
                    self._integers(batch, "version") if self._has["version"] else np.full(n, -1),
                    np.concatenate(
                        [self._matrix(batch, name, dim) for name, dim, _ in self.columns], axis=1
                    ),
                )
        if found != self.num_rows:  # pyarrow skips pages of an unknown kind
            raise ValueError(f"'{self._path}': expected {self.num_rows} rows, found {found}")

    def _integers(self, batch, name, dtype="int64"):
        column = batch.column(name)
        if column.null_count:
            raise ValueError(f"'{self._path}': expected integers in column '{name}', found null")
        try:
            return np.asarray(column.cast(getattr(self._arrow, dtype)()))
        except self._arrow.ArrowException as error:
            raise ValueError(
                f"'{self._path}': expected integers that fit {dtype} in column '{name}', found {column.type}: {error}"
            ) from None

    def _matrix(self, batch, name, dim):
        lists = batch.column(name)
        lengths = self._arrow.compute.list_value_length(lists)
        others = self._arrow.compute.unique(lengths).to_pylist()
        flat = lists.flatten()
        if any(length != dim for length in others) or flat.null_count:
            found = (
                "null"
                if None in others or flat.null_count
                else f"a list of {next(n for n in others if n != dim)}"
            )
            raise ValueError(
                f"'{self._path}': expected lists of {dim} numbers in column '{name}', found {found}"
            )
        return np.asarray(flat.cast(self._arrow.float32(), safe=False)).reshape(-1, dim)


def load_parquet(path: str | os.PathLike, key_dtype: str | None = None) -> RowSource:
    """Rows of a Parquet file that `save_parquet` wrote, or of another with a column `key` and columns of lists.

    Checksums of pages are verified where the file has them.
    Columns `frequency` and `version` may be missing: 0 and -1. The first column of lists is the value, the others are slots by name;
    a slot's initial value is 0 unless `save_parquet` wrote it.

    Args:
      path: the file.
      key_dtype: of the keys: "int64", "uint64" or "uint32". None: what `save_parquet` wrote, or int64.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is damaged, has no column `key` or no column of lists, nulls, keys that do not fit the key_dtype, or lists
        of different lengths.
    """
    return _ParquetRows(os.fspath(path), key_dtype)


def save_npz(rows: RowSource | Rows, path: str | os.PathLike) -> int:
    """Writes rows to an .npz file: keys, frequencies, versions, data, columns as JSON, value_dtype. All rows are in memory. Returns their number."""
    dtype = value_dtype(rows)
    rows = rows if isinstance(rows, Rows) else rows.read()
    with _Replaced(os.fspath(path)) as target, open(target, "wb") as file:
        np.savez(
            file,
            columns=json.dumps([list(column) for column in rows.columns]),
            keys=rows.keys,
            frequencies=rows.frequencies,
            versions=rows.versions,
            data=rows.data,
            value_dtype=dtype,
        )
    return len(rows)


def _plain_rows(arrays):
    """The Rows of arrays that another program saved: `keys` and `values`, and perhaps `frequencies` and `versions`."""

    def array(name, kinds, shape, otherwise=None):
        found = arrays[name] if name in arrays or otherwise is None else otherwise
        if found.dtype.kind not in kinds or any(
            n not in (None, m) for n, m in itertools.zip_longest(shape, found.shape, fillvalue=-1)
        ):
            expected = f"{'integers' if 'i' in kinds else 'float16, float32 or float64'} [{', '.join(str(n or 'n') for n in shape)}]"
            raise ValueError(
                f"{name} as {found.dtype.name} {list(found.shape)} in place of {expected}"
            )
        return found

    keys = array("keys", "iu", (None,))
    n = len(keys)
    values = arrays["values"]
    dim = max(values.shape[1], 1) if values.ndim == 2 else "dim"
    values = array("values", "f", (n, dim)).astype(np.float32)
    return Rows(
        [("value", dim, 0.0)],
        keys if keys.dtype in (np.uint64, np.uint32) else keys.astype(np.int64),
        array("frequencies", "iu", (n,), np.zeros(n, np.int64)).astype(np.int64),
        array("versions", "iu", (n,), np.full(n, -1)).astype(np.int64),
        values,
    )


def load_npz(path: str | os.PathLike) -> Rows:
    """The rows in an .npz file that `save_npz` or `python3 -m tf_multitier.tools.salvage` wrote, or another program.

    That of another program has `keys`, integers [n], and `values`, float16, float32 or float64 [n, dim]. It may have `frequencies` and
    `versions`, integers [n]; else they are 0 and -1.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is damaged, or lacks an array, or one has another type or shape.
    """
    names = ("columns", "keys", "frequencies", "versions", "data", "value_dtype")
    try:
        with open(path, "rb") as file, np.load(file) as arrays:
            damaged = arrays.zip.testzip()  # NumPy may end to read an array before its checksum
            if damaged is not None:
                raise ValueError(f"a wrong checksum of {damaged}")
            if "values" in arrays and "data" not in arrays:
                return _plain_rows(arrays)
            columns, *others, dtype = [arrays[name] for name in names]
            return Rows(
                [tuple(column) for column in json.loads(str(columns))],
                *others,
                dtype=numpy_types.value_type("value_dtype", str(dtype)),
            )
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001  NumPy and zipfile meet damage with errors of many kinds
        raise ValueError(
            f"'{os.fspath(path)}': expected an .npz file with {', '.join(names)}, or with keys and values, found {error}"
        ) from None


def save_raw(rows: RowSource | Rows, directory: str | os.PathLike) -> int:
    """Writes the files `key` (int64) and `emb_vector` (float32, dim elements per key) of little-endian numbers, as HugeCTR reads them.

    Only values: no slots, frequencies or versions; no checksums. A uint64 key is written as its 64 bits. Returns the number of rows.
    """
    directory = os.fspath(directory)
    os.makedirs(directory, exist_ok=True)
    dim, count = rows.columns[0][1], 0
    with (
        _Replaced(os.path.join(directory, "key")) as keys,
        _Replaced(os.path.join(directory, "emb_vector")) as values,
        open(keys, "wb") as key_file,
        open(values, "wb") as value_file,
    ):
        for block in [rows] if isinstance(rows, Rows) else rows.blocks():
            key_file.write(numpy_types.to_int64(block.keys).astype("<i8").tobytes())
            value_file.write(np.ascontiguousarray(block.data[:, :dim]).astype("<f4").tobytes())
            count += len(block)
        # New values must not be found next to old keys if this process dies between the two replacements.
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(directory, "key"))
    return count


class _RawRows(RowSource):
    def __init__(self, directory, dim):
        self._keys = os.path.join(directory, "key")
        self._values = os.path.join(directory, "emb_vector")
        if dim < 1:
            raise ValueError(f"dim: expected at least 1, found {dim}")
        self.columns = [("value", dim, 0.0)]
        self.num_rows = os.path.getsize(self._keys) // 8
        found, expected = os.path.getsize(self._values), self.num_rows * dim * 4
        if found != expected or os.path.getsize(self._keys) % 8:
            raise ValueError(
                f"'{self._values}': expected {expected} bytes for {self.num_rows} keys of dim {dim}, found {found}"
            )

    def blocks(self) -> Iterator[Rows]:
        dim = self.columns[0][1]
        with open(self._keys, "rb") as key_file, open(self._values, "rb") as value_file:
            while len(keys := np.frombuffer(key_file.read(8 * _block_rows(self.columns)), "<i8")):
                values = np.frombuffer(value_file.read(4 * dim * len(keys)), "<f4")
                yield Rows(
                    self.columns,
                    keys.astype(np.int64),
                    np.zeros(len(keys), np.int64),
                    np.full(len(keys), -1),
                    values.reshape(-1, dim).astype(np.float32),
                )


def load_raw(directory: str | os.PathLike, dim: int) -> RowSource:
    """Rows of a directory with files `key` (int64) and `emb_vector` (float32, `dim` elements per key): see `save_raw`.

    The files have no checksums: of damage, only another size is found.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: the sizes of the files do not fit `dim`.
    """
    return _RawRows(os.fspath(directory), dim)


class _Replaced:
    """Gives a path next to `path`. At the end it is synced and gets that name; after an exception it is deleted."""

    def __init__(self, path):
        self._path = path
        self._next = f"{path}.{os.getpid()}.tmp"

    def __enter__(self):
        return self._next

    def __exit__(self, kind, error, trace):
        if kind is not None:
            if os.path.exists(self._next):
                os.remove(self._next)
            return
        descriptor = os.open(self._next, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(self._next, self._path)

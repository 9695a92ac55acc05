"""Reads one Parquet file as chunks of NumPy arrays.

    fields = complete_fields(path, None)            # the columns of the file, with their types
    for arrays in chunks(path, fields, 512):        # a flat list of arrays for each chunk of rows

The arrays of a column in a chunk of n rows, in this order:

    starts, ends     int32 [n], only for lists of varying length: where each row's list begins and ends in the next level
    splits, ...      int32, the row splits of further levels of nesting
    offsets          int64 [m + 1], only for strings: where each of m strings begins and ends in `bytes`
    bytes            uint8, only for strings: shares Arrow's memory
    values           [n] or [n] + shape; for lists [all elements]; for strings int32, the number of the string

The op MultitierGatherStrings makes the strings of a batch from these arrays, in C++. One Python object per string would cost more
than reading the file. If a column is stored with a dictionary of few strings, the m strings are those of the dictionary.

Memory: one row group as it is stored, and one decoded chunk.
"""

import os

import numpy as np
import tensorflow as tf

from tf_multitier.data.data_frame import DataFrame

# Minimal number of rows of a chunk. Each chunk has a column's whole dictionary, which costs too much for fewer rows.
_CHUNK_ROWS = 65536

# A string column is read with its dictionary if a row takes fewer bytes in the file than a string's length alone.
_BYTES_OF_A_LENGTH = 4


def _arrow():
    """(pyarrow, pyarrow.parquet)."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "ParquetDataset needs the package pyarrow: run `pip install pyarrow`"
        ) from error
    return pyarrow, pyarrow.parquet


def _uses_threads(arrow):
    """True if Arrow decodes columns in parallel. DeepRec's environment variable ARROW_NUM_THREADS: 0 means no, n > 0 n threads."""
    threads = os.environ.get("ARROW_NUM_THREADS", "-1")
    try:
        threads = int(threads)
    except ValueError:
        raise ValueError(
            f"environment variable ARROW_NUM_THREADS: expected an integer, found {threads!r}"
        ) from None
    if threads > 0:
        arrow.set_cpu_count(threads)
    return threads != 0


def _open(path, **options):
    """Opens a path, or a URI that Arrow supports (file, s3, gs, hdfs), as a pyarrow.parquet.ParquetFile.

    Raises:
      ValueError: the file cannot be read or is not a Parquet file. The message names it.
    """
    arrow, parquet = _arrow()
    try:
        return parquet.ParquetFile(
            path, pre_buffer=False, page_checksum_verification=True, **options
        )
    except FileNotFoundError:
        raise ValueError(f"ParquetDataset: expected a file {path}, found none") from None
    except (OSError, arrow.ArrowException, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(
            f"ParquetDataset: {path} cannot be read as a Parquet file: {error}"
        ) from None


# Types

# Arrow's names of floats; those of integers are TensorFlow's.
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def _type_of(path, name, arrow_type):
    """The DataFrame.Field of an Arrow type. Lists of fixed length (fixed_size_list) have a shape, other lists a ragged rank."""
    types = _arrow()[0].types
    found, ragged_rank, shape = arrow_type, 0, []
    while (
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
    ):
        if types.is_fixed_size_list(arrow_type) and not ragged_rank:
            shape.append(arrow_type.list_size)
        elif shape:
            shape = None
            break
        else:
            ragged_rank += 1
        arrow_type = arrow_type.value_type
    if types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if shape is not None and (_is_text(arrow_type) or types.is_boolean(arrow_type)):
        return DataFrame.Field(
            name, tf.string if _is_text(arrow_type) else tf.bool, ragged_rank, shape
        )
    if shape is not None and (types.is_integer(arrow_type) or types.is_floating(arrow_type)):
        return DataFrame.Field(name, _dtype_of(arrow_type), ragged_rank, shape)
    raise ValueError(
        f"ParquetDataset: column '{name}' of {path}: expected integers, floats, booleans, strings, or lists of those; "
        f"found {found}. Convert it when the file is written, or leave it out of fields"
    )


def _dtype_of(arrow_type):
    """The tf.DType of integers or floats. Arrow's `to_pandas_dtype` needs pandas in some releases of pyarrow."""
    name = str(arrow_type)
    return tf.as_dtype(_FLOATS.get(name, name))


def _is_text(arrow_type):
    types = _arrow()[0].types
    return any(
        check(arrow_type)
        for check in (
            types.is_string,
            types.is_large_string,
            types.is_string_view,
            types.is_binary,
            types.is_large_binary,
            types.is_binary_view,
            types.is_fixed_size_binary,
        )
    )


def complete_fields(path, fields=None, lower=False):
    """Completes fields with the types in the file's schema. It reads only the schema.

    Args:
      path: path of the file.
      fields: names and Fields of the wanted columns, in their order; None: all columns.
      lower: True: if the file lacks a column, look for its name in lower case.

    Returns:
      A list of DataFrame.Fields with all properties set.

    Raises:
      ValueError: the file cannot be read, lacks a column, or a column has another type than its Field.
      ImportError: pyarrow is not installed.
    """
    with _open(path) as file:
        schema = file.schema_arrow
    return [
        _complete_field(path, schema, field, lower)
        for field in (schema.names if fields is None else fields)
    ]


def _complete_field(path, schema, field, lower=False):
    name = field if isinstance(field, str) else field.name
    if lower and name not in schema.names:
        name = name.lower()
    if schema.names.count(name) != 1:
        raise ValueError(
            f"ParquetDataset: expected one column '{name}' in {path}, found "
            f"{schema.names.count(name) or 'the columns ' + ', '.join(schema.names)}"
        )
    found = _type_of(path, name, schema.field(name).type)
    if isinstance(field, str):
        return found
    # A column of lists is dense if the field gives the shape of a row.
    as_shape = field.shape is not None and found.ragged_rank == 1 and found.shape is None
    wanted = DataFrame.Field(
        name,
        field.dtype or found.dtype,
        found.ragged_rank if field.ragged_rank is None else field.ragged_rank,
        found.shape if field.shape is None else field.shape,
    )
    if wanted.dtype != found.dtype or (not as_shape and wanted != found):
        raise ValueError(
            f"ParquetDataset: column '{name}' of {path}: expected {field}, found {found}"
        )
    return wanted


# Values


def offsets_and_bytes(array):
    """(offsets int64 [m + 1], bytes uint8) of an Arrow array of m strings without nulls. They share Arrow's memory if possible."""
    array = array.cast(_arrow()[0].large_binary())
    _, offsets, data = array.buffers()
    size = len(array)
    if not size:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(offsets, np.int64, size + 1, 8 * array.offset)
    return offsets, np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)


class _Column:
    """Turns a column's Arrow arrays into the arrays of a chunk."""

    def __init__(self, path, field):
        self._field = field
        self._what = f"ParquetDataset: column '{field.name}' of {path}"

    def arrays(self, array):
        """The NumPy arrays of an Arrow array, in the order given at the top of this module.

        Raises:
          ValueError: the column has a null, or a list whose length differs from the field's shape.
        """
        given = []
        array = self._without_nulls(array)
        for level in range(self._field.ragged_rank):
            if hasattr(array, "offsets"):
                splits = array.offsets.to_numpy()
            else:  # lists of a fixed size
                splits = np.arange(len(array) + 1) * array.type.list_size
            splits = (splits - splits[0]).astype(np.int32)
            given += [splits] if level else [splits[:-1], splits[1:]]
            array = self._without_nulls(array.flatten())
        shape = [len(array), *(self._field.shape or [])]
        while hasattr(array, "flatten") and self._field.shape is not None:  # lists
            if hasattr(array, "offsets"):
                self._check_lengths(np.diff(array.offsets.to_numpy()))
            array = self._without_nulls(array.flatten())
        if self._field.dtype == tf.string:
            strings, values = self._with_dictionary(array)
            given += offsets_and_bytes(strings)
        else:
            values = array.to_numpy(zero_copy_only=False)
        return [*given, values.reshape(shape)]

    def _with_dictionary(self, array):
        """(Arrow array of strings, int32 positions in it)."""
        if not hasattr(array, "dictionary"):
            return array, np.arange(len(array), dtype=np.int32)
        return self._without_nulls(array.dictionary), array.indices.to_numpy().astype(
            np.int32, copy=False
        )

    def _without_nulls(self, array):
        if array.null_count:
            raise ValueError(
                f"{self._what}: expected no nulls, found {array.null_count} in {len(array)}: fill them when the file is "
                "written"
            )
        return array

    def _check_lengths(self, lengths):
        expected = self._field.shape.num_elements()
        if (lengths != expected).any():
            raise ValueError(
                f"{self._what}: expected lists of {expected} for the shape {self._field.shape.as_list()}, found one of "
                f"{lengths[lengths != expected][0]}"
            )


def chunks(path, fields, batch_size, partition_count=1, partition_index=0, chunk_rows=None):
    """Yields one flat list of the arrays of all fields for each chunk of the file, in order.

    The number of rows of each chunk is a multiple of `batch_size`, except for the last chunk. Only row groups g with
    g % partition_count == partition_index are read.

    Raises:
      ValueError: the file cannot be read, or does not match the fields.
    """
    arrow = _arrow()[0]
    chunk_rows = chunk_rows or _CHUNK_ROWS
    threads = _uses_threads(arrow)
    with _open(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
    for field in fields:
        _complete_field(path, schema, field)
    groups = list(range(partition_index, metadata.num_row_groups, partition_count))
    columns = [(field.name, _Column(path, field)) for field in fields]
    with _open(
        path, metadata=metadata, read_dictionary=_with_dictionaries(metadata, groups, fields)
    ) as file:
        rows = batch_size * max(chunk_rows // batch_size, 1)
        try:
            tables = (
                file.iter_batches(rows, groups, [field.name for field in fields], threads)
                if groups
                else ()
            )
            left = sum(metadata.row_group(group).num_rows for group in groups)
            for table in _multiples(arrow, tables, batch_size, rows):
                left -= len(table)
                yield [
                    array for name, column in columns for array in column.arrays(table.column(name))
                ]
            if left:  # pyarrow skips pages of an unknown kind
                raise OSError(f"{left} rows are missing")
        except (OSError, arrow.ArrowException) as error:
            raise ValueError(f"ParquetDataset: {path} cannot be read: {error}") from None


def _with_dictionaries(metadata, groups, fields):
    """The names of the string columns that are stored with a dictionary of few strings."""
    size, values = {}, {}
    for group in map(metadata.row_group, groups):
        for column in map(group.column, range(group.num_columns)):
            name = column.path_in_schema
            size[name] = size.get(name, 0) + column.total_uncompressed_size
            values[name] = values.get(name, 0) + column.num_values
    return [
        field.name
        for field in fields
        if field.dtype == tf.string
        and field.name in size
        and size[field.name] < _BYTES_OF_A_LENGTH * values[field.name]
    ]


def _multiples(arrow, tables, batch_size, chunk_rows):
    """Regroups RecordBatches, in order: at least `chunk_rows` rows each, a multiple of `batch_size`.

    The last may be smaller. Arrow ends a RecordBatch where the dictionary of the next row group differs.
    """
    waiting, count = [], 0
    for table in tables:
        waiting.append(table)
        count += len(table)
        if count >= chunk_rows:
            table = _joined(arrow, waiting)
            whole = count - count % batch_size
            yield table.slice(0, whole)
            waiting, count = ([table.slice(whole)], count - whole) if whole < count else ([], 0)
    if count:
        yield _joined(arrow, waiting)


def _joined(arrow, tables):
    return tables[0] if len(tables) == 1 else arrow.concat_batches(tables)

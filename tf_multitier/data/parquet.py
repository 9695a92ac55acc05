"""ParquetDataset: a tf.data.Dataset of batches of rows of Parquet files.

    for features in tf_multitier.data.ParquetDataset(["day1.parquet", "day2.parquet"], batch_size=2048).prefetch(2):
        features["user"], features["clicked"]       Tensors [batch]
        features["history"]                         a column of lists: a RaggedTensor [batch, None]

A Python generator (arrow_reader.py) reads each file; `tf.data` runs it on its threads. Arrow decodes without the GIL. The package
pyarrow is required.
"""

from __future__ import annotations

import collections.abc
import functools
import os
import typing
from typing import NamedTuple

import tensorflow as tf

from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.tensorflow.library import ops
from tf_multitier.data import arrow_reader
from tf_multitier.data.data_frame import DataFrame

_Dataset = tf.compat.v2.data.Dataset


class ParquetDataset(_Dataset):  # type: ignore[misc,valid-type]
    """A `tf.data.Dataset` of batches of rows of Parquet files. A batch is a dict from column name to value.

    Numbers, booleans and strings give a Tensor [batch]. Lists of fixed length (Arrow's fixed_size_list, or a field with `shape`)
    give a Tensor [batch] + shape. Other lists give a `tf.RaggedTensor` with int64 row splits; `DataFrame.to_sparse` converts it to a
    SparseTensor. All rows of a batch are from one file, so the last batch of each file may be smaller. Pages that have a checksum
    are verified.

    Files are read in a fixed order, also with `num_parallel_reads`, unless `tf.data.Options.deterministic` is False. The pipeline must
    run in this process, like that of `Dataset.from_generator`.

    Memory: for each open file, one row group as it is stored and up to three decoded chunks of 65,536 rows.

    Source of name, arguments and semantics: DeepRec's ParquetDataset, whose lists are `DataFrame.Value`s.

    Args:
      filenames: a path or a URI that Arrow supports (s3, gs, hdfs), a list of them, a string Tensor of rank 0 or 1, or a Dataset of
        string scalars.
      batch_size: rows of a batch, >= 1: an integer, or an integer scalar Tensor.
      fields: the columns to read, as names and `DataFrame.Field`s. None: all columns of the first file. If the first file is not
        known when the graph is built (filenames is a Tensor or a Dataset), they must be Fields with a dtype.
      partition_count, partition_index: read only row groups partition_index, partition_index + partition_count, ... of each file.
      drop_remainder: drop the last batch of each file if it is smaller.
      num_parallel_reads: number of files to read at the same time, >= 1, or tf.data.AUTOTUNE. None: one file after the other.
      num_sequential_reads: with num_parallel_reads, the number of batches to take from one file before the next file.

    Raises:
      ImportError: pyarrow is not installed.
      TypeError, ValueError: a bad argument, or the first file cannot be read, lacks a column, or a column has another type than its
        field.
      tf.errors.InvalidArgumentError, when run: another file has one of these problems, or a value is null. The message names file
        and column.
    """

    @staticmethod
    def _list_column(values, nested_row_splits):
        """The batch of a column of lists, from all elements and int32 row splits, outermost first."""
        splits = [tf.cast(splits, tf.int64) for splits in nested_row_splits]
        return tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False)

    def __init__(
        self,
        filenames: typing.Any,
        batch_size: int = 1,
        fields: typing.Any = None,
        partition_count: int = 1,
        partition_index: int = 0,
        drop_remainder: bool = False,
        num_parallel_reads: int | None = None,
        num_sequential_reads: int = 1,
    ) -> None:
        self._drop_remainder = boolean("ParquetDataset: drop_remainder", drop_remainder)
        _check_integer("partition_count", partition_count, 1)
        _check_integer("partition_index", partition_index, 0)
        if partition_index >= partition_count:
            raise ValueError(
                f"ParquetDataset: partition_index: expected less than {partition_count}, the partition_count, found "
                f"{partition_index}"
            )
        if not tf.is_tensor(batch_size):
            _check_integer("batch_size", batch_size, 1)
        if num_parallel_reads is not None and num_parallel_reads != tf.data.AUTOTUNE:
            _check_integer("num_parallel_reads", num_parallel_reads, 1)
        _check_integer("num_sequential_reads", num_sequential_reads, 1)
        files, first = _files(filenames)
        self._fields = _fields(fields, first)
        self._partition_count, self._partition_index = int(partition_count), int(partition_index)
        self._rows = None if tf.is_tensor(batch_size) or not drop_remainder else int(batch_size)
        batch_size = tf.cast(batch_size, tf.int64)

        @tf.autograph.experimental.do_not_convert
        def read(path):
            return self._read(path, batch_size)

        if num_parallel_reads is None:
            self._batches = files.flat_map(read)
        else:
            cycle = None if num_parallel_reads == tf.data.AUTOTUNE else num_parallel_reads
            self._batches = files.interleave(
                read, cycle, num_sequential_reads, num_parallel_calls=num_parallel_reads
            )
        super().__init__(self._batches._variant_tensor)  # pylint: disable=protected-access

    @classmethod
    def read_schema(cls, filename: str, fields: typing.Any = None, lower: bool = False) -> tuple:
        """Reads the columns of a file from its schema.

        Args:
          filename: path of the file.
          fields: names and Fields of the wanted columns; None: all.
          lower: True: if the file lacks a column, look for its name in lower case.

        Returns:
          A tuple of `DataFrame.Field`s with type and nesting.

        Raises:
          ImportError, ValueError: see the constructor.
        """
        lower = boolean("read_schema: lower", lower)
        return tuple(arrow_reader.complete_fields(filename, fields, lower))

    @property
    def fields(self) -> list:
        """The DataFrame.Fields of the columns, in order."""
        return self._fields

    @property
    def partition_count(self) -> int:
        """The number of partitions that the row groups of each file are divided into."""
        return self._partition_count

    @property
    def partition_index(self) -> int:
        """The partition that this dataset reads, in [0, partition_count)."""
        return self._partition_index

    @property
    def drop_remainder(self) -> bool:
        """True if the last batch of a file is dropped when it is smaller."""
        return self._drop_remainder

    @property
    def element_spec(self) -> typing.Any:
        """The structure and types of a batch, as for every `tf.data.Dataset`."""
        return self._batches.element_spec

    def _inputs(self):
        return [self._batches]

    def _read(self, path, batch_size):
        """The batches of one file."""
        arrays = [_Arrays(field, self._list_column) for field in self._fields]
        reader = functools.partial(
            _chunks,
            fields=self._fields,
            partition_count=self._partition_count,
            partition_index=self._partition_index,
        )

        def batches_of_chunk(*given):
            chunk = iter(given)
            parts = [column.take(chunk) for column in arrays]

            def batch(*rows):
                rows = iter(rows)
                return {
                    field.name: column.batch(part, rows)
                    for field, column, part in zip(self._fields, arrays, parts)
                }

            rows = _Dataset.from_tensors(tuple(array for part in parts for array in part.of_rows))
            return rows.rebatch(self._rows or batch_size, self._drop_remainder).map(batch)

        chunks = _Dataset.from_generator(
            reader,
            args=(path, batch_size),
            output_signature=tuple(spec for column in arrays for spec in column.specs()),
        )
        return chunks.prefetch(1).flat_map(batches_of_chunk)


class _Arrays:
    """Makes the values of one column in a batch from the arrays of a chunk (arrow_reader.py)."""

    def __init__(self, field, list_column):
        self._field, self._list_column = field, list_column

    def specs(self):
        """The TensorSpecs of the arrays of a chunk."""
        field = self._field
        positions = tf.TensorSpec([None], tf.int32)
        nesting = [positions] * (field.ragged_rank + 1 if field.ragged_rank else 0)
        values = tf.TensorShape([None]).concatenate(field.shape or [])
        if field.dtype == tf.string:
            offsets, text = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.uint8)
            return [*nesting, offsets, text, tf.TensorSpec(values, tf.int32)]
        return [*nesting, tf.TensorSpec(values, field.dtype)]

    def take(self, arrays):
        """Takes this column's arrays from the iterator `arrays` and returns them as a _Part."""
        nesting = [
            next(arrays)
            for _ in range(self._field.ragged_rank + 1 if self._field.ragged_rank else 0)
        ]
        strings = None
        if self._field.dtype == tf.string:
            strings = _Strings(next(arrays), next(arrays))
        values = next(arrays)
        return _Part(nesting[:2] or [values], nesting[2:], values, strings)

    def batch(self, part, rows):
        """The column's value in a batch: a Tensor, or what `list_column` returns. `rows` iterates over the batch's slices of `of_rows`."""
        if not self._field.ragged_rank:
            values = next(rows)
            return values if part.strings is None else part.strings.gather(values)
        starts, ends = next(rows), next(rows)
        first, last = starts[0], ends[-1]
        all_splits = [tf.concat([starts, ends[-1:]], 0) - first]
        for splits in part.inner_splits:
            splits = splits[first : last + 1]
            first, last = splits[0], splits[-1]
            all_splits.append(splits - first)
        values = part.values[first:last]
        return self._list_column(
            values if part.strings is None else part.strings.gather(values), all_splits
        )


class _Strings(NamedTuple):
    """The distinct strings of a column of a chunk (arrow_reader.py)."""

    offsets: tf.Tensor
    bytes: tf.Tensor

    def gather(self, positions):
        return ops.multitier_gather_strings(self.offsets, self.bytes, positions)


class _Part(NamedTuple):
    """One column of a chunk. `of_rows`: the arrays with one entry per row, which are divided into batches."""

    of_rows: list
    inner_splits: list
    values: tf.Tensor
    strings: _Strings | None


def _chunks(path, batch_size, **options):
    """The generator of the pipeline: yields tuples of arrays. The pipeline passes the values of its Tensors."""
    if batch_size < 1:
        raise ValueError(f"ParquetDataset: batch_size: expected at least 1, found {batch_size}")
    for arrays in arrow_reader.chunks(path.decode(), batch_size=int(batch_size), **options):
        yield tuple(arrays)


def read_parquet(
    batch_size: int,
    fields: typing.Any = None,
    partition_count: int = 1,
    partition_index: int = 0,
    drop_remainder: bool = False,
    num_parallel_reads: int | None = None,
    num_sequential_reads: int = 1,
) -> collections.abc.Callable:
    """A stage for `Dataset.apply` that turns a Dataset of file names into a `ParquetDataset`. For the arguments see there."""

    def apply(filenames):
        return ParquetDataset(
            filenames,
            batch_size,
            fields,
            partition_count,
            partition_index,
            drop_remainder,
            num_parallel_reads,
            num_sequential_reads,
        )

    return apply


def _check_integer(name, value, least):
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"ParquetDataset: {name}: expected an integer, found {value!r}")
    if value < least:
        raise ValueError(f"ParquetDataset: {name}: expected at least {least}, found {value}")


def _files(filenames):
    """(Dataset of file names, the first file name or None if it is not known when the graph is built)."""
    if isinstance(filenames, _Dataset):
        if filenames.element_spec != tf.TensorSpec([], tf.string):
            raise TypeError(
                "ParquetDataset: filenames: expected a Dataset of string scalars, found one of "
                f"{filenames.element_spec!r}"
            )
        works = getattr(filenames, "file_names", None)  # set by the dataset of a work queue
        return filenames, works[0] if works else None
    if tf.is_tensor(filenames):
        if filenames.dtype != tf.string or filenames.shape.rank not in (0, 1, None):
            raise TypeError(
                f"ParquetDataset: filenames: expected a string Tensor of rank 0 or 1, found {filenames!r}"
            )
        known = tf.get_static_value(filenames)
        names = [] if known is None else known.reshape([-1]).tolist()
        return _Dataset.from_tensor_slices(tf.reshape(filenames, [-1])), names[
            0
        ].decode() if names else None
    names = [filenames] if isinstance(filenames, (str, bytes, os.PathLike)) else filenames
    if not isinstance(names, (list, tuple)) or not all(
        isinstance(name, (str, bytes, os.PathLike)) for name in names
    ):
        raise TypeError(
            f"ParquetDataset: filenames: expected a path, a list of paths, a string Tensor or a Dataset, found {filenames!r}"
        )
    if not names:
        raise ValueError("ParquetDataset: filenames: expected at least one, found none")
    names = [os.fsdecode(name) for name in names]
    return _Dataset.from_tensor_slices(names), names[0]


def _fields(fields, first):
    """The columns to read, completed from the first file if it is known."""
    if fields is not None:
        if not isinstance(fields, (list, tuple)) or not all(
            isinstance(field, (str, DataFrame.Field)) for field in fields
        ):
            raise TypeError(
                f"ParquetDataset: fields: expected a list of names and DataFrame.Fields, or None; found {fields!r}"
            )
        names = [field if isinstance(field, str) else field.name for field in fields]
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"ParquetDataset: fields: expected at least one column and each once, found {names}"
            )
    if first is not None:
        return tuple(arrow_reader.complete_fields(first, fields))
    if fields is None or any(isinstance(field, str) or field.dtype is None for field in fields):
        raise ValueError(
            "ParquetDataset: fields: expected DataFrame.Fields with dtype, because filenames are known only when the "
            f"graph runs; found {fields!r}"
        )
    return tuple(
        DataFrame.Field(field.name, field.dtype, field.ragged_rank or 0, field.shape)
        for field in fields
    )

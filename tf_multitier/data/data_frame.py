"""DataFrame: names and types of the columns of a batch, and the values of ragged columns.

Same names, arguments and meaning as DeepRec's `tensorflow.python.data.experimental.ops.dataframe.DataFrame`.
"""

from __future__ import annotations

import collections
import collections.abc
import typing

import tensorflow as tf


class DataFrame:
    """A batch of rows as a dict from column name to a Tensor, or to a `DataFrame.Value` where the column is ragged."""

    class Field:
        """One column: its name and, where they are known, its type and nesting.

        Args:
          name: of the column.
          dtype: of the elements; None: what the file has.
          ragged_rank: levels of lists of varying length: 0 gives Tensors, 1 and more a `DataFrame.Value`. None: what the file
            has; 0 where there is no file to look at.
          shape: of one row of a column of lists of one length, such as [16] for an embedding: the batch is a dense Tensor
            [batch] + shape. Needs ragged_rank 0 or None.

        Raises:
          TypeError: for a bad name or dtype.
          ValueError: for a bad ragged_rank or shape.
        """

        def __init__(self, name, dtype=None, ragged_rank=None, shape=None):
            if not isinstance(name, str):
                raise TypeError(f"DataFrame.Field: name must be a string, found {name!r}")
            if ragged_rank is not None and (
                isinstance(ragged_rank, bool) or not isinstance(ragged_rank, int) or ragged_rank < 0
            ):
                raise ValueError(
                    f"DataFrame.Field '{name}': ragged_rank must be an integer >= 0 or None, found {ragged_rank!r}"
                )
            shape = tf.TensorShape(shape) if shape else None
            if shape is not None and not shape.is_fully_defined():
                raise ValueError(
                    f"DataFrame.Field '{name}': shape must be fully defined, found {shape}"
                )
            if shape is not None and ragged_rank:
                raise ValueError(
                    f"DataFrame.Field '{name}': shape needs ragged_rank 0, found shape {shape} and ragged_rank {ragged_rank}"
                )
            self.name = name
            self.dtype = None if dtype is None else tf.as_dtype(dtype)
            self.ragged_rank = 0 if shape is not None else ragged_rank
            self.shape = shape

        @property
        def incomplete(self):
            """Whether dtype or ragged_rank are still unknown."""
            return self.dtype is None or self.ragged_rank is None

        def __eq__(self, other):
            return isinstance(other, DataFrame.Field) and vars(self) == vars(other)

        def __hash__(self):
            return hash(self.name)

        def __repr__(self):
            dtype = None if self.dtype is None else self.dtype.name
            shape = None if self.shape is None else self.shape.as_list()
            return f"DataFrame.Field({self.name!r}, dtype={dtype}, ragged_rank={self.ragged_rank}, shape={shape})"

    class Value(collections.namedtuple("DataFrameValue", ["values", "nested_row_splits"])):
        """The batch of a ragged column.

        Attributes:
          values: [n], all elements of all rows, in order.
          nested_row_splits: int32 row splits, outermost first, as those of a `tf.RaggedTensor`.
        """

        __slots__ = ()

        def __new__(cls, values, nested_row_splits=()):
            return super().__new__(cls, values, tuple(nested_row_splits or ()))

        def to_ragged(self):
            """The same as a `tf.RaggedTensor`."""
            return tf.RaggedTensor.from_nested_row_splits(
                self.values, self.nested_row_splits, validate=False
            )

        def to_sparse(self, name=None):
            """The same as a SparseTensor [batch, longest row, ...]; `values` itself where there are no row splits."""
            return self.to_ragged().to_sparse(name) if self.nested_row_splits else self.values

    @classmethod
    def to_sparse(cls, features: typing.Any) -> typing.Any:
        """`features` with SparseTensors for ragged values: of a dict's values, a DataFrame.Value, a RaggedTensor or a Tensor.

        Raises:
          TypeError: for something else.
        """
        return cls._map(features, lambda ragged: ragged.to_sparse())

    @classmethod
    def unbatch_and_to_sparse(cls, features: typing.Any) -> typing.Any:
        """As `to_sparse`, of batches of one row, and without their first dimension where they are ragged."""
        return cls._map(
            features,
            lambda ragged: (
                ragged[0].to_sparse() if ragged.ragged_rank > 1 else _sparse_row(ragged[0])
            ),
        )

    @classmethod
    def _map(cls, features, of_ragged):
        if isinstance(features, dict):
            return {name: cls._map(value, of_ragged) for name, value in features.items()}
        if isinstance(features, cls.Value) and features.nested_row_splits:
            return of_ragged(features.to_ragged())
        if isinstance(features, cls.Value):
            return features.values
        if isinstance(features, tf.RaggedTensor):
            return of_ragged(features)
        if isinstance(features, tf.Tensor):
            return features
        raise TypeError(
            f"expected a dict, a DataFrame.Value, a RaggedTensor or a Tensor, found {features!r}"
        )


def _sparse_row(row):
    """A Tensor [n] as a SparseTensor of n elements."""
    n = tf.size(row, out_type=tf.int64)
    return tf.SparseTensor(tf.expand_dims(tf.range(n), 1), row, tf.expand_dims(n, 0))


def to_sparse(num_parallel_calls: typing.Any = None) -> collections.abc.Callable:
    """A stage for `Dataset.apply`: `DataFrame.to_sparse` of each element."""
    return lambda dataset: dataset.map(DataFrame.to_sparse, num_parallel_calls)


def unbatch_and_to_sparse(num_parallel_calls: typing.Any = None) -> collections.abc.Callable:
    """A stage for `Dataset.apply`: `DataFrame.unbatch_and_to_sparse` of each element."""
    return lambda dataset: dataset.map(DataFrame.unbatch_and_to_sparse, num_parallel_calls)

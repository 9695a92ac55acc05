"""DataFrame: names and types of the columns of a batch, and the values of ragged columns.

Source of names, arguments and semantics: DeepRec's `tensorflow.python.data.experimental.ops.dataframe.DataFrame`.
"""

from __future__ import annotations

import collections
import collections.abc
import typing

import tensorflow as tf

NO_ROWS = (
    "DataFrame.Value: expected a stage that keeps its rows, found one that changes them (batch, unbatch, rebatch, padded_batch, "
    "...): apply to_sparse() before it, or map each value to value.to_ragged()"
)


class DataFrame:
    """A batch of rows: a dict from column name to a Tensor, or to a `tf.RaggedTensor` for a column of lists."""

    class Field:
        """One column: its name and, if known, its type and nesting.

        Args:
          name: the column's name.
          dtype: dtype of the elements; None: that of the file.
          ragged_rank: number of levels of lists of varying length. 0 gives Tensors, 1 and more give a `tf.RaggedTensor`. None: that
            of the file, or 0 if no file is known when the graph is built.
          shape: shape of one row of a column of lists of fixed length, such as [16] for an embedding. A batch is then a dense Tensor
            [batch] + shape. Needs ragged_rank 0 or None.

        Raises:
          TypeError: a bad name or dtype.
          ValueError: a bad ragged_rank or shape.
        """

        def __init__(self, name, dtype=None, ragged_rank=None, shape=None):
            if not isinstance(name, str):
                raise TypeError(f"DataFrame.Field: name: expected a string, found {name!r}")
            if ragged_rank is not None and (
                isinstance(ragged_rank, bool) or not isinstance(ragged_rank, int) or ragged_rank < 0
            ):
                raise ValueError(
                    f"DataFrame.Field '{name}': ragged_rank: expected an integer, at least 0, or None, found {ragged_rank!r}"
                )
            shape = tf.TensorShape(shape) if shape else None
            if shape is not None and not shape.is_fully_defined():
                raise ValueError(
                    f"DataFrame.Field '{name}': shape: expected a fully defined one, found {shape}"
                )
            if shape is not None and ragged_rank:
                raise ValueError(
                    f"DataFrame.Field '{name}': ragged_rank: expected 0 with a shape, found {ragged_rank}"
                )
            self.name = name
            self.dtype = None if dtype is None else tf.as_dtype(dtype)
            self.ragged_rank = 0 if shape is not None else ragged_rank
            self.shape = shape

        @property
        def incomplete(self):
            """True if dtype or ragged_rank is unknown."""
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
        """A batch of a column of lists, as DeepRec's programs have it.

        `tf.data` takes it for several tensors. So stages that change rows (batch, unbatch, ...) raise NotImplementedError: convert it before.

        Attributes:
          values: [n]: all elements of all rows, in order.
          nested_row_splits: int32 row splits, outermost first, as in a `tf.RaggedTensor`.
        """

        __slots__ = ()

        def __new__(cls, values, nested_row_splits=()):
            nested_row_splits = tuple(nested_row_splits or ())
            # tf.data makes the types of a stage's elements before it makes the stage.
            if any(
                isinstance(s, tf.TypeSpec) and s.shape.rank not in (1, None)
                for s in nested_row_splits
            ):
                raise NotImplementedError(NO_ROWS)
            return super().__new__(cls, values, nested_row_splits)

        def to_ragged(self):
            """The batch as a `tf.RaggedTensor`."""
            return tf.RaggedTensor.from_nested_row_splits(
                self.values, self.nested_row_splits, validate=False
            )

        def to_sparse(self, name=None):
            """The batch as a SparseTensor [batch, longest row, ...]. Without row splits, returns `values`."""
            return self.to_ragged().to_sparse(name) if self.nested_row_splits else self.values

    @classmethod
    def to_sparse(cls, features: typing.Any) -> typing.Any:
        """Converts ragged values to SparseTensors. Tensors are returned unchanged.

        Args:
          features: a dict, a DataFrame.Value, a RaggedTensor or a Tensor. The values of a dict are converted.

        Raises:
          TypeError: features has another type.
        """
        return cls._map(features, lambda ragged: ragged.to_sparse())

    @classmethod
    def unbatch_and_to_sparse(cls, features: typing.Any) -> typing.Any:
        """`to_sparse` for batches of one row. Ragged values lose their first dimension."""
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
    """Converts a Tensor [n] to a SparseTensor with n elements."""
    n = tf.size(row, out_type=tf.int64)
    return tf.SparseTensor(tf.expand_dims(tf.range(n), 1), row, tf.expand_dims(n, 0))


def to_sparse(num_parallel_calls: typing.Any = None) -> collections.abc.Callable:
    """A stage for `Dataset.apply` that applies `DataFrame.to_sparse` to each element."""
    return lambda dataset: dataset.map(DataFrame.to_sparse, num_parallel_calls)


def unbatch_and_to_sparse(num_parallel_calls: typing.Any = None) -> collections.abc.Callable:
    """A stage for `Dataset.apply` that applies `DataFrame.unbatch_and_to_sparse` to each element."""
    return lambda dataset: dataset.map(DataFrame.unbatch_and_to_sparse, num_parallel_calls)

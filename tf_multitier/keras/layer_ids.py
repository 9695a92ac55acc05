"""The ids that layers take, as the tensors of integers that lookups take."""

from __future__ import annotations

import typing

import keras
import numpy as np
import tensorflow as tf

from tf_multitier._src.lookup import padding
from tf_multitier._src.options.key_types import to_int64

# From here up, a float type does not have every integer.
_EXACT_BELOW = {tf.float16: 2**11, tf.bfloat16: 2**8, tf.float32: 2**24, tf.float64: 2**53}


def integers(ids: typing.Any, layer: str) -> typing.Any:
    """Ids that are floats or booleans as int64, as keras.layers.Embedding takes them. keras.Input without a dtype makes them float32.

    Raises:
      TypeError: strings.
      InvalidArgumentError, when it runs: a float so large that it may be another id, rounded.
    """
    if isinstance(ids, tf.SparseTensor):
        return ids.with_values(integers(ids.values, layer))
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(integers(ids.flat_values, layer))
    ids = tf.convert_to_tensor(ids)
    if ids.dtype == tf.string:
        raise TypeError(
            f"layer '{layer}': ids: expected integers, found strings: give it the output of keras.layers.StringLookup or Hashing"
        )
    if ids.dtype == tf.bool:
        return tf.cast(ids, tf.int64)
    if ids.dtype not in _EXACT_BELOW:
        return ids
    limit = _EXACT_BELOW[ids.dtype]
    is_exact = tf.debugging.assert_less(
        tf.abs(tf.cast(ids, tf.float64)),
        tf.constant(limit, tf.float64),
        f"layer '{layer}': expected ids below {limit}, because {ids.dtype.name} does not have every integer above: give keras.Input "
        "dtype='int64'",
    )
    with tf.control_dependencies([] if is_exact is None else [is_exact]):
        return tf.cast(ids, tf.int64)


def check_rank(shape: typing.Any, where: str) -> None:
    """ValueError for ids of a combiner that are not [batch] or [batch, ids]."""
    rank = tf.TensorShape(shape).rank
    if rank not in (None, 1, 2):
        found = "a scalar" if rank == 0 else f"shape {tuple(shape)}"
        raise ValueError(
            f"layer '{where}': ids for a combiner: expected shape [batch] or [batch, ids], found {found}: reshape them, or look them up "
            "without a combiner and pool the embeddings"
        )


def pooled_ids(ids: typing.Any, where: str) -> typing.Any:
    """Ids of [batch, ids], or of [batch] for one id each, as a ragged or sparse tensor. where: name of the layer, or of layer and feature."""
    if isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
        return ids
    ids = tf.convert_to_tensor(ids)
    check_rank(ids.shape, where)
    return tf.RaggedTensor.from_tensor(ids[:, None] if ids.shape.rank == 1 else ids)


def pooled_weights(weights: typing.Any, ids: typing.Any, where: str) -> typing.Any:
    """The weights of ids as `pooled_ids` gives them, in the same type of tensor; None without weights.

    Args:
      weights: numbers in the shape, or in the type of tensor and the places, of the ids that the layer was given. None: all are 1.
      ids: what `pooled_ids` gave for these.
      where: name of the layer, or of layer and feature.

    Raises:
      TypeError: they are no numbers, or another type of tensor than the ids.
      ValueError: another static shape.
      InvalidArgumentError, when it runs: other places.
    """
    if weights is None:
        return None
    what = f"layer '{where}': weights"
    if isinstance(ids, tf.SparseTensor) or isinstance(weights, (tf.SparseTensor, tf.RaggedTensor)):
        if type(weights) is not type(ids):
            raise TypeError(
                f"{what}: expected a {type(ids).__name__} as the ids are, found {type(weights).__name__}"
            )
    else:
        weights = tf.convert_to_tensor(weights)
        rows = weights[:, None] if weights.shape.rank == 1 else weights
        if not rows.shape.is_compatible_with(ids.shape):
            raise ValueError(
                f"{what}: expected the shape of the ids, {tuple(ids.shape)}, found {tuple(rows.shape)}"
            )
        weights = tf.RaggedTensor.from_tensor(rows)
    if not (weights.dtype.is_floating or weights.dtype.is_integer):
        raise TypeError(f"{what}: expected numbers, found {weights.dtype.name}")
    places = lambda its: its.row_splits if isinstance(its, tf.RaggedTensor) else its.indices
    same = tf.debugging.assert_equal(
        places(weights), places(ids), f"{what}: expected one for each id, in its place"
    )
    with tf.control_dependencies([] if same is None else [same]):
        return tf.identity(weights)


def first(ids: typing.Any, count: int | None) -> typing.Any:
    """The first `count` ids of each row, or weights or mask of ids, in the same type of tensor. All if it is None, or for ids [batch]."""
    if ids is None or count is None:
        return ids
    if isinstance(ids, tf.SparseTensor):
        ids = tf.sparse.reorder(ids)
        rows = ids.indices[:, 0]
        place = tf.range(tf.size(rows)) - tf.searchsorted(
            rows, rows
        )  # in its row, of the ids alone
        return tf.sparse.retain(ids, place < count)
    return ids if len(ids.shape) == 1 else ids[:, :count]


def shape_of_first(shape: tuple, count: int | None) -> tuple:
    """The static shape of what `first` gives for ids of this shape."""
    if count is None or len(shape) < 2 or shape[1] is None:
        return shape
    return (shape[0], min(shape[1], count), *shape[2:])


def to_dense(ids: tf.SparseTensor, mask_value: int | None) -> tf.Tensor:
    """Sparse ids as dense ones. Places without an id get the padding id, or, as in Keras, id 0."""
    return tf.sparse.to_dense(ids, tf.constant(mask_value or 0, ids.dtype))


def mask(ids: typing.Any, mask_value: int, padding_key: int, layer: str) -> typing.Any:
    """Which of dense or sparse ids are not padding: bool, of their shape. None for ragged ids.

    Args:
      mask_value: the id that is padding.
      padding_key: the same, from padding.key_of.
      layer: for messages.
    """
    if isinstance(ids, keras.KerasTensor):
        return None if ids.ragged else PaddingMask(mask_value, padding_key, layer)(ids)
    if isinstance(ids, tf.RaggedTensor):
        return None
    ids = integers(ids, layer)
    if isinstance(ids, tf.SparseTensor):
        ids = to_dense(ids, mask_value)
    return padding.is_id(to_int64(ids), padding_key)


@keras.saving.register_keras_serializable(package="tf_multitier")
class PaddingMask(keras.Operation):
    """`mask` of a symbolic tensor, as an operation of a model. See there for the arguments."""

    def __init__(
        self, mask_value: int, padding_key: int, layer: str, name: str | None = None
    ) -> None:
        super().__init__(name=name)
        self._arguments = (mask_value, padding_key, layer)

    def call(self, ids: typing.Any) -> typing.Any:
        """`mask` of ids."""
        return mask(ids, *self._arguments)

    def compute_output_spec(self, ids: typing.Any) -> typing.Any:
        """A keras.KerasTensor of bool."""
        return keras.KerasTensor(ids.shape, dtype="bool")


def shape_of(ids: typing.Any) -> tuple:
    """The static shape of ids as a layer gets them: of a tensor of TensorFlow or Keras, an array, or a list."""
    return tuple(ids.shape) if hasattr(ids, "shape") else np.shape(ids)

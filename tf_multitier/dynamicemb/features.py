"""The inputs of collections: ids and weights of features, in any form, as flat tensors of keys."""

from __future__ import annotations

import collections.abc
import typing

import tensorflow as tf

from tf_multitier._src.options import key_types
from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier.dynamicemb.jagged import KeyedJaggedTensor


def of_input(
    where: str,
    features: typing.Any,
    weights: typing.Any,
    names: typing.Any,
    others: frozenset = frozenset(),
    weights_are_of_others: bool = False,
) -> tuple[dict, dict]:
    """({feature: its ids}, {feature: its weights}) of what a collection is called with.

    Args:
      where: starts messages.
      features: a KeyedJaggedTensor, or a dict.
      weights: a dict, or None. Those of a KeyedJaggedTensor are in it.
      names: the features that there are.
      others: features of other collections, which a KeyedJaggedTensor may have.
      weights_are_of_others: whether weights of a KeyedJaggedTensor are for other collections.

    Raises:
      TypeError: another type.
      ValueError: another feature; weights without ids.
    """
    if isinstance(features, KeyedJaggedTensor):
        if weights is not None:
            raise ValueError(
                f"{where}: weights: expected None with a KeyedJaggedTensor, which has its own, found {weights!r}"
            )
        weights = None if weights_are_of_others else features.weights_to_dict()
        features, weights = (
            {name: v for name, v in (its or {}).items() if name in names or name not in others}
            for its in (features.to_dict(), weights)
        )
    for what, given in (("features", features), ("weights", {} if weights is None else weights)):
        if not isinstance(given, collections.abc.Mapping):
            raise TypeError(
                f"{where}: {what}: expected a dict or a KeyedJaggedTensor, found {type(given).__name__}"
            )
        expected = list(names) if what == "features" else list(features)
        for name in given:
            if name not in expected:
                raise ValueError(
                    f"{where}: {what}: expected {expected}, found {name!r}{did_you_mean(name, expected)}"
                )
    return dict(features), dict(weights or {})


def keys_of(table: typing.Any, feature: str, ids: typing.Any) -> tf.Tensor:
    """Dense ids of a feature as a tensor of the table's key_dtype. TypeError: another type of integers, or none."""
    where = f"feature '{feature}'"
    if not table.is_static:
        try:
            ids = key_types.checked_keys(table.variable, ids)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: {error}") from None
    ids = key_types.as_tensor(f"{where}: ids", ids, "integers")
    if not ids.dtype.is_integer:
        raise TypeError(
            f"{where}: static table '{table.config.name}': ids: expected integers, found {ids.dtype.name}"
        )
    return tf.cast(ids, table.key_dtype)


def is_ragged(values: typing.Any) -> bool:
    """Whether values of a feature have rows of different lengths."""
    return isinstance(values, (tf.RaggedTensor, tf.SparseTensor))


def ragged(where: str, values: typing.Any) -> tf.RaggedTensor:
    """Ragged or sparse values as a ragged tensor. ValueError: a SparseTensor that is not [batch, any]."""
    if isinstance(values, tf.RaggedTensor):
        return values
    if values.shape.rank not in (None, 2):
        raise ValueError(f"{where}: expected a SparseTensor [batch, any], found {values.shape}")
    return tf.RaggedTensor.from_value_rowids(
        values.values, values.indices[:, 0], nrows=values.dense_shape[0]
    )


def bags(where: str, values: typing.Any) -> tf.RaggedTensor:
    """Values [batch, (any)] of any form; dense ones [batch] are one a bag. ValueError: another shape."""
    if is_ragged(values):
        values = ragged(where, values)
    else:
        values = key_types.as_tensor(where, values, "[batch] or [batch, any]")
        if values.shape.rank not in (1, 2):
            raise ValueError(
                f"{where}: expected shape [batch] or [batch, any], found {values.shape}"
            )
        values = tf.RaggedTensor.from_tensor(values[:, None] if values.shape.rank == 1 else values)
    if values.ragged_rank != 1 or values.flat_values.shape.rank != 1:
        raise ValueError(f"{where}: expected shape [batch, any], found {values.shape}")
    return values


def weights_of(where: str, weights: typing.Any, ids: tf.RaggedTensor, is_mean: bool) -> tf.Tensor:
    """The weights of the ids of bags, float32 [n]; of a mean, divided by the number of ids in the bag.

    Raises:
      TypeError: no floats.
      ValueError: another shape.
      tf.errors.InvalidArgumentError, when run: bags of other lengths.
    """
    weights = bags(where, weights)
    if not weights.dtype.is_floating:
        raise TypeError(f"{where}: expected floats, found {weights.dtype.name}")
    same = tf.debugging.assert_equal(
        weights.row_splits, ids.row_splits, f"{where}: expected one for each id"
    )
    with tf.control_dependencies([] if same is None else [same]):
        flat = tf.cast(weights.flat_values, tf.float32)
    if is_mean:
        flat /= tf.gather(tf.cast(ids.row_lengths(), tf.float32), ids.value_rowids())
    return flat


def concatenated(parts: list) -> tf.RaggedTensor:
    """Bags of several features as those of one batch."""
    if len(parts) == 1:
        return parts[0]
    return tf.RaggedTensor.from_row_lengths(
        tf.concat([part.flat_values for part in parts], 0),
        tf.concat([part.row_lengths() for part in parts], 0),
        validate=False,
    )

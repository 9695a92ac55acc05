"""KeyedJaggedTensor: the values of several features, one feature after the other, in one tensor."""

import typing

import numpy as np
import tensorflow as tf

from tf_multitier.dynamicemb.configs import listed


class KeyedJaggedTensor(tf.experimental.ExtensionType):
    """Several jagged features of one batch.

        KeyedJaggedTensor(["user", "movie"], values=[1, 2, 3, 4], lengths=[1, 0, 2, 1])    # a batch of 2: user [[1], []], movie [[2, 3], [4]]

    It can be an argument of a tf.function and an element of a tf.data.Dataset.

    Args:
      keys: the names of the features, f of them.
      values: ids [n]: those of the first feature, then those of the second.
      lengths: integers [f * batch]: the values of each example of the first feature, then those of the second.
      offsets: integers [f * batch + 1]: where the values of each example begin, and n. Either lengths or offsets.
      weights: float32 [n], a weight for each value; or None.

    Raises:
      TypeError: keys are no strings, values or lengths no integers.
      ValueError: a key twice; both or none of lengths and offsets; shapes that do not match.
      tf.errors.InvalidArgumentError, when run: lengths that are negative, or whose sum is not n; other shapes.
    """

    __name__ = "tf_multitier.dynamicemb.KeyedJaggedTensor"
    names: tuple[str, ...]
    flat_values: tf.Tensor
    row_lengths: tf.Tensor
    flat_weights: typing.Union[tf.Tensor, None]  # noqa: UP007  its one form

    def __init__(
        self,
        keys: typing.Any,
        values: typing.Any,
        *,
        lengths: typing.Any = None,
        offsets: typing.Any = None,
        weights: typing.Any = None,
    ) -> None:
        self.names = tuple(listed("KeyedJaggedTensor: keys", keys, str))
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"KeyedJaggedTensor: keys: expected each once, found {keys!r}")
        values = _vector("values", values)
        lengths, checks = _lengths(lengths, offsets)
        if not values.dtype.is_integer:
            raise TypeError(
                f"KeyedJaggedTensor: values: expected integers, found {values.dtype.name}"
            )
        checks += _checks_of(lengths, len(self.names), values)
        if weights is not None:
            weights = _weights(weights, values)
            checks.append(
                _check_equal(tf.size(weights), tf.size(values), "a weight for each value")
            )
        with tf.control_dependencies([check for check in checks if check is not None]):
            self.row_lengths = tf.identity(lengths)
        self.flat_values = values
        self.flat_weights = weights

    @staticmethod
    def from_lengths_sync(
        keys: typing.Any, values: typing.Any, lengths: typing.Any, weights: typing.Any = None
    ) -> "KeyedJaggedTensor":
        """A KeyedJaggedTensor of lengths. See the class."""
        return KeyedJaggedTensor(keys, values, lengths=lengths, weights=weights)

    @staticmethod
    def from_offsets_sync(
        keys: typing.Any, values: typing.Any, offsets: typing.Any, weights: typing.Any = None
    ) -> "KeyedJaggedTensor":
        """A KeyedJaggedTensor of offsets. See the class."""
        return KeyedJaggedTensor(keys, values, offsets=offsets, weights=weights)

    def keys(self) -> list[str]:
        """The names of the features."""
        return list(self.names)

    def values(self) -> tf.Tensor:
        """The ids [n] of all features."""
        return self.flat_values

    def lengths(self) -> tf.Tensor:
        """int64 [f * batch]: the values of each example of each feature."""
        return self.row_lengths

    def offsets(self) -> tf.Tensor:
        """int64 [f * batch + 1]: where the values of each example begin, and n."""
        return tf.concat([[tf.zeros([], tf.int64)], tf.cumsum(self.row_lengths)], 0)

    def weights_or_none(self) -> typing.Any:
        """float32 [n], or None."""
        return self.flat_weights

    def to_dict(self) -> dict[str, tf.RaggedTensor]:
        """{feature: its ids, ragged [batch, None]}."""
        return self._of_features(self.flat_values)

    def weights_to_dict(self) -> typing.Any:
        """{feature: its weights, ragged [batch, None]}, or None if there are none."""
        return None if self.flat_weights is None else self._of_features(self.flat_weights)

    def _of_features(self, flat):
        count = len(self.names)
        if not count:
            return {}
        lengths = tf.reshape(self.row_lengths, [count, tf.size(self.row_lengths) // count])
        parts = tf.split(flat, tf.reduce_sum(lengths, 1), num=count)
        return {
            name: tf.RaggedTensor.from_row_lengths(part, lengths[i], validate=False)
            for i, (name, part) in enumerate(zip(self.names, parts))
        }

    def __getitem__(self, key: str) -> tf.RaggedTensor:
        """The ids of one feature, ragged [batch, None]. KeyError: there is none of that name."""
        if key not in self.keys():
            raise KeyError(f"KeyedJaggedTensor: expected one of {self.keys()}, found {key!r}")
        return self.to_dict()[key]


def _lengths(lengths, offsets):
    """(lengths, the checks of offsets) of what is given of the two."""
    if (lengths is None) == (offsets is None):
        found = "none" if lengths is None else "both"
        raise ValueError(f"KeyedJaggedTensor: expected either lengths or offsets, found {found}")
    if offsets is None:
        return _integers("lengths", lengths), []
    offsets = _integers("offsets", offsets)
    if offsets.shape.num_elements() == 0:
        raise ValueError("KeyedJaggedTensor: offsets: expected 0 as the first, found none")
    first = tf.concat([offsets[:1], [-1]], 0)[0]  # without offsets -1
    check = _check_equal(first, np.int64(0), "the first of offsets to be 0")
    return offsets[1:] - offsets[:-1], [check]


def _checks_of(lengths, count, values):
    """The checks of lengths when the program runs. ValueError: a number of them that is known and no multiple of count, that of keys."""
    known = lengths.shape.num_elements()
    if known is not None and (known % count if count else known):
        raise ValueError(
            f"KeyedJaggedTensor: lengths: expected a multiple of {count}, the number of keys, found {known}"
        )
    return [
        _check_equal(
            tf.math.floormod(tf.size(lengths), max(count, 1)), 0, "as many lengths for each key"
        ),
        tf.debugging.assert_non_negative(lengths, message="KeyedJaggedTensor: lengths"),
        _check_equal(
            tf.reduce_sum(lengths),
            tf.size(values, tf.int64),
            "the sum of lengths to be the number of values",
        ),
    ]


def _weights(weights, values):
    """Weights as float32. TypeError, ValueError: no numbers, or another number of them than of values."""
    weights = _vector("weights", weights)
    if not (weights.dtype.is_floating or weights.dtype.is_integer):
        raise TypeError(f"KeyedJaggedTensor: weights: expected numbers, found {weights.dtype.name}")
    weights = tf.cast(weights, tf.float32)
    if not weights.shape.is_compatible_with(values.shape):
        raise ValueError(
            f"KeyedJaggedTensor: weights: expected {values.shape[0]}, one for each value, found {weights.shape[0]}"
        )
    return weights


def _vector(what, value):
    where = f"KeyedJaggedTensor: {what}"
    try:
        if isinstance(value, (list, tuple)) and not any(map(tf.is_tensor, value)):
            value = np.asarray(value, _type_of_list(value))
        value = tf.convert_to_tensor(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{where}: expected numbers [n], found {value!r}: {error}") from None
    if not value.shape.is_compatible_with([None]):
        raise ValueError(f"{where}: expected shape [n], found {value.shape}")
    return value


def _type_of_list(values):
    """int64 of a list of integers that it has, else uint64; None for others. NumPy makes integers of both types floats."""
    kinds = (int, np.integer)
    if not all(isinstance(value, kinds) and not isinstance(value, bool) for value in values):
        return None
    return np.uint64 if any(value >= 2**63 for value in values) else np.int64


def _integers(what, value):
    value = _vector(what, value)
    if not value.dtype.is_integer:
        raise TypeError(f"KeyedJaggedTensor: {what}: expected integers, found {value.dtype.name}")
    return tf.cast(value, tf.int64)


def _check_equal(found, expected, what):
    return tf.debugging.assert_equal(found, expected, f"KeyedJaggedTensor: expected {what}")

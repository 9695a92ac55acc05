"""Maps a TensorFlow initializer to the initial values of keys.

TensorFlow's uniform, normal, truncated normal, constant, zeros and ones initializers (the v1 classes, the v2 classes and Keras'
classes) become parameters of the table's own counter-based generator. The initial value of a key then depends only on the key, the
seed and the parameters. So do our own, TruncatedNormal and DebugInitializer. Any other initializer draws a matrix of N rows once; key k starts from row `k mod N`.
"""

import collections
import hashlib
import math
import numbers
import typing

import numpy as np
import tensorflow as tf

from tf_multitier._src.options.option_values import integer
from tf_multitier._src.options.option_values import Option
from tf_multitier._src.options.option_values import real
from tf_multitier._src.tensorflow.internals import TruncatedNormalV2

_v1 = tf.compat.v1

# TensorFlow's initializer classes: (of version 1, of version 2). Taken now: tf_multitier.deeprec gives some of these names new meanings.
_ZEROS = (_v1.zeros_initializer, tf.zeros_initializer)
_ONES = (_v1.ones_initializer, tf.ones_initializer)
_CONSTANTS = (_v1.constant_initializer, tf.constant_initializer)
_UNIFORMS = (_v1.random_uniform_initializer, tf.random_uniform_initializer)
_NORMALS = (_v1.random_normal_initializer, tf.random_normal_initializer)
_TRUNCATED = (_v1.truncated_normal_initializer, TruncatedNormalV2)

DEFAULT_MATRIX_ROWS = 4096

# kind: constant, uniform, normal, truncated_normal, normal_between, debug or matrix. a, b, lower, upper: parameters of the kind, as
# an initializer of a record of options has them. tables: of a list, for each entry [(first column, InitialValue)]. seed: the initializer's seed, or None. matrix: for kind "matrix", a function that returns a
# [rows, dim] tensor.
InitialValue = collections.namedtuple(
    "InitialValue",
    ["kind", "a", "b", "seed", "matrix", "rows", "lower", "upper", "tables"],
    defaults=[0.0, 0.0, ()],
)


class KeyInitializer(Option):
    """Base class of initializers that compute a value from a key alone, so that they cannot fill a tensor."""

    def __call__(self, shape, dtype=None, **kwargs):
        raise NotImplementedError(
            f"{type(self).__name__} computes the initial values of keys of an embedding variable. It cannot fill a tensor of shape "
            f"{shape}, as a static variable or default_value_dim needs it"
        )

    def get_config(self) -> dict:
        """The arguments of the constructor. Keras saves them with a layer."""
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: dict) -> typing.Any:
        """The initializer of a configuration."""
        return cls(**config)


class TruncatedNormal(KeyInitializer):
    """Initial values of a normal distribution between two cut-offs. Only for embedding variables.

    The values are computed from key and seed by the inverse of the distribution. Nothing is rejected: an interval far from the mean
    costs what any other does, and every machine gives the same bits.

    Args:
      mean: mean of the distribution before it is cut off.
      stddev: its standard deviation, > 0.
      lower: least value; None: no bound.
      upper: largest value, more than `lower`; None: no bound. If both are None, the cut-offs are two standard deviations away from
        the mean, as in `tf.compat.v1.truncated_normal_initializer`.
      seed: None: derived from the graph's seed and the variable's name.

    Raises:
      TypeError, ValueError: a bad value.
    """

    def __init__(
        self,
        mean: float = 0.0,
        stddev: float = 1.0,
        lower: float | None = None,
        upper: float | None = None,
        seed: int | None = None,
    ) -> None:
        self.mean = real("TruncatedNormal.mean", mean)
        self.stddev = real("TruncatedNormal.stddev", stddev)
        self.lower = None if lower is None else real("TruncatedNormal.lower", lower)
        self.upper = None if upper is None else real("TruncatedNormal.upper", upper)
        self.seed = None if seed is None else integer("TruncatedNormal.seed", seed, -(2**63))
        if self.stddev <= 0:
            raise ValueError(f"TruncatedNormal.stddev: expected more than 0, found {self.stddev}")
        if None not in (lower, upper) and not typing.cast(float, lower) < typing.cast(float, upper):
            raise ValueError(
                f"TruncatedNormal.lower: expected less than upper, found lower={lower} and upper={upper}"
            )


class DebugInitializer(KeyInitializer):
    """The initial value of every element is the key modulo 100,000: to see which key a row came from. Only for embedding variables."""


def _constant(value):
    return InitialValue("constant", float(value), 0.0, None, None, 0)


def _random(kind, a, b, seed):
    return InitialValue(kind, float(a), float(b), seed, None, 0)


def _plain_number(value):
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, (np.ndarray, np.generic)) and np.ndim(value) == 0:
        return float(value)
    return None


def _is_of_keras(kind):
    return kind.__module__.split(".")[0] in ("keras", "tf_keras") or ".keras." in kind.__module__


def _array_of_constant(initializer, dim):
    """The number or the matrix of an initializer that is a constant of several numbers; another initializer unchanged.

    TensorFlow fills a tensor with too few of them: in a graph of v1 all ids but the first would read the last number.
    """
    kind = type(initializer)
    if kind not in _CONSTANTS and not (_is_of_keras(kind) and kind.__name__ == "Constant"):
        return initializer
    value = np.asarray(initializer.value, np.float32)
    if value.size == 1:
        return float(value.item())
    return value.reshape(-1, dim) if value.ndim == 1 and value.size % dim == 0 else value


def _uniform(initializer, seed):
    high = 1.0 if initializer.maxval is None else initializer.maxval
    return _random("uniform", initializer.minval, high, seed)


def _truncated(initializer):
    mean, stddev = initializer.mean, initializer.stddev
    if initializer.lower is None and initializer.upper is None:
        return _random("truncated_normal", mean, stddev, initializer.seed)
    return _random("normal_between", mean, stddev, initializer.seed)._replace(
        lower=-math.inf if initializer.lower is None else initializer.lower,
        upper=math.inf if initializer.upper is None else initializer.upper,
    )


def _known(initializer):
    """The InitialValue of an initializer that the table can compute itself; None for other initializers."""
    kind = type(initializer)
    if kind is TruncatedNormal:
        return _truncated(initializer)
    if kind is DebugInitializer:
        return InitialValue("debug", 0.0, 0.0, None, None, 0)
    if kind in _ZEROS:
        return _constant(0.0)
    if kind in _ONES:
        return _constant(1.0)
    if kind in _UNIFORMS:
        return _uniform(initializer, initializer.seed)
    if kind in _NORMALS:
        return _random("normal", initializer.mean, initializer.stddev, initializer.seed)
    if kind in _TRUNCATED:
        return _random("truncated_normal", initializer.mean, initializer.stddev, initializer.seed)
    if _is_of_keras(kind):
        return _known_keras(initializer, kind.__name__)
    return None


def _known_keras(initializer, name):
    seed = getattr(initializer, "_init_seed", getattr(initializer, "seed", None))
    seed = seed if isinstance(seed, int) else None
    try:
        if name == "Zeros":
            return _constant(0.0)
        if name == "Ones":
            return _constant(1.0)
        if name == "RandomUniform":
            return _uniform(initializer, seed)
        if name == "RandomNormal":
            return _random("normal", initializer.mean, initializer.stddev, seed)
        if name == "TruncatedNormal":
            return _random("truncated_normal", initializer.mean, initializer.stddev, seed)
    except (AttributeError, TypeError):
        pass
    return None


def _matrix_of(initializer, name, rows, dim):
    def draw():
        try:
            try:
                matrix = initializer([rows, dim], dtype=tf.float32)
            except TypeError:
                matrix = initializer([rows, dim])
            matrix = tf.convert_to_tensor(matrix)
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(
                f"embedding variable '{name}': initializer: expected values float32 [{rows}, {dim}] of {initializer!r}, found "
                f"{type(error).__name__}: {error}"
            ) from error
        if matrix.dtype != tf.float32 or not matrix.shape.is_compatible_with([rows, dim]):
            raise ValueError(
                f"embedding variable '{name}': initializer: expected values float32 [{rows}, {dim}], found "
                f"{matrix.dtype.name} {matrix.shape}"
            )
        return matrix

    return InitialValue("matrix", 0.0, 0.0, None, draw, rows)


def initial_value(initializer, name, dim, default_value_dim=None):
    """Maps a TensorFlow initializer to an InitialValue.

    Args:
      initializer: an initializer object or class, a number, a float matrix [N, dim], None (truncated normal with mean 0 and standard
        deviation 1, as in DeepRec), or a list of tables.
      name: the variable's name, for error messages.
      dim: elements of an embedding.
      default_value_dim: number of rows of the matrix that is drawn, or None (see InitializerOption).

    Raises:
      TypeError: initializer is not an initializer.
      ValueError: parameters are out of range, or the matrix has another shape.
    """
    if initializer is None:
        initializer = _TRUNCATED[0]()
    if isinstance(initializer, type):
        initializer = initializer()
    initializer = _array_of_constant(initializer, dim)
    if isinstance(initializer, (list, tuple)) and not _is_matrix(initializer):
        return _of_tables(initializer, name, dim, default_value_dim)
    number = _plain_number(initializer)
    if number is not None:
        return _checked(_constant(number), name)
    if isinstance(initializer, (np.ndarray, list, tuple)):
        matrix = np.asarray(initializer, np.float32)
        if matrix.ndim != 2 or matrix.shape[1] != dim or not matrix.shape[0]:
            raise ValueError(
                f"embedding variable '{name}': initial matrix: expected shape [N, {dim}], found "
                f"{list(matrix.shape)}"
            )
        if default_value_dim not in (None, len(matrix)):
            raise ValueError(
                f"embedding variable '{name}': default_value_dim: expected {len(matrix)}, the rows of the initial matrix, found "
                f"{default_value_dim}"
            )
        return InitialValue("matrix", 0.0, 0.0, None, lambda: tf.constant(matrix), matrix.shape[0])
    if not callable(initializer):
        raise TypeError(
            f"embedding variable '{name}': initializer: expected a TensorFlow initializer, a number or a matrix "
            f"[N, {dim}], found {initializer!r}"
        )
    known = _known(initializer)
    if known is not None and (default_value_dim is None or known.kind == "constant"):
        return _checked(known, name)
    return _matrix_of(initializer, name, default_value_dim or DEFAULT_MATRIX_ROWS, dim)


def _is_matrix(rows):
    """Whether a list is a matrix: each entry is a list of numbers."""
    return bool(rows) and all(
        isinstance(row, np.ndarray)
        or (
            isinstance(row, (list, tuple))
            and all(_plain_number(value) is not None for value in row)
        )
        for row in rows
    )


def _of_tables(tables, name, dim, default_value_dim):
    """The InitialValue of a list with an initializer, or a list of pairs (first column, initializer), for each table."""
    where = f"embedding variable '{name}': initializer"
    if not tables:
        raise ValueError(f"{where}: expected an initializer for each table, found an empty list")
    if default_value_dim is not None:
        raise ValueError(
            f"{where}: expected default_value_dim=None with a list of initializers, found {default_value_dim}"
        )
    found = []
    for number, entry in enumerate(tables):
        its = f"{where}[{number}]"
        columns = entry if isinstance(entry, (list, tuple)) else [(0, entry)]
        for pair in columns:
            is_pair = isinstance(pair, (list, tuple)) and len(pair) == 2
            if not is_pair or not isinstance(pair[0], numbers.Integral):
                raise TypeError(
                    f"{its}: expected pairs (first column, initializer), found {pair!r}"
                )
        found.append([(int(first), _of_column(each, its, name, dim)) for first, each in columns])
        firsts = [first for first, _ in found[-1]]
        if firsts[:1] != [0] or sorted(set(firsts)) != firsts or firsts[-1] >= dim:
            raise ValueError(
                f"{its}: expected first columns from 0 on, ascending, below {dim}, found {firsts}"
            )
    return _constant(0.0)._replace(tables=found)


def _of_column(initializer, where, name, dim):
    if isinstance(initializer, (list, tuple, np.ndarray)) or initializer is None:
        raise TypeError(f"{where}: expected an initializer or a number, found {initializer!r}")
    value = initial_value(initializer, name, dim)
    if value.kind == "matrix":
        raise ValueError(
            f"{where}: expected a number or a uniform, normal, truncated normal, constant or debug initializer, found {initializer!r}"
        )
    return value


def absent_value(initializer, what, name):
    """The InitialValue of an initializer, as `initial_value` maps it, for keys that have no row.

    Raises:
      TypeError: initializer is not an initializer.
      ValueError: the table cannot compute it from a key, or parameters are out of range.
    """
    value = initial_value(initializer, name, 1)
    if value.kind == "matrix":
        raise ValueError(
            f"embedding variable '{name}': {what}: expected a number or a uniform, normal, truncated normal, constant or debug "
            f"initializer, found {initializer!r}"
        )
    return value


def initializer_record(value, seed):
    """The initializer of a record of options from an InitialValue. seed: of the variable, which holds if the value has none."""
    record = {
        "kind": value.kind,
        "a": value.a,
        "b": value.b,
        "seed": (seed if value.seed is None else int(value.seed)) % 2**64,
        "matrix_rows": value.rows if value.kind == "matrix" else 0,
    }
    bounds = {"lower": value.lower, "upper": value.upper} if value.kind == "normal_between" else {}
    return record | {name: bound for name, bound in bounds.items() if math.isfinite(bound)}


def tables_record(value, seed):
    """The option `initializers` of a record from an InitialValue. seed: of the variable."""
    return [
        {
            "columns": [
                {"first_column": first, "initializer": initializer_record(each, seed)}
                for first, each in columns
            ]
        }
        for columns in value.tables
    ]


def with_seeds_of_tables(value, change):
    """An InitialValue with other seeds of its tables. change: from a seed of 64 bits, another one. It is called once for each seed."""
    changed = {}

    def its(each):
        if each.seed is None:
            return each
        if each.seed not in changed:
            changed[each.seed] = change(int(each.seed) % 2**64)
        return each._replace(seed=changed[each.seed])

    tables = [[(first, its(each)) for first, each in columns] for columns in value.tables]
    return value._replace(tables=tables)


def _checked(value, name):
    if not (math.isfinite(value.a) and math.isfinite(value.b)):
        raise ValueError(
            f"embedding variable '{name}': initializer parameters: expected finite numbers, found {value.a} and {value.b}"
        )
    if value.kind == "uniform" and not value.a < value.b:
        raise ValueError(
            f"embedding variable '{name}': uniform initializer: expected minval < maxval, found minval={value.a} "
            f"and maxval={value.b}"
        )
    if value.kind in ("normal", "truncated_normal") and value.b < 0:
        raise ValueError(
            f"embedding variable '{name}': stddev of the initializer: expected at least 0, found {value.b}"
        )
    return value


def table_seed(op_seed, graph_seed, name):
    """The seed of a variable's table: 64 bits without a sign.

    This is `op_seed`, the seed of the initializer, if it has one. Otherwise it is a hash of the graph's seed (None: unset) and the
    variable's name without its partition suffix. The hash is the same in every process.
    """
    if op_seed is not None:
        return int(op_seed) % 2**64
    text = f"{'' if graph_seed is None else int(graph_seed)}/{name}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

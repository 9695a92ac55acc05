"""Options of an embedding variable. Names and meaning are those of DeepRec's `tf.EmbeddingVariableOption` and its parts.

Each object checks its values when it is made. A wrong value raises one ValueError or TypeError that names the field, what was
expected and what was found.

Differences from DeepRec: no default object is shared or changed in place, a list of sizes is not padded, and expiry works at any
time (`EmbeddingVariable.expire`), not only when a checkpoint is saved.
"""

from __future__ import annotations

import datetime
import numbers
import typing

import tensorflow as tf

from tf_multitier._src.options import option_record
from tf_multitier._src.options.initializers import absent_value
from tf_multitier._src.options.initializers import initializer_record
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier._src.options.option_values import instance
from tf_multitier._src.options.option_values import integer
from tf_multitier._src.options.option_values import Option
from tf_multitier._src.options.option_values import real
from tf_multitier._src.options.storage_option import storage_record
from tf_multitier._src.options.storage_option import StorageOption


__all__ = [
    "CBFFilter",
    "CounterFilter",
    "EmbeddingVariableOption",
    "GlobalStepEvict",
    "InitializerOption",
    "L2WeightEvict",
    "ProbabilisticFilter",
    "StorageOption",
]


def __dir__():
    return sorted(__all__)


class InitializerOption(Option):
    """How the initial value of a key is computed. Source: DeepRec's `tf.InitializerOption`.

    Args:
      initializer: a TensorFlow initializer (object or class). None: the variable's `initializer` argument.
      default_value_dim: N > 0: draw a matrix of N rows once; key k starts from row `k mod N`. None: TensorFlow's uniform, normal,
        truncated normal, constant, zeros and ones initializers compute the value from the key itself, so random values differ from
        key to key; any other initializer draws a matrix of 4,096 rows. Constant initializers ignore N.
      default_value_no_permission: what a key reads that a filter has not admitted yet: a number for every element, or an initializer
        that the table computes from the key: uniform, normal, truncated normal, constant or DebugInitializer. An initializer without
        a seed uses the variable's: with the variable's own initializer, the key reads what its row will begin with. DeepRec takes a
        number.
      eval_initializer: what a key without a row reads in lookups with training=False: a number, or an initializer as above. None: what
        it reads in training. Not in DeepRec.

    Raises:
      TypeError, ValueError: a bad value.
    """

    def __init__(
        self,
        initializer: typing.Any = None,
        default_value_dim: int | None = None,
        default_value_no_permission: typing.Any = 0.0,
        eval_initializer: typing.Any = None,
    ) -> None:
        self.initializer = initializer
        self.default_value_dim = (
            None
            if default_value_dim is None
            else integer("InitializerOption.default_value_dim", default_value_dim, 1)
        )
        where = "InitializerOption.default_value_no_permission"
        self.default_value_no_permission = (
            default_value_no_permission
            if callable(default_value_no_permission)
            else real(where, default_value_no_permission)
        )
        if eval_initializer is not None and not callable(eval_initializer):
            eval_initializer = real("InitializerOption.eval_initializer", eval_initializer)
        self.eval_initializer = eval_initializer


class _Filter(Option):
    """Base class: an option that is the filter of a record."""

    def _record(self):
        """The filter of a record: a dict."""
        raise NotImplementedError

    def _check(self):
        """Checks the fields and keeps them as the record has them."""
        shown = lambda message: f"{type(self).__name__}.{message.removeprefix('filter.')}"
        checked = option_record.check({"filter": self._record()}, shown)["filter"]
        vars(self).update(
            {
                name: checked[name]
                for name in vars(self)
                if vars(self)[name] is not None and name in checked
            }
        )


class CounterFilter(_Filter):
    """Admits a key after it was trained on `filter_freq` times. Source: DeepRec's `tf.CounterFilter`.

    Counts are exact without max_keys. A key that is not admitted yet costs 24 bytes and an index entry.

    Args:
      filter_freq: occurrences after which a key is admitted; 0 and 1 admit a key at its first training step.
      max_keys: bound of the keys that are counted in each partition; None: no bound. Above it the filter forgets keys until an eighth
        of the bound is free: the lowest counts first, and of equal counts those that were counted longest ago. A forgotten key starts
        again from 0. Not in DeepRec.

    Raises:
      TypeError, ValueError: a bad value.
    """

    def __init__(self, filter_freq: int = 0, max_keys: int | None = None) -> None:
        self.filter_freq = filter_freq
        self.max_keys = None if max_keys is None else integer("CounterFilter.max_keys", max_keys, 1)
        self._check()

    def _record(self):
        return {"kind": "counter", "filter_freq": self.filter_freq, "max_keys": self.max_keys}


class CBFFilter(_Filter):
    """Admits a key after it was trained on `filter_freq` times, counted in a counting Bloom filter. Source: DeepRec's `tf.CBFFilter`.

    Its memory is fixed. It may admit a key too early.

    Args:
      filter_freq: occurrences after which a key is admitted; 0 and 1 admit a key at its first training step.
      max_element_size: expected number of keys, > 0. Required.
      false_positive_probability: with that many keys, the probability that a key is admitted too early; more than 0, less than 1.
      counter_type: tf.uint8, tf.uint16, tf.uint32 or tf.uint64, or its name. None: tf.uint32. `filter_freq` must fit into it. A
        signed type means the unsigned type of the same size, because DeepRec's manual uses tf.int64.

    Raises:
      TypeError, ValueError: a bad value.
    """

    _BITS: typing.ClassVar = {
        f"{sign}int{bits}": bits for sign in ("u", "") for bits in (8, 16, 32, 64)
    }

    def __init__(
        self,
        filter_freq: int = 0,
        max_element_size: int = 0,
        false_positive_probability: float = 0.01,
        counter_type: typing.Any = None,
    ) -> None:
        name = "uint32" if counter_type is None else getattr(counter_type, "name", counter_type)
        if not isinstance(name, str) or name not in self._BITS:
            raise ValueError(
                "CBFFilter.counter_type: expected tf.uint8, tf.uint16, tf.uint32, tf.uint64 or the signed type of one of "
                f"these sizes; found {counter_type!r}{did_you_mean(name, self._BITS)}"
            )
        self.filter_freq = filter_freq
        self.max_element_size = max_element_size
        self.false_positive_probability = false_positive_probability
        self.counter_type = f"uint{self._BITS[name]}"
        self._check()

    @property
    def counter_bits(self) -> int:
        """Bits of a counter."""
        return self._BITS[self.counter_type]

    def _record(self):
        fields = {name: value for name, value in vars(self).items() if name != "counter_type"}
        return {"kind": "bloom", "counter_bits": self.counter_bits, **fields}


class ProbabilisticFilter(_Filter):
    """Admits a key with probability `probability`, in (0, 1], at each of its occurrences. It needs no memory. Not in DeepRec."""

    def __init__(self, probability: float = 1.0) -> None:
        self.probability = probability
        self._check()

    def _record(self):
        return {"kind": "probabilistic", **vars(self)}


def _lifetime(value):
    """A number of steps, or the microseconds of a timedelta."""
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(microseconds=1)
    return value


class GlobalStepEvict(Option):
    """Makes `expire(step)` remove keys whose last update was more than `steps_to_live` steps before `step`.

    In v1 graphs, steps are those of the global step, which must exist when the optimizer is built. In TensorFlow 2 they are the
    optimizer's `iterations`. Source: DeepRec's `tf.GlobalStepEvict`.

    Args:
      steps_to_live: an integer, at least 1; with `EmbeddingVariableOption(score="time")`, a `datetime.timedelta`. None: removes nothing.

    Raises:
      TypeError, ValueError: a bad value.
    """

    def __init__(self, steps_to_live: int | datetime.timedelta | None = None) -> None:
        if steps_to_live is not None:
            lifetime = _lifetime(steps_to_live)
            integer("GlobalStepEvict.steps_to_live", lifetime, 1)
        self.steps_to_live = steps_to_live

    @property
    def lifetime(self) -> int:
        """Steps, or microseconds; 0: removes nothing."""
        return 0 if self.steps_to_live is None else int(_lifetime(self.steps_to_live))


class L2WeightEvict(Option):
    """Makes `expire(step)` remove keys with `0.5 * sum(w^2) < l2_weight_threshold`, where w are the elements of the value.

    -1 (the default): removes nothing. Source: DeepRec's `tf.L2WeightEvict`.

    Raises:
      TypeError, ValueError: the threshold is not a number, or less than 0 and not -1.
    """

    def __init__(self, l2_weight_threshold: float = -1.0) -> None:
        given = {"l2_weight_threshold": l2_weight_threshold}
        checked = option_record.check(given, "L2WeightEvict.{}".format)
        self.l2_weight_threshold = checked["l2_weight_threshold"]


class EmbeddingVariableOption(Option):
    """All options of an embedding variable. Source: DeepRec's `tf.EmbeddingVariableOption`.

    Args:
      evict_option: which rows `expire` removes: GlobalStepEvict, L2WeightEvict, a list with one of each, or None.
      filter_option: which keys get a row: CounterFilter, CBFFilter, ProbabilisticFilter, or None for all keys that are trained.
      storage_option: a StorageOption. None: the environment variables TF_MULTITIER_STORAGE_TYPE, _PATH and _SIZE when the variable
        is made; if they are not set, DRAM without a bound.
      init_option: an InitializerOption or None.
      score: what an update sets as the version of its rows (`get_version`). `CacheStrategy.SCORE` moves the rows of the lowest version
        out first. "step": the global step. "time": microseconds of the wall clock, which never decrease in a table. "custom": the
        number of the last `set_score`; an update before the first one is an error. "frequency": the global step, but
        `CacheStrategy.SCORE` goes by the frequency. Not in DeepRec.
      value_dtype: of the values in every tier: tf.float32, tf.bfloat16 or tf.float16. Slots are float32. None: the `value_dtype` of
        `get_embedding_variable`. Not in DeepRec.
      stochastic_rounding: True: updates round values of 16 bits up or down at random, more often to the nearer neighbour, so that
        small updates add up. The random numbers come from the key, the table's count of updates and the position of the element, so
        two runs give the same bits. False: to the nearest, ties to even. Not in DeepRec.

    Raises:
      TypeError, ValueError: a bad value.
    """

    def __init__(
        self,
        *,
        evict_option: typing.Any = None,
        filter_option: typing.Any = None,
        storage_option: StorageOption | None = None,
        init_option: InitializerOption | None = None,
        score: str = "step",
        value_dtype: typing.Any = None,
        stochastic_rounding: bool = False,
    ) -> None:
        self.evict_option = evict_option
        self.filter_option = filter_option
        self.storage_option = storage_option
        self.init_option = init_option
        self.score = score
        self.value_dtype = value_dtype
        self.stochastic_rounding = stochastic_rounding

    def __setattr__(self, name: str, value: typing.Any) -> None:
        """Sets an option, as the constructor does. AttributeError if there is none of that name, so that none is ignored."""
        if name not in _CHECKS:
            raise AttributeError(
                f"EmbeddingVariableOption: expected one of {', '.join(_CHECKS)}, found {name!r}{did_you_mean(name, _CHECKS)}"
            )
        super().__setattr__(name, _CHECKS[name](f"EmbeddingVariableOption.{name}", value))


def _evict_options(name, value):
    evict = tuple(
        instance(name, e, (GlobalStepEvict, L2WeightEvict))
        for e in (value if isinstance(value, (list, tuple)) else [value])
        if e is not None
    )
    if len({type(e) for e in evict}) != len(evict):
        raise ValueError(
            f"{name}: expected at most one GlobalStepEvict and one L2WeightEvict, found {list(evict)}"
        )
    return evict


def _checked(name, value):
    """A value of the option of the record whose name is the last word of `name`."""
    owner, _, option = name.rpartition(".")
    return option_record.check({option: value}, f"{owner}.{{}}".format)[option]


# Types of values. Their names are those of the engine.
VALUE_TYPES = (tf.float32, tf.bfloat16, tf.float16)


def value_type(name, value):
    """A type of values as a tf.DType. TypeError if it is none."""
    names = ", ".join(dtype.name for dtype in VALUE_TYPES)
    if isinstance(value, numbers.Number):
        raise TypeError(f"{name}: expected {names}; found {value!r}")
    try:
        found = tf.as_dtype(value)
    except TypeError:
        hint = did_you_mean(value, [dtype.name for dtype in VALUE_TYPES])
        raise TypeError(f"{name}: expected {names}; found {value!r}{hint}") from None
    if found not in VALUE_TYPES:
        raise TypeError(f"{name}: expected {names}; found {found.name}")
    return found


def _value_dtype(name, value):
    return None if value is None else value_type(name, value).name


def _one_of(*types, default=lambda: None):
    return lambda name, value: default() if value is None else instance(name, value, types)


# {option of a variable: function of its full name and a value, which gives the value to keep}.
_CHECKS = {
    "evict_option": _evict_options,
    "filter_option": _one_of(CounterFilter, CBFFilter, ProbabilisticFilter),
    "storage_option": _one_of(StorageOption),
    "init_option": _one_of(InitializerOption, default=InitializerOption),
    "score": _checked,
    "value_dtype": _value_dtype,
    "stochastic_rounding": boolean,
}


def _check_lifetime(name, evict, score):
    """ValueError if the rows' versions are not what the lifetime of a GlobalStepEvict counts."""
    is_time = isinstance(evict.steps_to_live, datetime.timedelta)
    if evict.lifetime == 0 or score == "custom" or is_time == (score == "time"):
        return
    variable = f"embedding variable '{name}'"
    expected = "a datetime.timedelta" if score == "time" else "a number of steps"
    found = "a datetime.timedelta" if is_time else f"{evict.steps_to_live} steps"
    raise ValueError(
        f"{variable}: GlobalStepEvict.steps_to_live: expected {expected} with score '{score}', found {found}"
    )


def _absent(name, init, seed):
    """The options of a record that say what keys without a row read."""
    values = {}
    for option, given in (
        ("default_value_no_permission", init.default_value_no_permission),
        ("eval_initializer", init.eval_initializer),
    ):
        if callable(given):
            given = initializer_record(absent_value(given, option, name), seed)
        values[option] = given
    return values


def record_of(name, option, storage, seed=0):
    """The options of a record for filter, expiry, storage, and what keys without a row read.

    Args:
      name: the variable's name, for error messages.
      option: an EmbeddingVariableOption.
      storage: the StorageOption to use.
      seed: the variable's.

    Raises:
      NotImplementedError: this build has no tiers for the storage type.
    """
    values = {
        **_absent(name, option.init_option, seed),
        **storage_record(name, storage),
        "filter": None if option.filter_option is None else option.filter_option._record(),
        "score": option.score,
        "stochastic_rounding": option.stochastic_rounding,
        "steps_to_live": 0,
        "l2_weight_threshold": -1.0,
    }
    for evict in option.evict_option:
        if isinstance(evict, GlobalStepEvict):
            _check_lifetime(name, evict, option.score)
            values["steps_to_live"] = evict.lifetime
        else:
            values["l2_weight_threshold"] = evict.l2_weight_threshold
    return values

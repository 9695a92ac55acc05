"""Options of an embedding variable, named and meaning as in DeepRec's `tf.EmbeddingVariableOption` and its parts.

Every object is checked when it is made and never changed afterwards; a wrong value raises one ValueError or TypeError that
names the field, what was expected and what was found. Unlike DeepRec's, no default is shared or changed in place, a size
list is not padded, and the expiry options work at any time (`EmbeddingVariable.expire`), not only when saving.
"""

from __future__ import annotations

import collections.abc
import math
import numbers
import os
import typing

from tf_multitier.config_pb2 import CacheStrategy, StorageType

ENV_STORAGE_TYPE = "TF_MULTITIER_STORAGE_TYPE"
ENV_STORAGE_PATH = "TF_MULTITIER_STORAGE_PATH"
ENV_STORAGE_SIZE = "TF_MULTITIER_STORAGE_SIZE"

# Storage types this build has tiers for. The others are refused by name when a variable is made.
AVAILABLE_STORAGE_TYPES = tuple(t for t in StorageType if "HBM" not in t.tiers)

# Attributes of the handle op that StorageOption sets.
STORAGE_ATTRS = ("storage_type", "storage_path", "storage_sizes", "cache_strategy", "drop_coldest", "on_corruption")

# DeepRec's layouts of a row in memory.
_LAYOUTS = ("normal", "light", "compact", "normal_contiguous")

_ON_CORRUPTION = ("error", "reinit", "drop")

MAX_SIZE = 2**60  # bytes of a tier

_TIERS_WITH_FILES = ("PMEM", "LEVELDB", "SSDHASH")


def _integer(where, value, minimum, maximum=2**63 - 1):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{where} must be an integer, found {value!r}")
    if not minimum <= value <= maximum:
        raise ValueError(f"{where} must be at least {minimum}, found {value}"
                         if value < minimum else f"{where} must be at most {maximum}, found {value}")
    return int(value)


def _real(where, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise TypeError(f"{where} must be a finite number, found {value!r}")
    return float(value)


def _instance(where, value, classes):
    classes = classes if isinstance(classes, tuple) else (classes,)
    if not isinstance(value, classes):
        names = " or ".join(c.__name__ for c in classes)
        raise TypeError(f"{where} must be {names} or None, found {value!r}")
    return value


class _Option:
    """Shows its fields and compares by them."""

    def __repr__(self):
        fields = ", ".join(f"{k}={v!r}" for k, v in sorted(vars(self).items()))
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class InitializerOption(_Option):
    """Where a key's initial value comes from. Source: DeepRec's `tf.InitializerOption`.

    Args:
      initializer: a TensorFlow initializer (object or class), or None for the variable's `initializer` argument.
      default_value_dim: None: TensorFlow's uniform, normal, truncated normal, constant, zeros and ones initializers are
        computed from the key itself, so that no two keys are alike; any other initializer draws a matrix of 4,096 rows. An
        integer N > 0: whatever the initializer, a matrix of N rows is drawn once and key k starts from row `k mod N`. A
        constant initializer needs no matrix and ignores N.
      default_value_no_permission: what every element of a key that a filter has not admitted yet reads as.
    """

    def __init__(self, initializer: typing.Any = None, default_value_dim: int | None = None, default_value_no_permission: float = 0.0) -> None:
        self.initializer = initializer
        self.default_value_dim = (None if default_value_dim is None else
                                  _integer("InitializerOption.default_value_dim", default_value_dim, 1))
        self.default_value_no_permission = _real("InitializerOption.default_value_no_permission",
                                                 default_value_no_permission)


class StorageOption(_Option):
    """Tiers of the variable. Source: DeepRec's `tf.StorageOption`.

    Args:
      storage_type: a `StorageType` (its number and its name do as well). None: DRAM. Types with HBM are known by name and
        refused when a variable is made: this build has no GPU tier.
      storage_path: directory of the tiers that keep files; needed by every type with PMEM, LEVELDB or SSDHASH. On the
        machine that holds the variable; made there if its parent exists. Any number of variables, partitions, sessions and
        processes may name the same one.
      storage_size: bytes of row data in each tier, fastest first: an integer or a list of them, all > 0, no longer than
        there are tiers. A tier whose size is not given: the last one is unbounded, another one has 1 GiB. A partition of a
        partitioned variable has this size each. What a row takes: `tf_multitier.memory`.
      cache_strategy: a `CacheStrategy`; None: scan-resistant replacement by recency and frequency.
      layout: not used, since rows have one layout; None or one of DeepRec's names: "normal", "light", "compact", "normal_contiguous".
      drop_coldest: what happens where the last tier has a given size and is full. False: training fails with
        ResourceExhausted and changes nothing. True: the coldest rows are dropped for good, and `pop_dropped()` tells which.
        Not in DeepRec.
      on_corruption: what becomes of a row whose record in a tier of files is damaged. "error": what needs the row, saving
        included, fails with DataLoss that names key, file and offset, until `remove` removes the key. "reinit": its key
        starts anew, with an initial value. "drop": its key is forgotten, and `pop_dropped()` tells which. Either way it
        counts in `corrupt` of the statistics. Not in DeepRec.
    """

    def __init__(self, storage_type: str | StorageType | None = None, storage_path: str | None = None, storage_size: collections.abc.Sequence[int] | None = None, cache_strategy: str | CacheStrategy | None = None, layout: typing.Any = None, *,
                 drop_coldest: bool = False, on_corruption: str = "error") -> None:
        self.storage_type = _storage_type("StorageOption.storage_type", storage_type)
        tiers = self.storage_type.tiers
        if storage_path is not None and (not isinstance(storage_path, (str, os.PathLike)) or not os.fspath(storage_path)):
            raise TypeError(f"StorageOption.storage_path must be the path of a directory or None, found {storage_path!r}")
        self.storage_path = None if storage_path is None else os.fspath(storage_path)
        if "\0" in (self.storage_path or ""):
            raise ValueError(f"StorageOption.storage_path must have no null character, found {storage_path!r}")
        with_files = [t for t in tiers if t in _TIERS_WITH_FILES]
        if with_files and self.storage_path is None:
            raise ValueError(f"StorageOption.storage_path must be given for storage type {self.storage_type.name}: its "
                             f"{' and '.join(with_files)} tier keeps files; found None")
        self.storage_size = _sizes("StorageOption.storage_size", storage_size, self.storage_type)
        self.cache_strategy = _cache_strategy("StorageOption.cache_strategy", cache_strategy)
        if layout not in (None, *_LAYOUTS):
            raise ValueError(f"StorageOption.layout must be None or one of {', '.join(_LAYOUTS)}, found {layout!r}")
        if not isinstance(drop_coldest, bool):
            raise TypeError(f"StorageOption.drop_coldest must be True or False, found {drop_coldest!r}")
        if drop_coldest and len(self.storage_size) < len(tiers):
            raise ValueError(f"StorageOption.drop_coldest needs a size of the last tier: storage_size must have {len(tiers)} "
                             f"sizes for {self.storage_type.name}, found {list(self.storage_size)}")
        self.drop_coldest = drop_coldest
        if on_corruption not in _ON_CORRUPTION:
            raise ValueError("StorageOption.on_corruption must be 'error', 'reinit' or 'drop', found " + repr(on_corruption))
        self.on_corruption = on_corruption


def _storage_type(where, value):
    known = f"one of {', '.join(StorageType.__members__)}"
    if value is None:
        return StorageType.DEFAULT
    if isinstance(value, str):
        if value not in StorageType.__members__:
            raise ValueError(f"{where} must be {known}; found {value!r}")
        return StorageType[value]
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{where} must be {known}; found {value!r}")
    try:
        return StorageType(value)
    except ValueError:
        raise ValueError(f"{where} must be {known}; found {value!r}") from None


def _cache_strategy(where, value):
    known = "CacheStrategy.LRU, CacheStrategy.LFU or None"
    if value is None:
        return None
    if isinstance(value, str) and value in CacheStrategy.__members__:
        return CacheStrategy[value]
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and value in CacheStrategy.values():
        return CacheStrategy(value)
    raise ValueError(f"{where} must be {known}; found {value!r}")


def _sizes(where, value, storage_type):
    if value is None:
        return ()
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    sizes = tuple(_integer(f"{where}[{i}]", v, 1, MAX_SIZE) for i, v in enumerate(values))
    if len(sizes) > len(storage_type.tiers):
        raise ValueError(f"{where} must have at most {len(storage_type.tiers)} sizes, one for each tier of "
                         f"{storage_type.name}; found {len(sizes)}")
    return sizes


def storage_option_from_environment(environ=None):
    """The StorageOption that TF_MULTITIER_STORAGE_TYPE, _PATH and _SIZE describe: what a variable made without one gets.

    Args:
      environ: mapping to read; None: `os.environ`. _TYPE is a name of `StorageType`, _PATH a directory, _SIZE a
        comma-separated list of bytes.

    Returns:
      A StorageOption; the default one where none of the three is set.

    Raises:
      ValueError: naming the variable, what was expected and what was found.
    """
    environ = os.environ if environ is None else environ
    storage_type, path, size = (environ.get(k) for k in (ENV_STORAGE_TYPE, ENV_STORAGE_PATH, ENV_STORAGE_SIZE))
    kind = _storage_type(f"environment variable {ENV_STORAGE_TYPE}", storage_type)
    sizes = None
    if size is not None:
        try:
            sizes = [int(s) for s in size.split(",")]
            sizes = list(_sizes(f"environment variable {ENV_STORAGE_SIZE}", sizes, kind))
        except ValueError as error:
            if "environment variable" in str(error):
                raise
            raise ValueError(f"environment variable {ENV_STORAGE_SIZE} must be a comma-separated list of bytes, "
                             f"found {size!r}") from None
    if path is not None and not path:
        raise ValueError(f"environment variable {ENV_STORAGE_PATH} must be the path of a directory, found ''")
    if path is None and any(t in _TIERS_WITH_FILES for t in kind.tiers):
        raise ValueError(f"environment variable {ENV_STORAGE_PATH} must be given with {ENV_STORAGE_TYPE}={kind.name}, "
                         "found it unset")
    return StorageOption(storage_type=kind, storage_path=path, storage_size=sizes)


class CounterFilter(_Option):
    """Gives a key a row once it was trained on `filter_freq` times. Source: DeepRec's `tf.CounterFilter`.

    Exact: a key that waits costs 24 bytes. 0 and 1 admit at once.
    """

    def __init__(self, filter_freq: int = 0) -> None:
        self.filter_freq = _integer("CounterFilter.filter_freq", filter_freq, 0, 2**32 - 1)


class CBFFilter(_Option):
    """The same with a counting Bloom filter: memory is bounded, a key may be admitted early. Source: DeepRec's `tf.CBFFilter`.

    Args:
      filter_freq: occurrences that admit; 0 and 1 admit at once.
      max_element_size: number of keys expected, > 0.
      false_positive_probability: probability, in (0, 1), that a key is admitted early.
      counter_type: tf.uint8, tf.uint16, tf.uint32 or tf.uint64 (names do as well). None: tf.uint32. `filter_freq` must fit. A signed
        type is taken as the unsigned one of its size: DeepRec's manual writes tf.int64.
    """

    _BITS: typing.ClassVar = {f"{sign}int{bits}": bits for sign in ("u", "") for bits in (8, 16, 32, 64)}

    def __init__(self, filter_freq: int = 0, max_element_size: int = 0, false_positive_probability: float = 0.01, counter_type: typing.Any = None) -> None:
        name = "uint32" if counter_type is None else getattr(counter_type, "name", counter_type)
        if name not in self._BITS:
            raise ValueError("CBFFilter.counter_type must be tf.uint8, tf.uint16, tf.uint32, tf.uint64 or the signed type of one of "
                             f"these sizes; found {counter_type!r}")
        self.counter_bits = self._BITS[name]
        self.filter_freq = _integer("CBFFilter.filter_freq", filter_freq, 0, min(2**self.counter_bits, 2**32) - 1)
        self.max_element_size = _integer("CBFFilter.max_element_size", max_element_size, 1)
        self.false_positive_probability = _real("CBFFilter.false_positive_probability", false_positive_probability)
        if not 0.0 < self.false_positive_probability < 1.0:
            raise ValueError("CBFFilter.false_positive_probability must be in (0, 1), found "
                             f"{self.false_positive_probability}")


class ProbabilisticFilter(_Option):
    """Each occurrence of a key without a row gives it one with probability `probability`, in (0, 1]. Keeps nothing."""

    def __init__(self, probability: float = 1.0) -> None:
        self.probability = _real("ProbabilisticFilter.probability", probability)
        if not 0.0 < self.probability <= 1.0:
            raise ValueError(f"ProbabilisticFilter.probability must be in (0, 1], found {self.probability}")


class GlobalStepEvict(_Option):
    """`expire(step)` removes keys last updated more than `steps_to_live` steps before. Source: DeepRec's `tf.GlobalStepEvict`.

    Steps are those of the graph's global step, which must exist when the optimizer is built. None: removes nothing.
    """

    def __init__(self, steps_to_live: int | None = None) -> None:
        self.steps_to_live = (0 if steps_to_live is None else
                              _integer("GlobalStepEvict.steps_to_live", steps_to_live, 1))


class L2WeightEvict(_Option):
    """`expire(step)` removes keys with `0.5 * ||w||^2 < l2_weight_threshold`. Source: DeepRec's `tf.L2WeightEvict`.

    -1 (the default): removes nothing.
    """

    def __init__(self, l2_weight_threshold: float = -1.0) -> None:
        self.l2_weight_threshold = _real("L2WeightEvict.l2_weight_threshold", l2_weight_threshold)
        if self.l2_weight_threshold < 0.0 and self.l2_weight_threshold != -1.0:
            raise ValueError("L2WeightEvict.l2_weight_threshold must be at least 0, or -1 for none; found "
                             f"{self.l2_weight_threshold}")


class CheckpointOption(_Option):
    """DeepRec's per-variable load source. Known by name; refused, in one message, where a variable is made with it."""

    def __init__(self, ckpt_to_load_from: typing.Any = None, tensor_name_in_ckpt: typing.Any = None, always_load_from_specific_ckpt: bool = False,
                 init_data_source: typing.Any = None) -> None:
        self.ckpt_to_load_from = ckpt_to_load_from
        self.tensor_name_in_ckpt = tensor_name_in_ckpt
        self.always_load_from_specific_ckpt = always_load_from_specific_ckpt
        self.init_data_source = init_data_source


class EmbeddingVariableOption(_Option):
    """All options of an embedding variable. Source: DeepRec's `tf.EmbeddingVariableOption`.

    Args:
      ht_type, ht_partition_num: accepted and not used: there is one index, sharded by itself.
      evict_option: GlobalStepEvict, L2WeightEvict, a list with one of each, or None.
      ckpt: must be None (a `tf.compat.v1.train.Saver` restores).
      filter_option: CounterFilter, CBFFilter, ProbabilisticFilter or None.
      storage_option: StorageOption; None: what TF_MULTITIER_STORAGE_TYPE, _PATH and _SIZE say when the variable is made.
      init_option: InitializerOption or None.
    """

    def __init__(self, ht_type: str = "", ht_partition_num: int = 1000, evict_option: typing.Any = None, ckpt: typing.Any = None, filter_option: typing.Any = None,
                 storage_option: StorageOption | None = None, init_option: InitializerOption | None = None) -> None:
        self.ht_type = ht_type
        self.ht_partition_num = ht_partition_num
        name = "EmbeddingVariableOption"
        evict = evict_option if isinstance(evict_option, (list, tuple)) else [evict_option]
        evict = tuple(_instance(f"{name}.evict_option", e, (GlobalStepEvict, L2WeightEvict)) for e in evict if e is not None)
        if len({type(e) for e in evict}) != len(evict):
            raise ValueError(f"{name}.evict_option must have at most one GlobalStepEvict and one L2WeightEvict, "
                             f"found {list(evict)}")
        self.evict_option = evict
        if ckpt is not None:
            raise ValueError(f"{name}.ckpt must be None: restore the variable with tf.compat.v1.train.Saver; found {ckpt!r}")
        self.ckpt = None
        self.filter_option = None if filter_option is None else _instance(
            f"{name}.filter_option", filter_option, (CounterFilter, CBFFilter, ProbabilisticFilter))
        self.storage_option = None if storage_option is None else _instance(
            f"{name}.storage_option", storage_option, StorageOption)
        self.init_option = InitializerOption() if init_option is None else _instance(
            f"{name}.init_option", init_option, InitializerOption)


# What the handle op and the engine call a storage type, where that is not its name.
_SAME_TIERS = {StorageType.DEFAULT: StorageType.DRAM, StorageType.PMEM_MEMKIND: StorageType.PMEM,
               StorageType.PMEM_LIBPMEM: StorageType.PMEM}


def check_storage_available(name, storage):
    """The storage type that is in force, one for each list of tiers.

    Raises:
      NotImplementedError: for one that this build has no tiers for, naming it, why, and those there are.
    """
    kind = _SAME_TIERS.get(storage.storage_type, storage.storage_type)
    if kind not in AVAILABLE_STORAGE_TYPES:
        available = ", ".join(t.name for t in AVAILABLE_STORAGE_TYPES if t not in _SAME_TIERS)
        raise NotImplementedError(f"embedding variable '{name}': storage type {kind.name} needs the memory of a GPU, and this "
                                  f"build has no GPU tier; available: {available}")
    return kind


def option_attrs(name, option, storage):
    """Attributes of the handle and initialize ops that say filter, expiry and storage.

    Args:
      name: of the variable, for messages.
      option: EmbeddingVariableOption.
      storage: StorageOption in force.

    Raises:
      NotImplementedError: for a storage type that this build has no tiers for.
    """
    attrs = dict(default_value_no_permission=option.init_option.default_value_no_permission)
    filt = option.filter_option
    if isinstance(filt, CounterFilter):
        attrs.update(filter="counter", filter_freq=filt.filter_freq)
    elif isinstance(filt, CBFFilter):
        attrs.update(filter="bloom", filter_freq=filt.filter_freq, filter_max_elements=filt.max_element_size,
                     filter_false_positive=filt.false_positive_probability, filter_counter_bits=filt.counter_bits)
    elif isinstance(filt, ProbabilisticFilter):
        attrs.update(filter="probabilistic", filter_probability=filt.probability)
    else:
        attrs.update(filter="none")
    for evict in option.evict_option:
        if isinstance(evict, GlobalStepEvict):
            attrs["steps_to_live"] = evict.steps_to_live
        else:
            attrs["l2_weight_threshold"] = evict.l2_weight_threshold
    attrs["storage_type"] = check_storage_available(name, storage).name
    attrs["storage_path"] = storage.storage_path or ""
    attrs["storage_sizes"] = list(storage.storage_size)
    attrs["cache_strategy"] = "DEFAULT" if storage.cache_strategy is None else storage.cache_strategy.name
    attrs["drop_coldest"] = storage.drop_coldest
    attrs["on_corruption"] = storage.on_corruption
    return attrs

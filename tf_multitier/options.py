"""Options of an embedding variable. Names and meaning are those of DeepRec's `tf.EmbeddingVariableOption` and its parts.

Each object checks its values when it is made and does not change afterwards. A wrong value raises one ValueError or TypeError that
names the field, what was expected and what was found.

Differences from DeepRec: no default object is shared or changed in place, a list of sizes is not padded, and expiry works at any
time (`EmbeddingVariable.expire`), not only when a checkpoint is saved.
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
ENV_STORAGE_KEEP = "TF_MULTITIER_STORAGE_KEEP"
ENV_DEVICE = "TF_MULTITIER_DEVICE"  # "emulated": types with HBM work without a GPU, for tests

# Storage types for which this build has tiers on every machine. Other types are refused by name when a variable is made.
AVAILABLE_STORAGE_TYPES = tuple(t for t in StorageType if "HBM" not in t.tiers)

# Attributes of the handle op that StorageOption sets.
STORAGE_ATTRS = (
    "storage_type",
    "storage_path",
    "storage_sizes",
    "cache_strategy",
    "drop_coldest",
    "on_corruption",
    "keep",
)

_ON_CORRUPTION = ("error", "reinit", "drop")

MAX_SIZE = 2**60  # bytes of a tier

_TIERS_WITH_FILES = ("PMEM", "LEVELDB", "SSDHASH")
_TIERS_THAT_KEEP = ("LEVELDB", "SSDHASH")


def _integer(where, value, minimum, maximum=2**63 - 1):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{where} must be an integer, found {value!r}")
    if not minimum <= value <= maximum:
        raise ValueError(
            f"{where} must be at least {minimum}, found {value}"
            if value < minimum
            else f"{where} must be at most {maximum}, found {value}"
        )
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
    """Base class: prints the fields, and compares objects by their fields."""

    def __repr__(self):
        fields = ", ".join(f"{k}={v!r}" for k, v in sorted(vars(self).items()))
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class InitializerOption(_Option):
    """How the initial value of a key is computed. Source: DeepRec's `tf.InitializerOption`.

    Args:
      initializer: a TensorFlow initializer (object or class). None: the variable's `initializer` argument.
      default_value_dim: N > 0: draw a matrix of N rows once; key k starts from row `k mod N`. None: TensorFlow's uniform, normal,
        truncated normal, constant, zeros and ones initializers compute the value from the key itself, so random values differ from
        key to key; any other initializer draws a matrix of 4,096 rows. Constant initializers ignore N.
      default_value_no_permission: the value of every element of a key that a filter has not admitted yet.

    Raises:
      TypeError, ValueError: a bad value.
    """

    def __init__(
        self,
        initializer: typing.Any = None,
        default_value_dim: int | None = None,
        default_value_no_permission: float = 0.0,
    ) -> None:
        self.initializer = initializer
        self.default_value_dim = (
            None
            if default_value_dim is None
            else _integer("InitializerOption.default_value_dim", default_value_dim, 1)
        )
        self.default_value_no_permission = _real(
            "InitializerOption.default_value_no_permission", default_value_no_permission
        )


class StorageOption(_Option):
    """The tiers of a variable. Source: DeepRec's `tf.StorageOption`.

    Args:
      storage_type: a `StorageType`, its number or its name. None: DRAM. Types with HBM need a build with CUDA
        and a GPU, and are refused without; for tests, the environment variable TF_MULTITIER_DEVICE=emulated makes them work
        on any machine.
      storage_path: directory for the files of PMEM, LEVELDB and SSDHASH tiers, on the machine that holds the variable. Required by
        every type with such a tier. It is created if its parent exists. Variables, partitions, sessions and processes may share it.
      storage_size: bytes of row data in each tier, fastest first: an integer or a list, each > 0, at most one per tier. A tier
        without a size gets 1 GiB; the last tier without a size has no bound. Each partition of a partitioned variable gets these
        sizes. `tf_multitier.memory` computes the bytes of a row.
      cache_strategy: a `CacheStrategy`. None: scan-resistant replacement by recency and frequency.
      drop_coldest: what happens when the last tier has a size and is full. False: the update fails with ResourceExhausted and
        changes nothing. True: the coldest rows are dropped for good, and `pop_dropped()` returns their keys. Not in DeepRec.
      on_corruption: what happens to a row whose record in a file tier is damaged. "error": operations that need the row, including
        saving, fail with DataLoss that names key, file and offset, until `remove` removes the key. "reinit": the key starts again
        from its initial value. "drop": the key is removed, and `pop_dropped()` returns it. `corrupt` in the statistics counts each
        case. Not in DeepRec.
      keep: True: the rows stay in the files when the session is closed or the variable deleted. The next process of the same
        program goes on from them: its initializer opens them, and a restore reads the checkpoint only if the rows are not
        exactly those of this checkpoint. The last tier must be LEVELDB or SSDHASH. Not in DeepRec.

    Raises:
      TypeError, ValueError: a bad value, or a missing storage_path or size.
    """

    def __init__(
        self,
        storage_type: str | StorageType | None = None,
        storage_path: str | None = None,
        storage_size: collections.abc.Sequence[int] | None = None,
        cache_strategy: str | CacheStrategy | None = None,
        *,
        drop_coldest: bool = False,
        on_corruption: str = "error",
        keep: bool = False,
    ) -> None:
        self.storage_type = _storage_type("StorageOption.storage_type", storage_type)
        tiers = self.storage_type.tiers
        if storage_path is not None and (
            not isinstance(storage_path, (str, os.PathLike)) or not os.fspath(storage_path)
        ):
            raise TypeError(
                f"StorageOption.storage_path must be the path of a directory or None, found {storage_path!r}"
            )
        self.storage_path = None if storage_path is None else os.fspath(storage_path)
        if "\0" in (self.storage_path or ""):
            raise ValueError(
                f"StorageOption.storage_path must have no null character, found {storage_path!r}"
            )
        with_files = [t for t in tiers if t in _TIERS_WITH_FILES]
        if with_files and self.storage_path is None:
            raise ValueError(
                f"StorageOption.storage_path must be given for storage type {self.storage_type.name}: its "
                f"{' and '.join(with_files)} tier keeps files; found None"
            )
        self.storage_size = _sizes("StorageOption.storage_size", storage_size, self.storage_type)
        self.cache_strategy = _cache_strategy("StorageOption.cache_strategy", cache_strategy)
        if not isinstance(drop_coldest, bool):
            raise TypeError(
                f"StorageOption.drop_coldest must be True or False, found {drop_coldest!r}"
            )
        if drop_coldest and len(self.storage_size) < len(tiers):
            raise ValueError(
                f"StorageOption.drop_coldest needs a size of the last tier: storage_size must have {len(tiers)} "
                f"sizes for {self.storage_type.name}, found {list(self.storage_size)}"
            )
        self.drop_coldest = drop_coldest
        if on_corruption not in _ON_CORRUPTION:
            raise ValueError(
                "StorageOption.on_corruption must be 'error', 'reinit' or 'drop', found "
                + repr(on_corruption)
            )
        self.on_corruption = on_corruption
        if not isinstance(keep, bool):
            raise TypeError(f"StorageOption.keep must be True or False, found {keep!r}")
        if keep and tiers[-1] not in _TIERS_THAT_KEEP:
            raise ValueError(
                f"StorageOption.keep needs a storage type whose last tier is {' or '.join(_TIERS_THAT_KEEP)}, found "
                f"{self.storage_type.name}"
            )
        self.keep = keep


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
    if (
        isinstance(value, numbers.Integral)
        and not isinstance(value, bool)
        and value in CacheStrategy.values()
    ):
        return CacheStrategy(value)
    raise ValueError(f"{where} must be {known}; found {value!r}")


def _sizes(where, value, storage_type):
    if value is None:
        return ()
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    sizes = tuple(_integer(f"{where}[{i}]", v, 1, MAX_SIZE) for i, v in enumerate(values))
    if len(sizes) > len(storage_type.tiers):
        raise ValueError(
            f"{where} must have at most {len(storage_type.tiers)} sizes, one for each tier of "
            f"{storage_type.name}; found {len(sizes)}"
        )
    return sizes


def storage_option_from_environment(environ=None):
    """The StorageOption of variables that are made without one. It is read from TF_MULTITIER_STORAGE_TYPE, _PATH, _SIZE and _KEEP.

    Args:
      environ: mapping to read; None: `os.environ`. _TYPE is a name of `StorageType`, _PATH a directory, _SIZE a
        comma-separated list of bytes, _KEEP 0 or 1.

    Returns:
      A StorageOption; the default one if none of the four is set.

    Raises:
      ValueError: a bad value. The message names the environment variable, what was expected and what was found.
    """
    environ = os.environ if environ is None else environ
    storage_type, path, size = (
        environ.get(k) for k in (ENV_STORAGE_TYPE, ENV_STORAGE_PATH, ENV_STORAGE_SIZE)
    )
    kind = _storage_type(f"environment variable {ENV_STORAGE_TYPE}", storage_type)
    sizes = None
    if size is not None:
        try:
            sizes = [int(s) for s in size.split(",")]
            sizes = list(_sizes(f"environment variable {ENV_STORAGE_SIZE}", sizes, kind))
        except ValueError as error:
            if "environment variable" in str(error):
                raise
            raise ValueError(
                f"environment variable {ENV_STORAGE_SIZE} must be a comma-separated list of bytes, "
                f"found {size!r}"
            ) from None
    if path is not None and not path:
        raise ValueError(
            f"environment variable {ENV_STORAGE_PATH} must be the path of a directory, found ''"
        )
    if path is None and any(t in _TIERS_WITH_FILES for t in kind.tiers):
        raise ValueError(
            f"environment variable {ENV_STORAGE_PATH} must be given with {ENV_STORAGE_TYPE}={kind.name}, "
            "found it unset"
        )
    keep = environ.get(ENV_STORAGE_KEEP, "0")
    if keep not in ("0", "1"):
        raise ValueError(f"environment variable {ENV_STORAGE_KEEP} must be 0 or 1, found {keep!r}")
    if keep == "1" and kind.tiers[-1] not in _TIERS_THAT_KEEP:
        raise ValueError(
            f"environment variable {ENV_STORAGE_KEEP}=1 needs a {ENV_STORAGE_TYPE} whose last tier is "
            f"{' or '.join(_TIERS_THAT_KEEP)}, found {kind.name}"
        )
    return StorageOption(storage_type=kind, storage_path=path, storage_size=sizes, keep=keep == "1")


class CounterFilter(_Option):
    """Admits a key after it was trained on `filter_freq` times. Source: DeepRec's `tf.CounterFilter`.

    Counts are exact. A key that is not admitted yet costs 24 bytes and its index entry. 0 and 1 admit a key at its first training step.
    """

    def __init__(self, filter_freq: int = 0) -> None:
        self.filter_freq = _integer("CounterFilter.filter_freq", filter_freq, 0, 2**32 - 1)


class CBFFilter(_Option):
    """Admits a key after it was trained on `filter_freq` times, counted in a counting Bloom filter. Source: DeepRec's `tf.CBFFilter`.

    Its memory is fixed. It may admit a key too early.

    Args:
      filter_freq: occurrences after which a key is admitted; 0 and 1 admit a key at its first training step.
      max_element_size: expected number of keys, > 0.
      false_positive_probability: probability, in (0, 1), that a key is admitted too early.
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
        if name not in self._BITS:
            raise ValueError(
                "CBFFilter.counter_type must be tf.uint8, tf.uint16, tf.uint32, tf.uint64 or the signed type of one of "
                f"these sizes; found {counter_type!r}"
            )
        self.counter_bits = self._BITS[name]
        self.filter_freq = _integer(
            "CBFFilter.filter_freq", filter_freq, 0, min(2**self.counter_bits, 2**32) - 1
        )
        self.max_element_size = _integer("CBFFilter.max_element_size", max_element_size, 1)
        self.false_positive_probability = _real(
            "CBFFilter.false_positive_probability", false_positive_probability
        )
        if not 0.0 < self.false_positive_probability < 1.0:
            raise ValueError(
                "CBFFilter.false_positive_probability must be in (0, 1), found "
                f"{self.false_positive_probability}"
            )


class ProbabilisticFilter(_Option):
    """Admits a key with probability `probability`, in (0, 1], at each of its occurrences. It needs no memory. Not in DeepRec."""

    def __init__(self, probability: float = 1.0) -> None:
        self.probability = _real("ProbabilisticFilter.probability", probability)
        if not 0.0 < self.probability <= 1.0:
            raise ValueError(
                f"ProbabilisticFilter.probability must be in (0, 1], found {self.probability}"
            )


class GlobalStepEvict(_Option):
    """Makes `expire(step)` remove keys whose last update was more than `steps_to_live` steps before `step`.

    Steps are those of the graph's global step. It must exist when the optimizer is built. None: removes nothing. Source: DeepRec's
    `tf.GlobalStepEvict`.
    """

    def __init__(self, steps_to_live: int | None = None) -> None:
        self.steps_to_live = (
            0
            if steps_to_live is None
            else _integer("GlobalStepEvict.steps_to_live", steps_to_live, 1)
        )


class L2WeightEvict(_Option):
    """Makes `expire(step)` remove keys with `0.5 * sum(w^2) < l2_weight_threshold`. Source: DeepRec's `tf.L2WeightEvict`.

    -1 (the default): removes nothing.
    """

    def __init__(self, l2_weight_threshold: float = -1.0) -> None:
        self.l2_weight_threshold = _real("L2WeightEvict.l2_weight_threshold", l2_weight_threshold)
        if self.l2_weight_threshold < 0.0 and self.l2_weight_threshold != -1.0:
            raise ValueError(
                "L2WeightEvict.l2_weight_threshold must be at least 0, or -1 for none; found "
                f"{self.l2_weight_threshold}"
            )


class EmbeddingVariableOption(_Option):
    """All options of an embedding variable. Source: DeepRec's `tf.EmbeddingVariableOption`.

    Args:
      evict_option: which rows `expire` removes: GlobalStepEvict, L2WeightEvict, a list with one of each, or None.
      filter_option: which keys get a row: CounterFilter, CBFFilter, ProbabilisticFilter, or None for all keys that are trained.
      storage_option: a StorageOption. None: the environment variables TF_MULTITIER_STORAGE_TYPE, _PATH and _SIZE when the variable
        is made; if they are not set, DRAM without a bound.
      init_option: an InitializerOption or None.

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
    ) -> None:
        self.evict_option = evict_option
        self.filter_option = filter_option
        self.storage_option = storage_option
        self.init_option = init_option

    def __setattr__(self, name: str, value: typing.Any) -> None:
        """Sets an option, as the constructor does. AttributeError if there is none of that name, so that none is ignored."""
        if name not in _CHECKS:
            raise AttributeError(
                f"EmbeddingVariableOption: expected one of {', '.join(_CHECKS)}, found {name!r}"
            )
        super().__setattr__(name, _CHECKS[name](f"EmbeddingVariableOption.{name}", value))


def _evict_options(name, value):
    evict = tuple(
        _instance(name, e, (GlobalStepEvict, L2WeightEvict))
        for e in (value if isinstance(value, (list, tuple)) else [value])
        if e is not None
    )
    if len({type(e) for e in evict}) != len(evict):
        raise ValueError(
            f"{name} must have at most one GlobalStepEvict and one L2WeightEvict, found {list(evict)}"
        )
    return evict


def _one_of(*types, default=lambda: None):
    return lambda name, value: default() if value is None else _instance(name, value, types)


# {option of a variable: function of its full name and a value, which gives the value to keep}.
_CHECKS = {
    "evict_option": _evict_options,
    "filter_option": _one_of(CounterFilter, CBFFilter, ProbabilisticFilter),
    "storage_option": _one_of(StorageOption),
    "init_option": _one_of(InitializerOption, default=InitializerOption),
}


# Storage types for which the handle op and the engine use another name.
_SAME_TIERS = {
    StorageType.DEFAULT: StorageType.DRAM,
    StorageType.PMEM_MEMKIND: StorageType.PMEM,
    StorageType.PMEM_LIBPMEM: StorageType.PMEM,
}


def _built_with_cuda():
    """Whether types with HBM are left to the machine that holds the variable: it refuses them where it has no GPU."""
    try:
        from tf_multitier import _build_info
    except ImportError:
        return False
    return getattr(_build_info, "CUDA_VERSION", None) is not None


def check_storage_available(name, storage):
    """The storage type that the variable gets. Types with the same tiers give the same type.

    Raises:
      NotImplementedError: this build has no tiers for the type. The message names the type, the reason and the available types.
    """
    kind = _SAME_TIERS.get(storage.storage_type, storage.storage_type)
    if os.environ.get(ENV_DEVICE) == "emulated" or _built_with_cuda():
        return kind
    if kind not in AVAILABLE_STORAGE_TYPES:
        available = ", ".join(t.name for t in AVAILABLE_STORAGE_TYPES if t not in _SAME_TIERS)
        raise NotImplementedError(
            f"embedding variable '{name}': storage type {kind.name} needs the memory of a GPU, and this "
            f"build has no GPU tier; available: {available}"
        )
    return kind


def option_attrs(name, option, storage):
    """The attributes of the handle and initialize ops for filter, expiry and storage.

    Args:
      name: the variable's name, for error messages.
      option: an EmbeddingVariableOption.
      storage: the StorageOption to use.

    Raises:
      NotImplementedError: this build has no tiers for the storage type.
    """
    attrs = dict(default_value_no_permission=option.init_option.default_value_no_permission)
    filt = option.filter_option
    if isinstance(filt, CounterFilter):
        attrs.update(filter="counter", filter_freq=filt.filter_freq)
    elif isinstance(filt, CBFFilter):
        attrs.update(
            filter="bloom",
            filter_freq=filt.filter_freq,
            filter_max_elements=filt.max_element_size,
            filter_false_positive=filt.false_positive_probability,
            filter_counter_bits=filt.counter_bits,
        )
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
    attrs["cache_strategy"] = (
        "DEFAULT" if storage.cache_strategy is None else storage.cache_strategy.name
    )
    attrs["drop_coldest"] = storage.drop_coldest
    attrs["on_corruption"] = storage.on_corruption
    attrs["keep"] = storage.keep
    return attrs

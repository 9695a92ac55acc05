"""The options of dynamicemb: its names, fields and defaults. They have no behaviour but their checks.

    DynamicEmbTableOptions(global_hbm_for_values=4 << 30, score_strategy=DynamicEmbScoreStrategy.STEP, caching=True)

An object checks its fields when it is made and when one is set. Tables, counters and score strategies take them from here.
"""

from __future__ import annotations

import dataclasses
import typing

import tensorflow as tf

from tf_multitier import external_storage
from tf_multitier import options as variable_options
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.options.option_values import integer
from tf_multitier._src.options.option_values import one_of
from tf_multitier._src.options.option_values import real
from tf_multitier._src.options.storage_option import StorageOption
from tf_multitier._src.options.storage_types import StorageType
from tf_multitier.dynamicemb.configs import Fields
from tf_multitier.dynamicemb.enums import DynamicEmbCheckMode
from tf_multitier.dynamicemb.enums import DynamicEmbEvictStrategy
from tf_multitier.dynamicemb.enums import DynamicEmbInitializerMode
from tf_multitier.dynamicemb.enums import DynamicEmbScoreStrategy
from tf_multitier.dynamicemb.enums import member

BUCKET_ALIGNMENT = 16
MAX_BUCKET_CAPACITY = 2**63 - 1  # one bucket: the whole table
DIST_TYPES = ("continuous", "roundrobin", "hash_roundrobin")
# {storage_type with external_storage: the type of the variable}.
EXTERNAL_TYPES = {
    "DRAM": "DRAM_EXTERNAL",
    "DRAM_PMEM": "DRAM_PMEM_EXTERNAL",
    "EXTERNAL": "EXTERNAL",
    "DRAM_EXTERNAL": "DRAM_EXTERNAL",
    "DRAM_PMEM_EXTERNAL": "DRAM_PMEM_EXTERNAL",
}

# The fields that an initializer uses, by its mode, and the values of those that it does not.
_OF_MODE = {
    DynamicEmbInitializerMode.NORMAL: ("mean", "std_dev"),
    DynamicEmbInitializerMode.TRUNCATED_NORMAL: ("mean", "std_dev", "lower", "upper"),
    DynamicEmbInitializerMode.UNIFORM: ("lower", "upper"),
    DynamicEmbInitializerMode.CONSTANT: ("value",),
    DynamicEmbInitializerMode.DEBUG: (),
}


@dataclasses.dataclass(eq=False)
class DynamicEmbInitializerArgs(Fields):
    """Initial values of rows.

    Attributes:
      mode: NORMAL, TRUNCATED_NORMAL, UNIFORM, CONSTANT, or DEBUG: the key modulo 100,000.
      mean, std_dev: of a normal distribution, before it is cut off.
      lower, upper: the bounds of UNIFORM and TRUNCATED_NORMAL. None: -1/sqrt(num_embeddings), 1/sqrt(num_embeddings).
      value: of CONSTANT.

    Two are equal if mode and the fields that it uses are.

    Raises:
      TypeError, ValueError: a bad value, or one for a field that the mode does not use.
    """

    mode: DynamicEmbInitializerMode = DynamicEmbInitializerMode.UNIFORM
    mean: float = 0.0
    std_dev: float = 1.0
    lower: float | None = None
    upper: float | None = None
    value: float = 0.0

    def __post_init__(self):
        member(self._where("mode"), self.mode, DynamicEmbInitializerMode)
        used = _OF_MODE[self.mode]
        for field in dataclasses.fields(self)[1:]:
            found = getattr(self, field.name)
            if found is not None or field.default is not None:
                found = vars(self)[field.name] = real(self._where(field.name), found)
            if field.name not in used and found != field.default:
                raise ValueError(
                    f"{self._where(field.name)}: expected {field.default}, found {found}: mode {self.mode.name} uses "
                    f"{' and '.join(used) or 'no field'}"
                )
        if self.std_dev < 0 or (self.mode.name == "TRUNCATED_NORMAL" and self.std_dev == 0):
            least = "more than 0" if self.mode.name == "TRUNCATED_NORMAL" else "at least 0"
            raise ValueError(f"{self._where('std_dev')}: expected {least}, found {self.std_dev}")
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise ValueError(
                f"{self._where('lower')}: expected less than upper, found lower={self.lower} and upper={self.upper}"
            )

    def _key(self):
        return (self.mode, *(getattr(self, name) for name in _OF_MODE[self.mode]))

    def __eq__(self, other):
        return (
            self._key() == other._key()
            if isinstance(other, DynamicEmbInitializerArgs)
            else NotImplemented
        )

    def __hash__(self):
        return hash(self._key())


def _no_values():
    return DynamicEmbInitializerArgs(DynamicEmbInitializerMode.CONSTANT, value=0.0)


class Counter:
    """Base class of a user's counters in dynamicemb. They are refused here: KVCounter counts."""


class AdmissionStrategy:
    """Base class of a user's admission strategies in dynamicemb. They are refused here: FrequencyAdmissionStrategy admits."""


@dataclasses.dataclass
class KVCounter(Fields):
    """Counts keys that have no row yet. It is bounded: the least counted keys leave.

    Attributes:
      capacity: keys that are counted at a time.
      bucket_capacity: no effect here.
      key_type: tf.int64 or tf.uint64.

    Raises:
      TypeError, ValueError: a bad value.
    """

    capacity: int
    bucket_capacity: int = 1024
    key_type: typing.Any = tf.int64

    def __post_init__(self):
        values = vars(self)
        values["capacity"] = integer(self._where("capacity"), self.capacity, 1)
        values["bucket_capacity"] = integer(self._where("bucket_capacity"), self.bucket_capacity, 1)
        values["key_type"] = _index_type(self._where("key_type"), self.key_type)


@dataclasses.dataclass(unsafe_hash=True)
class FrequencyAdmissionStrategy(Fields, AdmissionStrategy):
    """Admits a key when it occurred `threshold` times in training. Until then it has no row and no update.

    Attributes:
      threshold: occurrences, >= 0. 0 and 1 admit all keys.
      initializer_args: what a key reads until then. None: its own initial value.

    Raises:
      TypeError, ValueError: a bad value.
    """

    threshold: int
    initializer_args: DynamicEmbInitializerArgs | None = None

    def __post_init__(self):
        vars(self)["threshold"] = integer(self._where("threshold"), self.threshold, 0)
        if self.initializer_args is not None:
            _initializer(self._where("initializer_args"), self.initializer_args)


def _initializer(where, value):
    if not isinstance(value, DynamicEmbInitializerArgs):
        raise TypeError(f"{where}: expected a DynamicEmbInitializerArgs, found {value!r}")


def _index_type(where, value):
    try:
        found = tf.as_dtype(value)
    except TypeError:
        found = None
    if found not in (tf.int64, tf.uint64):
        said = repr(value) if found is None else found.name
        raise TypeError(f"{where}: expected int64 or uint64, found {said}")
    return found


def _score_strategy(where, value):
    """One strategy, the pair of TIMESTAMP and LFU in the user's order, or None, of a static table."""
    if value is None:
        return None
    given = value if isinstance(value, tuple) else (value,)
    for each in given:
        member(where, each, DynamicEmbScoreStrategy)
    if len(given) == 1:
        return given[0]
    names = ", ".join(each.name for each in given)
    if sorted(given) != [DynamicEmbScoreStrategy.TIMESTAMP, DynamicEmbScoreStrategy.LFU]:
        raise NotImplementedError(
            f"{where}: expected one strategy, (TIMESTAMP, LFU) or (LFU, TIMESTAMP); found ({names})"
        )
    return given


def _evict_strategy(score_strategy):
    kind, score = DynamicEmbEvictStrategy, DynamicEmbScoreStrategy
    if score_strategy == score.TIMESTAMP:
        return kind.LRU
    is_lfu = isinstance(score_strategy, tuple) or score_strategy == score.LFU
    return kind.LFU if is_lfu else kind.CUSTOMIZED


@dataclasses.dataclass(eq=False)
class DynamicEmbTableOptions(Fields):
    """The options of one table.

    Attributes:
      embedding_dtype, dim, max_capacity: type and elements of a row, and rows of the table. None: those that follow from its
        EmbeddingConfig.
      evict_strategy: follows from score_strategy.
      local_hbm_for_values: bytes of the first tier in this process. 0: global_hbm_for_values / world size.
      device_id: no effect here.
      training: False: the table is for evaluation, and has no states of an optimizer.
      initializer_args: initial values of rows.
      eval_initializer_args: what an absent key reads in evaluation. Its mode is CONSTANT.
      caching: no effect here but a check: hot rows are in the first tier in any case. True needs bytes for it.
      init_capacity: rows to reserve. None: none; the table grows with its rows.
      max_load_factor: no effect here.
      score_strategy: a DynamicEmbScoreStrategy, or the pair (TIMESTAMP, LFU) in any order: eviction by frequency, dumps by time.
        None: of a static table, whose options have no effect.
      bucket_capacity: max_capacity is at least this. A multiple of 16, or MAX_BUCKET_CAPACITY.
      safe_check_mode: what an update does that gave a key no row.
      global_hbm_for_values: bytes of rows, with their states, in the first tier of all processes, where a tier is below.
      external_storage: a subclass of Storage, the last tier.
      index_type: tf.int64 or tf.uint64. None: tf.int64.
      dist_type: "continuous", "roundrobin" or "hash_roundrobin": no effect: whole keys are divided.
      admit_strategy: a FrequencyAdmissionStrategy. None: every key gets a row.
      admission_counter: a KVCounter, of admit_strategy: without that nothing is counted. None: a counter without a bound.
      storage_type: the tiers, as in StorageOption: "HBM" and "HBM_DRAM" keep rows on a GPU. None: "HBM_DRAM" with bytes of HBM,
        if the build has CUDA and TensorFlow sees a GPU; else "DRAM". With external_storage: "DRAM" and "DRAM_PMEM" are above it;
        "EXTERNAL" is it alone.
      storage_path: the folder of tiers with files.

    Two are equal if training, caching, external_storage, index_type, dist_type, score_strategy and admit_strategy are.

    Raises:
      TypeError, ValueError: a bad value.
      NotImplementedError: another tuple of score strategies; a Counter or AdmissionStrategy of the user.
    """

    embedding_dtype: typing.Any = None
    dim: int | None = None
    max_capacity: int | None = None
    evict_strategy: DynamicEmbEvictStrategy = DynamicEmbEvictStrategy.LRU
    local_hbm_for_values: int = 0
    device_id: int | None = None
    training: bool = True
    initializer_args: DynamicEmbInitializerArgs = dataclasses.field(
        default_factory=DynamicEmbInitializerArgs
    )
    eval_initializer_args: DynamicEmbInitializerArgs = dataclasses.field(default_factory=_no_values)
    caching: bool = False
    init_capacity: int | None = None
    max_load_factor: float = 0.5
    score_strategy: typing.Any = DynamicEmbScoreStrategy.TIMESTAMP
    bucket_capacity: int = 128
    safe_check_mode: DynamicEmbCheckMode = DynamicEmbCheckMode.IGNORE
    global_hbm_for_values: int = 0
    external_storage: typing.Any = None
    index_type: typing.Any = None
    dist_type: str = "roundrobin"
    admit_strategy: FrequencyAdmissionStrategy | None = None
    admission_counter: KVCounter | None = None
    storage_type: str | None = None
    storage_path: str | None = None

    def __post_init__(self):
        values, where = vars(self), self._where
        if self.embedding_dtype is not None:
            values["embedding_dtype"] = variable_options.value_type(
                where("embedding_dtype"), self.embedding_dtype
            )
        for name, least in (
            ("dim", 1),
            ("max_capacity", 1),
            ("device_id", 0),
            ("init_capacity", 1),
        ):
            if values[name] is not None:
                values[name] = integer(where(name), values[name], least)
        for name in ("local_hbm_for_values", "global_hbm_for_values"):
            # A program multiplies bytes with the ratio that is cached.
            values[name] = integer(where(name), int(real(where(name), values[name])), 0)
        for name in ("training", "caching"):
            boolean(where(name), values[name])
        values["max_load_factor"] = real(where("max_load_factor"), self.max_load_factor)
        values["bucket_capacity"] = checked_bucket(where("bucket_capacity"), self.bucket_capacity)
        member(where("safe_check_mode"), self.safe_check_mode, DynamicEmbCheckMode)
        for name in ("initializer_args", "eval_initializer_args"):
            _initializer(where(name), values[name])
        if self.eval_initializer_args.mode is not DynamicEmbInitializerMode.CONSTANT:
            raise ValueError(
                f"{where('eval_initializer_args')}: expected mode CONSTANT, found {self.eval_initializer_args.mode.name}"
            )
        if self.index_type is not None:
            values["index_type"] = _index_type(where("index_type"), self.index_type)
        one_of(where("dist_type"), self.dist_type, DIST_TYPES)
        values["score_strategy"] = _score_strategy(where("score_strategy"), self.score_strategy)
        self._check_eviction()
        self._check_admission()
        self._check_storage()

    def _check_eviction(self):
        member(self._where("evict_strategy"), self.evict_strategy, DynamicEmbEvictStrategy)
        expected = _evict_strategy(self.score_strategy)
        if self.evict_strategy not in (expected, DynamicEmbEvictStrategy.LRU):
            raise ValueError(
                f"{self._where('evict_strategy')}: expected {expected.name}, which follows from score_strategy, found "
                f"{self.evict_strategy.name}: leave it out"
            )
        vars(self)["evict_strategy"] = expected

    def _check_admission(self):
        for name, kind, base in (
            ("admit_strategy", FrequencyAdmissionStrategy, AdmissionStrategy),
            ("admission_counter", KVCounter, Counter),
        ):
            found = getattr(self, name)
            if found is None or type(found) is kind:
                continue
            if isinstance(found, (kind, base)) or (
                isinstance(found, type) and issubclass(found, base)
            ):
                raise NotImplementedError(
                    f"{self._where(name)}: expected {kind.__name__} or None, found {found!r}: classes of your own are not supported"
                )
            raise TypeError(
                f"{self._where(name)}: expected a {kind.__name__} or None, found {found!r}"
            )

    def _check_storage(self):
        if self.external_storage is not None:
            external_storage.check(self.external_storage, self._where("external_storage"))
            kind = getattr(self.storage_type, "name", self.storage_type)
            kind = "DRAM" if kind is None else kind
            one_of(self._where("storage_type") + " with external_storage", kind, EXTERNAL_TYPES)
            vars(self)["storage_type"] = kind
            return
        try:
            kind = "DRAM" if self.storage_type is None else self.storage_type
            option = StorageOption(kind, self.storage_path)
        except (TypeError, ValueError) as error:
            message = str(error).replace("StorageOption.", type(self).__name__ + ".")
            raise type(error)(message) from None
        if self.storage_type is not None:
            vars(self)["storage_type"] = typing.cast(StorageType, option.storage_type).name
        vars(self)["storage_path"] = option.storage_path

    def _with(self, name, value):
        follows = (
            {"evict_strategy": DynamicEmbEvictStrategy.LRU} if name == "score_strategy" else {}
        )
        return dataclasses.replace(self, **{name: value}, **follows)

    def get_grouped_key(self) -> dict[str, typing.Any]:
        """The fields that equality and hash take."""
        return {
            name: getattr(self, name)
            for name in (
                "training",
                "caching",
                "external_storage",
                "index_type",
                "dist_type",
                "score_strategy",
                "admit_strategy",
            )
        }

    def __eq__(self, other):
        if not isinstance(other, DynamicEmbTableOptions):
            return NotImplemented
        return self.get_grouped_key() == other.get_grouped_key()

    def __hash__(self):
        return hash(tuple(self.get_grouped_key().items()))


def checked_bucket(where: str, value: typing.Any) -> int:
    """A bucket_capacity. TypeError, ValueError: no positive multiple of 16, and not MAX_BUCKET_CAPACITY."""
    value = integer(where, value, 1)
    if value % BUCKET_ALIGNMENT and value != MAX_BUCKET_CAPACITY:
        raise ValueError(
            f"{where}: expected a multiple of {BUCKET_ALIGNMENT} or MAX_BUCKET_CAPACITY, found {value}"
        )
    return value

"""The enums of dynamicemb."""

from __future__ import annotations

import enum
import typing

import tensorflow as tf


class DynamicEmbScoreStrategy(enum.IntEnum):
    """What the score of a row is. The row with the lowest score leaves a full table first."""

    TIMESTAMP = 0
    STEP = 1
    CUSTOMIZED = 2
    LFU = 3
    NO_EVICTION = 4


class DynamicEmbInitializerMode(enum.Enum):
    """The distribution of initial values."""

    NORMAL = "normal"
    TRUNCATED_NORMAL = "truncated_normal"
    UNIFORM = "uniform"
    CONSTANT = "constant"
    DEBUG = "debug"


class DynamicEmbCheckMode(enum.IntEnum):
    """What an update does that gave a key no row: raise, log, or nothing."""

    ERROR = 0
    WARNING = 1
    IGNORE = 2


class DynamicEmbEvictStrategy(enum.Enum):
    """The eviction that follows from a score strategy. The values are those of dump files."""

    LRU = "KLru"
    LFU = "KLfu"
    EPOCH_LRU = "KEpochLru"
    EPOCH_LFU = "KEpochLfu"
    CUSTOMIZED = "KCustomized"


class EmbOptimType(enum.Enum):
    """The optimizer of rows. The values are those of dump files."""

    SGD = "sgd"
    EXACT_SGD = "exact_sgd"
    ADAM = "adam"
    EXACT_ADAGRAD = "exact_adagrad"
    EXACT_ROWWISE_ADAGRAD = "exact_row_wise_adagrad"


class SparseType(enum.Enum):
    """The type of a lookup's result."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def dtype(self) -> tf.DType:
        """The type of TensorFlow."""
        return _DTYPES[self.name]


class DataType(enum.Enum):
    """The type of a table's values."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"

    @property
    def dtype(self) -> tf.DType:
        """The type of TensorFlow."""
        return _DTYPES[self.name]


_DTYPES = {"FP32": tf.float32, "FP16": tf.float16, "BF16": tf.bfloat16}


class PoolingType(enum.Enum):
    """How the rows of a bag become one."""

    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"


class ShardingType(enum.Enum):
    """How a table is divided among the processes of a world. A dynamic table is ROW_WISE."""

    DATA_PARALLEL = "data_parallel"
    TABLE_WISE = "table_wise"
    COLUMN_WISE = "column_wise"
    ROW_WISE = "row_wise"
    TABLE_ROW_WISE = "table_row_wise"
    TABLE_COLUMN_WISE = "table_column_wise"
    GRID_SHARD = "grid_shard"


class BoundsCheckMode(enum.IntEnum):
    """What a lookup does with an id that a static table does not have."""

    FATAL = 0
    WARNING = 1
    IGNORE = 2
    NONE = 3


class CommType(enum.Enum):
    """The type of values between processes."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"


def member(where: str, value: typing.Any, kind: typing.Any) -> typing.Any:
    """`value`, a member of an enum. TypeError: it is none."""
    if not isinstance(value, kind):
        names = ", ".join(kind.__members__)
        raise TypeError(f"{where}: expected a {kind.__name__} ({names}), found {value!r}")
    return value

"""Rows and bytes of tables: arithmetic on their options, for worlds of any size."""

from __future__ import annotations

import dataclasses
import typing

from tf_multitier._src.execution import placement
from tf_multitier._src.options.option_values import integer
from tf_multitier._src.options.option_values import real
from tf_multitier.dynamicemb import initializers
from tf_multitier.dynamicemb import options as table_options
from tf_multitier.dynamicemb.configs import EmbeddingConfig
from tf_multitier.dynamicemb.enums import DynamicEmbScoreStrategy
from tf_multitier.dynamicemb.enums import EmbOptimType
from tf_multitier.dynamicemb.enums import member
from tf_multitier.dynamicemb.options import DynamicEmbTableOptions

import tensorflow as tf

# A column of a row begins at a multiple of this.
_COLUMN_BYTES = 16
# Bytes of the first tier's rows if the options say none and a tier is below.
_DEFAULT_BYTES = 1 << 30


def align_to_table_size(n: int, alignment: int = table_options.BUCKET_ALIGNMENT) -> int:
    """`n` rounded up to a multiple of `alignment`; `alignment` if n < 1."""
    integer("alignment", alignment, 1)
    return -(-max(int(real("n", n)), 1) // alignment) * alignment


def get_sharded_table_capacity(
    embedding_config: EmbeddingConfig, world_size: int, bucket_capacity: int = 128
) -> int:
    """The rows of a table in one process of a world: the default of max_capacity.

    num_embeddings / world_size, rounded up to a power of two, and at least bucket_capacity. With MAX_BUCKET_CAPACITY it is rounded
    up to a multiple of 16.

    Raises:
      TypeError, ValueError: world_size < 1, or a bad bucket_capacity.
    """
    _check_config(embedding_config)
    rows = -(-embedding_config.num_embeddings // integer("world_size", world_size, 1))
    bucket_capacity = table_options.checked_bucket("bucket_capacity", bucket_capacity)
    if bucket_capacity == table_options.MAX_BUCKET_CAPACITY:
        return align_to_table_size(rows)
    return max(1 << (rows - 1).bit_length(), bucket_capacity)


def _check_config(embedding_config):
    if not isinstance(embedding_config, EmbeddingConfig):
        raise TypeError(
            f"embedding_config: expected an EmbeddingConfig, found {embedding_config!r}"
        )


def row_bytes(dim: int, dtype: tf.DType, optimizer_type: EmbOptimType | None) -> int:
    """The bytes of a row, as a tier counts them: the value and the states, each column rounded up to 16 bytes.

    Args:
      dim: elements of the value.
      dtype: of the value. States are float32.
      optimizer_type: None: no states.
    """
    states = {
        EmbOptimType.ADAM: (dim, dim),
        EmbOptimType.EXACT_ADAGRAD: (dim,),
        EmbOptimType.EXACT_ROWWISE_ADAGRAD: (1,),
    }
    elements = states.get(typing.cast(EmbOptimType, optimizer_type), ())
    columns = [dim * dtype.size, *(4 * each for each in elements)]
    return sum(align_to_table_size(each, _COLUMN_BYTES) for each in columns)


def get_table_value_bytes(
    embedding_config: EmbeddingConfig,
    optimizer_type: EmbOptimType,
    world_size: int,
    bucket_capacity: int = 128,
) -> int:
    """The bytes of all rows of a full table, with the states of its optimizer, in all processes of a world.

    Raises:
      TypeError, ValueError: a bad value.
    """
    member("optimizer_type", optimizer_type, EmbOptimType)
    integer("world_size", world_size, 1)
    rows = world_size * get_sharded_table_capacity(embedding_config, world_size, bucket_capacity)
    dtype = embedding_config.data_type.dtype
    return rows * row_bytes(embedding_config.embedding_dim, dtype, optimizer_type)


def completed(
    config: EmbeddingConfig, options: DynamicEmbTableOptions, world_size: int = 1
) -> DynamicEmbTableOptions:
    """A copy of a table's options in which what follows from its config is filled in.

    Raises:
      ValueError: no score_strategy; `dim` is not that of the config; caching without bytes for the first tier; or fewer rows than tiers.
    """
    where = f"table '{config.name}'"
    if options.score_strategy is None:
        raise ValueError(
            f"{where}: score_strategy: expected a DynamicEmbScoreStrategy for a table with options, found None"
        )
    if options.dim not in (None, config.embedding_dim):
        raise ValueError(
            f"{where}: dim: expected {config.embedding_dim}, its embedding_dim, found {options.dim}"
        )
    local = -(-options.global_hbm_for_values // integer("world_size", world_size, 1))
    local = local or options.local_hbm_for_values
    if options.caching and not local:
        raise ValueError(
            f"{where}: caching: expected global_hbm_for_values of more than 0 bytes for the cache, found 0"
        )
    rows = options.max_capacity or get_sharded_table_capacity(
        config, world_size, options.bucket_capacity
    )
    # Without bytes of HBM dynamicemb, too, has the rows in host memory.
    on_gpu = local > 0 and placement.has_hbm()
    kind = options.storage_type or ("HBM_DRAM" if on_gpu else "DRAM")
    if options.external_storage:
        kind = table_options.EXTERNAL_TYPES[kind]
    tiers = len(kind.split("_"))
    if rows < tiers and options.score_strategy is not DynamicEmbScoreStrategy.NO_EVICTION:
        raise ValueError(
            f"{where}: max_capacity: expected at least {tiers}, a row for each tier of {kind}, found {rows}"
        )
    bucket = min(options.bucket_capacity, align_to_table_size(rows))
    first = options.init_capacity
    return dataclasses.replace(
        options,
        embedding_dtype=options.embedding_dtype or config.data_type.dtype,
        dim=config.embedding_dim,
        max_capacity=rows,
        local_hbm_for_values=local,
        bucket_capacity=bucket,
        init_capacity=None if first is None else min(align_to_table_size(first, bucket), rows),
        index_type=options.index_type or tf.int64,
        initializer_args=initializers.completed(options.initializer_args, config.num_embeddings),
        storage_type=kind,
    )


def rows_of_first_tier(
    config: EmbeddingConfig, options: DynamicEmbTableOptions, kind: EmbOptimType
) -> int:
    """The rows of the first tier of a table: all, or those that its bytes hold if a tier is below.

    A tier below has one row at least. Without bytes, the first tier has a GiB.

    Args:
      config: of the table.
      options: what `completed` gave.
      kind: the optimizer, whose states are part of a row.
    """
    capacity = typing.cast(int, options.max_capacity)
    if len(typing.cast(str, options.storage_type).split("_")) == 1:
        return capacity
    states = kind if options.training else None
    row = row_bytes(config.embedding_dim, options.embedding_dtype, states)
    held = (options.local_hbm_for_values or _DEFAULT_BYTES) // row
    return max(1, min(held, capacity - 1))

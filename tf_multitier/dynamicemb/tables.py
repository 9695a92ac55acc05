"""Table: one table of a collection, and how its variable is made."""

from __future__ import annotations

import dataclasses
import typing

import tensorflow as tf

from tf_multitier import options as variable_options
from tf_multitier._src.options.storage_option import StorageOption
from tf_multitier._src.variable.variable_scope import get_embedding_variable
from tf_multitier.dynamicemb import initializers
from tf_multitier.dynamicemb import scores
from tf_multitier.dynamicemb import sizes
from tf_multitier.dynamicemb.configs import EmbeddingConfig
from tf_multitier.dynamicemb.enums import EmbOptimType
from tf_multitier.dynamicemb.options import DynamicEmbTableOptions


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A table of a collection that has variables.

    Attributes:
      config: as the program gave it.
      options: completed: what follows from the config is filled in. None: a static table.
      variable: its EmbeddingVariable; of a static table a tf.Variable [num_embeddings, embedding_dim].
      strategy: scores.Strategy. None: a static table.
    """

    config: EmbeddingConfig
    options: DynamicEmbTableOptions | None
    variable: typing.Any
    strategy: scores.Strategy | None

    @property
    def is_static(self) -> bool:
        """Whether its rows are those of a tf.Variable."""
        return self.options is None

    @property
    def trains(self) -> bool:
        """Whether its rows can be trained."""
        return self.options is None or self.options.training

    @property
    def key_dtype(self) -> tf.DType:
        """The type of its ids."""
        return tf.int64 if self.options is None else self.options.index_type


class TablePlan:
    """What a table will be: all is checked here, and `make` makes it.

    Args:
      config: of the table.
      options: None: a static table.
      optimizer: whose states the rows have.
      world_size: processes among which the table is divided.

    Raises:
      TypeError, ValueError: a bad value.
      NotImplementedError: this build has no such tiers.
    """

    def __init__(
        self,
        config: EmbeddingConfig,
        options: DynamicEmbTableOptions | None,
        optimizer: EmbOptimType,
        world_size: int,
    ) -> None:
        self._config, self._options, self._strategy = config, options, None
        where = f"table '{config.name}'"
        if options is None:
            if config.data_type.dtype != tf.float32:
                raise ValueError(
                    f"{where}: data_type: expected FP32 for a static table, found {config.data_type.name}"
                )
            return
        if not isinstance(options, DynamicEmbTableOptions):
            raise TypeError(f"{where}: expected DynamicEmbTableOptions, found {options!r}")
        self._options = options = sizes.completed(config, options, world_size)
        self._strategy = scores.of(options.score_strategy)
        self._option = self._variable_option(optimizer)
        variable_options.record_of(config.name, self._option, self._option.storage_option)

    def make(self) -> Table:
        """The table, with a variable of its own."""
        config, options = self._config, self._options
        with tf.compat.v1.name_scope(None):
            if options is None:
                bound = config.num_embeddings**-0.5
                initial = tf.random_uniform_initializer(-bound, bound)
                shape = [config.num_embeddings, config.embedding_dim]
                variable: typing.Any = tf.Variable(lambda: initial(shape), name=config.name)
            else:
                variable = get_embedding_variable(
                    config.name,
                    config.embedding_dim,
                    key_dtype=options.index_type,
                    value_dtype=options.embedding_dtype,
                    initializer=self._initializer(options.initializer_args),
                    trainable=options.training,
                    partitioner=_one_part,
                    ev_option=self._option,
                )
        return Table(config, options, variable, self._strategy)

    def _initializer(self, args):
        return initializers.of_args(args, self._config.num_embeddings)

    def _variable_option(self, optimizer):
        options = typing.cast(DynamicEmbTableOptions, self._options)
        admit, counter = options.admit_strategy, options.admission_counter
        # What a key reads that is not admitted: None stands for its own initial value.
        not_admitted = (admit and admit.initializer_args) or options.initializer_args
        return variable_options.EmbeddingVariableOption(
            storage_option=self._storage_option(optimizer),
            score=typing.cast(scores.Strategy, self._strategy).score,
            init_option=variable_options.InitializerOption(
                default_value_no_permission=self._initializer(not_admitted),
                eval_initializer=options.eval_initializer_args.value,
            ),
            filter_option=admit
            and variable_options.CounterFilter(admit.threshold, counter and counter.capacity),
        )

    def _storage_option(self, optimizer):
        options = typing.cast(DynamicEmbTableOptions, self._options)
        strategy = typing.cast(scores.Strategy, self._strategy)
        external = options.external_storage
        return StorageOption(
            options.storage_type,
            options.storage_path,
            storage_rows=self._rows_of_tiers(optimizer, strategy.evicts),
            cache_strategy=strategy.cache_strategy,
            drop_coldest=strategy.evicts,
            refuse_colder=strategy.refuse_colder,
            initial_rows=options.init_capacity or 0,
            **({"external_storage": external} if external else {}),
        )

    def _rows_of_tiers(self, optimizer, evicts):
        """The rows of each tier: their sum is max_capacity. Without eviction the last tier has no bound.

        HBM above other tiers does not count: each of its rows has a place below.
        """
        options = typing.cast(DynamicEmbTableOptions, self._options)
        names = typing.cast(str, options.storage_type).split("_")
        first = sizes.rows_of_first_tier(self._config, options, optimizer)
        if not evicts:
            return [first] if len(names) > 1 else None
        capacity, tiers = options.max_capacity, len(names)
        if tiers == 1:
            return [capacity]
        if names[0] == "HBM":
            return [first, *_shares(capacity, tiers - 1)]
        first = min(first, capacity - (tiers - 1))
        return [first, *_shares(capacity - first, tiers - 1)]


def _shares(rows, tiers):
    """`rows` divided among this number of tiers."""
    return [rows * (i + 1) // tiers - rows * i // tiers for i in range(tiers)]


def _one_part(shape, dtype):
    """A partitioner: a table is one table, also in a scope that has a partitioner, because max_capacity bounds it."""
    del shape, dtype
    return [1, 1]

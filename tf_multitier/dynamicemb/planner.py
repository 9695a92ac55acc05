"""From constraints to a plan: the planner and the sharder of dynamicemb.

    constraints ── collective_plan ──> ShardingPlan ── DistributedModelParallel (parallel.py) ──> EmbeddingCollection.create

A planner checks the options of all tables and fills in what follows from their configs and from the size of the world: rows and bytes of
each process. There is one way to divide a table: by whole keys among all processes.
"""

from __future__ import annotations

import dataclasses
import typing


from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.options.option_values import instance
from tf_multitier._src.options.option_values import integer
from tf_multitier._src.options.option_values import one_of
from tf_multitier._src.options.option_values import real
from tf_multitier.dynamicemb import optimizers
from tf_multitier.dynamicemb import sizes
from tf_multitier.dynamicemb.collection import EmbeddingBagCollection
from tf_multitier.dynamicemb.configs import EmbeddingConfig
from tf_multitier.dynamicemb.configs import Fields
from tf_multitier.dynamicemb.configs import listed
from tf_multitier.dynamicemb.constraints import DynamicEmbParameterConstraints
from tf_multitier.dynamicemb.enums import DynamicEmbScoreStrategy
from tf_multitier.dynamicemb.options import DynamicEmbTableOptions
from tf_multitier.dynamicemb.walk import find_collections


@dataclasses.dataclass
class Topology(Fields):
    """A world of processes and its machines. All but world_size has no effect.

    Attributes:
      world_size, local_world_size: processes in all, and on this machine. local_world_size None: world_size.
      compute_device: "cpu" or "cuda".
      hbm_cap, ddr_cap: bytes of memory. None: unknown.
      intra_host_bw, inter_host_bw: bytes per second. None: unknown.

    Raises:
      TypeError, ValueError: a bad value.
    """

    world_size: int = 1
    compute_device: str = "cpu"
    hbm_cap: int | None = None
    ddr_cap: int | None = None
    local_world_size: int | None = None
    intra_host_bw: float | None = None
    inter_host_bw: float | None = None

    def __post_init__(self):
        values = vars(self)
        values["world_size"] = integer(self._where("world_size"), self.world_size, 1)
        one_of(self._where("compute_device"), self.compute_device, ("cpu", "cuda"))
        if self.local_world_size is not None:
            integer(self._where("local_world_size"), self.local_world_size, 1, self.world_size)
        for name in ("hbm_cap", "ddr_cap", "intra_host_bw", "inter_host_bw"):
            _check_amount(self._where(name), values[name])


def _check_amount(where, value):
    if value is not None and real(where, value) < 0:
        raise ValueError(f"{where}: expected at least 0, found {value}")


@dataclasses.dataclass
class HeuristicalStorageReservation(Fields):
    """A part of memory, from 0 to 1, that tables leave free. No effect: the bytes of tables are those of their options."""

    percentage: float

    def __post_init__(self):
        if not 0 <= real(self._where("percentage"), self.percentage) <= 1:
            raise ValueError(
                f"{self._where('percentage')}: expected 0 to 1, found {self.percentage}"
            )


@dataclasses.dataclass
class DynamicEmbeddingEnumerator(Fields):
    """The ways to divide tables, of which there is one. The planner checks that topology and constraints are its own.

    Raises:
      TypeError, ValueError: a bad value.
      NotImplementedError: an estimator.
    """

    topology: Topology
    batch_size: int = 512
    constraints: dict[str, DynamicEmbParameterConstraints] | None = None
    estimator: typing.Any = None

    def __post_init__(self):
        _check_topology(self._where("topology"), self.topology)
        integer(self._where("batch_size"), self.batch_size, 1)
        _refuse_others(type(self).__name__, estimator=self.estimator)


def _check_topology(where, topology):
    if not isinstance(topology, Topology):
        raise TypeError(f"{where}: expected a Topology, found {topology!r}")


def _refuse_others(where, **given):
    for name, value in given.items():
        if value is not None:
            raise NotImplementedError(
                f"{where}: {name}: expected None, found {value!r}: there is one way to place a table"
            )


class DynamicEmbeddingCollectionSharder:
    """The optimizer of rows, and what processes exchange.

    It is for all collections of a model, except that a DynamicEmbeddingBagCollectionSharder next to it is for the EmbeddingBagCollections.

    Args:
      fused_params: {"optimizer": an EmbOptimType, "learning_rate": ..., ...}: docs/dynamicemb.md lists all.
      qcomm_codecs_registry: what get_qcomm_codecs_registry returned. No effect: see tf_multitier.distribute.set_wire_dtype.
      use_index_dedup: no effect: a lookup asks for each key once in any case.

    Raises:
      TypeError, ValueError: a bad value; an unknown name in fused_params.
    """

    def __init__(
        self,
        fused_params: dict[str, typing.Any] | None = None,
        qcomm_codecs_registry: dict[str, typing.Any] | None = None,
        use_index_dedup: bool = False,
    ) -> None:
        where = type(self).__name__
        self.fused_params = optimizers.completed({} if fused_params is None else fused_params)
        self.qcomm_codecs_registry = qcomm_codecs_registry
        if qcomm_codecs_registry is not None:
            instance(f"{where}: qcomm_codecs_registry", qcomm_codecs_registry, dict)
        self.use_index_dedup = boolean(f"{where}: use_index_dedup", use_index_dedup)


class DynamicEmbeddingBagCollectionSharder(DynamicEmbeddingCollectionSharder):
    """The sharder of the EmbeddingBagCollections of a model. See DynamicEmbeddingCollectionSharder."""

    def __init__(
        self,
        fused_params: dict[str, typing.Any] | None = None,
        qcomm_codecs_registry: dict[str, typing.Any] | None = None,
    ) -> None:
        super().__init__(fused_params, qcomm_codecs_registry)


class ShardingPlan(dict):
    """{table: its completed DynamicEmbTableOptions, or None for a static table}.

    Attributes:
      configs: {table: its config}.
      world_size: processes that it is for.
    """

    def __init__(
        self,
        options: dict[str, DynamicEmbTableOptions | None],
        configs: dict[str, EmbeddingConfig],
        world_size: int,
    ) -> None:
        super().__init__(options)
        self.configs = configs
        self.world_size = world_size


class DynamicEmbeddingShardingPlanner:
    """Checks the options of tables, and fills in what follows from their configs.

    Args:
      eb_configs: list of the configs of all tables of the model.
      topology: its world_size divides tables. None: that of the enumerator, or a world of 1.
      batch_size: no effect.
      enumerator: a DynamicEmbeddingEnumerator of the same topology and constraints; or None.
      storage_reservation: a HeuristicalStorageReservation, or None. No effect.
      proposer, partitioner, performance_model, stats: None.
      constraints: {table: DynamicEmbParameterConstraints}, for each table of eb_configs.
      debug: True: collective_plan prints rows and bytes of each table.

    Raises:
      TypeError, ValueError: a bad value; a table without constraints, or constraints without a table.
      NotImplementedError: a proposer, partitioner, performance_model or stats.
    """

    def __init__(
        self,
        eb_configs: typing.Sequence[EmbeddingConfig],
        topology: Topology | None = None,
        batch_size: int | None = None,
        enumerator: DynamicEmbeddingEnumerator | None = None,
        storage_reservation: HeuristicalStorageReservation | None = None,
        proposer: None = None,
        partitioner: None = None,
        performance_model: None = None,
        stats: None = None,
        constraints: dict[str, DynamicEmbParameterConstraints] | None = None,
        debug: bool = True,
    ) -> None:
        where = self._where = type(self).__name__
        self._configs = _by_name(where, eb_configs)
        if enumerator is not None:
            instance(f"{where}: enumerator", enumerator, DynamicEmbeddingEnumerator)
            topology = enumerator.topology if topology is None else topology
        self._topology = Topology() if topology is None else topology
        _check_topology(f"{where}: topology", self._topology)
        if batch_size is not None:
            integer(f"{where}: batch_size", batch_size, 1)
        if storage_reservation is not None:
            instance(
                f"{where}: storage_reservation", storage_reservation, HeuristicalStorageReservation
            )
        _refuse_others(
            where,
            proposer=proposer,
            partitioner=partitioner,
            performance_model=performance_model,
            stats=stats,
        )
        instance(f"{where}: constraints", {} if constraints is None else constraints, dict)
        self._constraints = dict(constraints or {})
        for name, value in self._constraints.items():
            if not isinstance(value, DynamicEmbParameterConstraints):
                raise TypeError(
                    f"{where}: constraints['{name}']: expected DynamicEmbParameterConstraints, found {value!r}"
                )
        check_same(f"{where}: constraints", self._configs, self._constraints)
        if enumerator is not None:
            for name, own in (("topology", topology), ("constraints", constraints)):
                its = getattr(enumerator, name)
                if its is not None and its != own:
                    raise ValueError(
                        f"{where}: enumerator: expected the {name} of the planner, found {its!r}"
                    )
        self._debug = boolean(f"{where}: debug", debug)

    def collective_plan(
        self,
        module: typing.Any,
        sharders: typing.Sequence[DynamicEmbeddingCollectionSharder],
        pg: typing.Any = None,
    ) -> ShardingPlan:
        """The options of all tables of a module, completed. The constraints do not change.

        Args:
          module: a collection, or a module that has collections at any depth.
          sharders: a list of a DynamicEmbeddingCollectionSharder, of a DynamicEmbeddingBagCollectionSharder, or of one of each.
          pg: the process group. No effect.

        Raises:
          TypeError, ValueError: a bad value; the tables of the module are not those of the planner.
        """
        found = tables_of(f"{self._where}: module", module)
        fused_params = fused_params_of(f"{self._where}: sharders", sharders, found)
        check_same(f"{self._where}: module", self._configs, found)
        for name, (config, _) in found.items():
            check_config(f"{self._where}: module", config, self._configs[name])
        world_size, options = self._topology.world_size, {}
        for name, config in self._configs.items():
            its = self._constraints[name]
            if its.feature_names not in (None, config.feature_names):
                raise ValueError(
                    f"{self._where}: constraints['{name}']: feature_names: expected {config.feature_names}, those of the table, found "
                    f"{its.feature_names}"
                )
            is_dynamic = its.use_dynamicemb
            options[name] = (
                sizes.completed(config, its.dynamicemb_options, world_size) if is_dynamic else None
            )
        plan = ShardingPlan(options, dict(self._configs), world_size)
        if self._debug:
            print(_text_of(plan, {name: its["optimizer"] for name, its in fused_params.items()}))
        return plan


def _by_name(where, configs):
    configs = listed(f"{where}: eb_configs", configs, EmbeddingConfig)
    found = {config.name: config for config in configs}
    if len(found) != len(configs) or not found:
        names = [config.name for config in configs]
        raise ValueError(f"{where}: eb_configs: expected tables of different names, found {names}")
    return found


def check_same(where: str, expected: typing.Iterable, found: typing.Iterable) -> None:
    """ValueError: other names of tables."""
    if set(expected) != set(found):
        raise ValueError(
            f"{where}: expected the tables {sorted(expected)}, found {sorted(found)}: give one for each table of the model"
        )


def check_config(where: str, found: EmbeddingConfig, expected: EmbeddingConfig) -> None:
    """ValueError: another table of the same name."""
    if found != expected:
        raise ValueError(f"{where}: expected the table {expected}, found {found}")


def tables_of(where: str, module: typing.Any) -> dict[str, tuple]:
    """{table: (its config, its collection)} of a module."""
    tables: dict = {}
    for path, collection in find_collections(module, created=False):
        for config in configs_of(collection):
            if config.name in tables:
                raise ValueError(
                    f"{where}: expected tables of different names, found '{config.name}' twice, also in {path}"
                )
            tables[config.name] = (config, collection)
    if not tables:
        raise ValueError(
            f"{where}: expected a model with an EmbeddingCollection or EmbeddingBagCollection, found {module!r}"
        )
    return tables


def configs_of(collection: typing.Any) -> list:
    """The configs of a collection of either kind."""
    is_bag = isinstance(collection, EmbeddingBagCollection)
    return collection.embedding_bag_configs() if is_bag else collection.embedding_configs()


def fused_params_of(where: str, sharders: typing.Any, tables: dict) -> dict[str, dict]:
    """{table: the fused_params of its collection's sharder}.

    Args:
      where: starts messages.
      sharders: a list of a DynamicEmbeddingCollectionSharder, of a DynamicEmbeddingBagCollectionSharder, or of one of each.
      tables: what tables_of returned.

    Raises:
      TypeError: it is no such list.
      ValueError: two sharders of one class, or an EmbeddingCollection with a sharder of bags alone.
    """
    sharders = listed(where, sharders, DynamicEmbeddingCollectionSharder)
    by_class = {type(each): each for each in sharders}
    if not sharders or len(by_class) != len(sharders):
        raise ValueError(
            f"{where}: expected a DynamicEmbeddingCollectionSharder, a DynamicEmbeddingBagCollectionSharder or one of each, found {sharders!r}"
        )
    of_rows = by_class.get(DynamicEmbeddingCollectionSharder)
    of_bags = by_class.get(DynamicEmbeddingBagCollectionSharder, of_rows)
    found = {}
    for name, (_, collection) in tables.items():
        sharder = of_bags if isinstance(collection, EmbeddingBagCollection) else of_rows
        if sharder is None:
            raise ValueError(
                f"{where}: expected a DynamicEmbeddingCollectionSharder for table '{name}' of an EmbeddingCollection, found none"
            )
        found[name] = sharder.fused_params
    return found


def _text_of(plan, optimizers_of):
    """The rows and bytes of a plan, for people. optimizers_of: {table: EmbOptimType}."""
    lines = [f"plan for a world of {plan.world_size}: rows and bytes in each process"]
    for name, options in plan.items():
        config, optimizer = plan.configs[name], optimizers_of[name]
        if options is None:
            size = config.num_embeddings * config.embedding_dim * config.data_type.dtype.size
            lines.append(
                f"  {name}: a static variable of {config.num_embeddings:,} rows, {size:,} bytes"
            )
            continue
        states = optimizer if options.training else None
        row = sizes.row_bytes(options.dim, options.embedding_dtype, states)
        first = sizes.rows_of_first_tier(config, options, optimizer)
        is_bound = options.score_strategy is not DynamicEmbScoreStrategy.NO_EVICTION
        lines.append(
            f"  {name}: {'at most' if is_bound else 'not bounded by'} {options.max_capacity:,} rows of {row:,} bytes, "
            f"{options.max_capacity * row:,} bytes; "
            f"{options.storage_type}: {first:,} rows, {first * row:,} bytes in the first tier"
        )
    return "\n".join(lines)

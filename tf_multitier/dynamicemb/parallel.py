"""DistributedModelParallel: a model whose collections have tables, and the names of dynamicemb that are refused."""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.processes import world as worlds
from tf_multitier.dynamicemb import planner
from tf_multitier.dynamicemb.configs import listed
from tf_multitier.dynamicemb.planner import DynamicEmbeddingCollectionSharder
from tf_multitier.dynamicemb.planner import ShardingPlan
from tf_multitier.dynamicemb.walk import find_collections


class DistributedModelParallel(tf.Module):
    """A model whose collections have the tables of a plan.

        model = DistributedModelParallel(module, device, sharders=[sharder], plan=plan)
        with tf.GradientTape() as tape:
            loss = loss_of(model(features))
        model.apply_gradients(tape.gradient(loss, model.parameters()))

    With a CollectiveStrategy, tables are divided among its processes: pass gradients through its reduce_gradients.

    A KeyedJaggedTensor may have the features of all collections: each takes its own. `parameters` and `apply_gradients` are of the tables of all collections. Train dense variables by an optimizer of their own.

    Args:
      module: a collection, or a module that has collections at any depth. It is the same after: `model.module`.
      device: no effect: storage_type says where rows are.
      sharders: a list of a DynamicEmbeddingCollectionSharder, of a DynamicEmbeddingBagCollectionSharder, or of one of each.
      plan: what collective_plan returned for this module.

    Raises:
      TypeError, ValueError: a bad value; a plan for other tables, or for a world of another size. No collection has tables then.
      NotImplementedError: static tables in a world of several processes.
    """

    def __init__(
        self,
        module: typing.Any,
        device: typing.Any = None,
        sharders: typing.Sequence[DynamicEmbeddingCollectionSharder] | None = None,
        plan: ShardingPlan | None = None,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        del device
        if not isinstance(plan, ShardingPlan):
            raise TypeError(
                f"{where}: plan: expected what collective_plan returned, found {plan!r}"
            )
        tables = planner.tables_of(f"{where}: module", module)
        fused_params = planner.fused_params_of(f"{where}: sharders", sharders, tables)
        planner.check_same(f"{where}: plan", tables, plan)
        for name, (config, _) in tables.items():
            planner.check_config(f"{where}: plan", plan.configs[name], config)
        world = worlds.connected()
        size = 1 if world is None else world.size
        if plan.world_size != size:
            raise ValueError(
                f"{where}: plan: expected one for a world of {size}, found one for {plan.world_size}: plan with "
                f"Topology(world_size={size}), or make a tf_multitier.distribute.CollectiveStrategy first"
            )
        self.module = module
        self._collections = [each for _, each in find_collections(module, created=False)]
        names = [[c.name for c in planner.configs_of(each)] for each in self._collections]
        with worlds.scope(world):
            plans = [
                each.planned({name: plan[name] for name in its}, fused_params[its[0]])
                for each, its in zip(self._collections, names)
            ]
            made = [each.make() for each in plans]
        features = {name for config, _ in tables.values() for name in config.feature_names}
        weighted = [getattr(each, "is_weighted", lambda: False)() for each in self._collections]
        for collection, its, is_weighted in zip(self._collections, made, weighted):
            collection.take(its)
            collection.features_of_model = frozenset(features)
            collection.weights_are_of_others = any(weighted) and not is_weighted

    @property
    def stands_for(self) -> typing.Any:
        """The module, whose paths in dumps and scores are those without this wrapper."""
        return self.module

    def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """The result of the module."""
        return self.module(*args, **kwargs)

    def train(self, mode: bool = True) -> DistributedModelParallel:
        """Makes the collections train, or with False evaluate, in calls without `training`. Returns the model."""
        for collection in self._collections:
            collection.train() if mode else collection.eval()
        return self

    def eval(self) -> DistributedModelParallel:
        """Makes the collections evaluate in calls without `training`. Returns the model."""
        return self.train(False)

    def parameters(self) -> list:
        """The variables of the tables of all collections, in order."""
        return [variable for each in self._collections for variable in each.parameters()]

    def apply_gradients(self, gradients: typing.Sequence) -> None:
        """Updates the tables.

        Args:
          gradients: of the variables of `parameters`, in their order. A table whose gradient is None is not trained.

        Raises:
          RuntimeError: all tables have training=False.
          TypeError: no list.
          ValueError: another number of gradients, or all are None.
        """
        gradients = listed(f"{type(self).__name__}: gradients", gradients)
        parameters = self.parameters()
        if len(gradients) != len(parameters):
            raise ValueError(
                f"{type(self).__name__}: gradients: expected {len(parameters)}, one for each of parameters(), found {len(gradients)}"
            )
        has_none = all(gradient is None for gradient in gradients)
        for collection in self._collections:
            count = len(collection.parameters())
            its, gradients = gradients[:count], gradients[count:]
            if has_none or any(
                gradient is not None for gradient in its
            ):  # none at all: it says why not
                collection.apply_gradients(its)


def BatchedDynamicEmbeddingTablesV2(
    *unused: typing.Any, **also_unused: typing.Any
) -> typing.NoReturn:
    """NotImplementedError: an EmbeddingCollection has its tables."""
    raise NotImplementedError(
        "dynamicemb.BatchedDynamicEmbeddingTablesV2: its tensors are those of a CUDA kernel: use EmbeddingCollection.create"
    )


def InferenceEmbeddingTable(*unused: typing.Any, **also_unused: typing.Any) -> typing.NoReturn:
    """NotImplementedError: a SavedModel serves tables."""
    raise NotImplementedError(
        "dynamicemb.InferenceEmbeddingTable: it is an operator of PyTorch: serve the model with tf.saved_model or tf_multitier.serving"
    )

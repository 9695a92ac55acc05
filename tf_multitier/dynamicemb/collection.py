"""EmbeddingCollection and EmbeddingBagCollection: tables that are looked up and updated together.

    features   user, friend    movie           dict of ragged, sparse or dense ids, or a KeyedJaggedTensor
                  |      |        |
    tables        user_id      movie_id        one variable each; the ids of its features are one list
                  |               |
                 one grouped lookup     -->    {feature: rows}
                 one grouped update     <--    gradients of parameters()

Life: the constructor takes the configs and allocates nothing. `create`, or a DistributedModelParallel, makes the variables.
"""

from __future__ import annotations

import typing
import warnings
import weakref

import numpy as np
import tensorflow as tf

from tf_multitier import nn
from tf_multitier._src.options.option_values import boolean
from tf_multitier.dynamicemb import features as inputs
from tf_multitier.dynamicemb.base_collection import Collection
from tf_multitier.dynamicemb.configs import EmbeddingBagConfig
from tf_multitier.dynamicemb.enums import PoolingType
from tf_multitier.dynamicemb.walk import find_collections


# {variable: keys that left and were not noted, when pop_evicted_keys was called}.
_lost: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class EmbeddingCollection(Collection):
    """Tables that give a row for each id.

        ec = EmbeddingCollection([EmbeddingConfig("user_id", 64, 1 << 24, ["user", "friend"])])
        model = ec.create({"user_id": DynamicEmbTableOptions()}, {"optimizer": EmbOptimType.ADAM})
        rows = model({"user": ids}, training=True)["user"]

    Args:
      tables: EmbeddingConfigs. Several features may share a table; a feature of two tables has the results "feature@table".
      device: of PyTorch. No effect: a collection allocates nothing before `create`.

    Raises:
      TypeError, ValueError: no EmbeddingConfig, or a name twice.
    """

    def __call__(self, features: typing.Any, training: bool | None = None) -> dict:
        """Looks ids up. No lookup makes a row: training does.

        Args:
          features: {feature: ids}, or a KeyedJaggedTensor. Ids are integers of index_type: ragged, sparse [batch, any], or dense.
          training: False: an absent key reads as eval_initializer_args say, and there is no gradient. None: see train and eval.

        Returns:
          {feature: rows}: of dense ids ids.shape + [embedding_dim], of others a RaggedTensor with a row for each id; in the type of
          output_dtype. A feature that is not given is not in it.

        Raises:
          RuntimeError: `create` was not called; or training of a table with training=False.
          TypeError, ValueError: ids of another type or shape; an unknown feature; weights.
        """
        return self._call(features, None, training)

    def _look_up(self, tables, asked, ids, weights, training):
        if weights:
            raise ValueError(
                f"{self._where}: weights: expected none, found those of {list(weights)}: an EmbeddingBagCollection with "
                "is_weighted=True has weights"
            )
        forms: dict = {}  # {(feature, name): the ragged tensor of ids, or the shape of dense ones}
        keys = []
        for table in tables:
            flat = []
            for feature, out in asked[table.config.name]:
                its = ids[feature]
                if inputs.is_ragged(its):
                    form = inputs.ragged(f"{self._where}: feature '{feature}'", its)
                    its = inputs.keys_of(table, feature, form.flat_values)
                else:
                    form = its = inputs.keys_of(table, feature, its)
                forms[feature, out] = form
                flat.append(tf.reshape(its, [-1]))
            keys.append(flat)
        values = nn.group_embedding_lookup(
            [table.variable for table in tables],
            [flat[0] if len(flat) == 1 else tf.concat(flat, 0) for flat in keys],
            training=training,
            output_dtype=self.fused_params["output_dtype"].dtype,
        )
        found = {}
        for table, flat, rows in zip(tables, keys, self._with_gradients(values, training)):
            sizes = [tf.size(its) for its in flat]
            parts = [rows] if len(flat) == 1 else tf.split(rows, sizes, num=len(flat))
            for where, part in zip(asked[table.config.name], parts):
                found[where] = _shaped(part, forms[where])
        return found


def _shaped(rows, form):
    """Rows [n, dim] in the form of their ids."""
    if isinstance(form, tf.RaggedTensor):
        if form.flat_values.shape.rank != 1:
            rows = _shaped(rows, form.flat_values)
        return form.with_flat_values(rows)
    if form.shape.rank == 1:
        return rows
    shaped = tf.reshape(rows, tf.concat([tf.shape(form), [rows.shape[-1]]], 0))
    shaped.set_shape(form.shape.concatenate(rows.shape[-1:]))
    return shaped


class EmbeddingBagCollection(Collection):
    """Tables that pool the rows of each bag of ids: SUM or MEAN, as the config of the table says.

    Args:
      tables: EmbeddingBagConfigs. Several features may share a table; a feature of two tables has the results "feature@table".
      is_weighted: True: each id has a weight, by which its row is multiplied. MEAN divides by the number of ids.
      device: of PyTorch. No effect: a collection allocates nothing before `create`.

    Raises:
      TypeError, ValueError: no EmbeddingBagConfig, or a name twice.
    """

    _CONFIG = EmbeddingBagConfig

    def __init__(
        self, tables: typing.Any, is_weighted: bool = False, device: typing.Any = None
    ) -> None:
        self._is_weighted = boolean("EmbeddingBagCollection: is_weighted", is_weighted)
        super().__init__(tables, device)

    def is_weighted(self) -> bool:
        """Whether each id has a weight."""
        return self._is_weighted

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """The configs of the tables."""
        return list(self._configs.values())

    def __call__(
        self, features: typing.Any, weights: typing.Any = None, training: bool | None = None
    ) -> dict:
        """Looks ids up and pools their rows. No lookup makes a row: training does.

        Args:
          features: {feature: ids}, or a KeyedJaggedTensor. Ids are integers of index_type: ragged or sparse [batch, any], or dense
            [batch, any] or [batch].
          weights: {feature: floats in the form of its ids}, with is_weighted. Those of a KeyedJaggedTensor are in it.
          training: False: an absent key reads as eval_initializer_args say, and there is no gradient. None: see train and eval.

        Returns:
          {feature: [batch, embedding_dim]} in the type of output_dtype; zeros for an empty bag. A feature that is not given is not in it.

        Raises:
          RuntimeError: `create` was not called; or training of a table with training=False.
          TypeError, ValueError: ids or weights of another type or shape; an unknown feature; weights without is_weighted, or none with.
        """
        return self._call(features, weights, training)

    def form_of(self, shape: typing.Any, is_ragged: bool) -> tuple:
        """See EmbeddingCollection: bags are pooled."""
        return shape[:1], False

    def _look_up(self, tables, asked, ids, weights, training):
        if bool(weights) != self._is_weighted or (weights and set(weights) != set(ids)):
            expected = f"those of {list(ids)}" if self._is_weighted else "none"
            raise ValueError(
                f"{self._where}: weights: expected {expected}, because is_weighted is {self._is_weighted}, found "
                f"{list(weights) or 'none'}"
            )
        bags, its_weights, combiners, counts = [], [], [], []
        for table in tables:
            is_mean = table.config.pooling is PoolingType.MEAN
            parts, its = [], []
            for feature, _ in asked[table.config.name]:
                where = f"{self._where}: feature '{feature}'"
                bag = inputs.bags(where, ids[feature])
                bag = bag.with_flat_values(inputs.keys_of(table, feature, bag.flat_values))
                parts.append(bag)
                if self._is_weighted:
                    its.append(
                        inputs.weights_of(f"{where}: weights", weights[feature], bag, is_mean)
                    )
            bags.append(inputs.concatenated(parts))
            its_weights.append(bags[-1].with_flat_values(tf.concat(its, 0)) if its else None)
            combiners.append("mean" if is_mean and not its else "sum")
            counts.append([part.nrows() for part in parts])
        values = nn.group_embedding_lookup_sparse(
            [table.variable for table in tables],
            bags,
            combiners,
            its_weights if self._is_weighted else None,
            training=training,
            output_dtype=self.fused_params["output_dtype"].dtype,
        )
        found = {}
        for table, rows, batches in zip(tables, self._with_gradients(values, training), counts):
            parts = [rows] if len(batches) == 1 else tf.split(rows, batches, num=len(batches))
            found.update(zip(asked[table.config.name], parts))
        return found


def pop_evicted_keys(model: typing.Any) -> dict[str, dict[str, np.ndarray]]:
    """The keys that left the tables for good since the last call, each once.

    A key that came back is not among them. A table notes as many of the newest as `StorageOption.dropped_bytes` hold, about a million;
    a warning says if there were more.

    Returns:
      {path of the collection: {table: keys [n]}}, in the type of index_type. Static tables have none.
    """
    return {
        path: {
            name: _evicted(path, table)
            for name, table in collection.tables_by_name.items()
            if not table.is_static
        }
        for path, collection in find_collections(model)
    }


def _evicted(path, table):
    variable = table.variable
    keys = tf.unique(variable.pop_dropped())[0]
    lost = variable.stats()["dropped_lost"]
    if lost > _lost.get(variable, 0):
        warnings.warn(
            f"pop_evicted_keys: table '{table.config.name}' of '{path}': expected a call before more keys left than its list holds, found "
            f"{lost - _lost.get(variable, 0)} that the table did not note: call it more often",
            stacklevel=3,
        )
    _lost[variable] = lost
    return keys.numpy()[variable.get_version(keys).numpy() == -1]

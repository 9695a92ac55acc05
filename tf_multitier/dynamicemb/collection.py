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

import collections
import types
import typing

import numpy as np
import tensorflow as tf

from tf_multitier import nn
from tf_multitier.dynamicemb import features as inputs
from tf_multitier.dynamicemb import optimizers
from tf_multitier.dynamicemb.configs import EmbeddingBagConfig
from tf_multitier.dynamicemb.configs import EmbeddingConfig
from tf_multitier.dynamicemb.enums import DynamicEmbCheckMode
from tf_multitier.dynamicemb.enums import PoolingType
from tf_multitier.dynamicemb.static_tables import StaticTables
from tf_multitier.dynamicemb.tables import Table
from tf_multitier.dynamicemb.tables import TablePlan
from tf_multitier.dynamicemb.walk import find_collections
from tf_multitier.option_values import boolean
from tf_multitier.option_values import real


class _Collection(tf.Module):
    """What both collections share. A subclass says how ids become rows: _look_up."""

    _CONFIG: typing.Any = EmbeddingConfig

    def __init__(self, tables: typing.Any, device: typing.Any = None) -> None:
        super().__init__(name="embedding_collection")
        del device  # create makes variables where a scope of TensorFlow says
        self._configs = types.MappingProxyType(_by_name(tables, self._CONFIG, self._where))
        shared = collections.Counter(
            feature for config in self._configs.values() for feature in config.feature_names
        )
        # {table: [(feature, its name in the result)]}. A feature of two tables has two results.
        self._features = types.MappingProxyType(
            {
                name: tuple(
                    (feature, feature if shared[feature] == 1 else f"{feature}@{name}")
                    for feature in config.feature_names
                )
                for name, config in self._configs.items()
            }
        )
        self.training = True
        self.tables_by_name: typing.Any = types.MappingProxyType({})
        self.custom_scores: dict = {}
        self.fused_params: typing.Any = None
        self.row_optimizer: typing.Any = None

    @property
    def _where(self):
        return f"dynamicemb.{type(self).__name__}"

    def create(self, options: dict, fused_params: dict) -> typing.Any:
        """Makes the variables of all tables, and their optimizer.

        Args:
          options: {table: DynamicEmbTableOptions}, for each table; None: a static table, a tf.Variable [num_embeddings, dim] whose ids
            are row numbers.
          fused_params: see optimizers.completed.

        Returns:
          The collection.

        Raises:
          TypeError, ValueError: a bad value; or options of other tables. Nothing is made.
          RuntimeError: the collection has variables.
        """
        if self.tables_by_name:
            raise RuntimeError(
                f"{self._where}: create: expected one call, found a second one: the collection has tables already"
            )
        given = list(self._configs)
        if set(options) != set(given):
            raise ValueError(
                f"{self._where}: options: expected those of the tables {given}, found {list(options)}"
            )
        fused_params = optimizers.completed(fused_params)
        plans = [
            TablePlan(config, options[name], fused_params["optimizer"])
            for name, config in self._configs.items()
        ]
        row_optimizer = optimizers.of_fused_params(fused_params)
        tables = {table.config.name: table for table in [plan.make() for plan in plans]}
        dynamic = [t.variable for t in tables.values() if t.trains and not t.is_static]
        row_optimizer.build(dynamic)
        self.fused_params = types.MappingProxyType(fused_params)
        self.tables_by_name = types.MappingProxyType(tables)
        # What tf.train.Checkpoint saves.
        self.row_optimizer = row_optimizer
        self.variables_by_name = {name: table.variable for name, table in tables.items()}
        self.custom_scores = {
            name: tf.Variable(0, trainable=False, dtype=tf.int64, name=f"{name}/score")
            for name, table in tables.items()
            if table.strategy is not None and table.strategy.score == "custom"
        }
        static = {name: t.variable for name, t in tables.items() if t.is_static}
        self._static_tables = StaticTables(row_optimizer, static) if static else None
        return self

    def check_created(self, where: str) -> None:
        """RuntimeError: the collection has no variables yet."""
        if not self.tables_by_name:
            raise RuntimeError(
                f"{where}: expected a collection with variables, found one without: call create(options, fused_params), or give it to "
                "DistributedModelParallel"
            )

    def train(self, mode: bool = True) -> typing.Any:
        """Makes calls without `training` lookups for training, and returns the collection. A traced function keeps its mode."""
        self.training = boolean(f"{self._where}.train: mode", mode)
        return self

    def eval(self) -> typing.Any:
        """Makes calls without `training` lookups for evaluation, and returns the collection. A traced function keeps its mode."""
        return self.train(False)

    def parameters(self) -> list:
        """The variables that train, in the order of the tables: for tapes and apply_gradients."""
        self.check_created(self._where)
        return [table.variable for table in self.tables_by_name.values() if table.trains]

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of all tables. TypeError: no number."""
        self.check_created(self._where)
        self.row_optimizer.learning_rate = real(f"{self._where}: learning_rate", learning_rate)

    def apply_gradients(self, gradients: typing.Any) -> None:
        """Trains the tables: one step.

        Args:
          gradients: of parameters(), in their order, as a tape gives them. A table whose gradient is None is not trained.

        Raises:
          RuntimeError: all tables have training=False.
          ValueError: another number of gradients, or all are None.
          tf.errors.InvalidArgumentError, when run: safe_check_mode ERROR, and keys got no row; or a table with CUSTOMIZED has no score.
        """
        parameters, gradients = self.parameters(), list(gradients)
        if not parameters:
            raise RuntimeError(
                f"{self._where}: apply_gradients: expected tables with training=True, found {list(self.tables_by_name)} with "
                "training=False, which have no states of an optimizer"
            )
        if len(gradients) != len(parameters):
            raise ValueError(
                f"{self._where}: gradients: expected {len(parameters)}, one for each of parameters(), found {len(gradients)}"
            )
        if all(gradient is None for gradient in gradients):
            raise ValueError(
                f"{self._where}: gradients: expected one that is not None: the loss depends on no lookup in training"
            )
        its = {id(variable): gradient for variable, gradient in zip(parameters, gradients)}
        self._update(
            [
                (table, its[id(table.variable)])
                for table in self.tables_by_name.values()
                if table.trains and its[id(table.variable)] is not None
            ]
        )

    def _update(self, trained):
        """Trains the tables of [(table, gradient)] in one step."""
        static = [(t.config.name, t.variable, g) for t, g in trained if t.is_static]
        dynamic = [(t, g) for t, g in trained if not t.is_static]
        for table, _ in dynamic:
            self._use_custom_score(table)
        if static:
            self._static_tables.update(static)
        if dynamic:
            self.row_optimizer.apply_gradients([(g, t.variable) for t, g in dynamic])
        else:
            self.row_optimizer._step_done()
            self.row_optimizer.iterations.assign_add(1)
        for table, _ in dynamic:
            _check_rows(table)

    def _use_custom_score(self, table):
        """Gives the table the score of set_score. A restored table has none of its own."""
        score = self.custom_scores.get(table.config.name)
        if score is None:
            return
        is_set = tf.debugging.assert_none_equal(
            score,
            tf.constant(0, tf.int64),
            message=f"table '{table.config.name}': expected a score for CUSTOMIZED, found none: call set_score before the first update",
        )
        with tf.control_dependencies([] if is_set is None else [is_set]):
            table.variable.set_score(tf.identity(score))

    # ---- lookups

    def _call(self, features, weights, training):
        """{name: rows} of features."""
        self.check_created(self._where)
        training = self.training if training is None else training
        boolean(f"{self._where}: training", training)
        names = [feature for its in self._features.values() for feature, _ in its]
        ids, weights = inputs.of_input(self._where, features, weights, dict.fromkeys(names))
        asked = {
            name: [(feature, out) for feature, out in its if feature in ids]
            for name, its in self._features.items()
        }
        tables = [self.tables_by_name[name] for name, its in asked.items() if its]
        if not tables:
            return {}
        frozen = [table.config.name for table in tables if training and not table.trains]
        if frozen:
            raise RuntimeError(
                f"{self._where}: training: expected False for tables with training=False, found True for {frozen}: call eval(), or "
                "give the call training=False"
            )
        found = self._look_up(tables, asked, ids, weights, training)
        # In the order of the input.
        return {
            out: found[feature, out]
            for feature in ids
            for its in asked.values()
            for one, out in its
            if one == feature
        }

    def _look_up(self, tables, asked, ids, weights, training):
        """{(feature, name): rows} of the tables of the features that are asked."""
        raise NotImplementedError

    def _clipped(self, values):
        """`values`, whose gradients are clipped element by element where fused_params say so."""
        if not self.fused_params["gradient_clipping"]:
            return values
        limit = self.fused_params["max_gradient"]

        @tf.custom_gradient
        def clipped(value):
            return tf.identity(value), lambda grad: tf.clip_by_value(grad, -limit, limit)

        return [clipped(value) for value in values]

    def keras_layer(self, **kwargs: typing.Any) -> typing.Any:
        """A layer of Keras that calls the collection and trains its tables by its own optimizer in `fit`. kwargs: of keras.layers.Layer."""
        from tf_multitier.dynamicemb.keras_layer import DynamicEmbedding

        return DynamicEmbedding(self, **kwargs)


class EmbeddingCollection(_Collection):
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

    def embedding_configs(self) -> list[EmbeddingConfig]:
        """The configs of the tables."""
        return list(self._configs.values())

    def __call__(self, features: typing.Any, training: bool | None = None) -> dict:
        """Looks ids up. No lookup makes a row: training does.

        Args:
          features: {feature: ids}, or a KeyedJaggedTensor. Ids are integers of index_type: ragged, sparse [batch, any], or dense.
          training: False: an absent key reads as eval_initializer_args say. None: see train and eval.

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
        for table, flat, rows in zip(tables, keys, self._clipped(values)):
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


class EmbeddingBagCollection(_Collection):
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
          training: False: an absent key reads as eval_initializer_args say. None: see train and eval.

        Returns:
          {feature: [batch, embedding_dim]} in the type of output_dtype; zeros for an empty bag. A feature that is not given is not in it.

        Raises:
          RuntimeError: `create` was not called; or training of a table with training=False.
          TypeError, ValueError: ids or weights of another type or shape; an unknown feature; weights without is_weighted, or none with.
        """
        return self._call(features, weights, training)

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
        for table, rows, batches in zip(tables, self._clipped(values), counts):
            parts = [rows] if len(batches) == 1 else tf.split(rows, batches, num=len(batches))
            found.update(zip(asked[table.config.name], parts))
        return found


def _by_name(tables, kind, where):
    """{name: config} of checked configs."""
    if not isinstance(tables, (list, tuple)) or not tables:
        raise (ValueError if isinstance(tables, (list, tuple)) else TypeError)(
            f"{where}: tables: expected a list of {kind.__name__}, found {tables!r}"
        )
    by_name: dict = {}
    for config in tables:
        is_bag = isinstance(config, EmbeddingBagConfig)
        if not isinstance(config, kind) or is_bag is not (kind is EmbeddingBagConfig):
            raise TypeError(
                f"{where}: tables: expected a list of {kind.__name__}, found {config!r}"
            )
        if config.name in by_name:
            raise ValueError(
                f"{where}: tables: expected different names, found '{config.name}' twice"
            )
        by_name[config.name] = config
    return by_name


def _check_rows(table: Table) -> None:
    """What safe_check_mode does about keys of the last update that got no row."""
    options: typing.Any = table.options
    mode = options.safe_check_mode
    if mode is DynamicEmbCheckMode.IGNORE:
        return
    text = (
        f"table '{table.config.name}': safe_check_mode {mode.name}: expected a row for each key of the update, found none for {{}} keys: "
        f"all {options.max_capacity} rows have higher scores"
    )
    refused = table.variable.last_update().refused
    warn = lambda count: tf.get_logger().warning(text.format(count))
    if not tf.executing_eagerly():
        if mode is DynamicEmbCheckMode.ERROR:
            tf.debugging.Assert(refused == 0, [tf.strings.format(text, refused)])
        else:
            say = lambda: tf.group(tf.numpy_function(warn, [refused], []))
            tf.cond(refused > 0, say, tf.no_op)
    elif refused > 0 and mode is DynamicEmbCheckMode.ERROR:
        raise tf.errors.InvalidArgumentError(None, None, text.format(refused))
    elif refused > 0:
        warn(refused)


def pop_evicted_keys(model: typing.Any) -> dict[str, dict[str, np.ndarray]]:
    """The keys that left the tables for good since the last call, each once.

    A key that came back is not among them. A table notes as many of the newest as `StorageOption.dropped_bytes` hold, about a million;
    a warning says if there were more.

    Returns:
      {path of the collection: {table: keys [n]}}, in the type of index_type. Static tables have none.
    """
    return {
        path: {
            name: _evicted(table)
            for name, table in collection.tables_by_name.items()
            if not table.is_static
        }
        for path, collection in find_collections(model)
    }


def _evicted(table):
    keys = tf.unique(table.variable.pop_dropped())[0]
    return keys.numpy()[table.variable.get_version(keys).numpy() == -1]

"""Collection: what both collections share. The variables of its tables, and their training."""

from __future__ import annotations

import collections
import collections.abc
import types
import typing

import tensorflow as tf

from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.options.option_values import real
from tf_multitier._src.processes import strategies
from tf_multitier._src.processes import world as worlds
from tf_multitier._src.training import gradient_pairs
from tf_multitier.dynamicemb import features as inputs
from tf_multitier.dynamicemb import optimizers
from tf_multitier.dynamicemb import scores
from tf_multitier.dynamicemb.configs import EmbeddingBagConfig
from tf_multitier.dynamicemb.configs import EmbeddingConfig
from tf_multitier.dynamicemb.configs import listed
from tf_multitier.dynamicemb.enums import DynamicEmbCheckMode
from tf_multitier.dynamicemb.static_tables import StaticTables
from tf_multitier.dynamicemb.tables import Table
from tf_multitier.dynamicemb.tables import TablePlan


class Collection(tf.Module):
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
        results = collections.Counter(out for its in self._features.values() for _, out in its)
        twice = [name for name, count in results.items() if count > 1]
        if twice:
            raise ValueError(
                f"{self._where}: expected features whose results have different names, found {twice} twice: a feature of two tables has "
                "the results feature@table"
            )
        self.training = True
        # What a KeyedJaggedTensor for all collections of a model has: DistributedModelParallel says it.
        self.features_of_model: frozenset = frozenset()
        self.weights_are_of_others = False
        self.tables_by_name: typing.Any = types.MappingProxyType({})
        self.custom_scores: typing.Any = types.MappingProxyType({})
        self.fused_params: typing.Any = None
        self.row_optimizer: typing.Any = None

    @property
    def _where(self):
        return f"dynamicemb.{type(self).__name__}"

    def embedding_configs(self) -> list:
        """The configs of the tables."""
        return list(self._configs.values())

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
          NotImplementedError: in the scope of a ParameterServerStrategy; static tables in that of several processes.
        """
        return self.take(self.planned(options, fused_params).make())

    def planned(self, options: typing.Any, fused_params: typing.Any) -> CollectionPlan:
        """What `create` makes, checked. Arguments and errors: those of create."""
        if self.tables_by_name:
            raise RuntimeError(
                f"{self._where}: create: expected one call, found a second one: the collection has tables already"
            )
        if (
            strategies.with_servers() is not None
        ):  # a step that is in flight is known in one process
            raise NotImplementedError(
                f"{self._where}: create: expected tables in this process, found the scope of a ParameterServerStrategy: make them "
                "outside of it, or use tf_multitier.get_embedding_variable on servers"
            )
        if not isinstance(options, collections.abc.Mapping):
            raise TypeError(
                f"{self._where}: options: expected a dict from tables to DynamicEmbTableOptions or None, found {options!r}"
            )
        given = list(self._configs)
        if set(options) != set(given):
            raise ValueError(
                f"{self._where}: options: expected those of the tables {given}, found {list(options)}"
            )
        world = worlds.current()
        static = [name for name, its in options.items() if its is None]
        if world is not None and static:
            raise NotImplementedError(
                f"{self._where}: options: expected DynamicEmbTableOptions in a world of several processes, found the static tables "
                f"{static}: give them options"
            )
        return CollectionPlan(
            self._configs, options, fused_params, 1 if world is None else world.size
        )

    def take(self, made: CollectionPlan) -> typing.Any:
        """Takes the tables of a plan that made them. Returns the collection."""
        tables = made.tables
        self.fused_params = types.MappingProxyType(made.fused_params)
        self.tables_by_name = types.MappingProxyType(tables)
        # What tf.train.Checkpoint saves.
        self.row_optimizer = made.row_optimizer
        self.variables_by_name = {name: table.variable for name, table in tables.items()}
        self.custom_scores = {
            name: scores.variable(f"{name}/score")
            for name, table in tables.items()
            if table.strategy is not None and table.strategy.score == "custom"
        }
        static = {name: t.variable for name, t in tables.items() if t.is_static}
        self._static_tables: typing.Any = (
            StaticTables(made.row_optimizer, static) if static else None
        )
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
          TypeError: no list.
          ValueError: another number of gradients, or all are None.
          tf.errors.InvalidArgumentError, when run: safe_check_mode ERROR, and keys got no row; or a table with CUSTOMIZED has no score.
        """
        parameters = self.parameters()
        gradients = listed(f"{self._where}: gradients", gradients)
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
                f"{self._where}: gradients: expected one that is not None: the loss depends on no lookup with training=True"
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
        self.update_in(self.begin_step(), trained)
        self.end_step()
        self.check_rows(trained)

    def begin_step(self) -> typing.Any:
        """The next step: its number, with which it is in flight (scores.py), and hyperparameters."""
        tables = [t.variable for t in self.tables_by_name.values() if not t.is_static]
        strategies.check_update(self._where, tables)
        optimizer = self.row_optimizer
        rate = optimizer._now(optimizer.learning_rate)
        return scores.begin_step(self), optimizer._hyper(rate)

    def update_in(self, step: typing.Any, trained: typing.Any) -> None:
        """Trains the tables of [(table, gradient)] in a step, which may have several such updates."""
        static = [(t.config.name, t.variable, g) for t, g in trained if t.is_static]
        dynamic = [(t, g) for t, g in trained if not t.is_static]
        for table, _ in dynamic:
            self._use_custom_score(table)
        if static:
            self._static_tables.update(static, step[1])
        if dynamic:
            pairs = [(gradient, table.variable) for table, gradient in dynamic]
            self.row_optimizer._update_rows(
                gradient_pairs.trained_pairs(pairs, type(self).__name__), *step
            )

    def end_step(self) -> None:
        """Counts a step. Call it once a step, after its first update."""
        self.row_optimizer._step_done()
        self.row_optimizer.iterations.assign_add(1)

    def check_rows(self, trained: typing.Any) -> None:
        """Does what safe_check_mode says of the tables of [(table, gradient)], which were updated."""
        for table, _ in trained:
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
        ids, weights = inputs.of_input(
            self._where,
            features,
            weights,
            dict.fromkeys(names),
            self.features_of_model,
            self.weights_are_of_others,
        )
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

    def results_of(self, feature: str) -> list:
        """[(name in the result, table)] of a feature. ValueError: there is none of that name."""
        found = [
            (out, self.tables_by_name[name])
            for name, its in self._features.items()
            for one, out in its
            if one == feature
        ]
        if not found:
            raise ValueError(f"{self._where}: features: found {feature!r}, which no table has")
        return found

    def form_of(self, shape: typing.Any, is_ragged: bool) -> tuple:
        """(the shape of results without embedding_dim, whether they are ragged) for ids of a shape."""
        return shape, is_ragged

    def _with_gradients(self, values, training):
        """`values` with the gradients that tables take: in evaluation none; otherwise clipped where fused_params say so."""
        if not training:
            return [tf.stop_gradient(value) for value in values]
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


class CollectionPlan:
    """The tables that a collection will have: all is checked here, and `make` makes them.

    Args:
      configs: {table: its config}.
      options, fused_params: see Collection.create.
      world_size: processes among which the tables are divided.

    Attributes:
      fused_params: completed.
      tables: {table: Table}. row_optimizer: of their rows. Both are there after `make`.
    """

    def __init__(
        self, configs: typing.Any, options: typing.Any, fused_params: typing.Any, world_size: int
    ) -> None:
        self.fused_params = optimizers.completed(fused_params)
        self._plans = [
            TablePlan(config, options[name], self.fused_params["optimizer"], world_size)
            for name, config in configs.items()
        ]
        self.tables: dict = {}
        self.row_optimizer: typing.Any = None

    def make(self) -> CollectionPlan:
        """Makes the tables. Returns the plan."""
        self.row_optimizer = optimizers.of_fused_params(self.fused_params)
        self.tables = {table.config.name: table for table in [p.make() for p in self._plans]}
        dynamic = [t.variable for t in self.tables.values() if t.trains and not t.is_static]
        self.row_optimizer.build(dynamic)
        return self


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
    if table.is_static or options.safe_check_mode is DynamicEmbCheckMode.IGNORE:
        return
    mode = options.safe_check_mode
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

"""DynamicEmbedding: a layer of Keras that calls a collection. `collection.keras_layer()` makes it."""

from __future__ import annotations

import collections.abc
import inspect
import typing

import keras
import tensorflow as tf

from tf_multitier import optimizers as row_optimizers
from tf_multitier._src.execution import graph_state
from tf_multitier.dynamicemb.jagged import KeyedJaggedTensor
from tf_multitier.keras import layer_ids
from tf_multitier.keras.layers import is_training
from tf_multitier.keras.layers import RowsLayer
from tf_multitier.keras.rows import _calling_optimizers


class _EagerStep:
    """An eager step of a Keras model, which is in flight until all tables are trained, or until the next one.

    It is no attribute of StepsOfFit: TensorFlow keeps what attributes of modules were.
    """

    which: typing.Any = None
    step: typing.Any = None
    to_train: frozenset = frozenset()


class StepsOfFit(row_optimizers.RowOptimizer):
    """Trains the tables of a collection in the steps of a Keras model, which updates the variables of a step one by one.

    All updates of a step have the step's number and hyperparameters. The first of them counts the step.
    """

    def __init__(self, collection: typing.Any) -> None:
        # No state of its own: that of the collection's optimizer counts.
        tf.Module.__init__(self, name="steps_of_fit")
        self._of_collection = lambda: collection  # in a function: Keras would take its variables
        # Of each table's variable, or of its one part in this process.
        tables = collection.tables_by_name.values()
        self._tables = {id(t.variable.parts[0]): t for t in tables if not t.is_static}
        self._eager = _EagerStep()

    @property
    def learning_rate(self) -> typing.Any:
        """That of the collection."""
        return self._of_collection().row_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: typing.Any) -> None:
        self._of_collection().row_optimizer.learning_rate = value

    @property
    def rate_is_given(self) -> typing.Any:
        """That of the collection."""
        return self._of_collection().row_optimizer.rate_is_given

    def _now(self, value):
        return self._of_collection().row_optimizer._now(value)

    def rate_unless_given(self, rate: typing.Any) -> tf.Tensor:
        """The learning rate of the collection. That of the model is for its dense variables."""
        return self._now(self.learning_rate)

    def twin(self) -> StepsOfFit:
        """Itself: the tables of a collection have the same steps."""
        return self

    def named_variables(self) -> dict:
        """Those of the collection's optimizer."""
        return self._of_collection().row_optimizer.named_variables()

    def build(self, variables: typing.Any) -> None:
        """Nothing: `create` has added the states."""

    def apply_gradients(
        self, grads_and_vars: typing.Any, name: str | None = None, learning_rate: typing.Any = None
    ) -> tf.Tensor:
        """Trains tables. See RowOptimizer.apply_gradients; the learning rate is that of the collection."""
        collection = self._of_collection()
        trained = []
        for grad, variable in grads_and_vars:
            table = self._tables[id(variable)]
            trained.append((table, grad if table.variable is variable else [grad]))
        step, is_new = self._step_of_model()
        collection.update_in(step, trained)
        if is_new:
            collection.end_step()
        collection.check_rows(trained)
        if tf.executing_eagerly():
            eager = self._eager
            eager.to_train -= {id(table.variable.parts[0]) for table, _ in trained}
            if not eager.to_train or eager.which is None:
                eager.which = eager.step = None
        return tf.identity(collection.row_optimizer.iterations)

    def _step_of_model(self):
        """(the step that the calling Keras optimizer is in, whether this is its first update)."""
        of_model = (_calling_optimizers() or [None])[-1]
        if tf.executing_eagerly():
            which = None if of_model is None else (id(of_model), int(of_model.iterations))
            eager = self._eager
            is_new = which is None or which != eager.which
            if is_new:
                eager.which, eager.step = which, self._of_collection().begin_step()
                eager.to_train = frozenset(k for k, t in self._tables.items() if t.trains)
            return eager.step, is_new
        graph = tf.compat.v1.get_default_graph()
        steps = graph_state.state_of(graph).shared
        which = ("step of fit", id(self), id(of_model))
        is_new = which not in steps
        if is_new:
            steps[which] = self._of_collection().begin_step()
        return steps[which], is_new


class DynamicEmbedding(RowsLayer):
    """The layer of a collection.

    Call arguments:
      inputs: {feature: ids}, or a KeyedJaggedTensor. See the collection.
      training: False, as in `evaluate` and `predict`: see the collection.

    Returns:
      {feature: rows}, in the layer's compute dtype.
    """

    def __init__(self, collection: typing.Any, **kwargs: typing.Any) -> None:
        collection.check_created("keras_layer")
        super().__init__(StepsOfFit(collection), **kwargs)
        self._of_collection = lambda: collection
        static = [t.config.name for t in collection.tables_by_name.values() if t.is_static]
        if static:
            raise NotImplementedError(
                f"layer '{self.name}': expected tables with options, found the static tables {static}: use keras.layers.Embedding"
            )

    @property
    def stands_for(self) -> typing.Any:
        """The collection: the layer adds nothing to its path."""
        return self._of_collection()

    def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """As layers of Keras are called. Keras takes a KeyedJaggedTensor only by the name of the argument."""
        if args and isinstance(args[0], KeyedJaggedTensor):
            args, kwargs = (), inspect.signature(self.call).bind(*args, **kwargs).arguments
        return super().__call__(*args, **kwargs)

    def build(self, input_shape: typing.Any = None) -> None:
        """Makes weights of the tables that train."""
        del input_shape
        if self.built:
            return
        collection = self._of_collection()
        self._take_variables(
            {t.config.name: t.variable for t in collection.tables_by_name.values() if t.trains}
        )
        self.collection = (
            collection  # for tf.train.Checkpoint; Keras finds the weights of its variables
        )
        self.built = True

    def call(self, inputs: typing.Any, training: bool | None = None) -> typing.Any:
        """Looks the ids up. See the class for arguments and shapes."""
        rows = self._of_collection()(inputs, training=is_training(self, training))
        return {feature: tf.cast(its, self.compute_dtype) for feature, its in rows.items()}

    def compute_output_spec(
        self, inputs: typing.Any, *args: typing.Any, **kwargs: typing.Any
    ) -> typing.Any:
        """{feature: a keras.KerasTensor} with the shape and type of the rows, computed without a lookup."""
        if not isinstance(inputs, collections.abc.Mapping):
            raise TypeError(
                f"layer '{self.name}': inputs: expected a dict from features to ids, found {type(inputs).__name__}"
            )
        collection, specs = self._of_collection(), {}
        for feature, ids in inputs.items():
            for out, table in collection.results_of(feature):
                shape = layer_ids.shape_of(ids)
                is_ragged = bool(getattr(ids, "ragged", False) or getattr(ids, "sparse", False))
                shape, is_ragged = collection.form_of(shape, is_ragged)
                specs[out] = keras.KerasTensor(
                    (*shape, table.config.embedding_dim),
                    dtype=self.compute_dtype,
                    **({"ragged": True} if is_ragged else {}),
                )
        return specs

    def get_config(self) -> dict:
        """NotImplementedError: Keras cannot make the tables again from a file."""
        raise NotImplementedError(
            f"layer '{self.name}': a model with it cannot be saved as a whole or cloned, because its tables are those of a live "
            "collection: save it with tf.train.Checkpoint, and its tables with DynamicEmbDump"
        )

"""Rows: an embedding variable as a weight of a Keras layer.

If a variable has `overwrite_with_gradient`, Keras' optimizers make no slots for it, and pass its gradient to `assign`. Rows.assign
passes the gradient on to the optimizer of the layer. An optimizer of `with_rows` takes the gradients of Rows before that.
"""

from __future__ import annotations

import inspect
import typing
import weakref

import keras
import numpy as np
import tensorflow as tf

from tf_multitier._src.processes import strategies
from tf_multitier._src.variable import saved_model
from tf_multitier._src.variable.embedding_variable import EmbeddingVariable
from tf_multitier._src.variable.partitioned import PartitionedEmbeddingVariable
from tf_multitier.keras import averages
from tf_multitier.keras import keras_internals
from tf_multitier.keras import learning_rates
from tf_multitier.keras import loads
from tf_multitier.keras.keras_versions import Keras3Object
from tf_multitier.keras.optimizer_states import OptimizerState
from tf_multitier.keras.rows_copy import Layout
from tf_multitier.keras.rows_copy import RowsCopy
from tf_multitier.keras.rows_copy import TableShape


# Optimizers that choose another one for each variable. Earlier versions of Keras 3 have none.
CHOOSERS = getattr(keras.optimizers, "MultiOptimizer", ())


class UpdatesRows(Keras3Object):
    """Base class of the optimizers of `with_rows`, which update Rows themselves."""


class Rows(Keras3Object, keras.Variable):
    """The rows of one table."""

    _of: typing.ClassVar[weakref.WeakValueDictionary] = weakref.WeakValueDictionary()

    @classmethod
    def of(cls, table: typing.Any) -> Rows | None:
        """The Rows of an EmbeddingVariable; None if no layer has it."""
        return cls._of.get(id(table))

    def __init__(
        self,
        embedding_variable: typing.Any,
        owner: str,
        optimizer: typing.Any,
        whole: typing.Any,
        name: str,
        trainable: bool = True,
    ) -> None:
        """owner: whose rows messages say that they are. whole: the variable of which embedding_variable is a part, or the same. name:
        what Keras shows after the layer's path."""
        strategies.check_layer(owner, embedding_variable)
        self.embedding_variable = embedding_variable
        self.whole = whole
        self._owner = owner
        self._of[id(embedding_variable)] = self
        self.train_by(optimizer)
        super().__init__(
            lambda shape, dtype: embedding_variable,
            shape=(0, embedding_variable.embedding_dim),
            dtype="float32",
            trainable=trainable,
            autocast=False,
            name=name,
        )

    @property
    def shape(self) -> tf.TensorShape:
        """[rows that exist now, dim]: Keras counts and prints it. In a function, the number of rows is not known."""
        rows = int(self.embedding_variable.total_count()) if tf.executing_eagerly() else None
        return TableShape([rows, self.embedding_variable.embedding_dim])

    def train_by(self, optimizer: typing.Any) -> None:
        """Makes a twin of `optimizer` update these rows; None: the model's optimizer does."""
        # Each table counts its own steps: Keras updates the variables of a step one by one.
        self._row_optimizer = None if optimizer is None else optimizer.twin()

    def _initialize_with_initializer(self, initializer: typing.Any) -> None:
        self._value = self.embedding_variable

    @property
    def value(self) -> typing.Any:
        """The embedding variable. It has no dense value. Errors: see overwrite_with_gradient."""
        self._check_unless_building()
        return self.embedding_variable

    @property
    def handle(self) -> typing.Any:
        """The resource handle, for which a tape computes the gradient."""
        return self.embedding_variable.handle

    @property
    def overwrite_with_gradient(self) -> bool:
        """True: an optimizer passes the gradient to `assign`. Errors: see `check`, when the optimizer is given the gradient.

        An optimizer may be built for rows that it is never given: a program's own train_step has them updated by another.
        """
        self._check_unless_building()
        return True

    def _check_unless_building(self):
        if self.embedding_variable.of_world is not None:
            refuse_scaled_loss(self._owner)
        optimizers = _calling_optimizers()
        for optimizer in optimizers:
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                keras_internals.make_loss_scale_take_rows(optimizer)
            if getattr(optimizer, "use_ema", False):
                averages.join_swaps()
        if _is_in("exclude_from_weight_decay"):
            return  # which asks for the name of the variable
        if not _is_in("build") or any(map(_makes_accumulators, optimizers)):
            self.check()

    def check(self) -> None:
        """Checks the Keras optimizers among the callers.

        Raises:
          ValueError: neither the layer nor the model's optimizer trains rows.
          NotImplementedError: the optimizer has a static loss scale; or it accumulates gradients, and is not of `with_rows`; or it
            averages weights as averages.py cannot.
        """
        for optimizer in _calling_optimizers():
            name = type(optimizer).__name__
            refused = {"loss_scale_factor": ""}
            if not isinstance(optimizer, UpdatesRows):
                cure = f", or tf_multitier.keras.with_rows(keras.optimizers.{name}(...))"
                refused["gradient_accumulation_steps"] = cure
            for setting, cure in refused.items():
                if getattr(optimizer, setting, None):
                    raise NotImplementedError(
                        f"{self._owner}: rows of embedding variables cannot be trained with {setting} of {name}: "
                        f"expected an optimizer without {setting}{cure}"
                    )
            if getattr(optimizer, "use_ema", False):
                averages.check(self._owner, self.embedding_variable, optimizer)
            if isinstance(optimizer, (keras.optimizers.LossScaleOptimizer, CHOOSERS)):
                continue  # the optimizer that has these rows from it is among the callers when it updates them
            if self._row_optimizer is None and not isinstance(optimizer, UpdatesRows):
                raise ValueError(
                    f"{self._owner}: expected an optimizer that trains rows of embedding variables, found {name}: {self._cure(name)}"
                )

    def _cure(self, optimizer):
        """What a program does that has this optimizer, which does not train rows."""
        return (
            "give the layer optimizer=tf_multitier.optimizers.Adagrad(...) or its siblings, or compile the model with "
            f"tf_multitier.keras.with_rows(keras.optimizers.{optimizer}(...))"
        )

    def assign(self, value: typing.Any) -> typing.Any:
        """Updates the rows with their gradient `value`, or replaces them by what `numpy()` returned or by those of another weight.

        Raises:
          TypeError: `value` is none of these: a dense tensor, a list, or a weight of keras.layers.Embedding.
          ValueError: there is no optimizer for the rows, `value` is another array, or the other weight is another partition, or has
            another dim, or other types of keys or values.
          NotImplementedError: `value` is another weight, in a tf.function; or its table is kept (StorageOption.keep).
        """
        if isinstance(value, (np.ndarray, RowsCopy)):
            self._replace(value)
            return value
        if isinstance(value, (Rows, EmbeddingVariable, PartitionedEmbeddingVariable)):
            self._copy_of(value)
            return value
        if not self._may_be_gradient(value):
            raise TypeError(
                f"rows of {self._owner}: expected a weight of an embedding layer of tf_multitier, found {_described(value)}"
            )
        optimizer: typing.Any = self._row_optimizer
        if optimizer is None:
            raise ValueError(f"{self._owner} has no optimizer that could update its rows")
        rate = None
        for of_model in _calling_optimizers()[:1]:  # the innermost: a MultiOptimizer chose it
            rate = learning_rates.of_step(self._owner, optimizer, of_model)
            averages.follow(optimizer, of_model)
        optimizer.apply_gradients([(value, self.embedding_variable)], learning_rate=rate)
        return value

    def _may_be_gradient(self, value):
        """Whether a tape or Keras may give `value` as the gradient; the optimizer checks it. The zeros of an unused table are dense."""
        if isinstance(value, tf.IndexedSlices):
            return True
        return (
            isinstance(value, tf.Tensor)
            and (
                not tf.executing_eagerly()
                or value.shape.rank != 2
                or value.shape[0] == 0
                or value.shape[1] != self.embedding_variable.embedding_dim
            )
            and self._row_optimizer is not None
        )

    @property
    def row_optimizer(self) -> typing.Any:
        """The optimizer that updates these rows; None: the model's does."""
        return self._row_optimizer

    def numpy(self) -> typing.Any:
        """A copy of the rows, for `assign`: a RowsCopy, with the rows in a temporary file.

        Raises:
          NotImplementedError: in a graph, or the table is kept (StorageOption.keep). Rows have no dense value.
        """
        if not tf.executing_eagerly():
            return self.embedding_variable.numpy()
        return RowsCopy.of(self.embedding_variable, OptimizerState.of(self._row_optimizer))

    def _copy_of(self, other):
        """Replaces the rows by those of another weight, or of its embedding variable."""
        what = f"rows of {self._owner}"
        table = other.embedding_variable if isinstance(other, Rows) else other
        if table is self.embedding_variable:
            return
        if isinstance(table, PartitionedEmbeddingVariable):
            raise ValueError(
                f"{what}: expected a weight of a layer, found the partitioned embedding variable '{table.variable_name}': assign the "
                "weights of its layer one by one"
            )
        if not tf.executing_eagerly():
            raise NotImplementedError(
                f"{what} cannot be replaced by those of '{table.variable_name}' in a tf.function: call assign() outside of functions, "
                "or model.set_weights(other.get_weights())"
            )
        Layout.of(self.embedding_variable).check(Layout.of(table), what)
        self._replace(other.numpy() if isinstance(other, Rows) else RowsCopy.of(table, None))

    def _replace(self, copy):
        if not isinstance(copy, RowsCopy):
            raise ValueError(
                f"rows of {self._owner}: expected what get_weights() returned, found an array of shape {copy.shape}: write the matrix "
                "of a keras.layers.Embedding by upsert(ids, values) of the layer's tables, or save its model to a file '.weights.h5', and load that"
            )
        with loads.together():
            copy.restore(self.embedding_variable, f"rows of {self._owner}")
            if copy.state is not None:
                copy.state.assign_to(self._row_optimizer, f"weights of {self._owner}")

    def __tf_tensor__(
        self, *unused_args: typing.Any, **unused_kwargs: typing.Any
    ) -> typing.NoReturn:
        """NotImplementedError: rows have no dense value."""
        raise NotImplementedError(
            f"rows of {self._owner} are in a hash table and have no dense tensor: call the layer with ids, or look ids up "
            "with tf.nn.embedding_lookup(layer.embeddings, ids); read all rows with export() of the layer's tables, or with candidates() of an "
            "Embedding; regularize the layer's output (activity_regularizer); give keras.callbacks.TensorBoard histogram_freq=0"
        )

    def __array__(self, *unused_args: typing.Any, **unused_kwargs: typing.Any) -> typing.Any:
        raise NotImplementedError(no_array(self._owner))

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: typing.Any) -> dict:
        # In a checkpoint the layer has the embedding variable itself. `model.export` keeps variables without their layers.
        return {"embedding_variable": self.whole} if save_type == "savedmodel" else {}

    def _write_object_proto(self, proto: typing.Any, options: typing.Any) -> None:
        saved_model.write_object_proto(proto)

    def _export_to_saved_model_graph(
        self,
        object_map: typing.Any,
        tensor_map: typing.Any,
        options: typing.Any,
        **kwargs: typing.Any,
    ) -> list:
        object_map[self] = self
        return []

    def _gather_saveables_for_checkpoint(self) -> dict:
        # Not _serialize_to_tensors: `assert_consumed` expects values in the checkpoint for an object that has it.
        return {}

    def _copy_trackable_to_cpu(self, object_map: typing.Any) -> None:
        self.embedding_variable._copy_trackable_to_cpu(object_map)  # raises

    def __repr__(self):
        return f"<tf_multitier.keras.Rows of {self.embedding_variable!r}>"


def refuse_scaled_loss(what: str) -> None:
    """NotImplementedError, if a LossScaleOptimizer is among the callers. It skips steps by the gradients of one process.

    The others would wait for that process.
    """
    if any(isinstance(one, keras.optimizers.LossScaleOptimizer) for one in _calling_optimizers()):
        raise NotImplementedError(
            f"{what}: expected an optimizer of the CollectiveStrategy, found it in a LossScaleOptimizer, by which each rank would skip "
            "other steps: take the LossScaleOptimizer away, or compile the model with auto_scale_loss=False"
        )


def no_array(owner: str) -> str:
    """The message where Keras or NumPy wants the rows of a layer as an array."""
    return (
        f"rows of {owner} are in a hash table, which has no dense value for a file of HDF5 or NumPy: save the "
        "model to a file '.keras' or its weights with save_weights, and read rows with export() of the layer's tables"
    )


def _described(value):
    """A value that is no weight of ours, for messages."""
    if isinstance(value, keras.Variable):
        return f"the weight '{value.path}' of shape {tuple(value.shape)}"
    if isinstance(value, (tf.Tensor, tf.Variable)):
        return f"a dense tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _calling_optimizers():
    """The Keras optimizers among the callers, innermost first.

    It reads the variables of functions of optimizer modules only. To read those of a function, Python keeps a copy of all of them until
    the function ends: a model that the caller deletes in its function would stay, with its tables.
    """
    found: list = []
    for frame in _frames_of_optimizers():
        owner = frame.f_locals.get("self")
        if isinstance(owner, keras.optimizers.Optimizer) and owner not in found:
            found.append(owner)
    return found


def _makes_accumulators(optimizer):
    """Whether an optimizer makes variables like the rows before it asks whether it shall pass their gradients on."""
    return bool(getattr(optimizer, "gradient_accumulation_steps", None))


def _is_in(function):
    """Whether a function of this name of an optimizer is among the callers."""
    return any(frame.f_code.co_name == function for frame in _frames_of_optimizers())


def _frames_of_optimizers():
    """The calls of functions of optimizer modules among the callers, innermost first."""
    frame: typing.Any = inspect.currentframe()
    for _ in range(16):
        if frame is None:
            return
        if "optimizer" in frame.f_globals.get("__name__", ""):
            yield frame
        frame = frame.f_back

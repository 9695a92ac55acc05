"""Keras layers whose weights are embedding variables."""

from __future__ import annotations

import numbers
import typing

import keras
import tensorflow as tf

from tf_multitier import lookup
from tf_multitier import optimizers as row_optimizers
from tf_multitier import options
from tf_multitier._src.lookup import padding
from tf_multitier._src.options import initializers
from tf_multitier._src.options import option_values
from tf_multitier._src.options.key_types import key_type
from tf_multitier._src.processes import world as worlds
from tf_multitier._src.variable.variable_scope import get_embedding_variable
from tf_multitier.keras import held_variables
from tf_multitier.keras import keras_internals
from tf_multitier.keras import keras_versions
from tf_multitier.keras import layer_ids
from tf_multitier.keras import optimizer_configs
from tf_multitier.keras import option_configs
from tf_multitier.keras import stock_arguments
from tf_multitier.keras import unbuilt
from tf_multitier.keras.layer_initializers import initializer_of_rows
from tf_multitier.keras.rows import Rows
from tf_multitier.keras.rows import no_array

SERIALIZABLE = keras.saving.register_keras_serializable(package="tf_multitier")
SERIALIZABLE(initializers.TruncatedNormal)
SERIALIZABLE(initializers.DebugInitializer)


class RowsLayer(unbuilt.Unbuilt, keras.layers.Layer):
    """What both layers share: their tables, and how these are saved."""

    built: typing.Any  # of Keras
    saves_rows = True  # held_variables.py asks: also those of variables that a subclass holds

    def __init__(self, optimizer: typing.Any = None, **kwargs: typing.Any) -> None:
        own = f"tf_multitier.keras.{type(self).__name__}"
        for name, value in kwargs.items():
            keras_versions.refuse(f"{own}: {name}", value)
        super().__init__(**stock_arguments.taken_out(type(self).__name__, kwargs))
        self.supports_jit = False  # else Keras gives our ops to XLA
        self.autocast = False  # else ids that are floats lose digits with a half-precision policy
        if not tf.as_dtype(self.compute_dtype).is_floating:
            raise TypeError(
                f"layer '{self.name}': dtype: expected a type of floating-point numbers, found {self.compute_dtype}"
            )
        if getattr(self.dtype_policy, "quantization_mode", None):
            raise NotImplementedError(
                f"layer '{self.name}': dtype: {self._not_quantized(self.dtype_policy.name)}"
            )
        self._rows: list = []
        self._world = worlds.current()  # Keras may build the layer outside of the scope
        if self._world is not None:
            from tf_multitier.distribute import keras_models

            keras_models.install()
        self.optimizer = optimizer_configs.from_config(optimizer, self.name)

    def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Calls the layer, as Keras does. TypeError if Keras 2 does."""
        keras_versions.refuse_call(f"layer '{self.name}'", (args, kwargs))
        return super().__call__(*args, **kwargs)

    @property
    def optimizer(self) -> typing.Any:
        """The optimizer that trains the rows; None: the model's does. After another one is assigned, compile the model again.

        Raises, when it is assigned:
          TypeError: it is not one of tf_multitier.optimizers or None.
        """
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: typing.Any) -> None:
        keras_versions.refuse(f"layer '{self.name}': optimizer", optimizer)
        if optimizer is not None and not isinstance(optimizer, row_optimizers.RowOptimizer):
            raise TypeError(
                f"layer '{self.name}': optimizer: expected one of tf_multitier.optimizers or None, found {optimizer!r}"
            )
        self._optimizer = optimizer
        for i, rows in enumerate(self._rows):
            rows.train_by(optimizer)
            self._track_row_optimizer(i)

    def _track_row_optimizer(self, number):
        # tf.train.Checkpoint tracks attributes: the steps and the state of the optimizer of each table.
        setattr(self, f"row_optimizer_{number}", self._rows[number].row_optimizer)

    def _new_variable(self, name, config):
        what = f"layer '{self.name}', {name}: embeddings_initializer"
        with (
            worlds.scope(self._world),
            tf.name_scope(self.name + "/"),
        ):  # the slash: also in the scopes of a model
            return get_embedding_variable(
                name,
                config.output_dim,
                key_dtype=config.key_dtype,
                value_dtype=self._rows_dtype(config.ev_option),
                initializer=initializer_of_rows(config.embeddings_initializer, what),
                partitioner=tf.compat.v1.fixed_size_partitioner(config.partitions)
                if config.partitions > 1
                else None,
                ev_option=config.ev_option,
            )

    def _add_variables(self, configs):
        """Makes a variable for each {name: config}, with its Rows. If one fails, the layer has none of them."""
        variables = {name: self._new_variable(name, made) for name, made in configs.items()}
        self._take_variables(variables)
        return variables

    def _take_variables(self, variables):
        """Makes Rows of the {name: embedding variable} weights of the layer."""
        # Its path in the model is that of a weight of keras.layers.Embedding: "<layer>/embeddings".
        made = [
            Rows(part, f"layer '{self.name}'", self.optimizer, variable, its_name)
            for name, variable in variables.items()
            for part, its_name in zip(variable.parts, weight_names(name, len(variable.parts)))
        ]
        for rows in made:
            self._rows.append(rows)  # Keras tracks what the list has
            self._track_row_optimizer(len(self._rows) - 1)
            # Only now: Keras thaws the variables that it began to track as trainable.
            rows.trainable = self.trainable

    def _rows_dtype(self, option):
        """The type of rows: that of the option where it says one, else that of the policy."""
        return (option and option.value_dtype) or value_dtype(self.variable_dtype)

    def rematerialized_call(
        self, layer_call: typing.Any, *args: typing.Any, **kwargs: typing.Any
    ) -> typing.Any:
        """`layer_call` as it is. In a keras.RematScope there is nothing to recompute: a lookup keeps no tensors but ids and result."""
        return layer_call

    @property
    def tables(self) -> list:
        """The tables of the layer: EmbeddingVariables."""
        return [rows.embedding_variable for rows in self._rows]

    def save_own_variables(self, store: typing.Any) -> None:
        """Writes rows with slots, frequencies and versions, for Keras' archives, and the other weights of a subclass."""
        held_variables.save(self, super().save_own_variables, store)

    def load_own_variables(self, store: typing.Any) -> None:
        """Replaces the rows by those of an archive, and the other weights of a subclass. Everything is checked before a row changes.

        Raises:
          ValueError: the archive has other tables.
        """
        held_variables.load(self, super().load_own_variables, store)

    def _not_quantized(self, found):
        return (
            f"expected a policy without quantization, found {found}: rows keep their type. Make the layer with dtype='bfloat16' for values "
            "of 16 bits"
        )

    def quantize(
        self, mode: typing.Any = None, *unused: typing.Any, **also_unused: typing.Any
    ) -> None:
        """NotImplementedError. `model.quantize` makes it a warning, and quantizes the other layers."""
        raise NotImplementedError(f"layer '{self.name}': quantize: {self._not_quantized(mode)}")

    def get_config(self) -> dict:
        """The configuration.

        Raises:
          NotImplementedError: it is for an HDF5 file. Later, Keras would have taken the optimizer out of what the model saves.
        """
        if keras_internals.writes_old_hdf5():
            refused = no_array(f"layer '{self.name}'")
            raise NotImplementedError(f"{refused}. Keras has opened the file: what it held is lost")
        config = super().get_config()
        config["optimizer"] = optimizer_configs.to_config(self.optimizer)
        return config


def is_training(layer: keras.layers.Layer, training: typing.Any) -> bool:
    """The argument `training` of a call. None is True: what Keras says outside of models. It makes a tensor of NumPy's bools."""
    known = tf.get_static_value(training) if tf.is_tensor(training) else None
    if known is not None and known.size == 1:
        training = known.item()
    return training is None or option_values.boolean(f"layer '{layer.name}': training", training)


def weight_names(name: str, partitions: int) -> list[str]:
    """The last parts of the paths of a variable's weights. Keras allows no slash in them."""
    name = name.replace("/", "_")
    return [f"{name}_part_{i}" for i in range(partitions)] if partitions > 1 else [name]


def value_dtype(policy_dtype: str) -> str:
    """The type of rows or of lookups for a type of a layer's dtype policy: that one if it is half precision, else float32."""
    return policy_dtype if policy_dtype in ("bfloat16", "float16") else "float32"


@SERIALIZABLE
class Embedding(RowsLayer):
    """Turns integer ids into embeddings. There is no input_dim: every integer is an id, and rows are made in training.

    Args:
      output_dim: elements of an embedding.
      embeddings_initializer: an initializer of Keras or TensorFlow, or its name.
      mask_zero: True: id 0 is padding, as mask_value=0 says.
      mask_value: an id that is padding, for example -1; None: every id is one. Padding has no row, no count and no gradient. A combiner
        leaves it out: of sums, and of the number that a mean divides by. Without a combiner it reads as zeros, and the layer computes
        a mask of Keras for the layers after it. PyTorch calls it padding_idx.
      combiner: None: one embedding per id. "sum", "mean" or "sqrtn": pools the ids of each row of [batch, ids].
      ev_option: tf_multitier.EmbeddingVariableOption: storage tiers, filters, eviction.
      optimizer: one of tf_multitier.optimizers, which trains the rows. None: the model's optimizer does (`with_rows`).
      key_dtype: "int64", "int32", "uint64" or "uint32".
      partitions: number of tables that the ids are divided over by their hash.

    The dtype policies "bfloat16" and "float16" make rows whose values have that type, with float32 slots; so does
    `EmbeddingVariableOption.value_dtype`. Mixed policies keep float32 rows.

    Call arguments:
      inputs: integers of any shape, a SparseTensor or a RaggedTensor [batch, (ids)]. Floats and booleans are cast, as in
        keras.layers.Embedding.
      weights: with a combiner: numbers in the shape, or the type of tensor and places, of `inputs`: what each embedding is multiplied
        by. "mean" divides by their sum, "sqrtn" by the root of the sum of their squares. None: all are 1.
      training: False, as in `evaluate` and `predict`: ids without a row read as `InitializerOption.eval_initializer` says, if it is
        given.

    Returns:
      inputs.shape + [output_dim], or [batch, output_dim] with a combiner, in the layer's compute dtype.
    """

    def __init__(
        self,
        output_dim: int,
        embeddings_initializer: typing.Any = "uniform",
        mask_zero: bool = False,
        combiner: str | None = None,
        ev_option: options.EmbeddingVariableOption | None = None,
        optimizer: typing.Any = None,
        key_dtype: str = "int64",
        partitions: int = 1,
        mask_value: int | None = None,
        **kwargs: typing.Any,
    ) -> None:
        keras_versions.refuse(
            "tf_multitier.keras.Embedding: embeddings_initializer", embeddings_initializer
        )
        super().__init__(optimizer, **kwargs)
        if combiner not in (None, *lookup.COMBINERS):
            raise ValueError(
                f"layer '{self.name}': combiner: expected None, 'sum', 'mean' or 'sqrtn', found {combiner!r}{option_values.did_you_mean(combiner, lookup.COMBINERS)}"
            )
        if isinstance(embeddings_initializer, numbers.Number):
            raise TypeError(
                f"layer '{self.name}': embeddings_initializer: expected an initializer or its name, found {embeddings_initializer!r}: "
                "Embedding has no input_dim, so the first argument is output_dim"
            )
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.mask_zero = option_values.boolean(f"layer '{self.name}': mask_zero", mask_zero)
        self._set_padding(mask_value, key_dtype)
        self.combiner = combiner
        self.ev_option = option_configs.from_config(ev_option)
        if not isinstance(self.ev_option, (options.EmbeddingVariableOption, type(None))):
            raise TypeError(
                f"layer '{self.name}': ev_option: expected a tf_multitier.EmbeddingVariableOption or None, found {ev_option!r}"
            )
        self.key_dtype = key_dtype
        self.partitions = option_values.integer(f"layer '{self.name}': partitions", partitions, 1)
        self.group: str | None = None  # the GroupEmbedding that this layer describes a table of

    def _set_padding(self, mask_value, key_dtype):
        where = f"layer '{self.name}': mask_value"
        if self.mask_zero and mask_value not in (None, 0):
            raise ValueError(f"{where}: expected None or 0 with mask_zero, found {mask_value!r}")
        value = 0 if self.mask_zero else mask_value
        its_type = key_type(f"layer '{self.name}': key_dtype", key_dtype)
        self._padding_key = padding.key_of(its_type, value, where)
        self.mask_value = None if value is None else int(value)
        self.supports_masking = value is not None

    def refuse_second_owner(self, what: str) -> None:
        """ValueError if the table of this layer is in a group: a second one would be another table. what: starts the message."""
        if self.group is not None:
            raise ValueError(
                f"{what}: expected an Embedding that is in no group, found '{self.name}', whose table is in group '{self.group}': give "
                "that group all features that share the table, or make another Embedding for a table of its own"
            )

    def build(self, input_shape: typing.Any = None) -> None:
        """Makes the embedding variable. The shape of the input does not matter.

        Raises:
          ValueError: a GroupEmbedding has the layer's table.
        """
        del input_shape
        if self.built:
            return
        self.refuse_second_owner("build")
        self.embeddings = self._add_variables({"embeddings": self})["embeddings"]
        self.built = True

    def call(
        self, inputs: typing.Any, training: bool | None = None, weights: typing.Any = None
    ) -> tf.Tensor:
        """Looks the ids up. See the class for arguments and shapes.

        Raises:
          TypeError, ValueError: weights without a combiner, or that do not fit the ids.
        """
        training = is_training(self, training)
        inputs = layer_ids.integers(inputs, self.name)
        if self.combiner is None:
            if weights is not None:
                raise ValueError(
                    f"layer '{self.name}': weights: expected None without a combiner, found {weights!r}: give the layer a combiner, or "
                    "multiply its embeddings"
                )
            values = self._values(inputs, training)
        else:
            ids = layer_ids.pooled_ids(inputs, self.name)
            values = lookup.embedding_lookup_sparse(
                self.embeddings,
                ids,
                layer_ids.pooled_weights(weights, ids, self.name),
                combiner=self.combiner,
                training=training,
                output_dtype=value_dtype(self.compute_dtype),
                padding_idx=self.mask_value,
            )
        return tf.cast(values, self.compute_dtype)

    def _values(self, ids, training):
        """One embedding per id, rounded once for a half-precision policy. Places without an id in sparse ids are padding, else id 0."""
        if isinstance(ids, tf.SparseTensor):
            ids = layer_ids.to_dense(ids, self.mask_value)
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(self._values(ids.flat_values, training))
        return lookup.embedding_lookup(
            self.embeddings,
            ids,
            training=training,
            output_dtype=value_dtype(self.compute_dtype),
            padding_idx=self.mask_value,
        )

    def candidates(self, ids: typing.Any = None) -> tuple:
        """The rows as a matrix and their ids, for retrieval: what keras_rs' BruteForceRetrieval, ScaNN or FAISS take.

        Args:
          ids: integers [n]; ids without a row have the values of evaluation. None: all ids that have a row, in increasing order; of a
            table that is divided among processes, those whose rows this process has.

        Returns:
          (ids [n] of the key_dtype, values [n, output_dim] of the type of the rows), in eager execution.

        Raises:
          ValueError: the layer is not built yet, or `ids` is None in a graph.
        """
        if not self.built:
            raise ValueError(
                f"layer '{self.name}': candidates: expected a layer that is built, found one that was never called: call it, or build() it"
            )
        if ids is None and not tf.executing_eagerly():
            raise ValueError(
                f"layer '{self.name}': candidates: expected ids or eager execution, found a graph: call candidates(ids)"
            )
        if ids is None:
            keys, values, *_ = self.embeddings.export()
            return keys, values
        keys = tf.reshape(layer_ids.integers(ids, self.name), [-1])
        values = lookup.embedding_lookup(self.embeddings, keys, training=False)
        return keys, tf.ensure_shape(values, [keys.shape[0], self.output_dim])

    def compute_mask(self, inputs: typing.Any, mask: typing.Any = None) -> typing.Any:
        """Bool of the shape of `inputs`: False for padding. None without padding, with a combiner, or for ragged ids."""
        if self.mask_value is None or self.combiner is not None:
            return None
        return layer_ids.mask(inputs, self.mask_value, self._padding_key, self.name)

    def compute_output_shape(self, input_shape: typing.Any) -> tuple:
        """The shape of the embeddings of ids of `input_shape`."""
        shape = tuple(input_shape)
        if self.combiner is None:
            return (*shape, self.output_dim)
        layer_ids.check_rank(shape, self.name)
        return (shape[0], self.output_dim)

    def compute_output_spec(
        self, inputs: typing.Any, *args: typing.Any, **kwargs: typing.Any
    ) -> typing.Any:
        """A keras.KerasTensor with the shape and type of the embeddings, computed without a lookup."""
        shape = self.compute_output_shape(layer_ids.shape_of(inputs))
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "mask_zero": self.mask_zero,
            "combiner": self.combiner,
            "ev_option": option_configs.to_config(self.ev_option),
            "key_dtype": self.key_dtype,
            "partitions": self.partitions,
            "mask_value": self.mask_value,
        }

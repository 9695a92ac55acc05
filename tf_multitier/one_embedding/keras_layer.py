"""OneEmbedding: a layer of Keras that calls a module. `Embedding.keras_layer` makes it."""

from __future__ import annotations

import typing
import weakref

import keras

from tf_multitier.keras import layer_ids
from tf_multitier.keras.layers import is_training
from tf_multitier.keras.layers import RowsLayer
from tf_multitier.keras.layers import SERIALIZABLE
from tf_multitier.keras.rows import Rows

# {embedding: its layers that were called}.
_layers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _ids_and_tables(layer, inputs):
    """(ids, table_ids or None) of what a layer is called with."""
    if not isinstance(inputs, (list, tuple)):
        return inputs, None
    if len(inputs) != 2:
        raise ValueError(
            f"layer '{layer.name}': inputs: expected ids, or a list of ids and table_ids, found a list of {len(inputs)}"
        )
    return inputs


@SERIALIZABLE
class OneEmbedding(RowsLayer):
    """The layer of an embedding.

    Call arguments:
      inputs: ids, or a list of ids and table_ids. See Embedding.forward.
      training: see there.

    Returns:
      ids.shape + [embedding_dim], in the layer's compute dtype.
    """

    def __init__(
        self, embedding: typing.Any, optimizer: typing.Any = None, **kwargs: typing.Any
    ) -> None:
        super().__init__(optimizer, **{"name": embedding.name.replace("/", "_"), **kwargs})
        self.embedding = embedding

    def build(self, input_shape: typing.Any = None) -> None:
        """Makes the embedding variable, unless the module has it."""
        del input_shape
        if self.built:
            return
        variable = self.embedding.variable
        shared = [rows for rows in map(Rows.of, variable.parts) if rows is not None]
        if self.optimizer is not None and shared:
            raise ValueError(
                f"layer '{self.name}': optimizer: expected None, as another layer or model has the rows of embedding "
                f"'{self.embedding.name}' already, found {type(self.optimizer).__name__}: give it to the layer that is called first"
            )
        if shared:
            self._rows.extend(shared)  # one weight of all of them, which is updated once
        else:
            self._take_variables({"embeddings": variable})
        _layers.setdefault(self.embedding, weakref.WeakSet()).add(self)
        self.built = True

    def call(self, inputs: typing.Any, training: bool | None = None) -> typing.Any:
        """Looks the ids up. See the class for arguments and shapes."""
        ids, table_ids = _ids_and_tables(self, inputs)
        rows = self.embedding(ids, table_ids, training=is_training(self, training))
        return keras.ops.cast(rows, self.compute_dtype)

    def compute_output_spec(
        self, inputs: typing.Any, *args: typing.Any, **kwargs: typing.Any
    ) -> typing.Any:
        """A keras.KerasTensor with the shape and type of the embeddings, computed without a lookup."""
        ids, _ = _ids_and_tables(self, inputs)
        shape = (*layer_ids.shape_of(ids), self.embedding.embedding_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict:
        """See keras.layers.Layer. NotImplementedError: the embedding has several layers, each of which would be saved with its own."""
        others = sorted(
            layer.name for layer in _layers.get(self.embedding, ()) if layer is not self
        )
        if others:
            raise NotImplementedError(
                f"layer '{self.name}': embedding '{self.embedding.name}' has more layers, {', '.join(others)}, and each would be saved "
                "or cloned with an embedding of its own: call one layer several times, or use model.save_weights"
            )
        embedding = keras.saving.serialize_keras_object(self.embedding)
        return {**super().get_config(), "embedding": embedding}

    @classmethod
    def from_config(cls, config: dict) -> OneEmbedding:
        """The layer of `get_config`, with another module. See Embedding.from_config."""
        embedding = keras.saving.deserialize_keras_object(config["embedding"])
        return super().from_config({**config, "embedding": embedding})

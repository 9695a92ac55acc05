"""OneEmbedding: a layer of Keras that calls a module. `Embedding.keras_layer` makes it."""

from __future__ import annotations

import typing

import keras

from tf_multitier.keras import layer_ids
from tf_multitier.keras.layers import RowsLayer


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
        if not self.built:
            self._take_variables({"embeddings": self.embedding.variable})
            self.built = True

    def call(self, inputs: typing.Any, training: bool | None = None) -> typing.Any:
        """Looks the ids up. See the class for arguments and shapes."""
        ids, table_ids = inputs if isinstance(inputs, (list, tuple)) else (inputs, None)
        rows = self.embedding(ids, table_ids, training=training is not False)
        return keras.ops.cast(rows, self.compute_dtype)

    def compute_output_spec(
        self, inputs: typing.Any, *args: typing.Any, **kwargs: typing.Any
    ) -> typing.Any:
        """A keras.KerasTensor with the shape and type of the embeddings, computed without a lookup."""
        ids = inputs[0] if isinstance(inputs, (list, tuple)) else inputs
        shape = (*layer_ids.shape_of(ids), self.embedding.embedding_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict:
        """NotImplementedError: Keras cannot make the module again from a file."""
        raise NotImplementedError(
            f"layer '{self.name}': a model with it cannot be saved as a whole or cloned, because its store is a folder that one live "
            "embedding has: save it with model.save_weights or tf.train.Checkpoint, and its rows with save_snapshot"
        )

"""The arguments of keras.layers.Embedding that our layers do not have, and what to use in place of each."""

from __future__ import annotations

import warnings

_CURES = {
    "input_dim": "every integer is an id: leave it out",
    "embeddings_regularizer": "it would need all rows at each step: use activity_regularizer, which takes the embeddings that were "
    "looked up, or optimizers.AdamW, which decays rows that have a gradient",
    "embeddings_constraint": "it would need all rows at each step: constrain the layer's output, for example with "
    "keras.layers.UnitNormalization",
    "weights": "give embeddings_initializer=keras.initializers.Constant(matrix), or write rows with layer.tables[0].upsert(ids, "
    "values) after the layer is built",
    "lora_rank": "a matrix of low rank would need a row for each id",
    "lora_alpha": "a matrix of low rank would need a row for each id",
    "quantization_config": "rows have float32, bfloat16 or float16 values: use EmbeddingVariableOption(value_dtype=)",
}

# What is said otherwise of a group: its features have these arguments, and may get them as a dict.
_CURES_OF_GROUPS = {
    "input_dim": "every integer is an id, and the features have output_dim: leave it out",
    "embeddings_constraint": "it would need all rows at each step: constrain the layer's outputs, for example with "
    "keras.layers.UnitNormalization",
    "weights": "give the features embeddings_initializer=keras.initializers.Constant(matrix), or write rows with "
    "layer.embeddings[feature].upsert(ids, values) after the layer is built",
    "quantization_config": "rows have float32, bfloat16 or float16 values: give the features "
    "ev_option=EmbeddingVariableOption(value_dtype=)",
}


def taken_out(layer: str, arguments: dict) -> dict:
    """`arguments` without those that only keras.layers.Embedding has and that are None. input_length is ignored with a warning, as there.

    Args:
      layer: name of the class, for messages.
      arguments: keyword arguments that the class does not name.

    Raises:
      TypeError: an argument of keras.layers.Embedding that has another value.
    """
    rest = dict(arguments)
    cures = {**_CURES, **_CURES_OF_GROUPS} if layer == "GroupEmbedding" else _CURES
    for name, cure in cures.items():
        value = rest.pop(name, None)
        if value is not None:
            found = repr(value)
            found = found if len(found) < 40 else type(value).__name__
            raise TypeError(
                f"tf_multitier.keras.{layer} has no {name}: expected none, found {name}={found}: {cure}"
            )
    if rest.pop("input_length", None) is not None:
        warnings.warn(
            f"tf_multitier.keras.{layer} does not need input_length: leave it out", stacklevel=4
        )
    return rest

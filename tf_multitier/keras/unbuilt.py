"""What a layer says of its embedding variables before it is built."""

from __future__ import annotations

import typing

from tf_multitier.keras import keras_versions


class Unbuilt(keras_versions.Keras3Object):
    """A base of layers that make `embeddings` in `build`: as in keras.layers.Embedding, it is no attribute before."""

    def __getattr__(self, name: str) -> typing.Any:
        # Only for names that are not there. Keras sets `built` in its constructor.
        if name.startswith("embeddings") and not self.__dict__.get("built", True):
            raise AttributeError(
                f"layer '{self.name}' has no '{name}' yet: it is not built. The first call builds it, and so does "
                "layer.build()"
            )
        return super().__getattr__(name)

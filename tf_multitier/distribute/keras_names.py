"""The names of Keras' variables in checkpoints and SavedModels: their paths.

A variable of a subclassed model has a name without its layer, `model/kernel`, that others have, too. Its path, `model/dense_1/kernel`, is its
own. By names serving.Model finds the variables of a checkpoint (serving/objects.py).
"""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Iterator

import keras

from tf_multitier._src.variable import object_checkpoint


@contextlib.contextmanager
def paths_as_names(root: typing.Any) -> Iterator[None]:
    """In the block TensorFlow saves Keras' variables of the tf.train.Checkpoint `root` under their paths."""
    found = object_checkpoint.dense_variables(object_checkpoint.objects_of(root._saver))
    named = [(variable, one.path) for one, variable in found if isinstance(one, keras.Variable)]
    before = [variable._handle_name for variable, _ in named]
    try:
        for variable, path in named:
            variable._handle_name = f"{path}:0"
        yield
    finally:
        for (variable, _), name in zip(named, before):
            variable._handle_name = name

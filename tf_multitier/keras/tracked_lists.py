"""What layers have in lists, tuples and dicts, for tf.train.Checkpoint: Keras 3 tells TensorFlow of attributes alone.

    self.towers = [Embedding(8), Embedding(8)]      Keras trains them; a checkpoint of stock Keras has none of their rows

If a checkpoint has a layer with an embedding variable, all its layers get what TensorFlow misses, before each save and restore:

    <layer>/_layers/<i>      the layer's sublayers
    <layer>/_weights/<i>     its own dense weights

Other checkpoints are as without us.
"""

from __future__ import annotations

import functools
import itertools
import typing

import keras

from tf_multitier.keras import keras_internals
from tf_multitier.keras.group_embedding import GroupEmbedding
from tf_multitier.keras.layers import Embedding
from tf_multitier.keras.rows import Rows


def attach(root: typing.Any) -> None:
    """Lets TensorFlow find what the layers below a Trackable have in lists."""
    if not any(map(_has_rows, _layers_below(root))):
        return
    attached = True
    while attached:
        attached = any(list(map(functools.partial(_attach, root), _layers_below(root))))


def _attach(root, layer):
    """Whether the layer got a dependency."""
    known = {id(each) for each in _below(root)}
    dense = [
        each
        for each in itertools.chain(*keras_internals.own_weights(layer))
        if not isinstance(each, Rows)
    ]
    attached = False
    for name, values in (("_layers", keras_internals.sublayers(layer)), ("_weights", dense)):
        before = keras_internals.dependency(layer, name)
        # Once tracked, the list follows that of the layer, from which a program may take one out.
        is_whole = (
            all(id(value) in known for value in values)
            if before is None
            else [id(each) for each in before] == [id(value) for value in values]
        )
        if not is_whole:
            keras_internals.track_dependency(layer, name, values)
            attached = True
    return attached


def _has_rows(layer):
    """Whether a layer is one of ours, which may not be built, or has an embedding variable."""
    return any(
        isinstance(each, (Embedding, GroupEmbedding))
        or any(isinstance(w, Rows) for w in each.weights)
        for each in keras_internals.layers_of(layer)
    )


def _layers_below(root):
    """An unbuilt Sequential is left out: it will have its layers elsewhere."""
    layers = (each for each in _below(root) if isinstance(each, keras.layers.Layer))
    return [each for each in layers if each.built or not isinstance(each, keras.Sequential)]


def _below(root):
    """The objects that tf.train.Checkpoint finds, but not by optimizers, which have weights of layers, too."""
    found, seen = [root], {id(root)}
    for each in found:
        for child in each._trackable_children().values():
            if id(child) not in seen and not isinstance(child, keras.optimizers.Optimizer):
                seen.add(id(child))
                found.append(child)
    return found

"""find_collections: the collections of a model, with their paths.

    model.towers["user"].embeddings    ->    "model.towers.user.embeddings"

Dumps and scores name collections by these paths. An object that `stands_for` another one, as DistributedModelParallel and layers of
Keras do, adds nothing to a path.
"""

from __future__ import annotations

import collections.abc
import typing

import tensorflow as tf


def find_collections(model: typing.Any, created: bool = True) -> list[tuple[str, typing.Any]]:
    """[(path, collection)] of the collections of a model, each once, in the order of its attributes.

    Args:
      model: a collection, a DistributedModelParallel, a tf.Module, a layer or model of Keras, or a list or dict of these.
      created: True: all have variables.

    Raises:
      RuntimeError: a collection has no variables yet, with `created`.
      ValueError: two collections have the same path; or there is none, with `created`.
    """
    found: dict[str, typing.Any] = {}
    _walk(model, "model", found, set())
    if created and not found:
        raise ValueError(
            f"model: expected one with an EmbeddingCollection or EmbeddingBagCollection, found none in a {type(model).__name__}"
        )
    for path, each in found.items() if created else ():
        each.check_created(path)
    return list(found.items())


def _walk(value, path, found, seen):
    inner = getattr(value, "stands_for", None)
    if inner is not None:
        _walk(inner, path, found, seen)
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if hasattr(value, "tables_by_name"):
        if path in found:
            raise ValueError(f"expected collections of different paths, found two with '{path}'")
        found[path] = value
        return
    for name, inner in _children(value):
        _walk(inner, f"{path}.{name}", found, seen)


def _children(value):
    """[(name, object)] in which collections may be."""
    if isinstance(value, collections.abc.Mapping):
        return [(str(name), inner) for name, inner in value.items()]
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    is_layer = hasattr(value, "add_weight")  # of Keras
    if not isinstance(value, tf.Module) and not is_layer:
        return []
    its = list(vars(value).items())
    layers = [(each.name, each) for each in (getattr(value, "layers", ()) if is_layer else ())]
    # Keras and TensorFlow keep what a program assigns in private lists, too: they come last.
    of_program = [(name, inner) for name, inner in its if not name.startswith("_")]
    return of_program + layers + [(name, inner) for name, inner in its if name.startswith("_")]

"""Which gradients are those of the world: what `reduce_gradients` returned, and what was computed from it.

A v1 graph says what a gradient was computed from. Elsewhere the indices of rows have a mark, which clipping and scaling leave.
"""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier import graph_state


_MARK = "_tf_multitier_is_of_world"


def mark(grads: typing.Any) -> None:
    """Says that these gradients are those of the world."""
    is_v1 = not tf.compat.v1.executing_eagerly_outside_functions()
    for grad in tf.nest.flatten(grads):
        is_rows = isinstance(grad, tf.IndexedSlices)
        if is_v1 and grad is not None:
            values = grad.values if is_rows else grad
            graph_state.state_of(values.graph).reduced[values.name] = is_rows
        elif is_rows:
            setattr(grad.indices, _MARK, True)


def check_rows(what: str, grad: tf.IndexedSlices) -> None:
    """ValueError if the gradient of rows, outside of a v1 graph, is not one of the world. what: starts the message."""
    if not hasattr(grad.indices, _MARK):
        raise ValueError(f"{what}: {_NOT_OF_WORLD}")


_NOT_OF_WORLD = (
    "expected that of the world, found that of this process: train by strategy.optimizer(...), or pass gradients through "
    "strategy.reduce_gradients where they are applied"
)


def check(what: str, values: tf.Tensor) -> None:
    """ValueError if the values of a gradient in a v1 graph were not computed from gradients of the world alone.

    Args:
      what: starts the message.
      values: of the gradient.
    """
    if values.graph.building_function:
        return
    known = graph_state.state_of(values.graph).reduced
    sources, ops = _sources(values, known)
    if not sources:
        raise ValueError(f"{what}: {_NOT_OF_WORLD}")
    for op in ops:
        if op.type == "L2Loss" and any(known[name] for name in _sources(op.inputs[0], known)[0]):
            raise ValueError(
                f"{what}: expected the norm of all ranks, found that of tf.clip_by_global_norm, which knows the rows of this rank "
                "alone: use strategy.clip_by_global_norm"
            )


def _sources(tensor, known):
    """(names of the known tensors that a tensor was computed from, the ops on the way)."""
    names, ops, waiting = set(), {}, [tensor]
    for each in waiting:
        if each.name in known:
            names.add(each.name)
        elif each.op.name not in ops:
            ops[each.op.name] = each.op
            waiting += each.op.inputs
    return names, list(ops.values())

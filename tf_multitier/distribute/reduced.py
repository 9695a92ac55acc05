"""Which gradients of a v1 graph are those of the world: what `reduce_gradients` returned, and what was computed from it."""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier import graph_state


def mark(grads: typing.Any) -> None:
    """Says that these gradients are those of the world. In v1 graphs."""
    if tf.compat.v1.executing_eagerly_outside_functions():
        return
    for grad in tf.nest.flatten(grads, expand_composites=True):
        if grad is not None:
            graph_state.state_of(grad.graph).reduced.add(grad.name)


def check(what: str, values: tf.Tensor) -> None:
    """ValueError if the values of a gradient in a v1 graph were not computed from gradients of the world alone.

    Args:
      what: starts the message.
      values: of the gradient.
    """
    if values.graph.building_function:
        return
    known = graph_state.state_of(values.graph).reduced
    found, waiting, seen = False, [values], set()
    for tensor in waiting:
        if tensor.name in known:
            found = True
        elif tensor.op.name not in seen:
            seen.add(tensor.op.name)
            waiting += tensor.op.inputs
            if tensor.op.type == "L2Loss":
                raise ValueError(
                    f"{what}: expected the norm of all ranks, found that of tf.clip_by_global_norm, which knows the rows of this rank "
                    "alone: use strategy.clip_by_global_norm"
                )
    if not found:
        raise ValueError(
            f"{what}: expected that of the world, found that of this process: train by strategy.optimizer(...), or pass gradients "
            "through strategy.reduce_gradients"
        )

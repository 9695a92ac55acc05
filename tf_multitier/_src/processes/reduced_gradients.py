"""Which gradients are those of the world: what `reduce_gradients` returned, and what was computed from it alike on all ranks.

A graph says what a gradient was computed from. Eagerly a mark does: a dense gradient has it, or the indices of rows, which clipping and
scaling keep. The mark of indices is the values that are those of the world.
"""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.execution import graph_state
from tf_multitier._src.tensorflow.internals import EagerTensor


_MARK = "_tf_multitier_of_world"
_RAW = "_tf_multitier_of_lookup"  # of the indices that a lookup's gradient has eagerly: its values


def mark(grads: typing.Any) -> None:
    """Says that these gradients are those of the world."""
    for grad in tf.nest.flatten(grads):
        is_rows = isinstance(grad, tf.IndexedSlices)
        values = grad.values if is_rows else grad
        if isinstance(values, EagerTensor):
            setattr(grad.indices if is_rows else grad, _MARK, values if is_rows else True)
        elif grad is not None:
            graph_state.state_of(values.graph).reduced[values.name] = is_rows


def mark_raw(grads: typing.Any) -> None:
    """Says that these gradients are those of a lookup of divided variables: IndexedSlices or None."""
    for grad in grads:
        if grad is not None and isinstance(grad.values, EagerTensor):
            setattr(grad.indices, _RAW, grad.values)


def with_values(grad: tf.IndexedSlices, values: tf.Tensor) -> tf.IndexedSlices:
    """A gradient of rows with other values. They were computed from the rows of all ranks, if `grad` is of the world."""
    if not hasattr(grad.indices, _MARK):
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    made = tf.IndexedSlices(values, tf.identity(grad.indices), grad.dense_shape)
    mark([made])
    return made


def check_new(what: str, grad: typing.Any) -> None:
    """Checks a gradient before it is reduced: a tensor, IndexedSlices or None. what: starts the message.

    Raises:
      ValueError: it is one of the world already, or rows of this rank were clipped by a norm of theirs alone.
    """
    is_rows = isinstance(grad, tf.IndexedSlices)
    values = grad.values if is_rows else grad
    if isinstance(values, EagerTensor):
        is_old = hasattr(grad.indices if is_rows else grad, _MARK)
    else:
        is_old = isinstance(values, tf.Tensor) and bool(_Sources(values, _changes, _of_world).found)
    if is_old:
        raise ValueError(
            f"{what}: expected that of this process, found that of the world: reduce gradients once, by strategy.reduce_gradients or by "
            "strategy.optimizer"
        )
    if is_rows and getattr(grad.indices, _RAW, values) is not values:
        raise ValueError(
            f"{what}: expected the rows of a tape, found other values, eagerly, of which the other ranks do not know: clip by "
            "strategy.clip_by_global_norm what strategy.reduce_gradients returned, or by the strategy's optimizer, and weigh the loss in place "
            "of gradients"
        )
    if is_rows and not isinstance(values, EagerTensor):
        _check_alike(what, _Sources(values, _inputs, _of_lookup))


def check(what: str, grad: typing.Any) -> None:
    """Checks the gradient of an update, rows or dense: a tensor or IndexedSlices. Dense ones have a graph. what: starts the message.

    Raises:
      ValueError: it was not computed from gradients of the world, or not alike on all ranks.
    """
    values = grad.values if isinstance(grad, tf.IndexedSlices) else grad
    if isinstance(values, EagerTensor):
        of_world = getattr(grad.indices, _MARK, None)
        if of_world is None:
            raise ValueError(f"{what}: {_NOT_OF_WORLD}")
        if of_world is not values:
            raise ValueError(
                f"{what}: expected what strategy.reduce_gradients or strategy.clip_by_global_norm returned, found other values, eagerly, of "
                "which the other ranks do not know: use strategy.clip_by_global_norm, or make the step a tf.function"
            )
        return
    if values.graph.building_function and not tf.compat.v1.executing_eagerly_outside_functions():
        return
    sources = _Sources(values, _inputs, _of_world)
    if not sources.found:
        raise ValueError(f"{what}: {_NOT_OF_WORLD}")
    _check_alike(what, sources)


def _check_alike(what, sources):
    for tensor in sources.of_rows:
        if _is_of_all_rows(tensor):
            raise ValueError(
                f"{what}: expected a norm of the rows of all ranks, found that of tf.clip_by_global_norm or tf.clip_by_norm, or another "
                f"number of the rows of this rank alone, '{tensor.name}': use strategy.clip_by_global_norm of what "
                "strategy.reduce_gradients returned, or strategy.optimizer(...) with global_clipnorm"
            )


_NOT_OF_WORLD = (
    "expected that of the world, found that of this process: train by strategy.optimizer(...), or pass gradients through "
    "strategy.reduce_gradients where they are applied"
)


def _is_of_all_rows(tensor):
    """Whether a tensor that was computed from rows has one value for all, or is none of numbers or truths.

    How many rows a step has is not known when it is built. So what has an entry for each row has no static first dimension.
    """
    if not (tensor.dtype.is_floating or tensor.dtype.is_bool) or tensor.shape.rank is None:
        return False
    return tensor.shape.rank == 0 or tensor.shape.as_list()[0] is not None


class _Sources:
    """What a tensor of a graph was computed from.

    Attributes:
      found: for each known tensor that it was computed from, whether it is of rows.
      of_rows: the tensors that were computed from known ones of rows on the way.
    """

    def __init__(self, tensor, inputs, known):
        """inputs: of a tensor, those to go on with. known: of a tensor, whether it is of rows; None if it is not known."""
        self.found: list = []
        self.of_rows: list = []
        users: dict = {}
        rows, seen, waiting = [], set(), [tensor]
        for each in waiting:
            if (each.graph, each.name) in seen:
                continue
            seen.add((each.graph, each.name))
            is_rows = known(each)
            if is_rows is None:
                before = [t for t in inputs(each) if not isinstance(t, EagerTensor)]
                for its in before:
                    users.setdefault((its.graph, its.name), []).append(each)
                waiting += before
                continue
            self.found.append(is_rows)
            if is_rows:
                rows.append(each)
        for each in rows:
            new = users.pop((each.graph, each.name), [])
            self.of_rows += new
            rows += new


def _of_world(tensor):
    return graph_state.state_of(tensor.graph).reduced.get(tensor.name)


def _of_lookup(tensor):
    """True for the gradient of rows that a lookup has."""
    state = graph_state.state_of(tensor.graph)
    return True if tensor.name in state.group_sums or tensor.name in state.raw_gradients else None


def _inputs(tensor):
    """The inputs of a tensor's op; in a branch, what it takes from its caller. Collectives know all ranks: they have none."""
    if tensor.op.type.startswith("Collective"):
        return []
    if tensor.op.type == "Placeholder" and tensor.graph.building_function:
        return [outer for outer, inner in tensor.graph.captures if inner is tensor]
    return list(tensor.op.inputs)


# Ops that change a gradient element by element.
_CHANGES = (
    *("Identity", "EnsureShape", "Reshape", "Cast", "StopGradient", "CheckNumerics"),
    *("Mul", "RealDiv", "Div", "DivNoNan", "Neg", "AddV2", "AddN", "Sub"),
    *("Maximum", "Minimum", "ClipByValue", "SelectV2"),
)


def _changes(tensor):
    is_changed = tensor.op.type in _CHANGES or tensor.op.type == "Placeholder"
    return _inputs(tensor) if is_changed else []

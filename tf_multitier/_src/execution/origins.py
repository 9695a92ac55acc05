"""The origin of a gradient: the lookup that made it. If an optimizer gets the gradient unchanged, the update uses the origin.

    pooled lookup    the entries before they were summed: the update op computes the sums
    grouped lookup   the group's plan: the update op takes distinct keys and counts from it, and computes the sums

In graphs, including those of functions, the state of the graph stores origins by the names of tensors (graph_state.py). So they are
found behind TensorFlow's concatenations and identities. In eager execution, an origin is an attribute of the gradient's values, and
is deleted with them.
"""

from __future__ import annotations

import typing

import tensorflow as tf

from tf_multitier._src.execution import graph_state
from tf_multitier._src.tensorflow.internals import EagerTensor

_ATTRIBUTE = "_tf_multitier_origin"


class RawGradient(typing.NamedTuple):
    """One lookup's gradient before it was summed. It may replace only a gradient with these indices and this handle.

    keys: int64 [n]. grads: float32 [n, dim].
    indices_name, handle_name: the names of the gradient's indices and of the variable's handle; eagerly, the tensors.
    """

    keys: typing.Any
    grads: typing.Any
    indices_name: typing.Any
    handle_name: typing.Any


class GroupGradient(typing.NamedTuple):
    """A MultitierGroupLookupGrad op. Updates of variables whose gradients come from the same one may share an op.

    key: equal for the same op. plan, grads, members, joins: its inputs and attributes.
    """

    key: typing.Any
    plan: typing.Any
    grads: list
    members: list
    joins: list

    @classmethod
    def of_op(cls, op):
        """The GroupGradient of an operation of a graph."""
        return cls(
            (id(op.graph), op.name),
            op.inputs[0],
            list(op.inputs[1:]),
            op.get_attr("members"),
            op.get_attr("joins"),
        )

    @classmethod
    def of_result(cls, result, plan, grads, members, joins):
        """The GroupGradient of the op that returned `result`."""
        first = result.keys[0]
        # Eagerly an object of its own: the id of a tensor is used again when the tensor is deleted.
        key = object() if isinstance(first, EagerTensor) else (id(first.graph), first.op.name)
        return cls(key, plan, grads, members, joins)


class GroupUnit(typing.NamedTuple):
    """The part of a grouped lookup that a gradient belongs to.

    unit, member: numbers of the part and of the member. unchanged: whether the values are the group's sums. before: operations to
    run before the update.
    """

    group: GroupGradient
    unit: int
    member: int
    unchanged: bool
    before: list


class _EagerGroupUnit(typing.NamedTuple):
    indices: typing.Any
    handle: typing.Any
    unit: GroupUnit


def is_v1_graph() -> bool:
    """True while a graph of v1 is built: not eagerly and not in a function."""
    return not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function


def record_raw(values, keys, grads, indices, handle, order):
    """Records that IndexedSlices(values, indices) of the variable with this handle is the sum of (keys, grads).

    order: see graph_state.GraphState.orders.
    """
    if isinstance(values, EagerTensor):
        if grads is not values:  # else the gradient is its own unsummed form
            setattr(values, _ATTRIBUTE, RawGradient(keys, grads, indices, handle))
        return
    if isinstance(handle, EagerTensor):
        return  # a loop of tape.jacobian computes gradients of an eager lookup, which train nothing
    state = graph_state.state_of(values.graph)
    state.orders[indices.name] = order
    state.raw_gradients[values.name] = RawGradient(keys, grads, indices.name, handle.name)


def record_group_unit(values, indices, handle, keys, sums, unit):
    """Records that IndexedSlices(values, indices) is (keys, sums) of a group, with an entry for each occurrence."""
    if isinstance(values, EagerTensor):
        setattr(values, _ATTRIBUTE, _EagerGroupUnit(indices, handle, unit))
        return
    state = graph_state.state_of(values.graph)
    state.group_sums[values.name] = (indices.name, keys, sums)


def eager_raw(values, indices, handle):
    """The RawGradient of an unchanged eager gradient of a pooled lookup of this variable, or None."""
    origin = getattr(values, _ATTRIBUTE, None)
    if (
        isinstance(origin, RawGradient)
        and origin.indices_name is indices
        and origin.handle_name is handle
    ):
        return origin
    return None


def eager_group_unit(values, indices, handle):
    """The GroupUnit of an unchanged eager gradient of a grouped lookup of this variable, or None."""
    origin = getattr(values, _ATTRIBUTE, None)
    if (
        isinstance(origin, _EagerGroupUnit)
        and origin.indices is indices
        and origin.handle is handle
    ):
        return origin.unit
    return None


def in_this_graph(handle):
    """The tensor for an eager handle in the function that is being traced. Other handles are returned unchanged."""
    if tf.executing_eagerly() or not isinstance(handle, EagerTensor):
        return handle
    return tf.compat.v1.get_default_graph().capture(handle)

"""Gradients of the lookup ops.

The gradient of a table is an IndexedSlices. Its indices are keys, and its static dense shape is [0, dim].

The gradient of a dense lookup has one entry per id, as for TensorFlow's gather. The gradient of a pooled lookup has one entry per
distinct key, summed in order of occurrence. TensorFlow's sparse lookup does the same, so clipping by norm gives the same result.

For a pooled lookup, origins.py also keeps the unsummed form and the occurrence counts. If an optimizer gets the gradient
unchanged, it passes the unsummed form to the apply op, which does the sum. Then the summed form is never computed.

Training through a lookup inside a loop is refused when the graph is built. Inside tf.cond it needs control flow v2.
"""

import contextlib
import typing

import numpy as np
import tensorflow as tf

from tf_multitier._src.execution import eager
from tf_multitier._src.execution import graph_state
from tf_multitier._src.execution import origins
from tf_multitier._src.execution import placement
from tf_multitier._src.tensorflow.internals import a_tape_records
from tf_multitier._src.tensorflow.internals import colocate_with
from tf_multitier._src.tensorflow.internals import control_flow_context
from tf_multitier._src.tensorflow.internals import control_flow_util
from tf_multitier._src.tensorflow.internals import EagerTensor
from tf_multitier._src.tensorflow.internals import embedding_dim_of_handle
from tf_multitier._src.tensorflow.internals import FuncGraph
from tf_multitier._src.tensorflow.internals import order_of
from tf_multitier._src.tensorflow.internals import resource_variable_ops
from tf_multitier._src.tensorflow.internals import WhileBodyFuncGraph
from tf_multitier._src.tensorflow.internals import WhileCondFuncGraph
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.variable import recomputed
from tf_multitier._src.variable import table_numbers
from tf_multitier._src.variable.queries import partition_keys


def _refuse_loop(name):
    raise NotImplementedError(
        f"training through the lookup '{name}' of an embedding variable inside a loop is not supported: look the "
        "keys of all steps up before the loop"
    )


def _is_in_while_context(op):
    context = control_flow_context(op)
    return context is not None and control_flow_util.GetContainingWhileContext(context) is not None


def refuse_control_flow(op):
    """NotImplementedError for a lookup in a loop that is trained through, in a branch of control flow v1, or, in a graph of v1, under
    a tape.

    A tape hands over no operation. It records the operations of one loop body, and so never goes through a loop.
    """
    if not isinstance(op, tf.Operation) and origins.is_v1_graph():
        raise NotImplementedError(
            "tf.GradientTape has no gradient of an embedding variable in a tf.Graph: use tf.gradients or an optimizer"
        )
    if not isinstance(op, tf.Operation) or _is_within_its_loop(op):
        return
    context = control_flow_context(op)
    graph = op.graph
    in_while = _is_in_while_context(op)
    while graph is not None and not in_while:
        in_while = isinstance(graph, (WhileBodyFuncGraph, WhileCondFuncGraph))
        graph = getattr(graph, "outer_graph", None)
    if in_while:
        _refuse_loop(op.name)
    if context is not None and control_flow_util.IsInCond(op):
        raise NotImplementedError(
            f"training through the lookup '{op.name}' of an embedding variable inside tf.cond needs "
            "control flow v2: call tf.compat.v1.enable_control_flow_v2()"
        )


def _is_within_its_loop(op):
    """Whether a function takes the gradient inside of the loop body that has the lookup: each step of the loop is trained by itself."""
    if not eager.is_outside_of_graphs():
        return False
    here, loops = set(), set()
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        here.add(id(graph))
        graph = getattr(graph, "outer_graph", None)
    graph = op.graph
    while graph is not None:
        if isinstance(graph, (WhileBodyFuncGraph, WhileCondFuncGraph)):
            loops.add(id(graph))
        graph = getattr(graph, "outer_graph", None)
    return loops <= here


def _text(value):
    """A string attribute: an operation has bytes, a tape has what the caller gave."""
    return value.decode() if isinstance(value, bytes) else value


def _slices(values, keys, dim):
    shape = graph_state.shared(
        ("gradient shape", dim, values.device),
        lambda: tf.constant([0, dim], tf.int32, name=recomputed.SHAPE_NAME),
    )
    return tf.IndexedSlices(values, keys, dense_shape=shape)


def _summed(keys, grads, dim, handle, op):
    """IndexedSlices with one entry per distinct key. Also records the counts and the unsummed form. op: the lookup.

    Eagerly, and in a function, TensorFlow may concatenate the gradient with others, or take it to another graph, where a record of
    its counts would not be found. There the result has one entry per occurrence, so that the update counts occurrences: the first
    occurrence of a key has the sum, the others are zeros.
    """
    unique, index, counts = tf.unique_with_counts(keys, out_idx=tf.int64)
    values = tf.math.unsorted_segment_sum(grads, index, tf.size(unique))
    values.set_shape([None, dim])
    if not origins.is_v1_graph():
        first = tf.math.unsorted_segment_min(tf.range(tf.size(keys)), index, tf.size(unique))
        values = tf.scatter_nd(first[:, None], values, tf.shape(grads))
        entries = tf.reshape(keys, [-1])  # an op of the gradient's graph, not of the lookup's
        origins.record_raw(values, keys, grads, entries, handle, _order(op))
        return _slices(values, entries, dim)
    graph_state.state_of(unique.graph).counts[unique.name] = counts
    origins.record_raw(values, keys, grads, unique, handle, _order(op))
    return _slices(values, unique, dim)


def _order(op, part=0, is_grouped=False):
    """The place of a lookup among the lookups of a graph, for sorting gradients. None eagerly."""
    if not isinstance(op, tf.Operation):
        output = op.outputs[0]
        if isinstance(output, EagerTensor):
            return None
        op = output.op
    return order_of(op), part, is_grouped


def _lookup_grad(op, grad):
    of_variable = recomputed.gradient_of_variable(op, grad)
    no_others = [None] * (len(op.inputs) - 1)
    if of_variable is not None:
        return [of_variable, *no_others]
    refuse_control_flow(op)
    shape = op.outputs[0].shape  # of unknown rank if that of the ids is
    dim = embedding_dim_of_handle(op.inputs[0]) if shape.rank is None else shape.as_list()[-1]
    keys = tf.reshape(op.inputs[1], [-1])
    values = tf.reshape(grad, [-1, dim])
    origins.record_raw(values, keys, values, keys, op.inputs[0], _order(op))
    for tables in op.inputs[2:]:
        table_numbers.record(keys, tf.reshape(tables, [-1]), op.inputs[0])
    return [_slices(values, keys, dim), *no_others]


def _lookup_sparse_grad(op, grad):
    refuse_control_flow(op)
    num_parts, dim = op.get_attr("N"), op.get_attr("dim")
    handles = list(op.inputs[:num_parts])
    keys, rows, weights, _ = op.inputs[num_parts:]
    has_weights = op.get_attr("has_weights")
    grads, weights_grad = ops.multitier_lookup_sparse_grad(
        handles,
        keys,
        rows,
        weights,
        tf.convert_to_tensor(grad),
        combiner=_text(op.get_attr("combiner")),
        dim=dim,
        has_weights=has_weights,
        max_norm=op.get_attr("max_norm"),
        training=op.get_attr("training"),
    )
    if num_parts == 1:
        slices = [_summed(keys, grads, dim, handles[0], op)]
    else:
        positions, part_keys = partition_keys(keys, num_parts)
        slices = [
            _summed(k, tf.gather(grads, p), dim, h, op)
            for p, k, h in zip(positions, part_keys, handles)
        ]
    return slices + [None, None, weights_grad if has_weights else None, None]


def _gradient_of_clip(values, max_norm, grad):
    """The gradient of tf.clip_by_norm, which has gradients of its own.

    values [..., dim] are scaled by max_norm / norm where their norm is above max_norm.
    """
    if origins.is_v1_graph():
        values = tf.identity(values)
        return tf.gradients(tf.clip_by_norm(values, max_norm, axes=[-1]), values, grad_ys=grad)[0]
    with tf.GradientTape() as tape:
        tape.watch(values)
        clipped = tf.clip_by_norm(values, max_norm, axes=[-1])
    return tape.gradient(clipped, values, output_gradients=grad)


def _clip_grad(op, grad):
    return ops.multitier_clip_by_norm_grad(op.inputs[0], grad, max_norm=op.get_attr("max_norm"))


def _hbm_clip_grad(op, grad):
    handle, values = op.inputs
    return None, ops.multitier_hbm_clip_by_norm_grad(
        handle, values, grad, max_norm=op.get_attr("max_norm")
    )


def _clip_grad_grad(op, grad):
    """The gradient of MultitierClipByNormGrad, and of its form with a handle."""
    *handles, values, given = op.inputs
    max_norm = op.get_attr("max_norm")
    if origins.is_v1_graph():
        sources = [tf.identity(values), tf.identity(given)]
        found = tf.gradients(
            _gradient_of_clip(sources[0], max_norm, sources[1]), sources, grad_ys=grad
        )
    else:
        sources = [values, given]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            first = _gradient_of_clip(values, max_norm, given)
        found = tape.gradient(first, sources, output_gradients=grad)
    return [None] * len(handles) + found


def refuse_second_derivative(op, *unused_grads):
    """LookupError: TensorFlow's error for an operation without a gradient."""
    name = op.name if isinstance(op, tf.Operation) else op.type  # eagerly, a tape has no operation
    raise LookupError(
        f"the gradient of a pooled lookup of an embedding variable ('{name}') has no gradient of its own: second "
        "derivatives work through tf.nn.embedding_lookup, or end them with tf.stop_gradient"
    )


# ---- grouped lookups


def is_no_gradient(op, number, grad):
    """True if the loss does not depend on output `number` of `op`: then TensorFlow passes None, or zeros like that output."""
    if grad is None or not isinstance(grad, tf.Tensor) or grad.op.type != "ZerosLike":
        return grad is None
    like, output = grad.op.inputs[0], op.outputs[number]
    if like.graph is output.graph:
        return like.name == output.name
    # The gradient of a branch of tf.cond is a graph of its own. It captures the tensors of the branch that it uses.
    return isinstance(like.graph, FuncGraph) and like is like.graph.capture(output)


def _entry_per_occurrence(sums, keys, counts, dim):
    """Expands the gradient of distinct keys to one entry per occurrence: the sums first, then zeros for the other occurrences.

    Counts are recorded by tensor name and cannot leave the graph of a branch of tf.cond. Entries can, and the update counts them.
    """
    if isinstance(sums, EagerTensor) and not a_tape_records():
        # Ten eager ops for each table would take longer than the rest of an eager step.
        repeated = np.repeat(keys.numpy(), counts.numpy() - 1)
        zeros = np.zeros([repeated.size, dim], np.float32)
        return (
            tf.constant(np.concatenate([sums.numpy(), zeros])),
            tf.constant(np.concatenate([keys.numpy(), repeated])),
        )
    others = tf.range(tf.reduce_sum(counts - 1))
    key_of = tf.raw_ops.UpperBound(
        sorted_inputs=tf.cumsum(counts - 1)[None], values=others[None], out_type=tf.int64
    )
    repeated = tf.gather(keys, key_of[0])
    sums = tf.concat([sums, tf.zeros([tf.size(repeated), dim], sums.dtype)], 0)
    return sums, tf.concat([keys, repeated], 0)


class GroupLookup(typing.NamedTuple):
    """A MultitierGroupLookup as its gradient sees it, in a graph or on a tape.

    inputs: the op's inputs, in order. plan: its output. op: the operation; None eagerly.
    on_hbm: whether it is a MultitierHbmGroupLookup. The other fields are the op's attributes.
    """

    inputs: typing.Any
    plan: typing.Any
    op: typing.Any
    sources: typing.Any
    units: typing.Any
    weighted: typing.Any
    dims: typing.Any
    joins: typing.Any
    num_handles: int
    on_hbm: bool

    @classmethod
    def of(cls, op):
        """The GroupLookup of an operation: a grouped lookup, or what serves the requests of an exchange (exchange.py)."""
        attr = op.get_attr
        if op.type == "MultitierServe":
            return cls.of_tables(list(op.inputs), op.outputs[attr("A")], op, attr("dims"))
        num_values = attr("N")
        sources = [_text(source) for source in attr("sources")]
        joins = attr("joins") or [1] * num_values
        return cls(
            list(op.inputs),
            op.outputs[num_values],
            op,
            sources,
            attr("units"),
            attr("weighted"),
            attr("dims"),
            joins,
            attr("H"),
            op.type == placement.GROUP_LOOKUPS[1],
        )

    @classmethod
    def of_tables(cls, inputs, plan, op, dims):
        """The GroupLookup of whole tables or parts, each of which is a member. inputs: begin with their handles."""
        n = len(dims)
        return cls(inputs, plan, op, ["table"] * n, [1] * n, [False] * n, dims, [1] * n, n, False)


def _group_lookup_grad(op, *grads):
    """The gradient of MultitierGroupLookup as an operation of a graph."""
    refuse_control_flow(op)
    values = [i for i in range(op.get_attr("N")) if not is_no_gradient(op, i, grads[i])]
    return group_gradient(GroupLookup.of(op), values, grads)


def _device_of_plan(lookup):
    """Where the gradient op must run: a plan on a GPU is not one on the CPU, and the op has no handle that would say so."""
    if origins.is_v1_graph():
        return colocate_with(lookup.op, ignore_existing=True)
    home = lookup.inputs[0].device or ""
    if tf.DeviceSpec.from_string(home).job == "ps":  # nor can it leave the process of the variables
        return tf.device(home)
    if not lookup.on_hbm:
        return contextlib.nullcontext()
    if hasattr(lookup.plan, "numpy"):  # eagerly
        return tf.device(lookup.plan.device)
    if lookup.plan.op.type == "Placeholder":  # a function captured it
        return contextlib.nullcontext()
    return colocate_with(lookup.plan.op, ignore_existing=True)


def group_gradient(lookup, values, grads):
    """The gradients of the inputs of a grouped lookup. Members without a gradient are not trained, as with separate lookups.

    Args:
      lookup: GroupLookup.
      values: the numbers of the outputs that have a gradient.
      grads: the gradients of all outputs.
    """
    units, weighted, joins = lookup.units, lookup.weighted, lookup.joins
    members = [member for i in values for member in range(sum(joins[:i]), sum(joins[: i + 1]))]
    input_grads = [None] * len(lookup.inputs)
    if not members:
        return input_grads
    grads = [tf.convert_to_tensor(grads[i]) for i in values]
    joins = [joins[i] for i in values]
    with _device_of_plan(lookup):
        result = placement.group_lookup_grad_op(lookup.on_hbm)(
            lookup.plan,
            grads,
            members=members,
            units=[units[i] for i in members],
            weighted=[weighted[i] for i in members],
            joins=joins,
            U=sum(units[i] for i in members),
            W=sum(weighted[i] for i in members),
        )
    group = origins.GroupGradient.of_result(result, lookup.plan, grads, members, joins)
    first_input = group_inputs(lookup.sources, units, lookup.num_handles)
    weights_input = len(lookup.inputs) - sum(weighted)
    unit = weight = 0
    for i in members:
        for part in range(units[i]):
            number = first_input[i] + part
            source = lookup.inputs[number]
            keys, sums, counts = result.keys[unit], result.sums[unit], result.counts[unit]
            sums.set_shape([None, lookup.dims[i]])
            unit += 1
            if lookup.sources[i] == "table":
                at = origins.GroupUnit(group, sum(units[:i]) + part, i, True, [])
                input_grads[number] = _table_gradient(
                    keys, sums, counts, lookup, number, at, lookup.dims[i]
                )
            elif lookup.sources[i] == "variable":
                shape = resource_variable_ops.variable_shape(source)
                input_grads[number] = tf.IndexedSlices(sums, keys, dense_shape=shape)
            else:
                input_grads[number] = tf.IndexedSlices(sums, keys, dense_shape=tf.shape(source))
        if weighted[i]:
            input_grads[weights_input + sum(weighted[:i])] = result.weights_grads[weight]
            weight += 1
    return input_grads


def _table_gradient(keys, sums, counts, lookup, number, unit, dim):
    """The IndexedSlices of one part of an embedding variable, with a record of its origin. number: of the input that is its handle."""
    handle = lookup.inputs[number]
    if not origins.is_v1_graph():
        values, entries = _entry_per_occurrence(sums, keys, counts, dim)
        origins.record_group_unit(values, entries, handle, keys, sums, unit)
        return _slices(values, entries, dim)
    graph_state.state_of(keys.graph).counts[keys.name] = counts
    origins.record_raw(sums, keys, sums, keys, handle, (order_of(lookup.op), number, True))
    return _slices(sums, keys, dim)


def checked_in_loops(values):
    """Wraps the values of a grouped lookup that is in a loop of control flow v1. Otherwise returns them unchanged.

    The wrapping op refuses to be trained through. Without it, TensorFlow would fail before it asks the lookup for its gradient, with
    a message about the plan.
    """
    if isinstance(values[0], EagerTensor):
        return values
    op = values[0].op
    if not _is_in_while_context(op):
        return values
    with op.graph.gradient_override_map({"Identity": "MultitierGroupLookupInLoop"}):
        return [tf.identity(value) for value in values]


def group_inputs(sources, units, num_handles):
    """For each member of a MultitierGroupLookup, the number of the op's input that is its first part."""
    first, handles, matrices = [], 0, num_handles
    for source, count in zip(sources, units):
        if _text(source) == "tensor":
            first.append(matrices)
            matrices += count
        else:
            first.append(handles)
            handles += count
    return first


def register_group():
    """Registers the gradient of grouped lookups. Called once, when nn.py is imported."""
    for lookup, grad in zip(placement.GROUP_LOOKUPS, placement.GROUP_LOOKUP_GRADS):
        tf.RegisterGradient(lookup)(placement.gradient_apart(_group_lookup_grad))
        tf.RegisterGradient(grad)(refuse_second_derivative)
    tf.RegisterGradient("MultitierGroupLookupInLoop")(
        lambda op, unused_grad: _refuse_loop(op.inputs[0].op.name)
    )


def register():
    """Registers the gradients of the other lookups. Called once, when lookup.py is imported."""
    tf.RegisterGradient("MultitierLookup")(placement.gradient_apart(_lookup_grad))
    tf.RegisterGradient("MultitierLookupSparse")(placement.gradient_apart(_lookup_sparse_grad))
    tf.RegisterGradient("MultitierLookupSparseGrad")(refuse_second_derivative)
    tf.RegisterGradient("MultitierClipByNorm")(_clip_grad)
    tf.RegisterGradient("MultitierHbmClipByNorm")(placement.gradient_apart(_hbm_clip_grad))
    for name in ("MultitierClipByNormGrad", "MultitierHbmClipByNormGrad"):
        tf.RegisterGradient(name)(placement.gradient_apart(_clip_grad_grad))
    for name in ("MultitierPartitionKeys", "MultitierFillEmptyRows"):
        tf.no_gradient(name)

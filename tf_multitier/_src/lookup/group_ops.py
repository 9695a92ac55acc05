"""The ops of a grouped lookup: one per device, variables with HBM apart, one exchange with other processes, and the concatenation of
values from several ops."""

import collections
import itertools
import numbers

import numpy as np
import tensorflow as tf

from tf_multitier import lookup
from tf_multitier._src.execution import origins
from tf_multitier._src.execution import placement
from tf_multitier._src.lookup import exchange
from tf_multitier._src.lookup import gradients
from tf_multitier._src.lookup import group_members
from tf_multitier._src.lookup import group_tape
from tf_multitier._src.lookup import side_by_side
from tf_multitier._src.tensorflow.internals import colocate_with
from tf_multitier._src.variable.queries import output_type
from tf_multitier._src.variable.queries import training_attribute
from tf_multitier.options import value_type


def _anchor(part):
    return part if isinstance(part, tf.Tensor) else part.handle


def _is_on_hbm(member):
    return member.source == "table" and placement.may_be_on_gpu(member.parts[0])


def _shared_rows(members, rows):
    """The static shape, without the last dimension, of members that are concatenated."""
    shape = rows[0]
    for member, its in zip(members, rows):
        if not shape.is_compatible_with(its):
            expected, found = ((*known.as_list(), None) for known in (shape, its))
            raise ValueError(
                f"{member.where}: concat: expected values of shape {expected} to match {members[0].where}, "
                f"found {found}"
            )
        shape = shape.merge_with(its)
    return shape


def look_up(members, rows, members_per_op, runs, training, output_dtype=None):
    """Builds the lookup ops: one per device and at most members_per_op members, with variables with HBM in ops of their own, and one
    exchange for all variables that are elsewhere.

    Returns the output tensors, in order.

    Args:
      members: list of Member.
      rows: for each member, the static shape of its values without the last dimension.
      members_per_op: maximal number of members in one op.
      runs: the number of consecutive members in each output tensor.
      training: whether keys without a row read what they do in training.
      output_dtype: the type of the outputs. None: that of the variables of each; float32 where they differ.
    """
    training = training_attribute(training)
    if output_dtype is not None:
        output_dtype = value_type("output_dtype", output_dtype)
    if not isinstance(members_per_op, numbers.Integral) or members_per_op < 1:
        raise ValueError(
            f"params_num_per_group: expected an integer, at least 1, found {members_per_op}"
        )
    ends = np.cumsum([0] + runs)
    shapes = [
        _shared_rows(members[begin:end], rows[begin:end]) for begin, end in itertools.pairwise(ends)
    ]
    run_of = np.repeat(np.arange(len(runs)), runs)
    pieces = [
        {} for _ in runs
    ]  # {first member: concatenated values of consecutive members of the run}
    groups = collections.defaultdict(list)
    for number, member in enumerate(members):
        if member.source == "table" and exchange.is_needed(member.variable):
            groups[member.variable.world is not None].append(number)
            continue
        devices = {_anchor(part).device for part in member.parts}
        if member.source == "variable" and (len(devices) > 1 or placement.is_gpu(*devices)):
            member = members[number] = _brought_together(member)
            devices = {_anchor(part).device for part in member.parts}
        groups[_is_on_hbm(member), min(devices)].append(number)
    for key, group in groups.items():
        is_exchange = isinstance(key, bool)
        # An exchange takes all members: each home is asked once.
        at_most = len(group) if is_exchange else members_per_op
        for begin in range(0, len(group), at_most):
            some = group[begin : begin + at_most]
            firsts = [
                n
                for before, n in zip([None] + some, some)
                if before is None or n != before + 1 or run_of[n] != run_of[before]
            ]
            joins = np.diff([some.index(n) for n in firsts] + [len(some)]).tolist()
            one_op = exchange.look_up if is_exchange else _one_op
            for first, value in zip(firsts, one_op([members[n] for n in some], joins, training)):
                pieces[run_of[first]][first] = value
    values = []
    for shape, its in zip(shapes, pieces):
        firsts = sorted(its)
        its = [its[first] for first in firsts]
        values.append(
            its[0]
            if len(its) == 1
            else side_by_side.concat(its, [members[first].where for first in firsts])
        )
        values[-1].set_shape(shape.concatenate([None]))
    ends = np.cumsum(runs)
    return [
        lookup.as_type(value, _type_of_run(members[end - n : end], output_dtype))
        for value, n, end in zip(values, runs, ends)
    ]


def look_up_padded(padding_keys, members, rows, members_per_op, runs, training, output_dtype=None):
    """`look_up` of members with dense ids, some of which have padding. padding_keys: for each member, an int64 key or None.

    Values are concatenated after the ops: an op cannot give members of this form the shape of their ids.
    """
    padded = [group_members.padded(m, key) for m, key in zip(members, padding_keys)]
    flat = [tf.TensorShape([shape.num_elements()]) for shape in rows]
    if output_dtype is not None:
        output_dtype = value_type("output_dtype", output_dtype)
    found = look_up(padded, flat, members_per_op, [1] * len(members), training, tf.float32)
    values = []
    ends = np.cumsum(runs)
    for end, n in zip(ends, runs):
        shape = _shared_rows(members[end - n : end], rows[end - n : end])
        dtype = _type_of_run(members[end - n : end], output_dtype)
        its = [
            tf.reshape(value, tf.concat([tf.shape(member.keys), [member.dim]], 0))
            for value, member in zip(found[end - n : end], members[end - n : end])
        ]
        values.append(lookup.as_type(its[0] if n == 1 else tf.concat(its, -1), dtype))
        values[-1].set_shape(shape.concatenate([sum(m.dim for m in members[end - n : end])]))
    return values


def _type_of_run(members, output_dtype):
    """The type of an output: that of its members if they have the same, else float32."""
    if output_dtype is not None:
        return output_dtype
    types = {
        tf.float32 if member.variable is None else output_type(member.variable, None)
        for member in members
    }
    return types.pop() if len(types) == 1 else tf.float32


def _one_op(members, joins, training):
    """Builds one op. joins: the number of consecutive members in each of its outputs."""
    anchors = [
        _anchor(part) for member in members for part in member.parts if member.source != "tensor"
    ]
    anchors += [
        _anchor(part) for member in members for part in member.parts if member.source == "tensor"
    ]
    inputs = dict(
        handles=[
            part.handle for member in members if member.source != "tensor" for part in member.parts
        ],
        matrices=[part for member in members if member.source == "tensor" for part in member.parts],
        keys=[member.keys for member in members],
        indices=[member.indices for member in members if member.indices is not None],
        shapes=[member.shape for member in members if member.shape is not None],
        weights=[member.weights for member in members if member.weights is not None],
    )
    attrs = dict(
        N=len(joins),
        members=[member.where for member in members],
        sources=[member.source for member in members],
        strategies=[member.strategy for member in members],
        units=[len(member.parts) for member in members],
        forms=[member.form for member in members],
        combiners=[member.combiner for member in members],
        dims=[member.dim for member in members],
        weighted=[member.weights is not None for member in members],
        max_norms=[member.max_norm for member in members],
        joins=joins if max(joins) > 1 else [],
        training=training,
    )
    on_hbm = _is_on_hbm(members[0])
    with colocate_with(anchors[0], ignore_existing=True):
        if origins.is_v1_graph():
            op = placement.group_lookup_op(on_hbm)
            return gradients.checked_in_loops(op(**inputs, **attrs).values)
        return group_tape.look_up(inputs, attrs, on_hbm)


def _checked_ids(member, ids):
    """The ids, if they are in range: for others a GPU reads zeros, without a word."""
    rows = [part.shape[0] for part in member.parts]
    if None in rows:
        return ids
    what = f"{member.where}: expected ids in [0, {sum(rows)})"
    with tf.device("/CPU:0"):
        checks = [
            tf.debugging.assert_less(ids, tf.constant(sum(rows), ids.dtype), what),
            tf.debugging.assert_non_negative(ids, what),
        ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.identity(ids)


def _brought_together(member):
    """Replaces a static variable by a "tensor" member: its parts are on several devices, or on a GPU, which the op cannot read.

    Lookups on those devices read the value of each id into a matrix. The group's op pools from that matrix.
    """
    ids = tf.reshape(member.keys, [-1])
    if any(placement.is_gpu(part.device) for part in member.parts):
        ids = _checked_ids(member, ids)
    values = tf.compat.v1.nn.embedding_lookup(member.parts, ids, partition_strategy=member.strategy)
    rows = tf.reshape(tf.range(tf.size(ids, tf.int64)), tf.shape(member.keys))
    rows.set_shape(member.keys.shape)
    return member._replace(source="tensor", parts=[values], keys=rows)


gradients.register_group()

"""The updates that a grouped lookup's gradient brings about, as one op.

    optimizer.apply_gradients
      processor.update_op, of each variable   -> what its update takes is noted (later)
      optimizer._finish(update_ops)           -> one MultitierGroupApply for those that may share it, in the places of all of them

An optimizer asks for the update of a variable at a time; what ends its step, `_finish`, gets all of them. It is shadowed on the
optimizer from the first update that is noted until it is called, once: in between nothing can run on a noted update. Updates share
an op where the same rule, with the same step, takes gradients of one group's gradient op on one device; each variable gets the bits
that an op of its own would give it. Hyperparameters are given once for all, or to each variable its own where they differ (the beta
powers of AdamAsync).

An update whose gradient nothing changed sums it by itself, from the gradients of the pooled values: the gradient op's sums are not
computed where nothing else takes them. One whose gradient was changed (clipped, scaled) takes it as it came.
"""

import collections
import numbers

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from tf_multitier._library import ops

# What the update of one variable takes.
#   gradient_op: the MultitierGroupLookupGrad that found its keys; unit: which part of the lookup's group the variable is; member: the
#   lookup's member that has it.
#   sums: [keys, dim], or None: nothing changed them since gradient_op.
#   before: operations that run first: what a caller put before the gradient.
#   step: tensor. hyper: scalars, tensors, variables or numbers. slots: names of the columns. rule: the op's attributes that are
#   alike for all: rule, slot_initial_values, use_locking.
Update = collections.namedtuple(
    "Update", ["variable", "gradient_op", "unit", "member", "sums", "before", "step", "hyper", "slots", "rule"])


def later(optimizer, update):
    """Stands among an optimizer's update ops for an Update until `_finish`, which gets the op."""
    if not getattr(vars(optimizer).get("_finish"), "makes_updates", False):
        _shadow_finish(optimizer)
    return update


def _shadow_finish(optimizer):
    finish, own = optimizer._finish, vars(optimizer).get("_finish")

    def make_and_finish(update_ops, name_scope):
        if own is None:
            del optimizer._finish
        else:
            optimizer._finish = own
        return finish(_made(update_ops), name_scope)

    make_and_finish.makes_updates = True
    optimizer._finish = make_and_finish


def _made(update_ops):
    """`update_ops` with ops in the places of Updates."""
    groups = collections.OrderedDict()
    seen = collections.Counter()
    for place, update in enumerate(update_ops):
        if isinstance(update, Update):
            # A variable that the caller gave twice: twice in no op.
            key, variable = _key(update), update.variable.handle.name
            groups.setdefault((key, seen[key, variable]), []).append(place)
            seen[key, variable] += 1
    made = list(update_ops)
    for places in groups.values():
        op = _one_op([update_ops[place] for place in places])
        for place in places:
            made[place] = op
    return made


def _key(update):
    """Alike for updates that may share an op."""
    rule = {name: tuple(value) if isinstance(value, list) else value for name, value in update.rule.items()}
    return (id(update.gradient_op.graph), update.gradient_op.name, update.variable.handle.device, update.step.name,
            tuple(sorted(rule.items())))


def _identity(scalar):
    """Alike for hyperparameters, of one graph, that are one tensor, variable or number."""
    if isinstance(scalar, numbers.Number):
        return repr(float(scalar))
    return scalar.name if isinstance(scalar, tf.Tensor) else id(scalar)


def _hyperparameters(updates):
    """float32 scalars: those that all updates have, or where they differ those of each, one update after the other."""
    scalars = {_identity(h): h for u in updates for h in u.hyper}
    floats = {identity: tf.cast(h, tf.float32) for identity, h in scalars.items()}
    of_each = [[_identity(h) for h in u.hyper] for u in updates]
    if all(its == of_each[0] for its in of_each):
        of_each = of_each[:1]
    return [floats[identity] for its in of_each for identity in its]


def _one_op(updates):
    first = updates[0]
    grads, members, joins = _gradients_of(first.gradient_op, {u.member for u in updates if u.sums is None})
    with tf_ops.name_scope(f"update_{first.variable.op.name}" if len(updates) == 1 else "update_group"):
        with tf_ops.colocate_with(first.variable.handle):
            hyper = _hyperparameters(updates)
            with tf_ops.control_dependencies(list(dict.fromkeys(op for u in updates for op in u.before))):
                return ops.multitier_group_apply(
                    [u.variable.handle for u in updates], first.gradient_op.inputs[0], [u.sums for u in updates if u.sums is not None],
                    grads, first.step, hyper, units=[u.unit for u in updates], summed=[u.sums is not None for u in updates],
                    members=members, joins=joins, slot_names=[name for u in updates for name in u.slots], **first.rule)


def _gradients_of(gradient_op, wanted):
    """(inputs of a MultitierGroupLookupGrad that have gradients of the members `wanted`, the members they are of, how many each)."""
    members, joins = gradient_op.get_attr("members"), gradient_op.get_attr("joins")
    grads, of, counts, first = [], [], [], 0
    for tensor, count in zip(gradient_op.inputs[1:], joins or [1] * len(members)):
        joined = members[first:first + count]
        first += count
        if not wanted.isdisjoint(joined):
            grads.append(tensor)
            of += joined
            counts.append(count)
    return grads, of, counts

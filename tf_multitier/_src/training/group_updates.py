"""One op for all updates from the gradient of a grouped lookup.

    optimizer.apply_gradients
      processor.update_op, of each variable   -> records the update (later)
      optimizer._finish(update_ops)           -> replaces recorded updates by MultitierGroupApply ops

An optimizer asks for the update of one variable at a time. `_finish`, which ends its step, gets all of them. From the first recorded
update until `_finish` is called once, a wrapper replaces `_finish` on the optimizer object. Nothing can run a recorded update before
that.

Updates share an op if they have the same rule, step and device, and their gradients come from the same gradient op. Each variable
gets the same bits as from an op of its own. Hyperparameters are shared, or given per variable if they differ (the beta powers of
AdamAsync).

If a gradient is unchanged, the update op computes the sums itself from the gradients of the pooled values. The sums of the gradient
op are then computed only if something else reads them. A gradient that was changed (clipped, scaled) is used as given.
"""

import collections
import numbers

import tensorflow as tf

from tf_multitier._src.execution import placement
from tf_multitier._src.tensorflow.internals import before_finish
from tf_multitier._src.tensorflow.internals import colocate_with
from tf_multitier._src.tensorflow.internals import device_scope
from tf_multitier._src.tensorflow.internals import EagerTensor

# A recorded update of one variable.
#   group: the origins.GroupGradient that gives its keys. unit: the number of the variable's part in the group. member: the number
#   of the lookup's member.
#   sums: [keys, dim], or None if they are the unchanged output of the group's gradient op.
#   before: operations that must run first, because the caller put them before the gradient.
#   step: tensor. hyper: scalars: tensors, variables or numbers. slots: names of the columns. rule: the op's attributes that all
#   updates of an op share: rule, slot_initial_values, use_locking.
Update = collections.namedtuple(
    "Update",
    [
        "variable",
        "group",
        "unit",
        "member",
        "sums",
        "before",
        "step",
        "hyper",
        "slots",
        "rule",
    ],
)


def later(optimizer, update):
    """Records an Update. It takes the place of an op in the optimizer's list of update ops until `_finish`."""
    before_finish(optimizer, made)
    return update


def made(update_ops):
    """`update_ops` with each Update replaced by an op."""
    groups = collections.OrderedDict()
    seen = collections.Counter()
    for place, update in enumerate(update_ops):
        if isinstance(update, Update):
            # If the caller passed a variable twice, its updates go into different ops.
            key, variable = _key(update), id(update.variable)
            groups.setdefault((key, seen[key, variable]), []).append(place)
            seen[key, variable] += 1
    replaced = list(update_ops)
    for places in groups.values():
        op = _one_op([update_ops[place] for place in places])
        for place in places:
            replaced[place] = op
    return replaced


def _key(update):
    """A key that is equal for updates that may share an op."""
    rule = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in update.rule.items()
    }
    return (
        update.group.key,
        update.variable.handle.device,
        _identity(update.step),
        tuple(sorted(rule.items())),
    )


def _identity(scalar):
    """A key that is equal for hyperparameters of one graph that are the same tensor, variable or number."""
    if isinstance(scalar, numbers.Number):
        return repr(float(scalar))
    is_in_graph = isinstance(scalar, tf.Tensor) and not isinstance(scalar, EagerTensor)
    return scalar.name if is_in_graph else id(scalar)


def _hyperparameters(updates):
    """The hyperparameters as float32 scalars: one set if all updates have the same, otherwise one set per update."""
    scalars = {_identity(h): h for u in updates for h in u.hyper}
    floats = {identity: tf.cast(h, tf.float32) for identity, h in scalars.items()}
    of_each = [[_identity(h) for h in u.hyper] for u in updates]
    if all(its == of_each[0] for its in of_each):
        of_each = of_each[:1]
    return [floats[identity] for its in of_each for identity in its]


def _one_op(updates):
    first = updates[0]
    grads, members, joins = _gradients_of(
        first.group, {u.member for u in updates if u.sums is None}
    )
    scope = device_scope()
    with tf.compat.v1.name_scope(
        f"update_{first.variable._shared_name}" if len(updates) == 1 else "update_group"
    ):
        with colocate_with(first.variable.handle):
            with placement.apart_from(first.variable, scope):
                hyper = _hyperparameters(updates)
            with tf.control_dependencies(
                list(dict.fromkeys(op for u in updates for op in u.before))
            ):
                return placement.group_apply_op(placement.may_be_on_gpu(first.variable))(
                    [u.variable.handle for u in updates],
                    first.group.plan,
                    [u.sums for u in updates if u.sums is not None],
                    grads,
                    first.step,
                    hyper,
                    units=[u.unit for u in updates],
                    summed=[u.sums is not None for u in updates],
                    members=members,
                    joins=joins,
                    slot_names=[name for u in updates for name in u.slots],
                    **first.rule,
                )


def _gradients_of(group, wanted):
    """The inputs of a MultitierGroupLookupGrad with gradients of the members `wanted`.

    Returns:
      (the inputs, the members whose gradients they have, the number of members of each input).
    """
    members, joins = group.members, group.joins
    grads, of, counts, first = [], [], [], 0
    for tensor, count in zip(group.grads, joins or [1] * len(members)):
        joined = members[first : first + count]
        first += count
        if not wanted.isdisjoint(joined):
            grads.append(tensor)
            of += joined
            counts.append(count)
    return grads, of, counts

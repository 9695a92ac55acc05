"""Grouped lookups: one op looks up many variables.

    tables = [tf_multitier.get_embedding_variable(name, embedding_dim=16) for name in names]
    pooled = tf_multitier.nn.group_embedding_lookup_sparse(tables, sparse_ids, ["mean"] * len(tables))  # one tensor per table
    inputs = tf_multitier.nn.group_embedding_lookup_sparse(tables, sparse_ids, "mean", concat=True)  # their concatenation

A click model looks up hundreds of features. One lookup op per feature spends more time in op dispatch than in memory access. A
group is one op for all of them. It runs on the intra-op threads. Its gradient is also one op. Each variable's update uses the
distinct keys and counts that the lookup found. Optimizers need no changes.

Grouping does not affect values: each member gets the same bits as in a group of its own, also in training. If the loss does not
use a member's output, the member is not trained and gets no gradient.

Ids of embedding variables are keys: every integer is valid. Ids of static variables (tf.Variable, tf.compat.v1.get_variable,
partitioned ones) are row numbers.

Variables on several devices form one group per device. Embedding variables in other processes, such as parameter servers, and those
whose parts are on several devices, form one group of all: each device is asked once (exchange.py).

Source of names and arguments: DeepRec's `tf.nn.group_embedding_lookup_sparse` and `group_embedding_lookup`.
"""

from __future__ import annotations

import functools
import numbers
import sys
import typing

import tensorflow as tf

from tf_multitier import lookup
from tf_multitier._src.lookup import group_members
from tf_multitier._src.lookup import group_ops
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.options.option_values import one_of
from tf_multitier._src.variable.partitioned import StoredParts

__all__ = ["group_embedding_lookup", "group_embedding_lookup_sparse"]


def __dir__():
    return sorted(__all__)


def group_embedding_lookup_sparse(
    params: typing.Any,
    sp_ids: typing.Any,
    combiners: typing.Any,
    sp_weights: typing.Any = None,
    partition_strategy: str = "mod",
    is_sequence: bool = False,
    params_num_per_group: int = sys.maxsize,
    name: str | None = None,
    max_norms: typing.Any = None,
    concat: bool = False,
    training: bool = True,
    output_dtype: typing.Any = None,
    padding_idx: typing.Any = None,
) -> typing.Any:
    """Looks up sparse ids of many variables and pools their embeddings by row.

    Args:
      params: list of variables, one per member. A variable may occur more than once. Each is an embedding variable, a static
        variable [rows, dim], or a partitioned static variable or the list of its parts. Dims may differ.
      sp_ids: list of SparseTensor [batch, any], indices in row-major order, or RaggedTensor [batch, (any)], of integers.
      combiners: list of "sum", "mean" (divides by the sum of the weights) or "sqrtn" (divides by the square root of the sum of the
        squared weights). A single string applies to all members. None means "mean".
      sp_weights: None, or a list with one entry per member: None (all weights are 1), or a tensor of floats of the same type and
        with the same indices as the member's ids.
      partition_strategy: "mod" or "div": how the rows of partitioned static variables are divided, as in tf.nn.embedding_lookup.
        Embedding variables are partitioned by hash.
      is_sequence: True: do not pool. The embedding of an entry (b, t), times its weight, is at [b, t] of the result. Entries at the
        same place are added. Combiners have no effect.
      params_num_per_group: maximal number of members in one op.
      name: name scope of the ops.
      max_norms: None, a number >= 0, or a list of them: embeddings with a larger L2 norm are scaled down to it before pooling.
      concat: True: return one tensor, bit for bit equal to `tf.concat(values, 1)`. The op writes it while it pools and reads its
        gradient in place, so no values are copied. A list of numbers n: each tensor has the values of the next n members. Members
        that are concatenated must have the same batch size and must not be sequences.
      training: False: for evaluation: a key without a row reads as `InitializerOption.eval_initializer` says, if the variable has one.
      output_dtype: of all results: tf.float32, tf.bfloat16 or tf.float16. None: the variable's; of a concatenation of variables of
        different types, float32. Sums are float32, and are rounded once.
      padding_idx: None, an id, or a list with an id or None for each member: entries with this id, for example -1, and their weights
        count as absent: they have no row, no count and no gradient.

    Returns:
      A list of [batch, dim]. With concat=True: one [batch, sum of the dims]. With a list of numbers: a list of
      such tensors. Sequences: [batch, steps, dim], where steps is the second number of the ids' dense shape, or the longest row of
      ragged ids. Rows without ids, and places without an entry, are zeros.

    Raises:
      RuntimeError: a variable belongs to a v1 graph and the call is eager, or the reverse.
      NotImplementedError: the call is in a tf.function with jit_compile=True.
      TypeError, ValueError: a bad argument. The message names the member: lists of different lengths, an unknown combiner, ids that
        are not integers or do not match the variable's key_dtype, weights of another shape, or members that cannot be concatenated.
      tf.errors.InvalidArgumentError, when run: the message names the member: lengths differ, rows are out of order or out of range,
        or a static variable has no row for an id.
    """
    is_sequence = boolean("is_sequence", is_sequence)
    params = _as_list(params, "params")
    sp_ids = _as_list(sp_ids, "sp_ids", len(params))
    combiners = _as_list(
        [combiners] * len(params) if combiners is None or isinstance(combiners, str) else combiners,
        "combiners",
        len(params),
    )
    sp_weights = (
        [None] * len(params)
        if sp_weights is None
        else _as_list(sp_weights, "sp_weights", len(params))
    )
    max_norms = _one_each(max_norms, "max_norms", len(params))
    paddings = _one_each(padding_idx, "padding_idx", len(params))
    _check_strategy(partition_strategy)
    runs = _runs(concat, len(params))
    if is_sequence and max(runs) > 1:
        raise ValueError(
            f"concat: expected False for sequences, found {concat!r}: members may differ in their numbers of steps"
        )
    with tf.name_scope(name or "group_embedding_lookup_sparse"):
        members, rows = [], []
        for number, (param, ids, combiner, weights, max_norm, its_padding) in enumerate(
            zip(params, sp_ids, combiners, sp_weights, max_norms, paddings)
        ):
            target = group_members.resolve(param, number)
            combiner = combiner or "mean"
            one_of(f"{target.where}: combiner", combiner, lookup.COMBINERS)
            keys, indices, shape, weights, form = group_members.entries(
                target, ids, weights, is_sequence, group_members.padding_key(target, its_padding)
            )
            members.append(
                target._replace(
                    strategy=partition_strategy,
                    form=form,
                    combiner=combiner,
                    max_norm=group_members.norm(target, max_norm),
                    keys=keys,
                    indices=indices,
                    shape=shape,
                    weights=weights,
                )
            )
            rows.append(
                tf.TensorShape(
                    [group_members.first_dimension(ids.shape)] + [None] * bool(is_sequence)
                )
            )
        values = group_ops.look_up(
            members, rows, params_num_per_group, runs, training, output_dtype
        )
        return values[0] if concat is True else values


def group_embedding_lookup(
    params: typing.Any,
    ids: typing.Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    params_num_per_group: int = sys.maxsize,
    max_norms: typing.Any = None,
    concat: bool = False,
    training: bool = True,
    output_dtype: typing.Any = None,
    padding_idx: typing.Any = None,
) -> typing.Any:
    """Looks up dense ids of many variables.

    Args:
      params, partition_strategy, params_num_per_group, name, max_norms, training, output_dtype: see group_embedding_lookup_sparse.
      ids: list of integer tensors of any shape, one per member.
      concat: see group_embedding_lookup_sparse. Values are concatenated along the last dimension. Ids of members that are
        concatenated must have the same shape.
      padding_idx: None, an id, or a list with an id or None for each member: this id, for example -1, reads as zeros, and has no row,
        no count and no gradient.

    Returns:
      A list of ids.shape + [dim]. With concat=True: one ids.shape + [sum of the dims]. With a list of numbers: a
      list of such tensors.

    It raises what group_embedding_lookup_sparse raises.
    """
    params = _as_list(params, "params")
    ids = _as_list(ids, "ids", len(params))
    max_norms = _one_each(max_norms, "max_norms", len(params))
    paddings = _one_each(padding_idx, "padding_idx", len(params))
    _check_strategy(partition_strategy)
    runs = _runs(concat, len(params))
    with tf.name_scope(name or "group_embedding_lookup"):
        members = []
        for number, (param, its_ids, max_norm) in enumerate(zip(params, ids, max_norms)):
            target = group_members.resolve(param, number)
            members.append(
                target._replace(
                    strategy=partition_strategy,
                    form="dense",
                    combiner="sum",
                    max_norm=group_members.norm(target, max_norm),
                    keys=group_members.keys_of(target, its_ids),
                )
            )
        look_up = group_ops.look_up
        if any(its_padding is not None for its_padding in paddings):
            keys = [
                group_members.padding_key(member, its_padding)
                for member, its_padding in zip(members, paddings)
            ]
            look_up = functools.partial(group_ops.look_up_padded, keys)
        values = look_up(
            members,
            [m.keys.shape for m in members],
            params_num_per_group,
            runs,
            training,
            output_dtype,
        )
        return values[0] if concat is True else values


# ---- arguments of a whole group


def _as_list(values, what, length=None):
    if not isinstance(values, (list, tuple)) or isinstance(values, StoredParts):
        raise TypeError(
            f"{what}: expected a list with an entry for each member of the group, found {type(values).__name__}"
        )
    if length is None and not values:
        raise ValueError(f"{what}: expected at least one entry, found none")
    if length is not None and len(values) != length:
        first = min(length, len(values))
        raise ValueError(
            f"{what}: expected {length} entries, one for each of params, found {len(values)}: member {first} has "
            f"{'none' if len(values) < length else 'no params'}"
        )
    return list(values)


def _one_each(values, what, length):
    """A list with a value for each member, from such a list or one value for all."""
    if not isinstance(values, (list, tuple)):
        return [values] * length
    return _as_list(values, what, length)


def _check_strategy(partition_strategy):
    one_of("partition_strategy", partition_strategy, ("mod", "div"))


def _runs(concat, count):
    """The number of consecutive members in each output tensor."""
    if isinstance(concat, bool):
        return [count] if concat else [1] * count
    if (
        isinstance(concat, (list, tuple))
        and all(isinstance(n, numbers.Integral) and n > 0 for n in concat)
        and sum(concat) == count
    ):
        return list(concat)
    raise ValueError(
        f"concat: expected True, False, or a list of numbers whose sum is {count}, the number of params; found "
        f"{concat!r}"
    )

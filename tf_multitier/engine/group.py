"""Group: one lookup in many tables, pooled by row or padded to sequences."""

from __future__ import annotations

import collections.abc
import typing

import numpy as np

from tf_multitier import _engine
from tf_multitier._src.options import numpy_types
from tf_multitier._src.options.option_values import one_of
from tf_multitier.engine import arguments
from tf_multitier.engine import rules
from tf_multitier.engine.table import Table


class Group:
    """One lookup in many tables, and the update of these tables that follows it.

        group = engine.Group([users, items], [user_ids, item_ids], [user_splits, item_splits], combiners="mean", train=True)
        group.values                                             # list of [batch, dim]
        group.apply("sgd", grads, hyper={"learning_rate": 0.1})  # grads: a gradient of each of the values

    Grouping does not affect values. The distinct keys of a member are read once, and updated once with the sum of their gradients.
    The update does not search for them again. If several members have the same table, the table gets one update, with the same bits
    as one member with all their keys in order; this update searches for the keys again.

    Attributes:
      values: list of [batch, dim]. With concat: one [batch, sum of the dims]. A sequence: [batch, steps, dim], where
        steps is the length of its longest row. Rows without keys, and places beyond a row's end, are zeros.
      keys, counts: with train: one array per member with its distinct keys, in the table's key_dtype, and an int64 one with their
        occurrences. Without train: None.
    """

    def __init__(
        self,
        tables: collections.abc.Sequence,
        keys: typing.Any,
        row_splits: typing.Any = None,
        combiners: typing.Any = "sum",
        weights: typing.Any = None,
        max_norms: typing.Any = None,
        train: bool = False,
        is_sequence: bool = False,
        concat: bool = False,
        output_dtype: typing.Any = None,
    ) -> None:
        """Looks up the keys.

        Args:
          tables: list of `Table`, one per member. A table may occur more than once; with train, only if its members have no
            max_norm.
          keys: list of integers [n], one entry per member.
          row_splits: list of integers [batch + 1], in nondecreasing order from 0 to n: the keys that each row pools. None: every key
            is a row.
          combiners: list of "sum", "mean" or "sqrtn", or one string for all members.
          weights: list with one entry per member: floats [n], or None. None: all weights are 1.
          max_norms: list of numbers >= 0 or None: values with a larger L2 norm are scaled down to it before pooling.
          train: True if `apply` or `weights_gradients` will be called.
          is_sequence: list of bools, or one for all members. True: do not pool. The value of a row's t-th key, times its weight, is at
            [row, t]. Combiners have no effect.
          concat: True: the values of all members are one array, concatenated along the last dimension, and so are their gradients.
            All members must have the same batch size, and no member may be a sequence.
          output_dtype: of all values: "float32", "bfloat16" or "float16". None: that of each table; of tables of different types that
            are concatenated, float32. Sums are float32, and are rounded once.

        Raises:
          ValueError: arguments do not fit each other, an unknown combiner, a negative norm, or members that cannot be concatenated.
            The message names the member.
        """
        concat = arguments.boolean("concat", concat)
        train = arguments.boolean("train", train)
        tables = _tables(tables)
        one_for_all = isinstance(is_sequence, (bool, np.bool_))
        lists = [
            arguments.one_each(name, [given] * len(tables) if for_all else given, len(tables), of)
            for name, given, for_all, of in (
                ("keys", keys, False, "arrays"),
                ("row_splits", row_splits, row_splits is None, "arrays"),
                ("combiners", combiners, isinstance(combiners, str), "names"),
                ("weights", weights, weights is None, "arrays"),
                ("max_norms", max_norms, max_norms is None, "numbers"),
                ("is_sequence", is_sequence, one_for_all, "bools"),
            )
        ]
        keys, splits, combiners, weights, max_norms, sequences = lists
        combiners = _combiners(combiners)
        max_norms = _max_norms(max_norms, tables, train)
        sequences = [
            arguments.boolean(f"is_sequence of member {i}", each)
            for i, each in enumerate(sequences)
        ]
        keys = [
            table._keys(k, f"keys of member {i}") for i, (table, k) in enumerate(zip(tables, keys))
        ]
        splits = _row_splits(splits, keys)
        if concat:
            _check_that_members_concatenate(splits, sequences)
        weights = [
            None if w is None else arguments.floats(f"weights of member {i}", w, [len(k)])
            for i, (w, k) in enumerate(zip(weights, keys))
        ]
        if train:  # `apply` needs the weights of the lookup, even if the caller changes the arrays in place
            weights = [None if w is None else w.copy() for w in weights]
        self._tables = tables
        self._group = _engine.Group(
            [table._table for table in tables],
            keys,
            splits,
            combiners,
            weights,
            [-1.0 if m is None else float(m) for m in max_norms],
            sequences,
            train,
            concat,
        )
        self._train = train
        self._concat = concat
        values = self._typed(self._group.values(), output_dtype)
        self._shapes = [v.shape for v in values]
        self.values = values[0] if concat else values
        self.keys = None
        if train:
            self.keys = [
                numpy_types.from_int64(self._group.keys(i), table.key_dtype)
                for i, table in enumerate(tables)
            ]
        self.counts = [self._group.counts(i) for i in range(len(tables))] if train else None

    def _typed(self, values, output_dtype):
        """float32 values in the type that was asked for."""
        types = [table.value_dtype for table in self._tables]
        if output_dtype is not None:
            types = [numpy_types.value_type("output_dtype", output_dtype)] * len(types)
        elif self._concat:
            types = [types[0] if len(set(types)) == 1 else "float32"]
        return [numpy_types.as_type(v, t) for v, t in zip(values, types)]

    def apply(
        self,
        rule: str,
        grads: typing.Any,
        hyper: dict[str, float] | None = None,
        slots: typing.Any = None,
        global_step: typing.Any = -1,
    ) -> None:
        """Updates every table once. Each table is updated completely or not at all.

        Args:
          rule, hyper, global_step: see `Table.apply`.
          grads: list of floats: the gradients of `values`, in their shapes. With concat: one array.
          slots: see `Table.apply`. The names are the same in every table.

        Raises:
          ValueError: a bad argument, or the group was made without train. Nothing has changed.
          ResourceExhaustedError: a table has no room for its new rows. This table has not changed; others may have.
        """
        spec, values = rules.rule_and_hyper(rule, hyper)
        grads = self._check_grads("apply", grads)
        global_step = arguments.integer("global_step", global_step)
        columns = [table._slot_columns(rule, spec, slots) for table in self._tables]
        for table, (_, missing) in zip(self._tables, columns):
            if missing:
                table._table.add_slots(missing)
        self._group.apply(rule, grads, values, [names for names, _ in columns], global_step)

    def weights_gradients(self, grads: typing.Any) -> list:
        """Computes the gradients of the weights, for the values that were looked up. Changes nothing.

        `apply` does not affect the result: it is the same before and after.

        Args:
          grads: see `apply`.

        Returns:
          A list with one entry per member: float32 [n], or None for a member without weights.

        Raises:
          ValueError: a gradient has another shape (the message names the member), or the group was made without train.
        """
        return self._group.weights_gradients(self._check_grads("weights_gradients", grads))

    def _check_grads(self, operation, grads):
        """`grads` as a list of float32 arrays in the shapes of the values."""
        if not self._train:
            raise ValueError(
                f"{operation}: expected a group looked up with train=True, found one without"
            )
        if self._concat:
            return [arguments.floats("grads", grads, self._shapes[0])]
        grads = arguments.one_each("grads", grads, len(self._shapes), "arrays")
        return [
            arguments.floats(f"grads of member {i}", g, shape)
            for i, (g, shape) in enumerate(zip(grads, self._shapes))
        ]


def _tables(tables):
    tables = list(arguments.sequence("tables", tables, "tables"))
    for i, table in enumerate(tables):
        if not isinstance(table, Table):
            raise ValueError(f"tables[{i}]: expected a Table, found {table!r}")
    return tables


def _combiners(combiners):
    for i, combiner in enumerate(combiners):
        one_of(f"combiner of member {i}", combiner, ("sum", "mean", "sqrtn"))
    return combiners


def _max_norms(max_norms, tables, train):
    found = [arguments.real_or_none(f"max_norm of member {i}", m) for i, m in enumerate(max_norms)]
    for i, (table, max_norm) in enumerate(zip(tables, found)):
        if max_norm is None:
            continue
        if not max_norm >= 0:
            raise ValueError(
                f"max_norm of member {i}: expected None or at least 0, found {max_norm!r}"
            )
        if train and sum(table is other for other in tables) > 1:
            raise ValueError(
                f"max_norm of member {i}: expected None where train is set and other members have the same table, "
                f"found {max_norm!r}"
            )
    return found


def _row_splits(splits, keys):
    """A member without row_splits has a row for each key."""
    splits = [np.arange(len(k) + 1) if s is None else s for k, s in zip(keys, splits)]
    splits = [arguments.integers(f"row_splits of member {i}", s) for i, s in enumerate(splits)]
    for i, s in enumerate(splits):
        if len(s) < 1:
            raise ValueError(f"row_splits of member {i}: expected at least one number, found none")
    return splits


def _check_that_members_concatenate(splits, sequences):
    if not splits:
        raise ValueError("tables: expected at least one with concat, found none")
    for i, (sequence, s) in enumerate(zip(sequences, splits)):
        if sequence:
            raise ValueError(f"is_sequence of member {i}: expected False with concat, found True")
        if len(s) != len(splits[0]):
            raise ValueError(
                f"row_splits of member {i}: expected {len(splits[0]) - 1} rows to match member 0, because of concat, found "
                f"{len(s) - 1}"
            )

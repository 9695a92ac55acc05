"""One lookup in many tables."""

import numpy as np

from tf_multitier import _engine
from tf_multitier.engine import arguments
from tf_multitier.engine import rules


class Group:
    """One lookup in many tables, pooled by row, and the update that follows it.

        group = engine.Group([users, items], [user_ids, item_ids], [user_splits, item_splits], combiners="mean", train=True)
        group.values                                             # list of float32 [batch, dim]
        group.apply("sgd", grads, hyper={"learning_rate": 0.1})  # grads: a gradient of each of the values

    Each member gets what it would get alone. Distinct keys are read once, and updated once, with the sum of their gradients,
    without another search for them. Attributes: `values`; with train, `keys` and `counts`: lists of the members' distinct keys and
    occurrences, int64.
    """

    def __init__(self, tables, keys, row_splits=None, combiners="sum", weights=None, max_norms=None, train=False):
        """Looks up.

        Args:
          tables: list of `Table`. With train each table once: join its keys.
          keys: list of integers [n], one a member.
          row_splits: list of integers [batch + 1], rising from 0 to n: which keys each row pools; None: every key is a row.
          combiners: list of "sum", "mean" or "sqrtn", or one for all.
          weights: list of floats [n] or None, or None: all one.
          max_norms: list of numbers or None, or None: values with a larger norm are scaled down to it.
          train: whether `apply` will be called.

        Raises:
          ValueError: naming the member: lists or arrays that do not fit each other, an unknown combiner.
        """
        n = len(tables)
        splits = [None] * n if row_splits is None else list(row_splits)
        combiners = [combiners] * n if isinstance(combiners, str) else list(combiners)
        weights = [None] * n if weights is None else list(weights)
        max_norms = [None] * n if max_norms is None else list(max_norms)
        for name, values in (("keys", keys), ("row_splits", splits), ("combiners", combiners), ("weights", weights),
                             ("max_norms", max_norms)):
            if len(values) != n:
                raise ValueError(f"{name}: expected one for each of {n} tables, found {len(values)}")
        for i, combiner in enumerate(combiners):
            if combiner not in ("sum", "mean", "sqrtn"):
                raise ValueError(f"combiner of member {i}: expected 'sum', 'mean' or 'sqrtn', found {combiner!r}")
        if train and len({id(table) for table in tables}) != n:
            raise ValueError("tables: a table may be there once where train is set: join its keys")
        keys = [arguments.integers(f"keys of member {i}", k) for i, k in enumerate(keys)]
        splits = [np.arange(len(k) + 1) if s is None else s for k, s in zip(keys, splits)]
        splits = [arguments.integers(f"row_splits of member {i}", s) for i, s in enumerate(splits)]
        for i, s in enumerate(splits):
            if len(s) < 1:
                raise ValueError(f"row_splits of member {i}: expected at least one number, found none")
        weights = [None if w is None else arguments.floats(f"weights of member {i}", w, [len(k)])
                   for i, (w, k) in enumerate(zip(weights, keys))]
        self._tables = list(tables)
        self._group = _engine.Group([table._table for table in tables], keys, splits, combiners, weights,
                                    [-1.0 if m is None else float(m) for m in max_norms], bool(train))
        self._rows = [len(s) - 1 for s in splits]
        self._train = bool(train)
        self.values = self._group.values()
        self.keys = [self._group.keys(i) for i in range(n)] if train else None
        self.counts = [self._group.counts(i) for i in range(n)] if train else None

    def apply(self, rule, grads, hyper=None, slots=None, global_step=-1):
        """Updates every table, one after the other, each wholly or not at all.

        Args:
          grads: list of [batch, dim], the gradients of `values`.
          rule, hyper, slots, global_step: see `Table.apply`; slots: the same names in every table.

        Raises:
          ValueError: an argument does not fit, or the group was made without train; nothing has changed.
          ResourceExhaustedError: no room for a table's new rows; that table and those after it have not changed.
        """
        if not self._train:
            raise ValueError("apply: the group was looked up without train=True")
        spec, values = rules.rule_and_hyper(rule, hyper)
        if len(grads) != len(self._tables):
            raise ValueError(f"grads: expected one for each of {len(self._tables)} tables, found {len(grads)}")
        grads = [arguments.floats(f"grads of member {i}", g, [rows, table.dim])
                 for i, (g, rows, table) in enumerate(zip(grads, self._rows, self._tables))]
        slots = [table._ensure_slots(rule, spec, slots) for table in self._tables]
        self._group.apply(rule, grads, values, slots, int(global_step))

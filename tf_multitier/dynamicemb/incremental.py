"""incremental_dump: the rows of a model that changed since a score."""

from __future__ import annotations

import collections.abc
import typing

import numpy as np
import tensorflow as tf

from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier._src.options.option_values import integer
from tf_multitier.dynamicemb import dump_tables
from tf_multitier.dynamicemb import scores

_LEAST, _MOST = -(2**63), 2**63 - 1


def incremental_dump(
    model: typing.Any,
    score_threshold: typing.Any,
    pg: typing.Any = None,
    *,
    optim: bool = False,
    removed: bool = False,
) -> tuple:
    """Reads the rows whose score is at least a threshold. Changes nothing; other threads may train meanwhile.

        rows, thresholds = incremental_dump(model, thresholds)      # of the call before, or of get_score

    Between two calls, every row that trains is in the second one, and a row that trains in the moment of the first is in both.

    Args:
      model: a collection, or a module, layer, list or dict that has some.
      score_threshold: an integer for all tables; or {collection: {table: integer}}, of which others are left out. Of LFU it is a
        number of occurrences; of a pair a time.
      pg: no effect: in a world each process gets the rows that it owns, and the keys that left it.
      optim: also the states of the optimizer.
      removed: also the keys that had a row at the threshold and have none now.

    Returns:
      (rows, thresholds), with `removed` (rows, thresholds, keys):
        rows: {collection: {table: (keys, values)}}, with `optim` (keys, values, states): int64 or uint64 [n], the table's type
          [n, dim], float32 [n, sum of the states' elements], NumPy arrays.
        thresholds: {collection: {table: integer}}: those for the next call.
        keys: {collection: {table: keys}}.

    Raises:
      TypeError, ValueError: a bad threshold or argument, or no such table; or `removed` of a table with LFU, whose threshold is no
        version.
      tf.errors.FailedPreconditionError: `removed`, and the table does not know what left since: it was loaded then, or too many did.
    """
    what = "incremental_dump"
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{what}: expected eager execution, found a graph: call it outside of tf.functions"
        )
    for name, value in (("optim", optim), ("removed", removed)):
        boolean(f"{what}: {name}", value)
    if isinstance(pg, bool):
        raise TypeError(
            f"{what}: pg: expected a process group or None, found {pg}: optim is by name"
        )
    chosen = _thresholds(model, score_threshold, what)
    for table, _ in chosen:
        if removed and table.table.strategy.threshold_by == "frequency":
            raise ValueError(
                f"{what}: removed: expected False for table '{table.name}', whose threshold is a frequency (LFU), found True: call "
                "pop_evicted_keys"
            )
    of_next = scores.get_score(
        model
    )  # before the rows are read: what trains meanwhile is in the next call
    rows: dict = {}
    thresholds: dict = {}
    left: dict = {}
    for table, threshold in chosen:
        rows.setdefault(table.path, {})[table.name] = _read(table, threshold, optim)
        thresholds.setdefault(table.path, {})[table.name] = of_next[table.path][table.name]
        if removed:
            keys = table.variable.removed_since(threshold).numpy()
            left.setdefault(table.path, {})[table.name] = keys
    return (rows, thresholds, left) if removed else (rows, thresholds)


def _thresholds(model, given, what):
    """[(ModelTable, threshold)]."""
    found = dump_tables.tables_of(model, None, what)
    where = f"{what}: score_threshold"
    if not isinstance(given, collections.abc.Mapping):
        return [
            (table, _checked(f"{where}: table '{table.name}' of '{table.path}'", given, table))
            for table in found
        ]
    by_path: dict = {}
    for table in found:
        by_path.setdefault(table.path, {})[table.name] = table
    chosen = []
    for path, its in given.items():
        if path not in by_path:
            hint = did_you_mean(path, by_path)
            raise ValueError(
                f"{where}: expected one of the collections {list(by_path)}, found {path!r}{hint}"
            )
        if not isinstance(its, collections.abc.Mapping):
            raise TypeError(
                f"{where}['{path}']: expected a dict from tables to integers, found {its!r}"
            )
        for name, threshold in its.items():
            if name not in by_path[path]:
                hint = did_you_mean(name, by_path[path])
                raise ValueError(
                    f"{where}['{path}']: expected one of {list(by_path[path])}, found {name!r}{hint}"
                )
            table = by_path[path][name]
            chosen.append((table, _checked(f"{where}['{path}']['{name}']", threshold, table)))
    return chosen


def _checked(where, threshold, table):
    """An integer, which of a frequency is at least 0."""
    is_count = table.table.strategy.threshold_by == "frequency"
    return integer(where, threshold, 0 if is_count else _LEAST, _MOST)


def _read(table, threshold, optim):
    """The arrays of the rows of a table that have at least this score."""
    variable, slots = table.variable, table.slots if optim else []
    if slots:
        table.collection.row_optimizer.build([variable])  # rows that never trained have none yet
    least = {f"min_{table.table.strategy.threshold_by}": threshold}
    names = [name for name, _, _ in slots]
    pieces = list(variable.rows(columns=["value", *names], **least))
    keys = np.zeros(0, variable.key_dtype.as_numpy_dtype)
    values = np.zeros((0, variable.embedding_dim), variable.dtype.as_numpy_dtype)
    found = (
        np.concatenate([keys, *(piece.keys for piece in pieces)]),
        np.concatenate([values, *(piece.columns["value"] for piece in pieces)]),
    )
    if not optim:
        return found
    columns = [
        np.concatenate([np.zeros((0, dim), np.float32), *(p.columns[name] for p in pieces)])
        for name, dim, _ in slots
    ]
    return (*found, np.concatenate([np.zeros((len(found[0]), 0), np.float32), *columns], 1))

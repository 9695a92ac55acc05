"""Scores: what a score strategy is in the terms of an embedding variable, and what programs read and set.

A score is the version of a row, or its frequency: it needs no memory of its own. It changes when a row trains.

    STEP               version: the step, from 1                  the lowest version leaves first
    TIMESTAMP          version: microseconds of the clock         the lowest version
    CUSTOMIZED         version: the number of set_score           the lowest version; a lower newcomer gets no row
    LFU                frequency: occurrences in training         the lowest frequency; a lower newcomer gets no row
    (TIMESTAMP, LFU)   version: microseconds; and the frequency   the lowest frequency; a lower newcomer gets no row
    NO_EVICTION        version: the step                          none: the table grows

A step is in flight from begin_step until its updates have run or failed. An increment that is read meanwhile need not have its rows,
so get_score tells the least score that a step in flight sets: the next increment has them.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import os
import time
import typing
import warnings

import tensorflow as tf

from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier._src.options.option_values import integer
from tf_multitier._src.tensorflow.library import ops
from tf_multitier.dynamicemb.enums import DynamicEmbScoreStrategy
from tf_multitier.dynamicemb.walk import find_collections

_CHECK = "DYNAMICEMB_CSTM_SCORE_CHECK"  # 0: set_score does not warn


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A score strategy.

    Attributes:
      score: of EmbeddingVariableOption.
      cache_strategy, refuse_colder: of StorageOption. None: nothing is evicted.
      dump_by: the columns of scores in dumps, "version" or "frequency" each, in the user's order.
      threshold_by: the column that a threshold of an increment is compared with.
    """

    score: str
    cache_strategy: str | None
    refuse_colder: bool
    dump_by: tuple[str, ...]
    threshold_by: str

    @property
    def evicts(self) -> bool:
        """Whether a full table evicts rows."""
        return self.cache_strategy is not None


_STRATEGIES = {
    DynamicEmbScoreStrategy.STEP: ("step", "SCORE", False),
    DynamicEmbScoreStrategy.TIMESTAMP: ("time", "SCORE", False),
    DynamicEmbScoreStrategy.CUSTOMIZED: ("custom", "SCORE", True),
    DynamicEmbScoreStrategy.LFU: ("frequency", "SCORE", True),
    DynamicEmbScoreStrategy.NO_EVICTION: ("step", None, False),
}


def of(score_strategy: typing.Any) -> Strategy:
    """The Strategy of a checked score_strategy: an enum, or the pair of TIMESTAMP and LFU."""
    if isinstance(score_strategy, tuple):
        is_lfu = [each is DynamicEmbScoreStrategy.LFU for each in score_strategy]
        columns = tuple("frequency" if lfu else "version" for lfu in is_lfu)
        return Strategy("time", "LFU", True, columns, "version")
    column = "frequency" if score_strategy is DynamicEmbScoreStrategy.LFU else "version"
    return Strategy(*_STRATEGIES[score_strategy], (column,), column)


def get_score(model: typing.Any) -> dict[str, dict[str, int]]:
    """The score that the next update will set. While other threads train: the least that one of their steps still sets.

    Returns:
      {path of the collection: {table: score}}: the step; microseconds of the clock; the number of set_score, 0 before the first one;
      with LFU 1, the least that an update gives to a key. Static tables have none.
    """
    return {
        path: {
            name: _current(collection, table)
            for name, table in collection.tables_by_name.items()
            if table.strategy is not None
        }
        for path, collection in find_collections(model)
    }


def _current(collection, table):
    if table.strategy.threshold_by == "frequency":
        return 1
    if table.strategy.score == "time":
        return time.time_ns() // 1000
    if table.strategy.score == "custom":
        of_next = collection.custom_scores[table.config.name]
    else:
        of_next = collection.row_optimizer.iterations
    return int(ops.multitier_least_in_flight(of_next.handle))


def variable(name: str) -> tf.Variable:
    """The variable of a score that set_score sets: int64, 0."""
    with tf.device("CPU:0"):  # where begin_step and get_score read it
        return tf.Variable(0, trainable=False, dtype=tf.int64, name=name)


def begin_step(collection: typing.Any) -> tf.Tensor:
    """The number of the next step of a collection, int64 scalar. The step is in flight as long as this tensor lives."""
    its = [collection.row_optimizer.iterations, *collection.custom_scores.values()]
    with tf.device("CPU:0"):
        return ops.multitier_begin_step([each.handle for each in its])


def set_score(model: typing.Any, score: typing.Any) -> None:
    """Sets the score of tables with CUSTOMIZED, which their updates give to rows from now on.

    Args:
      model: see find_collections.
      score: an int64 other than 0 and -1, for all these tables; or {path of the collection: {table: score}}. A warning says where it
        decreases, unless DYNAMICEMB_CSTM_SCORE_CHECK is 0 in the environment.

    Raises:
      TypeError: a score is no integer.
      ValueError: a score is 0; no such collection or table; or a table has another strategy. Nothing is set.
      RuntimeError: in a tf.function.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("set_score: expected an eager call, found one in a tf.function")
    scores = {
        (path, name): collection.custom_scores[name]
        for path, collection in find_collections(model)
        for name in collection.custom_scores
    }
    if isinstance(score, collections.abc.Mapping):
        wanted = _by_table(model, score)
    else:
        wanted = dict.fromkeys(scores, score)
        if not scores:
            raise ValueError(
                "set_score: expected a model with tables of DynamicEmbScoreStrategy.CUSTOMIZED, found none"
            )
    for (path, name), value in wanted.items():
        where = f"set_score: table '{name}' of '{path}'"
        if (path, name) not in scores:
            raise ValueError(
                f"{where}: expected a table with DynamicEmbScoreStrategy.CUSTOMIZED, found another strategy"
            )
        if integer(where, value, -(2**63), 2**63 - 1) in (
            0,
            -1,
        ):  # -1 is the version of an absent key
            raise ValueError(f"{where}: expected another number than 0 and -1, found {value}")
    for (path, name), value in wanted.items():
        before = int(scores[path, name].numpy())
        if before > value and before != 0 and os.environ.get(_CHECK) != "0":
            warnings.warn(
                f"set_score: table '{name}' of '{path}': expected at least {before}, the score before, found {value}",
                stacklevel=2,
            )
        scores[path, name].assign(value)


def _by_table(model, score):
    """{(path, table): value} of {path: {table: value}}."""
    tables = {path: list(each.tables_by_name) for path, each in find_collections(model)}
    found = {}
    for path, its in score.items():
        if path not in tables:
            raise ValueError(
                f"set_score: expected one of the collections {list(tables)}, found {path!r}{did_you_mean(path, tables)}"
            )
        if not isinstance(its, collections.abc.Mapping):
            raise TypeError(
                f"set_score: '{path}': expected a dict from tables to scores, found {its!r}"
            )
        for name, value in its.items():
            if name not in tables[path]:
                raise ValueError(
                    f"set_score: '{path}': expected one of the tables {tables[path]}, found {name!r}{did_you_mean(name, tables[path])}"
                )
            found[path, name] = value
    return found

"""Strategies of tf.distribute. Embedding variables train with one replica in one process: others are refused.

Reads are not, where the strategy's steps run in the variable's process: replicas read one table.
"""

from __future__ import annotations

import tensorflow as tf

from tf_multitier import tensorflow_internals

_v1 = tf.compat.v1.distribute.experimental
# Their variables or steps are on other machines or devices, also with one replica.
_ELSEWHERE = (
    tf.distribute.ParameterServerStrategy,
    _v1.ParameterServerStrategy,
    tf.distribute.TPUStrategy,
    _v1.TPUStrategy,
)
_OF_PROCESSES = (tf.distribute.MultiWorkerMirroredStrategy, _v1.MultiWorkerMirroredStrategy)


def check_read(what: str) -> None:
    """NotImplementedError for a lookup in a strategy whose steps run elsewhere. what: starts the message."""
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, _ELSEWHERE):
        raise _refusal(what, strategy)


def check_creation(what: str) -> None:
    """NotImplementedError for a new variable in the scope of a strategy in which each process would train a table of its own."""
    check_read(what)
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, _OF_PROCESSES) and strategy.num_replicas_in_sync > 1:
        raise _refusal(what, strategy)


def check_update(what: str) -> None:
    """NotImplementedError for an update in a strategy of several replicas: each would use its own gradients, unsummed.

    So is one outside of the strategy, in a process that a MultiWorkerMirroredStrategy has connected with others.
    """
    check_read(what)
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync > 1:
        raise _refusal(what, strategy)
    workers = tensorflow_internals.workers_of_collectives()
    if workers > 1:
        raise _error(what, f"one of the {workers} processes of a MultiWorkerMirroredStrategy")


def _refusal(what, strategy):
    replicas = strategy.num_replicas_in_sync
    plural = "" if replicas == 1 else "s"
    return _error(what, f"{type(strategy).__name__} with {replicas} replica{plural}")


def _error(what, found):
    return NotImplementedError(
        f"{what}: expected no strategy of tf.distribute, or one with one replica in one process, found {found}: make and train "
        "embedding variables in one process, outside of strategy.scope() and strategy.run()"
    )

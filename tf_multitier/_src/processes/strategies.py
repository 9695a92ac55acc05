"""Strategies of tf.distribute. Embedding variables train with one replica in one process, or on parameter servers.

ParameterServerStrategy of TensorFlow 2: in its scope, parts are put on the servers in turns, as TensorFlow puts its variables. The
steps of a ClusterCoordinator are traced in that scope, too: they use variables on servers, and those of the coordinator are refused.

Others are refused to train. Reads are not, where the strategy's steps run in the variable's process: replicas read one table.
"""

from __future__ import annotations

import collections.abc
import typing

import tensorflow as tf

from tf_multitier._src.processes import world
from tf_multitier._src.tensorflow import internals

_v1 = tf.compat.v1.distribute.experimental
# Their variables or steps are on other machines or devices, also with one replica.
_ELSEWHERE = (_v1.ParameterServerStrategy, tf.distribute.TPUStrategy, _v1.TPUStrategy)
_OF_PROCESSES = (tf.distribute.MultiWorkerMirroredStrategy, _v1.MultiWorkerMirroredStrategy)
_partitioners = tf.distribute.experimental.partitioners


def with_servers() -> typing.Any:
    """The ParameterServerStrategy of TensorFlow 2 whose scope this is, or None."""
    strategy = tf.distribute.get_strategy()
    return strategy if isinstance(strategy, tf.distribute.ParameterServerStrategy) else None


def partitioner_of(strategy: typing.Any, what: str) -> typing.Any:
    """The variable_partitioner of a ParameterServerStrategy, or None.

    Raises:
      NotImplementedError: it divides by size in bytes. The size of a table is not known when it is made.
    """
    found = internals.partitioner_of_strategy(strategy)
    if isinstance(found, (_partitioners.MinSizePartitioner, _partitioners.MaxSizePartitioner)):
        raise NotImplementedError(
            f"{what}: variable_partitioner of the ParameterServerStrategy: expected a FixedShardsPartitioner, because the rows of a "
            f"table are not known when it is made, found a {type(found).__name__}: pass partitioner="
        )
    return found


def on_next_server(
    strategy: typing.Any, what: str, make: collections.abc.Callable[[], typing.Any]
) -> typing.Any:
    """The table that `make` makes, on the server whose turn it is.

    Raises:
      RuntimeError: the server has not loaded the ops.
    """
    try:
        return internals.on_next_server(strategy, make)
    except tf.errors.NotFoundError as error:
        if "Op type not registered" not in str(error):
            raise
        raise RuntimeError(f"{what}: {_LACKS_OPS}") from error


_LACKS_OPS = (
    "expected servers with the ops of tf_multitier, found one without: start servers by tf_multitier.distribute.serve(), or import "
    "tf_multitier in their program"
)


def what_a_server_lacks(session: typing.Any, error: tf.errors.OpError) -> str | None:
    """What the message of a Session's error begins with, if a server has not loaded the ops."""
    del session
    is_ours = "Op type not registered 'Multitier" in error.message
    return f"a session: {_LACKS_OPS}" if is_ours else None


def is_on_server(variable: typing.Any) -> bool:
    """Whether a part of a variable is on a parameter server."""
    return any(_job(part) == "ps" for part in variable.parts)


def _job(part):
    return tf.DeviceSpec.from_string(part.handle.device).job


def check_layer(where: str, variable: typing.Any) -> None:
    """NotImplementedError for a layer of Keras whose rows are on parameter servers. where: starts the message."""
    if not variable._in_graph_mode and is_on_server(variable):
        raise NotImplementedError(
            f"{where}: embedding variable '{variable.variable_name}': expected rows in this process, because Keras 3 does not support "
            "parameter servers, found them on a server: look the variable up, and train it by tf_multitier.optimizers, in a step "
            "that a ClusterCoordinator schedules"
        )


def check_read(what: str, variables: collections.abc.Iterable) -> None:
    """NotImplementedError for a lookup in a strategy whose steps run elsewhere, and of a variable that they do not reach.

    Args:
      what: starts the message.
      variables: those that are looked up or updated.
    """
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, _ELSEWHERE):
        raise _refusal(what, strategy)
    check_reached(what, variables)


def check_reached(what: str, variables: collections.abc.Iterable) -> None:
    """NotImplementedError for a variable that the workers of a ParameterServerStrategy do not reach, in its scope."""
    if with_servers() is None:
        return
    for variable in variables:
        for part in variable.parts:
            if _job(part) != "ps":
                raise NotImplementedError(
                    f"{what}: expected embedding variables on parameter servers, found '{variable.variable_name}' on "
                    f"{part.handle.device}, which workers do not reach: make it in the scope of the ParameterServerStrategy"
                )


def check_creation(what: str) -> None:
    """NotImplementedError for a new variable in the scope of a strategy in which each process would train a table of its own."""
    check_read(what, [])
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, _OF_PROCESSES) and strategy.num_replicas_in_sync > 1:
        raise _refusal(what, strategy)


def check_load(what: str) -> None:
    """NotImplementedError for a variable of a SavedModel in the scope of a ParameterServerStrategy: it would be the coordinator's."""
    if with_servers() is not None:
        raise NotImplementedError(
            f"{what}: expected a SavedModel that is loaded outside of the scope of a ParameterServerStrategy, found its scope: "
            "restore a checkpoint into variables that are made in the scope"
        )


def check_update(what: str, variables: collections.abc.Iterable) -> None:
    """NotImplementedError for an update in a strategy of several replicas: each would use its own gradients, unsummed.

    So is one outside of the strategy, in a process that a MultiWorkerMirroredStrategy has connected with others. In a process of a
    CollectiveStrategy: ValueError, see check_of_world.
    """
    check_read(what, variables)
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync > 1:
        raise _refusal(what, strategy)
    workers = internals.workers_of_collectives()
    if workers > 1 and world.connected() is None:
        raise _error(what, f"one of the {workers} processes of a MultiWorkerMirroredStrategy")
    check_of_world(what, variables)


def check_of_world(what: str, variables: collections.abc.Iterable) -> None:
    """ValueError for an update of a variable of this process alone, in a process of a CollectiveStrategy: each would train its own."""
    connected = world.connected()
    if connected is None or connected.size == 1:
        return
    for variable in variables:
        if any(part.of_world is None for part in variable.parts):
            raise ValueError(
                f"{what}: embedding variable '{variable.variable_name}': expected one that is made in strategy.scope(), found one of "
                "this process alone, which the other ranks would not train: make it, or its layer of Keras, in "
                "`with strategy.scope():`"
            )


def _refusal(what, strategy):
    replicas = strategy.num_replicas_in_sync
    plural = "" if replicas == 1 else "s"
    return _error(what, f"{type(strategy).__name__} with {replicas} replica{plural}")


def _error(what, found):
    return NotImplementedError(
        f"{what}: expected no strategy of tf.distribute, one with one replica in one process, or TensorFlow 2's "
        f"ParameterServerStrategy, found {found}: train in several processes by tf_multitier.distribute.CollectiveStrategy or on "
        "parameter servers, or in one process outside of strategy.scope() and strategy.run()"
    )

"""serve: the main program of a parameter server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import typing

import tensorflow as tf

from tf_multitier import launch
from tf_multitier._src.options.option_values import each_once

_HERE = "tf_multitier.distribute.serve"


def _resolver_of_environment():
    found = os.environ.get("TF_CONFIG")
    if not found:
        raise ValueError(
            f"{_HERE}: TF_CONFIG: expected a cluster and the task of this process, found none: start the process by "
            "`python3 -m tf_multitier.launch` or a scheduler that sets it, or pass cluster_resolver"
        )
    with contextlib.suppress(ValueError):
        config = json.loads(found, object_pairs_hook=each_once)
        if isinstance(config, dict) and {"cluster", "task"} <= config.keys():
            return tf.distribute.cluster_resolver.TFConfigClusterResolver()
    raise ValueError(
        f"{_HERE}: TF_CONFIG: expected a JSON object with cluster and task, found {found!r}"
    )


def _checked_task(resolver):
    """(ClusterSpec, job, index) of the process, which is a server."""
    cluster, job, index = resolver.cluster_spec(), resolver.task_type, resolver.task_id
    jobs = {} if not cluster else cluster.as_dict()
    runs_steps = job == "worker" and {"chief", "ps"} <= jobs.keys()
    if job != "ps" and not runs_steps:
        raise ValueError(
            f"{_HERE}: task: expected ps, or worker in a cluster with chief and ps, found {job!r} in a cluster of "
            f"{', '.join(sorted(jobs)) or 'no tasks'}: other tasks run the training program"
        )
    count = cluster.num_tasks(job) if job in jobs else 0
    if index is None or not 0 <= index < count:
        raise ValueError(
            f"{_HERE}: task: expected an index of the {count} tasks of {job}, found {index}"
        )
    return cluster, job, index


def serve(cluster_resolver: typing.Any = None, config: typing.Any = None) -> None:
    """Is a server of a cluster until the process gets SIGTERM. Returns then.

    It starts a tf.distribute.Server, which has the ops of this package: importing it loaded them. In programs of TensorFlow 1 it is for
    the tasks ps, in those with a ClusterCoordinator for ps and worker. Call it from the main thread. The tables end with the process;
    the next process that uses their storage path deletes their files.

    Args:
      cluster_resolver: a tf.distribute.cluster_resolver.ClusterResolver; None: that of TF_CONFIG.
      config: tf.compat.v1.ConfigProto of the server, or None.

    Raises:
      ValueError: TF_CONFIG is missing or no cluster, or its task is no server.
      RuntimeError: the caller is not the main thread.
      tf.errors.OpError: the server's port is not free.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            f"{_HERE}: expected a call from the main thread, which gets signals, found {threading.current_thread().name}"
        )
    resolver = _resolver_of_environment() if cluster_resolver is None else cluster_resolver
    cluster, job, index = _checked_task(resolver)
    ended = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        protocol = resolver.rpc_layer or "grpc"
        server = tf.distribute.Server(cluster, job, index, protocol=protocol, config=config)
        _tell_launcher()
        ended.wait()
        del server  # not before
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell_launcher():
    """Says to a tf_multitier.launch that started this process that it is a server."""
    descriptor = os.environ.pop(launch.SERVING, None)
    if descriptor is not None:
        with open(int(descriptor), "wb") as pipe:
            pipe.write(b".")

"""How many rows the restores of this process read, and which tables its Sessions share."""

from __future__ import annotations

import json
import threading
import typing

import tensorflow as tf

from tf_multitier._src.tensorflow.library import ops


class ProcessState:
    """Reads the state of the process as often as it is called. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        with tf.Graph().as_default() as graph:
            self._state = ops.multitier_process_state()
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        self._session = tf.compat.v1.Session(graph=graph, config=config)

    def read(self) -> dict[str, typing.Any]:
        """{"restored_rows": {"done": ..., "total": ...}, "shared_tables": [...]}: see the op MultitierProcessState."""
        with self._lock:
            return json.loads(self._session.run(self._state))

    def close(self) -> None:
        """Ends the object."""
        self._session.close()

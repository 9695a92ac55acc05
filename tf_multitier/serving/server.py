"""Server: an HTTP server of one model, with paths of TensorFlow Serving's REST API."""

from __future__ import annotations

import collections.abc
import functools
import logging
import os
import signal
import socket
import threading
import typing

from tf_multitier.serving.application import Application
from tf_multitier.serving.base_path import BasePath

_LOG = logging.getLogger(__name__)

_LAST_SECONDS = (
    5.0  # that `run` waits for a load or a prediction, which a disk that hangs may never end
)


class Server:
    """Answers HTTP requests with the newest version of a model, and loads new versions while it does.

    `path` has a folder for each version: `7/` with a SavedModel. The newest one that can be loaded is served. A version may have a
    folder `rows` with a checkpoint and its deltas, whose variables it then gets: write the files of an `IncrementalSaver`
    or a `CheckpointManager` there, or those of `freeze` and `freeze_delta`. Rename a version into place when it is complete, and away
    before you delete it.

    | Request | Answer |
    |---|---|
    | `GET /v1/models/NAME[/versions/N]` | the versions, their states and errors |
    | `GET /v1/models/NAME[/versions/N]/metadata` | the signatures |
    | `POST /v1/models/NAME[/versions/N]:predict` | for `{"instances": [...]}`, `{"predictions": [...]}`; for `{"inputs": ...}`, `{"outputs": ...}` |
    | `GET /metrics` | Prometheus' text form |

    The forms are those of TensorFlow Serving's REST API: `signature_name`, bytes as `{"b64": "..."}`, an input or output without its
    name if it is the only one. `/labels/L`, `:classify` and `:regress` are missing; malformed paths get 404 or 405. A request sees one
    version. A version that cannot be loaded leaves the one before it in use; the log, the status and `/metrics` say so.

    | Code | Reason: `{"error": "..."}` |
    |---|---|
    | 400 | the body is not JSON, or has other names, types or shapes than the signature |
    | 404, 405 | the path, model or version is unknown; the path has another method |
    | 408 | the body came too slowly |
    | 413 | the body is larger than `max_body_bytes`, or the answer than `max_answer_bytes` |
    | 415 | the body is compressed |
    | 500 | the graph failed |
    | 503 | the queue is full |

    There is no encryption and no authentication: put a proxy in front of it if others than this machine are to reach it.

    Args:
      path: the folder of versions.
      name: the model's name in paths; "": that of the folder.
      host: address to listen at.
      port: 0: a free one; `address` has it.
      threads: number of predictions that run at once.
      queue: number of predictions that wait for a thread.
      max_body_bytes: of a request. It is parsed in one piece, while others wait.
      max_answer_bytes: of the outputs of a request, as arrays. JSON is larger: of float32 about six times.
      max_connections: number of connections at once. More are closed without an answer; `/metrics` counts them.
      timeout: seconds that a client may take for each of these: be idle, send the head, send the body, take an answer.
      poll_seconds: between two looks for new versions.
      storage_path: as for `Model`.

    Attributes:
      address: such as "http://127.0.0.1:8501".
      is_freed: whether it was closed, and none of its threads runs.

    Raises:
      ImportError: uvicorn is not installed.
      NotFoundError: there is no version that can be loaded.
      OSError: the port is in use.
      ValueError: an option has a wrong value.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        name: str = "",
        *,
        host: str = "127.0.0.1",
        port: int = 8501,
        threads: int = 8,
        queue: int = 64,
        max_body_bytes: int = 4 << 20,
        max_answer_bytes: int = 4 << 20,
        max_connections: int = 512,
        timeout: float = 30.0,
        poll_seconds: float = 1.0,
        storage_path: str | os.PathLike | None = None,
    ) -> None:
        try:
            import uvicorn

            from tf_multitier.serving.connection import Connection
        except ImportError as error:
            raise ImportError(
                f"Server: expected uvicorn, found none ({error}): pip install tf_multitier[serving]"
            ) from error
        path = os.path.abspath(path)
        name = name or os.path.basename(path)
        if "/" in name or ":" in name:
            raise ValueError(f"name: expected one without '/' and ':', found {name!r}")
        _check_limits(
            threads=(threads, 1),
            queue=(queue, 0),
            max_body_bytes=(max_body_bytes, 1),
            max_answer_bytes=(max_answer_bytes, 1),
            max_connections=(max_connections, 1),
            timeout=(timeout, 0.001),
            poll_seconds=(poll_seconds, 0.001),
        )
        if not host:
            raise ValueError("host: expected an address, found none: 0.0.0.0 answers all machines")
        if not 0 <= port < 1 << 16:
            raise ValueError(f"port: expected 0 to 65535, found {port}")
        self._socket = _bind(host, port)
        try:
            self._base = BasePath(path, None if storage_path is None else os.fspath(storage_path))
            self._socket.listen()
        except BaseException:
            self._socket.close()
            raise
        self.address = "http://{}:{}".format(
            f"[{host}]" if ":" in host else host, self._socket.getsockname()[1]
        )
        self._application = Application(
            self._base, name, threads, queue, max_body_bytes, max_answer_bytes, timeout
        )
        connection = functools.partial(
            Connection,
            max_connections=max_connections,
            on_refused=self._application.add_refused_connection,
        )
        settings: dict[str, typing.Any] = dict(
            http=connection, timeout_keep_alive=timeout, timeout_graceful_shutdown=timeout
        )
        config = uvicorn.Config(self._application, **settings, **_UVICORN)
        self._uvicorn = uvicorn.Server(config)
        self._freeing: threading.Thread | None = None
        self._threads = [
            threading.Thread(target=self._uvicorn.run, args=([self._socket],), daemon=True),
            threading.Thread(target=self._base.watch, args=(poll_seconds,), daemon=True),
        ]

    def start(self) -> None:
        """Answers requests, in threads of its own, until `close`."""
        for thread in self._threads:
            thread.start()

    def run(self, announce: collections.abc.Callable[[], object] = lambda: None) -> int:
        """Answers requests until SIGTERM or SIGINT, then those that have begun. Call it in the main thread.

        A version that is being loaded then has 5 seconds. If it takes longer, the log says so, and its thread goes on.

        Args:
          announce: called once the signals have this effect, before requests are answered.

        Returns:
          0; 1 if the server failed before it was to end. The standard error says why.
        """

        def stop(*unused):
            self._uvicorn.should_exit = True

        old = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            announce()
            self.start()
            self._threads[0].join()
            return 0 if self._uvicorn.should_exit else 1
        finally:
            if not self._end(_LAST_SECONDS):
                _LOG.warning(
                    "'%s': expected what reads its files to end within %g s, found it still reading: the server ends without it",
                    self._base.path,
                    _LAST_SECONDS,
                )
            for number, handler in old.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """Refuses new connections, answers the requests that have begun, and frees the model."""
        self._end(None)

    @property
    def is_freed(self) -> bool:
        """See above."""
        return self._freeing is not None and not self._freeing.is_alive()

    def _end(self, seconds):
        """`close`, which waits at most `seconds` for threads that read files. `is_freed` afterwards."""
        self._uvicorn.should_exit = True
        self._base.end()
        _join(self._threads[0])
        self._socket.close()
        self._freeing = threading.Thread(target=self._free, daemon=True)
        self._freeing.start()
        self._freeing.join(seconds)
        return self.is_freed

    def _free(self):
        """Waits for the predictions and the load that run."""
        self._application.close()
        _join(self._threads[1])
        self._base.model.close()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


# Of uvicorn, which serves one application, without logs of its own.
_UVICORN: dict[str, typing.Any] = dict(
    loop="asyncio",
    lifespan="off",
    ws="none",
    log_config=None,
    access_log=False,
    proxy_headers=False,
    server_header=False,
)


def _join(thread):
    """Waits for the end of a thread, if it has begun."""
    if thread.ident is not None:
        thread.join()


def _check_limits(**limits):
    """ValueError unless each (value, least) is in range."""
    for name, (value, least) in limits.items():
        if not least <= value < threading.TIMEOUT_MAX:
            raise ValueError(f"{name}: expected at least {least}, found {value}")


def _bind(host, port):
    """A socket that refuses clients until it listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY where the protocol is named: without it each answer waits 40 ms for an acknowledgement.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"{host}:{port}: {error.strerror}") from None
    return bound

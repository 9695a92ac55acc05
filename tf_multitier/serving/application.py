"""Application: the ASGI application of a server. It runs in one event loop; predictions run in a pool of threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import re
import time
import typing

import tensorflow as tf
from google.protobuf import json_format

from tf_multitier.serving import metrics
from tf_multitier.serving import rest
from tf_multitier.serving.base_path import BasePath

_LOG = logging.getLogger(__name__)

_MODEL = re.compile(
    r"/v1/models/([^/:]+)(?:/versions/([0-9]{1,19}))?(?:(/metadata)|(:predict))?", re.ASCII
)


class _Refused(Exception):
    """A request that gets an error as its answer."""

    def __init__(self, code, message, close=False):
        super().__init__(message)
        self.code, self.close = code, close


class _Gone(Exception):
    """The client closed the connection."""


class Application:
    """Answers the paths of TensorFlow Serving's REST API, and /metrics.

    A body is read before its request takes a place in the queue: slow clients hold none. Bodies that are read or wait take at most
    the bytes of (threads + queue) of the largest ones.

    Threading: the event loop alone, except `_answer`.
    """

    def __init__(
        self,
        base: BasePath,
        name: str,
        threads: int,
        queue: int,
        max_body_bytes: int,
        max_answer_bytes: int,
        timeout: float,
    ) -> None:
        self._base, self._name = base, name
        self._places, self._threads = threads + queue, threads
        self._max_body_bytes, self._max_answer_bytes = max_body_bytes, max_answer_bytes
        self._timeout = timeout
        self._held_bytes = self._running = self._refused_connections = 0
        self._metrics = metrics.Metrics()
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "tf_multitier_predict")

    def close(self) -> None:
        """Waits for the predictions that run."""
        self._pool.shutdown()

    def add_refused_connection(self) -> None:
        """Counts one for the metrics."""
        self._refused_connections += 1

    async def __call__(
        self, scope: typing.Any, receive: typing.Callable, send: typing.Callable
    ) -> None:
        kind, close = "application/json", False
        try:
            _expect_one_length(scope)
            if scope["path"] == "/metrics":
                _expect_method(scope, "GET")
                code, kind, body = 200, metrics.CONTENT_TYPE, self._metrics_page()
            else:
                code, body = 200, await self._model_page(scope, receive)
        except _Gone:
            return
        except _Refused as error:
            code, body, close = error.code, _error(error), error.close
        except Exception as error:  # noqa: BLE001  of the graph, or of ours
            _LOG.exception("%s %s", scope["method"], scope["path"])
            code, body = 500, _error(error)
        self._metrics.add_answer(code)
        headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
        headers += [(b"connection", b"close")] * close
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _model_page(self, scope, receive):
        match = _MODEL.fullmatch(scope["path"])
        if not match:
            raise _Refused(
                404,
                f"path: expected /v1/models/{self._name}, with /versions/N, /metadata or :predict; or /metrics; "
                f"found {scope['path'][:80]!r}",
            )
        name, wanted, is_metadata, is_predict = match.groups()
        if name != self._name:
            raise _Refused(404, f"model: expected {self._name!r}, found {name[:80]!r}")
        wanted = None if wanted is None else int(wanted)
        _expect_method(scope, "POST" if is_predict else "GET")
        if is_predict:
            return await self._predict(scope, receive, wanted)
        return self._metadata(wanted) if is_metadata else self._status(wanted)

    async def _predict(self, scope, receive, wanted):
        body = bytearray()
        try:
            try:
                await asyncio.wait_for(self._read(scope, receive, body), self._timeout)
            except asyncio.TimeoutError:
                raise _Refused(
                    408,
                    f"body: expected all of it within {self._timeout} s, found less",
                    close=True,
                ) from None
            if self._running >= self._places:
                raise _Refused(
                    503, f"queue: expected at most {self._places} requests at once, found more"
                )
            self._running += 1
            start = time.monotonic()
            try:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._pool, self._answer, wanted, body)
            finally:
                self._running -= 1
                self._metrics.add_latency(time.monotonic() - start)
        finally:
            self._held_bytes -= len(body)

    async def _read(self, scope, receive, body):
        """Reads the body. What it has counts in _held_bytes."""
        _expect_no_coding(scope)
        lengths = [int(value) for key, value in scope["headers"] if key == b"content-length"]
        self._check_length(max(lengths, default=0))
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise _Gone
            body += message["body"]
            self._held_bytes += len(message["body"])
            self._check_length(len(body))
            if self._held_bytes > self._places * self._max_body_bytes:
                raise _Refused(503, "bodies: expected less at once, found too many bytes")
            more = message["more_body"]

    def _check_length(self, length):
        if length > self._max_body_bytes:
            raise _Refused(
                413,
                f"body: expected at most {self._max_body_bytes} bytes (max_body_bytes), found {length}",
            )

    def _answer(self, wanted, body):
        """Runs in the pool. The version is one from the parsing of the body to the answer."""
        try:
            with self._base.model.pin() as version:
                self._expect_version(wanted, self._base.version_of(version))
                return rest.predict(version, body, self._max_answer_bytes)
        except rest.LargeAnswerError as error:
            raise _Refused(413, str(error)) from None
        except ValueError as error:  # of the body, or of a shape
            raise _Refused(400, str(error)) from None
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
            raise _Refused(400, error.message) from None

    def _expect_version(self, wanted, current):
        if wanted not in (None, current):
            raise _Refused(404, f"version of '{self._name}': expected {current}, found {wanted}")

    def _status(self, wanted):
        current, _ = self._base.current
        states = {
            number: ("END", "UNKNOWN", error) for number, error in self._base.errors().items()
        }
        # A delta that cannot be loaded leaves its version available.
        states[current] = ("AVAILABLE", "OK", states.get(current, ("", "", ""))[2])
        if wanted is not None and wanted not in states:
            self._expect_version(wanted, current)
        page = [
            {
                "version": str(number),
                "state": state,
                "status": {"error_code": code, "error_message": error},
            }
            for number, (state, code, error) in sorted(states.items(), reverse=True)
            if wanted in (None, number)
        ]
        return json.dumps({"model_version_status": page}).encode()

    def _metadata(self, wanted):
        current, definitions = self._base.current
        self._expect_version(wanted, current)
        signatures = {
            name: json_format.MessageToDict(each, preserving_proto_field_name=True)
            for name, each in definitions.items()
        }
        spec = {"name": self._name, "signature_name": "", "version": str(current)}
        page = {
            "model_spec": spec,
            "metadata": {"signature_def": {"signature_def": signatures}},
        }
        return json.dumps(page).encode()

    def _metrics_page(self):
        waiting = max(0, self._running - self._threads)
        gauges = {
            "running": ("gauge", "Predictions that run.", self._running - waiting),
            "queue": ("gauge", "Predictions that wait for a thread.", waiting),
            "version": ("gauge", "The version that is served.", self._base.current[0]),
            "refused_connections_total": (
                "counter",
                "Connections above max_connections.",
                self._refused_connections,
            ),
            "reload_failures_total": (
                "counter",
                "Versions and deltas that could not be loaded.",
                self._base.failures,
            ),
        }
        return self._metrics.text(gauges).encode()


def _expect_one_length(scope):
    """A proxy in front may take the other length, and see other requests than we (RFC 9112, 6.3)."""
    if {b"content-length", b"transfer-encoding"} <= {key for key, _ in scope["headers"]}:
        raise _Refused(
            400, "headers: expected Content-Length or Transfer-Encoding, found both", close=True
        )


def _expect_no_coding(scope):
    for key, value in scope["headers"]:
        if key == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise _Refused(
                415,
                f"Content-Encoding: expected none, found {value[:20].decode('latin-1')!r}: send the body as it is",
            )


def _expect_method(scope, method):
    if scope["method"] != method:
        raise _Refused(405, f"method: expected {method}, found {scope['method'][:20]}")


def _error(error):
    return json.dumps({"error": str(error)}).encode()

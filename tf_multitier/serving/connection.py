"""Connection: uvicorn's connection, with a limit of time for each thing that a client does. Importing it needs uvicorn."""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Callable

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """A connection that ends if its client is idle, sends the head of a request, or takes an answer, for too long.

    So does one that goes on to send a body that was refused. The application limits the time of other bodies.

    Args:
      max_connections: a connection above this number is closed at once.
      on_refused: called for each of these.
      options: uvicorn's.
    """

    _idle: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _state: object = None

    def __init__(
        self, max_connections: int, on_refused: Callable[[], None], **options: typing.Any
    ) -> None:
        super().__init__(**options)
        self._max_connections, self._on_refused = max_connections, on_refused

    def connection_made(self, transport: typing.Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            self._on_refused()
            transport.abort()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether to answer: a client may end its side after a request, and wait."""
        waits = self.cycle and not self.cycle.more_body and not self.cycle.response_complete
        if waits:
            self.cycle.keep_alive = False
        return bool(waits)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self._abort_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writing = _cancelled(self._writing)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._idle, self._writing = _cancelled(self._idle), _cancelled(self._writing)

    def _watch(self):
        """Starts the clock when the client begins to do what it alone can end."""
        state = (self.conn.their_state, self.conn.our_state)
        if state == self._state:
            return
        self._state, self._idle = state, _cancelled(self._idle)
        if state[0] is h11.IDLE or (state[0] is h11.SEND_BODY and state[1] is h11.DONE):
            self._idle = self._abort_later()

    def _abort_later(self):
        return self.loop.call_later(self.config.timeout_keep_alive, self.transport.abort)


def _cancelled(timer):
    if timer is not None:
        timer.cancel()

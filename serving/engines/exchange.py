"""One request and its answer on one connection to an engine, and everything that can become of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from serving.core.context import Headers

if TYPE_CHECKING:
    from serving.engines.wire import Connection

Sink = Callable[[bytes, bytes | None], bool]
"""Takes a piece and, where they are known, the very bytes that carried it as HTTP/1.1 chunks. Returns whether there is room."""


class WireError(Exception):
    """The exchange cannot go on; the connection is closed."""


class Unreachable(WireError):
    """No connection could be made: the engine, or the machine it is on, said no."""


class ConnectTimedOut(Unreachable):
    """Nobody said anything: the engine may be gone, or the way to it, or this process had no time."""


class NoResources(Unreachable):
    """This machine had no file or port left for a connection, which says nothing about the engine."""


class StaleConnection(WireError):
    """A kept connection ended before any byte of an answer; most likely the engine had closed it already."""


class BrokenAnswer(WireError):
    """The connection ended, or the bytes made no sense, inside the exchange."""


class AnswerTimedOut(WireError):
    """The engine was silent for too long."""


class RequestTimedOut(WireError):
    """The request's whole time is used up, whoever used it."""


class Exchange:
    """One request and its answer on one connection.

    Await `head()`, then `piece()` until its second item is True. Raises `WireError`s. `close()` may come at any time.
    """

    # The defaults stand in the class, since few exchanges need all of these fields.
    connection: Connection | None
    status = 0
    headers: Headers
    heard = False
    """Bytes have come since the deadline was set; whoever looks after deadlines sets it anew."""
    _pieces_bytes = 0
    sink: Sink | None = None
    """Where pieces go while they are diverted."""
    _ended = False
    _error: WireError | None = None
    _waiter: asyncio.Future[None] | None = None

    def __init__(
        self,
        connection: Connection,
        *,
        deadline: float,
        idle_timeout_seconds: float,
        high_water_bytes: int,
        ends: float = math.inf,
    ) -> None:
        self.connection = connection
        self.deadline = deadline
        """When the engine will have been silent for too long, by the loop's clock."""
        self.ends = ends
        """When the request's time is used up, by the monotonic clock."""
        self.idle_timeout_seconds = idle_timeout_seconds
        self.high_water_bytes = high_water_bytes
        self._loop = connection.loop
        self._pieces: list[bytes] = []

    async def head(self) -> int:
        """Wait for the status; `headers` is filled when it returns."""
        while not self.status:
            if self._error is not None:
                raise self._error
            waiter = self._waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self._waiter = None
        return self.status

    def at_hand(self) -> tuple[bytes, bool] | None:
        """What `piece` would return without waiting, in the plainest case; None in all others."""
        if len(self._pieces) != 1 or self._pieces_bytes > self.high_water_bytes:
            return None
        self._pieces_bytes = 0
        return self._pieces.pop(), self._ended

    async def piece(self) -> tuple[bytes, bool]:
        """All body bytes since the last call, and whether the body is complete with them."""
        while True:
            if self._pieces:
                pieces = self._pieces
                data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                self._pieces = []
                if self._pieces_bytes > self.high_water_bytes and self.connection is not None:
                    # It was us who did not listen: the engine's silence begins now.
                    self.deadline = self._loop.time() + self.idle_timeout_seconds
                    self.connection.resume_reading()
                self._pieces_bytes = 0
                return data, self._ended
            if self._ended:
                return b"", True
            if self._error is not None:
                raise self._error
            await self._wait()

    async def divert(self, sink: Sink) -> None:
        """Hand each piece to `sink` as it is read, until that returns False, the body is complete, or the exchange fails.

        What came before and what comes after is for `piece()`, which also raises the failure.
        """
        if self._pieces or self._ended or self._error is not None:
            return
        self.sink = sink
        try:
            await self._wait()
        finally:
            self.sink = None

    async def send_more(self, data: bytes) -> bool:
        """Write more of a request whose end was left open, when the connection has room for it.

        Returns whether the engine wants more: not when it has begun to answer. Raises: WireError.
        """
        while True:
            if self._error is not None:
                raise self._error
            connection = self.connection
            if self.status or connection is None or connection.transport is None:
                return False
            if not connection.writing_paused:
                connection.transport.write(data)
                return True
            await self._wait()

    def has_room(self) -> None:
        """The connection takes more again."""
        self._wake()

    def sent(self, first_byte_timeout_seconds: float) -> None:
        """The request that was left open is whole: from now on the engine's answer is waited for."""
        self.deadline = self._loop.time() + first_byte_timeout_seconds
        if self.connection is not None:
            self.connection.request_open = False

    async def _wait(self) -> None:
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def close(self) -> None:
        """Give the connection up; it is closed unless the answer is complete. Whoever waits for more gets an error."""
        self.fail(BrokenAnswer("the exchange was given up"))
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abandon()

    def fail(self, error: WireError) -> None:
        """End the exchange with an error, from the connection or from a deadline."""
        if self._error is None and not self._ended:
            self._error = error
            self._wake()

    def overdue(self, now: float) -> bool:
        """Whether the engine, not the client, keeps this exchange waiting past its deadline, in the loop's time."""
        if self.heard:
            self.heard = False
            self.deadline = now + self.idle_timeout_seconds
        return self._waiter is not None and now > self.deadline

    def feed(self, data: bytes, framed: bytes | None = None) -> None:
        """A piece of the body; `framed` are the very bytes that carried it as HTTP/1.1 chunks."""
        self.heard = True
        if self.sink is not None:
            if not self.sink(data, framed):
                self.undivert()
            return
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        if self._pieces_bytes > self.high_water_bytes and self.connection is not None:
            self.connection.pause_reading()
        self._wake()

    def undivert(self) -> None:
        """The client's buffer is full: the next pieces wait here until it has taken what it was sent."""
        self.sink = None
        self._wake()

    def start(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self._wake()

    def finish(self) -> None:
        self._ended = True
        self.connection = None
        self._wake()

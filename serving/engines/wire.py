"""HTTP/1.1 to engines: one asyncio protocol for each connection, and a pool of idle ones for each address.

A connection carries one exchange at a time. An exchange is closed exactly once; closing it before its end closes the
connection, which is how vLLM learns that nobody waits any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from serving.core.context import Headers

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)


class WireError(Exception):
    """The exchange cannot go on; the connection is closed."""


class Unreachable(WireError):
    """No connection could be made."""


class StaleConnection(WireError):
    """A kept connection ended before any byte of an answer; most likely the engine had closed it already."""


class BrokenAnswer(WireError):
    """The connection ended, or the bytes made no sense, inside the exchange."""


class AnswerTimedOut(WireError):
    """The engine was silent for too long."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens: `host` and `port`, or a Unix socket's `path`."""

    host: str
    port: int
    path: str
    host_header: bytes

    @classmethod
    def parse(cls, url: str) -> Address:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return cls("", 0, parts.path, b"engine")
        host = parts.hostname or ""
        port = parts.port or 80
        shown = f"[{host}]" if ":" in host else host
        return cls(host, port, "", f"{shown}:{port}".encode())


class Exchange:
    """One request and its answer on one connection.

    Await `head()`, then `piece()` until its second item is True. Raises `WireError`s. `close()` may come at any time.
    """

    __slots__ = (
        "_ended",
        "_error",
        "_loop",
        "_pieces",
        "_pieces_bytes",
        "_sink",
        "_waiter",
        "connection",
        "deadline",
        "headers",
        "high_water_bytes",
        "idle_timeout_seconds",
        "status",
    )

    def __init__(self, connection: Connection, *, deadline: float, idle_timeout_seconds: float, high_water_bytes: int) -> None:
        self.connection: Connection | None = connection
        self.status = 0
        self.headers: Headers = []
        self.deadline = deadline
        self.idle_timeout_seconds = idle_timeout_seconds
        self.high_water_bytes = high_water_bytes
        self._loop = connection.loop
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._sink: Callable[[bytes], bool] | None = None
        self._ended = False
        self._error: WireError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def head(self) -> int:
        """Wait for the status; `headers` is filled when it returns."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self.status

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

    async def divert(self, sink: Callable[[bytes], bool]) -> None:
        """Hand each piece to `sink` as it is read, until that returns False, the body is complete, or the exchange fails.

        What came before and what comes after is for `piece()`, which also raises the failure.
        """
        if self._pieces or self._ended or self._error is not None:
            return
        self._sink = sink
        try:
            await self._wait()
        finally:
            self._sink = None

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

    @property
    def overdue(self) -> bool:
        """Whether the engine, not the client, keeps this exchange waiting past its deadline."""
        return self._waiter is not None and self._loop.time() > self.deadline

    def feed(self, data: bytes) -> None:
        if self._sink is not None:
            self.deadline = self._loop.time() + self.idle_timeout_seconds
            if not self._sink(data):
                # The next pieces wait here until the client has taken what it was sent.
                self._sink = None
                self._wake()
            return
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        self.deadline = self._loop.time() + self.idle_timeout_seconds
        if self._pieces_bytes > self.high_water_bytes and self.connection is not None:
            self.connection.pause_reading()
        self._wake()

    def start(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self._wake()

    def finish(self) -> None:
        self._ended = True
        self.connection = None
        self._wake()


class Connection(asyncio.Protocol):
    """One connection to an engine."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Pool) -> None:
        self.loop = loop
        self.pool = pool
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.idle_since = 0.0
        self._parser: httptools.HttpResponseParser | None = None
        self._headers: Headers = []
        self._reused = False
        self._answered = False
        self._reading_paused = False
        self._until_close = False
        self._trailing = False

    def send(self, exchange: Exchange, request: bytes) -> None:
        """Write a whole request; its answer goes to `exchange`."""
        if self.transport is None:
            exchange.fail(StaleConnection("the connection was closed"))
            return
        self.exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._headers = []
        self._answered = self._until_close = False
        self.transport.write(request)

    def abandon(self) -> None:
        self.exchange = None
        if self.transport is not None:
            self.transport.abort()

    def pause_reading(self) -> None:
        if self.transport is not None and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.transport is not None and self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport but are no subclass of it.
        self.transport = cast(asyncio.Transport, transport)
        self.pool.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.pool.forget(self)
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        exchange.connection = None
        if self._reused and not self._answered:
            exchange.fail(StaleConnection("the engine closed a kept connection"))
        elif self._until_close and exc is None:
            exchange.finish()
        else:
            exchange.fail(BrokenAnswer("the engine's connection ended inside the answer"))

    def data_received(self, data: bytes) -> None:
        if self.exchange is None or self._parser is None:
            # An engine has nothing to say between exchanges; what follows an answer belongs to no request.
            self.abandon()
            return
        self._answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._refuse(f"the engine's answer is not HTTP/1.1: {error}")
        except httptools.HttpParserUpgrade:
            self._refuse("the engine answered with a protocol upgrade")
        if self._trailing:
            self.abandon()

    def _refuse(self, why: str) -> None:
        exchange = self.exchange
        if exchange is not None:
            exchange.connection = None
            exchange.fail(BrokenAnswer(why))
        self.abandon()

    # httptools

    def on_message_begin(self) -> None:
        if self._parser is None:
            # Bytes after a complete answer would become the next request's answer.
            self._trailing = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._parser is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            return
        framed = False
        headers: Headers = []
        for name, value in self._headers:
            if name in (b"content-length", b"transfer-encoding"):
                framed = True
            if name not in HOP_BY_HOP:
                headers.append((name, value))
        self._until_close = not framed and status not in (204, 304)
        if self.exchange is not None:
            self.exchange.start(status, headers)

    def on_body(self, body: bytes) -> None:
        if self.exchange is not None:
            self.exchange.feed(body)

    def on_message_complete(self) -> None:
        parser = self._parser
        if parser is None:
            return
        if parser.get_status_code() < 200:
            # An interim answer; the real one follows on the same parser.
            self._headers = []
            return
        exchange, self.exchange = self.exchange, None
        self._parser = None
        self.resume_reading()
        if parser.should_keep_alive() and self.transport is not None and not self.transport.is_closing():
            self._reused = True
            self.pool.put_back(self)
        elif self.transport is not None:
            self.transport.close()
        if exchange is not None:
            exchange.finish()


class Pool:
    """Connections to one address; the last one used is used first, so that a calm pool shrinks."""

    def __init__(self, address: Address, *, connect_timeout_seconds: float, idle_seconds: float) -> None:
        self.address = address
        self.open: set[Connection] = set()
        self._connect_timeout_seconds = connect_timeout_seconds
        self._idle_seconds = idle_seconds
        self._idle: list[Connection] = []

    @property
    def open_connections(self) -> int:
        return len(self.open)

    async def connection(self, *, fresh: bool = False) -> Connection:
        """A connection that is free. Raises: Unreachable."""
        loop = asyncio.get_running_loop()
        if not fresh:
            oldest = loop.time() - self._idle_seconds
            while self._idle:
                connection = self._idle.pop()
                if connection.idle_since < oldest:
                    self._idle.append(connection)
                    self.close_idle()
                    break
                if connection.transport is not None and not connection.transport.is_closing():
                    return connection
        connection = Connection(loop, self)
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                if self.address.path:
                    await loop.create_unix_connection(lambda: connection, self.address.path)
                else:
                    await loop.create_connection(lambda: connection, self.address.host, self.address.port)
        except TimeoutError:
            self._give_up(connection)
            raise Unreachable("the engine did not accept a connection in time") from None
        except (OSError, UnicodeError) as error:
            # UnicodeError: a host that is no name at all.
            why = error.strerror if isinstance(error, OSError) else None
            raise Unreachable(f"the engine cannot be reached: {why or type(error).__name__}") from None
        except asyncio.CancelledError:
            self._give_up(connection)
            raise
        return connection

    def _give_up(self, connection: Connection) -> None:
        """The transport may be up already although nobody will ever get the connection; and when uvloop is stopped just after it
        has told the protocol of its beginning, it never tells it of its end."""
        connection.abandon()
        self.forget(connection)

    def put_back(self, connection: Connection) -> None:
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self.open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close_idle(self, older_than_seconds: float = 0.0) -> None:
        """Close kept connections that were idle for longer than this."""
        if not self._idle:
            return
        limit = self._idle[0].loop.time() - older_than_seconds
        kept = []
        for connection in self._idle:
            if connection.idle_since > limit:
                kept.append(connection)
            elif connection.transport is not None:
                connection.transport.close()
        self._idle = kept

"""HTTP/1.1 to engines: one asyncio protocol for each connection, and a pool of idle ones for each address.

A connection carries one exchange at a time. An exchange is closed exactly once; closing it before its end closes the
connection, which is how vLLM learns that nobody waits any more.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from serving.core.context import Headers
from serving.engines.answer_reader import HOP_BY_HOP, SIZES, read_chunks, read_head
from serving.engines.tls import why

_CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
Sink = Callable[[bytes, bytes | None], bool]
"""Takes a piece and, where they are known, the very bytes that carried it as HTTP/1.1 chunks. Returns whether there is room."""


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


class RequestTimedOut(WireError):
    """The request's whole time is used up, whoever used it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens: `host` and `port`, or a Unix socket's `path`."""

    host: str
    port: int
    path: str
    host_header: bytes
    is_tls: bool = False

    @classmethod
    def parse(cls, url: str) -> Address:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return cls("", 0, parts.path, b"engine")
        is_tls = parts.scheme == "https"
        host = parts.hostname or ""
        port = parts.port or (443 if is_tls else 80)
        shown = f"[{host}]" if ":" in host else host
        return cls(host, port, "", f"{shown}:{port}".encode(), is_tls)


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
    _sink: Sink | None = None
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
        self._sink = sink
        try:
            await self._wait()
        finally:
            self._sink = None

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
        if self._sink is not None:
            if not self._sink(data, framed):
                # The next pieces wait here until the client has taken what it was sent.
                self._sink = None
                self._wake()
            return
        self._pieces.append(data)
        self._pieces_bytes += len(data)
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

    transport: asyncio.Transport | None = None
    exchange: Exchange | None = None
    idle_since = 0.0
    writing_paused = False
    request_open = False
    """Not all of the request is written: another one would be taken for the rest of it."""
    _parser: httptools.HttpResponseParser | None = None
    """Only there for an answer that is not ordinary."""
    _headers: Headers
    _reused = False
    _answered = False
    """A byte of the answer has come."""
    _left_bytes = 0
    """What is to come of a body whose length the head told, while no parser is needed."""
    _chunked = False
    """A chunk, or the body's end, is to come next, and no parser is needed so far."""
    _resumes = False
    """The parser's head is ours; the real one was read without it."""
    _reading_paused = False
    _until_close = False
    _trailing = False

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Pool) -> None:
        self.loop = loop
        self.pool = pool

    def send(self, exchange: Exchange, request: bytes, *, more: bool = False) -> None:
        """Write a request; its answer goes to `exchange`. `more`: the rest of it comes by `Exchange.send_more`."""
        if self.transport is None:
            exchange.fail(StaleConnection("the connection was closed"))
            return
        self.exchange = exchange
        self._answered = self._until_close = False
        self.request_open = more
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
        self.pool.open_connections += 1

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
            exchange.fail(BrokenAnswer(f"the engine's connection ended inside the answer{self._tls_words(exc)}"))

    def _tls_words(self, exc: Exception | None) -> str:
        """A client's certificate that an engine does not accept is said only now: its own handshake is long over."""
        if isinstance(exc, ssl.SSLError):
            return f", by TLS: {why(exc)}"
        return ", over TLS: it may want a client certificate" if self.pool.address.is_tls and not self._answered else ""

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self.exchange is not None and self.request_open:
            self.exchange.has_room()

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            # An engine has nothing to say between exchanges; what follows an answer belongs to no request.
            self.abandon()
        elif self._chunked:
            # Nearly always exactly one chunk.
            line_end = data.find(b"\r\n", 0, 10)
            size = SIZES.get(data[:line_end])
            if size and len(data) == line_end + size + 4 and data[-2:] == b"\r\n":
                exchange.feed(data[line_end + 2 : -2], data)
            else:
                self._take_chunks(exchange, data)
        elif self._left_bytes:
            self._take_rest(exchange, data)
        elif self._parser is not None:
            self._parse(data)
        else:
            self._take_head(exchange, data)

    # Ordinary answers

    def _take_head(self, exchange: Exchange, data: bytes) -> None:
        found = read_head(data)
        self._answered = True
        if found is None:
            self._parser, self._headers, self._resumes = httptools.HttpResponseParser(self), [], False
            self._parse(data)
            return
        headers, body_start, length = found
        exchange.start(200, headers)
        body = data[body_start:]
        if length < 0:
            self._chunked = True
            if body:
                self._take_chunks(exchange, body)
        elif length:
            self._left_bytes = length
            if body:
                self._take_rest(exchange, body)
        else:
            self._complete(exchange, keeps=not body)

    def _take_rest(self, exchange: Exchange, data: bytes) -> None:
        """Some of a body whose length is known."""
        left_bytes = self._left_bytes - len(data)
        if left_bytes > 0:
            self._left_bytes = left_bytes
            exchange.feed(data)
            return
        body = data if not left_bytes else data[: self._left_bytes]
        self._left_bytes = 0
        exchange.feed(body)
        self._complete(exchange, keeps=not left_bytes)

    def _take_chunks(self, exchange: Exchange, data: bytes) -> None:
        """Some of a chunked body, from the beginning of a chunk on."""
        contents, framed_bytes, ended = read_chunks(data)
        if contents:
            exchange.feed(contents[0] if len(contents) == 1 else b"".join(contents), data[:framed_bytes])
        if ended:
            self._chunked = False
            self._complete(exchange, keeps=True)
        elif framed_bytes < len(data):
            # A chunk in pieces, an extension, trailers, or nonsense: the parser goes on from here.
            self._chunked = False
            self._parser, self._headers, self._resumes = httptools.HttpResponseParser(self), [], True
            self._parse(_CHUNKED_HEAD)
            self._parse(data[framed_bytes:])

    def _complete(self, exchange: Exchange, *, keeps: bool) -> None:
        """The answer is whole. `keeps`: the connection may carry another one."""
        self.exchange = None
        self.resume_reading()
        transport = self.transport
        if not keeps or self.request_open:
            self.abandon()
        elif transport is not None and not transport.is_closing():
            self._reused = True
            self.pool.put_back(self)
        exchange.finish()

    # All other answers

    def _parse(self, data: bytes) -> None:
        if self._parser is None:
            # It ended with the bytes before.
            self.abandon()
            return
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
        if self._parser is None or self._resumes:
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
        reusable = parser.should_keep_alive() and not self.request_open
        if reusable and self.transport is not None and not self.transport.is_closing():
            self._reused = True
            self.pool.put_back(self)
        elif self.transport is not None:
            self.transport.close()
        if exchange is not None:
            exchange.finish()


class Pool:
    """Connections to one address; the last one used is used first, so that a calm pool shrinks."""

    def __init__(
        self,
        address: Address,
        *,
        connect_timeout_seconds: float,
        idle_seconds: float,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self.address = address
        self._tls = tls if address.is_tls else None
        self.open_connections = 0
        self._connect_timeout_seconds = connect_timeout_seconds
        self._idle_seconds = idle_seconds
        self._idle: list[Connection] = []

    def take(self) -> Connection | None:
        """A kept connection, if there is one that can still be used."""
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since < connection.loop.time() - self._idle_seconds:
                self._idle.append(connection)
                self.close_idle()
                break
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        return None

    async def connection(self, *, fresh: bool = False) -> Connection:
        """A connection that is free. Raises: Unreachable."""
        if not fresh and (kept := self.take()) is not None:
            return kept
        loop = asyncio.get_running_loop()
        connection = Connection(loop, self)
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                await self._connect(loop, connection)
        except TimeoutError:
            connection.abandon()
            raise Unreachable("the engine did not accept a connection in time") from None
        except ssl.SSLError as error:
            raise Unreachable(f"no TLS connection to the engine: {why(error)}") from None
        except (OSError, UnicodeError) as error:
            # UnicodeError: a host that is no name at all.
            reason = error.strerror if isinstance(error, OSError) else None
            in_handshake = self.address.is_tls and isinstance(error, ConnectionResetError)
            what = "no TLS connection to the engine" if in_handshake else "the engine cannot be reached"
            raise Unreachable(f"{what}: {reason or type(error).__name__}") from None
        except asyncio.CancelledError:
            # The transport may be up already although nobody will ever get the connection.
            connection.abandon()
            raise
        return connection

    async def _connect(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        address = self.address
        if address.path:
            await loop.create_unix_connection(lambda: connection, address.path)
        elif self._tls is None:
            await loop.create_connection(lambda: connection, address.host, address.port)
        else:
            await loop.create_connection(
                lambda: connection, address.host, address.port, ssl=self._tls(), server_hostname=address.host
            )

    def put_back(self, connection: Connection) -> None:
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self.open_connections -= 1
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

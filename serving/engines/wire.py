"""HTTP/1.1 to engines: one asyncio protocol for each connection, and a pool of idle ones for each address.

A connection carries one exchange at a time. An exchange is closed exactly once; closing it before its end closes the
connection, which is how vLLM learns that nobody waits any more.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from serving.core.context import Headers
from serving.engines.answer_reader import HOP_BY_HOP, SIZES, read_chunks, read_head
from serving.engines.exchange import BrokenAnswer, ConnectTimedOut, Exchange, NoResources, StaleConnection, Unreachable
from serving.engines.tls import why

_OURS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))
"""What keeps this machine from making any connection."""
_CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


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
            if size and len(data) == line_end + size + 4 and data.endswith(b"\r\n"):
                sink = exchange.sink
                if sink is None:
                    exchange.feed(data[line_end + 2 : -2], data)
                else:
                    exchange.heard = True
                    if not sink(data[line_end + 2 : -2], data):
                        exchange.undivert()
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
        self.open: set[Connection] = set()
        self._connect_timeout_seconds = connect_timeout_seconds
        self._idle_seconds = idle_seconds
        self._idle: list[Connection] = []

    @property
    def open_connections(self) -> int:
        return len(self.open)

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
            self._give_up(connection)
            raise ConnectTimedOut("the engine did not accept a connection in time") from None
        except ssl.SSLError as error:
            raise Unreachable(f"no TLS connection to the engine: {why(error)}") from None
        except (OSError, UnicodeError) as error:
            # UnicodeError: a host that is no name at all.
            reason = error.strerror if isinstance(error, OSError) else None
            in_handshake = self.address.is_tls and isinstance(error, ConnectionResetError)
            what = "no TLS connection to the engine" if in_handshake else "the engine cannot be reached"
            kind = NoResources if isinstance(error, OSError) and error.errno in _OURS else Unreachable
            raise kind(f"{what}: {reason or type(error).__name__}") from None
        except asyncio.CancelledError:
            self._give_up(connection)
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

"""One client connection: uvicorn's protocol over httptools, made strict and bounded.

uvicorn and httptools set no limit to a request's head nor to the time it takes, and pass on requests whose end other servers
see elsewhere. What is refused here never becomes a request. `docs/decisions/2026-11-30-edge-limits.md` names the parts of
uvicorn that this relies on.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from serving.api.cycle import PLAIN_SCOPE, Cycle, wake
from serving.api.door import SURPLUS_CONNECTIONS, DoorConfig, full
from serving.api.edge import Edge, request_id
from serving.api.errors import whole_error
from serving.api.family import dialect_of
from serving.core.errors import HeadTooLarge, InvalidRequest, RequestError, RequestTimeout, UrlTooLong
from serving.core.field_lines import KnownLines
from serving.core.routes import ROUTES

LAST_CALL_SECONDS = 0.25
"""When the server stops, a connection without a request stays open this long: one may be on its way already."""
LINGER_SECONDS = 1.0
"""A refused client may go on sending for this long, unread, so that a reset does not overtake the answer."""
_SINGLE = (b"host", b"transfer-encoding", b"authorization", b"x-api-key", b"content-type", b"content-encoding")
_ONCE = {name: 1 << bit for bit, name in enumerate(_SINGLE)}
"""Headers of which a request has one, each with its bit: two readers could act on different ones."""
_HOST = _ONCE[b"host"]
_LENGTH = 1 << len(_SINGLE)
_REQUEST_LINES = {b"POST %s HTTP/1.1" % path.encode(): path for path in ROUTES}


def _ordinary(name: bytes, value: bytes) -> tuple[tuple[bytes, bytes], int] | None:
    """A field and its bit; None for one that changes how the request is framed or what becomes of the connection."""
    if name in (b"transfer-encoding", b"expect", b"upgrade", b"trailer", b"te"):
        return None
    if name == b"connection" and value.lower() != b"keep-alive":
        return None
    if name == b"content-length":
        return ((name, value), _LENGTH) if value.isdigit() and len(value) <= _LENGTH_DIGITS else None
    return (name, value), _ONCE.get(name, 0)


_LENGTH_DIGITS = 12
_LINES = KnownLines(_ordinary)


class _Refused(Exception):
    """Raised in the parser's callbacks; the parser stops at it."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(str(error))
        self.error = error


_CLOSED_BY_PEER = (7, 8)
"""TCP_CLOSE and TCP_CLOSE_WAIT in Linux's tcp_states.h."""


class _Outlet:
    """What a request's side has in place of the transport: the same, but that closing it may take a little longer."""

    __slots__ = ("_transport", "abort", "close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write: Callable[..., None] = transport.write
        self.abort: Callable[..., None] = transport.abort
        self.close: Callable[..., None] = close
        self.is_closing = transport.is_closing
        self._transport = transport

    def peer_left(self) -> bool:
        """Ask the kernel whether the client has closed, while nothing is read from it: the end of a pipelining client is
        behind a request that waits."""
        found = self._transport.get_extra_info("socket")
        if found is None or found.family not in (socket.AF_INET, socket.AF_INET6) or not hasattr(socket, "TCP_INFO"):
            return False
        try:
            state: int = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        except OSError:
            return True
        return state in _CLOSED_BY_PEER

    def shut(self) -> None:
        """From now on nothing that is done here has an effect."""
        self.write = self.abort = self.close = lambda *_: None


class Connection(HttpToolsProtocol):
    """Takes requests one after another and refuses what is ambiguous, too large or too slow."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.url, self.headers = b"", []
        self._edge = self.app if type(self.app) is Edge else None
        """Takes requests for engines without a scope; nothing stands before it."""
        self._door = cast(DoorConfig, config).door
        self._limits = self._door.limits
        self._header_count = self._limits.header_count
        self._outlet: _Outlet
        self._surplus = False
        self._deaf = False
        """Refused: what still comes is not read."""
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = False
        self._heard = False
        """The parser has called since it was last fed."""
        self._unheard_bytes = 0
        self._trailer_bytes = 0
        self._seen = 0
        """Bits of `_ONCE`."""
        self._upgrades = False
        self._cycles: deque[RequestResponseCycle] = deque()
        """The request that is being answered, then those that wait behind it."""
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._mid_message = False
        """The parser is inside a request."""
        self._last_call = False
        """The server stops: the next request on this connection is its last."""
        self._owed_bytes = 0
        """What is still to come of the body of a request whose head the parser did not see."""

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        door = self._door
        door.open_connections += 1
        # uvloop's transports have the methods of asyncio.Transport but are no subclass of it.
        super().connection_made(cast(asyncio.Transport, transport))
        self._outlet = _Outlet(self.transport, self._close)
        excess = door.open_connections - self._limits.connections
        if excess > 0:
            door.on_refusal("too_many_connections")
            self._surplus, self.app = True, full(self.app)
        if excess > SURPLUS_CONNECTIONS:
            self._deaf = True
            self.transport.abort()
            return
        self._timer = self.loop.call_later(self._limits.header_timeout_seconds, self._head_overdue)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.open_connections -= 1
        self._stop_timer()
        for cycle in self._cycles:
            # uvicorn tells only the last one.
            cycle.disconnected = True
            wake(cycle)
            self._door.on_gone(cycle)
        super().connection_lost(exc)
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._owed_bytes:
            data = self._owed(data)
            if not data:
                return
        elif self._take(data):
            return
        self._mid_message, self._heard = True, False
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.error if isinstance(cause, _Refused) else malformed(f"{error}."))
            return
        self._unheard_bytes = 0 if self._heard else self._unheard_bytes + len(data)
        if self._unheard_bytes > self._limits.header_bytes or (self._in_head and self._head_is_too_large()):
            self._refuse(self._too_large())
        elif self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._timer = self.loop.call_later(self._limits.header_timeout_seconds, self._head_overdue)

    def _take(self, data: bytes) -> bool:
        """Take a request for an engine without the parser, if it is ordinary in every way; all others are the parser's.

        Most are: the same few header lines, a length, and a body behind them.
        """
        cycle = self.cycle
        if self._mid_message or self._surplus or (cycle is not None and not cycle.response_complete):
            return False
        end = data.find(b"\r\n\r\n")
        if not 0 < end <= self._limits.header_bytes:
            return False
        lines = data[:end].split(b"\r\n")
        path = _REQUEST_LINES.get(lines[0])
        if path is None or len(lines) > self._header_count:
            return False
        headers: list[tuple[bytes, bytes]] = []
        seen = length = 0
        known, learn = _LINES.known, _LINES.learn
        del lines[0]
        for line in lines:
            found = known.get(line) or learn(line)
            if found is None:
                return False
            header, bit = found
            if bit:
                if seen & bit:
                    return False
                seen |= bit
                if bit == _LENGTH:
                    length = int(header[1])
            headers.append(header)
        body = data[end + 4 :]
        owed_bytes = length - len(body)
        if not seen & _HOST or not seen & _LENGTH or owed_bytes < 0:
            return False
        self._stop_timer()
        self._owed_bytes = owed_bytes
        self._begin(path, headers, body)
        return True

    def _begin(self, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Serve a request that the parser did not see."""
        edge = self._edge
        cycle = self.cycle = Cycle(
            PLAIN_SCOPE if edge is not None else self._scope(path, headers),
            self._outlet,
            self.flow,
            self.server_state.default_headers,
            self.on_response_complete,
            body,
            more_body=self._owed_bytes > 0,
        )
        if self._last_call:
            cycle.keep_alive = False
        self._cycles.append(cycle)
        task = self.loop.create_task(cycle.run_asgi(self.app) if edge is None else edge.take(cycle, ROUTES[path], headers))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _scope(self, path: str, headers: list[tuple[bytes, bytes]]) -> Any:
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            "headers": headers,
            "state": self.app_state.copy(),
            "method": "POST",
            "path": path,
            "raw_path": path.encode("ascii"),
            "query_string": b"",
        }

    def _owed(self, data: bytes) -> bytes:
        """Bytes of such a request's body; returns what is behind them."""
        cycle = self.cycle
        body, rest = (data, b"") if len(data) <= self._owed_bytes else (data[: self._owed_bytes], data[self._owed_bytes :])
        self._owed_bytes -= len(body)
        if not cycle.response_complete:
            cycle.body += body
            cycle.more_body = self._owed_bytes > 0
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            wake(cycle)
        return rest

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # The parser leaves out the body of a request that offers an upgrade (Java's client does so with its first
                # one). An offer may be ignored (RFC 9110, 7.8): the request is read again without it.
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
            else:
                return

    # httptools

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._heard = self._mid_message = True
        self._trailer_bytes = self._seen = 0
        self._upgrades = False

    def on_url(self, url: bytes) -> None:
        self._heard = True
        self.url += url
        if len(self.url) > self._limits.url_bytes:
            raise _Refused(UrlTooLong(f"The URL is longer than {self._limits.url_bytes} bytes."))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._heard = True
        headers = self.headers
        if not self._in_head:
            self._on_trailer(name, value)
            return
        if len(headers) >= self._header_count:
            raise _Refused(self._too_large())
        name = name.lower()
        if name in _ONCE:
            self._on_single(name, value)
        elif name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        headers.append((name, value))

    def _on_single(self, name: bytes, value: bytes) -> None:
        bit = _ONCE[name]
        if self._seen & bit:
            raise _Refused(malformed(f"The header {name.decode()} is given twice."))
        self._seen |= bit
        if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise _Refused(malformed("The only transfer coding here is chunked."))

    def _on_trailer(self, name: bytes, value: bytes) -> None:
        """A trailer comes when the head has been acted on; it must not become one of its fields."""
        self._trailer_bytes += len(name) + len(value)
        if self._trailer_bytes > self._limits.header_bytes:
            raise _Refused(self._too_large())

    def on_headers_complete(self) -> None:
        self._in_head, self._heard = False, True
        self._stop_timer()
        if self._head_is_too_large():
            raise _Refused(self._too_large())
        parser, version = self.parser, self.parser.get_http_version()
        if version == "1.1":
            if not self._seen & _ONCE[b"host"]:
                raise _Refused(malformed("The header Host is missing."))
        elif version != "1.0" or self._seen & _ONCE[b"transfer-encoding"]:
            raise _Refused(malformed("The version of HTTP must be 1.1."))
        else:
            # A client of HTTP/1.0 knows no interim answer (RFC 9110, 10.1.1).
            self.expect_100_continue = False
        if parser.should_upgrade():
            if parser.get_method() == b"CONNECT":
                raise _Refused(malformed("This is no proxy."))
            self._upgrades = True
            return
        super().on_headers_complete()
        self._cycles.append(self.cycle)
        self.cycle.transport = cast(asyncio.Transport, self._outlet)
        if self._surplus or self._last_call:
            self.cycle.keep_alive = False

    def _watch_flush(self) -> None:
        if unsent_bytes := self.transport.get_write_buffer_size():
            self.loop.call_later(self._door.write_timeout_seconds, self._flush_overdue, unsent_bytes)

    def _flush_overdue(self, unsent_bytes_before: int) -> None:
        """The last bytes of an answer wait for a client; one that has taken none of them meanwhile is dropped."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes >= unsent_bytes_before:
            self.transport.abort()
        elif unsent_bytes:
            self.loop.call_later(self._door.write_timeout_seconds, self._flush_overdue, unsent_bytes)

    def on_body(self, body: bytes) -> None:
        self._heard = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._heard, self._mid_message = True, False
        if not self._upgrades:
            super().on_message_complete()

    # What is refused

    def _refuse(self, error: RequestError) -> None:
        """Answer with an error, hear nothing more, and close. A request that is here already whole is served first."""
        self._deaf = True
        self._stop_timer()
        self._door.on_refusal(error.error_code or "malformed_request")
        cycle = self.cycle
        if self.pipeline:
            self.transport.abort()
            return
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                cycle.keep_alive = False
                return
            self._outlet.shut()
            cycle.disconnected = True
            wake(cycle)
            if cycle.response_started:
                self.transport.close()
                return
        name = request_id(None)
        body, headers = whole_error(error, dialect_of(self.url.decode("latin-1"), dict(self.headers)), name)
        lines = [STATUS_LINE[error.status]]
        for field, value in [*headers, (b"x-request-id", name.encode("ascii")), (b"connection", b"close")]:
            lines += (field, b": ", value, b"\r\n")
        is_head = self.parser.get_method() == b"HEAD"
        self.transport.write(b"".join([*lines, b"\r\n", b"" if is_head else body]))
        self._linger()

    def on_response_complete(self) -> None:
        if self._cycles:
            self._cycles.popleft()
        self._watch_flush()
        self.server_state.total_requests += 1
        if self._deaf or self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        # One timer for as long as the connection lives: setting one for each request would cost more than reading its head.
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._idle_too_long)

    def shutdown(self) -> None:
        """The server stops. A request that is under way, or comes within a moment, is the last one here."""
        self._last_call = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(LAST_CALL_SECONDS, self._close_unless_busy)
        else:
            self.cycle.keep_alive = False

    def _close_unless_busy(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _idle_too_long(self) -> None:
        self._idle_timer = None
        if self._timer is not None or self.pipeline or not self.cycle.response_complete:
            # Something is under way; the end of the next answer sets the timer again.
            return
        left_seconds = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_seconds > 0:
            self._idle_timer = self.loop.call_later(left_seconds, self._idle_too_long)
        else:
            self.transport.close()

    def _close(self) -> None:
        """An answer is out that ends the connection."""
        if self._deaf or self.cycle.more_body or self.pipeline:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Close for writing now and for reading a little later: closing over unread bytes resets the connection."""
        self._deaf = True
        self._stop_timer()
        self.pipeline.clear()
        self.flow.resume_reading()
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _head_overdue(self) -> None:
        self._timer = None
        if self._in_head:
            seconds = self._limits.header_timeout_seconds
            self._refuse(RequestTimeout(f"The head of the request did not arrive within {seconds:g} s.", code="header_timeout"))
        else:
            self._door.on_refusal("header_timeout")
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_too_large(self) -> bool:
        return sum([len(name) + len(value) for name, value in self.headers]) > self._limits.header_bytes

    def _too_large(self) -> HeadTooLarge:
        limits = self._limits
        return HeadTooLarge(
            f"The head of the request is larger than {limits.header_bytes} bytes or {limits.header_count} fields."
        )

    def _head_without_upgrade(self) -> bytes:
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])


def malformed(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="malformed_request")

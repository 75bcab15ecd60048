"""The answer's side of one request: portable ASGI, and a faster way through uvicorn's own transport that falls back to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from serving.api.cycle import cycle_of, wake
from serving.api.errors import error_body, error_event, error_headers
from serving.core.clock import monotonic
from serving.core.context import Headers, RequestContext, Write
from serving.core.errors import RequestError, Unavailable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class Reply:
    """Sends through the server's `send`, as any ASGI application does."""

    # The defaults stand in the class, since few replies need all of these fields.
    started = False
    ended = False
    """The last byte is out or on its way: that the client closes now means nothing."""
    blocked_since = 0.0
    """When the send under way began, in monotonic seconds; 0.0 when none is."""
    commented = 0.0
    """When the last comment was sent, in monotonic seconds."""
    _last = b"\n\n"
    _before_last = b""
    """The last two pieces that were sent: an event may end where one begins."""

    def __init__(self, ctx: RequestContext, send: Send) -> None:
        self._ctx = ctx
        self._send = send

    @property
    def mid_event(self) -> bool:
        """What was sent last ends inside an event."""
        return not (self._before_last[-1:] + self._last).endswith(b"\n\n")

    @property
    def write(self) -> Write | None:
        """A way to write without waiting; the portable reply has none."""
        return None

    async def start(self, status: int, headers: Headers) -> None:
        if self.started:
            # By a comment.
            return
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": self._head(headers)})

    async def send(self, data: bytes, *, last: bool) -> None:
        self._before_last, self._last = self._last, data
        self.ended = self.ended or last
        self.blocked_since = monotonic()
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        self.blocked_since = 0.0

    async def comment(self) -> None:
        """Let a silent stream's client, and whatever stands on the way to it, know that the stream lives."""
        if self.ended:
            return
        self.commented = monotonic()
        await self.start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
        await self.send(b": keep-alive\n\n", last=False)

    async def fail(self, error: RequestError) -> None:
        """Answer with an error object; only before the first byte."""
        body = error_body(error, self._ctx.route.dialect, self._ctx.request_id)
        await self.start(error.status, error_headers(error, len(body)))
        await self.send(body, last=True)

    async def end_in_band(self, error: RequestError) -> None:
        """Say inside the stream that it broke off, and end it without the mark of a whole one."""
        ctx = self._ctx
        dialect, mid_event = ctx.route.dialect, self.mid_event
        event = error_event(error, mid_event=mid_event, dialect=dialect, request_id=ctx.request_id, number=ctx.next_event)
        await self.send(event, last=True)

    async def end_at_shutdown(self) -> None:
        error = Unavailable("The gateway is shutting down.", code="shutting_down", retry_after_seconds=1)
        if not self.started:
            await self.fail(error)
        elif not self.ended and self._ctx.stream:
            await self.end_in_band(error)

    def drop(self) -> None:
        """End the connection inside the answer, so that it cannot look whole, and without waiting for a full buffer.

        A server closes the connection of an application that returns early, but flushes first; uvicorn's transport need not.
        """
        transport = getattr(getattr(self._send, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()

    def _head(self, headers: Headers) -> Headers:
        """The answer's headers, with what the gateway adds to all of them."""
        ctx = self._ctx
        request_id = ctx.request_id.encode("ascii")
        headers = [*headers, (b"x-request-id", request_id)]
        if ctx.route.dialect.request_id_header is not None:
            headers.append((ctx.route.dialect.request_id_header, request_id))
        if ctx.decision and ctx.explain_key is not None:
            headers.append((b"x-serving-decision", ctx.decision))
        if ctx.dropped_fields:
            headers.append((b"x-serving-dropped-fields", ", ".join(ctx.dropped_fields).encode("ascii", "replace")))
        for name, value in headers:
            if name == b"content-type":
                if value.startswith(b"text/event-stream"):
                    headers = [(name, value) for name, value in headers if name != b"cache-control"] + STREAM_HEADERS
                break
        return headers


class SplicedReply(Reply):
    """Writes the same bytes straight to the transport of uvicorn's request cycle.

    Spares a dictionary, a coroutine and the checks of header names for each message, and puts the head and the first bytes
    into one write. The header values are ours or passed uvicorn's or httptools' parser, so none can hold a line break.
    """

    _pending = b""
    """A head that waits for the first bytes of its body."""
    _chunked = False

    def __init__(self, ctx: RequestContext, send: Send, cycle: RequestResponseCycle) -> None:
        self._ctx = ctx
        self._send = send
        self._cycle = cycle
        self._flow: FlowControl = cycle.flow

    async def start(self, status: int, headers: Headers) -> None:
        cycle = self._cycle
        if self.started:
            return
        self.started = True
        if cycle.disconnected:
            return
        cycle.response_started = True
        if cycle.waiting_for_100_continue:
            # The client may now send the body that it announced, or leave it out: nobody could tell what follows.
            cycle.waiting_for_100_continue = False
            cycle.keep_alive = False
        self._chunked = cycle.scope["http_version"] == "1.1"
        parts = [STATUS_LINE[status]]
        for name, value in cycle.default_headers:
            parts += (name, b": ", value, b"\r\n")
        for name, value in self._head(headers):
            if name == b"content-length":
                self._chunked = False
            elif name == b"connection" and value == b"close":
                cycle.keep_alive = False
                continue
            parts += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n")
        self._pending = b"".join(parts)

    async def send(self, data: bytes, *, last: bool) -> None:
        cycle = self._cycle
        self.ended = self.ended or last
        if self._flow.write_paused:
            await self._room()
        if cycle.disconnected or cycle.response_complete:
            return
        self._before_last, self._last = self._last, data
        head, self._pending = self._pending, b""
        if not self._chunked:
            text = head + data if head else data
        elif not last:
            if not data:
                # An empty chunk would end the answer.
                self._pending = head
                return
            text = b"%s%x\r\n%s\r\n" % (head, len(data), data)
        elif data:
            text = b"%s%x\r\n%s\r\n0\r\n\r\n" % (head, len(data), data)
        else:
            text = head + b"0\r\n\r\n"
        cycle.transport.write(text)
        if last:
            self._finish()

    @property
    def write(self) -> Write | None:
        return self._write

    async def _room(self) -> None:
        """Wait until the client's buffer has room."""
        if not self._cycle.disconnected:
            self.blocked_since = monotonic()
            await self._flow.drain()
            self.blocked_since = 0.0

    def _write(self, data: bytes, framed: bytes | None) -> bool:
        cycle = self._cycle
        if data and not cycle.disconnected:
            self._before_last, self._last = self._last, data
            if self._chunked:
                data = framed or b"%x\r\n%s\r\n" % (len(data), data)
            if self._pending:
                data, self._pending = self._pending + data, b""
            cycle.transport.write(data)
        return not self._flow.write_paused

    def _finish(self) -> None:
        """What uvicorn's own `send` does after the last byte."""
        cycle = self._cycle
        cycle.response_complete = True
        wake(cycle)
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()

    def drop(self) -> None:
        # Else uvicorn logs as a fault of the application that it said nothing more.
        self._cycle.disconnected = True
        self._cycle.transport.abort()


def reply_to(ctx: RequestContext, send: Send) -> Reply:
    """The fastest reply that the server allows: whatever wraps its `send` keeps the portable one."""
    cycle = cycle_of(send)
    return Reply(ctx, send) if cycle is None or cycle.scope["method"] == "HEAD" else SplicedReply(ctx, send, cycle)

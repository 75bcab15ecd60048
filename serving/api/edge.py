"""The hot path: plain ASGI around the FastAPI application.

Takes the routes that engines answer and hands everything else on. Watches the client while its request is served: a client
that leaves, or that takes no bytes, ends the request in whatever phase it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from serving.api.errors import error_body, error_event, error_headers, internal_fault
from serving.core.clock import monotonic
from serving.core.context import Headers, RequestContext
from serving.core.errors import (
    BodyTooLarge,
    ClientGone,
    MethodNotAllowed,
    RequestError,
    RequestTimeout,
    Unavailable,
    UnsupportedMedia,
)
from serving.core.outcomes import Outcome
from serving.core.routes import ROUTES, Route
from serving.pipeline import AnswerCut, Pipeline
from serving.settings import LimitSettings, RelaySettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("serving.api")

SWEEP_SECONDS = 0.25
_REQUEST_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TRACEPARENT = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(rb"[\x21-\x7e \t]{1,512}")
STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class Edge:
    """The ASGI application that the server runs."""

    def __init__(self, app: Asgi, pipeline: Pipeline, limits: LimitSettings, relay: RelaySettings) -> None:
        self._app = app
        self._pipeline = pipeline
        self._limits = limits
        self._client_write_timeout_seconds = relay.client_write_timeout_seconds
        self._active: set[Reply] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = ROUTES.get(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        ctx = _context(route, headers)
        reply = Reply(ctx, send)
        if scope["method"] != "POST":
            await reply.fail(MethodNotAllowed(f"{route.path} takes POST only.", headers={"allow": "POST"}))
            return
        await self._serve(ctx, Body(headers, receive, self._limits), reply)

    async def _serve(self, ctx: RequestContext, body: Body, reply: Reply) -> None:
        task = asyncio.current_task()
        assert task is not None
        body.on_gone = lambda: self._interrupt(ctx, task, Outcome.CLIENT_CANCELLED)
        reply.on_last = body.stop_watching
        reply.interrupt = lambda: self._interrupt(ctx, task, Outcome.CLIENT_SLOW)
        self._active.add(reply)
        self._idle.clear()
        try:
            await self._pipeline.serve(ctx, body, reply)
        except ClientGone:
            reply.drop()
        except RequestError as error:
            await reply.fail(error)
        except AnswerCut as cut:
            if cut.in_band:
                await reply.end_in_band(cut.error)
            else:
                reply.drop()
        except asyncio.CancelledError:
            # Both kinds of cancelling are ours: the client's end, and the server's at the end of its grace time.
            task.uncancel()
            if ctx.interruption is None:
                await reply.end_at_shutdown()
            else:
                reply.drop()
        except Exception:
            log.exception("request failed", extra={"request_id": ctx.request_id})
            if reply.started:
                reply.drop()
            else:
                await reply.fail(internal_fault())
        finally:
            self._active.discard(reply)
            if not self._active:
                self._idle.set()
            body.stop_watching()

    @staticmethod
    def _interrupt(ctx: RequestContext, task: asyncio.Task[Any], why: Outcome) -> None:
        if ctx.interruption is None and not task.done():
            ctx.interruption = why
            task.cancel()

    async def sweep(self) -> None:
        """Drop clients that have taken no byte for too long; runs as long as the application."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            limit = monotonic() - self._client_write_timeout_seconds
            for reply in [r for r in self._active if 0 < r.blocked_since < limit]:
                reply.interrupt()

    async def idle(self, timeout_seconds: float) -> None:
        """Wait until no request is under way, at most this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()


def _context(route: Route, headers: dict[bytes, bytes]) -> RequestContext:
    given = headers.get(b"x-request-id", b"")
    request_id = given.decode("ascii") if _REQUEST_ID.fullmatch(given) else os.urandom(16).hex()
    traceparent = headers.get(b"traceparent", b"")
    traced = bool(_TRACEPARENT.fullmatch(traceparent))
    tracestate = headers.get(b"tracestate", b"")
    return RequestContext(
        request_id=request_id,
        route=route,
        credential=bearer(headers.get(b"authorization")),
        arrived=monotonic(),
        traceparent=traceparent.decode("ascii") if traced else None,
        tracestate=tracestate.decode("ascii") if traced and _TRACESTATE.fullmatch(tracestate) else None,
    )


def bearer(authorization: bytes | None) -> str | None:
    """The credential of an Authorization header, or None where there is none of the Bearer scheme."""
    if authorization is None:
        return None
    scheme, _, credential = authorization.partition(b" ")
    if scheme.lower() != b"bearer" or not credential.strip():
        return None
    return credential.strip().decode("utf-8", "surrogateescape")


class Body:
    """The client's side: reads the body within its limits, then watches whether the client stays."""

    def __init__(self, headers: dict[bytes, bytes], receive: Receive, limits: LimitSettings) -> None:
        self.on_gone: Callable[[], None] = lambda: None
        self._headers = headers
        self._receive = receive
        self._limits = limits
        self._watch: asyncio.Task[Message] | None = None

    async def body(self) -> bytes:
        self._check_head()
        try:
            async with asyncio.timeout(self._limits.body_timeout_seconds):
                body = await self._read()
        except TimeoutError:
            raise RequestTimeout(
                f"The body did not arrive within {self._limits.body_timeout_seconds:g} s.",
                headers={"connection": "close"},
            ) from None
        self._watch = asyncio.ensure_future(self._wait_for_end())
        return body

    def stop_watching(self) -> None:
        """The answer is going out whole: that the client closes now means nothing."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _check_head(self) -> None:
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._limits.body_bytes:
            raise self._too_large()
        if (coding := self._headers.get(b"content-encoding", b"identity").lower()) != b"identity":
            raise UnsupportedMedia(
                f"The content coding {coding.decode('latin-1')[:40]!r} is not supported: send the body as it is.",
                headers={"accept-encoding": "identity"},
            )
        kind = self._headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
        if kind != b"application/json" and not kind.endswith(b"+json"):
            raise UnsupportedMedia("The header Content-Type must be application/json.")

    async def _read(self) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone("The client left while it sent its request.")
            part = message.get("body", b"")
            total += len(part)
            if total > self._limits.body_bytes:
                raise self._too_large()
            parts.append(part)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _wait_for_end(self) -> Message:
        while (message := await self._receive())["type"] != "http.disconnect":
            pass
        if self._watch is not None:
            self.on_gone()
        return message

    def _too_large(self) -> BodyTooLarge:
        # The rest of the body stays unread, so the connection cannot carry another request.
        return BodyTooLarge(f"The body is larger than {self._limits.body_bytes} bytes.", headers={"connection": "close"})


class Reply:
    """The answer's side of one request."""

    def __init__(self, ctx: RequestContext, send: Send) -> None:
        self.started = False
        self.blocked_since = 0.0
        """When the send under way began, in monotonic seconds; 0.0 when none is."""
        self.on_last: Callable[[], None] = lambda: None
        self.interrupt: Callable[[], None] = lambda: None
        self._ctx = ctx
        self._send = send
        self._ended = False
        self._mid_event = False

    async def start(self, status: int, headers: Headers) -> None:
        headers = [*headers, (b"x-request-id", self._ctx.request_id.encode("ascii"))]
        if self._ctx.dropped_fields:
            headers.append((b"x-serving-dropped-fields", ", ".join(self._ctx.dropped_fields).encode("ascii", "replace")))
        if any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers):
            headers = [(name, value) for name, value in headers if name != b"cache-control"] + STREAM_HEADERS
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, data: bytes, *, last: bool) -> None:
        if last:
            self._ended = True
            self.on_last()
        self._mid_event = not data.endswith(b"\n\n")
        self.blocked_since = monotonic()
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        self.blocked_since = 0.0

    async def fail(self, error: RequestError) -> None:
        """Answer with an error object; only before the first byte."""
        body = error_body(error)
        await self.start(error.status, error_headers(error, len(body)))
        await self.send(body, last=True)

    async def end_in_band(self, error: RequestError) -> None:
        """Say inside the stream that it broke off, and end it without `[DONE]`."""
        await self.send(error_event(error, mid_event=self._mid_event), last=True)

    async def end_at_shutdown(self) -> None:
        error = Unavailable("The gateway is shutting down.", code="shutting_down", retry_after_seconds=1)
        if not self.started:
            await self.fail(error)
        elif not self._ended and self._ctx.stream:
            await self.end_in_band(error)

    def drop(self) -> None:
        """End the connection inside the answer, so that it cannot look whole, and without waiting for a full buffer.

        A server closes the connection of an application that returns early, but flushes first; uvicorn's transport need not.
        """
        transport = getattr(getattr(self._send, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()

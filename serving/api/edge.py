"""The hot path: plain ASGI around the FastAPI application.

Takes the routes that engines answer and hands everything else on. Watches the client while its request is served: a client
that leaves, or that takes no bytes, ends the request in whatever phase it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from serving.api.cycle import Cycle, cycle_of
from serving.api.decoding import Decoder, decoder_for
from serving.api.errors import internal_fault
from serving.api.reply import Receive, Reply, Scope, Send, SplicedReply, reply_to
from serving.api.upload import BodyUpload, too_large
from serving.core.clock import monotonic
from serving.core.context import RequestContext
from serving.core.errors import (
    ClientGone,
    MethodNotAllowed,
    RequestError,
    RequestTimeout,
    UnsupportedMedia,
)
from serving.core.outcomes import Outcome
from serving.core.routes import ROUTES, Route
from serving.pipeline import AnswerCut, Pipeline
from serving.settings import LimitSettings, RelaySettings

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("serving.api")

SWEEP_SECONDS = 0.25
_random = random.Random()
"""Request ids must differ, not be secret; a system call for each would cost more than all else that is done for it."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TRACEPARENT = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(rb"[\x21-\x7e \t]{1,512}")


class Edge:
    """The ASGI application that the server runs."""

    def __init__(self, app: Asgi, pipeline: Pipeline, limits: LimitSettings, relay: RelaySettings) -> None:
        self._app = app
        self._pipeline = pipeline
        self._limits = limits
        self._client_write_timeout_seconds = relay.client_write_timeout_seconds
        self._comment_seconds = relay.keep_alive_comment_seconds
        self._active: dict[object, Visit] = {}
        """By the server's cycle, where there is one."""
        self._idle: asyncio.Event | None = None
        """Set when no request is under way; only there when somebody waits for that."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = ROUTES.get(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        ctx = _context(route, headers)
        reply = reply_to(ctx, send)
        if scope["method"] != "POST":
            await reply.fail(MethodNotAllowed(f"{route.path} takes POST only.", headers={"allow": "POST"}))
            return
        task = asyncio.current_task()
        assert task is not None
        cycle = cycle_of(receive)
        visit = Visit(ctx, reply, task, receive, cycle)
        try:
            await self._serve(cycle or visit, visit, Body(headers, receive, self._limits, cycle))
        finally:
            if cycle is None or visit.commented:
                visit.close()

    async def take(self, cycle: Cycle, route: Route, headers: list[tuple[bytes, bytes]]) -> None:
        """Serve a POST whose head is read already, as `__call__` does, and end its connection where no answer came of it."""
        fields = dict(headers)
        ctx = _context(route, fields)
        task = asyncio.current_task()
        assert task is not None
        visit = Visit(ctx, SplicedReply(ctx, cast(Send, cycle.send), cycle), task, cycle.receive, cycle)
        try:
            await self._serve(cycle, visit, Body(fields, cycle.receive, self._limits, cycle))
        finally:
            if visit.commented:
                visit.close()
            if not cycle.response_complete and not cycle.disconnected:
                cycle.transport.close()
            cycle.on_response = _nothing

    async def _serve(self, key: object, visit: Visit, body: Body) -> None:
        ctx, reply = visit.ctx, visit.reply
        body.on_complete = visit.watch
        self._active[key] = visit
        try:
            await self._pipeline.serve(ctx, body, reply)
        except ClientGone:
            reply.drop()
        except RequestError as error:
            if reply.started:
                # A comment has gone out before it, and the status with that.
                await reply.end_in_band(error)
            else:
                await reply.fail(error)
        except AnswerCut as cut:
            if cut.in_band:
                await reply.end_in_band(cut.error)
            else:
                reply.drop()
        except asyncio.CancelledError:
            # Both kinds of cancelling are ours: the client's end, and the server's at the end of its grace time.
            visit.task.uncancel()
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
            del self._active[key]
            if self._idle is not None and not self._active:
                self._idle.set()

    async def sweep(self) -> None:
        """Look after all clients, four times a second for as long as the application runs: who left, who takes no bytes."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._look()

    def _look(self) -> None:
        """One sweep; in a frame of its own, so that the last visit is not held until the next one."""
        now = monotonic()
        for visit in list(self._active.values()):
            visit.check(now - self._client_write_timeout_seconds)
            if self._comment_seconds is not None and visit.silent_since < now - self._comment_seconds:
                visit.comment()

    def gone(self, cycle: RequestResponseCycle) -> None:
        """The client's connection ended inside that request: what it holds is needed for the next one, not a sweep later."""
        visit = self._active.get(cycle)
        if visit is not None:
            visit.gone()

    async def idle(self, timeout_seconds: float) -> None:
        """Wait until no request is under way, at most this long."""
        self._idle = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self._active:
                    self._idle.clear()
                    await self._idle.wait()


def request_id(given: bytes | None) -> str:
    """The client's own id where it is one, else a new one."""
    if given is not None and _REQUEST_ID.fullmatch(given) is not None:
        return given.decode("ascii")
    return f"{_random.getrandbits(128):032x}"


def _context(route: Route, headers: dict[bytes, bytes]) -> RequestContext:
    get = headers.get
    ctx = RequestContext(request_id(get(b"x-request-id")), route, _credential(route, headers), monotonic())
    if (traceparent := get(b"traceparent")) is not None and _TRACEPARENT.fullmatch(traceparent) is not None:
        ctx.traceparent = traceparent.decode("ascii")
        if (tracestate := get(b"tracestate")) is not None and _TRACESTATE.fullmatch(tracestate) is not None:
            ctx.tracestate = tracestate.decode("ascii")
    if (asked_timeout := get(b"x-request-timeout")) is not None:
        ctx.asked_timeout = asked_timeout
    if (asked_class := get(b"x-request-class")) is not None:
        ctx.asked_class = asked_class
    if (explain_key := get(b"x-serving-explain")) is not None:
        ctx.explain_key = explain_key
    return ctx


def _credential(route: Route, headers: dict[bytes, bytes]) -> str | None:
    """What the client shows of itself: a bearer credential, else a key where its API puts one."""
    authorization, key_header = headers.get(b"authorization"), route.dialect.key_header
    if key_header is None:
        return bearer(authorization)
    return credential(authorization, headers.get(key_header))


def credential(authorization: bytes | None, key: bytes | None) -> str | None:
    """The credential of an Authorization header, else the key of the header that an API has for it."""
    found = bearer(authorization)
    if found is not None or key is None:
        return found
    return key.strip().decode("utf-8", "surrogateescape") or None


def bearer(authorization: bytes | None) -> str | None:
    """The credential of an Authorization header, or None where there is none of the Bearer scheme."""
    if authorization is None:
        return None
    scheme, _, credential = authorization.partition(b" ")
    if scheme != b"Bearer" and scheme.lower() != b"bearer":
        return None
    return credential.strip().decode("utf-8", "surrogateescape") or None


def _nothing() -> None:
    """What a cycle calls once its answer is dealt with, as uvicorn's does: it breaks a ring of references."""


class Visit:
    """One request's client: is it still there, and does it take what it is sent?

    Under uvicorn the sweep reads that from the request's cycle; under any other server a task waits for the disconnect.
    """

    __slots__ = ("_commenting", "_cycle", "_receive", "_watch", "ctx", "reply", "task")

    def __init__(
        self, ctx: RequestContext, reply: Reply, task: asyncio.Task[Any], receive: Receive, cycle: RequestResponseCycle | None
    ) -> None:
        self.ctx = ctx
        self.reply = reply
        self.task = task
        self._receive = receive
        self._cycle = cycle
        self._watch: asyncio.Task[None] | None = None
        self._commenting: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """The body is read: from now on the client's next word is its end."""
        if self._cycle is None:
            self._watch = asyncio.ensure_future(self._wait_for_end())

    def check(self, blocked_since: float) -> None:
        """End the request if its client has left, or if the send under way began before that time."""
        if self._cycle is not None and (self._cycle.disconnected or self._left_behind(self._cycle)):
            self.gone()
        elif 0 < self.reply.blocked_since < blocked_since:
            self._interrupt(Outcome.CLIENT_SLOW)

    def gone(self) -> None:
        """The client has left."""
        self._interrupt(Outcome.CLIENT_CANCELLED)

    @staticmethod
    def _left_behind(cycle: RequestResponseCycle) -> bool:
        """The client sent another request behind this one and has left: neither is read, nor is its end."""
        if not cycle.flow.read_paused or cycle.more_body:
            return False
        peer_left = getattr(cycle.transport, "peer_left", None)
        return peer_left is not None and bool(peer_left())

    @property
    def commented(self) -> bool:
        return self._commenting is not None

    @property
    def silent_since(self) -> float:
        """Since when the client of a stream that an engine works on has heard nothing; never where it must not hear comments."""
        ctx, reply = self.ctx, self.reply
        if not ctx.stream or not ctx.attempts or reply.ended or reply.mid_event or reply.blocked_since:
            return math.inf
        return max(ctx.arrived, ctx.last_byte, reply.commented)

    def comment(self) -> None:
        """Send a comment, in a task of its own: one client that takes no bytes must not hold up the sweep."""
        if self._commenting is None or self._commenting.done():
            self._commenting = asyncio.ensure_future(self.reply.comment())

    def close(self) -> None:
        for task in (self._watch, self._commenting):
            if task is not None:
                task.cancel()

    async def _wait_for_end(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone()

    def _interrupt(self, why: Outcome) -> None:
        slow = why is Outcome.CLIENT_SLOW
        if self.ctx.interruption is None and (slow or not self.reply.ended) and not self.task.done():
            self.ctx.interruption = why
            self.task.cancel()


class Body:
    """The client's side: reads the body within its limits."""

    on_complete: Callable[[], None] | None = None

    def __init__(
        self, headers: dict[bytes, bytes], receive: Receive, limits: LimitSettings, cycle: RequestResponseCycle | None = None
    ) -> None:
        self._headers = headers
        self._receive = receive
        self._limits = limits
        self._cycle = cycle
        """Knows whether all of the body is here already, so that there is nothing to wait for."""

    async def body(self) -> bytes:
        self._check_head()
        cycle, coding = self._cycle, self._headers.get(b"content-encoding")
        if coding is None and isinstance(cycle, Cycle) and cycle.whole_body:
            return cycle.whole_body
        decoder = decoder_for(coding, self._limits.body_bytes)
        if cycle is not None and not cycle.more_body:
            body = await self._read(decoder)
        else:
            try:
                async with asyncio.timeout(self._limits.body_timeout_seconds):
                    body = await self._read(decoder)
            except TimeoutError:
                raise RequestTimeout(
                    f"The body did not arrive within {self._limits.body_timeout_seconds:g} s.", headers={"connection": "close"}
                ) from None
        if self.on_complete is not None:
            self.on_complete()
        return body

    def upload(self) -> BodyUpload:
        """The same body in pieces, for forms."""
        self._check_length()
        content_type = self._headers.get(b"content-type", b"")
        if content_type.partition(b";")[0].strip().lower() != b"multipart/form-data":
            raise UnsupportedMedia("The header Content-Type must be multipart/form-data.")
        decoder = decoder_for(self._headers.get(b"content-encoding"), self._limits.body_bytes)
        return BodyUpload(content_type, self._receive, decoder, self._limits, self.on_complete or (lambda: None))

    def _check_length(self) -> None:
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._limits.body_bytes:
            raise too_large(self._limits)

    def _check_head(self) -> None:
        self._check_length()
        kind = self._headers.get(b"content-type", b"application/json")
        if kind == b"application/json":
            return
        kind = kind.partition(b";")[0].strip().lower()
        if kind != b"application/json" and not kind.endswith(b"+json"):
            raise UnsupportedMedia("The header Content-Type must be application/json.")

    async def _read(self, decoder: Decoder | None) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone("The client left while it sent its request.")
            part = message.get("body", b"")
            total += len(part)
            if total > self._limits.body_bytes:
                raise too_large(self._limits)
            if decoder is None:
                parts.append(part)
            else:
                await decoder.decode(part, parts)
            if not message.get("more_body"):
                if decoder is not None:
                    decoder.finish()
                return parts[0] if len(parts) == 1 else b"".join(parts)

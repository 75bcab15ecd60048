"""The hot path: who asks, what may be sent, and what becomes of a request whose client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from serving.api.edge import Edge, bearer
from serving.core.context import Incoming, Outgoing, RequestContext
from serving.core.errors import ClientGone, EngineFailed, Overloaded
from serving.core.outcomes import Outcome
from serving.pipeline import AnswerCut
from serving.settings import LimitSettings, RelaySettings

LIMIT_BYTES = 10
STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]

Serve = Callable[[RequestContext, Incoming, Outgoing], Awaitable[None]]


def part(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


GONE: dict[str, Any] = {"type": "http.disconnect"}


class Client:
    """The client's side of one ASGI request: sends its messages, then stays until it leaves."""

    def __init__(self, messages: Iterable[dict[str, Any]] = (part(b"{}"),)) -> None:
        self._messages = list(messages)
        self._left = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self.received = 0
        self.takes = asyncio.Event()
        self.takes.set()

    def leave(self) -> None:
        self._left.set()

    async def receive(self) -> dict[str, Any]:
        self.received += 1
        if self._messages:
            return self._messages.pop(0)
        await self._left.wait()
        return GONE

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        await self.takes.wait()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.body.removeprefix(b"data: "))["error"])

    @property
    def is_whole(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False


class Serving:
    """Takes the pipeline's place: keeps the contexts and does what a test says."""

    def __init__(self, serve: Serve | None = None) -> None:
        self._serve = serve
        self.contexts: list[RequestContext] = []

    async def serve(self, ctx: RequestContext, incoming: Incoming, outgoing: Outgoing) -> None:
        self.contexts.append(ctx)
        if self._serve is not None:
            await self._serve(ctx, incoming, outgoing)


def edge_over(serving: Serving, behind: Any = None, **relay: Any) -> Edge:
    return Edge(behind, serving, LimitSettings(body_bytes=LIMIT_BYTES), RelaySettings(**relay))  # type: ignore[arg-type]


def scope(path: str = "/v1/chat/completions", method: str = "POST", **headers: bytes) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return {"type": "http", "path": path, "method": method, "headers": pairs}


async def context_of(**headers: bytes) -> RequestContext:
    serving = Serving()
    client = Client()
    await edge_over(serving)(scope(**headers), client.receive, client.send)
    return serving.contexts[0]


async def answer_of(serve: Serve) -> Client:
    client = Client()
    await edge_over(Serving(serve))(scope(), client.receive, client.send)
    return client


def failing(error: BaseException, *, after: bytes | None = None) -> Serve:
    """Fail at once, or after the beginning of a stream."""

    async def serve(ctx: RequestContext, incoming: Incoming, outgoing: Outgoing) -> None:
        if after is not None:
            ctx.stream = True
            await outgoing.start(200, STREAM)
            await outgoing.send(after, last=False)
        raise error

    return serve


# Who asks


@pytest.mark.parametrize(
    ("authorization", "credential"),
    [
        (None, None),
        (b"", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Bearer    ", None),
        (b"Basic dTpw", None),
        (b"sk-key", None),
        (b"Bearer sk-key", "sk-key"),
        (b"bearer sk-key", "sk-key"),
        (b"BEARER   sk-key ", "sk-key"),
        (b"Bearer a b", "a b"),
        ("Bearer schlüssel".encode(), "schlüssel"),
        (b"Bearer \xff", "\udcff"),
    ],
)
def test_a_credential_is_what_follows_bearer(authorization: bytes | None, credential: str | None) -> None:
    assert bearer(authorization) == credential


async def test_the_credential_is_in_the_context() -> None:
    assert (await context_of(authorization=b"Bearer sk-key")).credential == "sk-key"


# Ids and traces


@pytest.mark.parametrize("given", [b"a", b"req-1.2_3", b"A" * 128])
async def test_a_good_request_id_is_kept(given: bytes) -> None:
    assert (await context_of(x_request_id=given)).request_id == given.decode()


@pytest.mark.parametrize("given", [b"", b"-a", b"a b", b"a" * 129, b"\xff", b"a\n", b'a"b', b"a/b"])
async def test_a_request_id_that_is_none_is_replaced(given: bytes) -> None:
    made = (await context_of(x_request_id=given)).request_id
    assert len(made) == 32
    assert set(made) <= set("0123456789abcdef")


async def test_request_ids_differ() -> None:
    assert (await context_of()).request_id != (await context_of()).request_id


PARENT = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (PARENT, PARENT.decode()),
        (b"", None),
        (PARENT + b"-x", None),
        (PARENT.upper(), None),
        (b"01" + PARENT[2:], None),
        (PARENT + b"\r\n", None),
    ],
)
async def test_only_a_traceparent_that_is_one_is_kept(given: bytes, kept: str | None) -> None:
    ctx = await context_of(traceparent=given, tracestate=b"vendor=x")
    assert ctx.traceparent == kept
    assert ctx.tracestate == (None if kept is None else "vendor=x")


@pytest.mark.parametrize("given", [b"x" * 513, b"a\r\nb", b"\xff", b""])
async def test_a_tracestate_that_is_none_stays_out(given: bytes) -> None:
    assert (await context_of(traceparent=PARENT, tracestate=given)).tracestate is None


# Which requests


async def test_only_post_is_served() -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
        serving, client = Serving(), Client()
        await edge_over(serving)(scope(method=method), client.receive, client.send)
        assert (client.status, client.headers[b"allow"], client.error["code"]) == (405, b"POST", "method_not_allowed")
        assert not serving.contexts


@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1/chat/completions/", "/V1/chat/completions", "//v1/chat/completions"])
async def test_all_else_goes_to_the_application_behind(path: str) -> None:
    passed: list[str] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])

    client = Client()
    await edge_over(Serving(), behind)(scope(path), client.receive, client.send)
    assert passed == [path]


async def test_the_lifespan_goes_to_the_application_behind() -> None:
    passed: list[str] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    client = Client()
    lifespan = {"type": "lifespan", "path": "/v1/chat/completions"}
    await edge_over(Serving(), behind)(lifespan, client.receive, client.send)
    assert passed == ["lifespan"]


# How answers end


async def test_an_answer_carries_its_request_id() -> None:
    async def serve(ctx: RequestContext, incoming: Incoming, outgoing: Outgoing) -> None:
        await outgoing.start(200, [(b"content-type", b"application/json")])
        await outgoing.send(b"{}", last=True)

    client = await answer_of(serve)
    assert (client.status, client.body, client.is_whole) == (200, b"{}", True)
    assert len(client.headers[b"x-request-id"]) == 32
    assert b"cache-control" not in client.headers


async def test_no_proxy_shall_keep_or_buffer_a_stream() -> None:
    async def serve(ctx: RequestContext, incoming: Incoming, outgoing: Outgoing) -> None:
        await outgoing.start(200, [*STREAM, (b"cache-control", b"public")])
        await outgoing.send(b"data: [DONE]\n\n", last=True)

    client = await answer_of(serve)
    assert client.headers[b"cache-control"] == b"no-cache"
    assert client.headers[b"x-accel-buffering"] == b"no"


async def test_an_error_before_the_first_byte_is_an_error_object() -> None:
    client = await answer_of(failing(Overloaded("full", retry_after_seconds=3)))
    assert (client.status, client.error["message"], client.is_whole) == (429, "full", True)
    assert client.headers[b"retry-after"] == b"3"
    assert client.headers[b"content-length"] == b"%d" % len(client.body)


async def test_an_unforeseen_error_tells_nothing_of_itself() -> None:
    client = await answer_of(failing(ValueError("secret path")))
    assert (client.status, client.error["code"]) == (500, "server_error")
    assert b"secret" not in client.body


async def test_an_unforeseen_error_in_the_middle_never_looks_whole() -> None:
    client = await answer_of(failing(ValueError("x"), after=b"data: 1\n\n"))
    assert client.body == b"data: 1\n\n"
    assert not client.is_whole


async def test_a_client_that_is_gone_gets_nothing() -> None:
    assert (await answer_of(failing(ClientGone("left")))).sent == []


@pytest.mark.parametrize(("after", "between"), [(b"data: 1\n\n", b""), (b"data: {", b"\n\n")])
async def test_a_stream_that_is_cut_says_so_in_an_event_of_its_own(after: bytes, between: bytes) -> None:
    client = await answer_of(failing(AnswerCut(EngineFailed("broke off"), in_band=True), after=after))
    rest = client.body.removeprefix(after + between)
    assert json.loads(rest.removeprefix(b"data: "))["error"]["message"] == "broke off"
    assert rest.startswith(b"data: ")
    assert rest.endswith(b"\n\n")
    assert b"[DONE]" not in rest
    assert client.is_whole


async def test_a_whole_answer_that_is_cut_never_looks_whole() -> None:
    client = await answer_of(failing(AnswerCut(EngineFailed("broke off"), in_band=False), after=b"{"))
    assert client.body == b"{"
    assert not client.is_whole


# Being cancelled


def waiting(started: asyncio.Event, *, streaming: bool) -> Serve:
    async def serve(ctx: RequestContext, incoming: Incoming, outgoing: Outgoing) -> None:
        await incoming.body()
        if streaming:
            ctx.stream = True
            await outgoing.start(200, STREAM)
            await outgoing.send(b"data: 1\n\n", last=False)
        started.set()
        await asyncio.Event().wait()

    return serve


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_leaves_ends_its_request(streaming: bool) -> None:
    started, client = asyncio.Event(), Client()
    serving = Serving(waiting(started, streaming=streaming))
    request = asyncio.create_task(edge_over(serving)(scope(), client.receive, client.send))
    await started.wait()
    sent = len(client.sent)
    client.leave()
    await request
    assert serving.contexts[0].interruption is Outcome.CLIENT_CANCELLED
    assert len(client.sent) == sent


async def test_a_request_cut_by_the_servers_end_is_told_so() -> None:
    started, client = asyncio.Event(), Client()
    request = asyncio.create_task(edge_over(Serving(waiting(started, streaming=False)))(scope(), client.receive, client.send))
    await started.wait()
    request.cancel()
    await request
    assert (client.status, client.error["code"]) == (503, "shutting_down")


async def test_a_stream_cut_by_the_servers_end_is_told_so() -> None:
    started, client = asyncio.Event(), Client()
    request = asyncio.create_task(edge_over(Serving(waiting(started, streaming=True)))(scope(), client.receive, client.send))
    await started.wait()
    request.cancel()
    await request
    assert b"shutting_down" in client.body
    assert client.is_whole


async def test_a_client_that_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.api.edge.SWEEP_SECONDS", 0.001)
    client = Client()

    async def serve(ctx: RequestContext, incoming: Incoming, outgoing: Outgoing) -> None:
        await outgoing.start(200, STREAM)
        client.takes.clear()
        await outgoing.send(b"data: 1\n\n", last=False)

    serving = Serving(serve)
    edge = edge_over(serving, client_write_timeout_seconds=0.01)
    sweep = asyncio.create_task(edge.sweep())
    await edge(scope(), client.receive, client.send)
    assert serving.contexts[0].interruption is Outcome.CLIENT_SLOW
    assert not client.is_whole
    sweep.cancel()
    await asyncio.wait({sweep})


async def test_the_edge_is_idle_when_nothing_is_under_way() -> None:
    started, client = asyncio.Event(), Client()
    edge = edge_over(Serving(waiting(started, streaming=False)))
    await edge.idle(timeout_seconds=5)
    request = asyncio.create_task(edge(scope(), client.receive, client.send))
    await started.wait()
    idle = asyncio.create_task(edge.idle(timeout_seconds=5))
    await asyncio.sleep(0)
    assert not idle.done()
    client.leave()
    await request
    await idle


async def test_waiting_for_idleness_has_an_end() -> None:
    started, client = asyncio.Event(), Client()
    edge = edge_over(Serving(waiting(started, streaming=False)))
    request = asyncio.create_task(edge(scope(), client.receive, client.send))
    await started.wait()
    await edge.idle(timeout_seconds=0.001)
    assert not request.done()
    client.leave()
    await request


async def test_a_client_that_leaves_after_the_last_byte_means_nothing() -> None:
    client, done = Client(), asyncio.Event()

    async def serve(ctx: RequestContext, incoming: Incoming, outgoing: Outgoing) -> None:
        await incoming.body()
        await outgoing.start(200, [])
        await outgoing.send(b"{}", last=True)
        client.leave()
        for _ in range(5):
            await asyncio.sleep(0)
        done.set()

    serving = Serving(serve)
    await edge_over(serving)(scope(), client.receive, client.send)
    assert done.is_set()
    assert serving.contexts[0].interruption is None


# Bodies


async def echo(ctx: RequestContext, incoming: Incoming, outgoing: Outgoing) -> None:
    body = await incoming.body()
    await outgoing.start(200, [])
    await outgoing.send(body, last=True)


async def echo_of(client: Client, *, timeout_seconds: float = 5.0, **headers: bytes) -> Client:
    limits = LimitSettings(body_bytes=LIMIT_BYTES, body_timeout_seconds=timeout_seconds)
    edge = Edge(None, Serving(echo), limits, RelaySettings())  # type: ignore[arg-type]
    await edge(scope(**headers), client.receive, client.send)
    return client


@pytest.mark.parametrize(
    "parts",
    [
        [part(b"x" * LIMIT_BYTES)],
        [part(b"x" * 4, more=True), part(b"x" * 6)],
        [part(b"", more=True), part(b"x" * LIMIT_BYTES, more=True), part(b"")],
    ],
)
async def test_a_body_within_the_limit_is_whole(parts: list[dict[str, Any]]) -> None:
    client = await echo_of(Client(parts))
    assert (client.status, client.body) == (200, b"x" * LIMIT_BYTES)


async def test_an_empty_body_is_a_body() -> None:
    client = await echo_of(Client([part(b"")]))
    assert (client.status, client.body) == (200, b"")


async def test_a_body_announced_as_too_large_is_refused_unread() -> None:
    client = await echo_of(Client([part(b"x" * 11)]), content_length=b"11")
    assert (client.status, client.error["code"]) == (413, "request_too_large")
    assert client.headers[b"connection"] == b"close"
    assert client.received == 0


async def test_a_chunked_body_is_read_up_to_the_limit_and_one_part() -> None:
    client = await echo_of(Client([part(b"x" * 4, more=True) for _ in range(1000)]), transfer_encoding=b"chunked")
    assert (client.status, client.error["code"]) == (413, "request_too_large")
    assert client.headers[b"connection"] == b"close"
    assert client.received == 3


async def test_a_body_larger_than_announced_meets_the_limit_too() -> None:
    assert (await echo_of(Client([part(b"x" * 11)]), content_length=b"3")).status == 413


async def test_a_body_that_does_not_come_is_waited_for_in_bounds() -> None:
    client = await echo_of(Client([part(b"x", more=True)]), timeout_seconds=0.01)
    assert (client.status, client.error["code"]) == (408, "request_timeout")
    assert client.headers[b"connection"] == b"close"


async def test_a_client_that_leaves_while_it_sends_gets_nothing() -> None:
    assert (await echo_of(Client([part(b"x", more=True), GONE]))).sent == []


@pytest.mark.parametrize("kind", [b"application/json", b"Application/JSON; charset=utf-8", b"application/vnd.x+json"])
async def test_json_by_any_name_is_taken(kind: bytes) -> None:
    assert (await echo_of(Client(), content_type=kind)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"content_type": b"text/plain"},
        {"content_type": b"multipart/form-data; boundary=x"},
        {"content_type": b""},
        {"content_encoding": b"zstd"},
        {"content_encoding": b"identity, gzip, br"},
    ],
)
async def test_what_cannot_be_read_is_refused_unread(headers: dict[str, bytes]) -> None:
    client = await echo_of(Client(), **headers)
    assert (client.status, client.error["code"]) == (415, "unsupported_media_type")
    assert client.received == 0


async def test_a_client_that_sends_compressed_is_told_what_would_do() -> None:
    assert (await echo_of(Client(), content_encoding=b"br")).headers[b"accept-encoding"] == b"gzip, deflate"

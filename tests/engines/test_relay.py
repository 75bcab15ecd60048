"""The relay sends exactly one request, brings the answer back, and names every failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from serving.core.clock import monotonic
from serving.core.context import RequestContext
from serving.core.routes import CHAT_COMPLETIONS, COMPLETIONS, Route
from serving.engines.exchange import AnswerTimedOut, BrokenAnswer, StaleConnection, Unreachable, WireError
from serving.engines.relay import Answer, EngineRefused, Relay, SecretRefused
from serving.settings import RelaySettings
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled

CHAT = b'{"model": "tiny",  "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 3}'
STREAM = CHAT[:-1] + b', "stream": true}'


def context(body: bytes = CHAT, route: Route = CHAT_COMPLETIONS, **fields: Any) -> RequestContext:
    ctx = RequestContext("request-1", route, "sk-client", monotonic(), **fields)
    ctx.body = body
    return ctx


@asynccontextmanager
async def relay_with(**settings: Any) -> AsyncIterator[Relay]:
    """A relay that must hold no exchange and no connection when it is left."""
    async with Relay(RelaySettings(**settings)) as relay:
        yield relay
        assert relay.open_exchanges == 0

    async def problems() -> list[str]:
        return [f"{relay.open_connections} connections"] if relay.open_connections else []

    await settled(problems)


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    async with relay_with() as started:
        yield started


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for what is overdue so often that a test need not wait."""
    monkeypatch.setattr("serving.engines.relay.SWEEP_SECONDS", 0.005)


async def whole(relay: Relay, answer: Answer) -> bytes:
    body, complete = answer.first, answer.complete
    try:
        while not complete:
            piece, complete = await answer.exchange.piece()
            body += piece
    finally:
        relay.close(answer.exchange)
    return body


async def refused(relay: Relay, engine: ScriptedEngine, body: bytes = CHAT) -> EngineRefused:
    with pytest.raises(EngineRefused) as caught:
        await relay.ask(engine.url, context(body))
    return caught.value


def answering(status: int, body: bytes, *headers: tuple[str, str]) -> Script:
    return Script(status=status, body=body, headers=headers)


# What the engine gets


@pytest.mark.parametrize("route", [CHAT_COMPLETIONS, COMPLETIONS])
async def test_a_request_is_exactly_these_bytes(relay: Relay, engine: ScriptedEngine, route: Route) -> None:
    engine.default = Script(body=b"{}")
    await whole(relay, await relay.ask(engine.url, context(route=route)))
    assert engine.log.requests[0].raw == (
        b"POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\nx-request-id: request-1\r\n"
        b"content-length: %d\r\n\r\n%s" % (route.path.encode(), engine.port, len(CHAT), CHAT)
    )


async def test_a_trace_goes_along(relay: Relay, engine: ScriptedEngine) -> None:
    parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    ctx = context(traceparent=parent, tracestate="vendor=x")
    await whole(relay, await relay.ask(engine.url, ctx))
    record = engine.log.requests[0]
    assert (record.header("traceparent"), record.header("tracestate")) == (parent, "vendor=x")


async def test_a_trace_state_without_its_parent_stays_behind(relay: Relay, engine: ScriptedEngine) -> None:
    await whole(relay, await relay.ask(engine.url, context(tracestate="vendor=x")))
    assert engine.log.requests[0].header("tracestate") is None


async def test_the_clients_credential_stays_behind(relay: Relay, engine: ScriptedEngine) -> None:
    await whole(relay, await relay.ask(engine.url, context()))
    assert b"sk-client" not in engine.log.requests[0].raw


async def test_the_engines_secret_goes_along(engine: ScriptedEngine) -> None:
    async with relay_with(engine_secret="engine-secret") as relay:
        await whole(relay, await relay.ask(engine.url, context()))
        await relay.get(engine.url, "/v1/models", timeout_seconds=5)
    for record in (engine.log.requests[0], engine.log.control_requests[0]):
        assert record.header("x-serving-engine-secret") == "engine-secret"


# What comes back


async def test_a_whole_answer_comes_back(relay: Relay, engine: ScriptedEngine) -> None:
    answer = await relay.ask(engine.url, context())
    assert (answer.status, answer.is_stream) == (200, False)
    assert json.loads(await whole(relay, answer))["usage"]["completion_tokens"] == 3
    assert engine.log.requests[0].outcome == "completed"


async def test_a_stream_begins_with_its_first_event(relay: Relay, engine: ScriptedEngine) -> None:
    gate = Gate(events=1)
    engine.script(Script(gate=gate))
    answer = await relay.ask(engine.url, context(STREAM))
    assert (answer.is_stream, answer.complete) == (True, False)
    assert answer.first.startswith(b"data: {")
    assert answer.first.count(b"\n\n") == 1
    gate.open_all()
    assert (await whole(relay, answer)).endswith(b"data: [DONE]\n\n")


async def test_the_heads_arrival_is_not_yet_an_answer(relay: Relay, engine: ScriptedEngine) -> None:
    gate = Gate()
    engine.script(Script(gate=gate))
    asking = asyncio.create_task(relay.ask(engine.url, context(STREAM)))
    await (await engine.request_arrived()).reached("held:1")
    assert not asking.done()
    gate.open_all()
    await whole(relay, await asking)


async def test_only_headers_about_the_body_pass(relay: Relay, engine: ScriptedEngine) -> None:
    headers = (("x-secret", "1"), ("set-cookie", "a=b"), ("cache-control", "no-store"), ("x-request-id", "other"))
    engine.script(Script(headers=headers))
    answer = await relay.ask(engine.url, context())
    assert {name for name, _ in answer.headers} == {b"content-type", b"content-length", b"cache-control"}
    await whole(relay, answer)


async def test_an_empty_answer_is_no_answer(relay: Relay, engine: ScriptedEngine) -> None:
    engine.script(Script(body=b""))
    with pytest.raises(BrokenAnswer, match="not JSON"):
        await relay.ask(engine.url, context())


# Refusals


def said(message: Any, param: Any = None, code: Any = 400, **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, "type": "T", "param": param, "code": code}, **more}).encode()


CONTEXT = "This model's maximum context length is 16 tokens."


@pytest.mark.parametrize(
    ("status", "body", "message", "param"),
    [
        (400, said("1 validation error", "body.x"), "1 validation error", "body.x"),
        (400, said(CONTEXT, "input_tokens"), CONTEXT, "input_tokens"),
        (404, said("The model `x` does not exist.", "model", 404), "The model `x` does not exist.", "model"),
        (422, said("media", None, 422), "media", None),
        (501, said("not supported", None, 501), "not supported", None),
        (503, said("queue full", None, 503), "queue full", None),
        (503, b'{"error": "The model is currently scaling"}', "The model is currently scaling", None),
        (401, b'{"error": "Unauthorized"}', "Unauthorized", None),
        (400, b'{"type": "error", "error": {"type": "T", "message": "as in /v1/messages"}}', "as in /v1/messages", None),
        (400, b'{"object": "error", "message": "old shape", "param": "n"}', "old shape", "n"),
        (400, b'{"message": "cohere", "id": "1"}', "cohere", None),
        (404, b'{"detail": "Not Found"}', "", None),
        (422, b'{"detail": [{"loc": ["body"]}]}', "", None),
        (500, b"Internal Server Error", "", None),
        (500, b"", "", None),
        (502, b"<html>", "", None),
        (500, b"[]", "", None),
        (500, b"null", "", None),
        (500, b'{"error": null}', "", None),
        (500, b'{"error": ["x"]}', "", None),
        (500, said(5, 5), "", None),
        (500, b"[" * 60_000, "", None),
        (500, b"\xff\xfe", "", None),
        (302, b"", "", None),
    ],
)
async def test_a_refusal_carries_the_engines_own_words(
    relay: Relay, engine: ScriptedEngine, status: int, body: bytes, message: str, param: str | None
) -> None:
    engine.script(answering(status, body))
    refusal = await refused(relay, engine)
    assert (refusal.status, refusal.message, refusal.param) == (status, message, param)
    assert refusal.retry_after_seconds is None


@pytest.mark.parametrize(
    ("given", "seconds"), [("7", 7), ("0", 0), ("", None), ("-1", None), ("1.5", None), ("soon", None), ("999999", None)]
)
async def test_retry_after_is_whole_seconds_or_unknown(
    relay: Relay, engine: ScriptedEngine, given: str, seconds: int | None
) -> None:
    engine.script(answering(503, b"", ("retry-after", given)))
    assert (await refused(relay, engine)).retry_after_seconds == seconds


async def test_a_refusal_leaves_the_connection_for_the_next_request(relay: Relay, engine: ScriptedEngine) -> None:
    engine.script(answering(400, said("no")))
    await refused(relay, engine)
    await whole(relay, await relay.ask(engine.url, context()))
    assert engine.accepted_connections == 1


async def test_of_a_long_refusal_only_the_beginning_is_read(engine: ScriptedEngine) -> None:
    engine.script(Script(status=500, raw=[(0.0, b"x" * 1000)] * 100, raw_is="body", framing="length"))
    async with relay_with(error_body_bytes=1000) as relay:
        assert (await refused(relay, engine)).message == ""


@pytest.mark.parametrize(("code", "status"), [(400, 400), (503, 503), (500, 500), (200, 500), (None, 500), ("503", 500)])
async def test_a_stream_that_begins_with_an_error_is_a_refusal(
    relay: Relay, engine: ScriptedEngine, code: Any, status: int
) -> None:
    event = b"data: " + said("broken", "n", code).replace(b" ", b"") + b"\n\n"
    engine.script(Script(raw_is="body", raw=[(0.0, event + b"data: [DONE]\n\n")]))
    refusal = await refused(relay, engine, STREAM)
    assert (refusal.status, refusal.message, refusal.param) == (status, "broken", "n")


async def test_a_stream_whose_later_event_is_an_error_is_an_answer(relay: Relay, engine: ScriptedEngine) -> None:
    engine.script(Script(error_after=1))
    answer = await relay.ask(engine.url, context(STREAM))
    assert b'data: {"error"' in await whole(relay, answer)


# Failures


async def test_a_closed_port_is_unreachable(relay: Relay, engine: ScriptedEngine) -> None:
    engine.refuse()
    with pytest.raises(Unreachable):
        await relay.ask(engine.url, context())


@pytest.mark.parametrize("script", [Script(close_after=0), Script(rst_after=0, head_at_arrival=False)])
async def test_an_engine_that_ends_before_its_first_byte_is_broken(relay: Relay, engine: ScriptedEngine, script: Script) -> None:
    engine.script(script)
    with pytest.raises(BrokenAnswer):
        await relay.ask(engine.url, context(STREAM))


async def test_a_fresh_connection_follows_a_stale_one(relay: Relay, engine: ScriptedEngine) -> None:
    await whole(relay, await relay.ask(engine.url, context()))
    engine.script(Script(rst_after=0, head_at_arrival=False))
    with pytest.raises(StaleConnection):
        await relay.ask(engine.url, context(STREAM))
    await whole(relay, await relay.ask(engine.url, context(), fresh=True))
    assert engine.accepted_connections == 2


async def test_a_request_that_is_given_up_closes_its_connection(relay: Relay, engine: ScriptedEngine) -> None:
    engine.script(Script(blackhole=True))
    asking = asyncio.create_task(relay.ask(engine.url, context()))
    record = await engine.request_arrived()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await record.peer_closed.wait()
    assert relay.open_exchanges == 0


async def test_an_answer_closed_in_the_middle_closes_its_connection(relay: Relay, engine: ScriptedEngine) -> None:
    engine.script(Script(gate=Gate(events=1)))
    answer = await relay.ask(engine.url, context(STREAM))
    relay.close(answer.exchange)
    await engine.log.requests[0].peer_closed.wait()


async def test_leaving_the_relay_closes_what_is_open(engine: ScriptedEngine) -> None:
    engine.script(Script(gate=Gate(events=1)))
    async with Relay(RelaySettings()) as relay:
        await relay.ask(engine.url, context(STREAM))
        assert relay.open_exchanges == 1
    assert relay.open_exchanges == 0
    await engine.log.requests[0].peer_closed.wait()


# Deadlines


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("script", [Script(blackhole=True), Script(stall_after=0)])
async def test_the_first_byte_has_a_deadline(engine: ScriptedEngine, script: Script) -> None:
    engine.script(script)
    async with relay_with(first_byte_timeout_seconds=0.05) as relay:
        with pytest.raises(AnswerTimedOut):
            await relay.ask(engine.url, context(STREAM))
        await engine.log.requests[0].peer_closed.wait()


@pytest.mark.usefixtures("often")
async def test_each_further_piece_has_a_deadline(engine: ScriptedEngine) -> None:
    engine.script(Script(stall_after=1))
    async with relay_with(idle_timeout_seconds=0.05) as relay:
        answer = await relay.ask(engine.url, context(STREAM))
        with pytest.raises(AnswerTimedOut):
            await whole(relay, answer)
        await engine.log.requests[0].peer_closed.wait()


@pytest.mark.usefixtures("often")
async def test_connections_idle_for_too_long_are_closed(engine: ScriptedEngine) -> None:
    async with relay_with(idle_connection_seconds=0.02) as relay:
        await whole(relay, await relay.ask(engine.url, context()))

        async def problems() -> list[str]:
            return [] if relay.open_connections == 0 else ["open"]

        await settled(problems)


# Probes


async def test_a_small_answer_is_got(relay: Relay, engine: ScriptedEngine) -> None:
    status, body = await relay.get(engine.url, "/v1/models", timeout_seconds=5)
    assert status == 200
    assert json.loads(body)["data"][0]["id"] == "tiny"
    assert engine.log.control_requests[0].header("connection") == "close"


async def test_an_error_is_got_too(relay: Relay, engine: ScriptedEngine) -> None:
    engine.routes["/health"] = answering(503, b"dead")
    assert await relay.get(engine.url, "/health", timeout_seconds=5) == (503, b"dead")


@pytest.mark.parametrize(("settings", "words"), [({}, "wants a secret"), ({"engine_secret": "wrong"}, "another secret")])
async def test_a_guard_that_refuses_the_secret_is_named(engine: ScriptedEngine, settings: dict[str, Any], words: str) -> None:
    engine.routes["/v1/models"] = answering(401, said("no", None, "engine_secret"))
    async with relay_with(**settings) as relay:
        with pytest.raises(SecretRefused, match=words):
            await relay.get(engine.url, "/v1/models", timeout_seconds=5)


async def test_a_probe_has_its_own_time(relay: Relay, engine: ScriptedEngine) -> None:
    engine.routes["/health"] = Script(blackhole=True)
    with pytest.raises(AnswerTimedOut):
        await relay.get(engine.url, "/health", timeout_seconds=0.05)
    await engine.log.control_requests[0].peer_closed.wait()


async def test_a_probe_takes_no_kept_connection(relay: Relay, engine: ScriptedEngine) -> None:
    await whole(relay, await relay.ask(engine.url, context()))
    await relay.get(engine.url, "/health", timeout_seconds=5)
    assert engine.accepted_connections == 2


async def test_an_answer_too_long_to_be_read_is_not_handed_on_as_whole(relay: Relay, engine: ScriptedEngine) -> None:
    engine.models += [f"adapter-{number}" for number in range(1000)]
    try:
        _, body = await relay.get(engine.url, "/v1/models", timeout_seconds=5)
    except WireError:
        return
    assert json.loads(body)["data"][-1]["id"] == "adapter-999"

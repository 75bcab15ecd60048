"""Clients and engines that keep to the letter of HTTP in unusual ways, or do not quite keep to it."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.doubles.conservation import Expectation
from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.script import Script, Usage
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS, settled
from tests.flow.conftest import GatewayOver, chat

CHAT = "/v1/chat/completions"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'
REPORTED = Usage(prompt_tokens=7, completion_tokens=1)
DONE = b"data: [DONE]\n\n"


def sse(body: bytes, length_bytes: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%s" % (length_bytes, body)


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_client_that_pipelines_and_leaves_is_noticed(engine: ScriptedEngine, gateway_over: GatewayOver, how: str) -> None:
    engine.default = Script(blackhole=True)
    async with gateway_over({"e1": engine}, expected=Expectation(client_requests=1)) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(CHAT, chat()) + request_bytes(CHAT, chat()))
            record = await engine.request_arrived(1)
            client.hang_up("fin" if how == "fin" else "rst")
        async with asyncio.timeout(HANG_SECONDS):
            await record.peer_closed.wait()


async def test_the_last_bytes_of_an_answer_do_not_wait_for_ever(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    body = json.dumps({"usage": {"prompt_tokens": 1, "completion_tokens": 1}, "text": "x" * 3_000_000}).encode()
    engine.default = Script(body=body, usage=Usage(prompt_tokens=1, completion_tokens=1))
    async with gateway_over({"e1": engine}, relay={"client_write_timeout_seconds": 0.5, "buffer_bytes": 16_000_000}) as gateway:
        clients = [await RawClient(gateway.url, receive_buffer_bytes=4096).connect() for _ in range(20)]
        for client in clients:
            await client.send(request_bytes(CHAT, chat()))

        async def problems() -> list[str]:
            left = gateway.open_connections - 1  # the scrape's own is not counted: it has closed
            return [] if left <= 0 else [f"{left} connections left"]

        await settled(problems)
        for client in clients:
            client.hang_up()


@pytest.mark.parametrize("options", [None, {"include_usage": True}])
async def test_an_event_stream_with_a_length_is_framed_anew(
    engine: ScriptedEngine, gateway_over: GatewayOver, options: dict[str, bool] | None
) -> None:
    text = EVENT + USAGE + DONE
    engine.script(Script(raw_is="response", raw=[(0.0, sse(text, len(text)))], usage=REPORTED))
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        response = await client.ask(CHAT, chat(stream=True, stream_options=options))
        assert response.end == "complete"
        assert response.body == (text if options else EVENT + DONE)
        assert (await client.ask(CHAT, chat())).status == 200


async def test_an_event_stream_cut_short_of_its_length_leaves_the_connection_sound(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    engine.script(Script(raw_is="response", raw=[(0.0, sse(EVENT, 117))], ending="fin"))
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        response = await client.ask(CHAT, chat(stream=True))
        assert response.end == "complete"
        assert b'"engine_failed"' in response.events[-1]
        assert (await client.ask(CHAT, chat())).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_of_http_1_0_gets_no_chunks(engine: ScriptedEngine, gateway_over: GatewayOver, stream: bool) -> None:
    request = request_bytes(CHAT, chat(stream=stream), headers={"Expect": "100-continue"}).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        await client.send(request)
        response = await client.read()
        assert not response.all("transfer-encoding")
        assert b"100 Continue" not in response.raw_head
        if stream:
            assert response.end == "fin"
            assert response.body.startswith(b"data: {")
            assert response.is_done


async def test_an_early_refusal_of_an_announced_body_closes(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    headers = {"Expect": "100-continue", "Content-Type": "text/plain", "Content-Length": "10"}
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        await client.send(request_bytes(CHAT, method="POST", headers=headers))
        response = await client.read()
        assert response.status == 415
        assert response.header("connection") == "close"


async def test_an_engines_answer_without_content_is_a_failure(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(raw_is="response", raw=[(0.0, b"HTTP/1.1 204 No Content\r\n\r\n")]))
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        assert (await client.ask(CHAT, chat())).status == 502
        assert (await client.ask(CHAT, chat())).status == 200


async def test_a_stream_whose_last_line_is_not_ended_is_passed_on(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    text = EVENT + USAGE + b"data: [DONE]"
    engine.script(Script(raw_is="body", raw=[(0.0, text)], ending="rst", usage=REPORTED))
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True))
        assert response.body == EVENT + b"data: [DONE]"


async def test_a_body_that_would_hold_up_the_others_is_refused(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        for part in (b"[" + b"[]," * 1_000_001 + b"1]", b'"' + b"\\n" * 1_000_001 + b'"'):
            body = b'{"model":"tiny","messages":[],"priority":1,"p":' + part + b"}"
            response = await ask(gateway.url, CHAT, body)
            assert (response.status, response.json["error"]["code"]) == (400, "request_too_complex")
        tokens = {"model": "tiny", "prompt": [1] * 3000, "max_tokens": 1}
        assert (await ask(gateway.url, "/v1/completions", tokens)).status == 200


ANSWER = b'{"id":"x","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}'


def ok(kind: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (kind, len(body), body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        ok(b"application/json", b""),
        ok(b"application/json", b"null"),
        ok(b"text/html", b"<html>Log in</html>"),
        ok(b"text/html", b""),
        ok(b"Application/JSON", b"oops"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ],
    ids=["nothing", "null", "page", "empty page", "no JSON", "no kind", "no kind of text"],
)
async def test_a_success_that_is_no_answer_is_a_failure(
    engine: ScriptedEngine, gateway_over: GatewayOver, stream: bool, answer: bytes
) -> None:
    """A proxy's page in front of an engine, or an engine that has lost its words."""
    engine.script(Script(raw=[(0.0, answer)]))
    async with gateway_over({"e1": engine}, relay={"max_attempts": 1}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=stream))
        assert response.status == 502
        assert response.json["error"]["code"] == "engine_failed"
        assert (await ask(gateway.url, CHAT, chat())).status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("code", "status"), [(500, 502), (400, 400), (503, 429), (None, 502)])
async def test_an_error_that_an_engine_calls_a_success_has_its_status(
    engine: ScriptedEngine, gateway_over: GatewayOver, stream: bool, code: int | None, status: int
) -> None:
    body = json.dumps({"error": {"message": "too odd", "type": "X", "param": None, "code": code}}, separators=(",", ":"))
    engine.script(Script(raw=[(0.0, ok(b"application/json", body.encode()))]))
    async with gateway_over({"e1": engine}, relay={"max_attempts": 1}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=stream))
        assert response.status == status
        assert set(response.json["error"]) == {"message", "type", "param", "code"}


async def test_the_kind_of_an_answer_is_read_in_any_case(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    text = EVENT + USAGE + DONE
    engine.script(Script(raw=[(0.0, ok(b"Text/Event-Stream; Charset=UTF-8", text))], usage=REPORTED))
    engine.script(Script(raw=[(0.0, ok(b"Application/JSON", ANSWER))], usage=REPORTED))
    engine.script(Script(raw=[(0.0, ok(b"Text/Event-Stream", EVENT))], usage=Usage(prompt_tokens=0, completion_tokens=0)))
    tokens = {"prompt": (14, 1000), "output": (2, 3)}
    async with gateway_over({"e1": engine}, expected=Expectation(tokens=tokens)) as gateway:
        assert (await ask(gateway.url, CHAT, chat(stream=True))).body == EVENT + DONE
        assert (await ask(gateway.url, CHAT, chat())).body == ANSWER
        assert b'"engine_failed"' in (await ask(gateway.url, CHAT, chat(stream=True))).body

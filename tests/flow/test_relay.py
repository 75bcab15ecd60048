"""Bytes in, bytes out; every failure looks like one."""

from __future__ import annotations

import json

import pytest

from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, chat

CHAT = "/v1/chat/completions"
ROUTES = [(CHAT, chat()), ("/v1/completions", {"model": "tiny", "prompt": "Say something.", "max_tokens": 5})]


def body_written(engine: ScriptedEngine) -> bytes:
    """The body of the engine's last answer, without head and chunk framing."""
    written = engine.log.requests[-1].written
    head, _, rest = written.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_passes_unchanged(
    engine: ScriptedEngine, gateway_over: GatewayOver, path: str, body: dict[str, object], stream: bool
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(
            gateway.url, path, body | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})
        )
        assert response.status == 200
        assert response.end == "complete"
        assert response.body == body_written(engine)
        assert len(response.all("content-length")) + len(response.all("transfer-encoding")) == 1
        assert response.is_done is stream


async def test_a_request_body_passes_unchanged(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    body = b'{ "model":"tiny","messages": [{"role":"user","content":"\\u00e9"}], "seed":9007199254740993,"x":{"a":1.0,"b":1}}'
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, CHAT, body)).status == 200
        assert engine.log.requests[-1].body == body


async def test_only_our_own_headers_reach_an_engine(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    secrets = {"Authorization": "Bearer CANARY1", "X-Api-Key": "CANARY2", "Cookie": "CANARY3", "Proxy-Authorization": "CANARY4"}
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(
            gateway.url, CHAT, chat(), headers=secrets | trace | {"X-Request-Id": "mine-1", "X-Data-Parallel-Rank": "0"}
        )
        assert response.header("x-request-id") == "mine-1"
        record = engine.log.requests[-1]
        assert b"CANARY" not in record.raw
        assert {name.lower() for name, _ in record.headers} == {
            "host", "content-type", "content-length", "x-request-id", "traceparent", "tracestate",
        }  # fmt: skip
        assert record.header("traceparent") == trace["traceparent"]


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "é", "-x", 'a"b'])
async def test_a_request_id_that_is_not_one_is_replaced(engine: ScriptedEngine, gateway_over: GatewayOver, given: str) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, chat(), headers={"X-Request-Id": given})
        assert response.status == 200
        assert response.header("x-request-id") not in (None, given)


async def test_each_event_goes_out_when_it_comes(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    gate = Gate()
    engine.script(Script(gate=gate, chunks=4))
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        await client.send(request_bytes(CHAT, chat(stream=True)))
        gate.open()
        response = await client.read_head()
        pieces = client.read_body(response)
        for _ in range(4):
            piece = await anext(pieces)
            assert piece.count(b"\n\n") == 1
            gate.open()
        gate.open_all()
        async for _ in pieces:
            pass
        assert response.is_done


async def test_no_status_goes_out_before_the_engine_has_produced_anything(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    engine.script(Script(raw_is="body", raw=[(0.0, b'data: {"error": {"message": "boom", "code": 500}}\n\ndata: [DONE]\n\n')]))
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True))
        assert response.status == 502
        assert response.json["error"]["code"] == "engine_failed"


@pytest.mark.parametrize("cut", [Script(close_after=3), Script(rst_after=3)])
async def test_a_stream_that_breaks_off_says_so(engine: ScriptedEngine, gateway_over: GatewayOver, cut: Script) -> None:
    engine.script(cut)
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True))
        assert response.status == 200
        assert not response.is_done
        *_, last = response.events
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_failed"
        assert b'finish_reason":"' not in response.body
        assert (await gateway.metrics()).sum("serving_requests_total", outcome="truncated") == 1


async def test_a_stream_cut_inside_an_event_still_parses_up_to_the_error(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    engine.script(Script(raw_is="body", raw=[(0.0, b'data: {"choices": []}\n\ndata: {"cho')], ending="rst"))
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True))
        assert b'data: {"error"' in response.events[-1]
        assert not response.is_done


async def test_a_whole_answer_cut_short_never_looks_whole(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(truncate_body_bytes=40))
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, chat())
        assert response.end in ("truncated", "rst")


async def test_a_stream_that_ends_without_done_does_not_look_complete(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    event = b'data: {"choices":[{"index":0}]}\n\n'
    engine.script(Script(raw_is="body", raw=[(0.0, event)]))
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True))
        assert response.body.startswith(event)
        assert b'"engine_failed"' in response.events[-1]
        assert (await gateway.metrics()).sum("serving_requests_total", outcome="truncated") == 1


async def test_an_error_event_is_relayed_and_counted(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(error_after=3))
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True))
        assert response.body == body_written(engine)
        assert (await gateway.metrics()).sum("serving_requests_total", outcome="engine_error") == 1


async def test_tokens_are_metered_as_the_engine_counts_them(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    prompt = "word " * 1500
    body = chat(messages=[{"role": "user", "content": prompt}])
    engine.max_model_len = 100_000
    async with gateway_over({"e1": engine}) as gateway:
        first = await ask(gateway.url, CHAT, body)
        second = await ask(gateway.url, CHAT, body | {"stream": True, "stream_options": {"include_usage": True}})
        cached = second.data[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0
        metrics = await gateway.metrics()
        assert metrics.sum("serving_tokens_total", kind="cached") == cached
        assert metrics.sum("serving_tokens_total", kind="prompt") == 2 * first.json["usage"]["prompt_tokens"]
        assert metrics.sum("serving_tokens_total", kind="output") == 10
        assert metrics.sum("serving_time_to_first_token_seconds_count") == 1


async def test_an_idle_connection_that_the_engine_closed_costs_no_request(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    engine.default = Script(ending="fin")
    async with gateway_over({"e1": engine}) as gateway:
        for _ in range(20):
            assert (await ask(gateway.url, CHAT, chat())).status == 200


async def test_a_kept_connection_is_used_again(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        for _ in range(5):
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        assert len({record.connection for record in engine.log.requests}) == 1


async def test_bytes_behind_an_answer_never_become_another_requests_answer(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    engine.script(
        Script(
            raw_is="response",
            raw=[(0.0, head % 2 + b"{}" + head % 5 + b"ghost")],
        )
    )
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, CHAT, chat())).body == b"{}"
        assert b"ghost" not in (await ask(gateway.url, CHAT, chat())).body


async def test_an_interim_answer_is_passed_over(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    raw = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    raw += b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    engine.script(Script(raw_is="response", raw=[(0.0, raw)]))
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, chat())
        assert (response.status, response.body) == (200, b"{}")


async def test_a_reader_that_does_not_read_holds_the_engine_back(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    event = b"data: " + b"x" * 65_000 + b"\n\n"
    engine.script(Script(raw_is="body", raw=((0.0, event) for _ in range(2000)), log_bytes=False))
    async with (
        gateway_over({"e1": engine}, relay={"client_write_timeout_seconds": 0.5}) as gateway,
        RawClient(gateway.url, receive_buffer_bytes=4096) as client,
    ):
        await client.send(request_bytes(CHAT, chat(stream=True)))
        record = await engine.request_arrived(1)
        await record.peer_closed.wait()
        assert sum(write.size_bytes for write in record.writes) < 32 * 1024 * 1024
        assert (await gateway.metrics()).sum("serving_requests_total", outcome="client_slow") == 1

"""O-STR-3: comments keep a silent stream alive, and change nothing else."""

from __future__ import annotations

import openai

from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, chat

CHAT = "/v1/chat/completions"
OFTEN = {"keep_alive_comment_seconds": 0.1}
COMMENT = b": keep-alive"


async def test_o_str_3_comments_come_before_and_between_events(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    gate = Gate()
    engine.script(Script(gate=gate, chunks=3))
    async with gateway_over({"e1": engine}, relay=OFTEN) as gateway, RawClient(gateway.url) as client:
        await client.send(request_bytes(CHAT, chat(stream=True)))
        response = await client.read_head()
        assert response.header("content-type") == "text/event-stream; charset=utf-8"
        pieces = client.read_body(response)
        assert (await anext(pieces)).strip() == COMMENT
        gate.open()
        while b"data:" not in await anext(pieces):
            pass
        assert (await anext(pieces)).strip() == COMMENT
        gate.open_all()
        async for _ in pieces:
            pass
        assert response.is_done
        assert all(event == COMMENT or event.startswith(b"data: ") for event in response.events)
        first_token = (await gateway.metrics()).sum("serving_time_to_first_token_seconds_sum")
        assert first_token > 0.1, "a comment is no token"


async def test_o_str_3_no_comment_inside_an_event(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """The engine falls silent in the middle of an event, for longer than the interval: a strict reader still reads it."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"whole"}}]}\n\n'
    raw = [(0.0, event[:20]), (0.8, event[20:-1]), (0.8, event[-1:]), (0.5, b"data: [DONE]\n\n")]
    engine.script(Script(raw_is="body", raw=raw))
    async with gateway_over({"e1": engine}, relay=OFTEN) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True, stream_options={"include_usage": True}))
        assert event in response.body
        assert dispatched(response.body) == [event[6:-2].decode(), "[DONE]"]
        assert response.events.count(COMMENT) >= 1


def dispatched(body: bytes) -> list[str]:
    """The data of the events that the WHATWG's rules for event streams make of these bytes."""
    found: list[str] = []
    data: list[str] = []
    for line in body.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        name, colon, value = line.partition(":")
        if not line:
            found += ["\n".join(data)] if data else []
            data = []
        elif name == "data":
            data.append(value.removeprefix(" "))
        else:
            assert colon == ":" and not name, f"a field that no engine sends: {line!r}"
    return found


async def test_o_str_3_a_failure_after_a_comment_is_said_in_the_stream(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(blackhole=True))
    async with gateway_over({"e1": engine}, relay=OFTEN | {"first_byte_timeout_seconds": 1.0}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True))
        assert response.status == 200
        assert response.events[0] == COMMENT
        assert b'"engine_timeout"' in response.events[-1]
        assert not response.is_done


async def test_o_str_3_no_comment_where_no_stream_was_asked_for(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(ttft_seconds=0.8))
    async with gateway_over({"e1": engine}, relay=OFTEN) as gateway:
        response = await ask(gateway.url, CHAT, chat())
        assert response.json["choices"]


async def test_o_str_3_the_openai_client_passes_comments_over(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(ttft_seconds=0.8, chunks=3))
    async with gateway_over({"e1": engine}, relay=OFTEN) as gateway:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any") as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=3
            )
            assert [chunk async for chunk in stream][-1].choices[0].finish_reason

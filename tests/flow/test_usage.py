"""Usage is always known to the meter, and seen by a client only when it asked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.script import Gate, Script, Usage
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.flow.conftest import GatewayOver, chat

CHAT = "/v1/chat/completions"
REPORTED = Usage(prompt_tokens=7, completion_tokens=12, cached_tokens=5)


@pytest.mark.parametrize(
    ("options", "usage_events"),
    [
        (None, 0),
        ({}, 0),
        ({"include_usage": False}, 0),
        ({"include_usage": True}, 1),
        ({"include_usage": True, "continuous_usage_stats": True}, 7),
    ],
)
@pytest.mark.parametrize("route", [CHAT, "/v1/completions"])
async def test_o_str_4_usage_is_shown_only_to_those_who_asked(
    engine: ScriptedEngine, gateway_over: GatewayOver, route: str, options: dict[str, Any] | None, usage_events: int
) -> None:
    engine.script(Script(usage=REPORTED, chunks=5))
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 5, "stream": True, "stream_options": options}
    body |= {"messages": [{"role": "user", "content": "hi"}]} if route == CHAT else {"prompt": "hi"}
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, route, body)
        assert response.is_done
        shown = sum("usage" in event for event in response.data)
        assert shown >= usage_events - (route != CHAT) if usage_events > 1 else shown == usage_events
        assert sum(not event["choices"] for event in response.data) == min(usage_events, 1)
        metrics = await gateway.metrics()
        counted = {kind: metrics.sum("serving_tokens_total", kind=kind) for kind in ("prompt", "cached", "output")}
        assert counted == {"prompt": 7, "cached": 5, "output": 12}


async def test_only_the_usage_option_is_added_to_the_body(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    body = b'{"stream":true, "model":"tiny","messages":[{"role":"user","content":"\\u00e9"}],"seed":9007199254740993 }\n'
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, CHAT, body)).is_done
        assert engine.log.requests[0].body == body[:-2] + b',"stream_options":{"include_usage":true}}'


@pytest.mark.parametrize(("size", "pause_seconds"), [(1, 0.0), (1, 0.002), (3, 0.0), (1000, 0.0)])
async def test_o_str_1_bytes_split_anywhere_pass_unchanged(
    engine: ScriptedEngine, gateway_over: GatewayOver, size: int, pause_seconds: float
) -> None:
    """With a pause after each byte they also arrive one by one: inside a character, a line end and `[DONE]`."""
    stream = 'data: {"choices":[{"index":0,"delta":{"content":"你好🌍é"}}]}\n\n'.encode() * 3
    usage = (
        b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":5}}}\n\n'
    )
    text = stream + usage + b"data: [DONE]\n\n"
    engine.default = Script(
        raw_is="body", raw=[(pause_seconds, text[i : i + size]) for i in range(0, len(text), size)], usage=REPORTED
    )
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, CHAT, chat(stream=True, stream_options={"include_usage": True}))).body == text
        assert (await ask(gateway.url, CHAT, chat(stream=True))).body == stream + b"data: [DONE]\n\n"
        assert (await gateway.metrics()).sum("serving_tokens_total", kind="output") == 24


async def test_o_can_4_who_leaves_early_is_charged_what_was_delivered(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    prompt = "word " * 40
    async with gateway_over({"e1": engine}) as gateway:
        await ask(gateway.url, CHAT, chat(messages=[{"role": "user", "content": prompt}], stream=True))
        known = await gateway.metrics()
        gate = Gate(events=11)
        engine.script(Script(gate=gate, chunks=100))
        async with RawClient(gateway.url) as client:
            await client.send(
                request_bytes(CHAT, chat(messages=[{"role": "user", "content": prompt}], stream=True, max_tokens=100))
            )
            response = await client.read_head()
            received = b""
            async for piece in client.read_body(response):
                received += piece
                if received.count(b"\n\n") == 11:
                    break

        async def problems() -> list[str]:
            metrics = await gateway.metrics()
            output = metrics.sum("serving_tokens_estimated_total", kind="output")
            more = metrics.sum("serving_tokens_total", kind="prompt") - known.sum("serving_tokens_total", kind="prompt")
            prompt_tokens = known.sum("serving_tokens_total", kind="prompt")
            right = output == 10 and abs(more - prompt_tokens) <= 0.1 * prompt_tokens
            return [] if right else [f"output {output}, prompt {more} of {prompt_tokens}"]

        await settled(problems)


async def test_o_can_4_a_stream_that_breaks_off_is_charged_too(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """The engine resets in the middle: its prompt as far as it can be guessed, and what was delivered, marked as an estimate."""
    async with gateway_over({"e1": engine}) as gateway:
        await ask(gateway.url, CHAT, chat(stream=True))
        known = await gateway.metrics()
        engine.script(Script(rst_after=8, chunks=100))
        response = await ask(gateway.url, CHAT, chat(stream=True, max_tokens=100))
        assert not response.is_done
        delivered = sum(bool(event["choices"][0]["delta"].get("content")) for event in response.data if "choices" in event)
        metrics = await gateway.metrics()
        assert metrics.sum("serving_tokens_estimated_total", kind="output") == delivered > 0
        prompt = known.sum("serving_tokens_total", kind="prompt")
        assert metrics.sum("serving_tokens_estimated_total", kind="prompt") == pytest.approx(prompt, rel=0.1)


async def test_o_can_4_leaving_again_and_again_is_charged_each_time(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """What a limit of tokens will count: ten times ninety delivered tokens are nine hundred, within a tenth."""
    async with gateway_over({"e1": engine}) as gateway:
        for _ in range(10):
            engine.script(Script(gate=Gate(events=91), chunks=100))
            async with RawClient(gateway.url) as client:
                await client.send(request_bytes(CHAT, chat(stream=True, max_tokens=100)))
                response = await client.read_head()
                async for _ in client.read_body(response):
                    if response.body.count(b"\n\n") >= 91:
                        break

        async def problems() -> list[str]:
            output = (await gateway.metrics()).sum("serving_tokens_estimated_total", kind="output")
            return [] if output == pytest.approx(900, rel=0.1) else [f"charged {output}"]

        await settled(problems)


async def test_o_can_4_an_explicit_zero_stays_zero(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(usage=Usage(prompt_tokens=7, completion_tokens=0), chunks=2))
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, CHAT, chat(stream=True))).is_done
        metrics = await gateway.metrics()
        assert metrics.sum("serving_tokens_total", kind="output") == 0
        assert metrics.sum("serving_tokens_estimated_total") == 0


@pytest.mark.parametrize("name", ["include_usage", "continuous_usage_stats"])
@pytest.mark.parametrize("value", ["false", "off", "0", "true", 1, 0, 1.0, [], {}])
async def test_a_stream_option_that_an_engine_may_read_otherwise_is_refused(
    engine: ScriptedEngine, gateway_over: GatewayOver, name: str, value: Any
) -> None:
    """vLLM takes the text "false" for false, so that its stream would tell no usage although one seems to be asked for."""
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True, stream_options={name: value}))
        assert response.status == 400
        assert response.json["error"]["param"] == f"stream_options.{name}"
        assert not engine.log.requests
        assert (await ask(gateway.url, CHAT, chat(stream=True, stream_options={name: None}))).is_done


@pytest.mark.parametrize("route", [CHAT, "/v1/completions"])
async def test_o_can_4_how_many_tokens_an_event_holds_is_not_the_clients_choice(
    engine: ScriptedEngine, gateway_over: GatewayOver, route: str
) -> None:
    """A thousand tokens in one event would be charged as one, and others' events as a thousand."""
    body = chat(stream=True, stream_interval=1000, prompt="hi")
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, route, body)
        assert response.is_done
        assert response.header("x-serving-dropped-fields") == "stream_interval"
        assert "stream_interval" not in engine.log.requests[0].json


@pytest.mark.parametrize("pieces", [1, 40])
async def test_usage_is_known_however_much_follows_it(engine: ScriptedEngine, gateway_over: GatewayOver, pieces: int) -> None:
    """With `return_token_ids` vLLM writes the prompt's token ids behind the usage: as long as the client's prompt is."""
    usage = b'"usage":{"prompt_tokens":70000,"total_tokens":70001,"completion_tokens":1}'
    ids = b"1234567," * 70_000
    text = b'{"id":"x","choices":[{"message":{"content":"hi"}}],%s,"prompt_token_ids":[%s1]}' % (usage, ids)
    size = -(-len(text) // pieces)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text)
    raw = [(0.0, head), *((0.002, text[start : start + size]) for start in range(0, len(text), size))]
    engine.script(Script(raw=raw, usage=Usage(prompt_tokens=70000, completion_tokens=1)))
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, chat(return_token_ids=True))
        assert response.body == text
        metrics = await gateway.metrics()
        assert metrics.sum("serving_tokens_total", kind="prompt") == 70000
        assert metrics.sum("serving_tokens_total", kind="output") == 1
        assert metrics.sum("serving_tokens_estimated_total") == 0

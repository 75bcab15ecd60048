"""The reasoning's text under the name that clients know, in streams and whole answers, through the whole gateway."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.doubles.conservation import Expectation
from tests.doubles.raw_client import HangUp, RawClient, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, chat

CHAT = "/v1/chat/completions"
TRAP = 'He said "reasoning":"no" and {"delta":{"reasoning":"no"}} — 你好🌍'
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": [choice]}


def stream(*names: str) -> bytes:
    """What a reasoning model sends, its reasoning under these names."""
    events = [
        chunk({"role": "assistant", "content": ""}),
        chunk(dict.fromkeys(names, TRAP)),
        chunk(dict.fromkeys(names, " 42")),
        chunk({"content": TRAP}),
        chunk({"content": "."}, "stop"),
        {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": [], "usage": USAGE},
    ]
    return b"".join(b"data: " + dump(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def whole(*names: str, text: str = TRAP) -> bytes:
    message = {"role": "assistant", "content": TRAP} | dict.fromkeys(names, text)
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return dump({"id": "c1", "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice], "usage": USAGE})


def expected(**tokens: int) -> Expectation:
    return Expectation(tokens={kind: (count, count) for kind, count in tokens.items()})


def named(field: str) -> tuple[str, ...]:
    return ("reasoning_content", "reasoning") if field == "both" else (field,)


COUNTED = expected(prompt=7, output=5)
FIELDS = pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "both"])


@FIELDS
@pytest.mark.parametrize("pieces", [1, 3, 40, 2000])
async def test_a_stream(engine: ScriptedEngine, gateway_over: GatewayOver, field: str, pieces: int) -> None:
    sent = stream("reasoning")
    step = -(-len(sent) // pieces)
    engine.script(Script(raw=[(0.0, sent[at : at + step]) for at in range(0, len(sent), step)], raw_is="body"))
    async with gateway_over({"e1": engine}, expected=COUNTED, models={"tiny": {"reasoning_field": field}}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True, stream_options={"include_usage": True}))
        assert response.body == stream(*named(field))


@FIELDS
async def test_a_stream_that_comes_event_by_event(engine: ScriptedEngine, gateway_over: GatewayOver, field: str) -> None:
    """As engines send it; ordinary events take a way of their own through the gateway."""
    first, *events = stream("reasoning").split(b"\n\n")[:-1]
    reasoned = events[0]
    *middle, usage, done = events
    sent = [first, *middle, *[reasoned] * 20, usage, done]
    engine.script(Script(raw=[(0.002, event + b"\n\n") for event in sent], raw_is="body"))
    async with gateway_over({"e1": engine}, expected=COUNTED, models={"tiny": {"reasoning_field": field}}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True))
        wanted = stream(*named(field)).split(b"\n\n")
        assert response.events == [*wanted[:5], *[wanted[1]] * 20, done]


@FIELDS
async def test_a_stream_whose_usage_is_hidden(engine: ScriptedEngine, gateway_over: GatewayOver, field: str) -> None:
    sent = stream("reasoning")
    engine.script(Script(raw=[(0.0, sent[at : at + 50]) for at in range(0, len(sent), 50)], raw_is="body"))
    async with gateway_over({"e1": engine}, expected=COUNTED, models={"tiny": {"reasoning_field": field}}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True))
        *events, _, done = stream(*named(field)).split(b"\n\n")[:-1]
        assert response.events == [*events, done]


@FIELDS
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("size", [1, 100_000])
async def test_a_whole_answer(engine: ScriptedEngine, gateway_over: GatewayOver, field: str, framing: Any, size: int) -> None:
    text = TRAP * size if size == 1 else "ä" * size
    engine.script(Script(body=whole("reasoning", text=text), framing=framing))
    async with gateway_over({"e1": engine}, expected=COUNTED, models={"tiny": {"reasoning_field": field}}) as gateway:
        response = await ask(gateway.url, CHAT, chat())
        assert response.end == "complete"
        assert response.body == whole(*named(field), text=text)


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_client_of_http_1_0_gets_all_of_it(engine: ScriptedEngine, gateway_over: GatewayOver, size: int) -> None:
    engine.script(Script(body=whole("reasoning", text="ä" * size)))
    request = request_bytes(CHAT, chat(), headers={"Connection": "keep-alive"}).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    models = {"tiny": {"reasoning_field": "both"}}
    async with gateway_over({"e1": engine}, expected=COUNTED, models=models) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(request)
            response = await client.read(method="POST")
            assert response.body == whole(*named("both"), text="ä" * size)


async def test_a_whole_answer_that_breaks_off_never_looks_whole(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(body=whole("reasoning", text="x" * 100_000), truncate_body_bytes=90_000))
    models = {"tiny": {"reasoning_field": "reasoning_content"}}
    any_tokens = Expectation(tokens=dict.fromkeys(("prompt", "cached", "output"), (0, 1000)))
    async with gateway_over({"e1": engine}, expected=any_tokens, models=models) as gateway:
        with pytest.raises(HangUp):
            await ask(gateway.url, CHAT, chat())


async def test_a_stream_that_breaks_off_says_so(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    sent = stream("reasoning")
    at = sent.index(b" 42")
    engine.script(Script(raw=[(0.0, sent[:at])], raw_is="body", close_after=1))
    models = {"tiny": {"reasoning_field": "reasoning_content"}}
    any_tokens = Expectation(tokens=dict.fromkeys(("prompt", "cached", "output"), (0, 1000)))
    async with gateway_over({"e1": engine}, expected=any_tokens, models=models) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True))
        assert not response.is_done
        assert response.events[:2] == stream("reasoning_content").split(b"\n\n")[:2]
        assert b'"error"' in response.events[-1]


async def test_other_routes_keep_their_bytes(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    body = whole("reasoning")
    engine.script(Script(body=body))
    async with gateway_over({"e1": engine}, expected=COUNTED, models={"tiny": {"reasoning_field": "both"}}) as gateway:
        response = await ask(gateway.url, "/v1/completions", {"model": "tiny", "prompt": "hi"})
        assert response.body == body
        assert response.header("content-length") == str(len(body))


async def test_a_name_of_its_own_for_clients_that_want_the_other_field(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    models = {
        "tiny": {"reasoning_field": "both"},
        "theirs": {"alias_of": "tiny", "reasoning_field": "reasoning_content"},
        "same": {"alias_of": "tiny"},
        "ours": {"alias_of": "tiny", "reasoning_field": "reasoning"},
    }
    engine.default = Script(body=whole("reasoning"))
    async with gateway_over({"e1": engine}, expected=expected(prompt=28, output=20), models=models) as gateway:
        for model, field in (("tiny", "both"), ("theirs", "reasoning_content"), ("same", "both"), ("ours", "reasoning")):
            assert (await ask(gateway.url, CHAT, chat(model=model))).body == whole(*named(field))


@pytest.mark.parametrize("field", ["reasoning_content", "both"])
async def test_the_openai_client_finds_it(engine: ScriptedEngine, gateway_over: GatewayOver, field: str) -> None:
    engine.script(Script(raw=[(0.0, stream("reasoning"))], raw_is="body"), Script(body=whole("reasoning")))
    models = {"tiny": {"reasoning_field": field}}
    async with gateway_over({"e1": engine}, expected=expected(prompt=14, output=10), models=models) as gateway:
        stream_text, whole_text = await _read_with_openai(gateway)
    assert (stream_text, whole_text) == (TRAP + " 42", TRAP)


async def _read_with_openai(gateway: RunningGateway) -> tuple[str, str]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
        chunks = await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True)
        told = [getattr(c.choices[0].delta, "reasoning_content", None) or "" async for c in chunks]
        answer = await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
        return "".join(told), str(answer.choices[0].message.reasoning_content)  # type: ignore[attr-defined]

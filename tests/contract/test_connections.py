"""What the gateway relies on in an engine's connections: reuse, the early head, and abort when a peer leaves."""

from __future__ import annotations

import json
import time
from typing import Any, Literal

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.conftest import AnyEngine
from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.settling import settled

CHAT = "/v1/chat/completions"
LONG_TOKENS = 4000


async def gauge(engine: AnyEngine, name: str) -> float:
    response = await ask(engine.url, "/metrics")
    assert (response.header("content-type") or "").startswith("text/plain; version=")
    families = text_string_to_metric_families(response.body.decode())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    assert samples, f"no {name} in /metrics"
    assert all(sample.labels["model_name"] == engine.model for sample in samples)
    return sum(sample.value for sample in samples)


async def is_running(engine: AnyEngine, count: int) -> None:
    async def problems() -> list[str]:
        running = await gauge(engine, "vllm:num_requests_running")
        waiting = await gauge(engine, "vllm:num_requests_waiting")
        return [] if (running, waiting) == (count, 0) else [f"running {running}, waiting {waiting}, not {count} and 0"]

    await settled(problems)


async def tokens(engine: AnyEngine) -> float:
    """That it has generated so far."""
    return await gauge(engine, "vllm:generation_tokens_total")


def long_answer(engine: AnyEngine, **more: Any) -> dict[str, Any]:
    return {"model": engine.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": LONG_TOKENS, **more}


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_leaving_a_whole_answer_aborts_it(any_engine: AnyEngine, how: Literal["fin", "rst"]) -> None:
    before = await tokens(any_engine)
    async with RawClient(any_engine.url) as client:
        await client.send(request_bytes(CHAT, long_answer(any_engine)))
        await is_running(any_engine, 1)
        client.hang_up(how)
        await is_running(any_engine, 0)
    assert await tokens(any_engine) - before < LONG_TOKENS, "it has not run to its end"


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_leaving_a_stream_aborts_it(any_engine: AnyEngine, how: Literal["fin", "rst"]) -> None:
    before = await tokens(any_engine)
    async with RawClient(any_engine.url) as client:
        await client.send(request_bytes(CHAT, long_answer(any_engine, stream=True)))
        body = client.read_body(await client.read_head())
        for _ in range(3):
            await anext(body)
        await body.aclose()
        await is_running(any_engine, 1)
        client.hang_up(how)
        await is_running(any_engine, 0)
    assert await tokens(any_engine) - before < LONG_TOKENS, "it has not run to its end"


async def test_connection_is_reused(any_engine: AnyEngine) -> None:
    short = long_answer(any_engine) | {"max_tokens": 2}
    async with RawClient(any_engine.url) as client:
        for stream in (False, True, False):
            response = await client.ask(CHAT, short | {"stream": stream})
            assert (response.status, response.end, client.unread) == (200, "complete", b"")
            assert not response.all("connection")
        assert (await client.ask("/nope")).status == 404
        assert (await client.ask(CHAT, b"{")).status == 400
        assert (await client.ask("/health")).status == 200


async def test_connection_close_is_honoured(any_engine: AnyEngine) -> None:
    async with RawClient(any_engine.url) as client:
        response = await client.ask("/v1/models", headers={"Connection": "close"})
        assert response.end == "complete" and response.header("connection") == "close"
        assert await client.closed_by_peer() == "fin"


async def test_idle_connection_is_closed(any_engine: AnyEngine) -> None:
    async with RawClient(any_engine.url) as client:
        began = time.monotonic()
        await client.ask("/health")
        assert await client.closed_by_peer() == "fin"
        assert any_engine.idle_close_seconds * 0.8 < time.monotonic() - began


async def test_stream_head_comes_before_the_first_event(any_engine: AnyEngine) -> None:
    """A 200 says nothing yet: the prompt is not even computed when it is sent."""
    async with RawClient(any_engine.url) as client:
        await client.send(request_bytes(CHAT, long_answer(any_engine, stream=True) | {"max_tokens": 1}))
        response = await client.read_head()
        assert response.status == 200
        first = await anext(client.read_body(response))
        assert json.loads(first.removeprefix(b"data: "))["choices"][0]["delta"]["role"] == "assistant"
        assert response.pieces[0][0] >= response.head_seconds


async def test_chunked_request_and_expect(any_engine: AnyEngine) -> None:
    content = json.dumps(long_answer(any_engine) | {"max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked", "Expect": "100-continue"}
    async with RawClient(any_engine.url) as client:
        await client.send(request_bytes(CHAT, method="POST", headers=headers))
        await client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content))
        response = await client.read()
    assert response.status == 200 and response.json["usage"]["completion_tokens"] == 1

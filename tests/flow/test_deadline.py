"""The time that the gateway gives any request: `relay.request_timeout_seconds`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS, become
from tests.flow.conftest import GatewayOver, chat

CHAT = "/v1/chat/completions"
SHORT = {"request_timeout_seconds": 0.2}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.engines.relay.SWEEP_SECONDS", 0.01)


@pytest.mark.parametrize("stream", [False, True])
async def test_no_answer_within_the_time_is_504(engine: ScriptedEngine, gateway_over: GatewayOver, stream: bool) -> None:
    engine.default = Script(blackhole=True)
    async with gateway_over({"e1": engine}, relay=SHORT) as gateway:
        answer = await ask(gateway.url, CHAT, chat(stream=stream))
        assert (answer.status, answer.json["error"]["code"]) == (504, "deadline_exceeded")
        assert "0.2 s" in answer.json["error"]["message"]
        async with asyncio.timeout(HANG_SECONDS):
            await engine.log.requests[0].peer_closed.wait()
        metrics = await gateway.metrics()
        assert metrics.sum("serving_requests_total", outcome="deadline_exceeded") == 1
        assert metrics.sum("serving_engine_attempts_total", result="cancelled") == 1


async def test_a_stream_that_takes_too_long_says_so(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.default = Script(itl_seconds=0.05)
    async with gateway_over({"e1": engine}, relay={"request_timeout_seconds": 2.0}) as gateway:
        answer = await ask(gateway.url, CHAT, chat(stream=True, max_tokens=2000))
        assert (answer.status, answer.data[-1]["error"]["code"], answer.is_done) == (200, "deadline_exceeded", False)
        async with asyncio.timeout(HANG_SECONDS):
            await engine.log.requests[0].peer_closed.wait()
        assert (await gateway.metrics()).sum("serving_requests_total", outcome="deadline_exceeded") == 1


async def test_a_client_that_takes_its_time_gains_none(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """The engine's connection is closed although it is the client that keeps the answer waiting."""
    engine.default = Script(raw_is="body", raw=[(0.0, b"data: " + b"x" * 65536 + b"\n\n")] * 400)
    async with gateway_over({"e1": engine}, relay={"request_timeout_seconds": 0.5}) as gateway:
        async with RawClient(gateway.url, receive_buffer_bytes=4096) as client:
            await client.send(request_bytes(CHAT, chat(stream=True)))
            record = await engine.reached("event:1")
            async with asyncio.timeout(HANG_SECONDS):
                await record.peer_closed.wait()


async def test_there_is_no_retry_when_the_time_is_over(
    start_engine: Callable[..., Awaitable[ScriptedEngine]], gateway_over: GatewayOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.engines.relay.SWEEP_SECONDS", 3600)
    gate = Gate()
    engines = {name: await start_engine(default=Script(status=500, gate=gate)) for name in ("e1", "e2")}
    async with gateway_over(engines, relay={"request_timeout_seconds": 2.0}) as gateway:
        asking = asyncio.create_task(ask(gateway.url, CHAT, chat()))
        await become(lambda: any(engine.log.requests for engine in engines.values()))
        await asyncio.sleep(2.1)
        gate.open_all()
        assert (await asking).status == 502
        assert sum(len(engine.log.requests) for engine in engines.values()) == 1
        assert (await gateway.metrics()).sum("serving_retries_denied_total", reason="deadline") == 1

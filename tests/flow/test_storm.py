"""Many requests of every kind, over engines that fail, die and come back, by clients that leave: nothing may be left over."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from serving.core.outcomes import AttemptResult
from tests.doubles.conservation import Expectation
from tests.doubles.raw_client import HangUp, RawClient, RawResponse, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, chat

CHAT = "/v1/chat/completions"
SCRIPTS = [
    *[Script(chunks=8)] * 8,
    Script(chunks=20, itl_seconds=0.002),
    Script(ttft_seconds=0.05),
    Script(status=500),
    Script(status=503),
    Script(status=400),
    Script(close_after=0),
    Script(close_after=4),
    Script(rst_after=0, head_at_arrival=False),
    Script(rst_after=3),
    Script(error_after=3),
    Script(stall_after=2),
    Script(blackhole=True),
    Script(truncate_body_bytes=30),
    Script(ending="fin"),
    Script(raw_is="response", raw=((0.0, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n"),), ending="fin"),
]
"""What an engine does with a request; one is drawn for each."""
ACTIONS = ["read"] * 7 + ["leave at once", "leave after the head", "leave in the middle"]


def check(response: RawResponse, stream: bool) -> None:
    """An answer is whole, or says that it is not."""
    if response.status != 200:
        assert response.end == "complete"
        assert set(response.json["error"]) == {"message", "type", "param", "code"}
        return
    if stream and response.end == "complete" and not response.is_done:
        assert response.events[-1].startswith(b'data: {"error"'), response.body[-300:]
    if not stream and response.end == "complete":
        assert response.json["usage"]


async def one_request(gateway: RunningGateway, chance: random.Random) -> None:
    stream = chance.random() < 0.6
    action = chance.choice(ACTIONS)
    with contextlib.suppress(HangUp):
        async with RawClient(gateway.url) as client:
            body = chance.choice(
                [chat(stream=stream, stream_options={"include_usage": True} if stream else None)] * 9 + [{"model": "tiny"}]
            )
            await client.send(request_bytes(CHAT, body))
            if action == "leave at once":
                client.hang_up(chance.choice(["fin", "rst"]))
                return
            response = await client.read_head()
            if action == "leave after the head":
                return
            async for _ in client.read_body(response):
                if action == "leave in the middle":
                    return
            check(response, stream)


async def storm(
    gateway: RunningGateway, engines: list[ScriptedEngine], chance: random.Random, requests: int, at_once: int
) -> None:
    for engine in engines:
        engine.choose = lambda _: chance.choice(SCRIPTS)
    places = asyncio.Semaphore(at_once)

    async def queued() -> None:
        async with places:
            await one_request(gateway, chance)

    over = asyncio.Event()

    async def pause(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await over.wait()

    async def kills() -> None:
        while not over.is_set():
            for engine in engines:
                await pause(chance.uniform(0.1, 0.4))
                await engine.stop(how="rst")
                await pause(chance.uniform(0.0, 0.2))
                await engine.start()

    killing = asyncio.create_task(kills())
    try:
        await asyncio.gather(*(queued() for _ in range(requests)))
    finally:
        over.set()
        await killing


KILLED = Expectation(unsure_results=(AttemptResult.STALE, AttemptResult.BROKEN, AttemptResult.CANCELLED))
"""An engine that is killed may take a request to its grave unread, and a client may leave before its request is sent on."""
FAST = {"first_byte_timeout_seconds": 0.5, "idle_timeout_seconds": 0.5}
PROBE = {"period_seconds": 0.1}


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_short_storm(gateway_over: GatewayOver, seed: int) -> None:
    async with ScriptedEngine() as first, ScriptedEngine() as second:
        async with gateway_over({"e1": first, "e2": second}, expected=KILLED, relay=FAST, probe=PROBE) as gateway:
            await storm(gateway, [first, second], random.Random(seed), requests=500, at_once=40)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 16))
async def test_a_long_storm(gateway_over: GatewayOver, seed: int) -> None:
    async with ScriptedEngine() as first, ScriptedEngine() as second:
        async with gateway_over({"e1": first, "e2": second}, expected=KILLED, relay=FAST, probe=PROBE) as gateway:
            await storm(gateway, [first, second], random.Random(seed), requests=5000, at_once=60)

"""A client that leaves a real vLLM, in every phase: the engine stops working for it, and nothing of it is left anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import pytest

from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.real_engine import RealEngine
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.settling import settled
from tests.flow.surfaces import CHAT, GENERATING, MESSAGES, RESPONSES, asking

pytestmark = [pytest.mark.engine, pytest.mark.parametrize("engine_url", ["real"], indirect=True)]
KEY = {"Authorization": "Bearer sk-test"}
LONG = 3000
"""Tokens; far more than are made before the client leaves."""
HOW = pytest.mark.parametrize("how", ["fin", "rst"])
SURFACE = pytest.mark.parametrize("path", GENERATING)
How = Literal["fin", "rst"]


def long_request(path: str, *, stream: bool, prompt: str = "hi") -> bytes:
    fields: dict[str, Any] = {"max_tokens": LONG, "stream": stream}
    if path == RESPONSES:
        fields |= {"input": prompt}
    elif path in (CHAT, MESSAGES):
        fields |= {"messages": [{"role": "user", "content": prompt}]}
    else:
        fields |= {"prompt": prompt}
    fields |= {} if path in (RESPONSES, MESSAGES) else {"ignore_eos": True}
    return request_bytes(path, asking(path, **fields), headers=KEY)


async def engine_counts(url: str) -> tuple[float, float]:
    metrics = MetricValues((await ask(url, "/metrics")).body.decode())
    return metrics.sum("vllm:num_requests_running"), metrics.sum("vllm:num_requests_waiting")


async def engine_is(url: str, right: Callable[[float, float], bool], within_seconds: float = 20.0) -> None:
    async def problems() -> list[str]:
        running, waiting = await engine_counts(url)
        return [] if right(running, waiting) else [f"running {running}, waiting {waiting}"]

    await settled(problems, within_seconds=within_seconds)


async def all_is_back(engine_url: str, gateway: RunningGateway, cancelled: int) -> None:
    """The engine works for nobody, and the gateway counts each of them as a client that left."""

    async def problems() -> list[str]:
        metrics = await gateway.metrics()
        ended = metrics.sum("serving_requests_total"), metrics.sum("serving_requests_total", outcome="client_cancelled")
        found = {name: metrics.sum(name) for name in ("serving_open_leases", "serving_in_flight_requests")}
        right = ended == (cancelled, cancelled) and not any(found.values())
        return [] if right and not gateway.app.relay.open_exchanges else [f"ended, cancelled: {ended}, {found}"]

    await engine_is(engine_url, lambda running, waiting: running == waiting == 0, within_seconds=5.0)
    await settled(problems)


@HOW
async def test_in_the_middle_of_its_body(engine_url: str, gateway: RunningGateway, how: How) -> None:
    async with RawClient(gateway.url) as client:
        await client.send(long_request(CHAT, stream=True)[:-5])

        async def not_arrived() -> list[str]:
            return [] if gateway.arrived else ["not there yet"]

        await settled(not_arrived)
        client.hang_up(how)
    await all_is_back(engine_url, gateway, 1)


@HOW
@SURFACE
async def test_while_a_whole_answer_is_made(engine_url: str, gateway: RunningGateway, how: How, path: str) -> None:
    async with RawClient(gateway.url) as client:
        await client.send(long_request(path, stream=False))
        await engine_is(engine_url, lambda running, _: running == 1)
        client.hang_up(how)
    await all_is_back(engine_url, gateway, 1)


@HOW
@SURFACE
async def test_before_the_first_token(engine_url: str, gateway: RunningGateway, how: How, path: str) -> None:
    """The prompt is long enough that the client is gone while it is read."""
    async with RawClient(gateway.url) as client:
        await client.send(long_request(path, stream=True, prompt=f"{path} {how} " * 90))

        async def not_sent_on() -> list[str]:
            return [] if gateway.app.relay.open_exchanges else ["not with the engine yet"]

        await settled(not_sent_on)
        client.hang_up(how)
    await all_is_back(engine_url, gateway, 1)


@HOW
@SURFACE
async def test_in_the_middle_of_a_stream(engine_url: str, gateway: RunningGateway, how: How, path: str) -> None:
    async with RawClient(gateway.url) as client:
        await client.send(long_request(path, stream=True))
        response = await client.read_head()
        assert response.status == 200, response
        body = client.read_body(response)
        while response.body.count(b"\n\n") < 8:
            await anext(body)
        await body.aclose()
        client.hang_up(how)
    await all_is_back(engine_url, gateway, 1)


@HOW
async def test_many_at_once_also_those_that_wait(
    engine_url: str, gateway: RunningGateway, real_engine: RealEngine, how: How
) -> None:
    """More than the engine runs at a time would need hundreds of its slots; its own queue is passed through on the way in."""
    clients = [await RawClient(gateway.url).connect() for _ in range(60)]
    for number, client in enumerate(clients):
        await client.send(long_request(GENERATING[number % 4], stream=number % 3 > 0, prompt=f"{number} " * 100))
    await engine_is(engine_url, lambda running, waiting: running + waiting >= 30)
    for number, client in enumerate(clients):
        client.hang_up(how)
        if number % 20 == 0:
            await asyncio.sleep(0.01)
    await all_is_back(engine_url, gateway, len(clients))


async def test_after_the_last_token_nothing_is_cancelled(engine_url: str, gateway: RunningGateway) -> None:
    async with RawClient(gateway.url) as client:
        await client.send(request_bytes(CHAT, asking(CHAT, stream=True), headers=KEY))
        response = await client.read_head()
        async for piece in client.read_body(response):
            if b"[DONE]" in piece:
                break
    await engine_is(engine_url, lambda running, waiting: running == waiting == 0)
    metrics = await gateway.metrics()
    assert metrics.sum("serving_requests_total", outcome="ok") == metrics.sum("serving_requests_total") == 1

"""O-CAN-1: the end of a client that waits for a whole answer reaches the engine, and nobody is asked in its place."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.doubles.raw_client import RawClient, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS, settled
from tests.flow.conftest import GatewayOver, all_ready
from tests.flow.surfaces import GENERATING, TURNS, asking


async def cancelled_once(gateway: RunningGateway, other: ScriptedEngine) -> None:
    async def problems() -> list[str]:
        metrics = await gateway.metrics()
        outcomes = {s.labels["outcome"]: s.value for s in metrics.select("serving_requests_total") if s.value}
        in_flight = metrics.sum("serving_in_flight_requests")
        return [] if (outcomes, in_flight) == ({"client_cancelled": 1}, 0) else [f"{outcomes}, {in_flight} in flight"]

    await settled(problems)
    assert not other.log.requests, "another engine was asked for nobody"


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_o_can_1_leaving_a_whole_answer_closes_the_engines_connection(
    gateway_over: GatewayOver, path: str, how: str
) -> None:
    async with ScriptedEngine(default=Script(ttft_seconds=30.0)) as first, ScriptedEngine() as second:
        async with gateway_over({"e1": first, "e2": second}) as gateway:
            async with RawClient(gateway.url) as client:
                await client.send(request_bytes(path, asking(path)))
                record = await first.request_arrived(1)
                client.hang_up("fin" if how == "fin" else "rst")
                async with asyncio.timeout(HANG_SECONDS):
                    await record.peer_closed.wait()
            await cancelled_once(gateway, second)
            assert not record.written


async def test_o_can_1_a_client_that_closes_its_pool_is_gone(gateway_over: GatewayOver) -> None:
    """An SDK on a kept connection, whose user gives up."""
    async with ScriptedEngine(default=Script(ttft_seconds=30.0)) as first, ScriptedEngine() as second:
        async with gateway_over({"e1": first, "e2": second}) as gateway:
            await all_ready(gateway)
            client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0)
            assert (await client.models.list()).data
            asking_now = asyncio.create_task(client.chat.completions.create(model="tiny", messages=TURNS))
            record = await first.request_arrived(1)
            asking_now.cancel()
            await asyncio.wait({asking_now})
            await client.close()
            async with asyncio.timeout(HANG_SECONDS):
                await record.peer_closed.wait()
            await cancelled_once(gateway, second)

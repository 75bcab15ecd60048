"""Two gateways in front of one engine with slots: neither takes the engine for its own."""

from __future__ import annotations

import asyncio
from typing import Any

from serving.settings import Settings
from tests.doubles.raw_client import RawClient, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.settling import settled
from tests.doubles.simulated_engine import simulated_engine
from tests.flow.conftest import all_ready, chat

CHAT = "/v1/chat/completions"


async def begun(client: RawClient) -> None:
    await client.send(request_bytes(CHAT, chat(stream=True, max_tokens=4000)))


async def test_a_gateway_leaves_the_slots_that_another_one_uses() -> None:
    async with simulated_engine(step_seconds=0.05) as engine:
        endpoint: dict[str, Any] = {"name": "e1", "url": engine.url, "model": "tiny", "slots": 4}
        settings = Settings.model_validate({"endpoints": [endpoint], "engine_load": {"period_seconds": 0.05}})
        async with RunningGateway(settings) as first, RunningGateway(settings) as second:
            for gateway in (first, second):
                await all_ready(gateway)
            clients = [await RawClient(gateway.url).connect() for gateway in [first] * 3 + [second] * 3]
            for client in clients[:3]:
                await begun(client)
                await client.read_head()

            async def left(expected: int) -> list[str]:
                found = second.app.slots["tiny"].capacity
                return [] if found == expected else [f"{found} slots, not {expected}"]

            await settled(lambda: left(1))
            for client in clients[3:]:
                await begun(client)
            await clients[3].read_head()
            queue = second.app.slots["tiny"].queue

            async def waits() -> list[str]:
                # One that begins while the engine is read may pass the number.
                return [] if queue.requests >= 1 else ["nobody waits"]

            await settled(waits)
            await asyncio.sleep(0.3)
            assert queue.requests >= 1 and engine.models[0].running <= 5
            for client in clients[:3]:
                client.hang_up()
            for client in clients[4:]:
                await client.read_head()
            assert engine.models[0].running <= 4
            for client in clients[3:]:
                client.hang_up()

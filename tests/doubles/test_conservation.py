"""The conservation check passes over a healthy flow and finds what is wrong in a false one."""

from __future__ import annotations

import asyncio
import socket

import pytest

from serving.settings import EndpointSettings, LoggingSettings, ProbeSettings, Settings
from tests.doubles.conservation import Expectation, Resources, conserved
from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def settings_for(engine: ScriptedEngine) -> Settings:
    return Settings(
        endpoints=(EndpointSettings(name="e1", url=engine.url, model="tiny"),),
        logging=LoggingSettings(access=False),
        probe=ProbeSettings(period_seconds=0.05),
    )


async def is_ready(gateway: RunningGateway) -> None:
    async def problems() -> list[str]:
        return [] if (await ask(gateway.url, "/readyz")).status == 200 else ["the gateway is not ready"]

    await settled(problems)


async def test_healthy_flow(engine: ScriptedEngine) -> None:
    async with conserved(settings_for(engine), {"e1": engine}) as gateway:
        await is_ready(gateway)
        for stream, options in ((False, None), (True, {"include_usage": True})):
            response = await ask(gateway.url, CHAT, BODY | {"stream": stream, "stream_options": options})
            assert response.status == 200 and response.end == "complete"
        assert (await ask(gateway.url, CHAT, b"{")).status == 400
    assert [record.outcome for record in engine.log.requests] == ["completed", "completed"]


async def test_client_that_leaves(engine: ScriptedEngine) -> None:
    engine.script(Script(gate=Gate()))
    async with conserved(settings_for(engine), {"e1": engine}) as gateway:
        await is_ready(gateway)
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(CHAT, BODY))
            record = await engine.reached("held")
        await record.peer_closed.wait()
    assert record.outcome == "peer_closed"


async def test_a_false_count_is_found(engine: ScriptedEngine) -> None:
    with pytest.raises(AssertionError) as caught:
        async with conserved(settings_for(engine), {"e1": engine}, within_seconds=0.1) as gateway:
            await is_ready(gateway)
            await ask(gateway.url, CHAT, BODY)
            await ask(engine.url, CHAT, BODY)
            gateway.arrived.append(("POST", CHAT))
    message = str(caught.value)
    assert "client requests 2 ≠ final outcomes 1" in message
    assert "e1: attempts 1 − unreached 0 ≠ requests 2" in message
    assert "prompt tokens metered 21, scripted 42" in message


async def test_known_tokens_are_compared_exactly(engine: ScriptedEngine) -> None:
    expected = Expectation(tokens={"output": (5, 5)})
    with pytest.raises(AssertionError, match="output tokens metered 4, scripted 5"):
        async with conserved(settings_for(engine), {"e1": engine}, expected, within_seconds=0.1) as gateway:
            await is_ready(gateway)
            await ask(gateway.url, CHAT, BODY)


async def test_leftovers_are_found() -> None:
    resources = Resources()
    assert await resources.problems() == []
    left = asyncio.create_task(asyncio.Event().wait(), name="forgotten")
    with socket.create_server(("127.0.0.1", 0)):
        task, descriptors = await resources.problems()
    assert "forgotten" in task and "LISTEN" in descriptors
    left.cancel()
    await asyncio.wait({left})
    assert await resources.problems() == []

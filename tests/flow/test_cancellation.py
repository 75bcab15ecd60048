"""A client that leaves is known to the engine at once, in every phase; all that the request held comes back."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Gate, Script, Usage
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS, settled
from tests.flow.conftest import GatewayOver, all_ready, chat, settings_over

CHAT = "/v1/chat/completions"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_first_byte_closes_the_engines_connection(
    engine: ScriptedEngine, gateway_over: GatewayOver, how: Literal["fin", "rst"], stream: bool
) -> None:
    engine.default = Script(blackhole=True)
    async with gateway_over({"e1": engine}) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(CHAT, chat(stream=stream)))
            record = await engine.request_arrived(1)
            client.hang_up(how)
            async with asyncio.timeout(HANG_SECONDS):
                await record.peer_closed.wait()
        assert len(engine.log.requests) == 1

        async def problems() -> list[str]:
            cancelled = (await gateway.metrics()).sum("serving_requests_total", outcome="client_cancelled")
            return [] if cancelled == 1 else [f"cancelled {cancelled}"]

        await settled(problems)


async def test_leaving_in_mid_stream_closes_the_engines_connection(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    gate = Gate(events=3)
    engine.script(Script(gate=gate, chunks=50))
    async with gateway_over({"e1": engine}) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(CHAT, chat(stream=True, max_tokens=50)))
            response = await client.read_head()
            pieces = client.read_body(response)
            await anext(pieces)
            await engine.reached("held:4")
            await pieces.aclose()
        record = engine.log.requests[0]
        async with asyncio.timeout(HANG_SECONDS):
            await record.peer_closed.wait()


async def test_leaving_while_the_body_is_sent_reaches_no_engine(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(
                request_bytes(CHAT, method="POST", headers={"Content-Type": "application/json", "Content-Length": "100"}) + b"{"
            )

            async def not_arrived() -> list[str]:
                return [] if gateway.arrived else ["the request is not there yet"]

            await settled(not_arrived)
        assert not engine.log.requests


async def test_the_lease_is_back_before_the_last_byte(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """With room for one request, the next one on the same connection is never refused."""
    exits = [
        Script(),
        Script(status=400),
        Script(status=500),
        Script(status=503),
        Script(close_after=2),
        Script(rst_after=0, head_at_arrival=False),
        Script(error_after=2),
    ]
    async with gateway_over({"e1": engine}, limits={"in_flight": 1}) as gateway, RawClient(gateway.url) as client:
        for script in exits * 5:
            for stream in (True, False):
                if not stream and (script.close_after or script.error_after):
                    continue
                engine.script(script)
                await client.ask(CHAT, chat(stream=stream))
                assert (await client.ask(CHAT, chat())).status == 200


async def test_a_stream_gives_its_lease_back_with_done(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """An engine that keeps the connection open after `[DONE]` holds no lease."""
    gate = Gate(events=2)
    engine.script(
        Script(
            gate=gate,
            raw_is="body",
            raw=[(0.0, b'data: {"choices":[{"index":0}]}\n\n'), (0.0, b"data: [DONE]\n\n"), (0.0, b"\n")],
        )
    )
    async with gateway_over({"e1": engine}, limits={"in_flight": 1}) as gateway, RawClient(gateway.url) as client:
        await client.send(request_bytes(CHAT, chat(stream=True)))
        response = await client.read_head()
        async for piece in client.read_body(response):
            if b"[DONE]" in piece:
                assert (await ask(gateway.url, CHAT, chat())).status == 200
                gate.open_all()


async def test_leaving_after_done_is_no_cancellation(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """Clients leave when they have read `[DONE]`, whatever the engine still has to say."""
    gate = Gate(events=4)
    engine.script(
        Script(
            gate=gate,
            raw_is="body",
            raw=[
                (0.0, b'data: {"choices":[{"index":0}]}\n\n'),
                (0.0, USAGE),
                (0.0, b"data: [DONE]\n\n"),
                (0.0, b"\n"),
                (0.0, b"\n"),
            ],
            usage=Usage(prompt_tokens=7, completion_tokens=1),
        )
    )
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        await client.send(request_bytes(CHAT, chat(stream=True)))
        response = await client.read_head()
        async for piece in client.read_body(response):
            if b"[DONE]" in piece:
                break
        await engine.reached("held:5")
        client.hang_up()
        async with asyncio.timeout(HANG_SECONDS):
            await engine.log.requests[0].peer_closed.wait()
        metrics = await gateway.metrics()
        assert metrics.sum("serving_requests_total", outcome="ok") == 1
        assert metrics.sum("serving_tokens_total", kind="output") == 1
        assert metrics.sum("serving_tokens_estimated_total") == 0


async def test_shutdown_lets_streams_finish(engine: ScriptedEngine) -> None:
    gate = Gate(events=2)
    engine.script(Script(gate=gate, chunks=5))
    async with (
        RunningGateway(settings_over({"e1": engine})) as gateway,
        RawClient(gateway.url) as client,
        RawClient(gateway.url) as other,
    ):
        await all_ready(gateway)
        assert (await other.ask("/readyz")).status == 200
        await client.send(request_bytes(CHAT, chat(stream=True)))
        response = await client.read_head()
        ended = gateway.terminate()
        assert (await other.ask("/readyz")).json["status"] == "draining"
        gate.open_all()
        async for _ in client.read_body(response):
            pass
        assert response.is_done
        await ended


async def test_the_end_of_the_grace_time_is_said_in_the_stream(engine: ScriptedEngine) -> None:
    engine.script(Script(stall_after=2))
    settings = settings_over({"e1": engine}, server={"shutdown_grace_seconds": 1})
    async with RunningGateway(settings) as gateway, RawClient(gateway.url) as client:
        await client.send(request_bytes(CHAT, chat(stream=True)))
        response = await client.read_head()
        pieces = client.read_body(response)
        await anext(pieces)
        ended = gateway.terminate()
        async for _ in pieces:
            pass
        await ended
        assert response.end == "complete"
        assert not response.is_done
        assert b'"shutting_down"' in response.events[-1]
        async with asyncio.timeout(HANG_SECONDS):
            await engine.log.requests[0].peer_closed.wait()

"""O-DSC-4: what SIGTERM does to a gateway's process under load: nothing that runs is cut, nothing new is refused too early."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from tests.doubles.gateway_process import gateway_process
from tests.doubles.http_requests import ParsedRequest
from tests.doubles.raw_client import HangUp, RawClient, RawResponse, ask, request_bytes
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS
from tests.flow.conftest import chat

CHAT = "/v1/chat/completions"


def slow_answers(request: ParsedRequest) -> Script:
    return Script(itl_seconds=0.1, chunks=30) if json.loads(bytes(request.body)).get("stream") else Script(ttft_seconds=2.5)


async def test_o_dsc_4_sigterm_under_load_cuts_nothing(engine: ScriptedEngine, tmp_path: Path) -> None:
    delay_seconds, grace_seconds = 5.0, 2 * HANG_SECONDS
    async with gateway_process(
        {"e1": engine.url}, tmp_path, server={"drain_delay_seconds": delay_seconds, "shutdown_grace_seconds": grace_seconds}
    ) as gateway:
        engine.choose = slow_answers
        streams = [asyncio.create_task(ask(gateway.url, CHAT, chat(stream=True, max_tokens=30))) for _ in range(50)]
        wholes = [asyncio.create_task(ask(gateway.url, CHAT, chat())) for _ in range(20)]
        await engine.request_arrived(70)
        async with RawClient(gateway.url) as prober:
            assert (await prober.ask("/readyz")).status == 200
            engine.choose = None
            told = gateway.terminate()
            while (probe := await prober.ask("/readyz")).status == 200:
                pass  # it goes off before the listener, or this connection would end
            assert probe.json["status"] == "draining"
        served = 0
        with pytest.raises((ConnectionError, HangUp)):
            while True:
                assert (await ask(gateway.url, CHAT, chat(max_tokens=1))).status == 200, "on a new connection, during the delay"
                assert (await ask(gateway.url, "/livez")).status == 200
                served += 1
        assert served and time.monotonic() - told >= delay_seconds
        with pytest.raises(ConnectionRefusedError):
            await ask(gateway.url, "/livez")
        for response in await asyncio.gather(*streams):
            assert response.is_done
            assert len(response.data) >= 30
        assert {response.status for response in await asyncio.gather(*wholes)} == {200}
        assert await gateway.ended() == 0, "without waiting for the end of the grace time"
    assert {record.outcome for record in engine.log.requests} == {"completed"}


async def test_o_dsc_4_the_end_of_the_grace_time_is_said_in_band(engine: ScriptedEngine, tmp_path: Path) -> None:
    engine.script(Script(itl_seconds=0.2, chunks=600), Script(blackhole=True))
    async with (
        gateway_process({"e1": engine.url}, tmp_path, server={"shutdown_grace_seconds": 2}) as gateway,
        RawClient(gateway.url) as client,
    ):
        await client.send(request_bytes(CHAT, chat(stream=True, max_tokens=600)))
        await engine.request_arrived(1)
        waiting = asyncio.create_task(ask(gateway.url, CHAT, chat()))
        await engine.request_arrived(2)
        response: RawResponse = await client.read_head()
        told = gateway.terminate()
        async for _ in client.read_body(response):
            pass
        cut_seconds = time.monotonic() - told
        assert cut_seconds > 1.9, "no abort at the signal"
        assert response.end == "complete"
        assert not response.is_done
        assert b'"shutting_down"' in response.events[-1]
        refused = await waiting
        assert (refused.status, refused.json["error"]["code"]) == (503, "shutting_down")
        assert await gateway.ended() == 0
    async with asyncio.timeout(HANG_SECONDS):
        await engine.log.requests[0].peer_closed.wait()


GRACE_SECONDS = round(2 * HANG_SECONDS)


async def test_o_dsc_4_idle_and_half_open_connections_hold_nothing_up(engine: ScriptedEngine, tmp_path: Path) -> None:
    """A kept connection, one without a byte and one with half a head: the process ends at once."""
    server = {"shutdown_grace_seconds": GRACE_SECONDS}
    async with gateway_process({"e1": engine.url}, tmp_path, server=server) as gateway, RawClient(gateway.url) as kept:
        assert (await kept.ask(CHAT, chat())).status == 200
        async with RawClient(gateway.url), RawClient(gateway.url) as half:
            await half.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: ga")
            await asyncio.sleep(0.1)
            gateway.terminate()
            assert await gateway.ended() == 0, "without waiting for the end of the grace time"


async def test_o_dsc_4_no_request_is_lost_while_the_listener_lives(engine: ScriptedEngine, tmp_path: Path) -> None:
    """Clients that ask on, on new and on kept connections: until the port is closed each gets its answer, whole."""
    engine.default = Script(ttft_seconds=0.01)
    answered = 0

    async def ask_on(keeps: bool) -> None:
        """Until the port is closed."""
        nonlocal answered
        client: RawClient | None = None
        while True:
            is_new = client is None
            try:
                client = client or await RawClient(gateway.url).connect()
                response = await client.ask(CHAT, chat(max_tokens=1))
            except ConnectionRefusedError:
                return
            except (HangUp, ConnectionError) as gone:
                if is_new and (isinstance(gone, ConnectionResetError) or str(gone).startswith("rst")):
                    # The kernel had taken it and the gateway had not: so it resets what waits when the port is closed.
                    if client is not None:
                        client.hang_up()
                    return
                # An idle connection is closed when the delay is over; whoever asks just then asks again on a new one.
                assert client is not None and keeps and not is_new, "a connection that was taken is served"
                client.hang_up()
                client = None
                continue
            assert (response.status, response.end) == (200, "complete")
            answered += 1
            if not keeps or response.header("connection") == "close":
                client.hang_up()
                client = None

    server = {"drain_delay_seconds": 1.0, "shutdown_grace_seconds": GRACE_SECONDS}
    async with gateway_process({"e1": engine.url}, tmp_path, server=server) as gateway:
        asking = [asyncio.create_task(ask_on(keeps=number % 2 == 0)) for number in range(12)]
        while answered < 50:
            await asyncio.sleep(0.01)
        gateway.terminate()
        before = answered
        await asyncio.gather(*asking)
        assert answered > before, "served on during the delay"
        assert await gateway.ended() == 0, "without waiting for the end of the grace time"
    assert {record.outcome for record in engine.log.requests} == {"completed"}

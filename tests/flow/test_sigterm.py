"""O-DSC-4: what SIGTERM does to a gateway's process under load: nothing that runs is cut, nothing new is refused too early."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doubles.http_requests import ParsedRequest
from tests.doubles.raw_client import RawClient, RawResponse, ask, request_bytes
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import chat

CHAT = "/v1/chat/completions"


class GatewayProcess:
    """`serving gateway` as it is run, over one scripted engine."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    async def ready(self) -> None:
        async with asyncio.timeout(20):
            while True:
                assert self.process.returncode is None, "the gateway did not start"
                try:
                    if (await ask(self.url, "/readyz")).status == 200:
                        return
                except OSError:
                    pass
                await asyncio.sleep(0.05)

    def terminate(self) -> float:
        self.process.send_signal(signal.SIGTERM)
        return time.monotonic()

    async def ended(self) -> int:
        async with asyncio.timeout(20):
            return await self.process.wait()


@asynccontextmanager
async def gateway_process(engine: ScriptedEngine, folder: Path, **server: Any) -> AsyncIterator[GatewayProcess]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "gateway.yaml"
    endpoint = {"name": "e1", "url": engine.url, "model": engine.model}
    config.write_text(yaml.safe_dump({"server": {"port": port} | server, "endpoints": [endpoint]}))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SERVING_")}
    with (folder / "gateway.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "serving", "gateway", "--config", str(config), stdout=log, stderr=log, env=environment
        )
    gateway = GatewayProcess(process, port)
    try:
        await gateway.ready()
        yield gateway
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def slow_answers(request: ParsedRequest) -> Script:
    return Script(itl_seconds=0.1, chunks=30) if json.loads(bytes(request.body)).get("stream") else Script(ttft_seconds=2.5)


@pytest.mark.timeout(90)
async def test_o_dsc_4_sigterm_under_load_cuts_nothing(engine: ScriptedEngine, tmp_path: Path) -> None:
    delay_seconds, grace_seconds = 1.5, 10.0
    async with gateway_process(
        engine, tmp_path, drain_delay_seconds=delay_seconds, shutdown_grace_seconds=grace_seconds
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
                assert time.monotonic() - told < 0.5, "readiness goes off at once"
            assert probe.json["status"] == "draining"
        served = 0
        while time.monotonic() - told < delay_seconds - 0.3:
            assert (await ask(gateway.url, CHAT, chat(max_tokens=1))).status == 200, "on a new connection, during the delay"
            assert (await ask(gateway.url, "/livez")).status == 200
            served += 1
        assert served >= 3
        await asyncio.sleep(max(0.0, told + delay_seconds + 0.5 - time.monotonic()))
        with pytest.raises(ConnectionRefusedError):
            await ask(gateway.url, "/livez")
        for response in await asyncio.gather(*streams):
            assert response.is_done
            assert len(response.data) >= 30
        assert {response.status for response in await asyncio.gather(*wholes)} == {200}
        assert await gateway.ended() == 0
        assert time.monotonic() - told < delay_seconds + grace_seconds
    assert {record.outcome for record in engine.log.requests} == {"completed"}


@pytest.mark.timeout(60)
async def test_o_dsc_4_the_end_of_the_grace_time_is_said_in_band(engine: ScriptedEngine, tmp_path: Path) -> None:
    engine.script(Script(itl_seconds=0.2, chunks=600), Script(blackhole=True))
    async with gateway_process(engine, tmp_path, shutdown_grace_seconds=2) as gateway, RawClient(gateway.url) as client:
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
    async with asyncio.timeout(10.0):
        await engine.log.requests[0].peer_closed.wait()


GRACE_SECONDS = 30


@pytest.mark.timeout(60)
async def test_o_dsc_4_idle_and_half_open_connections_hold_nothing_up(engine: ScriptedEngine, tmp_path: Path) -> None:
    """A kept connection, one without a byte and one with half a head: the process ends at once."""
    async with gateway_process(engine, tmp_path, shutdown_grace_seconds=GRACE_SECONDS) as gateway, RawClient(gateway.url) as kept:
        assert (await kept.ask(CHAT, chat())).status == 200
        async with RawClient(gateway.url), RawClient(gateway.url) as half:
            await half.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: ga")
            await asyncio.sleep(0.1)
            told = gateway.terminate()
            assert await gateway.ended() == 0
            assert time.monotonic() - told < GRACE_SECONDS

"""O-CAN-3: what the gateway notes for a request goes with the request; memory is flat over any number of them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from serving.core.outcomes import AttemptResult
from tests.doubles.conservation import Expectation
from tests.doubles.gateway_process import GatewayProcess, gateway_process
from tests.doubles.held_ids import MARK
from tests.doubles.http_requests import ParsedRequest
from tests.doubles.raw_client import HangUp, RawClient, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.flow.conftest import GatewayOver
from tests.flow.surfaces import GENERATING, asking

pytestmark = pytest.mark.slow

MIX = ["ok"] * 6 + ["engine 500"] * 2 + ["leave before the first token"] + ["leave after it"]
CLIENTS = 24
SNAPSHOT_REQUESTS = 20_000
MEBIBYTE = 1024 * 1024


def script_of(request: ParsedRequest) -> Script:
    """The request's id says what becomes of it."""
    what = (request.header("x-request-id") or "").rpartition("-")[2]
    match what:
        case "500":
            return Script(status=500)
        case "before":
            return Script(blackhole=True)
        case "after":
            return Script(gate=Gate(events=2), log_bytes=False)
        case _:
            return Script(log_bytes=False)


SHORT = {"ok": "ok", "engine 500": "500", "leave before the first token": "before", "leave after it": "after"}


class Walk:
    """Clients that ask one after another, each on a kept connection for as long as that lasts."""

    def __init__(self, url: str, engines: list[ScriptedEngine], seed: int) -> None:
        self._url = url
        self._engines = engines
        self._chance = random.Random(seed)
        self.asked = 0
        for engine in engines:
            engine.choose = script_of

    async def go(self, requests: int) -> None:
        until = self.asked + requests
        await asyncio.gather(*(self._client(until) for _ in range(CLIENTS)))

    async def _client(self, until: int) -> None:
        client = await RawClient(self._url).connect()
        try:
            while self.asked < until:
                self.asked += 1
                if not await self._one(client):
                    client.hang_up(self._chance.choice(["fin", "rst"]))
                    client = await RawClient(self._url).connect()
        finally:
            client.hang_up()

    async def _one(self, client: RawClient) -> bool:
        """One request. Returns whether its connection can take another."""
        what = self._chance.choice(MIX)
        path = self._chance.choice(GENERATING)
        stream = what == "leave after it" or self._chance.random() < 0.5
        name = f"{MARK}{self.asked}-{SHORT[what]}"
        await client.send(request_bytes(path, asking(path, stream=stream), headers={"X-Request-Id": name}))
        if what == "leave before the first token":
            await asyncio.sleep(self._chance.choice([0, 0.002]))
            return False
        if what == "leave after it":
            async for _ in client.read_body(await client.read_head()):
                return False
        try:
            response = await client.read()
        except HangUp as error:
            raise AssertionError(f"{name} got no answer") from error
        assert response.status == (200 if what == "ok" else 502), response.body
        return True


async def rest(gateway: RunningGateway | GatewayProcess, walk: Walk) -> None:
    """Wait until every request has ended, once, and nothing is counted as under way anywhere."""

    async def problems() -> list[str]:
        metrics = await gateway.metrics()
        found = [f"{s.name} {s.labels}: {s.value}" for s in metrics.samples if s.name in GAUGES and s.value != 0]
        ended = metrics.sum("serving_requests_total")
        return found if ended == walk.asked else [*found, f"asked {walk.asked}, ended {ended:g}"]

    await settled(problems)


GAUGES = ("serving_in_flight_requests", "serving_open_leases")


PATIENT = {"period_seconds": 5.0, "timeout_seconds": 60.0}
"""The engines share this busy process with all clients: a late answer to a probe says nothing about them."""
RELAY = {"max_attempts": 1, "connect_timeout_seconds": 60.0}
LEFT_UNREAD = Expectation(unsure_results=(AttemptResult.STALE, AttemptResult.CANCELLED))
"""A client that leaves at once may be gone before its request has been sent on."""


async def test_o_can_3_4000_requests_are_all_accounted_for(gateway_over: GatewayOver) -> None:
    async with ScriptedEngine() as first, ScriptedEngine() as second:
        engines = {"e1": first, "e2": second}
        async with gateway_over(engines, expected=LEFT_UNREAD, relay=RELAY, probe=PATIENT) as gateway:
            walk = Walk(gateway.url, [first, second], seed=1)
            await walk.go(4000)
            await rest(gateway, walk)
            chooser = gateway.app.pipeline._chooser
            assert {name: chooser.in_flight(name) for name in ("e1", "e2")} == {"e1": 0, "e2": 0}
            assert gateway.app.pipeline.in_flight == 0
            assert gateway.app.relay.open_exchanges == 0
            assert not gateway.app.edge._active


async def snapshots(folder: Path, requests: int, each: int) -> list[int]:
    """Walk through a gateway's process, and look at it each so many requests. Returns its resident bytes then."""
    resident = []
    async with ScriptedEngine() as first, ScriptedEngine() as second:
        engines = {"e1": first.url, "e2": second.url}
        async with gateway_process(engines, folder, relay=RELAY, probe=PATIENT) as gateway:
            walk = Walk(gateway.url, [first, second], seed=2)
            for _ in range(requests // each):
                await walk.go(each)
                await rest(gateway, walk)
                assert await gateway.holdings() == []
                resident.append(gateway.resident_bytes)
                print(f"{walk.asked} requests: {resident[-1] / MEBIBYTE:.2f} MiB", flush=True)
                for engine in (first, second):
                    engine.log.forget()
            gateway.terminate()
            assert await gateway.ended() == 0
    return resident


async def test_o_can_3_no_container_holds_an_ended_request(tmp_path: Path) -> None:
    await snapshots(tmp_path, 4000, each=2000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_o_can_3_memory_is_flat_over_200_000_requests(tmp_path: Path) -> None:
    resident = await snapshots(tmp_path, 200_000, each=SNAPSHOT_REQUESTS)
    slope = slope_per_100_000(resident[2:])
    print(f"after the first 40,000: {slope / MEBIBYTE:+.3f} MiB per 100,000 requests")
    assert slope <= MEBIBYTE


def slope_per_100_000(resident: list[int]) -> float:
    """Bytes per 100,000 requests: the least squares line through snapshots that are `SNAPSHOT_REQUESTS` apart."""
    middle, mean = (len(resident) - 1) / 2, sum(resident) / len(resident)
    rise = sum((place - middle) * (value - mean) for place, value in enumerate(resident))
    run = sum((place - middle) ** 2 for place in range(len(resident)))
    return rise / run * 100_000 / SNAPSHOT_REQUESTS

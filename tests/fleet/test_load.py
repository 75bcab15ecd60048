"""Engines' metrics are read off the way of requests: evenly, apart from each other, and never for ever."""

from __future__ import annotations

import asyncio

import pytest

from serving.fleet.load import LoadReader
from serving.fleet.probe import ProbeFailed
from serving.fleet.store import Endpoint, EndpointState, Fleet
from serving.fleet_settings import LoadSettings
from tests.doubles.virtual_time import in_virtual_time

SETTINGS = LoadSettings(period_seconds=2.0, timeout_seconds=2.0, stale_seconds=10.0)


class Engines:
    """A hundred engines that are ready, and what each of them does when it is asked."""

    def __init__(self, count: int = 100) -> None:
        self.endpoints = [Endpoint(f"e{n}", f"http://e{n}:1", "tiny", "cpu", "x") for n in range(count)]
        self.fleet = Fleet(self.endpoints)
        for endpoint in self.endpoints:
            self.fleet.record(endpoint.name, EndpointState.READY, "ready")
        self.hanging: set[str] = set()
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: dict[str, int] = {}
        self.times: list[float] = []
        self.under_way = 0
        self.most_under_way = 0
        self.failures = 0
        self.reader = LoadReader(
            self.fleet, self._get, SETTINGS, failed=self._failed, clock=lambda: asyncio.get_running_loop().time()
        )

    def _failed(self, pool: str) -> None:
        assert pool == "cpu"
        self.failures += 1

    async def _get(self, url: str, path: str, *, timeout_seconds: float) -> tuple[int, bytes]:
        assert path == "/metrics"
        self.asked[url] = self.asked.get(url, 0) + 1
        self.times.append(asyncio.get_running_loop().time())
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if url in self.hanging:
                await asyncio.sleep(timeout_seconds)
                raise ProbeFailed("the engine did not answer in time")
            await asyncio.sleep(0.01)
        finally:
            self.under_way -= 1
        return self.answers.get(url, (200, b'vllm:num_requests_running{engine="0"} 3\n'))


@in_virtual_time
async def test_a_hundred_engines_are_read_evenly() -> None:
    engines = Engines()
    async with engines.reader:
        await asyncio.sleep(10.1)
    assert set(engines.asked.values()) <= {5, 6}
    assert engines.most_under_way <= 2
    assert len(engines.fleet.loads) == 100 and engines.failures == 0


@in_virtual_time
async def test_engines_that_hang_hold_up_no_other() -> None:
    engines = Engines()
    engines.hanging = {endpoint.url for endpoint in engines.endpoints[:70]}
    async with engines.reader:
        await asyncio.sleep(10.1)
        assert all(engines.asked[endpoint.url] >= 5 for endpoint in engines.endpoints[70:])
        assert set(engines.fleet.loads) == {endpoint.name for endpoint in engines.endpoints[70:]}
        assert engines.most_under_way <= 71
    assert engines.under_way == 0, "nothing is left when it ends"


@in_virtual_time
async def test_only_ready_engines_are_asked() -> None:
    engines = Engines(3)
    engines.fleet.record("e1", EndpointState.UNREADY, "gone")
    async with engines.reader:
        await asyncio.sleep(4.0)
    assert set(engines.asked) == {"http://e0:1", "http://e2:1"}


@pytest.mark.parametrize(
    "answer", [(503, b""), (200, b""), (200, b"<html>"), (404, b'vllm:num_requests_running{engine="0"} 0\n')]
)
@in_virtual_time
async def test_an_engine_that_says_nothing_keeps_what_it_said_until_it_is_stale(answer: tuple[int, bytes]) -> None:
    engines = Engines(1)
    async with engines.reader:
        await asyncio.sleep(1.0)
        said = engines.fleet.loads["e0"]
        engines.answers["http://e0:1"] = answer
        await asyncio.sleep(20.0)
        assert engines.fleet.loads["e0"] is said
        assert engines.failures >= 9


@in_virtual_time
async def test_it_can_be_switched_off() -> None:
    engines = Engines(1)
    reader = LoadReader(engines.fleet, engines._get, SETTINGS.model_copy(update={"enabled": False}))
    async with reader:
        await asyncio.sleep(60.0)
    assert not engines.asked

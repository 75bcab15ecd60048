"""Endpoints are asked once a period, sooner after a suspicion, and never in a tight loop. Time is virtual here."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from serving.fleet.probe import Probe, ProbeFailed, _models_of
from serving.fleet.store import Endpoint, EndpointState, Fleet
from serving.settings import ProbeSettings
from tests.doubles.virtual_time import in_virtual_time

READY, UNREADY, UNKNOWN = EndpointState.READY, EndpointState.UNREADY, EndpointState.UNKNOWN
PERIOD_SECONDS = 8.0
E1 = Endpoint("e1", "http://e1:8000", "tiny", "default", "cpu")
E2 = Endpoint("e2", "http://e2:8000", "tiny", "default", "cpu")


class Engines:
    """Answers probes and notes when they came."""

    def __init__(self) -> None:
        self.health = 200
        self.models_status = 200
        self.models: bytes = json.dumps({"data": [{"id": "tiny"}]}).encode()
        self.failure = ""
        self.hanging: set[str] = set()
        self.holding: asyncio.Event | None = None
        """Held before /v1/models is answered."""
        self.asked: list[tuple[float, str, str]] = []
        self.timeouts_seconds: set[float] = set()

    async def __call__(self, url: str, path: str, *, timeout_seconds: float) -> tuple[int, bytes]:
        self.asked.append((asyncio.get_running_loop().time(), url, path))
        self.timeouts_seconds.add(timeout_seconds)
        if url in self.hanging:
            await asyncio.sleep(timeout_seconds)
            raise ProbeFailed("the engine did not answer in time")
        if self.failure:
            raise ProbeFailed(self.failure)
        if path == "/health":
            return self.health, b""
        if self.holding is not None:
            await self.holding.wait()
        return self.models_status, self.models

    def rounds(self, url: str = E1.url) -> list[float]:
        return [at for at, to, path in self.asked if path == "/health" and to == url]


def probe_of(fleet: Fleet, engines: Engines) -> Probe:
    return Probe(fleet, engines, ProbeSettings(period_seconds=PERIOD_SECONDS, timeout_seconds=2.0))


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture
def fleet() -> Fleet:
    return Fleet([E1])


def state(fleet: Fleet, name: str = "e1") -> EndpointState:
    return fleet.snapshot.statuses[name].state


@in_virtual_time
async def test_an_endpoint_that_is_healthy_and_lists_its_model_is_ready(fleet: Fleet, engines: Engines) -> None:
    async with probe_of(fleet, engines):
        assert state(fleet) is UNKNOWN
        await asyncio.sleep(0.1)
        assert state(fleet) is READY
    assert [path for _, _, path in engines.asked] == ["/health", "/v1/models"]
    assert engines.timeouts_seconds == {2.0}


@in_virtual_time
async def test_an_endpoint_that_is_not_healthy_is_not_asked_for_models(fleet: Fleet, engines: Engines) -> None:
    engines.health = 503
    async with probe_of(fleet, engines):
        await asyncio.sleep(0.1)
    assert fleet.snapshot.statuses["e1"].state is UNREADY
    assert fleet.snapshot.statuses["e1"].reason == "/health answered 503"
    assert len(engines.asked) == 1


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        (b'{"data": []}', "serves no model, not tiny"),
        (b'{"data": [{"id": "other"}, {"id": "another"}]}', "serves another, other, not tiny"),
        (b'{"data": [{"id": 1}, {}, null, "tiny", ["tiny"]]}', "serves no model, not tiny"),
        (b'{"data": {"id": "tiny"}}', "serves no model, not tiny"),
        (b'{"data": [{"id": "tiny"}', "serves no model, not tiny"),
        (b"[]", "serves no model, not tiny"),
        (b"", "serves no model, not tiny"),
        (b"\xff", "serves no model, not tiny"),
    ],
)
@in_virtual_time
async def test_health_alone_makes_no_endpoint_ready(fleet: Fleet, engines: Engines, models: bytes, reason: str) -> None:
    engines.models = models
    async with probe_of(fleet, engines):
        await asyncio.sleep(0.1)
    assert fleet.snapshot.statuses["e1"].state is UNREADY
    assert fleet.snapshot.statuses["e1"].reason == reason


@in_virtual_time
async def test_a_list_of_models_that_is_refused_makes_no_endpoint_ready(fleet: Fleet, engines: Engines) -> None:
    engines.models_status = 401
    async with probe_of(fleet, engines):
        await asyncio.sleep(0.1)
    assert fleet.snapshot.statuses["e1"].reason == "/v1/models answered 401"


@in_virtual_time
async def test_an_endpoint_comes_and_goes(fleet: Fleet, engines: Engines) -> None:
    engines.failure = "refused"
    async with probe_of(fleet, engines):
        await asyncio.sleep(0.1)
        assert state(fleet) is UNREADY
        assert fleet.snapshot.statuses["e1"].reason == "refused"
        engines.failure = ""
        await asyncio.sleep(PERIOD_SECONDS)
        assert state(fleet) is READY
        engines.failure = "refused"
        await asyncio.sleep(PERIOD_SECONDS)
        assert state(fleet) is UNREADY


@in_virtual_time
async def test_only_a_change_is_logged(fleet: Fleet, engines: Engines, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "serving.fleet")
    async with probe_of(fleet, engines):
        await asyncio.sleep(3 * PERIOD_SECONDS)
        engines.failure = "refused"
        await asyncio.sleep(3 * PERIOD_SECONDS)
    assert [record.getMessage() for record in caplog.records] == [
        "endpoint e1 is ready: ready",
        "endpoint e1 is unready: refused",
    ]


@pytest.mark.parametrize("failure", ["", "refused"])
@in_virtual_time
async def test_an_endpoint_is_asked_once_a_period(fleet: Fleet, engines: Engines, failure: str) -> None:
    engines.failure = failure
    async with probe_of(fleet, engines):
        await asyncio.sleep(10 * PERIOD_SECONDS - 0.1)
    assert engines.rounds() == pytest.approx([turn * PERIOD_SECONDS for turn in range(10)])


@in_virtual_time
async def test_an_endpoint_that_hangs_delays_no_other(engines: Engines) -> None:
    fleet = Fleet([E1, E2])
    engines.hanging = {E1.url}
    async with probe_of(fleet, engines):
        await asyncio.sleep(0.1)
        assert (state(fleet, "e1"), state(fleet, "e2")) == (UNKNOWN, READY)
        await asyncio.sleep(2.0)
        assert state(fleet, "e1") is UNREADY


@in_virtual_time
async def test_a_suspicion_takes_the_endpoint_out_at_once(fleet: Fleet, engines: Engines) -> None:
    async with probe_of(fleet, engines) as probe:
        await asyncio.sleep(0.1)
        probe.suspect(E1, "refused")
        assert state(fleet) is UNREADY
        assert fleet.snapshot.statuses["e1"].reason == "refused"


@in_virtual_time
async def test_a_suspicion_leads_to_an_early_look(fleet: Fleet, engines: Engines) -> None:
    async with probe_of(fleet, engines) as probe:
        await asyncio.sleep(1.0)
        probe.suspect(E1, "refused")
        await asyncio.sleep(PERIOD_SECONDS / 2)
        assert state(fleet) is READY
    assert len(engines.rounds()) == 2


@in_virtual_time
async def test_a_suspicion_late_in_the_period_does_not_delay_the_next_look(fleet: Fleet, engines: Engines) -> None:
    async with probe_of(fleet, engines) as probe:
        await asyncio.sleep(PERIOD_SECONDS - 0.5)
        probe.suspect(E1, "refused")
        await asyncio.sleep(1.0)
    assert engines.rounds() == pytest.approx([0.0, PERIOD_SECONDS])


@in_virtual_time
async def test_a_suspicion_that_comes_while_the_endpoint_is_asked_is_not_lost(fleet: Fleet, engines: Engines) -> None:
    engines.holding = asyncio.Event()
    async with probe_of(fleet, engines) as probe:
        await asyncio.sleep(0.1)
        probe.suspect(E1, "refused")
        engines.holding.set()
        await asyncio.sleep(PERIOD_SECONDS / 2)
    assert len(engines.rounds()) == 2


@in_virtual_time
async def test_a_storm_of_suspicions_does_not_hammer_the_endpoint(fleet: Fleet, engines: Engines) -> None:
    engines.failure = "refused"
    async with probe_of(fleet, engines) as probe:
        for _ in range(1000):
            probe.suspect(E1, "refused")
            await asyncio.sleep(PERIOD_SECONDS / 100)
    assert len(engines.rounds()) <= 4 * 10 + 1


@in_virtual_time
async def test_a_suspicion_before_the_first_look_is_heard(fleet: Fleet, engines: Engines) -> None:
    probe = probe_of(fleet, engines)
    probe.suspect(E1, "refused")
    assert state(fleet) is UNREADY
    async with probe:
        await asyncio.sleep(0.1)
        assert state(fleet) is READY


@in_virtual_time
async def test_leaving_ends_all_looking_even_in_the_middle(engines: Engines) -> None:
    before = asyncio.all_tasks()
    engines.hanging = {E1.url}
    async with probe_of(Fleet([E1, E2]), engines):
        await asyncio.sleep(0.1)
    assert asyncio.all_tasks() == before


def test_only_what_has_a_parent_is_an_adapter() -> None:
    """Another name of the model itself would answer without the adapter."""
    cards = [
        {"id": "glm", "parent": None},
        {"id": "sql"},
        {"id": "poet", "parent": "glm"},
        {"parent": "glm"},
        {"id": 7, "parent": "x"},
        3,
    ]
    assert _models_of(json.dumps({"data": cards}).encode()) == ({"glm", "sql", "poet"}, {"poet"})
    for odd in (b"", b"[]", b'{"data": {}}'):
        assert _models_of(odd) == (set(), set())

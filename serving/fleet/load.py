"""Reads the engines' metrics again and again, off the way of requests, and keeps in the fleet what they say."""

from __future__ import annotations

from collections.abc import Callable

from serving.core.clock import Clock, monotonic
from serving.fleet.engine_load import EngineLoad, read_load
from serving.fleet.probe import Get, ProbeFailed
from serving.fleet.rounds import Rounds
from serving.fleet.store import Endpoint, EndpointState, Fleet
from serving.fleet_settings import LoadSettings

PATH = "/metrics"


class LoadReader:
    """Asks each ready endpoint once in a period.

    An engine that does not answer, or answers nonsense, is left alone: what it said last grows stale and is then unknown.
    `failed` is called with the endpoint's pool, and `missed` with the endpoint, as often as it was asked and said nothing.
    `heard` gets what it said, and the most requests that this gateway had there (`in_flight`) while it was asked.
    """

    def __init__(
        self,
        fleet: Fleet,
        get: Get,
        settings: LoadSettings,
        *,
        failed: Callable[[str], None] = lambda pool: None,
        in_flight: Callable[[str], int] = lambda endpoint: 0,
        heard: Callable[[Endpoint, EngineLoad, int], None] = lambda endpoint, load, in_flight: None,
        missed: Callable[[Endpoint], None] = lambda endpoint: None,
        clock: Clock = monotonic,
    ) -> None:
        self._fleet = fleet
        self._get = get
        self._settings = settings
        self._failed = failed
        self._in_flight = in_flight
        self._heard = heard
        self._missed = missed
        self._clock = clock
        self._rounds = Rounds("engine-load", self._ready, self._read, settings.period_seconds)
        fleet.load_stale_seconds = settings.stale_seconds

    async def __aenter__(self) -> LoadReader:
        if self._settings.enabled:
            self._rounds.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._rounds.end()

    def _ready(self) -> list[Endpoint]:
        statuses = self._fleet.snapshot.statuses.values()
        return [status.endpoint for status in statuses if status.state is EndpointState.READY]

    async def _read(self, endpoint: Endpoint) -> None:
        in_flight = self._in_flight(endpoint.name)
        load = await self._ask(endpoint)
        if load is None:
            self._failed(endpoint.pool)
            self._missed(endpoint)
        elif self._fleet.record_load(endpoint, load):
            self._heard(endpoint, load, max(in_flight, self._in_flight(endpoint.name)))

    async def _ask(self, endpoint: Endpoint) -> EngineLoad | None:
        try:
            status, body = await self._get(endpoint.url, PATH, timeout_seconds=self._settings.timeout_seconds)
        except ProbeFailed:
            return None
        return read_load(body, self._clock(), self._fleet.loads.get(endpoint.name)) if status == 200 else None

"""Asks each endpoint again and again whether it can serve its model."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

import orjson

from serving.fleet.store import Endpoint, EndpointState, Fleet
from serving.settings import ProbeSettings

log = logging.getLogger("serving.fleet")


class ProbeFailed(Exception):
    """The endpoint could not be asked; the message says why."""


class Get(Protocol):
    """GET a small answer. Raises: ProbeFailed."""

    async def __call__(self, url: str, path: str, *, timeout_seconds: float) -> tuple[int, bytes]: ...


class Probe:
    """One task for each endpoint: `/health`, then whether `/v1/models` lists the model.

    An engine can be healthy before it serves, so health alone makes no endpoint ready.
    """

    def __init__(self, fleet: Fleet, get: Get, settings: ProbeSettings) -> None:
        self._fleet = fleet
        self._get = get
        self._settings = settings
        self._tasks: dict[Endpoint, asyncio.Task[None]] = {}
        self._soon: dict[str, asyncio.Event] = {}

    async def __aenter__(self) -> Probe:
        self.follow()
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def follow(self) -> None:
        """Begin to ask endpoints that are new in the fleet, and leave those alone that have left it."""
        present = {status.endpoint for status in self._fleet.snapshot.statuses.values()}
        for endpoint in self._tasks.keys() - present:
            self._tasks.pop(endpoint).cancel()
            self._soon.pop(endpoint.name)
        for endpoint in present - self._tasks.keys():
            self._soon[endpoint.name] = asyncio.Event()
            self._tasks[endpoint] = asyncio.create_task(self._watch(endpoint), name=f"probe-{endpoint.name}")

    def suspect(self, endpoint: Endpoint, reason: str) -> None:
        """A request could not reach the endpoint: take it out now and ask it again at once."""
        self._note(endpoint, EndpointState.UNREADY, reason)
        if (soon := self._soon.get(endpoint.name)) is not None:
            soon.set()

    async def _watch(self, endpoint: Endpoint) -> None:
        soon = self._soon[endpoint.name]
        while True:
            soon.clear()
            state, reason = await self._ask(endpoint)
            self._note(endpoint, state, reason)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.period_seconds):
                    await soon.wait()
                    # Let the engine that just refused breathe; without this a dead port would be asked in a tight loop.
                    await asyncio.sleep(self._settings.period_seconds / 4)

    async def _ask(self, endpoint: Endpoint) -> tuple[EndpointState, str]:
        timeout = self._settings.timeout_seconds
        try:
            status, _ = await self._get(endpoint.url, "/health", timeout_seconds=timeout)
            if status != 200:
                return EndpointState.UNREADY, f"/health answered {status}"
            status, body = await self._get(endpoint.url, "/v1/models", timeout_seconds=timeout)
        except ProbeFailed as error:
            return EndpointState.UNREADY, str(error)
        if status != 200:
            return EndpointState.UNREADY, f"/v1/models answered {status}"
        served = _model_ids(body)
        if endpoint.model not in served:
            return EndpointState.UNREADY, f"serves {', '.join(sorted(served)[:5]) or 'no model'}, not {endpoint.model}"
        return EndpointState.READY, "ready"

    def _note(self, endpoint: Endpoint, state: EndpointState, reason: str) -> None:
        if self._fleet.record(endpoint.name, state, reason):
            level = logging.WARNING if state is EndpointState.UNREADY else logging.INFO
            log.log(
                level,
                "endpoint %s is %s: %s",
                endpoint.name,
                state,
                reason,
                extra={"endpoint": endpoint.name, "state": str(state)},
            )


def _model_ids(body: bytes) -> set[str]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return set()
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list):
        return set()
    return {card["id"] for card in data if isinstance(card, dict) and isinstance(card.get("id"), str)}

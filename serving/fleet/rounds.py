"""Asks endpoints again and again, off the way of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from serving.core.tasks import end_all
from serving.fleet.store import Endpoint

IDLE_SECONDS = 1.0
"""The most between two looks for endpoints while there is none."""


class Rounds:
    """Each endpoint once in a period, one after another and evenly spread, so that a hundred are no burst.

    Of an endpoint one question is under way at most: one that never answers holds up none of the others.
    """

    def __init__(
        self,
        name: str,
        endpoints: Callable[[], Sequence[Endpoint]],
        ask: Callable[[Endpoint], Coroutine[None, None, None]],
        period_seconds: float,
    ) -> None:
        """`endpoints` says before each round whom to `ask`; tasks are called by the `name`."""
        self._name, self._endpoints, self._ask, self._period_seconds = name, endpoints, ask, period_seconds
        self._walk: list[asyncio.Task[None]] = []
        self._asking: dict[Endpoint, asyncio.Task[None]] = {}

    def begin(self) -> None:
        self._walk.append(asyncio.create_task(self._go_round(), name=self._name))

    async def end(self) -> None:
        await end_all([*self._walk, *self._asking.values()])

    async def _go_round(self) -> None:
        while True:
            endpoints = self._endpoints()
            for endpoint in endpoints:
                if endpoint not in self._asking:
                    task = asyncio.create_task(self._ask(endpoint), name=f"{self._name}-{endpoint.name}")
                    self._asking[endpoint] = task
                    task.add_done_callback(lambda _, endpoint=endpoint: self._asking.pop(endpoint, None))  # type: ignore[misc]
                await asyncio.sleep(self._period_seconds / len(endpoints))
            if not endpoints:
                await asyncio.sleep(min(IDLE_SECONDS, self._period_seconds))

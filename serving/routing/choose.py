"""Chooses an endpoint: the fewest requests under way; among equals the one that was used longest ago."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from serving.fleet.store import Endpoint


class Chooser:
    """Knows how many requests this gateway has under way at each endpoint."""

    def __init__(self) -> None:
        self._in_flight: dict[str, int] = {}
        self._last_used: dict[str, int] = {}
        self._turn = 0

    def choose(self, candidates: Sequence[Endpoint], tried: Collection[str]) -> Endpoint | None:
        """The best candidate that was not tried yet, or None."""
        best: Endpoint | None = None
        best_cost = (0, 0)
        for endpoint in candidates:
            if endpoint.name in tried:
                continue
            cost = (self._in_flight.get(endpoint.name, 0), self._last_used.get(endpoint.name, 0))
            if best is None or cost < best_cost:
                best, best_cost = endpoint, cost
        return best

    def take(self, endpoint: Endpoint) -> None:
        """A request begins at the endpoint; `release` ends it."""
        self._turn += 1
        self._last_used[endpoint.name] = self._turn
        self._in_flight[endpoint.name] = self._in_flight.get(endpoint.name, 0) + 1

    def release(self, endpoint: Endpoint) -> None:
        self._in_flight[endpoint.name] -= 1

    def retain(self, names: Collection[str]) -> None:
        """Forget endpoints that are not among `names`, once nothing is under way there."""
        for name in [name for name in self._last_used if name not in names and not self._in_flight.get(name)]:
            del self._last_used[name]
            self._in_flight.pop(name, None)

    def in_flight(self, name: str) -> int:
        return self._in_flight.get(name, 0)

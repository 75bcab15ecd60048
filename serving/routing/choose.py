"""Chooses an endpoint: the fewest requests under way; among equals the one that was used longest ago."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from serving.core.clock import Clock, monotonic
from serving.fleet.store import Endpoint, EndpointStatus


class Chooser:
    """Knows how many requests this gateway has under way at each endpoint.

    One that starts slowly counts for fuller than it is, by its share; when it has none under way it takes its turn.
    """

    def __init__(self, ramping: Callable[[], Mapping[str, EndpointStatus]] = dict, clock: Clock = monotonic) -> None:
        """`ramping`: the endpoints that start slowly, by name."""
        self._ramping = ramping
        self._clock = clock
        self._in_flight: dict[str, int] = {}
        self._last_used: dict[str, int] = {}
        self._turn = 0

    def choose(self, candidates: Sequence[Endpoint], tried: Collection[str]) -> Endpoint | None:
        """The best candidate that was not tried yet, or None."""
        best: Endpoint | None = None
        best_cost = (0.0, 0)
        ramping = self._ramping()
        for endpoint in candidates:
            if endpoint.name in tried:
                continue
            busy: float = self._in_flight.get(endpoint.name, 0)
            if ramping and busy and (status := ramping.get(endpoint.name)) is not None:
                busy /= status.share(self._clock())
            cost = (busy, self._last_used.get(endpoint.name, 0))
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

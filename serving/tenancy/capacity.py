"""How many slots the engines of a model have at the moment."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from serving.fleet.store import Fleet, Snapshot
from serving.tenancy.slots import UNBOUNDED


class Capacity:
    """Of one model, read off the fleet's snapshot, and computed anew only when there is another one."""

    def __init__(self, fleet: Fleet, model: str) -> None:
        self._fleet = fleet
        self._model = model
        self._seen: Snapshot | None = None
        self._slots = 0

    def __call__(self) -> int:
        snapshot = self._fleet.snapshot
        if snapshot is not self._seen:
            self._seen = snapshot
            slots = [endpoint.slots for endpoint in snapshot.candidates(self._model)]
            known = [each for each in slots if each is not None]
            self._slots = sum(known) if known and len(known) == len(slots) else UNBOUNDED
        return self._slots

    def by_pool(self, pools: Mapping[str, int], waiting: int) -> dict[str, Fraction]:
        """What waits, divided among pools by their slots; by those of the settings (`pools`) while no endpoint is there."""
        found = dict.fromkeys(pools, 0)
        for endpoint in self._fleet.snapshot.candidates(self._model):
            found[endpoint.pool] = found.get(endpoint.pool, 0) + (endpoint.slots or 1)
        shares = found if any(found.values()) else dict(pools)
        total = sum(shares.values())
        return {pool: Fraction(waiting * share, total) for pool, share in shares.items()}

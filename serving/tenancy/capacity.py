"""How many slots the engines of a model have at the moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from serving.fleet.store import Endpoint, Fleet, Snapshot
from serving.tenancy.slots import UNBOUNDED


class Capacity:
    """Of one model, read off the fleet's snapshot; computed anew only when there is another one, or others use more or less."""

    def __init__(
        self,
        fleet: Fleet,
        model: str,
        slots_at: Callable[[Endpoint], int | None] = lambda endpoint: endpoint.slots,
        changes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`slots_at`: how many of an endpoint's slots are this gateway's at the moment; `changes`: how often that has changed."""
        self._fleet = fleet
        self._model = model
        self._slots_at = slots_at
        self._changes = changes
        self._seen: tuple[Snapshot, int] | None = None
        self._slots = 0

    def __call__(self) -> int:
        snapshot, changes = self._fleet.snapshot, self._changes()
        if self._seen is None or self._seen[0] is not snapshot or self._seen[1] != changes:
            self._seen = (snapshot, changes)
            slots = [self._slots_at(endpoint) for endpoint in snapshot.candidates(self._model)]
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

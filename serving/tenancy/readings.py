"""What a scrape is told of limits and queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from serving.fleet.store import Fleet
from serving.settings import Settings
from serving.tenancy.capacity import Capacity
from serving.tenancy.limits import Admission
from serving.tenancy.prices import NANODOLLARS
from serving.tenancy.quotas import Limit, Quotas
from serving.tenancy.slots import UNBOUNDED, Slots
from serving.tenancy.tenants import Tenants

Rows = Iterable[tuple[tuple[str, ...], float]]


class QueueReadings:
    """Of all models, those without a queue included: for them nothing waits."""

    def __init__(self, settings: Settings, fleet: Fleet, slots: Mapping[str, Slots]) -> None:
        self._slots = slots
        self._pools: dict[str, dict[str, int]] = {}
        """Model → pool → slots of the settings."""
        for endpoint in settings.endpoints:
            self._count(endpoint.model, endpoint.pool, endpoint.slots)
        for pool in settings.pools:
            self._count(pool.model, pool.name, pool.slots)
        self._capacities = {model: Capacity(fleet, model) for model in self._pools}

    def _count(self, model: str, pool: str, slots: int | None) -> None:
        pools = self._pools.setdefault(model, {})
        pools[pool] = pools.get(pool, 0) + (slots or 1)

    def waiting(self) -> Rows:
        for model, pools in self._pools.items():
            waiting = self._slots[model].queue.requests if model in self._slots else 0
            for pool, share in self._capacities[model].by_pool(pools, waiting).items():
                yield (model, pool), float(share)

    def capacity(self) -> Rows:
        for model, slots in self._slots.items():
            yield (model,), 0.0 if slots.capacity == UNBOUNDED else slots.capacity

    def in_use(self) -> Rows:
        for model, slots in self._slots.items():
            yield (model,), slots.in_use


def limits_set(names: Iterable[str], tenants: Tenants, admission: Admission) -> Rows:
    """Of each tenant that has some, the limits themselves."""
    for name in names:
        tenant = tenants.find(name)
        limits = admission.limits_of(tenant) if tenant is not None else None
        if limits is None:
            continue
        dollars = None if limits.nano_dollars is None else limits.nano_dollars / NANODOLLARS
        known = (
            (Limit.REQUESTS, limits.requests),
            (Limit.TOKENS, limits.tokens),
            (Limit.CONCURRENCY, limits.concurrency),
            (Limit.DOLLARS, dollars),
        )
        for limit, most in known:
            if most is not None:
                yield (name, limit), most


def limits_left(names: Iterable[str], tenants: Tenants, admission: Admission, quotas: Quotas) -> Rows:
    """Of each limit of each of the tenants that have some."""
    for name in names:
        tenant = tenants.find(name)
        limits = admission.limits_of(tenant) if tenant is not None else None
        if limits is None:
            continue
        left = quotas.standing(name, limits)
        known = (
            (Limit.REQUESTS, limits.requests, left.requests),
            (Limit.TOKENS, limits.tokens, left.tokens),
            (Limit.CONCURRENCY, limits.concurrency, left.concurrency),
            (Limit.DOLLARS, limits.nano_dollars, left.nano_dollars / NANODOLLARS),
        )
        for limit, most, value in known:
            if most is not None:
                yield (name, limit), value

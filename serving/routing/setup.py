"""The chooser as the settings want it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from serving.fleet.store import Endpoint, EndpointStatus
from serving.routing.choose import Chooser
from serving.routing.cost import Machine
from serving.routing.predict import Rates
from serving.routing_settings import PoolRoutingSettings, RoutingSettings

_GENERIC = Rates()
_NOTHING_SAID = PoolRoutingSettings()
_RATES = ("prefill_tokens_per_second", "step_seconds", "step_seconds_per_sequence", "sequences", "cache_tokens")


def chooser_of(settings: RoutingSettings, ramping: Callable[[], Mapping[str, EndpointStatus]] = dict) -> Chooser:
    """`ramping`: the endpoints that start slowly, by name."""

    def pool(endpoint: Endpoint) -> PoolRoutingSettings:
        return settings.pools.get(endpoint.pool, _NOTHING_SAID)

    return Chooser(
        prior=lambda endpoint: _rates(pool(endpoint)),
        machine=lambda endpoint: _machine(pool(endpoint)),
        index_bytes=settings.index_bytes,
        policy=settings.policy,
        ramping=ramping,
    )


def _rates(pool: PoolRoutingSettings) -> Rates:
    given = {name: value for name in _RATES if (value := getattr(pool, name)) is not None}
    return Rates(**{name: getattr(_GENERIC, name) for name in _RATES} | given)


def _machine(pool: PoolRoutingSettings) -> Machine:
    dollars = pool.dollars_per_hour if pool.elastic and pool.dollars_per_hour is not None else 0.0
    return Machine(dollars / 3600.0, pool.revision, pool.weight)

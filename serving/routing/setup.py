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


def chooser_of(
    settings: RoutingSettings,
    ramping: Callable[[], Mapping[str, EndpointStatus]] = dict,
    dollars_per_second: Callable[[str, str], float | None] = lambda pool, target: None,
) -> Chooser:
    """`ramping`: the endpoints that start slowly, by name. `dollars_per_second`: the price of an endpoint by pool and target."""

    def pool(endpoint: Endpoint) -> PoolRoutingSettings:
        return settings.pools.get(endpoint.pool, _NOTHING_SAID)

    return Chooser(
        prior=lambda endpoint: _rates(pool(endpoint)),
        machine=lambda endpoint: _machine(pool(endpoint), dollars_per_second(endpoint.pool, endpoint.target)),
        index_bytes=settings.index_bytes,
        policy=settings.policy,
        ramping=ramping,
    )


def _rates(pool: PoolRoutingSettings) -> Rates:
    given = {name: value for name in _RATES if (value := getattr(pool, name)) is not None}
    return Rates(**{name: getattr(_GENERIC, name) for name in _RATES} | given)


def _machine(pool: PoolRoutingSettings, dollars_per_second: float | None) -> Machine:
    return Machine(dollars_per_second if pool.elastic and dollars_per_second else 0.0, pool.revision, pool.weight)

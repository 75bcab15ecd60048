"""The fleet as operators see it: what `GET /fleet` answers and `serving fleet` shows. None is unknown, and never zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.core.clock import monotonic
from serving.fleet.engine_load import EngineLoad
from serving.fleet.store import Endpoint, EndpointState, Fleet

WITHHELD = "withheld"
"""The state of an engine that discovery knows and that gets no new requests."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What an engine said of itself, `age_seconds` ago. Hit rate and tokens are since the read before."""

    age_seconds: float
    ranks: int
    running: float | None
    waiting: float | None
    kv_cache_usage: float | None
    kv_cache_usage_of_fullest: float | None
    cache_hit_rate: float | None
    prompt_tokens_per_second: float | None
    output_tokens_per_second: float | None
    preemptions: float | None


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """What routing has learned about an endpoint; None while it has seen nothing of its pool."""

    prefill_tokens_per_second: float | None = None
    """Of prompt tokens that are not cached."""
    decode_tokens_per_second: float | None = None
    """Of all requests together that are known to be under way there; of one alone where there are none."""


@dataclass(frozen=True, slots=True)
class DollarReport:
    """What an endpoint costs; None where its machine has no price."""

    per_hour: float | None = None
    """Of the machine, whatever it does."""
    per_million_output_tokens: float | None = None
    """What requests used for output in the last minute by its tokens, of its pool and target as a whole; None without tokens."""


@dataclass(frozen=True, slots=True)
class EndpointReport:
    name: str
    pod: str | None
    state: str
    """unknown, ready, unready, or withheld."""
    reason: str
    breaker: str | None
    """What requests say about it: closed, open (left out for failing), half_open (on trial)."""
    share: float | None
    """How much of what it would get otherwise it gets, up to 1: less during its slow start."""
    in_flight: int | None
    """Requests of this gateway that are under way there."""
    load: LoadReport | None
    speed: SpeedReport
    dollars: DollarReport


@dataclass(frozen=True, slots=True)
class PoolReport:
    name: str
    model: str
    target: str
    ready: int
    endpoints: tuple[EndpointReport, ...]


@dataclass(frozen=True, slots=True)
class PeerReport:
    """Another gateway that was heard lately."""

    name: str
    """New with each of its starts."""
    age_seconds: float
    """Since it was heard last."""
    in_flight: int
    """Requests that it has under way, as far as these count here."""
    prefixes: int
    """Prompts that it has under way and whose prefix is known here."""


@dataclass(frozen=True, slots=True)
class FleetReport:
    pools: tuple[PoolReport, ...]
    peers: tuple[PeerReport, ...] | None = None
    """The other gateways; None where this one is set to be alone."""


def fleet_report(
    fleet: Fleet,
    pools: Sequence[tuple[str, str, str]],
    in_flight: Callable[[str], int],
    speed: Callable[[Endpoint], SpeedReport] = lambda endpoint: SpeedReport(),
    dollars: Callable[[Endpoint], DollarReport] = lambda endpoint: DollarReport(),
    peers: tuple[PeerReport, ...] | None = None,
) -> FleetReport:
    """The report of this moment. `pools` are names, models and targets of those that are set; a pool may have no endpoint."""
    statuses = fleet.snapshot.statuses.values()
    made = []
    for pool, model, target in pools:
        present = [s for s in statuses if (s.endpoint.pool, s.endpoint.model, s.endpoint.target) == (pool, model, target)]
        endpoints = [
            EndpointReport(
                name=status.endpoint.name,
                pod=status.endpoint.pod or None,
                state=str(status.state),
                reason=status.wrong or status.reason,
                breaker=str(status.breaker),
                share=status.share(monotonic()),
                in_flight=in_flight(status.endpoint.name),
                load=_load(fleet.load(status.endpoint.name)),
                speed=speed(status.endpoint),
                dollars=dollars(status.endpoint),
            )
            for status in present
        ]
        for each in fleet.withheld.get(pool, ()):
            endpoints.append(
                EndpointReport(
                    name=each.name,
                    pod=each.pod or None,
                    state=WITHHELD,
                    reason=each.reason,
                    breaker=None,
                    share=None,
                    in_flight=in_flight(each.name),
                    load=None,
                    speed=SpeedReport(),
                    dollars=DollarReport(),
                )
            )
        ready = sum(status.state is EndpointState.READY for status in present)
        made.append(PoolReport(pool, model, target, ready, tuple(endpoints)))
    return FleetReport(tuple(made), peers)


def _load(load: EngineLoad | None) -> LoadReport | None:
    if load is None:
        return None
    return LoadReport(
        age_seconds=round(monotonic() - load.read_at, 3),
        ranks=load.ranks,
        running=load.running,
        waiting=load.waiting,
        kv_cache_usage=load.kv_cache_usage,
        kv_cache_usage_of_fullest=load.kv_cache_usage_of_fullest,
        cache_hit_rate=load.cache_hit_rate,
        prompt_tokens_per_second=load.prompt_tokens_per_second,
        output_tokens_per_second=load.output_tokens_per_second,
        preemptions=load.preemptions,
    )

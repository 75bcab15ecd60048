"""What the page `/ui` shows, made at the moment it asks. None is unknown, and never zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from serving.fleet.report import EndpointReport, FleetReport, PoolReport
from serving.observability.busiest import TenantUse
from serving.observability.last_errors import RequestFailure
from serving.observability.window import Figures, History, Money, Said


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens per second: what the engines say of the moment, where all of them do, else what was counted of the last minute."""

    prompt: float | None
    output: float | None
    of_engines: bool


@dataclass(frozen=True, slots=True)
class PoolState:
    name: str
    model: str
    target: str
    ready: int
    endpoints: tuple[EndpointReport, ...]
    throughput: Throughput
    figures: Figures
    money: Money


@dataclass(frozen=True, slots=True)
class Charged:
    """What the settings charge for a million tokens of a model, where they do."""

    prompt: float | None
    cached: float | None
    output: float | None


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model that the playground can ask."""

    name: str
    is_ready: bool
    charged: Charged | None
    money: Money
    """Of all its pools together."""


@dataclass(frozen=True, slots=True)
class PlaygroundState:
    why_closed: str
    """Empty where it is open."""
    key: Literal["none", "optional", "wanted"]
    """Whether to ask for one: there is no place for any, it may be left out, or nobody is answered without."""
    models: tuple[ChatModel, ...]


@dataclass(frozen=True, slots=True)
class State:
    version: str
    state: str
    """ready, not ready, or draining."""
    uptime_seconds: float
    window_seconds: float
    in_flight: int
    waiting: int
    """Requests that wait here for a slot."""
    requests_per_second: float | None
    failed: float
    """Requests of the window that failed by this side's fault."""
    throughput: Throughput
    figures: Figures
    money: Money
    unpriced: tuple[str, ...]
    """Pools whose price is not known, which `money` is without."""
    pools: tuple[PoolState, ...]
    tenants: tuple[TenantUse, ...]
    """Those that used the most in the window."""
    more_tenants: int
    """Others that used something."""
    history: tuple[History, ...]
    errors: tuple[RequestFailure, ...]
    playground: PlaygroundState


def throughput_of(endpoints: Sequence[EndpointReport], counted: Figures) -> Throughput:
    said = _said(endpoints)
    if said is None:
        return Throughput(counted.prompt_tokens_per_second, counted.output_tokens_per_second, of_engines=False)
    return Throughput(*said, of_engines=True)


def throughput_in_all(pools: Sequence[PoolReport], counted: Figures) -> Throughput:
    return throughput_of([endpoint for pool in pools for endpoint in pool.endpoints], counted)


def throughput_said(report: FleetReport) -> Said | None:
    """What all ready engines together say; None where one of them does not, and where there are none."""
    return _said([endpoint for pool in report.pools for endpoint in pool.endpoints])


def _said(endpoints: Sequence[EndpointReport]) -> Said | None:
    loads = [each.load for each in endpoints if each.state == "ready"]
    figures = [(load.prompt_tokens_per_second, load.output_tokens_per_second) for load in loads if load is not None]
    prompt, output = [pair[0] for pair in figures], [pair[1] for pair in figures]
    if not loads or len(figures) < len(loads) or None in prompt or None in output:
        return None
    return sum(filter(None, prompt)), sum(filter(None, output))

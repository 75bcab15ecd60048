"""Who used it lately: the tenants with the most tokens between two moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from serving.observability.metrics import Metrics, TenantCounts

MOST_SHOWN = 8


class Seen(NamedTuple):
    """What was counted of a tenant since the process began; dollars are None until there were some."""

    requests: int
    prompt_tokens: float
    output_tokens: float
    used_dollars: float | None
    charged_dollars: float | None


@dataclass(frozen=True, slots=True)
class TenantUse:
    """One tenant's requests that ended in the window. None is unknown, which is not 0."""

    name: str
    requests: int
    prompt_tokens: float
    """The cached ones included."""
    output_tokens: float
    used_dollars: float | None
    """What its answers took of the machines."""
    charged_dollars: float | None
    """By the prices that are set."""


def seen_of(metrics: Metrics) -> dict[str, Seen]:
    return {name: _seen(counts) for name, counts in metrics.tenants.items()}


def _seen(counts: TenantCounts) -> Seen:
    prompt, _, output = counts.tokens
    used = None if counts.dollars is None else sum(counts.dollars)
    return Seen(sum(counts.outcomes.values()), prompt, output, used, counts.charged_dollars)


def busiest(before: Mapping[str, Seen], now: Mapping[str, Seen]) -> list[TenantUse]:
    """All that ended a request between the two, the one with the most tokens first."""
    found = [_between(name, before.get(name, _NOTHING), seen) for name, seen in now.items() if seen != before.get(name)]
    return sorted(found, key=lambda use: (-use.prompt_tokens - use.output_tokens, -use.requests, use.name))


def _between(name: str, before: Seen, now: Seen) -> TenantUse:
    return TenantUse(
        name,
        now.requests - before.requests,
        now.prompt_tokens - before.prompt_tokens,
        now.output_tokens - before.output_tokens,
        None if now.used_dollars is None else now.used_dollars - (before.used_dollars or 0.0),
        None if now.charged_dollars is None else now.charged_dollars - (before.charged_dollars or 0.0),
    )


_NOTHING = Seen(0, 0.0, 0.0, None, None)

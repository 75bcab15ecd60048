"""Why an endpoint was chosen, in a form that can be kept, shown and asked about later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from serving.fleet.store import Endpoint


class Reason(StrEnum):
    """What decided."""

    ONLY = "only"
    """There was one candidate."""
    COST = "cost"
    """The least cost, by more than the prediction's error."""
    OWNER = "owner"
    """Among those of about the same cost, the one that all gateways give the conversation to."""
    SPREAD = "spread"
    """Among those of about the same cost, the one that was used longest ago."""
    POLICY = "policy"
    """The setting says a policy that looks at no cost."""


@dataclass(slots=True)
class Decision:
    """One choice among `candidates`; the lists run along them."""

    reason: Reason
    chosen: str
    prompt_tokens: float
    output_tokens: float
    candidates: Sequence[Endpoint]
    cached_tokens: Sequence[float]
    wait_seconds: Sequence[float]
    ttft_seconds: Sequence[float]
    latency_seconds: Sequence[float]
    busy_seconds: Sequence[float]
    dollars: Sequence[float]

    def as_data(self) -> dict[str, Any]:
        """The same as JSON has it, the best candidate first."""
        rows = [
            {
                "endpoint": endpoint.name,
                "pool": endpoint.pool,
                "cached_tokens": round(cached),
                "wait_seconds": round(wait, 4),
                "ttft_seconds": round(ttft, 4),
                "latency_seconds": round(latency, 4),
                "busy_seconds": round(busy, 4),
                "dollars": float(f"{dollars:.4g}"),
            }
            for endpoint, cached, wait, ttft, latency, busy, dollars in zip(
                self.candidates,
                self.cached_tokens,
                self.wait_seconds,
                self.ttft_seconds,
                self.latency_seconds,
                self.busy_seconds,
                self.dollars,
                strict=True,
            )
        ]
        rows.sort(key=lambda row: row["dollars"])
        return {
            "chosen": self.chosen,
            "reason": str(self.reason),
            "prompt_tokens": round(self.prompt_tokens),
            "output_tokens": round(self.output_tokens),
            "candidates": rows,
        }

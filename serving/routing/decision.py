"""Why an endpoint was chosen, in a form that can be kept, shown and asked about later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from serving.fleet.store import Endpoint

if TYPE_CHECKING:
    from serving.routing.score import Scores


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
    LIGHT = "light"
    """A small request, by the costs of one that was like it a moment ago and what is under way now."""
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
    scores: Scores
    record: dict[str, Any]
    """What the costs follow from; see `record`."""

    def as_data(self) -> dict[str, Any]:
        """The same as JSON has it, the cheapest candidate first."""
        scores = self.scores
        rows: list[dict[str, Any]] = [
            {
                "endpoint": endpoint.name,
                "pool": endpoint.pool,
                "cached_tokens": round(detail.cached_tokens),
                "wait_seconds": round(detail.wait_seconds, 4),
                "ttft_seconds": round(first, 4),
                "latency_seconds": round(detail.latency_seconds, 4),
                "busy_seconds": round(detail.busy_seconds, 4),
                "dollars": float(f"{dollars:.4g}"),
            }
            for endpoint, first, dollars, detail in zip(
                self.candidates, scores.first, scores.dollars, scores.detail or (), strict=True
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

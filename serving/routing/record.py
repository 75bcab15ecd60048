"""A decision as it can be kept: what was known of each candidate, from which the same costs follow again, by the same code.

Numbers have six digits, so that costs come back to within a hundred-thousandth.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from serving.fleet.store import Endpoint
from serving.routing.cost import Objective, Weights
from serving.routing.others import Others
from serving.routing.predict import PoolRates, Rates
from serving.routing.prefix import Cache, PrefixIndex
from serving.routing.score import Scores, score
from serving.routing.work import Work

VERSION = 1
_TERMS = ("prompt", "output", "tokens_per_byte", "arrivals_per_second", "typical_prefill", "shared_pieces", "shared_charge")
_NUMBERS = ("sequences", "in_flight", "context_tokens", "cache_tokens", "prefill_share", "dollars_per_second")


class NotRecorded(ValueError):
    """What was given holds no record of this version; the message says what is wrong."""


def recorded(
    works: Sequence[Work],
    depths: Mapping[Cache, int],
    *,
    objective: Objective,
    weights: Weights,
    adapter: str,
    now: float,
    **terms: float,
) -> dict[str, Any]:
    """Plain data, as JSON has it. `terms` are those of `score`."""
    return {
        "version": VERSION,
        "class": asdict(objective),
        "weights": asdict(weights),
        "terms": {name: _short(terms[name]) for name in _TERMS},
        "adapter": adapter,
        "fleet": [_row(work, depths.get(work.cache, 0), adapter, now) for work in works],
    }


def _row(work: Work, pieces: int, adapter: str, now: float) -> dict[str, Any]:
    rates = work.rates
    row: dict[str, Any] = {
        "endpoint": work.endpoint.name,
        "pool": work.endpoint.pool,
        "cached_pieces": pieces,
        "cache_trust": _short(rates.cache_trust.value),
        "prefill_seconds_per_token": _short(rates.prefill_seconds),
        "step_seconds": _short(rates.step),
        "step_seconds_per_sequence": _short(rates.step_slope),
        "waiting": work.queued,
        "wait_seconds": _short(work.wait_seconds(now)),
        **{name: _short(getattr(work, name)) for name in _NUMBERS},
    }
    if work.others is not None:
        row["others"] = [_short(each) for each in work.others]
    if adapter:
        row["adapters"] = work.adapters.as_data()
    return row


def _short(number: float) -> float:
    return float(f"{number:.6g}")


class Recorded:
    """A record that costs can be computed from again, also for what was not."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        """Raises: NotRecorded."""
        if data.get("version") != VERSION:
            raise NotRecorded(f"its version is {data.get('version')!r}; this program knows {VERSION}")
        try:
            self.objective = Objective(**data["class"])
            self._weights = Weights(**data["weights"])
            self._terms = {name: data["terms"][name] for name in _TERMS}
            self._adapter = str(data["adapter"])
            self._depths: dict[Cache, int] = {}
            self._works = [self._work(row) for row in data["fleet"]]
            self._prices = {work.name: work.dollars_per_second for work in self._works}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotRecorded(f"it is not complete: {type(error).__name__}: {error}") from None

    @property
    def endpoints(self) -> list[Endpoint]:
        return [work.endpoint for work in self._works]

    def scores(
        self,
        *,
        objective: Objective | None = None,
        without: Collection[str] = (),
        dollars_per_hour: Mapping[str, float] | None = None,
    ) -> tuple[list[Endpoint], Scores]:
        """What the request would have cost at each endpoint, also of another class, without some, at other prices of pools."""
        works = [work for work in self._works if work.endpoint.name not in without]
        for work in works:
            price = (dollars_per_hour or {}).get(work.endpoint.pool)
            work.dollars_per_second = self._prices[work.name] if price is None else price / 3600.0
        terms = {**self._terms, "shared_pieces": int(self._terms["shared_pieces"])}
        found = score(
            works,
            self._depths,
            objective=objective or self.objective,
            weights=self._weights,
            now=0.0,
            adapter=self._adapter,
            explained=True,
            **terms,
        )
        return [work.endpoint for work in works], found

    def _work(self, row: Mapping[str, Any]) -> Work:
        endpoint = Endpoint(str(row["endpoint"]), "", "", str(row["pool"]), "")
        cache = PrefixIndex(0).cache(0.0)
        self._depths[cache] = int(row["cached_pieces"])
        work = Work(endpoint, PoolRates(Rates()), cache, 0.0)
        rates = work.rates
        rates.cache_trust.value = float(row["cache_trust"])
        rates.prefill_seconds = float(row["prefill_seconds_per_token"])
        rates.step, rates.step_slope = float(row["step_seconds"]), float(row["step_seconds_per_sequence"])
        for name in _NUMBERS:
            setattr(work, name, float(row[name]))
        work.free_at = float(row["wait_seconds"])
        work.queued = int(row["waiting"])
        if "others" in row:
            work.others = Others(*map(float, row["others"]))
        if self._adapter:
            work.adapters.restore(row["adapters"])
        return work

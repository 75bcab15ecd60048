"""A decision as it can be kept: what was known of each candidate, from which the same costs follow again, by the same code.

Numbers have six digits, so that costs come back to within a hundred-thousandth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from serving.fleet.store import Endpoint
from serving.routing.chain import START
from serving.routing.cost import Objective, Weights
from serving.routing.others import Others
from serving.routing.predict import PoolRates, Rates
from serving.routing.prefix import Cache, PrefixIndex
from serving.routing.record_fields import Fields, NotRecorded
from serving.routing.score import Scores, score
from serving.routing.work import Work

VERSION = 1
_TERMS = ("prompt", "output", "tokens_per_byte", "arrivals_per_second", "typical_prefill", "shared_pieces", "shared_charge")
_NUMBERS = ("sequences", "in_flight", "context_tokens", "cache_tokens", "prefill_share", "dollars_per_second")
_OBJECTIVE = ("dollars_per_second", "ttft_seconds", "inter_chunk_seconds")
_MOST = 100_000
"""Of waiting requests and adapters at one endpoint: far beyond what there is, and soon made."""


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
        """Raises: NotRecorded, naming the field that is wrong."""
        fields = Fields(data, "")
        if data.get("version") != VERSION:
            raise NotRecorded(f"its version is {data.get('version')!r}; this program knows {VERSION}")
        objective, terms = fields.fields("class"), fields.fields("terms")
        self.objective = Objective(objective.text("name"), **{each: objective.number(each) for each in _OBJECTIVE})
        self._weights = Weights(**fields.fields("weights").numbers(Weights.__dataclass_fields__))
        self._terms = {name: terms.number(name) for name in _TERMS}
        self._shared_pieces = terms.count("shared_pieces", len(START) - 1)
        self._adapter = fields.text("adapter")
        self._depths: dict[Cache, int] = {}
        self._works = [self._work(Fields(row, f"fleet.{number}")) for number, row in enumerate(fields.items("fleet"))]
        self._prices = {work.name: work.dollars_per_second for work in self._works}

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
        """What the request would have cost at each endpoint, also of another class, without some, at other prices of pools.

        Raises: NotRecorded, where the numbers of the record fit no fleet.
        """
        works = [work for work in self._works if work.endpoint.name not in without]
        for work in works:
            price = (dollars_per_hour or {}).get(work.endpoint.pool)
            work.dollars_per_second = self._prices[work.name] if price is None else price / 3600.0
        terms: dict[str, Any] = {**self._terms, "shared_pieces": self._shared_pieces}
        try:
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
        except ArithmeticError as error:
            raise NotRecorded(f"no cost follows from its numbers: {error}") from None
        if not all(map(math.isfinite, itertools.chain(found.first, found.dollars, *(found.detail or ())))):
            raise NotRecorded("no cost follows from its numbers: they are too large")
        return [work.endpoint for work in works], found

    def _work(self, row: Fields) -> Work:
        endpoint = Endpoint(row.text("endpoint"), "", "", row.text("pool"), "")
        cache = PrefixIndex(0).cache(0.0)
        self._depths[cache] = row.count("cached_pieces", len(START) - 1)
        work = Work(endpoint, PoolRates(Rates()), cache, 0.0)
        rates = work.rates
        rates.cache_trust.value = row.number("cache_trust")
        rates.prefill_seconds = row.number("prefill_seconds_per_token")
        rates.step, rates.step_slope = row.number("step_seconds"), row.number("step_seconds_per_sequence")
        for name in _NUMBERS:
            setattr(work, name, row.number(name))
        work.free_at = row.number("wait_seconds")
        work.queued = row.count("waiting", _MOST)
        if "others" in row:
            others = Fields(dict(zip(Others._fields, row.items("others"), strict=False)), "others")
            work.others = Others(*map(others.number, Others._fields))
        if self._adapter:
            adapters = row.fields("adapters")
            kept = {"slots": adapters.count("slots", _MOST), "load_seconds": adapters.number("load_seconds")}
            work.adapters.restore(kept | {name: adapters.fields(name).numbers(None) for name in ("loaded", "waiting")})
        return work

"""What came of known-answer probes, and their tokens and dollars under a tenant of their own, which nobody is charged for."""

from __future__ import annotations

from serving.core.context import Usage
from serving.fleet.quality import ProbeResult
from serving.fleet.store import Endpoint
from serving.ledger_settings import PricesSettings
from serving.observability.metrics import Metrics
from serving.tenancy.prices import NANODOLLARS, Prices

TENANT = "serving-quality"


class ProbeCosts:
    """Counts each probe."""

    def __init__(self, metrics: Metrics, prices: PricesSettings) -> None:
        self._metrics = metrics
        self._prices = Prices(prices)

    def probed(self, endpoint: Endpoint, result: ProbeResult, usage: Usage) -> None:
        metrics, model, pool = self._metrics, endpoint.model, endpoint.pool
        metrics.quality_probes.add((pool, result))
        cost = self._prices.cost(model, pool, usage)
        for kind, tokens, nanodollars in (
            ("prompt", usage.prompt_tokens, cost.prompt),
            ("output", usage.output_tokens, cost.output),
        ):
            if tokens is not None:
                metrics.quality_tokens.add((TENANT, model, pool, kind), tokens)
            if nanodollars is not None:
                metrics.quality_dollars.add((TENANT, model, pool, kind), nanodollars / NANODOLLARS)

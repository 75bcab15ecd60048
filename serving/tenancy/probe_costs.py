"""The series of the known-answer probes: what came of them, and their tokens and dollars, under a tenant of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from serving.core.context import Usage
from serving.fleet.quality import ProbeResult
from serving.fleet.store import Endpoint
from serving.ledger_settings import PricesSettings
from serving.observability.metrics import BulkCounter, GaugeOnScrape, Metrics
from serving.tenancy.prices import NANODOLLARS, Prices

TENANT = "serving-quality"
"""Nobody is charged for them."""


class QualityMetrics:
    """In the registry of the gateway's other series."""

    def __init__(self, metrics: Metrics, prices: PricesSettings) -> None:
        self._prices = Prices(prices)
        self._registry = metrics.registry
        self._probes = BulkCounter(
            "serving_quality_probes",
            "Known-answer probes: `inside` or `outside` the band, `learned` for what later ones are compared with, `failed` "
            "without an answer, `not_askable` where the engine gives no log-probabilities.",
            ("pool", "result"),
        )
        self._tokens = BulkCounter(
            "serving_quality_tokens",
            "Tokens of known-answer probes, which are in no other series.",
            ("tenant", "model", "pool", "kind"),
        )
        self._dollars = BulkCounter(
            "serving_quality_dollars",
            "What known-answer probes cost by the prices of the settings, where there are any.",
            ("tenant", "model", "pool", "kind"),
        )
        for counter in (self._probes, self._tokens, self._dollars):
            metrics.registry.register(counter)

    def watch_states(self, read: Callable[[], Iterable[tuple[Sequence[str], float]]]) -> None:
        self._registry.register(
            GaugeOnScrape(
                "serving_quality_state",
                "1 while an endpoint's answers to known-answer probes are inside its band, 0 while they are outside; what is "
                "unknown has no series.",
                ("model", "pool", "target", "endpoint"),
                read,
            )
        )

    def probed(self, endpoint: Endpoint, result: ProbeResult, usage: Usage) -> None:
        model, pool = endpoint.model, endpoint.pool
        self._probes.add((pool, result))
        cost = self._prices.cost(model, pool, usage)
        for kind, tokens, nanodollars in (
            ("prompt", usage.prompt_tokens, cost.prompt),
            ("output", usage.output_tokens, cost.output),
        ):
            if tokens is not None:
                self._tokens.add((TENANT, model, pool, kind), tokens)
            if nanodollars is not None:
                self._dollars.add((TENANT, model, pool, kind), nanodollars / NANODOLLARS)

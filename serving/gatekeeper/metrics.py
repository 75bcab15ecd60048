"""The controller's own series, read from what it knows at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from serving.gatekeeper.controller import Controller
from serving.observability.metrics import BulkCounter, GaugeOnScrape

DIGITS = 8
"""Of a digest in labels."""


class GateMetrics:
    """Verdicts and approvals are those of the cluster, so that every controller that leads says the same."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._runs = BulkCounter(
            "serving_gate_runs", "Runs of the gate by result; `error`: it brought no verdict.", ("pool", "result")
        )
        self.registry.register(self._runs)

    def ran(self, pool: str, result: str) -> None:
        self._runs.add((pool, result))

    def watch(self, controller: Controller, leads: Callable[[], bool]) -> None:
        def verdicts() -> Iterable[tuple[tuple[str, str, str], float]]:
            if leads():
                for digest, standing in controller.standings.by_digest.items():
                    if standing.verdict is not None:
                        yield (standing.pool, digest[:DIGITS], standing.verdict.outcome), 1.0

        def approvals() -> dict[str, int]:
            counts: dict[str, int] = {}
            for standing in controller.standings.by_digest.values() if leads() else ():
                counts[standing.pool] = counts.get(standing.pool, 0) + (standing.approval is not None)
            return counts

        def conditions() -> Iterable[tuple[tuple[str, str, str], float]]:
            for pod in controller.pods if leads() else ():
                if pod.condition is not None:
                    yield (pod.pool, pod.name, pod.condition.reason), float(pod.condition.status == "True")

        for gauge in (
            GaugeOnScrape(
                "serving_gate_verdict", "1 for the verdict on each configuration.", ("pool", "digest8", "verdict"), verdicts
            ),
            GaugeOnScrape(
                "serving_gate_pod_ready",
                "1 while the condition serving/quality of a pod is True, 0 while it is not.",
                ("pool", "pod", "reason"),
                conditions,
            ),
            GaugeOnScrape("serving_gate_leader", "1 while this controller leads.", (), lambda: [((), float(leads()))]),
            _Approvals(approvals),
        ):
            self.registry.register(gauge)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


class _Approvals(Collector):
    """Counted in the cluster, where they stay, and not by this process."""

    def __init__(self, read: Callable[[], dict[str, int]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return [CounterMetricFamily("serving_gate_approvals", "", labels=("pool",))]

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "serving_gate_approvals", "Configurations that a person let serve against the gate's word.", labels=("pool",)
        )
        for pool, count in self._read().items():
            family.add_metric((pool,), count)
        yield family

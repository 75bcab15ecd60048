"""The controller's own series, read from what it knows at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from serving.gatekeeper.controller import Controller
from serving.observability.collectors import ReadRows, SeriesRegistry
from serving.observability.series import gate

DIGITS = 8
"""Of a digest in labels."""


class GateMetrics:
    """Verdicts and approvals are those of the cluster, so that every controller that leads says the same."""

    def __init__(self) -> None:
        self._registry = SeriesRegistry()
        self._runs = self._registry.counter(gate.RUNS)

    def ran(self, pool: str, result: str) -> None:
        self._runs.add((pool, result))

    def watch(self, controller: Controller, leads: Callable[[], bool]) -> None:
        """A controller that waits knows nothing, and says nothing."""

        def of_leader(read: ReadRows) -> ReadRows:
            return lambda: read() if leads() else ()

        def verdicts() -> Iterable[tuple[tuple[str, str, str], float]]:
            for digest, standing in controller.standings.by_digest.items():
                if standing.verdict is not None:
                    yield (standing.pool, digest[:DIGITS], standing.verdict.outcome), 1.0

        def approvals() -> Iterable[tuple[tuple[str], float]]:
            counts: dict[str, int] = {}
            for standing in controller.standings.by_digest.values():
                counts[standing.pool] = counts.get(standing.pool, 0) + (standing.approval is not None)
            return (((pool,), float(count)) for pool, count in counts.items())

        def conditions() -> Iterable[tuple[tuple[str, str, str], float]]:
            for pod in controller.pods:
                if pod.condition is not None:
                    yield (pod.pool, pod.name, pod.condition.reason), float(pod.condition.status == "True")

        self._registry.watch(gate.VERDICT, of_leader(verdicts))
        self._registry.watch(gate.POD_READY, of_leader(conditions))
        self._registry.watch(gate.APPROVALS, of_leader(approvals))
        self._registry.watch(gate.LEADER, lambda: [((), float(leads()))])

    def exposition(self) -> bytes:
        return self._registry.exposition()

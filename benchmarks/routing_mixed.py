"""A release on two kinds of machines: a fixed pool that is paid anyway, and an elastic one that grows and shrinks with demand.

`python -m benchmarks.routing_mixed` prints the bill, idle time included, what was written for it, and the times to the first
token, with the elastic pool's tokens at the same price as the other's and at twice that, and with the fixed pool degraded to half
its speed. Who saves machines writes more slowly, so that a bit less is done when a run ends: compare the bill for each token.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.routing_engine import Engine, EngineSpec, Job
from benchmarks.routing_run import Result, run
from benchmarks.routing_traces import Session, Turn, agentic, production
from serving.core.context import Usage
from serving.fleet.store import Endpoint
from serving.routing.chain import turn_pieces_of
from serving.routing.choose import Chooser
from serving.routing.cost import OBJECTIVES, Machine
from serving.routing.question import Question
from serving.routing.work import Ticket

FIXED, MOST_ELASTIC = 6, 10
SCALE_SECONDS = 10.0
BOOT_SECONDS = 30.0
IDLE_SECONDS = 40.0
"""How long the elastic pool must have been too large before a node goes."""
ENGINE_LOAD = 8.0
"""Requests in flight for which one elastic engine is started."""
DOLLARS_PER_SECOND = 0.011
"""Of one engine of the fixed pool: eight accelerators at about five dollars an hour."""


class Release:
    """The gateway's chooser over both pools, and the scaler of the elastic one."""

    def __init__(
        self,
        elastic_price: float,
        *,
        seconds_only: bool,
        fixed_is_priced: bool = False,
        objective: str = "standard",
        policy: str = "cost",
    ) -> None:
        """`fixed_is_priced`: to the chooser a second of the fixed pool costs what it costs, though it is paid anyway."""
        self.now = 0.0
        self.elastic_price = elastic_price
        self.fixed = tuple(_endpoint(f"fixed-{n}", "fixed") for n in range(FIXED))
        self.elastic = tuple(_endpoint(f"elastic-{n}", "elastic") for n in range(MOST_ELASTIC))
        self.numbers = {endpoint.name: number for number, endpoint in enumerate((*self.fixed, *self.elastic))}
        self.objective = OBJECTIVES[objective]
        prices = {"elastic": elastic_price, "fixed": DOLLARS_PER_SECOND if fixed_is_priced else 0.0}
        self.chooser = Chooser(
            clock=lambda: self.now,
            seed=1,
            policy=policy,
            machine=lambda endpoint: Machine(0.0 if seconds_only else prices[endpoint.pool]),
        )
        self.ready = 1
        """Of the elastic engines, the first ones."""
        self.booting: list[float] = []
        self.large_since = math.inf
        self.node_seconds = 0.0
        self._counted = 0.0
        self.candidates = (*self.fixed, *self.elastic[: self.ready])

    def scale(self, now: float) -> None:
        """What an autoscaler does that looks at the requests in flight."""
        self._count(now)
        while self.booting and self.booting[0] <= now:
            self.booting.pop(0)
            self.ready += 1
        flying = sum(self.chooser.in_flight(e.name) for e in self.elastic)
        wanted = min(MOST_ELASTIC, max(1, math.ceil(flying / ENGINE_LOAD)))
        if wanted > self.ready + len(self.booting):
            self.booting += [now + BOOT_SECONDS] * (wanted - self.ready - len(self.booting))
        if wanted >= self.ready:
            self.large_since = math.inf
        elif self.large_since == math.inf:
            self.large_since = now
        elif now - self.large_since >= IDLE_SECONDS and not self.chooser.in_flight(self.elastic[self.ready - 1].name):
            self.ready -= 1
        self.candidates = (*self.fixed, *self.elastic[: self.ready])

    def _count(self, now: float) -> None:
        draining = sum(bool(self.chooser.in_flight(e.name)) for e in self.elastic[self.ready :])
        self.node_seconds += (now - self._counted) * (self.ready + len(self.booting) + draining)
        self._counted = now

    def dollars(self, seconds: float) -> float:
        self._count(seconds)
        return FIXED * DOLLARS_PER_SECOND * seconds + self.node_seconds * self.elastic_price

    def pick(self, turn: Turn, now: float) -> tuple[int, Any]:
        self.now = now
        question = Question(
            "m", "t", turn.chain, turn.prompt.size, turn_pieces_of(turn.chain, turn.turn_bytes), turn.output_tokens
        )
        ticket = self.chooser.choose("m", self.candidates, (), lambda: question, objective=self.objective)
        assert ticket is not None
        self.chooser.begin(ticket)
        return self.numbers[ticket.endpoint.name], ticket

    def first(self, ticket: Ticket, now: float) -> None:
        self.now = now
        self.chooser.first_token(ticket)

    def end(self, ticket: Ticket, turn: Turn, job: Job, now: float) -> None:
        self.now = now
        self.chooser.end(ticket)
        self.chooser.learn(ticket, Usage(turn.prompt_tokens, job.cached_tokens, turn.output_tokens), now)


def _endpoint(name: str, pool: str) -> Endpoint:
    return Endpoint(name, f"http://{name}:8000", "m", pool, pool)


def release(
    sessions: list[Session],
    elastic_price: float,
    *,
    seconds_only: bool,
    degraded: bool = False,
    fixed_is_priced: bool = False,
    seconds: float = 400.0,
    policy: str = "cost",
) -> tuple[float, Result]:
    """The bill in dollars of the whole run, and what the requests saw."""
    spec = EngineSpec()
    slow = replace(spec, prefill_tokens_per_second=8000.0, step_seconds=0.016, step_seconds_per_sequence=0.00024)
    specs = [slow if degraded else spec] * FIXED + [spec] * MOST_ELASTIC
    engines = [Engine(number, each) for number, each in enumerate(specs)]
    router = Release(elastic_price, seconds_only=seconds_only, fixed_is_priced=fixed_is_priced, policy=policy)
    at: list[tuple[float, Callable[[], None]]] = []
    for step in range(1, int(seconds / SCALE_SECONDS)):
        at.append((step * SCALE_SECONDS, lambda now=step * SCALE_SECONDS: router.scale(now)))  # type: ignore[misc]
    result = run(sessions, router, engines=engines, seconds=seconds, warm_up=60.0, at=at)
    return router.dollars(seconds), result


def dollars_per_million(bill: float, result: Result) -> float:
    """The bill over the output tokens of the requests that ended, less those of the warm-up."""
    return 1e6 * bill / sum(sample.turn.output_tokens for sample in result.samples if sample.ended)


@dataclass(frozen=True, slots=True)
class Case:
    words: str
    elastic_price: float
    """In those of the fixed pool."""
    degraded: bool = False
    fixed_is_priced: bool = False


POLICIES = (("cost", False), ("cost", True), ("least_loaded", True), ("session", True), ("round_robin", True))
"""And whether they look at seconds only."""
CASES = (
    Case("same", 1.0),
    Case("same, the fixed pool as if it went when idle", 1.0, fixed_is_priced=True),
    Case("twice", 2.0),
    Case("twice, fixed pool degraded", 2.0, degraded=True),
)
SEEDS = (7, 8, 9)
TRACES = {"production": production, "agentic": agentic}
COLUMNS = ("dollars", "for a million output tokens", "TTFT mean", "p99", "e2e", "finished")


def _row(arguments: tuple[str, Case, str, bool, float, int]) -> tuple[float, ...]:
    trace, case, policy, seconds_only, seconds, seed = arguments
    bill, result = release(
        TRACES[trace](0.75, seconds, seed),
        case.elastic_price * DOLLARS_PER_SECOND,
        seconds_only=seconds_only,
        degraded=case.degraded,
        fixed_is_priced=case.fixed_is_priced,
        seconds=seconds,
        policy=policy,
    )
    return (
        bill,
        dollars_per_million(bill, result),
        result.mean_ttft,
        result.ttft_at(0.99),
        result.mean_e2e,
        float(result.finished),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", default=",".join(TRACES))
    parser.add_argument("--seconds", type=float, default=1000.0)
    parser.add_argument("--policies", default=",".join(dict.fromkeys(policy for policy, _ in POLICIES)))
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    print(f"| trace | elastic price | policy | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 3)}")
    policies = [each for each in POLICIES if each[0] in given.policies.split(",")]
    with multiprocessing.Pool(given.processes) as pool:
        for trace in given.traces.split(","):
            for case in CASES:
                for policy, seconds_only in policies:
                    rows = pool.map(
                        _row, [(trace, case, policy, seconds_only, given.seconds, seed) for seed in SEEDS], chunksize=1
                    )
                    columns = list(zip(*rows, strict=True))
                    means = [statistics.mean(column) for column in columns]
                    shown = f"{policy}{', seconds only' if seconds_only and policy == 'cost' else ''}"
                    print(
                        f"| {trace} | {case.words} | {shown} | {means[0]:.1f} ({min(columns[0]):.1f}-{max(columns[0]):.1f}) | "
                        f"{means[1]:.1f} | {means[2]:.2f} s | {means[3]:.2f} s | {means[4]:.1f} s | {means[5]:.0f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()

"""A release on two kinds of machines: a fixed pool that is paid anyway, and an elastic one that grows and shrinks with demand.

`python -m benchmarks.routing_mixed` prints the bill, idle time included, and the times to the first token, with the elastic
pool's tokens at the same price as the other's and at twice that, and with the fixed pool degraded to half its speed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
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

    def __init__(self, elastic_price: float, *, seconds_only: bool, objective: str = "standard", policy: str = "cost") -> None:
        self.now = 0.0
        self.elastic_price = elastic_price
        self.fixed = tuple(_endpoint(f"fixed-{n}", "fixed") for n in range(FIXED))
        self.elastic = tuple(_endpoint(f"elastic-{n}", "elastic") for n in range(MOST_ELASTIC))
        self.numbers = {endpoint.name: number for number, endpoint in enumerate((*self.fixed, *self.elastic))}
        self.objective = OBJECTIVES[objective]
        price = 0.0 if seconds_only else elastic_price
        self.chooser = Chooser(
            clock=lambda: self.now,
            seed=1,
            policy=policy,
            machine=lambda endpoint: Machine(price if endpoint.pool == "elastic" else 0.0),
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
    seconds: float = 400.0,
    policy: str = "cost",
) -> tuple[float, Result]:
    """The bill in dollars of the whole run, and what the requests saw."""
    spec = EngineSpec()
    slow = replace(spec, prefill_tokens_per_second=8000.0, step_seconds=0.016, step_seconds_per_sequence=0.00024)
    specs = [slow if degraded else spec] * FIXED + [spec] * MOST_ELASTIC
    engines = [Engine(number, each) for number, each in enumerate(specs)]
    router = Release(elastic_price, seconds_only=seconds_only, policy=policy)
    at: list[tuple[float, Callable[[], None]]] = []
    for step in range(1, int(seconds / SCALE_SECONDS)):
        at.append((step * SCALE_SECONDS, lambda now=step * SCALE_SECONDS: router.scale(now)))  # type: ignore[misc]
    result = run(sessions, router, engines=engines, seconds=seconds, warm_up=60.0, at=at)
    return router.dollars(seconds), result


POLICIES = (("cost", False), ("cost", True), ("least_loaded", True), ("session", True), ("round_robin", True))
"""And whether they look at seconds only."""
PRICES = (("same", 1.0, False), ("twice", 2.0, False), ("twice, fixed pool degraded", 2.0, True))
SEEDS = (7, 8, 9)


def main() -> None:
    print("| trace | elastic price | policy | dollars | TTFT mean | p99 | e2e | finished |\n|---|---|---|---|---|---|---|---|")
    for name, trace in (("production", production), ("agentic", agentic)):
        for words, price, degraded in PRICES:
            for policy, seconds_only in POLICIES:
                runs = [
                    release(
                        trace(0.75, 400.0, seed),
                        price * DOLLARS_PER_SECOND,
                        seconds_only=seconds_only,
                        degraded=degraded,
                        policy=policy,
                    )
                    for seed in SEEDS
                ]
                bills = [bill for bill, _ in runs]
                means = [
                    statistics.mean(measure(result) for _, result in runs)
                    for measure in (
                        lambda r: r.mean_ttft,
                        lambda r: r.ttft_at(0.99),
                        lambda r: r.mean_e2e,
                        lambda r: float(r.finished),
                    )
                ]
                shown = f"{policy}{', seconds only' if seconds_only and policy == 'cost' else ''}"
                print(
                    f"| {name} | {words} | {shown} | {statistics.mean(bills):.1f} ({min(bills):.1f}-{max(bills):.1f}) | "
                    f"{means[0]:.2f} s | {means[1]:.2f} s | {means[2]:.1f} s | {means[3]:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

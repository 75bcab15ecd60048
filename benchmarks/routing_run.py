"""One run of a trace over simulated engines with a router in front, in virtual time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.routing_engine import Engine, EngineSpec, Job
from benchmarks.routing_traces import Session, Turn


class Router(Protocol):
    """What stands between clients and engines. `pick` returns the engine's number and whatever it wants to be told later."""

    def pick(self, turn: Turn, now: float) -> tuple[int, Any]: ...

    def first(self, ticket: Any, now: float) -> None: ...

    def end(self, ticket: Any, turn: Turn, job: Job, now: float) -> None: ...


@dataclass(slots=True)
class Sample:
    turn: Turn
    arrived: float
    engine: int
    first: float = 0.0
    ended: float = 0.0
    cached_tokens: int = 0
    ticket: Any = None


@dataclass(slots=True)
class Result:
    """Of the requests that began after the warm-up; a request without a first token counts with its age."""

    samples: list[Sample]
    engines: list[Engine]
    began: float
    ended: float
    ttft: list[float] = field(init=False)
    e2e: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.ttft = sorted((s.first or self.ended) - s.arrived for s in self.samples)
        self.e2e = sorted(s.ended - s.arrived for s in self.samples if s.ended)

    @property
    def hit_rate(self) -> float:
        """Of the prompt tokens that were admitted after the warm-up."""
        asked = sum(s.turn.prompt_tokens for s in self.samples if s.first)
        return sum(s.cached_tokens for s in self.samples if s.first) / asked if asked else 0.0

    @property
    def mean_ttft(self) -> float:
        return sum(self.ttft) / len(self.ttft)

    @property
    def finished(self) -> int:
        return len(self.e2e)

    @property
    def mean_e2e(self) -> float:
        return sum(self.e2e) / len(self.e2e)

    def ttft_at(self, share: float) -> float:
        return self.ttft[min(len(self.ttft) - 1, int(share * len(self.ttft)))]

    @property
    def median_e2e(self) -> float:
        return self.e2e[len(self.e2e) // 2]

    @property
    def imbalance(self) -> float:
        tokens = [0.0] * len(self.engines)
        for sample in self.samples:
            tokens[sample.engine] += sample.turn.prompt_tokens
        return max(tokens) * len(tokens) / (sum(tokens) or 1.0)


def run(
    sessions: Sequence[Session],
    router: Router,
    *,
    specs: Sequence[EngineSpec] = (EngineSpec(),) * 8,
    seconds: float = 140.0,
    warm_up: float = 50.0,
    engines: list[Engine] | None = None,
    at: Sequence[tuple[float, Callable[[], None]]] = (),
) -> Result:
    """Serve the sessions until `seconds`. `at` are things that happen to the fleet meanwhile."""
    engines = engines or [Engine(number, spec) for number, spec in enumerate(specs)]
    events: list[tuple[float, int, str, Any]] = []
    serial = 0

    def later(when: float, kind: str, what: Any) -> None:
        nonlocal serial
        serial += 1
        heapq.heappush(events, (when, serial, kind, what))

    samples: list[Sample] = []
    for session in sessions:
        later(session.start, "ask", (session, 0))
    for when, action in at:
        later(when, "do", action)

    def watch(engine: Engine) -> None:
        if engine.ends < math.inf:
            later(engine.ends, "step", (engine, engine.version))

    while events and events[0][0] < seconds:
        now, _, kind, what = heapq.heappop(events)
        if kind == "ask":
            session, number = what
            turn = session.turns[number]
            chosen, ticket = router.pick(turn, now)
            sample = Sample(turn, now, chosen, ticket=ticket)
            if now >= warm_up:
                samples.append(sample)
            engine = engines[chosen]
            version = engine.version
            job = Job(turn.blocks, turn.prompt_tokens, turn.output_tokens, turn.reply_blocks, (sample, session, number))
            engine.submit(job, now)
            if engine.version != version:
                watch(engine)
        elif kind == "step":
            engine, version = what
            if version != engine.version:
                continue
            first, ended = engine.advance(now)
            for job in first:
                sample = job.tag[0]
                sample.first, sample.cached_tokens = now, job.cached_tokens
                router.first(sample.ticket, now)
            for job in ended:
                sample, session, number = job.tag
                sample.ended = now
                router.end(sample.ticket, sample.turn, job, now)
                if number + 1 < len(session.turns):
                    later(now + session.turns[number + 1].think_seconds, "ask", (session, number + 1))
            watch(engine)
        else:
            what()
    return Result(samples, engines, warm_up, seconds)

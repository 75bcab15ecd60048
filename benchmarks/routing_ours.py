"""The gateway's own chooser behind the simulation's interface, on its virtual clock."""

from __future__ import annotations

from typing import Any

from benchmarks.routing_engine import Job
from benchmarks.routing_traces import Turn
from serving.core.context import Usage
from serving.fleet.store import Endpoint
from serving.routing.chain import turn_pieces_of
from serving.routing.choose import Chooser
from serving.routing.predict import Rates
from serving.routing.question import Question
from serving.routing.work import Ticket

GENERIC = Rates()


class Ours:
    def __init__(self, engines: int, prior: Rates = GENERIC, seed: int = 1, **options: Any) -> None:
        self.now = 0.0
        self.endpoints = tuple(Endpoint(f"e{n}", f"http://e{n}:8000", "m", "default", "simulated") for n in range(engines))
        self.numbers = {endpoint.name: number for number, endpoint in enumerate(self.endpoints)}
        self.chooser = Chooser(clock=lambda: self.now, seed=seed, prior=lambda endpoint: prior, **options)

    def question(self, turn: Turn) -> Question:
        return Question(
            "m", turn.tenant, turn.chain, turn.prompt.size, turn_pieces_of(turn.chain, turn.turn_bytes), turn.output_tokens
        )

    def pick(self, turn: Turn, now: float) -> tuple[int, Any]:
        self.now = now
        ticket = self.chooser.choose("m", self.endpoints, (), lambda: self.question(turn), size_bytes=turn.prompt.size)
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

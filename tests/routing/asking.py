"""Endpoints, questions and clocks for tests of routing."""

from __future__ import annotations

import random

from serving.fleet.store import Endpoint
from serving.routing.chain import chain_of, turn_pieces_of
from serving.routing.choose import Chooser
from serving.routing.question import Question
from serving.routing.work import Ticket


class Clock:
    """Moves only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def endpoint(name: str, pool: str = "default") -> Endpoint:
    return Endpoint(name, f"http://{name}:8000", "m", pool, "cpu")


def endpoints(count: int) -> tuple[Endpoint, ...]:
    return tuple(endpoint(f"e{number}") for number in range(count))


def text(size_bytes: int, seed: object) -> bytes:
    """Letters that nothing else has."""
    return random.Random(repr(seed)).randbytes(size_bytes // 2).hex().encode()


def question(prompt: bytes = b"", *, turn_bytes: int = 0, tenant: str = "t", limit: int | None = 100) -> Question:
    chain = chain_of(prompt, 1)
    turn_pieces = turn_pieces_of(chain, turn_bytes or len(prompt))
    first_turn = chain[turn_pieces - 1] if turn_pieces else 0
    return Question("m", tenant, chain, len(prompt), turn_pieces, limit, first_turn=first_turn)


def chosen(chooser: Chooser, candidates: tuple[Endpoint, ...], asked: Question) -> Ticket:
    """One attempt that has begun."""
    ticket = chooser.choose("m", candidates, (), lambda: asked)
    assert ticket is not None
    chooser.begin(ticket)
    return ticket

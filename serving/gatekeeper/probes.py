"""`serving gate probes`: the known answers of an honest engine, with the floor that repeats in other batches have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from serving.core.errors import ConfigurationError
from serving.fleet.known_answers import (
    PROMPTS,
    PROMPTS_DIGEST,
    Answer,
    Apart,
    NoAnswer,
    Reference,
    apart,
    probe_request,
    read_answer,
)
from serving.gate.address import Address, EngineTrouble
from serving.gatekeeper.cluster import now

LEAST_BAND_NATS = 0.1
FLOORS = 4.0
"""The band is so many times the floor: what a few repeats showed is not the most that there is."""
MOST_FLOOR_NATS = 1.0
"""Beyond it the engine does not repeat itself, and nothing can be known of its answers."""
CROWD = 4
"""Requests at a time while a crowd is there."""


def make_reference(address: Address, target: str, repeats: int, report: Callable[[str], None]) -> Reference:
    """Ask an engine that was found good, and measure how far it is from itself.

    Raises: ConfigurationError when it does not answer, or not twice in the same way.
    """
    address.look()
    first, floor = _once(address, alone=False), 0.0
    for number, answer in enumerate(_repeats(address, repeats), start=2):
        found = apart(first, answer)
        report(f"repeat {number} of {repeats}: {found.nats:.4f} nats over {found.tokens} tokens")
        _require_near(found)
        floor = max(floor, found.nats)
    return Reference(
        model=address.model,
        target=target,
        engine=address.version or "unknown",
        prompts=PROMPTS_DIGEST,
        answer=first,
        repeats=repeats,
        floor_nats=floor,
        band_nats=max(LEAST_BAND_NATS, FLOORS * floor),
        made=now(),
    )


def _require_near(found: Apart) -> None:
    if found.nats > MOST_FLOOR_NATS or found.strange:
        raise ConfigurationError(
            f"the engine is {found.nats:.3g} nats from its own first answers: it does not repeat itself, so nothing can be known "
            "of its answers"
        )


def _repeats(address: Address, repeats: int) -> Iterator[Answer]:
    """The same prompts one by one, together, and in a crowd, which are batches of other sizes."""
    for number in range(1, repeats):
        if number % 3 == 2:
            with ThreadPoolExecutor(CROWD) as crowd:
                yield from list(crowd.map(lambda _: _once(address, alone=False), range(CROWD)))[:1]
        else:
            yield _once(address, alone=number % 3 == 1)


def _once(address: Address, *, alone: bool) -> Answer:
    """Raises: ConfigurationError."""
    body: dict[str, Any] = orjson.loads(probe_request(address.model).body)
    try:
        if not alone:
            return read_answer(orjson.dumps(address.ask("/v1/completions", body)))[0]
        answers = [address.ask("/v1/completions", body | {"prompt": prompt}) for prompt in PROMPTS]
        return tuple(read_answer(orjson.dumps(answer))[0][0] for answer in answers)
    except (EngineTrouble, NoAnswer, IndexError) as error:
        raise ConfigurationError(f"{address.url}: {error}") from None

"""What an engine has to do that this gateway knows nothing of: requests of other gateways and of who asks it directly.

The engine's own figures say how many requests it has; those that this gateway (and its peers, where they tell each other) has
under way there are among them, and what is left is others' work.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import NamedTuple

from serving.fleet.engine_load import EngineLoad


class Others(NamedTuple):
    """Requests, on average, and tokens."""

    running: float
    waiting: float
    context_tokens: float
    """What they take of the cache."""


NONE = Others(0.0, 0.0, 0.0)


def others_of(load: EngineLoad, *, known: int, known_waiting: int, known_tokens: float, cache_tokens: float) -> Others | None:
    """None: nobody else's work shows.

    `known` requests are accounted for. Some of them are on their way while the engine is read, by chance about the root of their
    number, so that no more is taken for others' than what is beyond that.
    """
    surplus = (load.running or 0.0) + (load.waiting or 0.0) - known - sqrt(known)
    if surplus < 1.0:
        return None
    waiting = min(surplus, max(0.0, (load.waiting or 0.0) - known_waiting))
    tokens = 0.0 if load.kv_cache_usage is None else max(0.0, load.kv_cache_usage * cache_tokens - known_tokens)
    return Others(surplus - waiting, waiting, tokens)


def faded(last: Others | None, share: float, pool: Iterable[Others | None]) -> Others | None:
    """What is believed of an engine that does not say anything any more: a `share` of what it said last, and for the rest what
    those of its pool that do say have. Silence is not idleness."""
    rows = [NONE if each is None else each for each in pool]
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)] if rows else NONE
    guess = Others(*(share * old + (1.0 - share) * other for old, other in zip(last or NONE, mean, strict=True)))
    return guess if guess.running + guess.waiting >= 0.5 else None

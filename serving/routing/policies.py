"""Policies that look at no cost. They are there to compare with, and for those who want to know beforehand what happens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from xxhash import xxh3_64_intdigest

from serving.routing.question import Question
from serving.routing.work import Work

Ask = Callable[[], Question]
Pick = Callable[[Sequence[Work], Ask, random.Random], Work]


def least_loaded(works: Sequence[Work], ask: Ask, dice: random.Random) -> Work:
    """The fewest requests under way; among equals the one that was used longest ago."""
    return min(works, key=lambda work: (work.in_flight, work.last_used))


def round_robin(works: Sequence[Work], ask: Ask, dice: random.Random) -> Work:
    return min(works, key=lambda work: work.last_used)


def at_random(works: Sequence[Work], ask: Ask, dice: random.Random) -> Work:
    return dice.choice(works)


def by_session(works: Sequence[Work], ask: Ask, dice: random.Random) -> Work:
    """All requests of a session to one endpoint, of all sessions about as many to each; without a session by the conversation."""
    question = ask()
    session = question.session or question.conversation
    if not session:
        return least_loaded(works, ask, dice)
    return max(works, key=lambda work: xxh3_64_intdigest(work.name, session))


POLICIES: dict[str, Pick] = {
    "least_loaded": least_loaded,
    "random": at_random,
    "round_robin": round_robin,
    "session": by_session,
}

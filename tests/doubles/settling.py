"""Waiting for a state instead of for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

HANG_SECONDS = 60.0
"""What has not come by then never will: it only ends tests that fail, and a machine that has no time for them is no failure."""
LEAST_POLLS = 100
"""A machine may give this process no time for seconds; what it then says at the deadline was never looked at."""


async def settled(problems: Callable[[], Awaitable[Sequence[str]]], *, within_seconds: float = HANG_SECONDS) -> None:
    """Poll until `problems` finds none, until the deadline and 100 times at least.

    Raises:
        AssertionError: listing what is still wrong at the deadline
    """
    deadline = time.monotonic() + within_seconds
    polls = 0
    while True:
        found = await problems()
        if not found:
            return
        polls += 1
        if time.monotonic() >= deadline and polls >= LEAST_POLLS:
            raise AssertionError(f"not settled within {within_seconds} s:\n  " + "\n  ".join(found))
        await asyncio.sleep(0.01)


async def become(condition: Callable[[], object], *, within_seconds: float = HANG_SECONDS) -> None:
    """Poll until `condition` holds, as `settled` does."""

    async def problems() -> list[str]:
        return [] if condition() else ["the condition does not hold"]

    await settled(problems, within_seconds=within_seconds)

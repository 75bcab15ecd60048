"""Waiting for a state instead of for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

LEAST_POLLS = 100
"""A machine may give this process no time for seconds; what it then says at the deadline was never looked at."""


async def settled(problems: Callable[[], Awaitable[Sequence[str]]], *, within_seconds: float = 2.0) -> None:
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

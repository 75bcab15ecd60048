"""Waiting for a state instead of for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence


async def settled(problems: Callable[[], Awaitable[Sequence[str]]], *, within_seconds: float = 2.0) -> None:
    """Poll until `problems` finds none.

    Raises:
        AssertionError: listing what is still wrong at the deadline
    """
    deadline = time.monotonic() + within_seconds
    while True:
        found = await problems()
        if not found:
            return
        if time.monotonic() >= deadline:
            raise AssertionError(f"not settled within {within_seconds} s:\n  " + "\n  ".join(found))
        await asyncio.sleep(0.01)

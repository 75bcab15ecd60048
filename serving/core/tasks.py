"""How tasks that belong to somebody are ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any


async def end_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel all of them, then wait until each has ended. What one of them failed with is raised."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task

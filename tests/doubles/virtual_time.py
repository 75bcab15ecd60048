"""Tests in which no time passes: sleeping is jumping to the next timer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any


class VirtualTime(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer as soon as nothing else is left to do."""

    def __init__(self) -> None:
        super().__init__()
        self._now_seconds = 0.0

    def time(self) -> float:
        return self._now_seconds

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._now_seconds = max(self._now_seconds, self._scheduled[0].when())
        super()._run_once()


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualTime) as runner:
            runner.run(test(**fixtures))

    return run

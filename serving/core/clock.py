"""The clocks: monotonic seconds for intervals, wall time for what people read."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds; only differences mean something."""

monotonic: Clock = time.monotonic


def wall_seconds() -> float:
    """Seconds since the epoch, for time stamps only."""
    return time.time()


def wall_nanoseconds() -> int:
    """The same in nanoseconds."""
    return time.time_ns()

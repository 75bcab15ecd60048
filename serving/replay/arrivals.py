"""When requests are to be sent, in seconds from the beginning of a load."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Pace = Literal["poisson", "paced"]


@dataclass(frozen=True)
class OpenLoop:
    """So many requests a second, whatever becomes of them."""

    requests_per_second: float
    pace: Pace = "poisson"

    @property
    def label(self) -> str:
        return f"{self.requests_per_second:.4g} requests/s, {self.pace}"


@dataclass(frozen=True)
class ClosedLoop:
    """So many requests, or sessions, at any time; the next one when one has ended."""

    concurrency: int

    @property
    def label(self) -> str:
        return f"{self.concurrency} at a time"


@dataclass(frozen=True)
class Recorded:
    """At the moments of the trace, so many times as fast."""

    speed: float = 1.0

    @property
    def label(self) -> str:
        return "as recorded" if self.speed == 1.0 else f"as recorded, {self.speed:g} x as fast"


Pattern = OpenLoop | ClosedLoop | Recorded


def offsets(pattern: OpenLoop, seed: int) -> Iterator[float]:
    """Without end. Poisson: independent of each other; paced: all alike far apart."""
    if pattern.pace == "paced":
        return (number / pattern.requests_per_second for number in itertools.count())
    chance = random.Random(f"arrivals/{seed}")
    return itertools.accumulate(chance.expovariate(pattern.requests_per_second) for _ in itertools.count())

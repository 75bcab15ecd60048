"""Quantiles, and intervals by the moving-block bootstrap: neighbours in time resemble each other, so blocks of them are drawn.

Standard library only; deterministic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

METHOD = (
    "95 % intervals: circular moving-block bootstrap within the run (blocks of √n requests in the order of their intended times, "
    "or of 4 of 40 slices of the window; percentiles of the resampled statistic). What differs from run to run is not in them."
)
SLICES = 40
"""Equal parts of the window, for rates."""
SLICE_BLOCK = 4
_MOST_RESAMPLES = 400
_LEAST_RESAMPLES = 100
_WORK = 1_500_000
"""Values drawn in all."""

Statistic = Callable[[list[float]], float]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values in order, with linear interpolation; nan of none."""
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def at_share(share: float) -> Statistic:
    """The statistic `quantile` of unordered values."""

    def statistic(values: list[float]) -> float:
        values.sort()
        return quantile(values, share)

    return statistic


def block_of(count: int) -> int:
    return max(1, round(math.sqrt(count)))


def replicates(values: Sequence[float], statistics: Sequence[Statistic], *, block: int, seed: int) -> list[list[float]]:
    """Of each statistic its values over the resampled series, all on the same resamples."""
    count = len(values)
    if not count:
        return [[] for _ in statistics]
    rounds = max(_LEAST_RESAMPLES, min(_MOST_RESAMPLES, _WORK // count))
    chance = random.Random(seed)
    # Around the end the series goes on at its beginning, so that all values are drawn equally often.
    ring = [*values, *values[:block]]
    blocks = math.ceil(count / block)
    places = range(count)
    found: list[list[float]] = [[] for _ in statistics]
    for _ in range(rounds):
        drawn: list[float] = []
        for start in chance.choices(places, k=blocks):
            drawn += ring[start : start + block]
        del drawn[count:]
        for place, statistic in enumerate(statistics):
            found[place].append(statistic(drawn))
    return found


def interval(replicated: list[float]) -> tuple[float, float]:
    """Of the middle 95 %."""
    ordered = sorted(replicated)
    return quantile(ordered, 0.025), quantile(ordered, 0.975)

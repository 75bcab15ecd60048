"""Means with intervals, a paired t and McNemar's test. The unit is the passage: tokens of one passage resemble each other.

Standard library only; seeded, so that the same reports give the same verdict.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

RESAMPLES = 1000
SEED = 20261130
LOW, HIGH = 0.025, 0.975


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


def weighted_mean(sums: Sequence[float], counts: Sequence[int]) -> Estimate:
    """Of all tokens, from the sums and counts of the passages; the interval is a bootstrap over passages.

    Raises: ValueError for no token at all.
    """
    total = sum(counts)
    if not total:
        raise ValueError("a mean of nothing")
    value = math.fsum(sums) / total
    means = []
    for drawn in _draws(len(sums)):
        count = sum(counts[place] for place in drawn)
        if count:
            means.append(math.fsum(sums[place] for place in drawn) / count)
    means.sort()
    return Estimate(value, quantile(means, LOW), quantile(means, HIGH))


@lru_cache(maxsize=8)
def _draws(count: int) -> tuple[tuple[int, ...], ...]:
    chance = random.Random(SEED)
    return tuple(tuple(chance.choices(range(count), k=count)) for _ in range(RESAMPLES))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values in order, with linear interpolation."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def standard_error(sums: Sequence[float], counts: Sequence[int]) -> float:
    """Of the weighted mean, with passages as the unit."""
    total, passages = sum(counts), len(sums)
    if passages < 2 or not total:
        return math.inf
    mean = math.fsum(sums) / total
    residues = math.fsum((one - mean * count) ** 2 for one, count in zip(sums, counts, strict=True))
    return math.sqrt(residues * passages / (passages - 1)) / total


def paired_t(differences: Sequence[float]) -> float:
    """Mean over its standard error; 0 for differences that are all 0, infinite for differences that are all the same."""
    count = len(differences)
    if count < 2:
        return 0.0
    mean = math.fsum(differences) / count
    variance = math.fsum((one - mean) ** 2 for one in differences) / (count - 1)
    if variance == 0:
        return 0.0 if mean == 0 else math.copysign(math.inf, mean)
    return mean / math.sqrt(variance / count)


def mcnemar(lost: int, won: int) -> float:
    """Chance of losing at least so many of the items that differ, if losing and winning were equally likely. One-sided, exact."""
    differing = lost + won
    if not differing:
        return 1.0
    return float(sum(math.comb(differing, number) for number in range(lost, differing + 1)) / 2**differing)

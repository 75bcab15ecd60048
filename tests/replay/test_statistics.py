from __future__ import annotations

import math
import random

import pytest

from serving.replay.statistics import at_share, interval, mean, quantile, replicates


def test_quantiles_lie_between_their_neighbours() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([1.0, 2.0, 3.0], 1.0) == 3.0
    assert math.isnan(quantile([], 0.5))


def test_the_same_seed_draws_the_same() -> None:
    values = [random.Random(1).random() for _ in range(200)]
    first, second = (replicates(values, [mean, at_share(0.5)], block=14, seed=5) for _ in range(2))
    assert first == second


def correlated(count: int, seed: int) -> list[float]:
    """Neighbours resemble each other, as in a queue; the true mean is zero."""
    chance = random.Random(seed)
    values, last = [], 0.0
    for _ in range(count):
        last = 0.8 * last + chance.gauss(0, 1)
        values.append(last)
    return values


def covered(block: int) -> int:
    found = 0
    for seed in range(60):
        low, high = interval(replicates(correlated(200, seed), [mean], block=block, seed=seed)[0])
        found += low <= 0.0 <= high
    return found


def test_intervals_hold_the_truth_also_where_neighbours_resemble_each_other() -> None:
    assert covered(block=20) >= 45


def test_single_draws_would_not() -> None:
    """What blocks are for."""
    assert covered(block=1) <= 42


def test_nothing_has_no_replicates() -> None:
    assert replicates([], [mean], block=1, seed=0) == [[]]


def test_all_statistics_see_the_same_resample() -> None:
    values = [float(value) for value in range(100)]
    means, same = replicates(values, [mean, mean], block=10, seed=0)
    assert means == pytest.approx(same)

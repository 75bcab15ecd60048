"""The figures behind the verdicts, against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from serving.catalog.gate_rules import Band
from serving.gate.evidence import decide
from serving.gate.statistics import Estimate, mcnemar, paired_t, standard_error, weighted_mean


def test_a_mean_weighs_passages_by_their_tokens() -> None:
    found = weighted_mean([1.0, 30.0], [1, 10])
    assert found.value == pytest.approx(31 / 11)
    assert found.low <= found.value <= found.high
    assert (found.low, found.high) == (1.0, 3.0)


def test_an_interval_narrows_with_passages_and_is_the_same_each_time() -> None:
    few, many = ([1.0, 2.0, 3.0, 4.0] * times for times in (2, 20))
    narrow, wide = (weighted_mean(values, [1] * len(values)) for values in (many, few))
    assert narrow.high - narrow.low < (wide.high - wide.low) / 2
    assert weighted_mean(many, [1] * 80) == narrow


def test_equal_passages_have_no_interval() -> None:
    assert weighted_mean([2.0, 4.0], [1, 2]) == Estimate(2.0, 2.0, 2.0)


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="a mean of nothing"):
        weighted_mean([], [])


def test_the_error_of_a_mean_counts_passages_not_tokens() -> None:
    assert standard_error([1.0, 3.0], [1, 1]) == pytest.approx(1.0)
    assert standard_error([100.0, 300.0], [100, 100]) == pytest.approx(1.0)
    assert standard_error([1.0], [1]) == math.inf


def test_the_paired_t() -> None:
    assert paired_t([1.0, 2.0, 3.0]) == pytest.approx(2 / math.sqrt(1 / 3))
    assert paired_t([0.0, 0.0]) == 0.0
    assert paired_t([0.5, 0.5]) == math.inf
    assert paired_t([1.0]) == 0.0


@pytest.mark.parametrize(("lost", "won", "p"), [(0, 0, 1.0), (1, 0, 0.5), (5, 0, 1 / 32), (3, 3, 42 / 64), (0, 4, 1.0)])
def test_mcnemar(lost: int, won: int, p: float) -> None:
    assert mcnemar(lost, won) == pytest.approx(p)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(0.0, 0.1, "pass"), (0.0, 0.11, "not_decided"), (0.15, 0.3, "not_decided"), (0.2, 0.3, "not_decided"), (0.21, 0.3, "fail")],
)
def test_the_whole_interval_decides(low: float, high: float, outcome: str) -> None:
    assert decide(Estimate((low + high) / 2, low, high), Band(passes=0.1, fails=0.2)) == outcome

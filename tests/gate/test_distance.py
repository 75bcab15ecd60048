"""Distances of two distributions of which only the likeliest tokens are known."""

from __future__ import annotations

import math

import pytest

from serving.gate.collected import Passage, Top
from serving.gate.distance import SKIPPED_POSITIONS, compare_passages, kl_of_union


def top(**probabilities: float) -> Top:
    """`top(t1=0.5, t2=0.2)`: tokens by their number."""
    ordered = sorted(probabilities.items(), key=lambda pair: -pair[1])
    return Top(ids=tuple(int(name[1:]) for name, _ in ordered), logprobs=tuple(math.log(value) for _, value in ordered))


def test_the_same_has_none() -> None:
    assert kl_of_union(top(t1=0.6, t2=0.3), top(t1=0.6, t2=0.3)) == 0.0


def test_it_is_the_divergence_where_everything_is_listed() -> None:
    wanted = 0.6 * math.log(0.6 / 0.5) + 0.4 * math.log(0.4 / 0.5)
    assert kl_of_union(top(t1=0.6, t2=0.4), top(t1=0.5, t2=0.5)) == pytest.approx(wanted, abs=1e-6)


def test_two_that_share_nothing_are_far_apart() -> None:
    # Over the shared tokens only, it would be 0: there are none.
    assert kl_of_union(top(t1=0.9, t2=0.05), top(t3=0.9, t4=0.05)) > 1.5


def test_it_grows_with_the_change() -> None:
    base = top(t1=0.7, t2=0.2, t3=0.05)
    steps = [kl_of_union(base, top(t1=0.7 - step, t2=0.2 + step, t3=0.05)) for step in (0.0, 0.05, 0.1, 0.2, 0.3)]
    assert steps == sorted(steps)


def passage(*tops: Top | None, kind: str = "prose") -> Passage:
    logprobs = tuple(None if one is None else one.logprobs[0] for one in tops)
    return Passage(name="p", kind=kind, ids=tuple(range(len(tops))), logprobs=logprobs, tops=tops)


def test_the_first_positions_are_left_out_but_in_long_contexts() -> None:
    one = top(t1=0.6, t2=0.3)
    text = passage(None, *[one] * 6)
    assert [position.index for position in compare_passages(text, text).positions] == [*range(SKIPPED_POSITIONS, 7)]
    long = passage(*[one] * 2, kind="long")
    assert [position.index for position in compare_passages(long, long).positions] == [0, 1]


def test_a_tie_for_the_first_token_is_no_loss() -> None:
    sure, tied, other = top(t1=0.8, t2=0.1), top(t2=0.4, t1=0.4), top(t2=0.8, t1=0.1)
    positions = compare_passages(passage(None, *[sure] * 6), passage(None, *[tied] * 3, *[other] * 3)).positions
    assert [position.is_same_top for position in positions] == [False, False, False]
    positions = compare_passages(passage(None, *[sure] * 6), passage(None, *[tied] * 6)).positions
    assert all(position.is_same_top and position.is_sure for position in positions)
    assert not compare_passages(passage(None, *[tied] * 6), passage(None, *[tied] * 6)).positions[0].is_sure

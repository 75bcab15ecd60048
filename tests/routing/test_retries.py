"""The retry budget over a sliding window, on a clock of the test."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.routing.retries import RetryBudget
from serving.settings import RetryBudgetSettings


class HandClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def budget(clock: HandClock, **settings: Any) -> RetryBudget:
    return RetryBudget(RetryBudgetSettings(**{"share": 0.2, "least_per_second": 0.0, "window_seconds": 10} | settings), clock)


def taken(retries: RetryBudget, most: int = 1000) -> int:
    count = 0
    while count < most and retries.take():
        count += 1
    return count


def test_retries_are_a_share_of_the_requests() -> None:
    retries = budget(HandClock())
    assert taken(retries) == 0
    for _ in range(49):
        retries.request()
    assert taken(retries) == 9


def test_a_quiet_gateway_may_retry() -> None:
    retries = budget(HandClock(), least_per_second=0.5)
    retries.request()
    assert taken(retries) == 5


def test_nothing_is_allowed_where_nothing_is_given() -> None:
    retries = budget(HandClock(), share=0.0)
    for _ in range(100):
        retries.request()
    assert taken(retries) == 0


@pytest.mark.parametrize(("seconds", "left"), [(9, 10), (10, 0), (25, 0), (100_000, 0)])
def test_the_window_slides(seconds: float, left: int) -> None:
    clock = HandClock()
    retries = budget(clock)
    for _ in range(50):
        retries.request()
    clock.seconds += seconds
    assert taken(retries) == left


def test_what_was_taken_comes_back_when_it_leaves_the_window() -> None:
    clock = HandClock()
    retries = budget(clock, least_per_second=1.0)
    assert taken(retries) == 10
    clock.seconds += 9
    assert taken(retries) == 0
    clock.seconds += 1
    assert taken(retries) == 10


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 30), st.integers(0, 30)), max_size=60))
def test_retries_never_exceed_their_share_of_all_requests_nor_of_the_windows(steps: list[tuple[float, int, int]]) -> None:
    clock = HandClock()
    retries = budget(clock)
    requests: list[float] = []
    made: list[float] = []
    for wait, arriving, failing in steps:
        clock.seconds += wait
        for _ in range(arriving):
            retries.request()
            requests.append(clock.seconds)
        retried = taken(retries, failing)
        made += [clock.seconds] * retried
        assert len(made) <= 0.2 * len(requests) + 1e-9
        if retried:
            first = int(clock.seconds) - 9
            assert sum(at >= first for at in made) <= 0.2 * sum(at >= first for at in requests) + 1e-9

"""A sliding window: no minute, wherever it begins, holds more than was allowed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serving.tenancy.window import WINDOW_SECONDS, Window

LIMIT = 10
steps = st.lists(st.tuples(st.floats(0, 20), st.integers(1, 6)), max_size=60)


def test_what_was_taken_counts_for_a_minute() -> None:
    window = Window()
    window.add(0.5, 7)
    for now in (0.5, 30.0, 60.9):
        window.advance(now)
        assert window.total == 7
    window.advance(61.0)
    assert window.total == 0


def test_what_is_given_back_is_there_again_while_it_counts() -> None:
    window = Window()
    window.add(3.2, 7)
    window.add(9.0, 1)
    window.give_back(3.9, 5)
    assert window.total == 3
    window.give_back(3.9, 5)
    assert window.total == 1, "no more than was taken then"
    window.advance(70.0)
    window.give_back(9.0, 1)
    assert window.total == 0, "what has left the window is worth nothing"


@given(steps)
def test_no_minute_holds_more_than_the_limit(walk: list[tuple[float, int]]) -> None:
    window, now = Window(), 1000.0
    admitted: list[tuple[float, int]] = []
    for pause, amount in walk:
        now += pause
        window.advance(now)
        if window.total + amount <= LIMIT:
            window.add(now, amount)
            admitted.append((now, amount))
    for start, _ in admitted:
        assert sum(amount for at, amount in admitted if start <= at < start + WINDOW_SECONDS) <= LIMIT


@given(steps, st.integers(1, 10))
def test_after_the_wait_that_is_told_there_is_room(walk: list[tuple[float, int]], amount: int) -> None:
    window, now = Window(), 1000.0
    for pause, taken in walk:
        now += pause
        window.advance(now)
        if window.total + taken <= LIMIT:
            window.add(now, taken)
    wait_seconds = window.wait_seconds(now, amount, LIMIT)
    assert (wait_seconds == 0) == (window.total + amount <= LIMIT)
    if wait_seconds > 0.01:
        window.advance(now + wait_seconds - 0.01)
        assert window.total + amount > LIMIT, "not earlier"
    window.advance(now + wait_seconds + 1e-6)
    assert window.total + amount <= LIMIT
    window.advance(now + window.reset_seconds(now) + 1e-6)
    assert window.total == 0

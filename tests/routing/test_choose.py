"""The fewest requests under way; among equals the one that was used longest ago."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from serving.fleet.store import Endpoint, EndpointState, EndpointStatus
from serving.routing.choose import Chooser


def endpoint(name: str) -> Endpoint:
    return Endpoint(name, f"http://{name}:8000", "m", "default", "cpu")


A, B, C = endpoint("a"), endpoint("b"), endpoint("c")


def test_without_candidates_there_is_no_choice() -> None:
    assert Chooser().choose([], ()) is None


def test_what_was_tried_is_not_chosen_again() -> None:
    chooser = Chooser()
    assert chooser.choose([A, B], {"a"}) is B
    assert chooser.choose([A, B], {"a", "b"}) is None


def test_choosing_alone_changes_nothing() -> None:
    chooser = Chooser()
    assert [chooser.choose([A, B], ()) for _ in range(3)] == [A, A, A]
    assert chooser.in_flight("a") == 0


def test_the_least_busy_is_chosen() -> None:
    chooser = Chooser()
    for busy in (A, A, B, C, C):
        chooser.take(busy)
    assert chooser.choose([A, B, C], ()) is B


def test_one_at_a_time_goes_around() -> None:
    chooser = Chooser()
    turns = []
    for _ in range(6):
        chosen = chooser.choose([A, B, C], ())
        assert chosen is not None
        chooser.take(chosen)
        chooser.release(chosen)
        turns.append(chosen)
    assert turns == [A, B, C, A, B, C]


def test_an_endpoint_that_is_new_is_taken_first_among_equals() -> None:
    chooser = Chooser()
    chooser.take(A)
    chooser.release(A)
    assert chooser.choose([A, B], ()) is B


def test_what_is_released_counts_no_more() -> None:
    chooser = Chooser()
    chooser.take(A)
    chooser.take(A)
    assert chooser.in_flight("a") == 2
    chooser.release(A)
    chooser.release(A)
    assert chooser.in_flight("a") == 0


def test_one_that_starts_slowly_takes_its_turn_and_no_more_than_its_share() -> None:
    ramping = {"a": EndpointStatus(A, EndpointState.READY, began_at=100.0, ramp_seconds=40.0)}
    chooser = Chooser(lambda: ramping, clock=lambda: 110.0)
    taken: Counter[str] = Counter()
    for _ in range(45):
        chosen = chooser.choose([A, B, C], ())
        assert chosen is not None
        chooser.take(chosen)
        taken[chosen.name] += 1
    assert taken["b"] == taken["c"]
    assert taken["a"] == taken["b"] / 4


@given(st.lists(st.booleans(), max_size=60))
def test_the_load_is_even_whatever_the_order_of_ends(steps: list[bool]) -> None:
    chooser, open_requests = Chooser(), []
    for begins in steps:
        if begins or not open_requests:
            chosen = chooser.choose([A, B, C], ())
            assert chosen is not None
            least = min(chooser.in_flight(name) for name in "abc")
            assert chooser.in_flight(chosen.name) == least
            chooser.take(chosen)
            open_requests.append(chosen)
        else:
            chooser.release(open_requests.pop(0))
    assert Counter(e.name for e in open_requests) == Counter({n: c for n in "abc" if (c := chooser.in_flight(n))})

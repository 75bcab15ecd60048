"""A breaker opens after faults in a row, tries again after a time that grows, and closes with a success. No clock runs here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.fleet.breaker import Breaker, BreakerState
from serving.health_settings import HealthSettings

CLOSED, OPEN, HALF_OPEN = BreakerState
SETTINGS = HealthSettings(faults=3, open_seconds=5.0, most_open_seconds=40.0, recovery_seconds=60.0)


def opened(at: float = 100.0) -> Breaker:
    breaker = Breaker(SETTINGS)
    assert [breaker.fault(at) for _ in range(3)] == [False, False, True]
    return breaker


def trial(breaker: Breaker, now: float, *, passes: bool) -> None:
    assert breaker.begin_trial(now)
    breaker.trial_passed(now) if passes else breaker.trial_failed(now)


def test_faults_in_a_row_open_it() -> None:
    assert opened().state is OPEN


def test_a_whole_answer_in_between_starts_the_count_anew() -> None:
    breaker = Breaker(SETTINGS)
    for turn in range(10):
        breaker.fault(10.0 * turn)
        breaker.fault(10.0 * turn + 1)
        breaker.success(10.0 * turn + 3, began=10.0 * turn + 2)
    assert breaker.state is CLOSED


def test_an_answer_of_a_request_that_is_older_than_the_trouble_says_nothing() -> None:
    """An engine that drains ends its old streams well and refuses each new one."""
    breaker = Breaker(SETTINGS)
    breaker.fault(100.0)
    breaker.success(101.0, began=50.0)
    breaker.fault(102.0)
    assert breaker.fault(103.0)
    breaker.success(104.0, began=99.0)
    assert breaker.state is OPEN


def test_a_shared_fault_counts_half_at_each() -> None:
    first, second = Breaker(SETTINGS), Breaker(SETTINGS)
    for turn in range(4):
        first.fault(turn)
        second.fault(turn, weight=0.5)
        first.pardon()
    assert first.state is second.state is CLOSED
    assert (first.faults, second.faults) == (2.0, 2.0)


def test_no_trial_before_its_time_and_one_at_a_time() -> None:
    breaker = opened(100.0)
    assert not breaker.begin_trial(104.9)
    assert breaker.begin_trial(105.0)
    assert breaker.state is HALF_OPEN
    assert not breaker.begin_trial(106.0)


def test_a_trial_that_passes_closes_it_on_probation() -> None:
    breaker = opened(100.0)
    trial(breaker, 105.0, passes=True)
    assert breaker.state is CLOSED
    assert breaker.fault(106.0)


def test_a_whole_answer_ends_the_probation() -> None:
    breaker = opened(100.0)
    trial(breaker, 105.0, passes=True)
    breaker.success(107.0, began=106.0)
    assert not breaker.fault(108.0)


def test_the_time_doubles_up_to_its_bound() -> None:
    breaker = opened(0.0)
    now, times = 0.0, []
    for _ in range(6):
        times.append(breaker.until - now)
        now = breaker.until
        trial(breaker, now, passes=False)
    assert times == [5.0, 10.0, 20.0, 40.0, 40.0, 40.0]


def test_a_relapse_goes_on_where_it_was_and_a_long_good_time_is_forgiven() -> None:
    breaker = opened(0.0)
    trial(breaker, 5.0, passes=False)
    trial(breaker, 15.0, passes=True)
    breaker.fault(20.0)
    assert breaker.until - 20.0 == 20.0
    trial(breaker, 40.0, passes=True)
    breaker.fault(40.0 + 2 * 60.0)
    assert breaker.until - 160.0 == 10.0


def test_a_client_whose_answer_is_whole_closes_it_too() -> None:
    """The least bad stay in rotation when all fail."""
    breaker = opened(100.0)
    breaker.success(102.0, began=101.0)
    assert breaker.state is CLOSED
    assert not breaker.fault(103.0)


def test_a_trial_that_is_put_off_neither_closes_nor_prolongs() -> None:
    breaker = opened(100.0)
    assert breaker.begin_trial(105.0)
    breaker.trial_put_off(105.0, 1.0)
    assert breaker.state is OPEN
    assert breaker.begin_trial(106.0)
    breaker.trial_failed(106.0)
    assert breaker.until == 116.0


def test_another_process_need_not_wait() -> None:
    breaker = opened(100.0)
    breaker.try_now(101.0)
    assert breaker.begin_trial(101.0)


def test_what_has_done_well_for_long_is_forgotten() -> None:
    breaker = opened(0.0)
    trial(breaker, 5.0, passes=True)
    breaker.success(7.0, began=6.0)
    assert not breaker.forgotten(64.0)
    assert breaker.forgotten(65.0)


Steps = st.lists(
    st.tuples(
        st.sampled_from(["fault", "shared", "pardon", "success", "old", "trial", "passed", "failed", "busy", "now", "draining"]),
        st.floats(0.0, 30.0),
    ),
    max_size=80,
)


@pytest.mark.parametrize("settings", [SETTINGS, HealthSettings(faults=1, open_seconds=1.0, most_open_seconds=1.0)])
@given(steps=Steps)
def test_whatever_happens(settings: HealthSettings, steps: list[tuple[str, float]]) -> None:
    """It is out for a bounded time, opens for no less than the faults that are set, and has one trial at most."""
    breaker, now, weight_since_success, trials = Breaker(settings), 1000.0, 0.0, 0
    for what, seconds in steps:
        now += seconds
        before = breaker.state
        match what:
            case "fault" | "shared":
                weight = 1.0 if what == "fault" else 0.5
                weight_since_success += weight
                if breaker.fault(now, weight=weight):
                    assert before is CLOSED and weight_since_success >= settings.faults
            case "pardon":
                breaker.pardon()
            case "success":
                breaker.success(now, began=now)
                weight_since_success = 0.0
                assert breaker.state is CLOSED or now == breaker.opened_at
            case "old":
                breaker.success(now, began=0.0)
                assert breaker.state is before
            case "trial":
                if breaker.begin_trial(now):
                    assert before is OPEN and trials == 0
                    trials += 1
            case "passed":
                breaker.trial_passed(now)
                weight_since_success = float(settings.faults)
            case "failed":
                breaker.trial_failed(now)
            case "busy":
                breaker.trial_put_off(now, 1.0)
            case "now":
                breaker.try_now(now)
            case "draining":
                breaker.open(now) if before is CLOSED else None
        trials = trials if breaker.state is HALF_OPEN else 0
        assert (breaker.state is HALF_OPEN) == (trials == 1)
        assert breaker.state is not OPEN or breaker.until - now <= settings.most_open_seconds + 1e-6
        assert breaker.level >= 0 and breaker.faults >= 0.0

"""The parts that requests answer for and the idle time are the time that went by, whatever happens in which order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.cost.machine_time import CHUNK_TOKENS, STALE_SECONDS, Account, Stay
from serving.cost.totals import PoolTotals


@dataclass
class Rates:
    prefill_seconds: float = 0.001
    step: float = 0.01
    step_slope: float = 0.001


class Machine:
    """One endpoint, and a clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0
        self.rates = Rates()
        self.pool = PoolTotals(1.0)
        self.account = Account(self.pool, self.rates, self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def begin(self, work: float = 1.0, *, sequences: int = 1, silent: bool = False) -> Stay:
        return Stay(self.account, self.now, work, sequences, silent=silent)

    def first(self, *stays: Stay) -> None:
        for stay in stays:
            stay.first_token(self.now)

    def end(self, stay: Stay) -> tuple[float, float]:
        stay.end(self.now)
        return stay.prompt_seconds, stay.output_seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_request_alone_answers_for_all_of_its_time_and_for_none_of_the_idle_time(machine: Machine) -> None:
    machine.wait(5)
    stay = machine.begin()
    machine.wait(2)
    machine.first(stay)
    machine.wait(3)
    assert machine.end(stay) == (2.0, 3.0)
    machine.wait(7)
    machine.account.advance(machine.now)
    assert machine.pool.output_seconds == 3.0


def test_prompts_share_in_proportion_to_the_work_that_they_are(machine: Machine) -> None:
    long, short = machine.begin(9.0), machine.begin(1.0)
    machine.wait(10)
    assert machine.end(long) == (9.0, 0.0)
    assert machine.end(short) == (1.0, 0.0)


def test_what_is_written_shares_evenly(machine: Machine) -> None:
    stays = [machine.begin(number) for number in (1.0, 7.0)]
    machine.first(*stays)
    machine.wait(6)
    assert [machine.end(stay) for stay in stays] == [(0.0, 3.0), (0.0, 3.0)]


def test_a_step_is_divided_into_what_it_computes_and_what_it_writes(machine: Machine) -> None:
    """A prompt of 60 ms beside ten that are written, which take 20 ms: three quarters and one."""
    writing = [machine.begin() for _ in range(10)]
    machine.first(*writing)
    prompt = machine.begin(0.06)
    machine.wait(8)
    assert machine.end(prompt) == pytest.approx((6.0, 0.0))
    assert [machine.end(stay) for stay in writing] == [pytest.approx((0.0, 0.2))] * 10


def test_a_step_computes_no_more_than_a_chunk(machine: Machine) -> None:
    """However much waits, those that are written get their part of each step."""
    writing = machine.begin()
    machine.first(writing)
    machine.begin(1e6)
    machine.wait(1)
    chunk, step = CHUNK_TOKENS * machine.rates.prefill_seconds, machine.rates.step + machine.rates.step_slope
    assert machine.end(writing)[1] == pytest.approx(step / (chunk + step))


def test_a_request_of_many_sequences_takes_the_part_of_each(machine: Machine) -> None:
    many, one = machine.begin(sequences=3), machine.begin()
    machine.first(many, one)
    machine.wait(8)
    assert (machine.end(many)[1], machine.end(one)[1]) == (6.0, 2.0)


def test_an_answer_that_comes_whole_is_being_written_once_its_prompt_should_be_done(machine: Machine) -> None:
    silent, stream = machine.begin(2.0, silent=True), machine.begin(6.0)
    machine.first(stream)
    machine.wait(10)
    computing, step = 2.0, machine.rates.step + machine.rates.step_slope
    assert machine.end(silent) == pytest.approx((2.0 * computing / (computing + step), 4.0))
    assert machine.end(stream)[1] == pytest.approx(2.0 * step / (computing + step) + 4.0)


def test_those_that_end_early_hold_up_nobody(machine: Machine) -> None:
    """A prompt that was cached is done long before its work is; what comes behind it must not wait for that."""
    for _ in range(1000):
        machine.end(machine.begin(50.0, silent=True))
    stay = machine.begin(1.0, silent=True)
    assert stay.due == pytest.approx(machine.now + 1.0)
    machine.wait(1)
    machine.account.advance(machine.now)
    assert not stay.is_prompt
    assert not machine.account._silent


def test_ending_twice_is_ending_once(machine: Machine) -> None:
    stay = machine.begin()
    machine.wait(1)
    machine.end(stay)
    machine.wait(1)
    machine.first(stay)
    assert machine.end(stay) == (1.0, 0.0)
    assert (machine.account.prompts, machine.account.outputs, machine.account.streams) == (0, 0, 0)


# Other gateways


def test_what_others_have_under_way_takes_its_part(machine: Machine) -> None:
    stay = machine.begin()
    for _ in range(100):
        machine.account.hear(4.0, machine.now)
    machine.wait(8)
    assert machine.end(stay)[0] == pytest.approx(2.0)


def test_what_an_engine_says_a_moment_late_is_not_others(machine: Machine) -> None:
    """Its count is now one too high, now one too low: alone is alone."""
    stays = [machine.begin() for _ in range(10)]
    for number in range(200):
        machine.account.hear(9.0 + 2.0 * (number % 2), machine.now)
        machine.wait(1)
    assert sum(machine.end(stay)[0] for stay in stays) == pytest.approx(200.0)


def test_what_an_engine_said_long_ago_holds_no_more(machine: Machine) -> None:
    stay = machine.begin()
    for _ in range(100):
        machine.account.hear(2.0, machine.now)
    machine.wait(STALE_SECONDS + 1)
    machine.account.advance(machine.now)
    assert machine.account.foreign == 0.0
    machine.wait(8)
    assert machine.end(stay)[0] == pytest.approx(STALE_SECONDS + 1 + 8)


# All histories

steps = st.lists(st.tuples(st.sampled_from("bsfew"), st.integers(0, 99), st.floats(0, 100)), max_size=60)


@given(steps)
def test_the_parts_are_the_whole_after_any_history(history: list[tuple[str, int, float]]) -> None:
    machine = Machine()
    under_way: list[Stay] = []
    ended: list[Stay] = []
    busy = 0.0
    for what, pick, seconds in history:
        if what in "bs":
            under_way.append(machine.begin(seconds / 10, sequences=1 + pick % 3, silent=what == "s"))
        elif what == "w":
            machine.wait(seconds)
            busy += seconds if under_way else 0.0
        elif under_way:
            stay = under_way[pick % len(under_way)]
            if what == "f":
                machine.first(stay)
            else:
                under_way.remove(stay)
                machine.end(stay)
                ended.append(stay)
    for stay in under_way:
        machine.end(stay)
    parts = sum(stay.prompt_seconds + stay.output_seconds for stay in (*ended, *under_way))
    assert math.isclose(parts, busy, rel_tol=1e-9, abs_tol=1e-6)
    seen = sum(stay.output_seconds for stay in (*ended, *under_way) if stay.seen)
    account = machine.account
    assert (account.prompts, account.outputs, account.streams, account.work) == (0, 0, 0, 0.0)
    assert machine.pool.output_seconds <= seen + 1e-6

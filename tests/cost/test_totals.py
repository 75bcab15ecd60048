"""A request's seconds are divided by kind of token as streams showed it; nothing gets lost on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.context import Usage
from serving.cost.machine_time import Stay
from serving.cost.totals import CACHED_WEIGHT, PoolTotals
from tests.cost.test_machine_time import Machine

DOLLARS = 3.0
"""A second, in these tests."""


def pool_and_machine() -> tuple[PoolTotals, Machine]:
    machine = Machine()
    machine.pool.dollars_per_second = DOLLARS
    return machine.pool, machine


def stayed(machine: Machine, first: float | None, seconds: float) -> Stay:
    """A request that had the machine for itself for so long; its first token came after `first`, or cannot be seen."""
    stay = machine.begin(0.01, silent=first is None)
    machine.wait(first or 0.0)
    if first is not None:
        machine.first(stay)
    machine.wait(seconds - (first or 0.0))
    machine.end(stay)
    return stay


def test_a_stream_says_itself_what_its_tokens_took() -> None:
    pool, machine = pool_and_machine()
    dollars = pool.settle(stayed(machine, 2.0, 5.0), Usage(100, 0, 60), 0.0)
    assert dollars == pytest.approx((2.0 * DOLLARS, 0.0, 3.0 * DOLLARS, 0.0))
    assert (pool.prompt_seconds, pool.cached_seconds, pool.output_seconds) == pytest.approx((2.0, 0.0, 3.0))


def test_a_cached_token_weighs_a_part_of_a_computed_one() -> None:
    pool, machine = pool_and_machine()
    dollars = pool.settle(stayed(machine, 3.0, 3.0), Usage(1100, 1000, 1), 0.0)
    weighed = 100 + CACHED_WEIGHT * 1000
    assert dollars.prompt == pytest.approx(3.0 * DOLLARS * 100 / weighed)
    assert dollars.cached == pytest.approx(3.0 * DOLLARS * CACHED_WEIGHT * 1000 / weighed)


def test_a_whole_answer_is_divided_as_the_streams_before_it_were() -> None:
    """10 ms a prompt token and 50 ms an output token."""
    pool, machine = pool_and_machine()
    pool.settle(stayed(machine, 1.0, 6.0), Usage(100, 0, 100), 0.0)
    dollars = pool.settle(stayed(machine, None, 4.0), Usage(50, 0, 30), 0.0)
    assert dollars[:3] == pytest.approx((4.0 * DOLLARS / 4, 0.0, 4.0 * DOLLARS * 3 / 4))


def test_without_any_stream_it_is_divided_as_the_engine_is_believed_to_be() -> None:
    """1 ms a prompt token, 11 ms a step: 440 ms of prompt and 440 ms of output."""
    pool, machine = pool_and_machine()
    dollars = pool.settle(stayed(machine, None, 4.0), Usage(440, 0, 40), 0.0)
    assert dollars[:3] == pytest.approx((2.0 * DOLLARS, 0.0, 2.0 * DOLLARS))


@pytest.mark.parametrize("usage", [Usage(), Usage(None, None, 7), Usage(0, 0, 0)])
def test_what_no_tokens_are_known_of_is_accounted_for_all_the_same(usage: Usage) -> None:
    pool, machine = pool_and_machine()
    dollars = pool.settle(stayed(machine, None, 4.0), usage, 0.0)
    assert sum(filter(None, dollars)) == pytest.approx(4.0 * DOLLARS)


def test_a_stream_without_a_prompt_teaches_nothing() -> None:
    pool, machine = pool_and_machine()
    pool.settle(stayed(machine, 0.1, 0.2), Usage(0, None, 1), 0.0)
    pool.settle(stayed(machine, None, 4.0), Usage(0, None, 1), 0.0)
    assert pool.prompt_seconds + pool.output_seconds == pytest.approx(4.2)


counts = st.integers(0, 10**7) | st.none()


@given(st.lists(st.tuples(counts, counts, counts, st.floats(0.001, 50), st.floats(0, 1) | st.none()), min_size=1, max_size=20))
def test_whatever_the_engine_says_the_kinds_are_the_whole(
    answers: list[tuple[int | None, int | None, int | None, float, float | None]],
) -> None:
    pool, machine = pool_and_machine()
    told = 0.0
    for prompt, cached, output, seconds, first in answers:
        stay = stayed(machine, None if first is None else first * seconds, seconds)
        dollars = pool.settle(stay, Usage(prompt, cached, output), 0.0)
        assert min(part for part in dollars if part is not None) >= 0.0
        told += sum(filter(None, dollars))
    whole = sum(seconds for *_, seconds, _ in answers)
    assert pool.prompt_seconds + pool.cached_seconds + pool.output_seconds == pytest.approx(whole, rel=1e-6)
    assert told == pytest.approx(whole * DOLLARS, rel=1e-6)

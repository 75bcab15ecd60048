"""Ten gateways over simulated engines, as one: a short version of what benchmarks/routing_gateways.py measures."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.routing_gateways import outcome, worst_second
from benchmarks.routing_run import Result

ENGINES = 16


@cache
def result(case: str) -> Result:
    return outcome("agentic", 1.0, 5, case, ENGINES, 32.0, 12.0)


@pytest.mark.parametrize("case", ["ten", "ten, 30 % lost", "ten, one cut off", "ten, one killed", "ten, clocks 20 s apart"])
def test_ten_gateways_route_about_as_one_does(case: str) -> None:
    """The bars are wide, for runs as short as these differ by chance; with nothing said both are far away."""
    one, ten = result("one"), result(case)
    assert ten.hit_rate > 0.95 * one.hit_rate
    assert ten.mean_ttft < 1.4 * one.mean_ttft


def test_without_a_word_they_do_not() -> None:
    one, silent = result("one"), result("ten, silent all of them")
    assert silent.hit_rate < 0.9 * one.hit_rate
    assert silent.mean_ttft > 1.5 * one.mean_ttft


def test_no_engine_gets_more_than_twice_the_mean_in_any_second() -> None:
    """With many small requests, about twenty for each engine in a second."""
    assert worst_second(outcome("chat", 11.4, 1, "ten", ENGINES, 4.0, 1.0)) <= 2.0

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serving.replay.counters import CacheFacts, Counters
from serving.replay.load import StageData
from serving.replay.report import Check
from serving.replay.stream import Sample
from serving.replay.verdict import Evidence, checks
from tests.replay.samples import a_sample, seen


def many(count: int = 100, **fields: Any) -> list[Sample]:
    return [a_sample(number / 10, **fields) for number in range(count)]


def evidence(data: StageData, **fields: Any) -> Evidence:
    return replace(Evidence(data, CacheFacts(16, 50_000, True), True, None, None, 10_000), **fields)


def failed(data: StageData, **fields: Any) -> dict[str, str]:
    """The checks that did not pass, with what they say."""
    return {check.name: check.said for check in checks(evidence(data, **fields)) if check.passed is False}


def named(data: StageData, name: str, **fields: Any) -> Check:
    return next(check for check in checks(evidence(data, **fields)) if check.name == name)


def test_a_good_stage_passes_all() -> None:
    before, after = Counters(), Counters(10_000, 1000, 10_000, 6_000, 0)
    found = checks(evidence(seen(*many()), before=before, after=after))
    assert [check.name for check in found if check.passed is not True] == []


def test_too_few_requests() -> None:
    assert "only 19 measured requests" in failed(seen(*many(19)))["requests"]


def test_errors_are_counted_and_quoted() -> None:
    samples = [*many(97), *(a_sample(number, error="status 500", detail="out of memory") for number in range(3))]
    said = failed(seen(*samples))
    assert "3 of 100 requests failed (status 500)" in said["errors"]
    assert "out of memory" in said["errors"]
    assert failed(seen(*many(100), a_sample(1, error="status 500"))) == {}


def test_requests_that_had_not_ended() -> None:
    samples = [*many(90), *(a_sample(number / 2, error="left") for number in range(10))]
    assert "10 of 100 measured requests had not ended" in failed(seen(*samples))["unfinished"]


def test_one_wrong_prompt_is_enough() -> None:
    samples = [*many(), a_sample(3.0, prompt_tokens=101)]
    assert (
        "1 of 101 prompts are not as long as wanted; the first has 101 tokens, not 100"
        in failed(seen(*samples))["prompt lengths"]
    )
    assert "without usage" in failed(seen(*many(prompt_tokens=None)))["prompt lengths"]


def test_output_lengths_must_be_exact_where_they_can_be_forced() -> None:
    samples = [*many(), a_sample(3.0, output_tokens=9)]
    assert "1 of 101 answers are not as long" in failed(seen(*samples))["output lengths"]
    check = named(seen(*samples), "output lengths", forces_length=False)
    assert check.passed is None
    assert "could not be forced" in check.said
    assert "could not be forced" in failed(seen(*many(output_tokens=5)), forces_length=False)["output lengths"]


def test_the_cached_share_may_be_two_points_off() -> None:
    assert "cached share" not in failed(seen(*many(cached_tokens=59)))
    assert "cached share" in failed(seen(*many(cached_tokens=57)))


@pytest.mark.parametrize(
    ("cached", "cache", "why"),
    [
        (0, CacheFacts(16, 50_000, False), "prefix caching off"),
        (0, CacheFacts(16, None, None), "prefix caching is off, or each request goes to another engine"),
        (30, CacheFacts(16, 8_000, True), "the cache is too small: it holds 8,000 tokens"),
        (30, CacheFacts(16, 50_000, True), "evicted"),
        (90, CacheFacts(16, 50_000, True), "the cache was warm"),
    ],
)
def test_why_the_cached_share_is_wrong(cached: int, cache: CacheFacts, why: str) -> None:
    assert why in failed(seen(*many(cached_tokens=cached)), cache=cache)["cached share"]


def test_an_engine_that_does_not_tell_is_judged_by_its_counters_or_not_at_all() -> None:
    silent = many(cached_tokens=None)
    assert "nothing tells" in failed(seen(*silent))["cached share"]
    after = Counters(10_000, 1000, 10_000, 6_000, 0)
    assert "the engine's counters" in named(seen(*silent), "cached share", before=Counters(), after=after).said
    assert failed(seen(*silent), before=Counters(), after=after) == {}


def test_counters_that_contradict_the_answers() -> None:
    after = Counters(10_000, 1000, 10_000, 3_000, 0)
    said = failed(seen(*many()), before=Counters(), after=after)
    assert said == {"engine's counters": "the engine counted 30.0% cached, its answers say 60.0%"}


def test_counters_without_a_look_up() -> None:
    check = named(seen(*many()), "engine's counters", before=Counters(), after=Counters(10_000, 1000, 0, 0, 0))
    assert (check.passed, check.said) == (None, "the engine counted no look-up in a prefix cache")


def test_somebody_else_used_the_engine() -> None:
    after = Counters(20_000, 1000, 10_000, 6_000, 0)
    assert "somebody else" in failed(seen(*many()), before=Counters(), after=after)["no other load"]


def test_an_engine_that_began_anew() -> None:
    said = failed(seen(*many()), before=Counters(50_000, 0, 50_000, 0, 0), after=Counters(10_000, 1000, 10_000, 6_000, 0))
    assert "began anew" in said["engine's counters"]


def test_a_client_without_cpu_left() -> None:
    assert "the client is the bottleneck" in failed(seen(*many(), cpu_seconds=9.5))["client's CPU"]
    assert "gave up early" in failed(seen(*many(), gave_up=True))["client's CPU"]


def test_a_client_that_sends_late() -> None:
    samples = [a_sample(number / 10, sent=number / 10 + 0.05) for number in range(100)]
    assert "the client lags" in failed(seen(*samples))["client's lag"]


def test_a_client_whose_loop_is_blocked_now_and_then() -> None:
    lags = [0.0001] * 90 + [0.08] * 10
    assert "the client lags" in failed(seen(*many(), lags=lags))["client's lag"]
    # The same lag does not matter where answers take seconds.
    assert failed(seen(*many(ttft=2.0), lags=lags)) == {}

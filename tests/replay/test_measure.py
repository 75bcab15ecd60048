from __future__ import annotations

import pytest

from serving.replay.measure import (
    columns_of,
    distribution,
    e2e_seconds,
    gaps,
    in_window,
    is_good,
    running_between,
    timeline_of,
    tpot_seconds,
    ttft_seconds,
)
from serving.replay.profile import Objectives
from tests.replay.samples import a_sample


def test_latencies_count_from_the_intended_moment() -> None:
    late = a_sample(5.0, ttft=0.7, tpot=0.1, tokens=11, sent=5.5)
    assert ttft_seconds(late) == pytest.approx(0.7)
    assert tpot_seconds(late) == pytest.approx(0.1)
    assert e2e_seconds(late) == pytest.approx(1.7)
    columns = columns_of([late], begin=4.0)
    assert (columns.intended, columns.sent_late) == ((1.0,), (0.5,))


def test_tokens_of_events_that_hold_several_are_shared_among_them() -> None:
    sample = a_sample(tokens=4, output_tokens=12, tpot=1.0)
    assert tpot_seconds(sample) == pytest.approx(3 / 11)
    timeline = timeline_of([sample], begin=0.0, end=40.0, first=0.0, last=41.0)
    assert sum(timeline.output_tokens) == pytest.approx(12)


def test_a_timeline_has_settling_window_and_draining() -> None:
    samples = [a_sample(moment, ttft=0.0, tokens=1) for moment in (-3.0, 0.5, 39.5, 41.0)]
    timeline = timeline_of(samples, begin=0.0, end=40.0, first=-3.0, last=42.0)
    assert timeline.first_slice == -3
    assert sum(timeline.output_tokens) == 4
    window = in_window(timeline, timeline.output_tokens)
    assert len(window) == 40
    assert (window[0], window[39], sum(window)) == (1.0, 1.0, 2.0)
    assert sum(in_window(timeline, timeline.prompt_tokens)) == 200


def test_what_never_came_to_its_usage_counts_by_its_events() -> None:
    whole, left = a_sample(tokens=4, output_tokens=8), a_sample(tokens=3, error="left", output_tokens=None)
    timeline = timeline_of([whole, left], begin=0.0, end=40.0, first=0.0, last=40.0)
    assert sum(timeline.output_tokens) == pytest.approx(8 + 3 * 2)


def test_good_requests_meet_every_bound() -> None:
    objectives = Objectives(ttft_seconds=0.2, tpot_seconds=0.02)
    assert is_good(a_sample(), objectives)
    assert not is_good(a_sample(ttft=0.3), objectives)
    assert not is_good(a_sample(tpot=0.03), objectives)
    assert not is_good(a_sample(error="status 500"), objectives)
    assert is_good(a_sample(tokens=1), objectives)


def test_a_distribution_has_its_interval_around_it() -> None:
    found = distribution([number / 100 for number in range(100)], seed=0)
    assert found.p50.value == pytest.approx(0.495)
    assert found.mean.low is not None
    assert found.mean.high is not None
    assert found.mean.low < 0.495 < found.mean.high
    assert distribution([None], seed=0).p99.value is None


def test_gaps_and_running() -> None:
    sample = a_sample(0.0, ttft=1.0, tpot=0.5, tokens=5)
    assert gaps([sample])["p50"] == pytest.approx(0.5)
    assert running_between([sample, sample], 0.0, 4.0, 5.0) == pytest.approx(1.0)

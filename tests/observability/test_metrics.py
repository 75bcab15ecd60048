"""Every series is right, from a closed set, and gone when what it describes is."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from serving.core.context import RequestContext, Usage
from serving.core.money import MachineDollars
from serving.core.outcomes import AttemptResult, Outcome
from serving.core.routes import CHAT_COMPLETIONS
from serving.observability.collectors import BucketHistogram
from serving.observability.metrics import Metrics
from serving.observability.series import LABELS as LABELS_OF_ALL
from serving.observability.series.definition import INTER_CHUNK_SECONDS, REQUEST_SECONDS, TTFT_SECONDS
from serving.observability.series.fleet import ENDPOINT_READY
from serving.routing.cost import Objective

LABELS = ("tiny", "default")
LABELS_OF_TOKENS = {"model": "tiny", "pool": "default", "target": "cpu-epyc"}
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(exposition: bytes) -> Series:
    families = text_string_to_metric_families(exposition.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def exported(metrics: Metrics, name: str, **labels: str) -> float | None:
    return series(metrics.exposition()[0]).get((name, tuple(sorted(labels.items()))))


def names(metrics: Metrics) -> set[str]:
    return {name for name, _ in series(metrics.exposition()[0])}


def a_request(**fields: Any) -> RequestContext:
    ctx = RequestContext("r1", CHAT_COMPLETIONS, None, 1.0)
    known: dict[str, Any] = {
        "model": "tiny",
        "asked_model": "tiny",
        "pool": "default",
        "target": "cpu-epyc",
        "tenant": "red",
        "endpoint": "e1",
        "outcome": Outcome.OK,
        "first_byte": 2.0,
        "last_byte": 8.0,
        "usage": Usage(100, 60, 4),
    }
    for name, value in (known | fields).items():
        setattr(ctx, name, value)
    return ctx


def settled(**fields: Any) -> Metrics:
    """Metrics of one request that arrived at 1 s and ended at 9 s."""
    metrics = Metrics()
    metrics.settle(a_request(**fields), 9.0)
    return metrics


# Histograms

seconds = st.floats(0, 1000) | st.sampled_from(TTFT_SECONDS)


def both(bounds: tuple[float, ...]) -> tuple[BucketHistogram, Histogram, CollectorRegistry, CollectorRegistry]:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = BucketHistogram("x_seconds", "What.", ("model", "pool"), bounds)
    ours.register(mine)
    return mine, Histogram("x_seconds", "What.", ("model", "pool"), buckets=bounds, registry=theirs), ours, theirs


def without_created(exposition: bytes) -> Series:
    return {key: value for key, value in series(exposition).items() if not key[0].endswith("_created")}


@given(st.sampled_from((TTFT_SECONDS, INTER_CHUNK_SECONDS, REQUEST_SECONDS)), st.lists(st.tuples(st.sampled_from("ab"), seconds)))
def test_observations_count_as_in_the_clients_own_histogram(
    bounds: tuple[float, ...], observations: list[tuple[str, float]]
) -> None:
    mine, reference, ours, theirs = both(bounds)
    for model, value in observations:
        mine.observe((model, "default"), value)
        reference.labels(model, "default").observe(value)
    assert series(generate_latest(ours)) == without_created(generate_latest(theirs))


@given(st.lists(seconds, max_size=50))
def test_a_row_counts_as_its_observations_one_by_one(values: list[float]) -> None:
    mine, reference, ours, theirs = both(TTFT_SECONDS)
    row = mine.new_row()
    for value in values:
        row[bisect_left(mine.bounds_seconds, value)] += 1
        reference.labels(*LABELS).observe(value)
    mine.add(LABELS, row, sum(values))
    if values:
        assert series(generate_latest(ours)) == pytest.approx(without_created(generate_latest(theirs)))


def test_buckets_are_cumulative_and_end_with_all() -> None:
    histogram = BucketHistogram("x", "What.", ("model", "pool"), (1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.observe(LABELS, value)
    (family,) = histogram.collect()
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name == "x_bucket"}
    assert buckets == {"1.0": 2, "2.0": 3, "+Inf": 4}


def test_a_row_in_hand_is_not_the_histograms_own() -> None:
    histogram = BucketHistogram("x", "What.", ("model", "pool"), (1.0,))
    row = histogram.new_row()
    row[0] = 1
    histogram.add(LABELS, row, 0.5)
    histogram.add(LABELS, row, 0.5)
    assert row == [1, 0]


# A request's end


def test_a_request_counts_once_by_its_outcome() -> None:
    metrics = settled()
    labels = {"model": "tiny", "route": "chat_completions", "outcome": "ok"}
    assert exported(metrics, "serving_requests_total", **labels) == 1


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_can_be_a_label(outcome: Outcome) -> None:
    metrics = settled(outcome=outcome)
    labels = {"model": "tiny", "route": "chat_completions", "outcome": outcome.value}
    assert exported(metrics, "serving_requests_total", **labels) == 1


def test_tokens_count_by_kind() -> None:
    metrics = settled()
    counted = {
        kind: exported(metrics, "serving_tokens_total", model="tiny", pool="default", target="cpu-epyc", kind=kind)
        for kind in ("prompt", "cached", "output")
    }
    assert counted == {"prompt": 100, "cached": 60, "output": 4}
    assert exported(metrics, "serving_usage_unknown_total", model="tiny", pool="default") is None


def test_no_tokens_are_known_tokens() -> None:
    metrics = settled(usage=Usage(0, 0, 0))
    of = {"model": "tiny", "pool": "default"}
    assert exported(metrics, "serving_tokens_total", **of, target="cpu-epyc", kind="prompt") == 0
    assert exported(metrics, "serving_usage_unknown_total", **of) is None


@pytest.mark.parametrize("usage", [Usage(), Usage(5, 0, None), Usage(None, 0, 5)])
def test_an_answer_without_its_counts_is_counted_as_such(usage: Usage) -> None:
    metrics = settled(usage=usage)
    assert exported(metrics, "serving_usage_unknown_total", model="tiny", pool="default") == 1
    for kind, tokens in (("prompt", usage.prompt_tokens), ("output", usage.output_tokens)):
        assert exported(metrics, "serving_tokens_total", **LABELS_OF_TOKENS, kind=kind) == (tokens or 0)


def test_estimated_tokens_are_counted_apart_too() -> None:
    of = {**LABELS_OF_TOKENS, "kind": "output"}
    estimated = settled(usage_estimated=True)
    assert exported(estimated, "serving_tokens_total", **of) == 4
    assert exported(estimated, "serving_tokens_estimated_total", **of) == 4
    assert exported(settled(), "serving_tokens_estimated_total", **of) is None


def test_a_stream_has_its_times() -> None:
    intervals = [0] * (len(INTER_CHUNK_SECONDS) + 1)
    intervals[0] = 2
    metrics = settled(chunk_intervals=intervals)
    of = {"model": "tiny", "pool": "default"}
    assert exported(metrics, "serving_time_to_first_token_seconds_sum", **of) == 1.0
    assert exported(metrics, "serving_inter_chunk_seconds_count", **of) == 2
    assert exported(metrics, "serving_inter_chunk_seconds_sum", **of) == 6.0
    assert exported(metrics, "serving_time_per_output_token_seconds_sum", **of) == 2.0
    assert exported(metrics, "serving_request_duration_seconds_sum", **of) == 8.0


@pytest.mark.parametrize("output_tokens", [None, 0, 1])
def test_one_token_has_no_time_per_token(output_tokens: int | None) -> None:
    metrics = settled(chunk_intervals=[0] * (len(INTER_CHUNK_SECONDS) + 1), usage=Usage(1, 0, output_tokens))
    assert "serving_time_per_output_token_seconds_count" not in names(metrics)


def test_a_whole_answer_has_no_first_token() -> None:
    found = names(settled(chunk_intervals=None))
    assert "serving_time_to_first_token_seconds_count" not in found
    assert "serving_request_duration_seconds_count" in found


def test_only_whole_answers_have_a_duration() -> None:
    assert "serving_request_duration_seconds_count" not in names(settled(outcome=Outcome.TRUNCATED))


def test_a_request_that_no_engine_answered_counts_its_outcome_only() -> None:
    metrics = settled(first_byte=0.0, model="", pool="", tenant="", outcome=Outcome.UNAUTHORIZED)
    assert exported(metrics, "serving_requests_total", model="", route="chat_completions", outcome="unauthorized") == 1
    assert not {name for name in names(metrics) if "tokens" in name or "usage" in name or "duration" in name}


def test_an_attempt_counts_by_its_result() -> None:
    metrics = Metrics()
    metrics.attempt("default", "e1", AttemptResult.STALE)
    assert exported(metrics, "serving_engine_attempts_total", pool="default", endpoint="e1", result="stale") == 1


# What is exported


def test_a_gauge_read_at_the_scrape_forgets_what_is_gone() -> None:
    rows = {("tiny", "default", "cpu", "e1"): 1.0, ("tiny", "default", "cpu", "e2"): 0.0}
    metrics = Metrics()
    metrics.watch(ENDPOINT_READY, lambda: rows.items())
    labels = {"model": "tiny", "pool": "default", "target": "cpu"}
    assert exported(metrics, "serving_endpoint_ready", **labels, endpoint="e1") == 1
    assert exported(metrics, "serving_endpoint_ready", **labels, endpoint="e2") == 0
    del rows["tiny", "default", "cpu", "e1"]
    assert exported(metrics, "serving_endpoint_ready", **labels, endpoint="e1") is None
    assert exported(metrics, "serving_endpoint_ready", **labels, endpoint="e2") == 0


def test_a_gauge_is_read_anew_at_each_scrape() -> None:
    metrics = Metrics()
    counts = iter((3.0, 5.0))
    metrics.on_scrape(metrics.in_flight, lambda: next(counts))
    assert exported(metrics, "serving_in_flight_requests") == 3
    assert exported(metrics, "serving_in_flight_requests") == 5


def test_two_gateways_in_one_process_share_nothing() -> None:
    first, second = Metrics(), Metrics()
    first.attempt("default", "e1", AttemptResult.OK)
    assert exported(second, "serving_engine_attempts_total", pool="default", endpoint="e1", result="ok") is None


def test_every_series_carries_the_prefix_or_is_the_processs_own() -> None:
    found = names(settled(chunk_intervals=[1] * (len(INTER_CHUNK_SECONDS) + 1)))
    assert {name for name in found if not name.startswith(("serving_", "process_", "python_"))} == set()


def test_no_field_of_a_request_becomes_a_label_by_itself() -> None:
    allowed = {*LABELS_OF_ALL, "le"}
    metrics = settled(chunk_intervals=[1] * (len(INTER_CHUNK_SECONDS) + 1))
    labels = {label for (name, pairs) in series(metrics.exposition()[0]) if name.startswith("serving_") for label, _ in pairs}
    assert labels <= allowed
    known = {"model", "pool", "target", "endpoint", "tenant", "route", "outcome"}  # names of the settings, or words of ours
    assert not labels & {field.name for field in dataclasses.fields(RequestContext)} - known


def test_the_exposition_says_what_it_is() -> None:
    text, content_type = Metrics().exposition()
    assert content_type == CONTENT_TYPE_PLAIN_0_0_4
    assert text.endswith(b"\n")


def test_seconds_of_sound_are_known_usage() -> None:
    metrics = settled(usage=Usage(audio_seconds=7))
    of = {"model": "tiny", "pool": "default"}
    assert exported(metrics, "serving_audio_seconds_total", **of) == 7
    assert exported(metrics, "serving_usage_unknown_total", **of) is None


# Routing


@dataclasses.dataclass(frozen=True)
class Predicted:
    began: float
    ttft_seconds: float | None = None
    cached_tokens: float = 0.0


def test_what_a_request_waited_for_a_slot_is_no_error_of_what_was_predicted_for_the_engine() -> None:
    ctx = RequestContext("r1", CHAT_COMPLETIONS, None, 1.0)
    ctx.model, ctx.pool, ctx.stream, ctx.first_byte, ctx.first_token = "tiny", "default", True, 31.0, 31.5
    metrics = Metrics()
    metrics.routed(ctx, Predicted(began=31.0, ttft_seconds=0.4))
    error = exported(metrics, "serving_time_to_first_token_error_seconds_sum", model="tiny", pool="default")
    assert error == pytest.approx(0.1)


# Objectives and tenants


WANTED = Objective("standard", 0.0005, ttft_seconds=2.0, inter_chunk_seconds=0.5)


def objectives(**fields: Any) -> dict[tuple[str, str], float]:
    """By objective and whether it was met, of one request that arrived at 1 s and ended at 9 s."""
    metrics = Metrics()
    metrics.settle(a_request(**fields), 9.0, WANTED)
    found = series(metrics.exposition()[0]).items()
    rows = [(dict(labels), value) for (name, labels), value in found if name == "serving_objective_requests_total"]
    assert all((labels["class"], labels["model"], labels["pool"]) == ("standard", "tiny", "default") for labels, _ in rows)
    return {(labels["objective"], labels["met"]): value for labels, value in rows}


def intervals(count: int) -> list[int]:
    return [count] + [0] * len(INTER_CHUNK_SECONDS)


def test_a_stream_in_time_meets_both_objectives() -> None:
    """A first token after 1.5 s, then 20 intervals within 5.5 s."""
    found = objectives(stream=True, first_token=2.5, last_byte=8.0, chunk_intervals=intervals(20))
    assert found == {("ttft", "true"): 1, ("ttft", "false"): 0, ("inter_chunk", "true"): 1, ("inter_chunk", "false"): 0}


def test_a_stream_that_is_late_and_slow_misses_both() -> None:
    found = objectives(stream=True, first_token=3.5, last_byte=8.0, chunk_intervals=intervals(2))
    assert found == {("ttft", "true"): 0, ("ttft", "false"): 1, ("inter_chunk", "true"): 0, ("inter_chunk", "false"): 1}


def test_one_token_says_nothing_of_the_time_between_two() -> None:
    found = objectives(stream=True, first_token=2.5, last_byte=2.5, chunk_intervals=intervals(0))
    assert found == {("ttft", "true"): 1, ("ttft", "false"): 0}


def test_a_stream_that_never_began_has_missed_its_first_token_once_that_is_late() -> None:
    waited = {"stream": True, "first_byte": 0.0, "attempts": 1, "outcome": Outcome.CLIENT_CANCELLED}
    assert objectives(**waited) == {("ttft", "true"): 0, ("ttft", "false"): 1}
    assert objectives(**waited, arrived=8.0) == {}, "it left before it was late"
    assert objectives(**{**waited, "attempts": 0}) == {}, "no engine was asked"


def test_an_answer_that_comes_whole_has_no_such_objectives() -> None:
    assert objectives() == {}


def test_a_tenant_has_its_own_sums() -> None:
    metrics = Metrics()
    metrics.settle(a_request(machine=MachineDollars(4.0, 1.0, 3.0, 2.0)), 9.0)
    metrics.settle(a_request(tenant="blue", outcome=Outcome.TRUNCATED), 9.0)
    metrics.charge("red", 0.25)
    assert exported(metrics, "serving_tenant_requests_total", tenant="red", outcome="ok") == 1
    assert exported(metrics, "serving_tenant_requests_total", tenant="blue", outcome="truncated") == 1
    kinds = ("prompt", "cached", "output")
    assert [exported(metrics, "serving_tenant_tokens_total", tenant="red", kind=kind) for kind in kinds] == [100, 60, 4]
    assert [exported(metrics, "serving_tenant_dollars_total", tenant="red", kind=kind) for kind in kinds] == [4, 1, 3]
    assert exported(metrics, "serving_tenant_dollars_total", tenant="blue", kind="output") is None, "unknown is not 0"
    assert exported(metrics, "serving_tenant_charged_dollars_total", tenant="red") == 0.25
    assert exported(metrics, "serving_endpoint_output_tokens_total", pool="default", endpoint="e1") == 8

"""A stage's part of the report, from what was seen of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from serving.catalog.evidence import Workload
from serving.replay.arrivals import ClosedLoop, OpenLoop, Pattern
from serving.replay.counters import CacheFacts, Counters
from serving.replay.load import StageData
from serving.replay.measure import (
    LEFT,
    columns_of,
    distribution,
    errors_of,
    gaps,
    in_window,
    is_good,
    running_between,
    timeline_of,
    window_rate,
)
from serving.replay.money import Hardware, Price, Seen, money, roofline
from serving.replay.profile import Objectives
from serving.replay.report import Estimate, Options, Stage, Timeline
from serving.replay.stream import Sample
from serving.replay.verdict import Evidence, cached_share, checks, lag_figures, wanted_share


@dataclass(frozen=True)
class Setting:
    """What all stages of a run have in common."""

    options: Options
    objectives: Objectives | None
    hardware: Hardware
    price: Price
    cache: CacheFacts
    forces_length: bool
    shared_tokens: int
    """Of all shared beginnings together."""


def stage_of(data: StageData, setting: Setting, before: Counters | None, after: Counters | None) -> Stage:
    """The figures of the measured requests, and whether they can be trusted."""
    options, seed = setting.options, setting.options.seed
    measured = sorted(data.measured, key=lambda sample: sample.intended)
    ok = [sample for sample in measured if sample.is_ok]
    sent = [sample.intended for sample in data.samples]
    timeline = timeline_of(data.samples, data.begin, data.end, min(sent, default=data.begin), data.closed)
    width = timeline.slice_seconds
    output = window_rate(in_window(timeline, timeline.output_tokens), width, seed)
    prompt = window_rate(in_window(timeline, timeline.prompt_tokens), width, seed)
    columns = columns_of(measured, data.begin)
    errors, said = errors_of(measured)
    running = running_between(data.samples, data.begin, data.end, data.closed)
    good = None if setting.objectives is None else sum(is_good(sample, setting.objectives) for sample in measured)
    evidence = Evidence(data, setting.cache, setting.forces_length, before, after, _needed_tokens(data, setting))
    counted = evidence.counted
    return Stage(
        label=data.pattern.label,
        kind=_kind(data.pattern),
        offered=_offered(data.pattern),
        window_seconds=data.window_seconds,
        requests=len(measured),
        finished_ok=len(ok),
        unfinished=sum(sample.error == LEFT or not sample.is_done for sample in measured),
        errors=errors,
        said=said,
        offered_requests_per_second=len(measured) / data.window_seconds,
        requests_per_second=_finished_rate(timeline, seed),
        output_tokens_per_second=output,
        prompt_tokens_per_second=prompt,
        ttft=distribution(columns.ttft, seed),
        tpot=distribution(columns.tpot, seed),
        e2e=distribution(columns.e2e, seed),
        itl=gaps(ok),
        cached_share=cached_share(ok) if ok else None,
        wanted_cached_share=wanted_share(ok),
        engine_cached_share=None if counted is None else counted.cached_share,
        mean_prompt_tokens=_mean([sample.prompt_tokens for sample in ok if sample.prompt_tokens is not None]),
        mean_output_tokens=_mean([sample.output_tokens for sample in ok if sample.output_tokens is not None]),
        mean_running=running,
        good_share=None if good is None or not measured else good / len(measured),
        good_requests_per_second=None if good is None else good / data.window_seconds,
        client_cpu_share=data.cpu_seconds / data.window_seconds,
        client_lag_seconds=lag_figures(data),
        preemptions=None if counted is None else counted.preemptions,
        money=money(setting.price, output, prompt),
        roofline=roofline(setting.hardware, options.nodes, Seen(output.value, running, _workload(ok))),
        checks=tuple(checks(evidence)),
        columns=columns,
        timeline=timeline,
    )


def _workload(ok: list[Sample]) -> Workload | None:
    """The mean request of those that ended well."""
    prompt = _mean([sample.prompt_tokens for sample in ok if sample.prompt_tokens])
    output = _mean([sample.output_tokens for sample in ok if sample.output_tokens])
    if prompt is None or output is None:
        return None
    # At least one token of a prompt is always computed.
    cached = min(cached_share(ok) or 0.0, 1 - 1 / max(2.0, prompt))
    return Workload(prompt_tokens=round(prompt), output_tokens=round(output), cached_share=cached)


def _finished_rate(timeline: Timeline, seed: int) -> Estimate:
    return window_rate([float(count) for count in in_window(timeline, timeline.finished)], timeline.slice_seconds, seed)


def _needed_tokens(data: StageData, setting: Setting) -> int:
    """What the cache must hold at once so that nothing shared is evicted."""
    own = _mean([_own_tokens(sample) for sample in data.measured]) or 0.0
    seconds = sum(
        max(0.0, min(sample.ended if sample.is_done else data.closed, data.end) - max(sample.intended, data.begin))
        for sample in data.samples
    )
    return setting.shared_tokens + round(own * seconds / data.window_seconds)


def _own_tokens(sample: Sample) -> float:
    return sample.wanted_prompt_tokens - sample.wanted_cached_tokens + sample.wanted_output_tokens


def _mean(values: list[int] | list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _kind(pattern: Pattern) -> Literal["open", "closed", "recorded"]:
    if isinstance(pattern, OpenLoop):
        return "open"
    return "closed" if isinstance(pattern, ClosedLoop) else "recorded"


def _offered(pattern: Pattern) -> float:
    if isinstance(pattern, OpenLoop):
        return pattern.requests_per_second
    return float(pattern.concurrency) if isinstance(pattern, ClosedLoop) else pattern.speed

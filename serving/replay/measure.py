"""From what was seen in a stage to its figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from serving.replay.profile import Objectives
from serving.replay.report import Columns, Distribution, Estimate, Timeline
from serving.replay.statistics import SLICE_BLOCK, SLICES, at_share, block_of, interval, mean, quantile, replicates
from serving.replay.stream import Sample

_SHARES = (0.5, 0.9, 0.95, 0.99)
LEFT = "left"
"""The error of requests that the replay itself ended when its time was over."""


def ttft_seconds(sample: Sample) -> float | None:
    return sample.token_moments[0] - sample.intended if sample.token_moments else None


def tpot_seconds(sample: Sample) -> float | None:
    """Time per output token behind the first."""
    moments, tokens = sample.token_moments, sample.output_tokens
    if not sample.is_ok or len(moments) < 2 or tokens is None or tokens < 2:
        return None
    return (moments[-1] - moments[0]) / (tokens - 1)


def e2e_seconds(sample: Sample) -> float | None:
    return sample.ended - sample.intended if sample.is_ok else None


def is_good(sample: Sample, objectives: Objectives) -> bool:
    """Whether it met all objectives; a failed or unfinished one did not."""
    if not sample.is_ok:
        return False
    pairs = (
        (objectives.ttft_seconds, ttft_seconds(sample)),
        (objectives.tpot_seconds, tpot_seconds(sample)),
        (objectives.e2e_seconds, e2e_seconds(sample)),
    )
    # An answer of one token has no time per token.
    return all(limit is None or value is None or value <= limit for limit, value in pairs)


def columns_of(samples: Sequence[Sample], begin: float) -> Columns:
    def each(value: Callable[[Sample], float | None]) -> tuple[float | None, ...]:
        return tuple(_rounded(value(sample)) for sample in samples)

    return Columns(
        intended=tuple(round(sample.intended - begin, 6) for sample in samples),
        sent_late=tuple(round(sample.sent - sample.intended, 6) for sample in samples),
        ttft=each(ttft_seconds),
        tpot=each(tpot_seconds),
        e2e=each(e2e_seconds),
        prompt_tokens=tuple(sample.prompt_tokens for sample in samples),
        cached_tokens=tuple(sample.cached_tokens for sample in samples),
        output_tokens=tuple(sample.output_tokens for sample in samples),
        error=tuple(sample.error if sample.is_done else "unfinished" for sample in samples),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 7)


def distribution(values: Sequence[float | None], seed: int) -> Distribution:
    """Of the values that are there."""
    found = [value for value in values if value is not None]
    statistics = [mean, *map(at_share, _SHARES)]
    # The mean is taken first: the others order what was drawn.
    drawn = replicates(found, statistics, block=block_of(len(found)), seed=seed)
    ordered = sorted(found)
    points = [mean(found), *(quantile(ordered, share) for share in _SHARES)]
    estimates = [estimate(point, replicated) for point, replicated in zip(points, drawn, strict=True)]
    return Distribution(
        count=len(found), mean=estimates[0], p50=estimates[1], p90=estimates[2], p95=estimates[3], p99=estimates[4]
    )


def estimate(point: float, replicated: list[float]) -> Estimate:
    if math.isnan(point) or not replicated:
        return Estimate(value=None)
    low, high = interval(replicated)
    return Estimate(value=_figure(point), low=_figure(low), high=_figure(high))


def _figure(value: float) -> float:
    """Seven digits; more would only make the report longer."""
    return float(f"{value:.7g}")


def window_rate(slices: Sequence[float], slice_seconds: float, seed: int) -> Estimate:
    """Per second, from what fell into each slice of the window."""
    drawn = replicates(slices, [mean], block=SLICE_BLOCK, seed=seed)[0]
    return estimate(mean(list(slices)) / slice_seconds, [value / slice_seconds for value in drawn])


def in_window(timeline: Timeline, series: Sequence[float]) -> list[float]:
    first = -timeline.first_slice
    return list(series[first : first + timeline.window_slices])


def timeline_of(samples: Sequence[Sample], begin: float, end: float, first: float, last: float) -> Timeline:
    """Of all requests of a stage, those included that are not measured: the engine worked on them, too. Moments are monotonic."""
    width = (end - begin) / SLICES
    first_slice = min(0, math.floor((first - begin) / width))
    count = max(SLICES, math.ceil((last - begin) / width)) - first_slice
    output, prompt, finished = [0.0] * count, [0.0] * count, [0] * count
    per_event = _tokens_per_event(samples)

    def place(moment: float) -> int:
        return min(count - 1, max(0, math.floor((moment - begin) / width) - first_slice))

    for sample in samples:
        moments = sample.token_moments
        if not moments:
            continue
        tokens = sample.output_tokens / len(moments) if sample.is_ok and sample.output_tokens else per_event
        for moment in moments:
            output[place(moment)] += tokens
        prompt[place(moments[0])] += sample.prompt_tokens or sample.wanted_prompt_tokens
        if sample.is_ok:
            finished[place(sample.ended)] += 1
    return Timeline(
        slice_seconds=width,
        first_slice=first_slice,
        window_slices=SLICES,
        output_tokens=tuple(round(value, 3) for value in output),
        prompt_tokens=tuple(round(value, 3) for value in prompt),
        finished=tuple(finished),
    )


def _tokens_per_event(samples: Sequence[Sample]) -> float:
    """For requests that did not come to their usage: with speculative decoding an event holds several tokens."""
    known = [(sample.output_tokens, len(sample.token_moments)) for sample in samples if sample.is_ok and sample.output_tokens]
    events = sum(count for _, count in known)
    return sum(tokens for tokens, _ in known) / events if events else 1.0


def gaps(samples: Sequence[Sample]) -> dict[str, float | None]:
    """Between two events of an answer."""
    found: list[float] = []
    for sample in samples:
        moments = sample.token_moments
        found += [later - earlier for earlier, later in pairwise(moments)]
    found.sort()
    if not found:
        return {"mean": None, "p50": None, "p99": None}
    return {"mean": _figure(mean(found)), "p50": _figure(quantile(found, 0.5)), "p99": _figure(quantile(found, 0.99))}


def running_between(samples: Sequence[Sample], begin: float, end: float, closed: float) -> float:
    """The mean number of requests that were getting tokens, over the window."""
    seconds = 0.0
    for sample in samples:
        if sample.token_moments:
            until = sample.ended if sample.is_done else closed
            seconds += max(0.0, min(until, end) - max(sample.token_moments[0], begin))
    return seconds / (end - begin)


def errors_of(samples: Sequence[Sample]) -> tuple[dict[str, int], dict[str, str]]:
    """How many of each kind, and what was said of the first; requests that the replay ended itself are not among them."""
    failed = [sample for sample in samples if sample.error is not None and sample.error != LEFT]
    said: dict[str, str] = {}
    for sample in failed:
        said.setdefault(str(sample.error), sample.detail[:300])
    return dict(Counter(str(sample.error) for sample in failed)), said

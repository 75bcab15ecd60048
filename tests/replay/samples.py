"""Requests as a stage has seen them, made up."""

from __future__ import annotations

from array import array
from typing import Any

from serving.replay.arrivals import OpenLoop
from serving.replay.load import StageData
from serving.replay.stream import Sample


def a_sample(intended: float = 0.0, *, ttft: float = 0.1, tpot: float = 0.01, tokens: int = 10, **fields: Any) -> Sample:
    """One that ended well: 100 prompt tokens of which 60 were cached, as wanted."""
    sample = Sample(0, intended, 100, 60, tokens)
    sample.sent = intended
    sample.status = 200
    sample.token_moments = array("d", [intended + ttft + place * tpot for place in range(tokens)])
    sample.ended = sample.token_moments[-1] if tokens else intended
    sample.is_done = True
    sample.prompt_tokens, sample.cached_tokens, sample.output_tokens = 100, 60, tokens
    for name, value in fields.items():
        setattr(sample, name, value)
    return sample


def seen(*samples: Sample, seconds: float = 10.0, **fields: Any) -> StageData:
    """A stage whose window is [0, seconds)."""
    data = StageData(OpenLoop(10.0), list(samples), begin=0.0, end=seconds, closed=seconds + 1, cpu_seconds=0.1)
    data.lags = [0.0001] * 100
    for name, value in fields.items():
        setattr(data, name, value)
    return data

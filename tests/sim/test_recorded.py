"""The simulator reproduces a recorded run of a real vLLM on a CPU, given the rates that were measured on it.

Virtual time: the recording's requests are sent at their moments (open load), or as soon as a worker has its answer (closed load).
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from serving.catalog.model import Simulation
from tests.sim.replay import play_closed, play_open
from tests.sim.virtual import Seen

RECORDING: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "recorded-tiny-cpu.json").read_text())
WITHIN = 0.2


def measured() -> Simulation:
    """The mean of what the probes found before the load and after it."""
    before, after = (Simulation.model_validate(RECORDING[f"simulation_{when}"]) for when in ("before", "after"))
    rates = {
        name: (value + getattr(after, name)) / 2 if name.startswith(("prefill_seconds", "step", "request")) else value
        for name, value in before.model_dump().items()
    }
    slowness = (1 / before.prefill_tokens_per_second + 1 / after.prefill_tokens_per_second) / 2
    return Simulation.model_validate(rates | {"prefill_tokens_per_second": 1 / slowness})


def cached(seen: list[Seen]) -> int:
    return sum(one.sequence.cached_tokens or 0 for one in seen)


def test_the_time_to_the_first_token_under_an_open_load() -> None:
    seen = play_open(RECORDING, measured())
    real = [request["first_token_seconds"] for request in RECORDING["open"]]
    simulated = [one.ttft for one in seen]
    assert statistics.fmean(simulated) == pytest.approx(statistics.fmean(real), rel=WITHIN)
    assert statistics.median(simulated) == pytest.approx(statistics.median(real), rel=WITHIN)


def test_the_time_of_whole_answers_under_an_open_load() -> None:
    real = statistics.fmean(request["total_seconds"] for request in RECORDING["open"])
    assert statistics.fmean(one.total for one in play_open(RECORDING, measured())) == pytest.approx(real, rel=WITHIN)


def test_throughput_and_first_tokens_under_a_closed_load() -> None:
    requests = [request for worker in RECORDING["closed"] for request in worker]
    tokens = sum(request["answer_tokens"] for request in requests)
    seen = play_closed(RECORDING, measured())
    assert len(seen) == len(requests)
    real = tokens / max(request["sent_seconds"] + request["total_seconds"] for request in requests)
    simulated = tokens / max(one.ended_at or 0.0 for one in seen)
    assert simulated == pytest.approx(real, rel=WITHIN)
    first = statistics.fmean(request["first_token_seconds"] for request in requests)
    assert statistics.fmean(one.ttft for one in seen) == pytest.approx(first, rel=WITHIN)


def test_the_same_prompt_tokens_are_cached_to_the_last_one() -> None:
    seen = play_open(RECORDING, measured())
    assert [one.sequence.cached_tokens for one in seen] == [request["cached_tokens"] for request in RECORDING["open"]]
    requests = [request for worker in RECORDING["closed"] for request in worker]
    assert cached(play_closed(RECORDING, measured())) == sum(request["cached_tokens"] for request in requests)


def test_wrong_rates_are_noticed() -> None:
    """Half as fast is not within the tolerance, so that the tests above say something."""
    found = measured()
    slow = found.model_copy(
        update={
            "prefill_tokens_per_second": found.prefill_tokens_per_second / 2,
            "step_seconds": found.step_seconds * 2,
            "step_seconds_per_sequence": found.step_seconds_per_sequence * 2,
        }
    )
    real = statistics.fmean(request["first_token_seconds"] for request in RECORDING["open"])
    assert statistics.fmean(one.ttft for one in play_open(RECORDING, slow)) > (1 + WITHIN) * real

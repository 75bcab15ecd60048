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

Recording = dict[str, Any]
DATA = Path(__file__).parent / "data"
WITHIN = 0.2


@pytest.fixture(params=["recorded-tiny-cpu-a", "recorded-tiny-cpu-b"])
def recording(request: pytest.FixtureRequest) -> Recording:
    read: Recording = json.loads((DATA / f"{request.param}.json").read_text())
    return read


def measured(recording: Recording) -> Simulation:
    """The mean of what the probes found before the load and after it."""
    before, after = (Simulation.model_validate(recording[f"simulation_{when}"]) for when in ("before", "after"))
    rates = {
        name: (value + getattr(after, name)) / 2 if name.startswith(("prefill_seconds", "step", "request")) else value
        for name, value in before.model_dump().items()
    }
    slowness = (1 / before.prefill_tokens_per_second + 1 / after.prefill_tokens_per_second) / 2
    return Simulation.model_validate(rates | {"prefill_tokens_per_second": 1 / slowness})


def cached(seen: list[Seen]) -> int:
    return sum(one.sequence.cached_tokens or 0 for one in seen)


def test_the_time_to_the_first_token_under_an_open_load(recording: Recording) -> None:
    seen = play_open(recording, measured(recording))
    real = [request["first_token_seconds"] for request in recording["open"]]
    simulated = [one.ttft for one in seen]
    assert statistics.fmean(simulated) == pytest.approx(statistics.fmean(real), rel=WITHIN)
    assert statistics.median(simulated) == pytest.approx(statistics.median(real), rel=WITHIN)


def test_the_time_of_whole_answers_under_an_open_load(recording: Recording) -> None:
    real = statistics.fmean(request["total_seconds"] for request in recording["open"])
    assert statistics.fmean(one.total for one in play_open(recording, measured(recording))) == pytest.approx(real, rel=WITHIN)


def test_throughput_and_first_tokens_under_a_closed_load(recording: Recording) -> None:
    requests = [request for worker in recording["closed"] for request in worker]
    tokens = sum(request["answer_tokens"] for request in requests)
    seen = play_closed(recording, measured(recording))
    assert len(seen) == len(requests)
    real = tokens / max(request["sent_seconds"] + request["total_seconds"] for request in requests)
    simulated = tokens / max(one.ended_at or 0.0 for one in seen)
    assert simulated == pytest.approx(real, rel=WITHIN)
    first = statistics.fmean(request["first_token_seconds"] for request in requests)
    assert statistics.fmean(one.ttft for one in seen) == pytest.approx(first, rel=WITHIN)


def test_the_same_prompt_tokens_are_cached_to_the_last_one(recording: Recording) -> None:
    seen = play_open(recording, measured(recording))
    assert [one.sequence.cached_tokens for one in seen] == [request["cached_tokens"] for request in recording["open"]]
    requests = [request for worker in recording["closed"] for request in worker]
    assert cached(play_closed(recording, measured(recording))) == sum(request["cached_tokens"] for request in requests)


def test_wrong_rates_are_noticed(recording: Recording) -> None:
    """Half as fast is not within the tolerance, so that the tests above say something."""
    found = measured(recording)
    slow = found.model_copy(
        update={
            "prefill_tokens_per_second": found.prefill_tokens_per_second / 2,
            "step_seconds": found.step_seconds * 2,
            "step_seconds_per_sequence": found.step_seconds_per_sequence * 2,
        }
    )
    real = statistics.fmean(request["first_token_seconds"] for request in recording["open"])
    assert statistics.fmean(one.ttft for one in play_open(recording, slow)) > (1 + WITHIN) * real

"""A published figure, reproduced by priors that are fitted to it: SIMULATED, no measurement, and no proof of the priors' parts.

What this holds the simulator to: a reference workload of long, mostly cached prompts comes out at the throughput that the sum of
the rates says, with the hit rate that the workload has, and never above the hardware's roofline.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.catalog.model import Simulation
from serving.sim.rates import Rates
from tests.sim.virtual import Run, Seen, engine_model

DATA = yaml.safe_load((Path(__file__).parent / "data" / "glm-5.2-mxfp4-8x-mi355x.yaml").read_text())
ANCHOR: dict[str, Any] = DATA["anchor"]
SIMULATION = Simulation.model_validate(DATA["simulation"])


def node() -> Run:
    model = engine_model(
        Rates.of(SIMULATION),
        capacity_tokens=SIMULATION.kv_capacity_tokens,
        block_tokens=SIMULATION.block_tokens,
        **DATA["limits"],
    )
    return Run(model)


def prompts() -> Iterator[bytes]:
    """The first 60 % are the same in all, the rest in none."""
    shared = round(ANCHOR["prompt_tokens"] * ANCHOR["cached_share"])
    for number in count():
        yield b"s" * shared + f"{number:08}".encode() * ((ANCHOR["prompt_tokens"] - shared) // 8)


def steady(run: Run, at_once: int, requests: int) -> list[Seen]:
    """Ask `at_once` at a time, each as soon as one is answered."""
    texts = prompts()
    run.send(next(texts), 1)  # the shared part is held before the clock counts
    run.out()
    busy = {run.send(next(texts), ANCHOR["output_tokens"]) for _ in range(at_once)}
    seen: list[Seen] = []
    while len(seen) < requests:
        assert run.model.next_seconds is not None
        run.until(run.model.next_seconds)
        for one in [one for one in busy if one.ended]:
            busy.remove(one)
            seen.append(one)
            busy.add(run.send(next(texts), ANCHOR["output_tokens"]))
    return seen


def test_the_simulated_node_agrees_with_the_published_throughput() -> None:
    run = node()
    seen = steady(run, DATA["limits"]["max_num_seqs"], 256)
    later = seen[64:]  # the first wave begins all at once
    began, ended = seen[63].ended_at, later[-1].ended_at
    assert began is not None and ended is not None
    within = sum(began < moment <= ended for one in run.seen for moment in one.tokens)
    simulated = within / (ended - began)
    assert simulated == pytest.approx(ANCHOR["output_tokens_per_second"], rel=ANCHOR["tolerance"])
    assert simulated < ANCHOR["roofline_output_tokens_per_second"]
    cached = [one.sequence.cached_tokens for one in later]
    assert sum(filter(None, cached)) == pytest.approx(ANCHOR["cached_share"] * ANCHOR["prompt_tokens"] * len(later))


def test_the_published_arrival_rate_is_sustained() -> None:
    run = node()
    texts = prompts()
    for number in range(200):
        run.until(number / ANCHOR["requests_per_second"])
        run.send(next(texts), ANCHOR["output_tokens"])
    assert run.model.waiting == 0 and run.model.running < DATA["limits"]["max_num_seqs"]
    early, late = (sum(one.ttft for one in run.seen[part]) / 50 for part in (slice(20, 70), slice(140, 190)))
    assert late < 1.5 * early

"""A simulated engine with the tiny model's tokens: one byte each, and the same block size as vLLM on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from serving.sim.drive import SimulatedClock
from serving.sim.engine import SimulatedEngine
from serving.sim.plan import EnginePlan
from serving.sim.rates import Rates
from serving.sim.scheduler import Limits

TINY = EnginePlan(
    profile="tiny-cpu",
    target="cpu-epyc",
    model="tiny",
    version="0.32.0",
    limits=Limits(max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=4096),
    rates=Rates(prefill_tokens_per_second=100_000, step_seconds=0.002),
    block_tokens=128,
    capacity_blocks=762,
    token_bytes=1,
)


@contextlib.asynccontextmanager
async def simulated_engine(
    plan: EnginePlan = TINY,
    *,
    step_seconds: float | None = None,
    speed: float = 1.0,
    every_metric: bool = False,
    **more: Any,
) -> AsyncIterator[SimulatedEngine]:
    """One that is up; `more` are fields of the plan to replace."""
    if step_seconds is not None:
        more["rates"] = replace(plan.rates, step_seconds=step_seconds)
    engine = SimulatedEngine(replace(plan, **more), SimulatedClock(speed), every_metric=every_metric)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()

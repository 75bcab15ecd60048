"""The engine under contract: two doubles of ours in every run, the real vLLM where tests marked `engine` are run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.simulated_engine import simulated_engine

TOKEN_SECONDS = 0.002
"""About as fast as the tiny model on a CPU, so that a long answer is still running when a test hangs up."""


@dataclass(frozen=True)
class AnyEngine:
    """What the contract needs to know of an engine."""

    url: str
    model: str
    max_model_len: int
    idle_close_seconds: float = 5.0
    is_simulated: bool = False


@pytest.fixture(params=["scripted", "simulated", pytest.param("real", marks=pytest.mark.engine)])
async def any_engine(request: pytest.FixtureRequest) -> AsyncIterator[AnyEngine]:
    if request.param == "real":
        real = request.getfixturevalue("real_engine")
        yield AnyEngine(real.url, real.model, real.max_model_len)
        return
    idle = 1.0  # the double's default is vLLM's 5 s; the fast tests need not wait for that
    if request.param == "simulated":
        async with simulated_engine(step_seconds=TOKEN_SECONDS, keep_alive_seconds=idle) as simulated:
            yield AnyEngine(simulated.url, simulated.plan.model, simulated.plan.limits.max_model_len, idle, is_simulated=True)
        return
    async with ScriptedEngine(default=Script(itl_seconds=TOKEN_SECONDS), idle_close_seconds=idle) as engine:
        yield AnyEngine(engine.url, engine.model, engine.max_model_len, idle)


@pytest.fixture(params=["scripted", pytest.param("real", marks=pytest.mark.engine)])
async def any_pooling_engine(request: pytest.FixtureRequest) -> AsyncIterator[AnyEngine]:
    """An engine that embeds and scores."""
    if request.param == "real":
        real = request.getfixturevalue("real_pooling_engine")
        yield AnyEngine(real.url, real.model, real.max_model_len)
        return
    async with ScriptedEngine(tasks=("embed", "score")) as engine:
        yield AnyEngine(engine.url, engine.model, engine.max_model_len)

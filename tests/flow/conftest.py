"""Flow tests: the whole gateway on a real socket, over scripted engines, with the conservation check at each test's end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from serving.fleet.store import EndpointState
from serving.settings import Settings
from serving.sim.engine import SimulatedEngine
from tests.doubles.conservation import Expectation, conserved
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.doubles.simulated_engine import simulated_engine

GatewayOver = Callable[..., AbstractAsyncContextManager[RunningGateway]]


def settings_over(engines: Mapping[str, ScriptedEngine], **sections: Any) -> Settings:
    """Settings of a gateway over engines by endpoint name."""
    endpoints = [
        {"name": name, "url": engine.url, "model": engine.model, "tasks": engine.tasks} for name, engine in engines.items()
    ]
    return Settings.model_validate({"endpoints": endpoints, **sections})


@pytest.fixture
def gateway_over() -> GatewayOver:
    """`async with gateway_over({"e1": engine}, relay={"max_attempts": 1}) as gateway:`, checked for conservation at its end."""

    def start(
        engines: Mapping[str, ScriptedEngine], *, expected: Expectation | None = None, **sections: Any
    ) -> AbstractAsyncContextManager[RunningGateway]:
        return conserved(settings_over(engines, **sections), engines, expected)

    return start


@pytest.fixture
async def simulated() -> AsyncIterator[SimulatedEngine]:
    """One simulated engine that serves the model `tiny`."""
    async with simulated_engine(step_seconds=0.002) as started:
        yield started


@pytest.fixture(params=["scripted", "simulated", pytest.param("real", marks=pytest.mark.engine)])
def engine_url(request: pytest.FixtureRequest) -> str:
    """An engine that serves the model `tiny`, of each kind, slow enough that a long answer can be left."""
    if request.param == "real":
        return str(request.getfixturevalue("real_engine").url)
    if request.param == "simulated":
        return str(request.getfixturevalue("simulated").url)
    scripted: ScriptedEngine = request.getfixturevalue("engine")
    scripted.default = Script(itl_seconds=0.002)
    return scripted.url


@pytest.fixture
async def pooling_engine() -> AsyncIterator[ScriptedEngine]:
    """A scripted engine that embeds and scores."""
    async with ScriptedEngine(tasks=("embed", "score")) as started:
        yield started


@pytest.fixture(params=["scripted", pytest.param("real", marks=pytest.mark.engine)])
def pooling_url(request: pytest.FixtureRequest) -> str:
    """An engine that embeds and scores with the model `tiny`, scripted or real."""
    name = "real_pooling_engine" if request.param == "real" else "pooling_engine"
    return str(request.getfixturevalue(name).url)


@pytest.fixture
async def pooling_gateway(pooling_url: str) -> AsyncIterator[RunningGateway]:
    """A gateway over `pooling_url` that wants the key sk-test."""
    endpoint = {"name": "e1", "url": pooling_url, "model": "tiny", "tasks": ["embed", "score"]}
    async with RunningGateway(Settings.model_validate({"endpoints": [endpoint], "auth": {"api_key": "sk-test"}})) as started:
        yield started


async def all_ready(gateway: RunningGateway) -> None:
    """Wait until each endpoint has shown that it serves."""

    async def problems() -> list[str]:
        statuses = gateway.app.fleet.snapshot.statuses
        return [f"{name} is {status.state}" for name, status in statuses.items() if status.state is not EndpointState.READY]

    await settled(problems)


def chat(**fields: Any) -> dict[str, Any]:
    """A small chat request for the scripted engine's model."""
    return {"model": "tiny", "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 5} | fields

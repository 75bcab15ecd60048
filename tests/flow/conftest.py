"""Flow tests: the whole gateway on a real socket, over scripted engines, with the conservation check at each test's end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from serving.settings import EndpointSettings, Settings
from tests.doubles.conservation import Expectation, conserved
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine

GatewayOver = Callable[..., AbstractAsyncContextManager[RunningGateway]]


def settings_over(engines: Mapping[str, ScriptedEngine], **sections: Any) -> Settings:
    """Settings of a gateway over engines by endpoint name."""
    endpoints = tuple(EndpointSettings(name=name, url=engine.url, model=engine.model) for name, engine in engines.items())
    return Settings.model_validate({"endpoints": endpoints, **sections})


@pytest.fixture
def gateway_over() -> GatewayOver:
    """`async with gateway_over({"e1": engine}, relay={"max_attempts": 1}) as gateway:`, checked for conservation at its end."""

    def start(
        engines: Mapping[str, ScriptedEngine], *, expected: Expectation | None = None, **sections: Any
    ) -> AbstractAsyncContextManager[RunningGateway]:
        return conserved(settings_over(engines, **sections), engines, expected)

    return start


def chat(**fields: Any) -> dict[str, Any]:
    """A small chat request for the scripted engine's model."""
    return {"model": "tiny", "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 5} | fields

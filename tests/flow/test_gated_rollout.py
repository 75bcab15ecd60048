"""A rollout past the gate with users all the time: a bad candidate never gets a request, a good one takes over without a loss."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from serving.gatekeeper import controller as module
from serving.gatekeeper.run import Gatekeeper
from serving.settings import Settings
from tests.doubles.kubernetes_api import KubernetesApi
from tests.doubles.raw_client import ask
from tests.doubles.rollout import Rollout
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import become
from tests.flow.conftest import chat
from tests.gatekeeper.doubles import ToldJudge, add_gated, condition, settings_for

SOURCES: list[dict[str, Any]] = [
    {"service": "engines", "namespace": "serving"},
    {"selector": "app=engine", "namespace": "serving", "port": "http"},
]
OLD, NEW = ("old-1", "old-2", "old-3"), ("new-1", "new-2", "new-3")


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)


class Cluster:
    """Gated engines, the controller, a gateway, and users who ask all the time."""

    def __init__(self, api: KubernetesApi, judge: ToldJudge, stack: AsyncExitStack) -> None:
        self.api, self.judge = api, judge
        self.engines: dict[str, ScriptedEngine] = {}
        self.statuses: list[int] = []
        self.over = False
        self.gateway: RunningGateway | None = None
        self._stack = stack

    async def start_engines(self, *names: str) -> None:
        """Processes without a pod yet."""
        for name in names:
            self.engines[name] = await self._stack.enter_async_context(ScriptedEngine())

    def add(self, name: str, flags: str) -> None:
        add_gated(self.api, name, flags=flags, port=self.engines[name].port)

    def asked(self, name: str) -> int:
        """Requests for answers, the gateway's own tokens included."""
        return sum(request.path == "/v1/chat/completions" for request in self.engines[name].log.requests)

    async def ask_on(self) -> None:
        assert self.gateway is not None
        while not self.over:
            self.statuses.append((await ask(self.gateway.url, "/v1/chat/completions", chat())).status)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def cluster(source: dict[str, Any]) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(KubernetesApi())
        made = Cluster(api, ToldJudge(), stack)
        await made.start_engines(*OLD, *NEW)
        for name in OLD:
            made.add(name, "good")
        keeper = asyncio.create_task(Gatekeeper(settings_for(api), made.judge).work())
        settings = Settings.model_validate(
            {
                "pools": [{"name": "cpu", "model": "tiny", "target": "cpu-epyc", "kubernetes": source}],
                "kubernetes": {"api_url": api.url, "list_seconds": 1.0, "timeout_seconds": 1.0},
                "probe": {"period_seconds": 0.05},
                "health": {"slow_start_seconds": 0},
            }
        )
        made.gateway = await stack.enter_async_context(RunningGateway(settings))
        await become(lambda: len(serving(made)) == 3)
        users = [asyncio.create_task(made.ask_on()) for _ in range(2)]
        try:
            yield made
        finally:
            made.over = True
            await asyncio.gather(*users)
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper


def serving(made: Cluster) -> set[str]:
    assert made.gateway is not None
    statuses = made.gateway.app.fleet.snapshot.statuses.values()
    return {status.endpoint.pod for status in statuses if status.serves}


async def drive(rollout: Rollout, until: Callable[[], object]) -> None:
    def step() -> object:
        rollout.step()
        return until()

    await become(step)


@pytest.mark.parametrize("source", SOURCES, ids=["service", "selector"])
async def test_a_bad_candidate_never_gets_a_request_and_the_rest_serve_on(source: dict[str, Any]) -> None:
    async with cluster(source) as made:
        rollout = Rollout(made.api, OLD, NEW, lambda name: made.add(name, "bad"))
        await drive(rollout, lambda: rollout.started and condition(made.api, "new-1") == ("False", "Failed"))
        asked = len(made.statuses)
        await drive(rollout, lambda: len(made.statuses) >= asked + 50)
        assert rollout.started == ["new-1"], "the rollout stops after one replica"
        assert made.asked("new-1") == 0
        assert serving(made) == {"old-2", "old-3"}
        # Back to what was there: a digest that is known is ready at once.
        made.api.remove_pod("new-1")
        made.add("old-1", "good")
        await become(lambda: serving(made) == set(OLD))
        assert made.judge.judged == ["old-1", "new-1"]
        assert set(made.statuses) == {200}


@pytest.mark.parametrize("source", SOURCES, ids=["service", "selector"])
async def test_a_good_one_takes_over_without_a_lost_request(source: dict[str, Any]) -> None:
    async with cluster(source) as made:
        rollout = Rollout(made.api, OLD, NEW, lambda name: made.add(name, "other"))
        made.judge.go.clear()
        await drive(rollout, lambda: condition(made.api, "new-1") == ("False", "Judging") if rollout.started else False)
        asked = len(made.statuses)
        await drive(rollout, lambda: len(made.statuses) >= asked + 50)
        assert made.asked("new-1") == 0 and rollout.started == ["new-1"], "it gets nothing while it is judged"
        made.judge.go.set()
        await drive(rollout, lambda: rollout.is_complete and serving(made) == set(NEW))
        asked = len(made.statuses)
        await become(lambda: len(made.statuses) >= asked + 50 and all(made.asked(name) for name in NEW))
        assert made.judge.judged == ["old-1", "new-1"], "one verdict for all three"
        assert set(made.statuses) == {200}

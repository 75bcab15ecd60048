"""A gateway whose engines come and go behind a name, as behind a headless Service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from serving.fleet.dns import LookupFailed
from serving.fleet.store import EndpointState
from serving.settings import ProbeSettings, Settings
from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.flow.conftest import chat

READY = "serving_ready_endpoints"


async def become(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""

    async def problems() -> list[str]:
        return [] if condition() else ["the condition does not hold"]

    await settled(problems)


class Names:
    """A resolver of one name."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.failing = False

    async def __call__(self, host: str) -> list[str]:
        if self.failing:
            raise LookupFailed("no server")
        return list(self.addresses)


def gateway_over_names(names: Names, port: int) -> RunningGateway:
    settings = Settings.model_validate(
        {
            "pools": [{"name": "cpu", "model": "tiny", "target": "cpu-epyc", "host": "engines.test", "port": port}],
            "discovery": {"period_seconds": 0.05},
            "probe": {"period_seconds": 0.05},
            "server": {"operator_port": 0},
        }
    )
    gateway = RunningGateway(settings)
    gateway.app.discovery._resolve = names
    return gateway


async def status_of(gateway: RunningGateway) -> int:
    return (await ask(gateway.url, "/v1/chat/completions", chat())).status


async def operators(gateway: RunningGateway) -> str:
    return (await ask(gateway.operator_url, "/metrics")).body.decode()


async def test_engines_come_and_go_under_a_running_gateway() -> None:
    names = Names()
    async with ScriptedEngine() as first:
        async with gateway_over_names(names, first.port) as gateway:
            assert await status_of(gateway) == 503  # the model is known, its engines are not there yet
            assert f'{READY}{{model="tiny",pool="cpu"}} 0.0' in await operators(gateway)
            names.addresses = ["127.0.0.1"]
            await become(lambda: gateway.app.fleet.snapshot.any_ready)
            assert await status_of(gateway) == 200
            async with ScriptedEngine(host="127.0.0.2", port=first.port) as second:
                names.addresses = ["127.0.0.2"]
                await become(lambda: list(gateway.app.fleet.snapshot.statuses) == ["cpu-127.0.0.2"])
                await become(lambda: gateway.app.fleet.snapshot.any_ready)
                assert await status_of(gateway) == 200
                assert len(second.log.requests) == 1
                text = await operators(gateway)
                assert 'serving_endpoint_ready{endpoint="cpu-127.0.0.2"' in text
                assert 'serving_endpoint_ready{endpoint="cpu-127.0.0.1"' not in text
                assert 'endpoint="cpu-127.0.0.1",pool="cpu",result="ok"} 1.0' in text
                names.failing = True
                await become(lambda: gateway.app.metrics.discovery_failures._values[("cpu",)] > 1)
                assert await status_of(gateway) == 200
            names.failing, names.addresses = False, []
            await become(lambda: not gateway.app.fleet.snapshot.statuses)
            assert await status_of(gateway) == 503


async def test_demand_is_exported_for_each_pool() -> None:
    """What autoscalers read: requests under way at the pool's engines, and those that found none, both from zero."""
    names, gate = Names(), Gate()
    running, refused = 'serving_running_requests{model="tiny",pool="cpu"}', 'outcome="unavailable",route="chat_completions"}'
    async with ScriptedEngine(default=Script(gate=gate)) as engine:
        async with gateway_over_names(names, engine.port) as gateway:
            text = await operators(gateway)
            assert f"{running} 0.0" in text and f"{refused} 0.0" in text
            assert await status_of(gateway) == 503
            assert f"{refused} 1.0" in await operators(gateway)
            names.addresses = ["127.0.0.1"]
            await become(lambda: gateway.app.fleet.snapshot.any_ready)
            asked = asyncio.create_task(status_of(gateway))
            await become(lambda: engine.log.requests)
            assert f"{running} 1.0" in await operators(gateway)
            gate.open_all()
            assert await asked == 200
            assert f"{running} 0.0" in await operators(gateway)


async def test_what_departed_engines_leave_behind_is_bounded() -> None:
    names = Names()
    async with ScriptedEngine(host="0.0.0.0") as engine:  # at all addresses of the loopback network
        async with gateway_over_names(names, engine.port) as gateway:
            app = gateway.app
            for turn in range(2, 80):
                names.addresses = [f"127.0.0.{turn}"]
                await become(lambda: [e.name for e in app.fleet.snapshot.candidates("tiny")] == [f"cpu-{names.addresses[0]}"])
                assert await status_of(gateway) == 200
            await become(lambda: len(app.relay._pools) <= 3)
            assert len({endpoint for _, endpoint, _ in app.metrics.attempts._values}) <= 65
            assert len(app.chooser._works) <= 1


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ([{"name": "a", "model": "m", "host": "h", "port": 1}] * 2, "pools: the name 'a' is given twice"),
        ([{"name": "default", "model": "m", "host": "h", "port": 1}], "pools: 'default' is the pool of an entry of `endpoints`"),
        (
            [{"name": "a", "model": "m", "host": "h", "port": 1, "tasks": ["embed"]}],
            "pools: 'e' and 'a' serve the model 'm' with different",
        ),
        ([{"name": "a", "model": "m", "host": "", "port": 1}], "host"),
        ([{"name": "a", "model": "m", "host": "h", "port": 0}], "port"),
    ],
)
def test_pools_that_cannot_be(pools: list[dict[str, object]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings.model_validate({"pools": pools, "endpoints": [{"name": "e", "url": "http://h:1", "model": "m"}]})


async def test_a_models_tasks_are_known_without_an_engine() -> None:
    names = Names()
    async with gateway_over_names(names, 1) as gateway:
        assert await status_of(gateway) == 503
        body = {"model": "tiny", "input": "text"}
        assert (await ask(gateway.url, "/v1/embeddings", body)).status == 404


async def test_liveness_does_not_wait_for_engines() -> None:
    """Five of eight engines take connections and never answer; the probes of the process are no concern of theirs."""
    names = Names(*(f"127.0.0.{number}" for number in range(1, 9)))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(ScriptedEngine())
        for number in range(2, 9):
            engine = await stack.enter_async_context(ScriptedEngine(host=f"127.0.0.{number}", port=first.port))
            engine.blackhole = number > 3
        gateway = await stack.enter_async_context(gateway_over_names(names, first.port))
        await become(lambda: sum(s.state is EndpointState.READY for s in gateway.app.fleet.snapshot.statuses.values()) == 3)
        before = time.monotonic()
        for path in ("/livez", "/readyz") * 50:
            assert (await ask(gateway.operator_url, path)).status == 200
        assert time.monotonic() - before < 10 * ProbeSettings().timeout_seconds  # had each waited for one engine: 200 s

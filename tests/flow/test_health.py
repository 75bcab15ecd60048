"""O-HLT-1, O-HLT-2, O-HLT-4, O-DSC-2 (c): engines that are full, fail, hang, load or stop, and what their clients notice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from serving.fleet.breaker import BreakerState
from serving.fleet.store import EndpointState
from serving.settings import Settings
from serving.sim.faults import Faults
from tests.doubles.conservation import Expectation
from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.doubles.simulated_engine import simulated_engine
from tests.flow.conftest import GatewayOver, chat

CHAT = "/v1/chat/completions"
StartEngine = Callable[..., Awaitable[ScriptedEngine]]
QUICK = {"open_seconds": 0.3, "most_open_seconds": 0.3, "token_timeout_seconds": 0.3}
PROBE = {"period_seconds": 0.1}
DRAINING = b'{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","code":500}}'


def breaker(gateway: RunningGateway, name: str) -> BreakerState:
    return gateway.app.fleet.snapshot.statuses[name].breaker


def rotation(gateway: RunningGateway) -> list[str]:
    return [endpoint.name for endpoint in gateway.app.fleet.snapshot.candidates("tiny")]


async def in_rotation(gateway: RunningGateway, *names: str) -> None:
    async def problems() -> list[str]:
        statuses = gateway.app.fleet.snapshot.statuses
        is_ready = all(statuses[name].state is EndpointState.READY for name in names)
        return [] if is_ready and rotation(gateway) == list(names) else [f"in rotation: {statuses}"]

    await settled(problems)


async def ejections(gateway: RunningGateway) -> dict[tuple[str, str], float]:
    samples = (await gateway.metrics()).select("serving_endpoint_ejections_total")
    return {(s.labels["endpoint"], s.labels["reason"]): s.value for s in samples if s.value}


# O-HLT-1


async def test_o_hlt_1_a_full_engine_is_not_down(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, probe=PROBE) as gateway:
        await in_rotation(gateway, "e1")
        engine.script(*[Script(status=503, headers=(("retry-after", "1"),))] * 30)
        statuses = [(await ask(gateway.url, CHAT, chat())).status for _ in range(31)]
        assert statuses == [429] * 30 + [200], "the first request after the last refusal is served"
        assert gateway.app.health.troubled == {}
        assert await ejections(gateway) == {}


async def test_o_hlt_1_an_open_breaker_lets_one_trial_through_and_closes(
    start_engine: StartEngine, gateway_over: GatewayOver
) -> None:
    engines = {name: await start_engine() for name in ("e1", "e2")}
    async with gateway_over(engines, health=QUICK, probe=PROBE) as gateway:
        await in_rotation(gateway, "e1", "e2")
        engines["e1"].default = Script(status=500)
        engines["e1"].probes = Script(status=500)
        trials = len(engines["e1"].log.control_requests)
        while breaker(gateway, "e1") is BreakerState.CLOSED:
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        metrics = await gateway.metrics()
        assert {s.labels["state"]: s.value for s in metrics.select("serving_endpoint_breaker", endpoint="e1")} == {
            "closed": 0,
            "open": 1,
            "half_open": 0,
        }
        seen = len(engines["e1"].log.requests)
        assert seen == 3
        for _ in range(20):
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        assert len(engines["e1"].log.requests) == seen
        engines["e1"].default, engines["e1"].probes = Script(), None
        await in_rotation(gateway, "e1", "e2")
        posts = [r for r in engines["e1"].log.control_requests[trials:] if r.method == "POST"]
        assert posts and all(r.header("x-serving-probe") == "token" for r in posts)
        assert await ejections(gateway) == {("e1", "error"): 1}


async def test_o_hlt_1_a_single_engine_that_fails_stays_in_rotation(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, probe=PROBE | {"period_seconds": 60.0}) as gateway:
        await in_rotation(gateway, "e1")
        engine.script(*[Script(status=500)] * 10)
        statuses = [(await ask(gateway.url, CHAT, chat())).status for _ in range(11)]
        assert statuses == [502] * 10 + [200]
        assert breaker(gateway, "e1") is BreakerState.CLOSED


# O-HLT-2


@pytest.mark.parametrize("fault", [Script(status=500), Script(rst_after=0, head_at_arrival=False), Script(close_after=0)])
async def test_o_hlt_2_a_worker_that_fails_everything_is_remembered(
    start_engine: StartEngine, gateway_over: GatewayOver, fault: Script
) -> None:
    engines = {name: await start_engine() for name in ("e1", "e2", "e3")}
    async with gateway_over(engines, probe=PROBE, health={"open_seconds": 1.0}) as gateway:
        await in_rotation(gateway, "e1", "e2", "e3")
        engines["e1"].default = engines["e1"].probes = fault
        async with RawClient(gateway.url) as client:
            for _ in range(200):
                assert (await client.ask(CHAT, chat())).status == 200
        asked = len({record.header("x-request-id") for record in engines["e1"].log.requests})
        assert asked == 3, "as many requests as it takes, and no client is used to try it"
        assert (await gateway.metrics()).sum("serving_retries_total") <= 6
        engines["e1"].default, engines["e1"].probes = Script(), None
        await in_rotation(gateway, "e1", "e2", "e3")
        for _ in range(6):
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        assert len({record.header("x-request-id") for record in engines["e1"].log.requests}) > 3


# O-HLT-4


async def test_o_hlt_4_an_engine_that_hangs_behind_green_health_is_out(
    start_engine: StartEngine, gateway_over: GatewayOver
) -> None:
    engines = {name: await start_engine() for name in ("e1", "e2")}
    relay = {"first_byte_timeout_seconds": 2.0}  # in which a well engine answers on a busy machine, too
    async with gateway_over(engines, relay=relay, health=QUICK, probe=PROBE) as gateway:
        await in_rotation(gateway, "e1", "e2")
        engines["e1"].default = engines["e1"].probes = Script(blackhole=True)
        answers = 0
        while breaker(gateway, "e1") is BreakerState.CLOSED:
            answer = await ask(gateway.url, CHAT, chat(stream=answers % 2 == 0))
            assert answer.status == 200, "who was stuck there was sent on before a byte had come"
            answers += 1
        assert len(engines["e1"].log.requests) == 3
        assert await ejections(gateway) == {("e1", "timeout"): 1}
        await asyncio.sleep(1.0)
        assert (rotation(gateway), len(engines["e1"].log.requests)) == (["e2"], 3)
        engines["e1"].default, engines["e1"].probes = Script(), None
        await in_rotation(gateway, "e1", "e2")


async def test_o_hlt_4_when_every_engine_hangs_one_stays(start_engine: StartEngine, gateway_over: GatewayOver) -> None:
    engines = {name: await start_engine() for name in ("e1", "e2")}
    relay = {"first_byte_timeout_seconds": 1.0, "max_attempts": 1}
    async with gateway_over(engines, relay=relay, health=QUICK, probe=PROBE) as gateway:
        await in_rotation(gateway, "e1", "e2")
        for engine in engines.values():
            engine.default = engine.probes = Script(blackhole=True)
        for _ in range(8):
            assert (await ask(gateway.url, CHAT, chat())).status == 504
        assert len(rotation(gateway)) == 1
        for engine in engines.values():
            engine.default, engine.probes = Script(), None
        assert (await ask(gateway.url, CHAT, chat())).status == 200
        await in_rotation(gateway, "e1", "e2")


# O-HLT-5, one poison request


async def test_o_hlt_5_a_poison_request_with_its_clients_retries_ejects_nobody(
    start_engine: StartEngine, gateway_over: GatewayOver
) -> None:
    engines = {name: await start_engine() for name in ("e1", "e2", "e3", "e4")}
    for engine in engines.values():
        engine.choose = lambda request: Script(status=500) if b"poison" in request.body else None
    async with gateway_over(engines, probe=PROBE) as gateway:
        await in_rotation(gateway, *engines)
        for _ in range(5):
            assert (await ask(gateway.url, CHAT, chat(messages=[{"role": "user", "content": "poison"}]))).status == 502
        assert await ejections(gateway) == {}
        for _ in range(8):
            assert (await ask(gateway.url, CHAT, chat())).status == 200


# O-DSC-2


@pytest.mark.parametrize("loading", ["models", "chat"])
async def test_o_dsc_2_c_an_engine_that_still_loads_gets_no_client(
    start_engine: StartEngine, gateway_over: GatewayOver, loading: str
) -> None:
    loaded, new = await start_engine(), await start_engine()
    if loading == "models":
        new.routes["/v1/models"] = Script(body=json.dumps({"object": "list", "data": []}).encode())
    else:
        new.default = new.probes = Script(status=503)
    async with gateway_over({"e1": loaded, "e2": new}, probe=PROBE) as gateway:
        await in_rotation(gateway, "e1")
        for _ in range(20):
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        assert new.log.requests == []
        new.routes.clear()
        new.default, new.probes = Script(), None
        await in_rotation(gateway, "e1", "e2")
        for _ in range(2):
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        assert len(new.log.requests) == 1


async def test_the_trial_is_sent_with_the_engines_secret(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, relay={"engine_secret": "sesame"}) as gateway:
        await in_rotation(gateway, "e1")
        (trial,) = [r for r in engine.log.control_requests if r.method == "POST"]
        assert (trial.header("x-serving-engine-secret"), trial.json["max_tokens"]) == ("sesame", 1)


async def test_who_has_left_leaves_no_series(start_engine: StartEngine, gateway_over: GatewayOver) -> None:
    engines = {name: await start_engine() for name in ("e1", "e2")}
    async with gateway_over(engines, probe=PROBE) as gateway:
        await in_rotation(gateway, "e1", "e2")
        app = gateway.app
        app.fleet.replace("default", [app.fleet.snapshot.statuses["e1"].endpoint])
        app.probe.follow()
        metrics = await gateway.metrics()
        assert {s.labels["endpoint"] for s in metrics.select("serving_endpoint_breaker")} == {"e1"}


# What engines say when they stop


async def test_a_draining_engine_is_out_with_its_first_refusal_and_nobody_notices(
    start_engine: StartEngine, gateway_over: GatewayOver
) -> None:
    engines = {name: await start_engine() for name in ("e1", "e2")}
    async with gateway_over(engines, probe=PROBE) as gateway:
        await in_rotation(gateway, "e1", "e2")
        engines["e1"].default = engines["e1"].probes = Script(status=500, body=DRAINING)
        for _ in range(10):
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        assert len(engines["e1"].log.requests) == 1
        assert await ejections(gateway) == {("e1", "draining"): 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_given_up_before_its_first_byte_is_asked_for_elsewhere(
    start_engine: StartEngine, gateway_over: GatewayOver, stream: bool
) -> None:
    given_up = Script(body=b'{"choices":[{"message":{"content":"ha"},"finish_reason":"abort"}]}')
    if stream:
        event = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":""},"finish_reason":"abort"}]}\n\ndata: [DONE]\n\n'
        given_up = Script(raw_is="body", raw=[(0.0, event)])
    engines = {"e1": await start_engine(default=given_up), "e2": await start_engine(default=Script(text=(" b",)))}
    async with gateway_over(engines, expected=Expectation(tokens={"output": (1, 100)}), probe=PROBE) as gateway:
        await in_rotation(gateway, "e1", "e2")
        for _ in range(2):
            answer = await ask(gateway.url, CHAT, chat(stream=stream))
            assert (answer.status, b"abort" in answer.body, b" b" in answer.body) == (200, False, True)
        metrics = await gateway.metrics()
        assert metrics.sum("serving_engine_attempts_total", endpoint="e1", result="broken") == 2
        assert metrics.sum("serving_requests_total", outcome="ok") == 2


@pytest.mark.parametrize("pieces", ["apart", "together"])
async def test_a_stream_that_was_given_up_ends_with_an_error_and_not_with_done(
    engine: ScriptedEngine, gateway_over: GatewayOver, pieces: str
) -> None:
    first = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"ha"},"finish_reason":null}]}\n\n'
    second = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":""},"finish_reason":"abort"}]}\n\n'
    done = b"data: [DONE]\n\n"
    raw = ((0.0, first), (0.05, second), (0.05, done)) if pieces == "apart" else ((0.0, first), (0.05, second + done))
    engine.default = Script(raw_is="body", raw=raw)
    async with gateway_over({"e1": engine}, expected=Expectation(tokens={"output": (0, 100)}), probe=PROBE) as gateway:
        answer = await ask(gateway.url, CHAT, chat(stream=True))
        assert answer.status == 200 and answer.end == "complete"
        assert b"[DONE]" not in answer.body
        assert answer.body.startswith(first + second) and answer.data[-1]["error"]["code"] == "engine_failed"
        assert (await gateway.metrics()).sum("serving_requests_total", outcome="truncated") == 1


async def test_a_long_answer_that_was_given_up_is_cut(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """It is no stream and its beginning is out: there is no other way left to say it."""
    whole = b'{"choices":[{"message":{"content":"%b"},"finish_reason":"abort"}]}' % (b"ha" * 1000)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(whole)
    engine.default = Script(raw=((0.0, head + whole[:500]), (0.1, whole[500:])))
    async with gateway_over({"e1": engine}, expected=Expectation(tokens={"output": (0, 2000)}), probe=PROBE) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(CHAT, chat()))
            answer = await client.read()
        assert answer.status == 200 and answer.end != "complete"
        assert (await gateway.metrics()).sum("serving_requests_total", outcome="truncated") == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_garbage_is_no_answer(gateway_over: GatewayOver, stream: bool) -> None:
    async with simulated_engine() as broken, simulated_engine() as sound:
        endpoints = [{"name": name, "url": engine.url, "model": "tiny"} for name, engine in (("e1", broken), ("e2", sound))]
        async with RunningGateway(Settings.model_validate({"endpoints": endpoints, "probe": PROBE})) as gateway:
            await in_rotation(gateway, "e1", "e2")
            await broken.set_faults(Faults(garbage=True))
            for _ in range(8):
                answer = await ask(gateway.url, CHAT, chat(stream=stream))
                assert (answer.status, b"\xff" in answer.body) == (200, False)
            metrics = await gateway.metrics()
            assert metrics.sum("serving_engine_attempts_total", endpoint="e1", result="broken") == 3
            assert await ejections(gateway) == {("e1", "broken"): 1}


async def test_a_machine_without_free_files_blames_no_engine(
    engine: ScriptedEngine, gateway_over: GatewayOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_over({"e1": engine}, probe={"period_seconds": 60.0}) as gateway:
        await in_rotation(gateway, "e1")

        async def none_left(*_: object, **__: object) -> None:
            raise OSError(24, "Too many open files")

        async with RawClient(gateway.url) as client:
            with monkeypatch.context() as patched:
                patched.setattr("serving.engines.wire.Pool._connect", none_left)
                await client.send(request_bytes(CHAT, chat()))
                assert (await client.read()).status == 503
            assert (rotation(gateway), gateway.app.health.troubled) == (["e1"], {})
            assert (await client.ask(CHAT, chat())).status == 200

"""O-HLT-3, O-HLT-5: what is tried again, how often, and what never is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from serving.core.outcomes import AttemptResult
from tests.doubles.conservation import Expectation
from tests.doubles.raw_client import RawClient, ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, all_ready, chat

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
StartEngine = Callable[..., Awaitable[ScriptedEngine]]

KILLED = Expectation(unsure_results=(AttemptResult.STALE,))
NO_BUDGET = {"share": 0.0, "least_per_second": 0.0}


class HandClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def asked(*engines: ScriptedEngine) -> list[int]:
    return [len(engine.log.requests) for engine in engines]


async def denied(gateway: RunningGateway) -> dict[str, float]:
    return {
        sample.labels["reason"]: sample.value
        for sample in (await gateway.metrics()).select("serving_retries_denied_total")
        if sample.value
    }


# O-HLT-3


@pytest.mark.parametrize("cut", [{"rst_after": 11}, {"close_after": 11}])
async def test_o_hlt_3_no_retry_after_the_first_byte(
    start_engine: StartEngine, gateway_over: GatewayOver, cut: dict[str, int]
) -> None:
    tokens = tuple(f" a{number}" for number in range(20))
    first = await start_engine(default=Script(text=tokens, **cut))
    second = await start_engine(default=Script(text=tuple(f" b{number}" for number in range(20))))
    async with gateway_over({"e1": first, "e2": second}) as gateway:
        answer = await ask(gateway.url, CHAT, chat(stream=True, max_tokens=20))
        assert asked(first, second) == [1, 0]
        *chunks, error = answer.data
        text = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
        assert "".join(text).split() == [f"a{number}" for number in range(10)]
        assert error["error"]["code"] == "engine_failed"
        assert not answer.is_done
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
async def test_o_hlt_3_before_the_first_byte_another_engine_answers(
    start_engine: StartEngine, gateway_over: GatewayOver, stream: bool
) -> None:
    first = await start_engine(default=Script(rst_after=0))
    second = await start_engine(default=Script(text=(" b",)))
    async with gateway_over({"e1": first, "e2": second}) as gateway:
        answer = await ask(gateway.url, CHAT, chat(stream=stream))
        assert (answer.status, answer.body.count(b" b"), b"error" in answer.body) == (200, 1, False)
        assert asked(first, second) == [1, 1]
        assert (await gateway.metrics()).sum("serving_retries_total") == 1


# O-HLT-5


async def test_o_hlt_5_full_engines_get_at_most_a_fifth_more(start_engine: StartEngine, gateway_over: GatewayOver) -> None:
    """A minute at 50 requests a second, each with the two retries of the openai client, on a clock of the test's own."""
    names = ("e1", "e2", "e3", "e4")
    engines = {name: await start_engine(default=Script(status=503, log_bytes=False)) for name in names}
    clock = HandClock()
    async with gateway_over(engines, relay={"max_attempts": 3}) as gateway:
        await all_ready(gateway)
        gateway.app.retry_budget.clock = clock
        statuses: Counter[int] = Counter()
        async with RawClient(gateway.url) as client:
            for _ in range(60 * 50 // 5):
                for _ in range(3):
                    statuses[(await client.ask(CHAT, chat())).status] += 1
                clock.seconds += 0.1
        assert statuses == {429: 1800}
        attempts = sum(asked(*engines.values()))
        assert 1.1 * 1800 < attempts <= 1.2 * 1800
        metrics = await gateway.metrics()
        assert metrics.sum("serving_retries_total") == attempts - 1800
        assert metrics.sum("serving_retries_denied_total", reason="budget") > 0
        await all_ready(gateway)


@pytest.mark.parametrize("fault", [{"status": 500}, {"rst_after": 0}, {"error_after": 0}])
@pytest.mark.parametrize("most", [1, 2, 3])
async def test_o_hlt_5_a_poison_request_ends(
    start_engine: StartEngine, gateway_over: GatewayOver, most: int, fault: dict[str, int]
) -> None:
    """It breaks every engine that it reaches; it reaches few, and no engine is given up for it."""

    def poisoned(request: Any) -> Script | None:
        return Script(**fault) if b"poison" in request.body else None

    engines = {name: await start_engine() for name in ("e1", "e2", "e3", "e4")}
    for engine in engines.values():
        engine.choose = poisoned
    async with gateway_over(engines, relay={"max_attempts": most}) as gateway:
        await all_ready(gateway)
        answer = await ask(
            gateway.url, CHAT, chat(messages=[{"role": "user", "content": "poison"}], stream="error_after" in fault)
        )
        assert (answer.status, answer.json["error"]["code"]) == (502, "engine_failed")
        assert sorted(asked(*engines.values())) == [0] * (4 - most) + [1] * most
        await all_ready(gateway)
        for _ in range(8):
            assert (await ask(gateway.url, CHAT, chat())).status == 200


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (Script(status=503), 429, "overloaded"),
        (Script(status=500), 502, "engine_failed"),
        (Script(rst_after=0), 502, "engine_failed"),
    ],
)
async def test_without_a_budget_the_first_failure_is_answered(
    start_engine: StartEngine, gateway_over: GatewayOver, script: Script, status: int, code: str
) -> None:
    engines = {name: await start_engine(default=script) for name in ("e1", "e2")}
    async with gateway_over(engines, relay={"retry_budget": NO_BUDGET}) as gateway:
        answer = await ask(gateway.url, CHAT, chat())
        assert (answer.status, answer.json["error"]["code"]) == (status, code)
        assert sum(asked(*engines.values())) == 1
        assert await denied(gateway) == {"budget": 1}


async def test_what_no_engine_is_left_for_is_not_counted_as_denied(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.default = Script(status=500)
    async with gateway_over({"e1": engine}, relay={"retry_budget": NO_BUDGET}) as gateway:
        assert (await ask(gateway.url, CHAT, chat())).status == 502
        assert await denied(gateway) == {}


# What must not be repeated

ENGINE_TOOLS = [[{"type": "mcp", "server_label": "s"}], [{"type": "web_search_preview"}], [{"type": "container"}]]
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@pytest.mark.parametrize("script", [Script(status=500), Script(status=503), Script(rst_after=0, head_at_arrival=False)])
@pytest.mark.parametrize("tools", ENGINE_TOOLS)
async def test_a_call_whose_tools_the_engine_runs_is_not_repeated(
    start_engine: StartEngine, gateway_over: GatewayOver, script: Script, tools: list[dict[str, str]]
) -> None:
    engines = {name: await start_engine(default=script) for name in ("e1", "e2")}
    async with gateway_over(engines) as gateway:
        body = {"model": "tiny", "input": "Hi.", "tools": [FUNCTION, *tools]}
        assert (await ask(gateway.url, RESPONSES, body)).status in (429, 502)
        assert sum(asked(*engines.values())) == 1
        assert await denied(gateway) == {"not_repeatable": 1}


@pytest.mark.parametrize("fields", [{"tools": [FUNCTION]}, {"store": True}, {"tools": []}])
async def test_a_call_whose_tools_the_caller_runs_is_repeated(
    start_engine: StartEngine, gateway_over: GatewayOver, fields: dict[str, Any]
) -> None:
    """`store` is always false here, whatever the client says."""
    engines = {name: await start_engine(default=Script(status=500)) for name in ("e1", "e2")}
    async with gateway_over(engines) as gateway:
        assert (await ask(gateway.url, RESPONSES, {"model": "tiny", "input": "Hi.", **fields})).status == 502
        assert sum(asked(*engines.values())) == 2


async def test_a_refused_connection_took_nothing(start_engine: StartEngine, gateway_over: GatewayOver) -> None:
    engines = {name: await start_engine() for name in ("e1", "e2")}
    async with gateway_over(engines, probe={"period_seconds": 3600}) as gateway:
        await all_ready(gateway)
        engines["e1"].refuse()
        body = {"model": "tiny", "input": "Hi.", "tools": ENGINE_TOOLS[0]}
        for _ in range(2):
            assert (await ask(gateway.url, RESPONSES, body)).status == 200
        assert asked(*engines.values()) == [0, 2]
        engines["e2"].refuse()


async def test_what_must_not_be_repeated_gets_a_connection_of_its_own(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """A kept connection may be closed just now, and nobody would know whether the request was read."""
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, CHAT, chat())).status == 200
        assert (await ask(gateway.url, RESPONSES, {"model": "tiny", "input": "Hi.", "tools": ENGINE_TOOLS[0]})).status == 200
        assert len({record.connection for record in engine.log.requests}) == 2


async def test_a_connection_that_had_ended_is_no_try_of_an_engine(start_engine: StartEngine, gateway_over: GatewayOver) -> None:
    """An engine goes between two requests: its kept connection ends as it is taken, a new one is refused, the next answers."""
    engines = {name: await start_engine(default=Script(head_at_arrival=False)) for name in ("e1", "e2")}
    async with gateway_over(engines, expected=KILLED, probe={"period_seconds": 3600}) as gateway:
        await all_ready(gateway)
        for _ in range(2):
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        engines["e1"].refuse()
        engines["e1"].default = Script(rst_after=0, head_at_arrival=False)
        assert (await ask(gateway.url, CHAT, chat())).status == 200
        metrics = await gateway.metrics()
        results = {r: metrics.sum("serving_engine_attempts_total", endpoint="e1", result=r) for r in ("stale", "unreachable")}
        assert results == {"stale": 1, "unreachable": 1}


async def test_a_connection_that_nobody_took_is_no_try_of_an_engine(start_engine: StartEngine, gateway_over: GatewayOver) -> None:
    """A machine with two engines goes, or one engine goes while a retry is on its way to it: the third one answers."""
    engines = {name: await start_engine() for name in ("e1", "e2", "e3")}
    async with gateway_over(engines, expected=KILLED, probe={"period_seconds": 3600}) as gateway:
        await all_ready(gateway)
        for name in ("e1", "e2"):
            engines[name].refuse()
        for _ in range(3):
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        assert asked(*engines.values()) == [0, 0, 3]


async def test_a_try_that_failed_and_one_that_nobody_took_leave_another(
    start_engine: StartEngine, gateway_over: GatewayOver
) -> None:
    engines = {name: await start_engine() for name in ("e1", "e2", "e3")}
    async with gateway_over(engines, expected=KILLED, probe={"period_seconds": 3600}) as gateway:
        await all_ready(gateway)
        engines["e1"].default = Script(status=500)
        engines["e2"].refuse()
        for _ in range(4):
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        assert asked(engines["e1"])[0] >= 1


async def test_an_engine_that_serves_another_model_by_now_is_left_and_another_asked(
    start_engine: StartEngine, gateway_over: GatewayOver
) -> None:
    """Between two looks of the probe an address may become another engine's; its 404 is fast, so that it would draw requests."""
    first, second = await start_engine(), await start_engine()
    async with gateway_over({"e1": first, "e2": second}, probe={"period_seconds": 60.0}) as gateway:
        await all_ready(gateway)
        first.models = ["another"]
        for _ in range(4):
            assert (await ask(gateway.url, CHAT, chat())).status == 200
        assert asked(first)[0] <= 1
        assert [each.name for each in gateway.app.fleet.snapshot.candidates("tiny")] == ["e2"]


async def test_a_known_model_that_no_engine_serves_any_more_is_unavailable(
    start_engine: StartEngine, gateway_over: GatewayOver
) -> None:
    """A 404 would tell the client to stop asking, for a model that is only away."""
    only = await start_engine()
    async with gateway_over({"e1": only}, probe={"period_seconds": 60.0}) as gateway:
        await all_ready(gateway)
        only.models = ["another"]
        for _ in range(2):
            answer = await ask(gateway.url, CHAT, chat())
            assert (answer.status, answer.json["error"]["code"]) == (503, "model_unavailable")
            assert int(answer.header("retry-after") or 0) > 0
        only.models = ["tiny"]
        assert (await ask(gateway.url, CHAT, chat())).status == 200

"""A model's stand-ins: asked only before the first byte, only for engines' reasons, and never without saying so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from serving.core.context import RequestContext
from serving.observability.logs import request_line
from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, chat, settings_over

CHAT = "/v1/chat/completions"
MODELS = {"tiny": {"fallbacks": ["second", "third"]}, "small": {"alias_of": "tiny"}, "second": {}}
"""`second` has no endpoint at all."""
RESET_BEFORE_A_BYTE = Script(rst_after=0, head_at_arrival=False)


@pytest.fixture
async def third() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine("third") as started:
        yield started


def substitutions(metrics: MetricValues) -> dict[tuple[str, str, str], float]:
    found = metrics.select("serving_other_model_answers_total")
    return {(s.labels["asked"], s.labels["served"], s.labels["reason"]): s.value for s in found}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asked", ["tiny", "small"])
async def test_a_model_without_a_ready_engine_is_stood_in_for(
    engine: ScriptedEngine, third: ScriptedEngine, gateway_over: GatewayOver, asked: str, stream: bool
) -> None:
    engine.refuse()
    async with gateway_over({"e1": engine, "e3": third}, models=MODELS) as gateway:
        response = await ask(gateway.url, CHAT, chat(model=asked, stream=stream))
        assert response.status == 200
        assert response.header("x-served-model") == "third"
        assert {d["model"] for d in (response.data if stream else [response.json])} == {"third"}
        assert third.log.requests[0].json == chat(model="third", stream=stream) | (
            {"stream_options": {"include_usage": True}} if stream else {}
        )
        metrics = await gateway.metrics()
        assert substitutions(metrics) == {(asked, "third", "fallback"): 1}
        assert metrics.sum("serving_requests_total", model="third", outcome="ok") == 1


@pytest.mark.parametrize(
    "script",
    [RESET_BEFORE_A_BYTE, Script(status=500), Script(status=503), Script(status=429), Script(error_after=0)],
    ids=["reset", "500", "full", "busy", "error-event"],
)
async def test_an_engines_failure_is_a_reason(
    engine: ScriptedEngine, third: ScriptedEngine, gateway_over: GatewayOver, script: Script
) -> None:
    engine.script(script)
    async with gateway_over({"e1": engine, "e3": third}, models=MODELS) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True))
        assert (response.status, response.header("x-served-model")) == (200, "third")
        assert response.is_done
        assert (len(engine.log.requests), len(third.log.requests)) == (1, 1)


async def test_all_engines_of_a_model_come_before_its_stand_in(third: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with ScriptedEngine() as first, ScriptedEngine() as other:
        first.default = Script(status=500)
        async with gateway_over({"e1": first, "e2": other, "e3": third}, models=MODELS) as gateway:
            for _ in range(4):
                response = await ask(gateway.url, CHAT, chat())
                assert (response.status, response.header("x-served-model")) == (200, None)
            other.default = Script(status=500)
            response = await ask(gateway.url, CHAT, chat())
            assert (response.status, response.header("x-served-model")) == (200, "third")


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_fault_of_the_caller_is_none(
    engine: ScriptedEngine, third: ScriptedEngine, gateway_over: GatewayOver, status: int
) -> None:
    engine.script(Script(status=status))
    async with gateway_over({"e1": engine, "e3": third}, models=MODELS) as gateway:
        response = await ask(gateway.url, CHAT, chat())
        assert 400 <= response.status < 500
        assert third.log.requests == []


async def test_a_time_out_is_none_since_the_time_is_used_up(
    engine: ScriptedEngine, third: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    engine.script(Script(blackhole=True))
    relay = {"first_byte_timeout_seconds": 2.0}
    async with gateway_over({"e1": engine, "e3": third}, models=MODELS, relay=relay) as gateway:
        assert (await ask(gateway.url, CHAT, chat())).status == 504
        assert third.log.requests == []


async def test_after_the_first_byte_there_is_no_way_back(
    engine: ScriptedEngine, third: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    engine.script(Script(rst_after=2))
    async with gateway_over({"e1": engine, "e3": third}, models=MODELS) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True))
        assert response.status == 200
        assert "error" in response.data[-1]
        assert third.log.requests == []


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"store": True}),
        (CHAT, {"logit_bias": {"1": 1}}),
        (CHAT, {"stop_token_ids": [1]}),
        (CHAT, {"tools": [{"type": "mcp", "server_url": "http://x"}]}),
        ("/v1/completions", {"prompt": [1, 2, 3], "messages": None}),
        ("/v1/completions", {"prompt": [[1, 2, 3]], "messages": None}),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "x"}], "messages": None}),
        ("/v1/responses", {"input": [{"type": "reasoning", "encrypted_content": "x"}], "messages": None}),
    ],
)
async def test_what_only_one_model_understands_goes_to_no_other(
    engine: ScriptedEngine, third: ScriptedEngine, gateway_over: GatewayOver, path: str, fields: dict[str, Any]
) -> None:
    engine.refuse()
    async with gateway_over({"e1": engine, "e3": third}, models=MODELS) as gateway:
        response = await ask(gateway.url, path, chat() | fields)
        assert (response.status, response.json["error"]["code"]) == (503, "model_unavailable")
        assert third.log.requests == []


@pytest.mark.parametrize("script", [Script(status=500), Script(status=400), RESET_BEFORE_A_BYTE, Script(blackhole=True)])
async def test_when_nobody_answers_the_asked_models_own_failure_is_told(
    engine: ScriptedEngine, third: ScriptedEngine, gateway_over: GatewayOver, script: Script
) -> None:
    engine.script(Script(status=503))
    third.script(script)
    relay = {"first_byte_timeout_seconds": 2.0}
    async with gateway_over({"e1": engine, "e3": third}, models=MODELS, relay=relay) as gateway:
        response = await ask(gateway.url, CHAT, chat())
        assert (response.status, response.json["error"]["code"]) == (429, "overloaded")
        assert 1 <= int(response.header("retry-after") or 0) <= 30
        assert len(third.log.requests) == 1
        metrics = await gateway.metrics()
        assert metrics.sum("serving_requests_total", model="tiny", outcome="overloaded") == 1
        assert substitutions(metrics) == {}


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_stand_ins_add_one_attempt_at_most(gateway_over: GatewayOver, most: int) -> None:
    async with ScriptedEngine() as first, ScriptedEngine() as other, ScriptedEngine() as last, ScriptedEngine("third") as third:
        async with ScriptedEngine("fourth") as fourth:
            engines = {"e1": first, "e2": other, "e3": last, "e4": third, "e5": fourth}
            for engine in engines.values():
                engine.default = Script(status=500)
            models = {"tiny": {"fallbacks": ["third", "fourth"]}}
            async with gateway_over(engines, models=models, relay={"max_attempts": most}) as gateway:
                assert (await ask(gateway.url, CHAT, chat())).status == 502
                assert sum(len(engine.log.requests) for engine in engines.values()) == most + 1


async def test_the_stand_in_gets_every_other_byte_as_the_client_wrote_it(
    engine: ScriptedEngine, third: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    engine.refuse()
    body = b'{ "model":"tiny", "messages":[{"role":"user","content":"\\u00e9 \xc3\xa9"}],"priority":1, "max_tokens":2 }'
    async with gateway_over({"e1": engine, "e3": third}, models=MODELS) as gateway:
        assert (await ask(gateway.url, CHAT, body)).status == 200
        sent = b'{ "messages":[{"role":"user","content":"\\u00e9 \xc3\xa9"}], "max_tokens":2 ,"model":"third"}'
        assert third.log.requests[0].body == sent


async def test_models_may_stand_in_for_each_other(gateway_over: GatewayOver, third: ScriptedEngine) -> None:
    models = {"third": {"fallbacks": ["tiny"]}, "tiny": {"fallbacks": ["third"]}}
    async with ScriptedEngine() as engine:
        engine.refuse()
        third.default = Script(status=500)
        async with gateway_over({"e1": engine, "e3": third}, models=models) as gateway:
            for model in ("tiny", "third"):
                assert (await ask(gateway.url, CHAT, chat(model=model))).status in (502, 503)


async def test_the_log_names_both_models(engine: ScriptedEngine, third: ScriptedEngine) -> None:
    engine.refuse()
    lines: list[dict[str, Any]] = []

    class Log:
        def settle(self, ctx: RequestContext, ended: float, written: str) -> None:
            lines.append(request_line(ctx, ended, written))

    async with RunningGateway(settings_over({"e1": engine, "e3": third}, models=MODELS)) as gateway:
        gateway.app.pipeline._request_log = Log()  # type: ignore[assignment]
        assert (await ask(gateway.url, CHAT, chat(model="small"))).status == 200
        gateway.app.pipeline.publish()
    assert [(line["asked_model"], line["model"], line["endpoint"]) for line in lines] == [("small", "third", "e3")]

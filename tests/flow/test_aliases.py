"""Other names for a model: the engine hears its own, the answer is the engine's, and everybody is told which model it was."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from serving.settings import Settings
from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, chat

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
ALIASES = {"small": {"alias_of": "newest"}, "newest": {"alias_of": "tiny"}}
"""A name for a name for a model."""


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engine_hears_its_own_name_and_the_answer_keeps_it(
    engine: ScriptedEngine, gateway_over: GatewayOver, stream: bool
) -> None:
    async with gateway_over({"e1": engine}, models=ALIASES) as gateway:
        response = await ask(gateway.url, CHAT, chat(model="small", stream=stream))
        assert response.status == 200
        record = engine.log.requests[0]
        assert record.json["model"] == "tiny"
        assert response.header("x-served-model") == "tiny"
        documents = response.data if stream else [response.json]
        assert {document["model"] for document in documents} == {"tiny"}


async def test_a_model_by_its_own_name_says_nothing_of_it(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, models=ALIASES) as gateway:
        response = await ask(gateway.url, CHAT, chat())
        assert response.status == 200
        assert response.header("x-served-model") is None
        assert (await gateway.metrics()).select("serving_other_model_answers_total") == []


async def test_only_the_model_changes_in_the_body(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    body = b'{ "seed": 9007199254740993,"m\\u006fdel":"x","model" : "small","messages":[{"role":"user","content":"h\xc3\xa9"}] }'
    async with gateway_over({"e1": engine}, models=ALIASES) as gateway:
        assert (await ask(gateway.url, CHAT, body)).status == 200
        sent = b'{ "seed": 9007199254740993,"messages":[{"role":"user","content":"h\xc3\xa9"}] ,"model":"tiny"}'
        assert engine.log.requests[0].body == sent


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 2}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
async def test_every_route_knows_the_names(
    engine: ScriptedEngine, gateway_over: GatewayOver, path: str, body: dict[str, Any]
) -> None:
    async with gateway_over({"e1": engine}, models=ALIASES) as gateway:
        response = await ask(gateway.url, path, body | {"model": "small"})
        assert response.status == 200
        assert engine.log.requests[0].json["model"] == "tiny"
        assert response.header("x-served-model") == "tiny"


async def test_metrics_count_the_model_and_the_name(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, models=ALIASES) as gateway:
        for model in ("small", "small", "tiny"):
            assert (await ask(gateway.url, CHAT, chat(model=model))).status == 200
        metrics = await gateway.metrics()
        assert metrics.sum("serving_requests_total", model="tiny") == 3
        (sample,) = metrics.select("serving_other_model_answers_total")
        assert (sample.labels, sample.value) == ({"asked": "small", "served": "tiny", "reason": "alias"}, 2)


async def test_a_refusal_names_what_the_client_asked_for(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, models=ALIASES) as gateway:
        engine.script(Script(status=404))
        response = await ask(gateway.url, CHAT, chat(model="small"))
        assert response.status == 503
        assert "'small'" in response.json["error"]["message"]


async def test_a_name_that_no_header_can_hold_is_escaped(gateway_over: GatewayOver) -> None:
    async with ScriptedEngine("modèle 1%") as engine:
        async with gateway_over({"e1": engine}, models={"m": {"alias_of": "modèle 1%"}}) as gateway:
            response = await ask(gateway.url, CHAT, chat(model="m"))
            assert response.status == 200
            assert response.header("x-served-model") == "mod%C3%A8le%201%25"


async def test_the_openai_client_uses_an_alias(engine_url: str) -> None:
    """Over the scripted engine and over a real vLLM, which knows nothing of the name."""
    endpoint = {"name": "e1", "url": engine_url, "model": "tiny"}
    settings = Settings.model_validate({"endpoints": [endpoint], "models": ALIASES})
    async with RunningGateway(settings) as gateway:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
            answer = await client.chat.completions.create(model="small", messages=HI, max_tokens=4)
            assert answer.model == "tiny"
            stream = await client.chat.completions.create(model="small", messages=HI, max_tokens=4, stream=True)
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].choices[0].finish_reason
            assert {chunk.model for chunk in chunks} == {"tiny"}
            assert (await client.models.retrieve("small")).id == "small"
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="any", max_retries=0) as messages:
            message = await messages.messages.create(model="newest", messages=[{"role": "user", "content": "hi"}], max_tokens=4)
            assert message.model == "tiny"

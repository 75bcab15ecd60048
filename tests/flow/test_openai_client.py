"""The openai client, unchanged, against the gateway: over the scripted engine in the fast loop, and over a real vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.settling import settled

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-test", max_retries=0) as started:
        yield started


async def test_models_are_listed_and_retrieved(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).object == "model"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("nope")
    assert caught.value.code == "model_not_found"


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=8, temperature=0)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 8


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt="The capital of France is", max_tokens=8, temperature=0)
    assert answer.choices[0].text
    assert answer.usage is not None


async def test_a_stream_with_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    *tokens, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert 0 < last.usage.completion_tokens <= 8
    assert any(chunk.choices[0].finish_reason for chunk in tokens)


async def test_a_stream_without_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=8, stream=True)
    assert all(chunk.choices and chunk.usage is None for chunk in [chunk async for chunk in stream])


async def test_an_unknown_model_and_bad_json(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="nope", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    answer = await ask(gateway.url, "/v1/chat/completions", b"{", headers={"Authorization": "Bearer sk-test"})
    assert answer.status == 400
    assert answer.json["error"]["code"] == "invalid_json"


async def test_a_wrong_key(gateway: RunningGateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert caught.value.code == "invalid_api_key"


async def test_a_cancelled_stream_leaves_nothing_running(
    client: openai.AsyncOpenAI, engine_url: str, gateway: RunningGateway
) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    await anext(aiter(stream))
    await stream.close()

    async def problems() -> list[str]:
        running = MetricValues((await ask(engine_url, "/metrics")).body.decode()).sum("vllm:num_requests_running")
        leases = (await gateway.metrics()).sum("serving_open_leases")
        return [] if running == leases == 0 else [f"running {running}, leases {leases}"]

    await settled(problems)


async def test_a_repeated_prompt_is_cached_and_counted(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "the quick brown fox jumps over the lazy dog " * 30}
    ]
    cached = []
    for _ in range(2):
        answer = await client.chat.completions.create(model="tiny", messages=messages, max_tokens=4)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens > 1000
        assert answer.usage.prompt_tokens_details is not None
        cached.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
    assert cached[1] > 0
    assert (await gateway.metrics()).sum("serving_tokens_total", kind="cached") == sum(cached)


@pytest.mark.engine
@pytest.mark.parametrize("engine_url", ["real"], indirect=True)
async def test_structured_output_is_valid(client: openai.AsyncOpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
        "required": ["yes", "size"],
        "additionalProperties": False,
    }
    answer = await client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
    )
    value = json.loads(answer.choices[0].message.content or "")
    assert isinstance(value["yes"], bool)
    assert value["size"] in ("small", "large")


async def test_many_at_once(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    async def one(number: int) -> None:
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": str(number)}], max_tokens=4, stream=True
        )
        assert [chunk async for chunk in stream][-1].choices[0].finish_reason

    await asyncio.gather(*(one(number) for number in range(40)))
    assert (await gateway.metrics()).sum("serving_requests_total", outcome="ok") == 40

"""Embeddings through the gateway: the openai client unchanged, every encoding byte for byte, and answers of any size."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.doubles.raw_client import RawClient, ask, request_bytes
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.script import Gate, Script, Usage
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver

EMBEDDINGS = "/v1/embeddings"
KEY = {"Authorization": "Bearer sk-test"}


def counted(metrics: MetricValues) -> dict[str, float]:
    return {kind: metrics.sum("serving_tokens_total", kind=kind) for kind in ("prompt", "cached", "output")}


# The openai client, over the scripted engine and over a real vLLM


@pytest.fixture
async def client(pooling_gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{pooling_gateway.url}/v1", api_key="sk-test", max_retries=0) as started:
        yield started


async def test_texts_are_embedded_and_metered(client: openai.AsyncOpenAI, pooling_gateway: RunningGateway) -> None:
    """The client asks for base64 by itself and decodes it."""
    answer = await client.embeddings.create(model="tiny", input=["hi", "there", "hi"])
    first, second, third = (item.embedding for item in answer.data)
    assert first == third != second and len(first) == len(second) > 1
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 9
    floats = await client.embeddings.create(model="tiny", input="hi", encoding_format="float")
    assert floats.data[0].embedding == pytest.approx(first, abs=1e-3)
    metrics = await pooling_gateway.metrics()
    assert counted(metrics) == {"prompt": 11, "cached": 0, "output": 0}
    assert metrics.sum("serving_requests_total", route="embeddings", outcome="ok") == 2
    assert metrics.sum("serving_usage_unknown_total") == 0
    assert metrics.sum("serving_request_duration_seconds_count") == 2


async def test_token_ids_are_embedded(client: openai.AsyncOpenAI) -> None:
    one = await client.embeddings.create(model="tiny", input=[74, 75])
    two = await client.embeddings.create(model="tiny", input=[[74, 75], [75]])
    assert (len(one.data), len(two.data), two.usage.prompt_tokens) == (1, 2, 3)
    assert one.data[0].embedding == pytest.approx(two.data[0].embedding, abs=1e-2)


async def test_errors_are_the_clients_own_classes(client: openai.AsyncOpenAI, pooling_gateway: RunningGateway) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.embeddings.create(model="nope", input="hi")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="maximum context length") as long:
        await client.embeddings.create(model="tiny", input="x" * 5000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match=r"does not support /v1/chat/completions\. It answers /v1/embeddings"):
        await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
    async with openai.AsyncOpenAI(base_url=f"{pooling_gateway.url}/v1", api_key="sk-wrong", max_retries=0) as other:
        with pytest.raises(openai.AuthenticationError):
            await other.embeddings.create(model="tiny", input="hi")


@pytest.mark.parametrize("form", ["bytes", "bytes_only"])
async def test_raw_bytes_come_with_their_header_only_where_it_was_asked_for_and_are_metered(
    pooling_gateway: RunningGateway, form: str
) -> None:
    body: dict[str, Any] = {"model": "tiny", "input": [[74, 75], [75]], "encoding_format": form}
    response = await ask(pooling_gateway.url, EMBEDDINGS, body, headers=KEY)
    assert (response.status, response.header("content-type"), response.end) == (200, "application/octet-stream", "complete")
    vectors = (await ask(pooling_gateway.url, EMBEDDINGS, body | {"encoding_format": "float"}, headers=KEY)).json["data"]
    expected = [number for vector in vectors for number in vector["embedding"]]
    assert struct.unpack(f"<{len(expected)}f", response.body) == pytest.approx(expected, abs=1e-2)
    told = response.header("metadata")
    if form == "bytes":
        assert json.loads(told or "")["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    else:
        assert told is None
    metrics = await pooling_gateway.metrics()
    assert counted(metrics)["prompt"] == 6
    assert metrics.sum("serving_tokens_estimated_total") == metrics.sum("serving_usage_unknown_total") == 0


# Over the scripted engine


@pytest.mark.parametrize("form", ["float", "base64", "bytes"])
async def test_each_encoding_passes_byte_for_byte(pooling_engine: ScriptedEngine, gateway_over: GatewayOver, form: str) -> None:
    body = {"model": "tiny", "input": ["hi", "there"], "encoding_format": form}
    async with gateway_over({"e1": pooling_engine}) as gateway:
        through = await ask(gateway.url, EMBEDDINGS, body)
        direct = await ask(pooling_engine.url, EMBEDDINGS, body | {"request_id": "x"})
        assert pooling_engine.log.requests[0].json == body
        written = pooling_engine.log.requests[0].written.partition(b"\r\n\r\n")[2]
        assert through.raw_body == written
        assert through.header("content-type") == direct.header("content-type")
        # Asked at the engine, so that the gateway's count is one below it.
        pooling_engine.log.requests.pop()


async def test_only_the_encoding_that_tells_nothing_is_edited(pooling_engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": pooling_engine}) as gateway:
        await ask(gateway.url, EMBEDDINGS, b'{"model": "tiny",  "encoding_format":"bytes_only", "input": "hi"}')
        assert pooling_engine.log.requests[0].body == b'{"model": "tiny", "input": "hi","encoding_format":"bytes"}'


async def test_a_stream_cannot_be_asked_for(pooling_engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """As in vLLM the word means nothing here; a keep-alive comment in JSON would break it."""
    gate = Gate()
    pooling_engine.script(Script(gate=gate))
    async with gateway_over({"e1": pooling_engine}, relay={"keep_alive_comment_seconds": 0.01}) as gateway:
        asked = asyncio.create_task(ask(gateway.url, EMBEDDINGS, {"model": "tiny", "input": "hi", "stream": True}))
        await pooling_engine.reached("held")
        await gateway.metrics()
        gate.open_all()
        response = await asked
        assert response.header("content-type") == "application/json"
        assert response.json["usage"]["prompt_tokens"] == 2


async def test_a_large_answer_streams_through_and_its_usage_is_found_at_its_end(
    pooling_engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    usage = b',"usage":{"prompt_tokens":77,"total_tokens":77,"completion_tokens":0,"prompt_tokens_details":null}}'
    first, rest = b'{"object":"list","data":[{"embedding":[' + b"0.125," * 50_000, b"0.125," * 600_000 + b"0]}]" + usage
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (len(first) + len(rest))
    gate = Gate(1)
    pooling_engine.script(
        Script(raw=[(0, head + first), (0, rest)], gate=gate, log_bytes=False, usage=Usage(prompt_tokens=77, completion_tokens=0))
    )
    async with gateway_over({"e1": pooling_engine}) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(EMBEDDINGS, {"model": "tiny", "input": "hi"}))
            response = await client.read_head()
            pieces = client.read_body(response)
            assert first.startswith(await anext(pieces)), "the engine still holds the rest"
            gate.open_all()
            async for _ in pieces:
                pass
        assert response.end == "complete" and response.body == first + rest
        assert counted(await gateway.metrics()) == {"prompt": 77, "cached": 0, "output": 0}


async def test_an_answer_without_usage_is_counted_as_unknown(pooling_engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    pooling_engine.script(Script(body=b'{"data":[]}'))
    async with gateway_over({"e1": pooling_engine}) as gateway:
        assert (await ask(gateway.url, EMBEDDINGS, {"model": "tiny", "input": "hi"})).status == 200
        assert (await gateway.metrics()).sum("serving_usage_unknown_total") == 1

"""Anthropic's Messages through the gateway: the anthropic client unchanged, and what the gateway owes beyond it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam

from tests.doubles.raw_client import RawClient, RawResponse, ask, request_bytes
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.script import Gate, Script, Usage
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.flow.conftest import GatewayOver

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
HI: list[MessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
REPORTED = Usage(prompt_tokens=300, completion_tokens=12, cached_tokens=128)


def asking(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 5} | fields


def counted(metrics: MetricValues) -> dict[str, float]:
    return {kind: metrics.sum("serving_tokens_total", kind=kind) for kind in ("prompt", "cached", "output")}


def error_of(response: RawResponse) -> dict[str, Any]:
    """The error object, checked for Anthropic's schema and its header."""
    assert response.header("content-type") == "application/json"
    document = response.json
    assert set(document) == {"type", "error", "request_id"}
    assert document["type"] == "error"
    assert set(document["error"]) == {"type", "message"}
    assert document["error"]["message"]
    assert document["request_id"] == response.header("request-id") == response.header("x-request-id")
    return dict(document["error"])


# The anthropic client, over the scripted engine and over a real vLLM


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="sk-test", max_retries=0) as started:
        yield started


async def test_a_message(client: anthropic.AsyncAnthropic, gateway: RunningGateway) -> None:
    answer = await client.messages.create(model="tiny", system="Be kind.", messages=HI, max_tokens=8)
    (block,) = answer.content
    assert block.type == "text" and block.text
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 8)
    assert answer._request_id
    metrics = await gateway.metrics()
    assert counted(metrics)["output"] == 8
    assert metrics.sum("serving_requests_total", route="messages", outcome="ok") == 1


async def test_a_stream(client: anthropic.AsyncAnthropic, gateway: RunningGateway) -> None:
    async with client.messages.stream(model="tiny", messages=HI, max_tokens=8) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        last = await stream.get_final_message()
    (block,) = last.content
    assert block.type == "text" and block.text == text and text
    assert (last.stop_reason, last.usage.output_tokens) == ("max_tokens", 8)
    assert counted(await gateway.metrics())["output"] == 8


@pytest.mark.parametrize("stream", [False, True])
async def test_the_prompt_that_is_metered_includes_what_was_cached(
    client: anthropic.AsyncAnthropic, gateway: RunningGateway, stream: bool
) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": f"messages are repeated ({stream}) " * 60}]
    prompts = []
    for number in (1, 2):
        if stream:
            async with client.messages.stream(model="tiny", messages=messages, max_tokens=4) as events:
                usage = (await events.get_final_message()).usage
        else:
            usage = (await client.messages.create(model="tiny", messages=messages, max_tokens=4)).usage
        read, created = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        prompts.append(usage.input_tokens + read + created)
        assert usage.input_tokens < 128 < 1000 < (created, read)[number - 1]
    assert prompts[0] == prompts[1] > 1000
    assert counted(await gateway.metrics()) == {"prompt": sum(prompts), "cached": read, "output": 8}


async def test_counting_tokens_costs_none(client: anthropic.AsyncAnthropic, gateway: RunningGateway) -> None:
    count = await client.messages.count_tokens(model="tiny", messages=HI)
    answer = await client.messages.create(model="tiny", messages=HI, max_tokens=2)
    created = (answer.usage.cache_creation_input_tokens or 0) + (answer.usage.cache_read_input_tokens or 0)
    assert count.input_tokens == answer.usage.input_tokens + created
    metrics = await gateway.metrics()
    assert metrics.sum("serving_requests_total", route="count_tokens", outcome="ok") == 1
    assert counted(metrics)["prompt"] == count.input_tokens
    assert metrics.sum("serving_usage_unknown_total") == 0
    assert metrics.sum("serving_request_duration_seconds_count") == 1


async def test_errors_are_the_clients_own_classes(client: anthropic.AsyncAnthropic, gateway: RunningGateway) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.create(model="nope", messages=HI, max_tokens=2)
    assert missing.value.type == "not_found_error"
    assert missing.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
        await client.messages.create(model="tiny", messages=[{"role": "user", "content": "x" * 5000}], max_tokens=2)
    with pytest.raises(anthropic.BadRequestError) as empty:
        await client.messages.count_tokens(model="tiny", messages=[])
    assert empty.value.type == "invalid_request_error"
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="sk-wrong", max_retries=0) as other:
        with pytest.raises(anthropic.AuthenticationError) as wrong:
            await other.messages.create(model="tiny", messages=HI, max_tokens=2)
    assert wrong.value.type == "authentication_error"
    async with anthropic.AsyncAnthropic(base_url=gateway.url, auth_token="sk-test", max_retries=0) as bearer:
        assert (await bearer.messages.create(model="tiny", messages=HI, max_tokens=2)).content


async def test_a_cancelled_stream_leaves_nothing_running(
    client: anthropic.AsyncAnthropic, engine_url: str, gateway: RunningGateway
) -> None:
    stream = await client.messages.create(model="tiny", messages=HI, max_tokens=3000, stream=True)
    async for event in stream:
        if event.type == "content_block_delta":
            break
    await stream.close()

    async def problems() -> list[str]:
        running = MetricValues((await ask(engine_url, "/metrics")).body.decode()).sum("vllm:num_requests_running")
        metrics = await gateway.metrics()
        leases = metrics.sum("serving_open_leases")
        cancelled = metrics.sum("serving_requests_total", route="messages", outcome="client_cancelled")
        return [] if (running, leases, cancelled) == (0, 0, 1) else [f"running {running}, leases {leases}, {cancelled}"]

    await settled(problems)


# Who asks


async def test_a_key_may_stand_where_anthropics_clients_put_it(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, auth={"api_key": "sk-right"}) as gateway:
        for path in (MESSAGES, COUNT_TOKENS):
            for headers, status in (
                ({}, 401),
                ({"x-api-key": ""}, 401),
                ({"x-api-key": "sk-wrong"}, 401),
                ({"x-api-key": "sk-right"}, 200),
                ({"Authorization": "Bearer sk-right"}, 200),
                ({"Authorization": "Bearer sk-wrong", "x-api-key": "sk-right"}, 401),
                ({"Authorization": "Basic eA==", "x-api-key": "sk-right"}, 200),
            ):
                response = await ask(gateway.url, path, asking(), headers=headers | {"anthropic-version": "2023-06-01"})
                assert response.status == status, headers
                assert response.header("request-id") == response.header("x-request-id")
                if status == 401:
                    assert error_of(response)["type"] == "authentication_error"
        for record in engine.log.requests:
            assert b"sk-right" not in record.raw and record.header("x-api-key") is None
            assert record.header("anthropic-version") is None


async def test_it_does_not_count_on_openais_routes(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, auth={"api_key": "sk-right"}) as gateway:
        for path in ("/v1/chat/completions", "/v1/responses"):
            response = await ask(gateway.url, path, asking(input="hi"), headers={"x-api-key": "sk-right"})
            assert (response.status, response.json["error"]["code"]) == (401, "missing_api_key")
            assert response.header("request-id") is None


# Errors


@pytest.mark.parametrize(
    ("script", "status", "kind"),
    [
        (Script(status=400), 400, "invalid_request_error"),
        (
            Script(status=400, body=b'{"error":{"message":"1 validation error","type":"Bad Request"}}'),
            400,
            "invalid_request_error",
        ),
        (Script(status=422), 400, "invalid_request_error"),
        (Script(status=404), 503, "overloaded_error"),
        (Script(status=404, body=b'{"detail":"Not Found"}'), 404, "not_found_error"),
        (Script(status=501), 404, "not_found_error"),
        (Script(status=500), 502, "api_error"),
        (Script(status=401), 502, "api_error"),
        (Script(status=503), 429, "rate_limit_error"),
        (Script(rst_after=0, head_at_arrival=False), 502, "api_error"),
    ],
)
@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
async def test_an_engines_error_is_said_in_anthropics_words(
    engine: ScriptedEngine, gateway_over: GatewayOver, script: Script, status: int, kind: str, path: str
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        engine.script(script)
        response = await ask(gateway.url, path, asking())
        assert (response.status, error_of(response)["type"]) == (status, kind)
        if status == 429:
            assert 1 <= int(response.header("retry-after") or 0) <= 30


@pytest.mark.parametrize(
    ("body", "status", "kind", "word"),
    [
        (b"{", 400, "invalid_request_error", "JSON"),
        (asking(messages=None), 400, "invalid_request_error", "messages"),
        (asking(messages="hi"), 400, "invalid_request_error", "messages"),
        (asking(max_tokens=None), 400, "invalid_request_error", "max_tokens"),
        (asking(max_tokens=0), 400, "invalid_request_error", "max_tokens"),
        (asking(max_tokens=1.5), 400, "invalid_request_error", "max_tokens"),
        (asking(max_tokens=True), 400, "invalid_request_error", "max_tokens"),
        (asking(max_tokens=4097), 400, "invalid_request_error", "max_tokens"),
        (asking(model=None), 400, "invalid_request_error", "model"),
        (asking(model="nope"), 404, "not_found_error", "nope"),
        (asking(cache_salt=1), 400, "invalid_request_error", "cache_salt"),
        (asking(messages=[{"role": "user", "content": "x" * 3000}]), 413, "request_too_large", "2000"),
    ],
)
async def test_the_gateways_own_errors_have_the_same_form(
    engine: ScriptedEngine, gateway_over: GatewayOver, body: Any, status: int, kind: str, word: str
) -> None:
    limits = {"body_bytes": 2000, "parameters": {"max_tokens": 4096}}
    async with gateway_over({"e1": engine}, limits=limits) as gateway:
        response = await ask(gateway.url, MESSAGES, body)
        error = error_of(response)
        assert (response.status, error["type"]) == (status, kind)
        assert word in error["message"]
        assert not engine.log.requests


async def test_an_integer_may_be_written_with_a_point(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, MESSAGES, asking(max_tokens=2.0))).json["usage"]["output_tokens"] == 2


async def test_methods_and_content_types_too(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        for path in (MESSAGES, COUNT_TOKENS):
            assert error_of(await ask(gateway.url, path))["type"] == "invalid_request_error"
            response = await ask(gateway.url, path, b"{}", headers={"Content-Type": "text/plain"})
            assert (response.status, error_of(response)["type"]) == (415, "invalid_request_error")


async def test_without_an_engine_and_without_an_answer(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(blackhole=True))
    async with gateway_over({"e1": engine}, relay={"first_byte_timeout_seconds": 0.3}) as gateway:
        response = await ask(gateway.url, MESSAGES, asking())
        assert (response.status, error_of(response)["type"]) == (504, "api_error")
        engine.refuse()
        response = await ask(gateway.url, MESSAGES, asking())
        assert (response.status, error_of(response)["type"]) == (503, "overloaded_error")
        assert response.header("retry-after")


# Bodies and streams


async def test_privileges_stay_behind_and_the_salt_is_ours(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    more = {"kv_transfer_params": {}, "vllm_xargs": {}, "priority": 1}
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, MESSAGES, asking(**more, cache_salt="known"))
        assert response.header("x-serving-dropped-fields") == "kv_transfer_params, priority, vllm_xargs"
        sent = engine.log.requests[0].json
        assert sent.keys().isdisjoint(more)
        assert sent["cache_salt"] != "known"
        body = json.dumps(asking()).encode()
        for path in (MESSAGES, COUNT_TOKENS):
            await ask(gateway.url, path, body)
            assert engine.log.requests[-1].body == body


async def test_bytes_pass_unchanged_and_usage_is_counted(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.default = Script(usage=REPORTED, chunks=5)
    async with gateway_over({"e1": engine}) as gateway:
        whole = await ask(gateway.url, MESSAGES, asking())
        assert whole.body in engine.log.requests[0].written
        stream = await ask(gateway.url, MESSAGES, asking(stream=True))
        events = [write.data.split(b"\r\n", 1)[1].removesuffix(b"\r\n") for write in engine.log.requests[1].writes[1:-1]]
        assert stream.body == b"".join(events)
        assert whole.json["usage"]["input_tokens"] < 300
        assert counted(await gateway.metrics()) == {"prompt": 600, "cached": 256, "output": 24}


async def test_without_cache_details_the_input_is_the_prompt(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.prompt_tokens_details = False
    engine.default = Script(usage=Usage(prompt_tokens=300, completion_tokens=12))
    async with gateway_over({"e1": engine}) as gateway:
        await ask(gateway.url, MESSAGES, asking())
        await ask(gateway.url, MESSAGES, asking(stream=True))
        assert counted(await gateway.metrics()) == {"prompt": 600, "cached": 0, "output": 24}


@pytest.mark.parametrize("size", [1, 5, 100_000])
async def test_a_stream_is_whole_at_message_stop_however_it_is_split(
    engine: ScriptedEngine, gateway_over: GatewayOver, size: int
) -> None:
    text = (
        'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":300,"output_tokens":0}}}\n\n'
        'event: content_block_delta\ndata: {"delta":{"text":"\\n\\nevent: message_stop\\n你好"}}\n\n'
        'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":44,'
        '"output_tokens":12,"cache_creation_input_tokens":128,"cache_read_input_tokens":128}}\n\n'
        'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    ).encode()
    raw = [(0.0, text[start : start + size]) for start in range(0, len(text), size)]
    engine.default = Script(raw_is="body", raw=raw, usage=REPORTED)
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, MESSAGES, asking(stream=True))).body == text
        metrics = await gateway.metrics()
        assert counted(metrics) == {"prompt": 300, "cached": 128, "output": 12}
        assert metrics.sum("serving_requests_total", outcome="ok") == 1


@pytest.mark.parametrize(
    "script", [Script(close_after=4), Script(rst_after=4), Script(stall_after=4)], ids=["fin", "rst", "stall"]
)
async def test_a_cut_stream_is_an_error_to_the_client(engine: ScriptedEngine, gateway_over: GatewayOver, script: Script) -> None:
    engine.default = script
    async with gateway_over({"e1": engine}, relay={"idle_timeout_seconds": 0.3}) as gateway:
        response = await ask(gateway.url, MESSAGES, asking(stream=True))
        name, data = response.events[-1].split(b"\n")
        said = json.loads(data.removeprefix(b"data: "))
        assert (name, said["type"], said["error"]["type"]) == (b"event: error", "error", "api_error")
        assert said["request_id"] == response.header("request-id")
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="any", max_retries=0) as client:
            with pytest.raises(anthropic.APIStatusError) as caught:
                async with client.messages.stream(model="tiny", messages=HI, max_tokens=5) as stream:
                    async for _ in stream:
                        pass
        assert caught.value.type == "api_error"
        metrics = await gateway.metrics()
        outcome = "engine_timeout" if script.stall_after else "truncated"
        assert metrics.sum("serving_requests_total", outcome=outcome) == 2


async def test_an_engines_fault_in_the_stream_is_passed_on(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(error_after=4))
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, MESSAGES, asking(stream=True))
        assert [event.split(b"\n")[0] for event in response.events[-2:]] == [b"event: content_block_delta", b"event: error"]
        assert response.end == "complete"
        assert (await gateway.metrics()).sum("serving_requests_total", outcome="engine_error") == 1


async def test_an_error_before_anything_else_is_a_status(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.default = Script(error_after=0)
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, MESSAGES, asking(stream=True))
        assert (response.status, error_of(response)["type"]) == (502, "api_error")


async def test_who_leaves_early_is_charged_the_true_prompt_and_what_was_delivered(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    """`message_start` says how long the prompt is, and that there is no output: that is not believed."""
    engine.script(Script(gate=Gate(events=9), chunks=50))
    async with gateway_over({"e1": engine}) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(MESSAGES, asking(stream=True, max_tokens=50)))
            response = await client.read_head()
            received = b""
            async for piece in client.read_body(response):
                received += piece
                if received.count(b"\n\n") == 9:
                    break
        usage = engine.log.requests[0].usage
        assert usage is not None
        prompt_tokens = usage.prompt_tokens

        async def problems() -> list[str]:
            metrics = await gateway.metrics()
            output = metrics.sum("serving_tokens_estimated_total", kind="output")
            prompt = metrics.sum("serving_tokens_total", kind="prompt")
            return [] if output == 7 and prompt == prompt_tokens else [f"output {output}, prompt {prompt}"]

        await settled(problems)


async def test_the_lease_is_back_before_the_last_event_is_out(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    exits = [Script(), Script(status=400), Script(status=503), Script(close_after=3), Script(error_after=3)]
    async with gateway_over({"e1": engine}, limits={"in_flight": 1}) as gateway, RawClient(gateway.url) as client:
        for script in exits * 4:
            engine.script(script)
            await client.ask(MESSAGES, asking(stream=True))
            assert (await client.ask(COUNT_TOKENS, asking())).status == 200


async def test_many_at_once_with_all_ways_to_end(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """The conservation check at the end finds what was lost, counted twice or left over."""
    ways = [Script(), Script(chunks=30), Script(status=500), Script(close_after=5), Script(error_after=4), Script(status=400)]

    async def one(gateway: RunningGateway, number: int) -> None:
        engine.script(ways[number % len(ways)])
        path = COUNT_TOKENS if number % 4 == 0 else MESSAGES
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(path, asking(stream=number % 3 > 0)))
            if number % 5 == 0:
                await client.read_head()
                return
            await client.read()

    async with gateway_over({"e1": engine}) as gateway:
        await asyncio.gather(*(one(gateway, number) for number in range(60)))

"""OpenAI's Responses through the gateway: the openai client unchanged, and what the gateway owes beyond it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.doubles.raw_client import RawClient, RawResponse, ask, request_bytes
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.script import Gate, Script, Usage
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.flow.conftest import GatewayOver

RESPONSES = "/v1/responses"
REPORTED = Usage(prompt_tokens=7, completion_tokens=12, cached_tokens=5)
KEY = {"Authorization": "Bearer sk-test"}


def asking(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "Say something.", "max_output_tokens": 5} | fields


def counted(metrics: MetricValues) -> dict[str, float]:
    return {kind: metrics.sum("serving_tokens_total", kind=kind) for kind in ("prompt", "cached", "output")}


def last_event(response: RawResponse) -> tuple[str, Any]:
    name, data = response.events[-1].split(b"\n")
    return name.removeprefix(b"event: ").decode(), json.loads(data.removeprefix(b"data: "))


# The openai client, over the scripted engine and over a real vLLM


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-test", max_retries=0) as started:
        yield started


async def test_a_response(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    answer = await client.responses.create(model="tiny", input="hi", instructions="Be kind.", max_output_tokens=8)
    assert answer.output_text
    assert answer.status == "incomplete" and answer.incomplete_details is not None
    assert answer.usage is not None and answer.usage.output_tokens == 8
    metrics = await gateway.metrics()
    assert counted(metrics) == {"prompt": answer.usage.input_tokens, "cached": 0, "output": 8}
    assert metrics.sum("serving_requests_total", route="responses", outcome="ok") == 1


async def test_a_stream(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    stream = await client.responses.create(model="tiny", input="hi", max_output_tokens=8, stream=True)
    events = [event async for event in stream]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == text and text
    assert last.response.usage is not None and last.response.usage.output_tokens == 8
    assert counted(await gateway.metrics())["output"] == 8


async def test_the_clients_stream_helper(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model="tiny", input="hi", max_output_tokens=4) as stream:
        async for _ in stream:
            pass
        assert (await stream.get_final_response()).output_text


async def test_a_repeated_prompt_is_cached_and_counted(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    cached = []
    for _ in range(2):
        answer = await client.responses.create(model="tiny", input="responses are repeated " * 60, max_output_tokens=4)
        assert answer.usage is not None
        cached.append(answer.usage.input_tokens_details.cached_tokens)
    assert cached[1] > 1000
    assert counted(await gateway.metrics())["cached"] == sum(cached)


async def test_errors_are_the_clients_own_classes(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.responses.create(model="nope", input="hi")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as kept:
        await client.responses.create(model="tiny", input="hi", previous_response_id="resp_1")
    assert kept.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError) as long:
        await client.responses.create(model="tiny", input="x" * 5000, stream=True)
    assert long.value.code == "context_length_exceeded"
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-wrong", max_retries=0) as other:
        with pytest.raises(openai.AuthenticationError):
            await other.responses.create(model="tiny", input="hi")


async def test_a_cancelled_stream_leaves_nothing_running(
    client: openai.AsyncOpenAI, engine_url: str, gateway: RunningGateway
) -> None:
    stream = await client.responses.create(model="tiny", input="hi", max_output_tokens=3000, stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await stream.close()

    async def problems() -> list[str]:
        running = MetricValues((await ask(engine_url, "/metrics")).body.decode()).sum("vllm:num_requests_running")
        metrics = await gateway.metrics()
        leases = metrics.sum("serving_open_leases")
        cancelled = metrics.sum("serving_requests_total", route="responses", outcome="client_cancelled")
        return [] if (running, leases, cancelled) == (0, 0, 1) else [f"running {running}, leases {leases}, {cancelled}"]

    await settled(problems)


# What the gateway does with the body


async def test_nothing_is_stored_whatever_the_client_says(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    body = b'{"store":true,"model":"tiny","input":"hi","max_output_tokens":3, "st\\u006fre" : true,"x_future":1.0}'
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, RESPONSES, body)).status == 200
        assert engine.log.requests[0].body == (
            b'{"model":"tiny","input":"hi","max_output_tokens":3,"x_future":1.0,"store":false}'
        )


async def test_privileges_stay_behind_and_the_salt_is_ours(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    more = {"request_id": "resp_mine", "session_id": "s", "priority": -1, "enable_response_messages": True}
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, RESPONSES, asking(**more, cache_salt="known"))
        assert response.header("x-serving-dropped-fields") == "enable_response_messages, priority, request_id, session_id"
        sent = engine.log.requests[0].json
        assert sent.keys().isdisjoint(more)
        assert sent["cache_salt"] != "known"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": {"role": "user"}}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"previous_response_id": ""}, "previous_response_id"),
        ({"previous_response_id": 0}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"background": "true"}, "background"),
        ({"background": 0.0}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 5000}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
    ],
)
async def test_what_cannot_be_done_is_a_400_that_names_the_field(
    engine: ScriptedEngine, gateway_over: GatewayOver, fields: dict[str, Any], param: str
) -> None:
    async with gateway_over({"e1": engine}, limits={"parameters": {"max_tokens": 4096}}) as gateway:
        response = await ask(gateway.url, RESPONSES, asking(**fields))
        error = response.json["error"]
        assert (response.status, error["type"], error["param"]) == (400, "invalid_request_error", param)
        assert not engine.log.requests


async def test_null_and_false_are_as_good_as_left_out(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        fields = {"previous_response_id": None, "background": False, "conversation": None}
        assert (await ask(gateway.url, RESPONSES, asking(**fields))).status == 200


# Streams


async def test_bytes_pass_unchanged_and_usage_is_counted(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.default = Script(usage=REPORTED, chunks=5)
    async with gateway_over({"e1": engine}) as gateway:
        whole = await ask(gateway.url, RESPONSES, asking())
        stream = await ask(gateway.url, RESPONSES, asking(stream=True))
        assert whole.body in engine.log.requests[0].written
        events = [write.data.split(b"\r\n", 1)[1].removesuffix(b"\r\n") for write in engine.log.requests[1].writes[1:-1]]
        assert stream.body == b"".join(events)
        assert stream.header("cache-control") == "no-cache"
        assert counted(await gateway.metrics()) == {"prompt": 14, "cached": 10, "output": 24}


@pytest.mark.parametrize("name", ["response.completed", "response.incomplete"])
@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_a_stream_is_whole_with_its_last_event_however_it_is_split(
    engine: ScriptedEngine, gateway_over: GatewayOver, name: str, size: int
) -> None:
    """The usage stands in the event that ends the stream, long after its name."""
    usage = '{"input_tokens":7,"input_tokens_details":{"cached_tokens":5},"output_tokens":12,"total_tokens":19}'
    delta = 'event: response.output_text.delta\ndata: {"delta":"你好","sequence_number":0}\n\n'
    end = f'event: {name}\ndata: {{"response":{{"output":["{"x" * 300}"],"usage":{usage},"user":null}},"sequence_number":1}}\n\n'
    text = (delta + end).encode()
    raw = [(0.0, text[start : start + size]) for start in range(0, len(text), size)]
    engine.default = Script(raw_is="body", raw=raw, usage=REPORTED)
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, RESPONSES, asking(stream=True))).body == text
        metrics = await gateway.metrics()
        assert counted(metrics) == {"prompt": 7, "cached": 5, "output": 12}
        assert metrics.sum("serving_requests_total", outcome="ok") == 1


async def test_the_lease_is_back_before_the_last_event_is_out(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    exits = [Script(), Script(status=400), Script(status=503), Script(close_after=3), Script(error_after=5)]
    async with gateway_over({"e1": engine}, limits={"in_flight": 1}) as gateway, RawClient(gateway.url) as client:
        for script in exits * 4:
            engine.script(script)
            await client.ask(RESPONSES, asking(stream=True))
            assert (await client.ask(RESPONSES, asking())).status == 200


@pytest.mark.parametrize(
    "script",
    [Script(close_after=6), Script(rst_after=6), Script(stall_after=6), Script(error_after=6)],
    ids=["fin", "rst", "stall", "vllm's own fault"],
)
async def test_a_cut_stream_is_an_error_to_the_client(engine: ScriptedEngine, gateway_over: GatewayOver, script: Script) -> None:
    engine.default = script
    async with gateway_over({"e1": engine}, relay={"idle_timeout_seconds": 0.3}) as gateway:
        response = await ask(gateway.url, RESPONSES, asking(stream=True))
        name, data = last_event(response)
        code = "engine_timeout" if script.stall_after else "engine_failed"
        assert (name, data["type"], data["code"], data["param"]) == ("error", "error", code, None)
        assert data["message"] and data["error"]["code"] == code
        assert data["sequence_number"] == 6
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
            stream = await client.responses.create(model="tiny", input="hi", max_output_tokens=5, stream=True)
            with pytest.raises(openai.APIError) as caught:
                async for _ in stream:
                    pass
        assert caught.value.code == code
        metrics = await gateway.metrics()
        outcome = "engine_timeout" if script.stall_after else "truncated"
        assert metrics.sum("serving_requests_total", outcome=outcome) == 2
        assert metrics.sum("serving_tokens_estimated_total", kind="output") == 4  # two events of each held a token


async def test_a_response_that_failed_is_the_engines_error(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    begun = b'event: response.created\ndata: {"response":{"usage":null},"sequence_number":0}\n\n'
    failed = b'event: response.failed\ndata: {"response":{"status":"failed","usage":null},"sequence_number":1}\n\n'
    engine.script(Script(raw_is="body", raw=[(0.0, begun), (0.0, failed)]))
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, RESPONSES, asking(stream=True))).body == begun + failed
        assert (await gateway.metrics()).sum("serving_requests_total", outcome="engine_error") == 1


async def test_an_error_before_anything_else_is_a_status(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    event = b'event: error\ndata: {"type":"error","code":"server_error","message":"no","param":null,"sequence_number":0}\n\n'
    engine.default = Script(raw_is="body", raw=[(0.0, event)])
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, RESPONSES, asking(stream=True))
        assert (response.status, response.json["error"]["code"]) == (502, "engine_failed")


async def test_a_usage_of_the_clients_own_making_is_not_believed(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """An engine repeats the client's tools in each event; who leaves before the end is charged what was delivered."""
    schema = {"type": "object", "properties": {"usage": {"input_tokens": 0, "output_tokens": 0}}}
    tools = [{"type": "function", "name": "f", "parameters": schema}]
    gate = Gate(events=9)
    async with gateway_over({"e1": engine}) as gateway:
        whole = await ask(gateway.url, RESPONSES, asking(stream=True, tools=tools))
        assert b'"usage":{"input_tokens":0,' in whole.body
        known = counted(await gateway.metrics())
        assert known["prompt"] > 0 and known["output"] == 5
        engine.script(Script(gate=gate, chunks=50))
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(RESPONSES, asking(stream=True, tools=tools)))
            response = await client.read_head()
            received = b""
            async for piece in client.read_body(response):
                received += piece
                if received.count(b"\n\n") == 9:
                    break

        async def problems() -> list[str]:
            metrics = await gateway.metrics()
            output = metrics.sum("serving_tokens_estimated_total", kind="output")
            prompt = metrics.sum("serving_tokens_estimated_total", kind="prompt")
            return [] if output == 5 and prompt == known["prompt"] else [f"output {output}, prompt {prompt}"]

        await settled(problems)


async def test_a_response_that_is_created_is_not_its_first_token(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(ttft_seconds=0.3))
    async with gateway_over({"e1": engine}) as gateway:
        await ask(gateway.url, RESPONSES, asking(stream=True))
        metrics = await gateway.metrics()
        assert metrics.sum("serving_time_to_first_token_seconds_sum") >= 0.3
        assert metrics.sum("serving_inter_chunk_seconds_sum") < 0.2


# Engines that do not speak it


@pytest.mark.parametrize("script", [Script(status=501), Script(status=404, body=b'{"detail":"Not Found"}')])
async def test_a_model_whose_engine_does_not_support_the_route_is_a_404(
    engine: ScriptedEngine, gateway_over: GatewayOver, script: Script
) -> None:
    engine.script(script)
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, RESPONSES, asking())
        error = response.json["error"]
        assert (response.status, error["code"]) == (404, "route_not_supported")
        assert "'tiny' does not support /v1/responses" in error["message"]


async def test_many_at_once_with_all_ways_to_end(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """The conservation check at the end finds what was lost, counted twice or left over."""
    ways = [Script(), Script(chunks=30), Script(status=500), Script(close_after=7), Script(error_after=6), Script(status=400)]

    async def one(gateway: RunningGateway, number: int) -> None:
        engine.script(ways[number % len(ways)])
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(RESPONSES, asking(stream=number % 3 > 0, input=f"number {number}")))
            if number % 5 == 0:
                await client.read_head()
                return
            await client.read()

    async with gateway_over({"e1": engine}) as gateway:
        await asyncio.gather(*(one(gateway, number) for number in range(60)))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "said",
    [
        {"metadata": {"finish_reason": "abort", "status": "abort"}},
        {"tools": [{"type": "function", "name": "f", "parameters": {"default": {"finish_reason": "abort"}}}]},
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"default": {"status": "abort"}}}}},
    ],
    ids=["metadata", "tools", "text"],
)
async def test_what_a_client_said_is_not_taken_for_the_engines_word(
    engine: ScriptedEngine, gateway_over: GatewayOver, stream: bool, said: dict[str, Any]
) -> None:
    """vLLM repeats these fields as they were: one client could make sound engines look as if they gave requests up."""
    reported = Usage(prompt_tokens=7, completion_tokens=12)
    usage = {"input_tokens": 7, "output_tokens": 12, "total_tokens": 19}
    whole = {"id": "resp_1", "metadata": None, "tools": [], "status": "completed", "text": None} | said | {"usage": usage}
    body = json.dumps(whole, separators=(",", ":")).encode()
    if stream:
        created, done = (b'event: response.%b\ndata: {"response":%b}\n\n' % (name, body) for name in (b"created", b"completed"))
        engine.default = Script(raw_is="body", raw=[(0.0, created), (0.02, done)], usage=reported)
    else:
        engine.default = Script(body=body, usage=reported)
    async with gateway_over({"e1": engine}, relay={"max_attempts": 1}) as gateway:
        response = await ask(gateway.url, RESPONSES, asking(stream=stream, **said))
        assert response.status == 200 and response.end == "complete"
        assert response.body == (created + done if stream else body)
        metrics = await gateway.metrics()
        assert metrics.sum("serving_requests_total", outcome="ok") == 1
        assert metrics.sum("serving_engine_attempts_total", result="ok") == 1

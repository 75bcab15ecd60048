"""Other people's SDKs, unchanged, against the gateway: over a real vLLM where that can answer, else over the scripted engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients import tool_calls
from tests.clients.programs import CLIENTS, Client, Program
from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled

MAX_TOKENS = 8
RETRY_AFTER_SECONDS = 3
"""Longer than any of these clients would wait by itself before its first retry."""
on_the_scripted = pytest.mark.parametrize("engine_url", ["scripted"], indirect=True)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


@pytest.fixture
def program(client: Client, start_program: Callable[[Client], Program]) -> Program:
    return start_program(client)


async def test_models_chat_and_a_stream_with_usage(client: Client, program: Program, gateway: RunningGateway) -> None:
    steps = ("models", "chat", "stream") if client.lists_models else ("chat", "stream")
    seen = await program.ask(gateway.url, *steps)
    if client.lists_models:
        assert seen["models"] == ["tiny"]
    chat, stream = seen["chat"], seen["stream"]
    for answer in (chat, stream):
        assert answer["text"]
        assert (answer["finish"], answer["output"]) == (client.cut, MAX_TOKENS)
        assert answer["prompt"] > 20
    assert chat["prompt"] == stream["prompt"]
    assert 1 < stream["pieces"] <= MAX_TOKENS
    metrics = await gateway.metrics()
    assert metrics.sum("serving_tokens_total", kind="output") == 2 * MAX_TOKENS
    assert metrics.sum("serving_tokens_total", kind="prompt") == 2 * chat["prompt"]
    assert metrics.sum("serving_requests_total", outcome="ok") == metrics.sum("serving_requests_total") == 2


@pytest.mark.engine
@pytest.mark.parametrize("engine_url", ["real"], indirect=True)
async def test_structured_output_is_valid(program: Program, gateway: RunningGateway) -> None:
    value = (await program.ask(gateway.url, "structured"))["structured"]
    assert value.keys() == {"yes", "size"}
    assert isinstance(value["yes"], bool)
    assert value["size"] in ("small", "large")


@on_the_scripted
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_a_tool_is_called_and_its_answer_sent_back(
    client: Client, program: Program, gateway: RunningGateway, engine: ScriptedEngine, streams: bool
) -> None:
    called = {
        ("chat", False): tool_calls.chat,
        ("chat", True): tool_calls.streamed_chat,
        ("messages", False): tool_calls.message,
        ("messages", True): tool_calls.streamed_message,
    }[client.api, streams]
    engine.script(called(), Script(text=("It ", "rains.")))
    step = "streamed_tools" if streams else "tools"
    assert (await program.ask(gateway.url, step))[step] == "It rains."
    first, second = (record.json for record in engine.log.requests)
    assert bool(first.get("stream")) is bool(second.get("stream")) is streams
    (tool,) = first["tools"]
    assert tool.get("function", tool)["name"] == "weather"
    assert tool_calls.CALL_ID in str(second["messages"])
    assert "rain in Paris" in str(second["messages"][-1])
    metrics = await gateway.metrics()
    assert metrics.sum("serving_tokens_total", kind="output") == tool_calls.OUTPUT_TOKENS + 2
    assert metrics.sum("serving_requests_total", outcome="ok") == 2


@on_the_scripted
async def test_errors_are_the_clients_own_classes(
    client: Client, program: Program, gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    seen = await program.ask(gateway.url, *client.errors)
    statuses = {"bad_request": 400, "wrong_key": 401, "unknown_model": 404}
    words = {"bad_request": "maximum context length", "wrong_key": "API key is not valid", "unknown_model": "'nope'"}
    for step, (kind, code) in client.errors.items():
        error = seen[step]
        assert (error["kind"], error["status"], error["code"]) == (kind, statuses[step], code)
        assert words[step] in error["message"]
    assert len(engine.log.requests) == 1  # no error is tried again, and only the first was the engine's to find


async def test_a_client_that_leaves_a_stream_leaves_nothing_running(
    program: Program, gateway: RunningGateway, engine_url: str
) -> None:
    async def problems() -> list[str]:
        running = MetricValues((await ask(engine_url, "/metrics")).body.decode()).sum("vllm:num_requests_running")
        metrics = await gateway.metrics()
        leases, left = metrics.sum("serving_open_leases"), metrics.sum("serving_requests_total", outcome="client_cancelled")
        return [] if (running, leases, left) == (0, 0, 1) else [f"running {running}, leases {leases}, left {left}"]

    await program.ask(gateway.url, "leave")
    await settled(problems)


@on_the_scripted
async def test_a_429_is_tried_again_when_it_says(program: Program, gateway: RunningGateway, engine: ScriptedEngine) -> None:
    engine.script(Script(status=503, headers=(("retry-after", str(RETRY_AFTER_SECONDS)),)))
    assert (await program.ask(gateway.url, "retry"))["retry"]
    first, second = engine.log.requests
    assert second.arrived_seconds - first.arrived_seconds > 0.99 * RETRY_AFTER_SECONDS
    outcomes: dict[str, Any] = {
        sample.labels["outcome"]: sample.value for sample in (await gateway.metrics()).select("serving_requests_total")
    }
    assert {outcome: count for outcome, count in outcomes.items() if count} == {"ok": 1, "overloaded": 1}


@on_the_scripted
@pytest.mark.parametrize("client", ["anthropic-node"], indirect=True)
async def test_anthropics_client_gets_cards_and_errors_of_its_own_api(program: Program, gateway: RunningGateway) -> None:
    seen = await program.ask(gateway.url, "model", "wrong_key_for_models", "unknown_card")
    assert seen["model"] == {"id": "tiny", "type": "model", "display_name": "tiny", "dated": True}
    assert (seen["wrong_key_for_models"]["status"], seen["wrong_key_for_models"]["code"]) == (401, "authentication_error")
    assert (seen["unknown_card"]["kind"], seen["unknown_card"]["code"]) == ("NotFoundError", "not_found_error")

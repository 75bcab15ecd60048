"""What the gateway relies on in an engine's answers to Responses, Messages and the counting of tokens."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.contract.conftest import AnyEngine
from tests.doubles.raw_client import RawResponse, ask

RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
LIMITS = {RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}
BOTH = pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
PROMPT_TOKENS = 21
"""Of the prompt "hi": the template adds its begin token and "user: ", a line end, "assistant: "."""


def asking(path: str, text: str = "hi", **more: Any) -> dict[str, Any]:
    prompt: dict[str, Any] = {"input": text} if path == RESPONSES else {"messages": [{"role": "user", "content": text}]}
    return {"model": "tiny", **prompt, LIMITS[path]: 3, **more}


def named_events(response: RawResponse) -> list[tuple[str, Any]]:
    """Name and data of each event of a stream, which has nothing else."""
    found = []
    for event in response.events:
        name, data = event.split(b"\n")
        assert name.startswith(b"event: ") and data.startswith(b"data: ")
        found.append((name.removeprefix(b"event: ").decode(), json.loads(data.removeprefix(b"data: "))))
    return found


def responses_usage(prompt: int, cached: int, written: int, output: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": cached,
            "cache_write_tokens": written,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": output,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": prompt + output,
    }


def messages_usage(new: int, written: int, cached: int, output: int) -> dict[str, int]:
    counts = {"input_tokens": new, "output_tokens": output}
    return counts | {"cache_creation_input_tokens": written, "cache_read_input_tokens": cached}


RESPONSE_FIELDS = (
    "id created_at incomplete_details instructions metadata model object output parallel_tool_calls temperature tool_choice"
    " tools top_p background max_output_tokens max_tool_calls previous_response_id prompt reasoning service_tier status text"
    " top_logprobs truncation usage user presence_penalty frequency_penalty kv_transfer_params ec_transfer_params"
    " input_messages output_messages"
)


async def test_a_response(any_engine: AnyEngine) -> None:
    answer = (await ask(any_engine.url, RESPONSES, asking(RESPONSES, store=False), headers={"X-Request-Id": "mine"})).json
    assert " ".join(answer) == RESPONSE_FIELDS
    assert answer["id"].startswith("resp_") and "mine" not in answer["id"]
    assert (answer["object"], answer["status"]) == ("response", "incomplete")
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    (item,) = answer["output"]
    (part,) = item["content"]
    assert (item["type"], item["role"], part["type"]) == ("message", "assistant", "output_text")
    assert part["text"]
    assert answer["usage"] == responses_usage(PROMPT_TOKENS, 0, 0, 3)


async def test_a_stream_of_a_response(any_engine: AnyEngine) -> None:
    response = await ask(any_engine.url, RESPONSES, asking(RESPONSES, stream=True, store=False))
    assert response.header("content-type") == "text/event-stream; charset=utf-8" and response.end == "complete"
    events = named_events(response)
    deltas = [data["delta"] for name, data in events if name == "response.output_text.delta"]
    before, after = events[:4], events[4 + len(deltas) :]
    assert [name.removeprefix("response.") for name, _ in before] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
    ]
    assert [name.removeprefix("response.") for name, _ in after] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(data["type"] == name for name, data in events)
    assert all(" ".join(data["response"]) == RESPONSE_FIELDS for _, data in (*before[:2], after[-1]))
    assert before[0][1]["response"]["usage"] is None
    last = after[-1][1]["response"]
    assert (last["status"], last["usage"]) == ("incomplete", responses_usage(PROMPT_TOKENS, 0, 0, 3))
    assert last["output"][0]["content"][0]["text"] == "".join(deltas)


async def test_a_response_repeats_the_clients_tools_and_its_usage_comes_after_them(any_engine: AnyEngine) -> None:
    """A schema with a member `usage` stands in the stream before the real one: it must not be taken for it."""
    schema = {"type": "object", "properties": {"usage": {"input_tokens": 0, "output_tokens": 0}}}
    tool = {"type": "function", "name": "f", "parameters": schema}
    response = await ask(any_engine.url, RESPONSES, asking(RESPONSES, stream=True, store=False, tools=[tool]))
    assert response.body.count(b'"usage":{"input_tokens":0') >= 3
    assert b'"usage":{"input_tokens":21,' in response.body[response.body.rindex(b'"usage":') :]


async def test_a_message(any_engine: AnyEngine) -> None:
    answer = (await ask(any_engine.url, MESSAGES, asking(MESSAGES), headers={"X-Request-Id": "mine"})).json
    assert list(answer) == ["id", "type", "role", "content", "model", "stop_reason", "usage"]
    assert (answer["id"], answer["type"], answer["role"]) == ("chatcmpl-mine", "message", "assistant")
    (block,) = answer["content"]
    assert block["type"] == "text" and block["text"]
    assert (answer["stop_reason"], answer["usage"]) == ("max_tokens", messages_usage(PROMPT_TOKENS, 0, 0, 3))


async def test_a_stream_of_a_message(any_engine: AnyEngine) -> None:
    response = await ask(any_engine.url, MESSAGES, asking(MESSAGES, stream=True))
    assert response.header("content-type") == "text/event-stream; charset=utf-8" and response.end == "complete"
    events = named_events(response)
    assert all(data["type"] == name for name, data in events)
    assert [name for name, _ in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * (len(events) - 5),
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0][1]["message"]["usage"] == {"input_tokens": PROMPT_TOKENS, "output_tokens": 0}
    delta = {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2][1] == {"type": "message_delta", "delta": delta, "usage": messages_usage(PROMPT_TOKENS, 0, 0, 3)}


@BOTH
async def test_a_repeated_prompt_is_cached(any_engine: AnyEngine, path: str) -> None:
    """Messages tell the cached and the newly cached tokens apart from the input, but not at a stream's start."""
    text = uuid.uuid4().hex + "abc " * 300
    prompt_tokens = PROMPT_TOKENS - 2 + len(text)
    usages = []
    for stream in (False, False, True):
        response = await ask(any_engine.url, path, asking(path, text, stream=stream))
        if not stream:
            usages.append(response.json["usage"])
        elif path == RESPONSES:
            usages.append(named_events(response)[-1][1]["response"]["usage"])
        else:
            events = named_events(response)
            assert events[0][1]["message"]["usage"]["input_tokens"] == prompt_tokens
            usages.append(events[-2][1]["usage"])
    blocks = prompt_tokens // 128 * 128
    if path == RESPONSES:
        expected = [responses_usage(prompt_tokens, *cache, 3) for cache in ((0, blocks), (blocks, 0), (blocks, 0))]
    else:
        rest = prompt_tokens - blocks
        expected = [messages_usage(rest, *cache, 3) for cache in ((blocks, 0), (0, blocks), (0, blocks))]
    assert usages == expected


@BOTH
async def test_salts_keep_prompts_apart(any_engine: AnyEngine, path: str) -> None:
    text = uuid.uuid4().hex + "abc " * 100
    cached = []
    for salt in ("one", "two", "one"):
        usage = (await ask(any_engine.url, path, asking(path, text, cache_salt=salt))).json["usage"]
        told = usage["input_tokens_details"]["cached_tokens"] if path == RESPONSES else usage["cache_read_input_tokens"]
        cached.append(told)
    assert cached[:2] == [0, 0] and cached[2] > 0


async def test_instructions_and_parts_are_turns_of_the_chat(any_engine: AnyEngine) -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    body = asking(RESPONSES) | {"instructions": "be", "input": [{"role": "user", "content": parts}]}
    assert (await ask(any_engine.url, RESPONSES, body)).json["usage"]["input_tokens"] == 33
    turns = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    turns += [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    body = asking(MESSAGES) | {"system": "You are", "messages": turns}
    assert (await ask(any_engine.url, MESSAGES, body)).json["usage"]["input_tokens"] == 59


async def test_counting_tokens(any_engine: AnyEngine) -> None:
    body = asking(MESSAGES, stream=True)  # fields that belong to the other route are ignored
    response = await ask(any_engine.url, COUNT_TOKENS, body)
    assert response.header("content-type") == "application/json"
    assert response.json == {"input_tokens": PROMPT_TOKENS, "context_management": {"original_input_tokens": PROMPT_TOKENS}}


TOO_LONG = (
    "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=4097)"
)
NO_MESSAGE = "Cannot apply chat template to an empty conversation. Provide at least one message."
UNKNOWN = "The model `nope` does not exist. Valid aliases: tiny."


def above_most(name: str) -> str:
    return (
        f"{name}=99999 cannot be greater than max_model_len=4096. Please request fewer output tokens. "
        f"(parameter={name}, value=99999)"
    )


RESPONSES_REFUSED: dict[str, tuple[dict[str, Any], tuple[int, str, str, str | None]]] = {
    "too long": ({"input": "x" * 5000}, (400, "BadRequestError", TOO_LONG, "input_tokens")),
    "empty": ({"input": []}, (400, "BadRequestError", NO_MESSAGE, None)),
    "unknown model": ({"model": "nope"}, (404, "NotFoundError", UNKNOWN, "model")),
    "limit": (
        {"max_output_tokens": 99999, "stream": True},
        (400, "BadRequestError", above_most("max_output_tokens"), "max_output_tokens"),
    ),
    "another response": (
        {"previous_response_id": "resp_x"},
        (404, "invalid_request_error", "Response with id 'resp_x' not found.", "response_id"),
    ),
}


@pytest.mark.parametrize("case", RESPONSES_REFUSED)
async def test_a_response_is_refused_in_openais_words(any_engine: AnyEngine, case: str) -> None:
    fields, (status, type_, message, param) = RESPONSES_REFUSED[case]
    response = await ask(any_engine.url, RESPONSES, asking(RESPONSES) | fields)
    assert response.json == {"error": {"message": message, "type": type_, "param": param, "code": status}}
    assert response.status == status


MESSAGES_REFUSED: dict[str, tuple[str, dict[str, Any], tuple[int, str, str]]] = {
    "too long": (MESSAGES, {"messages": [{"role": "user", "content": "x" * 5000}]}, (400, "BadRequestError", TOO_LONG)),
    "empty": (MESSAGES, {"messages": []}, (400, "BadRequestError", NO_MESSAGE)),
    "unknown model": (MESSAGES, {"model": "nope", "stream": True}, (404, "NotFoundError", UNKNOWN)),
    "limit": (MESSAGES, {"max_tokens": 99999}, (400, "BadRequestError", above_most("max_completion_tokens"))),
    "count, empty": (COUNT_TOKENS, {"messages": []}, (400, "BadRequestError", NO_MESSAGE)),
    "count, unknown model": (COUNT_TOKENS, {"model": "nope"}, (404, "NotFoundError", UNKNOWN)),
}


@pytest.mark.parametrize("case", MESSAGES_REFUSED)
async def test_a_message_is_refused_in_anthropics_envelope_with_vllms_types(any_engine: AnyEngine, case: str) -> None:
    path, fields, (status, type_, message) = MESSAGES_REFUSED[case]
    response = await ask(any_engine.url, path, asking(MESSAGES) | fields)
    assert response.json == {"type": "error", "error": {"type": type_, "message": message}}
    assert response.status == status


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (RESPONSES, {"model": "tiny"}, "body.input"),
        (RESPONSES, {"model": "tiny", "input": 5}, "body.input"),
        (MESSAGES, {"model": "tiny", "max_tokens": 1}, "body.messages"),
        (MESSAGES, {"model": "tiny", "messages": "x", "max_tokens": 1}, "body.messages"),
        (MESSAGES, {"model": "tiny", "messages": []}, "body.max_tokens"),
        (MESSAGES, asking(MESSAGES, cache_salt=""), "body.cache_salt"),
        (COUNT_TOKENS, {"model": "tiny"}, "body.messages"),
    ],
)
async def test_what_a_body_lacks_is_said_in_openais_envelope_on_all_routes(
    any_engine: AnyEngine, path: str, body: dict[str, Any], param: str
) -> None:
    response = await ask(any_engine.url, path, body)
    assert set(response.json) == {"error"}
    error = response.json["error"]
    assert (response.status, error["type"], error["param"], error["code"]) == (400, "Bad Request", param, 400)
    assert "validation error" in error["message"]

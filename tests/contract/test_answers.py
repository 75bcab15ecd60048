"""What the gateway relies on in an engine's answers."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.contract.conftest import AnyEngine
from tests.doubles.raw_client import RawResponse, ask
from tests.doubles.real_engine import RealEngine

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ROUTES = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
PROMPT_TOKENS = {CHAT: 21, COMPLETIONS: 2}
"""Of the prompt "hi": the template adds its begin token and "user: ", a line end, "assistant: "."""
DETAILS = {CHAT: {"cached_tokens": 0, "created_cache_tokens": 0}, COMPLETIONS: {"cached_tokens": 0}}


def asking(engine: AnyEngine, path: str, text: str = "hi", **more: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return {"model": engine.model, **prompt, "max_tokens": 3, **more}


def is_chunked(response: RawResponse) -> bool:
    return response.all("transfer-encoding") == ["chunked"] and not response.all("content-length")


async def test_models(any_engine: AnyEngine) -> None:
    response = await ask(any_engine.url, "/v1/models")
    card = response.json["data"][0]
    assert (response.status, response.json["object"], card["object"]) == (200, "list", "model")
    assert (card["id"], card["max_model_len"], card["parent"]) == (any_engine.model, any_engine.max_model_len, None)
    assert set(card) == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"}


async def test_health_version_load(any_engine: AnyEngine) -> None:
    health = await ask(any_engine.url, "/health")
    assert (health.status, health.body) == (200, b"")
    version = {"version": "0.32.0", **({"simulated": "tiny-cpu"} if any_engine.is_simulated else {})}
    assert (await ask(any_engine.url, "/version")).json == version
    assert (await ask(any_engine.url, "/load")).json == {"server_load": 0}
    assert (await ask(any_engine.url, "/ping", method="POST")).status == 200


@ROUTES
async def test_whole_answer(any_engine: AnyEngine, path: str) -> None:
    response = await ask(any_engine.url, path, asking(any_engine, path))
    answer = response.json
    assert response.status == 200 and response.header("content-type") == "application/json"
    assert int(response.header("content-length") or 0) == len(response.body) and not response.all("transfer-encoding")
    assert answer["object"] == ("chat.completion" if path == CHAT else "text_completion")
    assert answer["model"] == any_engine.model and answer["system_fingerprint"].startswith("vllm-0.32.0-")
    assert answer["id"].startswith("chatcmpl-" if path == CHAT else "cmpl-")
    (choice,) = answer["choices"]
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "length", None)
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    assert isinstance(text, str) and text
    prompt_tokens = PROMPT_TOKENS[path]
    assert answer["usage"] == {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + 3,
        "completion_tokens": 3,
        "prompt_tokens_details": {
            "cached_tokens": 0,
            "created_cache_tokens": 0 if path == CHAT else None,
            "multimodal_tokens": None,
        },
        "completion_tokens_details": None,
    }


FIELDS = {
    CHAT: (
        "id object created model choices service_tier system_fingerprint usage prompt_logprobs prompt_token_ids"
        " prompt_text kv_transfer_params ec_transfer_params metrics",
        "index message logprobs finish_reason stop_reason token_ids routed_experts",
    ),
    COMPLETIONS: (
        "id object created model choices service_tier system_fingerprint usage kv_transfer_params ec_transfer_params metrics",
        "index text logprobs finish_reason stop_reason token_ids prompt_logprobs prompt_token_ids routed_experts",
    ),
}


@ROUTES
async def test_fields_and_their_order(any_engine: AnyEngine, path: str) -> None:
    answer = (await ask(any_engine.url, path, asking(any_engine, path))).json
    assert [" ".join(answer), " ".join(answer["choices"][0])] == list(FIELDS[path])


@ROUTES
async def test_stream(any_engine: AnyEngine, path: str) -> None:
    response = await ask(any_engine.url, path, asking(any_engine, path, stream=True))
    assert response.status == 200 and response.header("content-type") == "text/event-stream; charset=utf-8"
    assert is_chunked(response) and response.end == "complete"
    assert all(event.startswith(b"data: {") for event in response.events[:-1]) and response.is_done
    assert response.body.endswith(b"\n\ndata: [DONE]\n\n")
    chunks = response.data
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk" if path == CHAT else "text_completion"}
    choices = [chunk["choices"][0] for chunk in chunks]
    if path == CHAT:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert {"prompt_token_ids", "prompt_text"} <= chunks[0].keys()
        choices = choices[1:]
    assert len(choices) == 3
    assert all(choice["delta"]["content"] if path == CHAT else choice["text"] for choice in choices)
    assert [choice["finish_reason"] for choice in choices] == [None, None, "length"]
    assert ["system_fingerprint" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@ROUTES
async def test_usage_chunk_when_asked(any_engine: AnyEngine, path: str) -> None:
    body = asking(any_engine, path, stream=True, stream_options={"include_usage": True})
    response = await ask(any_engine.url, path, body)
    *content, last = response.data
    assert all(chunk["choices"] and "usage" not in chunk for chunk in content)
    prompt_tokens = PROMPT_TOKENS[path]
    assert last["choices"] == [] and last["usage"] == {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + 3,
        "completion_tokens": 3,
        "prompt_tokens_details": DETAILS[path],
    }
    assert list(last) == ["id", "object", "created", "model", "choices", "usage", "system_fingerprint"]
    assert response.is_done


@ROUTES
async def test_continuous_usage(any_engine: AnyEngine, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = (await ask(any_engine.url, path, asking(any_engine, path, stream=True, stream_options=options))).data
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == ([0] if path == CHAT else []) + [1, 2, 3, 3]
    assert all("prompt_tokens_details" not in chunk["usage"] for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []


async def test_several_choices(any_engine: AnyEngine) -> None:
    body = asking(any_engine, CHAT, n=2, stream=True, stream_options={"include_usage": True})
    *content, last = (await ask(any_engine.url, CHAT, body)).data
    finishes = {chunk["choices"][0]["index"]: chunk["choices"][0]["finish_reason"] for chunk in content}
    assert finishes == {0: "length", 1: "length"} and last["usage"]["completion_tokens"] == 6
    whole = (await ask(any_engine.url, COMPLETIONS, {**asking(any_engine, COMPLETIONS), "prompt": ["a", "bc"]})).json
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (3, 6)


async def test_answer_is_cut_to_the_context(any_engine: AnyEngine) -> None:
    body = {"prompt": "x" * (any_engine.max_model_len - 5), "max_tokens": 200}
    answer = (await ask(any_engine.url, COMPLETIONS, body)).json
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (5, "length")


@ROUTES
async def test_an_integer_may_be_written_with_a_point(any_engine: AnyEngine, path: str) -> None:
    answer = (await ask(any_engine.url, path, asking(any_engine, path) | {"max_tokens": 2.0, "n": 2.0})).json
    assert answer["usage"]["completion_tokens"] == 4


async def test_unknown_fields_are_ignored(any_engine: AnyEngine) -> None:
    body = asking(any_engine, CHAT, x_future={"a": 1}, ignore_eos=True, max_completion_tokens=2)
    assert (await ask(any_engine.url, CHAT, body)).json["usage"]["completion_tokens"] == 2


@ROUTES
async def test_repeated_prompt_is_cached(any_engine: AnyEngine, path: str) -> None:
    text = uuid.uuid4().hex + "abc " * 300  # new to the engine, whatever ran before
    details = []
    for stream in (False, False, True):
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        response = await ask(any_engine.url, path, asking(any_engine, path, text, **options))
        usage = (response.data[-1] if stream else response.json)["usage"]
        details.append(usage["prompt_tokens_details"])
        full_blocks = usage["prompt_tokens"] // 128 * 128
    assert [detail["cached_tokens"] for detail in details] == [0, full_blocks, full_blocks]
    if path == CHAT:
        assert [detail["created_cache_tokens"] for detail in details] == [full_blocks, 0, 0]


@ROUTES
async def test_request_id_becomes_the_answer_id(any_engine: AnyEngine, path: str) -> None:
    prefix = "chatcmpl" if path == CHAT else "cmpl"
    for stream in (False, True):
        request_id = f"id-{uuid.uuid4().hex}"
        body = asking(any_engine, path, stream=stream)
        response = await ask(any_engine.url, path, body, headers={"X-Request-Id": request_id})
        assert (response.data[0] if stream else response.json)["id"] == f"{prefix}-{request_id}"


async def test_missing_model_means_the_only_one(any_engine: AnyEngine) -> None:
    body = asking(any_engine, CHAT)
    del body["model"]
    assert (await ask(any_engine.url, CHAT, body)).json["model"] == any_engine.model


@pytest.mark.engine
async def test_structured_output(real_engine: RealEngine) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    body = {
        "model": real_engine.model,
        "messages": [{"role": "user", "content": "pick"}],
        "max_tokens": 100,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "pick", "schema": schema, "strict": True}},
    }
    answer = (await ask(real_engine.url, CHAT, body)).json
    assert json.loads(answer["choices"][0]["message"]["content"])["n"] in (1, 2)
    assert answer["choices"][0]["finish_reason"] == "stop"

"""How an engine says no. The whole body is compared, for both engines to the same constant."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import AnyEngine
from tests.doubles.raw_client import RawClient, ask

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


def invalid(kind: str, where: str, message: str, given: str) -> dict[str, Any]:
    problem = {"type": kind, "loc": where, "msg": message, "input": given}
    return {"message": f"1 validation error:\n  {problem}", "type": "Bad Request", "param": where, "code": 400}


def refused(message: str, param: str | None, status: int = 400, type_: str = "BadRequestError") -> dict[str, Any]:
    return {"message": message, "type": type_, "param": param, "code": status}


NOT_A_DICT = "Input should be a valid dictionary or object to extract fields from"
NOT_AN_INT = "Input should be a valid integer, unable to parse string as an integer"
NO_PROMPT = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
NO_STREAM = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
BELOW_ONE = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
NO_MESSAGE = "Cannot apply chat template to an empty conversation. Provide at least one message."
NO_SALT = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)"
ABOVE_MOST = (
    "max_tokens=99999 cannot be greater than max_model_len=4096. Please request fewer output tokens. "
    "(parameter=max_tokens, value=99999)"
)
TOO_LONG = (
    "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=4097)"
)
UNKNOWN_MODEL = "The model `nope` does not exist. Valid aliases: tiny."

CASES = {
    "empty body": (CHAT, b"", invalid("missing", "body", "Field required", "None")),
    "not an object": (CHAT, [], invalid("model_attributes_type", "body", NOT_A_DICT, "<list of 0 items>")),
    "no messages": (CHAT, {"model": "tiny"}, invalid("missing", "body.messages", "Field required", "<dict of 1 items>")),
    "messages a string": (
        CHAT,
        {"messages": "x"},
        invalid("list_type", "body.messages", "Input should be a valid list", "x"),
    ),
    "max_tokens a word": (
        CHAT,
        {"messages": HI, "max_tokens": "many"},
        invalid("int_parsing", "body.max_tokens", NOT_AN_INT, "many"),
    ),
    "model a number": (
        COMPLETIONS,
        {"model": 5, "prompt": "a"},
        invalid("string_type", "body.model", "Input should be a valid string", "5"),
    ),
    "max_tokens 0": (CHAT, {"messages": HI, "max_tokens": 0}, refused(BELOW_ONE, "max_tokens")),
    "max_tokens huge": (CHAT, {"messages": HI, "max_tokens": 99999}, refused(ABOVE_MOST, "max_tokens")),
    "no prompt": (COMPLETIONS, {"model": "tiny"}, refused(NO_PROMPT, "prompt")),
    "empty prompt": (COMPLETIONS, {"prompt": ""}, refused(NO_PROMPT, "prompt")),
    "options without stream": (
        CHAT,
        {"messages": HI, "stream_options": {"include_usage": True}},
        refused(NO_STREAM, "stream_options"),
    ),
    "chat too long": (
        CHAT,
        {"messages": [{"role": "user", "content": "x" * 5000}], "max_tokens": 2},
        refused(TOO_LONG, "input_tokens"),
    ),
    "prompt too long": (COMPLETIONS, {"prompt": "x" * 5000, "max_tokens": 2}, refused(TOO_LONG, "input_tokens")),
    "prompt fills the context": (COMPLETIONS, {"prompt": "x" * 4096, "max_tokens": 1}, refused(BELOW_ONE, "max_tokens")),
    "empty conversation": (CHAT, {"messages": []}, refused(NO_MESSAGE, None)),
    "empty salt": (CHAT, {"messages": HI, "cache_salt": ""}, refused(NO_SALT, "cache_salt")),
    "unknown model": (
        CHAT,
        {"model": "nope", "messages": HI},
        refused(UNKNOWN_MODEL, "model", 404, "NotFoundError"),
    ),
    "unknown model, stream": (
        COMPLETIONS,
        {"model": "nope", "prompt": "a", "stream": True},
        refused(UNKNOWN_MODEL, "model", 404, "NotFoundError"),
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_refused(any_engine: AnyEngine, case: str) -> None:
    path, body, error = CASES[case]
    response = await ask(any_engine.url, path, body)
    assert (response.status, response.json) == (error["code"], {"error": error})
    assert response.header("content-type") == "application/json" and response.end == "complete"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": [{}]}),
        (COMPLETIONS, {"prompt": ["a", 1]}),
        (COMPLETIONS, {"prompt": [[{}]]}),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}),
        (CHAT, {"messages": [{"role": "user", "content": [5]}]}),
    ],
)
async def test_prompts_of_no_kind_are_refused(any_engine: AnyEngine, path: str, fields: dict[str, Any]) -> None:
    """The words differ with each of a prompt's many forms, and nobody reads them."""
    response = await ask(any_engine.url, path, {"model": any_engine.model, "max_tokens": 1, **fields})
    assert (response.status, response.json["error"]["code"]) == (400, 400)


async def test_bad_json(any_engine: AnyEngine) -> None:
    response = await ask(any_engine.url, CHAT, b"{")
    error = response.json["error"]
    assert (response.status, error["type"], error["code"]) == (400, "Bad Request", 400)
    assert error["param"].startswith("body.") and "JSON decode error" in error["message"]


async def test_wrong_content_type(any_engine: AnyEngine) -> None:
    response = await ask(any_engine.url, CHAT, b"{}", headers={"Content-Type": "text/plain"})
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    assert response.status == 400
    assert response.json == {"error": {"message": message, "type": "Bad Request", "param": None, "code": 400}}


async def test_unknown_route_and_method(any_engine: AnyEngine) -> None:
    unknown = await ask(any_engine.url, "/nope")
    assert (unknown.status, unknown.json) == (404, {"detail": "Not Found"})
    wrong = await ask(any_engine.url, CHAT)
    assert (wrong.status, wrong.json, wrong.header("allow")) == (405, {"detail": "Method Not Allowed"}, "POST")
    assert (await ask(any_engine.url, "/health", method="HEAD")).status == 405


async def test_no_http_at_all(any_engine: AnyEngine) -> None:
    async with RawClient(any_engine.url) as client:
        await client.send(b"GARBAGE\r\n\r\n")
        response = await client.read()
        assert (response.status, response.body) == (400, b"Invalid HTTP request received.")
        assert response.header("connection") == "close" and await client.closed_by_peer() == "fin"

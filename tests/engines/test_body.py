"""A body is parsed once; what only the engine acts on is passed through unjudged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serving.core.context import RequestContext
from serving.core.errors import InvalidRequest
from serving.core.routes import CHAT_COMPLETIONS, COMPLETIONS, Route
from serving.engines import body
from serving.engines.body import is_repeatable, understand
from serving.settings import ParameterLimits

LIMITS = ParameterLimits()
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi."}]}


def context(text: bytes, route: Route = CHAT_COMPLETIONS) -> RequestContext:
    ctx = RequestContext("r1", route, None, 0.0)
    ctx.body = text
    return ctx


def refusal(text: bytes, route: Route = CHAT_COMPLETIONS) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        understand(context(text, route), LIMITS)
    return caught.value


def test_the_model_and_the_whole_document_are_read() -> None:
    ctx = context(json.dumps(CHAT).encode())
    assert understand(ctx, LIMITS) == "tiny"
    assert ctx.document == CHAT
    assert not ctx.stream
    assert ctx.model == "", "it is no label before it is known"


@pytest.mark.parametrize(("given", "stream"), [(True, True), (False, False), (None, False)])
def test_stream_is_read(given: bool | None, stream: bool) -> None:
    ctx = context(json.dumps(CHAT | {"stream": given}).encode())
    understand(ctx, LIMITS)
    assert ctx.stream is stream


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [1, None, "free form"]},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"seed": 9007199254740993, "x_future": {"a": [1.0, 1]}, "temperature": "hot"},
        {"max_tokens": 10**9},
    ],
)
def test_what_only_the_engine_judges_passes(fields: dict[str, Any]) -> None:
    body = json.dumps(CHAT | fields).encode()
    ctx = context(body)
    assert understand(ctx, LIMITS) == "tiny"
    assert ctx.body == body


@pytest.mark.parametrize("prompt", ["Once", "", ["a", "b"], [1, 2, 3], [[1], [2]]])
def test_a_prompt_is_text_or_an_array(prompt: Any) -> None:
    assert understand(context(json.dumps({"model": "tiny", "prompt": prompt}).encode(), COMPLETIONS), LIMITS) == "tiny"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"model": "tiny"',
        b"[]",
        b'"x"',
        b"null",
        b"1",
        b"[" * 100_000,
        b'{"a": NaN}',
        b"\xff",
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    error = refusal(body)
    assert (error.status, error.error_code, error.param) == (400, "invalid_json", None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 1}, "model"),
        ({"model": ["tiny"]}, "model"),
        ({"stream": 1}, "stream"),
        ({"stream": "true"}, "stream"),
        ({"messages": None}, "messages"),
        ({"messages": "Hi."}, "messages"),
        ({"messages": {}}, "messages"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    error = refusal(json.dumps(CHAT | fields).encode())
    assert (error.param, error.error_code) == (param, None)
    assert f"'{param}'" in error.message


@pytest.mark.parametrize("prompt", [None, 1, {}, True])
def test_a_wrong_prompt_is_named(prompt: Any) -> None:
    assert refusal(json.dumps({"model": "tiny", "prompt": prompt}).encode(), COMPLETIONS).param == "prompt"


def test_a_refusal_repeats_nothing_of_the_prompt() -> None:
    assert "secret" not in refusal(b'{"model": "tiny", "messages": "my secret"}').message
    assert "secret" not in refusal(b'{"model": "tiny", "messages": ["my secret"').message


# What another engine may get, too


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "mcp"}]},
        {"tools": [{"type": "function"}, {"type": "code_interpreter"}]},
        {"tools": [{"type": ["function"]}]},
        {"tools": ["web_search"]},
        {"store": True},
        {"previous_response_id": "r"},
        {"background": True},
        {"web_search_options": {"search_context_size": "low"}},
    ],
)
def test_what_keeps_state_or_runs_tools_at_the_engine_is_not_repeatable(fields: dict[str, Any]) -> None:
    ctx = context(b"{}")
    ctx.document = fields
    assert not is_repeatable(ctx)


@pytest.mark.parametrize(
    "fields",
    [{}, {"tools": None}, {"tools": []}, {"tools": [{"name": "f"}, {"type": "custom"}]}, {"store": False}, {"background": None}],
)
def test_all_else_is_repeatable(fields: dict[str, Any]) -> None:
    ctx = context(b"{}")
    ctx.document = fields
    assert is_repeatable(ctx)


def test_bodies_of_many_shapes_are_read_alike_and_not_all_remembered() -> None:
    for number in range(3000):
        ctx = context(json.dumps(CHAT | {f"field_{number}": 1, "priority": 1}).encode())
        understand(ctx, LIMITS)
        assert ctx.notable == {"priority"}
    assert len(body._shapes) <= 1024

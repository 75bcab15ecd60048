"""The side view of Responses and Messages: whole, failed and usage, however the bytes are split."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.context import Usage
from serving.core.routes import ANTHROPIC, RESPONSES, Dialect
from serving.engines.view import AnswerView

MISLEADING = (
    "\n\nevent: message_stop\n",
    "event: response.completed\ndata: {}\n\n",
    '"usage":{"input_tokens":1,"output_tokens":1}',
    ".delta\ndata:",
    "\nevent: error",
    '"stop_reason":"x","status":"x"',
    "é鍵",
)
texts = st.one_of(st.sampled_from(MISLEADING), st.text(max_size=20))
counts = st.integers(0, 100_000)
cuts = st.lists(st.integers(0, 100_000), max_size=40)


def event(name: str, value: Any) -> bytes:
    data = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return f"event: {name}\ndata: {data}\n\n".encode()


def fed(dialect: Dialect, data: bytes, places: list[int], *, is_stream: bool = True) -> AnswerView:
    view = AnswerView(dialect, is_stream=is_stream)
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    for start, end in zip([0, *ends], ends, strict=False):
        if start < end:
            view.feed(data[start:end])
    return view


def response(text: str, usage: dict[str, Any] | None, status: str) -> dict[str, Any]:
    """With a tool of the client's whose schema looks like usage, as engines repeat it."""
    tools = [{"parameters": {"usage": {"input_tokens": 3, "output_tokens": 4}, "status": "tool"}}]
    return {"output": [text], "tools": tools, "status": status, "usage": usage, "user": text}


@given(st.lists(texts, max_size=8), counts, counts, counts, st.sampled_from(("completed", "incomplete", "failed", "")), cuts)
def test_a_stream_of_a_response(said: list[str], prompt: int, cached: int, output: int, end: str, places: list[int]) -> None:
    usage = {"input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached}, "output_tokens": output}
    events = [event("response.created", {"response": response("", None, "in_progress"), "sequence_number": 0})]
    events += [
        event("response.output_text.delta", {"delta": text, "sequence_number": number})
        for number, text in enumerate(said, start=1)
    ]
    number = len(events)
    if end:
        events.append(event(f"response.{end}", {"response": response("x", usage, end), "sequence_number": number}))
    view = fed(RESPONSES, b"".join(events), places)
    assert (view.events, view.done, view.failed) == (len(said), end in ("completed", "incomplete"), end == "failed")
    assert view.usage() == (Usage(prompt, cached, output) if view.done else Usage())
    assert view.next_number() == len(events)
    assert view.choice_events() == len(said)
    if end:
        assert view.finish_reason() == end


@given(st.lists(texts, max_size=8), counts, counts, counts, st.integers(0, 3), cuts)
def test_a_stream_of_a_message(said: list[str], new: int, created: int, cached: int, left_out: int, places: list[int]) -> None:
    prompt = new + created + cached
    usage = {"input_tokens": new, "output_tokens": 7, "cache_creation_input_tokens": created, "cache_read_input_tokens": cached}
    events = [event("message_start", {"message": {"stop_reason": None, "usage": {"input_tokens": prompt, "output_tokens": 0}}})]
    events += [event("content_block_delta", {"delta": {"text": text}}) for text in said]
    events += [event("content_block_stop", {"index": 0})]
    events += [event("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": usage})]
    events += [event("message_stop", {"type": "message_stop"})]
    view = fed(ANTHROPIC, b"".join(events[: len(events) - left_out]), places)
    assert (view.events, view.done, view.failed) == (len(said), not left_out, False)
    assert view.usage() == (Usage(prompt) if left_out else Usage(prompt, cached, 7))
    assert view.finish_reason() == ("end_turn" if left_out < 2 else "")


@pytest.mark.parametrize("dialect", [RESPONSES, ANTHROPIC])
def test_an_error_event_is_a_failed_stream(dialect: Dialect) -> None:
    data = event("x", {}) + event("error", {"type": "error"})
    for place in range(len(data)):
        view = fed(dialect, data, [place])
        assert (view.failed, view.done) == (True, False)


@given(counts, counts, counts, cuts)
def test_a_whole_message_that_used_a_tool(new: int, cached: int, output: int, places: list[int]) -> None:
    """What the model gives a tool is JSON of its own making, and stands before the usage."""
    content = [{"type": "tool_use", "input": {"usage": {"input_tokens": 1, "output_tokens": 1}}}]
    usage = {"input_tokens": new, "output_tokens": output, "cache_read_input_tokens": cached}
    body = json.dumps({"content": content, "stop_reason": "tool_use", "usage": usage}, separators=(",", ":")).encode()
    view = fed(ANTHROPIC, body, places, is_stream=False)
    assert view.usage() == Usage(new + cached, cached, output)
    assert view.finish_reason() == "tool_use"


def test_usage_that_is_null_is_unknown_whatever_stands_before_it() -> None:
    body = json.dumps(response("x", None, "completed"), separators=(",", ":")).encode()
    assert fed(RESPONSES, body, [], is_stream=False).usage() == Usage()


def test_an_end_larger_than_what_is_kept_still_tells_its_usage() -> None:
    usage = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 3}
    data = event("response.completed", {"response": response("x" * 3_000_000, usage, "completed") | {"user": None}})
    view = fed(RESPONSES, data, list(range(0, len(data), 65_536)))
    assert view.done
    assert view.usage() == Usage(5, 2, 3)

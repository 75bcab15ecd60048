"""The generating routes with a small body for each, and what an error looks like on each."""

from __future__ import annotations

from typing import Any

from tests.doubles.raw_client import RawResponse

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
TURNS = [{"role": "user", "content": "Say something."}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": TURNS, "max_tokens": 5},
    COMPLETIONS: {"model": "tiny", "prompt": "Say something.", "max_tokens": 5},
    RESPONSES: {"model": "tiny", "input": "Say something.", "max_output_tokens": 5},
    MESSAGES: {"model": "tiny", "messages": TURNS, "max_tokens": 5},
}
GENERATING = tuple(BODIES)
DONE = {
    CHAT: b"data: [DONE]",
    COMPLETIONS: b"data: [DONE]",
    RESPONSES: b"event: response.completed",
    MESSAGES: b"event: message_stop",
}
"""How the last event of a whole stream begins."""


def asking(path: str, **fields: Any) -> dict[str, Any]:
    """A small request for the route; `max_tokens` stands for whatever the route calls it."""
    if path == RESPONSES and "max_tokens" in fields:
        fields["max_output_tokens"] = fields.pop("max_tokens")
    return BODIES[path] | fields


def assert_error(response: RawResponse, path: str = CHAT) -> dict[str, Any]:
    """The body is the route's own error object and nothing else. Returns what stands in it."""
    assert response.end == "complete"
    assert response.header("content-type") == "application/json"
    shown: dict[str, Any] = response.json
    if path.startswith(MESSAGES):
        assert (set(shown), shown["type"]) == ({"type", "error", "request_id"}, "error")
        assert set(shown["error"]) == {"type", "message"}
    else:
        assert set(shown) == {"error"}
        assert set(shown["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = shown["error"]
    assert error["message"] and isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    return error


def is_whole(response: RawResponse, path: str) -> bool:
    """Whether a stream came to its regular end."""
    return bool(response.events) and response.events[-1].startswith(DONE[path])

"""What vLLM 0.32 answers when its model calls the tool `weather`: no tiny model does that, so the answers are canned."""

from __future__ import annotations

from typing import Any

from tests.doubles.script import Script
from tests.doubles.vllm_answers import sse
from tests.doubles.vllm_errors import dump
from tests.doubles.vllm_surfaces import event

CALL_ID = "chatcmpl-tool-bc4eec719c2b71e5"
ARGUMENT_PIECES = ('{"city": ', '"Paris"', "}")
PROMPT_TOKENS, OUTPUT_TOKENS = 60, 14
_CHAT: dict[str, Any] = {"id": "chatcmpl-77c346133654d956", "created": 1796046869, "model": "tiny"}
_CHAT_USAGE = {
    "prompt_tokens": PROMPT_TOKENS,
    "total_tokens": PROMPT_TOKENS + OUTPUT_TOKENS,
    "completion_tokens": OUTPUT_TOKENS,
    "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 0, "multimodal_tokens": None},
}
_MESSAGE: dict[str, Any] = {"id": "chatcmpl-938a2284631edd07", "type": "message", "role": "assistant", "model": "tiny"}
_MESSAGE_USAGE = {
    "input_tokens": PROMPT_TOKENS,
    "output_tokens": OUTPUT_TOKENS,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
}


def chat() -> Script:
    call = {"id": CALL_ID, "type": "function", "function": {"name": "weather", "arguments": "".join(ARGUMENT_PIECES)}}
    nothing = dict.fromkeys(("content", "refusal", "annotations", "audio", "function_call", "reasoning"))
    message = {"role": "assistant", **nothing, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls", "stop_reason": None}
    return Script(body=dump({**_CHAT, "object": "chat.completion", "choices": [choice], "usage": _CHAT_USAGE}))


def streamed_chat() -> Script:
    """With the usage that the gateway asks for."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse({**_CHAT, "object": "chat.completion.chunk", "choices": [choice]})

    def piece(**call: Any) -> bytes:
        return chunk({"content": None, "tool_calls": [{**call, "index": 0}]})

    events = [
        chunk({"role": "assistant", "content": ""}),
        piece(id=CALL_ID, type="function", function={"name": "weather"}),
        *(piece(function={"arguments": arguments}) for arguments in ARGUMENT_PIECES),
        chunk({"content": ""}, "tool_calls"),
        sse({**_CHAT, "object": "chat.completion.chunk", "choices": [], "usage": _CHAT_USAGE}),
        b"data: [DONE]\n\n",
    ]
    return Script(raw=[(0.0, data) for data in events], raw_is="body")


def message() -> Script:
    block = {"type": "tool_use", "id": CALL_ID, "name": "weather", "input": {"city": "Paris"}}
    return Script(body=dump({**_MESSAGE, "content": [block], "stop_reason": "tool_use", "usage": _MESSAGE_USAGE}))


def streamed_message() -> Script:
    def named(name: str, **fields: Any) -> bytes:
        return event(name, {"type": name, **fields})

    begun = {**_MESSAGE, "content": [], "stop_reason": None, "stop_sequence": None}
    block = {"type": "tool_use", "id": CALL_ID, "name": "weather", "input": {}}
    events = [
        named("message_start", message=begun | {"usage": {"input_tokens": PROMPT_TOKENS, "output_tokens": 0}}),
        named("content_block_start", content_block=block, index=0),
        *(
            named("content_block_delta", delta={"type": "input_json_delta", "partial_json": arguments}, index=0)
            for arguments in ARGUMENT_PIECES
        ),
        named("content_block_stop", index=0),
        named("message_delta", delta={"stop_reason": "tool_use", "stop_sequence": None}, usage=_MESSAGE_USAGE),
        named("message_stop"),
    ]
    return Script(raw=[(0.0, data) for data in events], raw_is="body")

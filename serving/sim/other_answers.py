"""The answers of vLLM 0.32 on Responses and Messages, which it serves through its chat."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from serving.sim.answers import Answer, sse
from serving.sim.errors import Body, dump


def named(name: str, value: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\n" + sse(value)


class ResponsesAnswer(Answer):
    """`/v1/responses`. The id is always the engine's own."""

    _sequence_number = 0

    def whole(self) -> bytes:
        return dump(self._response(self._item("completed"), usage=self._usage()))

    def early(self) -> Iterable[bytes]:
        begun = {"response": self._response(None, usage=None)}
        return (self._event("response.created", begun), self._event("response.in_progress", begun))

    def opening(self) -> Iterator[bytes]:
        yield self._event("response.output_item.added", {"item": self._item(None), **_FIRST})
        yield self._event("response.content_part.added", {**self._part, "part": _text_part("", [])})

    def tokens(self, index: int, count: int) -> bytes:
        choice = self.choices[index]
        text = choice.words.text(choice.told_tokens, choice.told_tokens + count)
        choice.told_tokens += count
        delta = {"content_index": 0, "delta": text, "item_id": self._item_id, "logprobs": [], **_FIRST}
        return self._event("response.output_text.delta", delta)

    def closing(self) -> Iterator[bytes]:
        text = self.choices[0].text
        yield self._event("response.output_text.done", {**self._part, "logprobs": [], "text": text})
        yield self._event("response.content_part.done", {**self._part, "part": _text_part(text, None)})
        yield self._event("response.output_item.done", {"item": self._item("completed"), **_FIRST})
        ended = {"response": self._response(self._item("completed"), usage=self._usage())}
        yield self._event("response.completed", ended)

    def failure(self, error: Body) -> Iterator[bytes]:
        """Nothing: the connection just ends."""
        yield from ()

    def _event(self, name: str, value: Mapping[str, Any]) -> bytes:
        data = named(name, {**value, "sequence_number": self._sequence_number, "type": name})
        self._sequence_number += 1
        return data

    def _usage(self) -> Body:
        cached = {"cached_tokens": self.cached_tokens, "cache_write_tokens": self.created_cache_tokens}
        none: Body = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
        spent = {"reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": [], "tool_output_tokens_per_turn": []}
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": cached | none,
            "output_tokens": self.completion_tokens,
            "output_tokens_details": spent,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    @property
    def _part(self) -> Body:
        return {"content_index": 0, "item_id": self._item_id, **_FIRST}

    def _item(self, status: str | None) -> Body:
        content = [_text_part(self.choices[0].text, None)] if status else []
        about = {"role": "assistant", "status": status or "in_progress", "type": "message", "phase": None}
        return {"id": self._item_id, "content": content, **about}

    @cached_property
    def _item_id(self) -> str:
        return f"msg_{uuid.uuid4().hex[:16]}"

    @cached_property
    def _response_id(self) -> str:
        return f"resp_{uuid.uuid4().hex[:16]}"

    def _response(self, item: Body | None, *, usage: Body | None) -> Body:
        is_cut = item is not None and self.choices[0].finish == "length"
        status = "in_progress" if item is None else "incomplete" if is_cut else "completed"
        asked = self.body
        return {
            "id": self._response_id,
            "created_at": self.base["created"],
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": asked.get("instructions"),
            "metadata": asked.get("metadata"),
            "model": self.base["model"],
            "object": "response",
            "output": [item] if item else [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto" if asked.get("tools") else "none",
            "tools": asked.get("tools") or [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self.choices[0].sequence.limit_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": usage,
            "user": asked.get("user"),
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            **dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages")),
        }


_FIRST = {"output_index": 0}


def _text_part(text: str, logprobs: list[Any] | None) -> Body:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


class MessagesAnswer(Answer):
    """`/v1/messages`: the chat's own id, and usage that leaves the cached and the newly cached tokens out of the input."""

    def whole(self) -> bytes:
        content = [{"type": "text", "text": self.choices[0].text}]
        return dump(self._message(content) | {"stop_reason": self._stop_reason, "usage": self._usage()})

    def opening(self) -> Iterator[bytes]:
        begun = self._message([]) | {"stop_reason": None, "stop_sequence": None}
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": 0}
        yield self._event("message_start", {"message": begun | {"usage": usage}})
        yield self._event("content_block_start", {"content_block": {"type": "text", "text": ""}, "index": 0})

    def tokens(self, index: int, count: int) -> bytes:
        choice = self.choices[index]
        text = choice.words.text(choice.told_tokens, choice.told_tokens + count)
        choice.told_tokens += count
        return self._event("content_block_delta", {"delta": {"type": "text_delta", "text": text}, "index": 0})

    def closing(self) -> Iterator[bytes]:
        yield self._event("content_block_stop", {"index": 0})
        stop = {"stop_reason": self._stop_reason, "stop_sequence": None}
        yield self._event("message_delta", {"delta": stop, "usage": self._usage()})
        yield self._event("message_stop", {})

    def failure(self, error: Body) -> Iterator[bytes]:
        shown = {"type": "internal_error", "message": str(error["error"]["message"])}
        yield named("error", {"type": "error", "error": shown})

    @staticmethod
    def _event(name: str, value: Mapping[str, Any]) -> bytes:
        return named(name, {"type": name, **value})

    @property
    def _stop_reason(self) -> str:
        return "max_tokens" if self.choices[0].finish == "length" else "end_turn"

    def _message(self, content: list[Body]) -> Body:
        about = {"id": self.base["id"], "type": "message", "role": "assistant"}
        return {**about, "content": content, "model": self.base["model"]}

    def _usage(self) -> Body:
        if not self.with_details:
            return {"input_tokens": self.prompt_tokens, "output_tokens": self.completion_tokens}
        created = min(self.created_cache_tokens, self.prompt_tokens - self.cached_tokens)
        return {
            "input_tokens": self.prompt_tokens - self.cached_tokens - created,
            "output_tokens": self.completion_tokens,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": self.cached_tokens,
        }


def counted(prompt_tokens: int) -> bytes:
    """The answer of `/v1/messages/count_tokens`."""
    return dump({"input_tokens": prompt_tokens, "context_management": {"original_input_tokens": prompt_tokens}})

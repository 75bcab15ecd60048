"""The other text routes of vLLM 0.32 (Responses, Messages, counting tokens), which it serves through its chat."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.doubles.vllm_answers import Answer, Event, sse
from tests.doubles.vllm_audio import TRANSCRIPTIONS, TRANSLATIONS, TranscriptionAnswer, TranslationAnswer
from tests.doubles.vllm_errors import VllmError, check, dump, invalid

Body = dict[str, Any]

RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"


@dataclass(frozen=True)
class Surface:
    """One route: what it makes of a body, and how it answers."""

    is_chat: bool
    chat_of: Callable[[Body], Body] = lambda body: body
    """The request to the chat that it becomes."""
    answer: type[Answer] = Answer
    limit_name: str = "max_tokens"
    generates: bool = True
    form: bool = False
    task: str = "generate"

    def read(self, body: Body, models: list[str], max_model_len: int) -> Body:
        """Raises: VllmError, for what vLLM refuses before it looks at the prompt's length."""
        chat = self.chat_of(body)
        check(chat, is_chat=self.is_chat, models=models, max_model_len=max_model_len, limit_name=self.limit_name)
        return chat


def event(name: str, value: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\n" + sse(value)


def stream_error(path: str, error: Mapping[str, Any]) -> tuple[bytes, ...]:
    """What a stream says of a fault of the engine; nothing on Responses, where the connection just ends."""
    if path == RESPONSES:
        return ()
    if path == MESSAGES:
        shown = {"type": "internal_error", "message": str(error["error"]["message"])}
        return (event("error", {"type": "error", "error": shown}),)
    return (sse(error), b"data: [DONE]\n\n")


def _responses_chat(body: Body) -> Body:
    given = body.get("input")
    if given is None:
        raise invalid("missing", "body.input", "Field required", f"<dict of {len(body) + 1} items>")
    if not isinstance(given, str | list):
        raise invalid("string_type", "body.input", "Input should be a valid string", str(given))
    if body.get("previous_response_id") is not None:
        message = f"Response with id '{body['previous_response_id']}' not found."
        raise VllmError(404, message, type_="invalid_request_error", param="response_id")
    turns = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if body.get("instructions"):
        turns = [{"role": "system", "content": body["instructions"]}, *turns]
    repeated = {name: body.get(name) for name in ("instructions", "metadata", "tools", "user")}
    return {**_shared(body), **repeated, "messages": turns, "max_tokens": body.get("max_output_tokens")}


def _messages_chat(body: Body) -> Body:
    if body.get("max_tokens") is None:
        raise invalid("missing", "body.max_tokens", "Field required", f"<dict of {len(body)} items>")
    if body.get("cache_salt") == "":
        raise invalid("string_too_short", "body.cache_salt", "String should have at least 1 character", "")
    return {**_counted_chat(body), "max_completion_tokens": body["max_tokens"]}


def _counted_chat(body: Body) -> Body:
    if "messages" not in body:
        raise invalid("missing", "body.messages", "Field required", f"<dict of {len(body)} items>")
    if not isinstance(body["messages"], list):
        raise invalid("list_type", "body.messages", "Input should be a valid list", str(body["messages"]))
    turns = body["messages"]
    if body.get("system"):
        turns = [{"role": "system", "content": body["system"]}, *turns]
    return {**_shared(body), "messages": turns}


def _shared(body: Body) -> Body:
    return {name: body[name] for name in ("model", "stream", "cache_salt") if name in body}


class ResponsesAnswer(Answer):
    """`/v1/responses`. The id is always the engine's own."""

    early_events = 2

    def whole(self) -> bytes:
        return dump(self._response(self._item("completed"), usage=self._usage()))

    def events(self) -> Iterator[Event]:
        number = 0

        def numbered(name: str, value: Mapping[str, Any], *marks: str, token_number: int = 0) -> Event:
            nonlocal number
            data = event(name, {**value, "sequence_number": number, "type": name})
            number += 1
            return Event(data, marks, token_number=token_number)

        text = "".join(self.tokens)
        item_id = self._item_id
        begun = {"response": self._response(None, usage=None)}
        yield numbered("response.created", begun, "created")
        yield numbered("response.in_progress", begun)
        place = {"output_index": 0}
        yield numbered("response.output_item.added", {"item": self._item(None), **place})
        part = {"content_index": 0, "item_id": item_id, **place}
        yield numbered("response.content_part.added", {**part, "part": _text_part("", [])})
        for sent, token in enumerate(self.tokens, start=1):
            marks = [f"token:{sent}", *["first_token"][: sent == 1], *["last_token"][: sent == len(self.tokens)]]
            delta = {"content_index": 0, "delta": token, "item_id": item_id, "logprobs": [], **place}
            yield numbered("response.output_text.delta", delta, *marks, token_number=sent)
        yield numbered("response.output_text.done", {**part, "logprobs": [], "text": text})
        yield numbered("response.content_part.done", {**part, "part": _text_part(text, None)})
        yield numbered("response.output_item.done", {"item": self._item("completed"), **place})
        ended = {"response": self._response(self._item("completed"), usage=self._usage())}
        yield numbered("response.completed", ended, "usage", "done_event")

    def _usage(self) -> Body:
        usage = self.usage
        cached = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": self.created_cache_tokens}
        none: Body = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
        spent = {"reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": [], "tool_output_tokens_per_turn": []}
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": cached | none,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": spent,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def _item(self, status: str | None) -> Body:
        content = [_text_part("".join(self.tokens), None)] if status else []
        shown = {"role": "assistant", "status": status or "in_progress", "type": "message", "phase": None}
        return {"id": self._item_id, "content": content, **shown}

    @cached_property
    def _item_id(self) -> str:
        return f"msg_{uuid.uuid4().hex[:16]}"

    @cached_property
    def _response_id(self) -> str:
        return f"resp_{uuid.uuid4().hex[:16]}"

    def _response(self, item: Body | None, *, usage: Body | None) -> Body:
        is_cut = item is not None and self.finish == "length"
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
            "max_output_tokens": len(self.tokens),
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


def _text_part(text: str, logprobs: list[Any] | None) -> Body:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


class MessagesAnswer(Answer):
    """`/v1/messages`: the chat's own id, and usage that leaves the cached and the newly cached tokens out of the input."""

    def whole(self) -> bytes:
        content = [{"type": "text", "text": "".join(self.tokens)}]
        return dump(self._message(content) | {"stop_reason": self._stop_reason, "usage": self._usage()})

    def events(self) -> Iterator[Event]:
        begun = self._message([]) | {"stop_reason": None, "stop_sequence": None}
        usage = {"input_tokens": self.usage.prompt_tokens, "output_tokens": 0}
        yield self._event("message_start", {"message": begun | {"usage": usage}}, "role")
        if self.tokens:
            yield self._event("content_block_start", {"content_block": {"type": "text", "text": ""}, "index": 0})
        for sent, token in enumerate(self.tokens, start=1):
            marks = [f"token:{sent}", *["first_token"][: sent == 1], *["last_token"][: sent == len(self.tokens)]]
            delta = {"delta": {"type": "text_delta", "text": token}, "index": 0}
            yield self._event("content_block_delta", delta, *marks, token_number=sent)
        if self.tokens:
            yield self._event("content_block_stop", {"index": 0})
        stop = {"stop_reason": self._stop_reason, "stop_sequence": None}
        yield self._event("message_delta", {"delta": stop, "usage": self._usage()}, "usage")
        yield self._event("message_stop", {}, "done_event")

    @staticmethod
    def _event(name: str, value: Mapping[str, Any], *marks: str, token_number: int = 0) -> Event:
        return Event(event(name, {"type": name, **value}), marks, token_number=token_number)

    @property
    def _stop_reason(self) -> str:
        return "max_tokens" if self.finish == "length" else "end_turn"

    def _message(self, content: list[Body]) -> Body:
        about = {"id": self.base["id"], "type": "message", "role": "assistant"}
        return {**about, "content": content, "model": self.base["model"]}

    def _usage(self) -> Body:
        usage = self.usage
        if not self.with_details:
            return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        created = min(self.created_cache_tokens, usage.prompt_tokens - usage.cached_tokens)
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens - created,
            "output_tokens": usage.completion_tokens,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": usage.cached_tokens,
        }


def counted(prompt_tokens: int) -> bytes:
    """The answer of `/v1/messages/count_tokens`."""
    return dump({"input_tokens": prompt_tokens, "context_management": {"original_input_tokens": prompt_tokens}})


SURFACES = {
    "/v1/chat/completions": Surface(is_chat=True),
    "/v1/completions": Surface(is_chat=False),
    RESPONSES: Surface(is_chat=True, chat_of=_responses_chat, answer=ResponsesAnswer, limit_name="max_output_tokens"),
    MESSAGES: Surface(is_chat=True, chat_of=_messages_chat, answer=MessagesAnswer, limit_name="max_completion_tokens"),
    COUNT_TOKENS: Surface(is_chat=True, chat_of=_counted_chat, generates=False),
    TRANSCRIPTIONS: Surface(is_chat=False, answer=TranscriptionAnswer, form=True, task="transcription"),
    TRANSLATIONS: Surface(is_chat=False, answer=TranslationAnswer, form=True, task="transcription"),
}

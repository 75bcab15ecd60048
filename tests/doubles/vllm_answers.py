"""The answers of vLLM 0.32 to chat completions and completions, field by field as a real engine sends them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.doubles.script import Script, Usage
from tests.doubles.vllm_errors import asked_tokens, dump

DEFAULT_TOKENS = 16


@dataclass(frozen=True)
class Event:
    """One SSE event (without HTTP framing) and what it means."""

    data: bytes
    marks: tuple[str, ...]
    token_number: int = 0
    """Which content token it carries, counted over all choices from 1."""


def sse(value: Any) -> bytes:
    return b"data: " + dump(value) + b"\n\n"


def prompts_of(body: Mapping[str, Any], is_chat: bool) -> list[bytes]:
    """The prompts as the tiny model's template and byte tokenizer see them: one byte a token."""
    if is_chat:
        lines = [f"{message.get('role')}: {_content(message.get('content'))}\n" for message in body["messages"]]
        return [b"\0" + "".join(lines).encode() + b"assistant: "]  # one begin token, as the template writes it
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return [prompt.encode()]
    if isinstance(prompt[0], int):
        return [bytes(token & 0xFF for token in prompt)]
    return [item.encode() if isinstance(item, str) else bytes(token & 0xFF for token in item) for item in prompt]


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content or ""


class Answer:
    """One generation: its tokens, its usage, and both forms of the reply."""

    early_events = 0
    """Events of a stream that do not wait for the model."""
    whole_tells_tokens = True
    """Whether an answer that is no stream tells its usage in tokens."""

    def __init__(
        self,
        body: Mapping[str, Any],
        script: Script,
        *,
        is_chat: bool,
        model: str,
        request_id: str | None,
        fingerprint: str,
        prompt_tokens: int,
        room_tokens: int,
        cached_tokens: int,
        created_cache_tokens: int,
        with_details: bool,
    ) -> None:
        self.is_chat = is_chat
        self.body = body
        self.base = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{request_id or uuid.uuid4().hex[:16]}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._fingerprint = fingerprint
        prompts = 1 if is_chat else len(prompts_of(body, is_chat))
        self.choices = prompts * int(body.get("n") or 1)
        asked = asked_tokens(body)
        limit = min(DEFAULT_TOKENS if asked is None else asked, room_tokens)
        count = script.chunks if script.chunks is not None else limit
        self.tokens = script.text or tuple(f"t{index} " for index in range(count))
        self.finish = script.finish_reason or ("length" if asked is not None and len(self.tokens) >= limit else "stop")
        self.usage = script.usage or Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=len(self.tokens) * self.choices,
            cached_tokens=cached_tokens,
        )
        self.created_cache_tokens = created_cache_tokens
        self.with_details = with_details
        options = body.get("stream_options") or {}
        self._include_usage = bool(options.get("include_usage"))
        self._continuous_usage = self._include_usage and bool(options.get("continuous_usage_stats"))

    def whole(self) -> bytes:
        """The body of an answer that is not a stream."""
        choices = [self._whole_choice(index) for index in range(self.choices)]
        details = {**(self._details(whole=True) or {}), "multimodal_tokens": None} if self.with_details else None
        usage = {**self._counts(self.usage.completion_tokens), "prompt_tokens_details": details}
        answer: dict[str, Any] = {
            **self.base,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": {**usage, "completion_tokens_details": None},
        }
        if self.is_chat:
            answer |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        return dump(answer | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None})

    def events(self) -> Iterator[Event]:
        """The events of a stream; the chat's role chunk carries no token."""
        if self.is_chat:
            for index in range(self.choices):
                yield Event(sse(self._chunk(self._role_choice(index), 0, _NO_PROMPT)), ("role",))
        sent = 0
        for number, text in enumerate(self.tokens, start=1):
            for index in range(self.choices):
                sent += 1
                is_last = number == len(self.tokens)
                chunk = self._chunk(self._token_choice(index, text, is_last), sent)
                if is_last and not self._include_usage:
                    chunk["system_fingerprint"] = self._fingerprint
                first = ("first_token",) if sent == 1 else ()
                last = ("last_token",) if is_last and index == self.choices - 1 else ()
                yield Event(sse(chunk), (f"token:{sent}", *first, *last), token_number=sent)
        if self._include_usage:
            usage = self._counts(self.usage.completion_tokens)
            if self.with_details:
                usage["prompt_tokens_details"] = self._details(whole=False)
            closing = {**self._head(), "choices": [], "usage": usage, "system_fingerprint": self._fingerprint}
            yield Event(sse(closing), ("usage",))
        yield Event(b"data: [DONE]\n\n", ("done_event",))

    def _head(self) -> dict[str, Any]:
        return {**self.base, "object": "chat.completion.chunk"} if self.is_chat else dict(self.base)

    def _counts(self, completion_tokens: int) -> dict[str, Any]:
        prompt_tokens = self.usage.prompt_tokens
        total_tokens = prompt_tokens + completion_tokens
        return {"prompt_tokens": prompt_tokens, "total_tokens": total_tokens, "completion_tokens": completion_tokens}

    def _details(self, *, whole: bool) -> dict[str, Any]:
        details: dict[str, Any] = {"cached_tokens": self.usage.cached_tokens}
        if self.is_chat:
            details["created_cache_tokens"] = self.created_cache_tokens
        elif whole:
            details["created_cache_tokens"] = None
        return details

    def _chunk(self, choice: Mapping[str, Any], sent: int, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self._head(), "choices": [choice]}
        if self._continuous_usage:
            done = sent == len(self.tokens) * self.choices
            chunk["usage"] = self._counts(self.usage.completion_tokens if done else sent)
            if self.is_chat:
                chunk["usage"]["completion_tokens_details"] = None
        return chunk | dict(more or {})

    def _role_choice(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _token_choice(self, index: int, text: str, is_last: bool) -> dict[str, Any]:
        finish = self.finish if is_last else None
        if not self.is_chat:
            choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
            return choice | {"prompt_token_ids": None, "token_ids": None}
        choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
        return choice | ({"stop_reason": None} if is_last else {}) | {"token_ids": None}

    def _whole_choice(self, index: int) -> dict[str, Any]:
        text = "".join(self.tokens)
        finish = {"logprobs": None, "finish_reason": self.finish, "stop_reason": None, "token_ids": None}
        if not self.is_chat:
            rest = {"prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
            return {"index": index, "text": text} | finish | rest
        message = {"role": "assistant", "content": text, **_EMPTY_MESSAGE}
        return {"index": index, "message": message} | finish | {"routed_experts": None}


_NO_PROMPT: Mapping[str, Any] = {"prompt_token_ids": None, "prompt_text": None}
_EMPTY_MESSAGE: Mapping[str, Any] = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))


def model_list(models: Mapping[str, int], root: str, max_model_len: int) -> bytes:
    """`/v1/models`; `models` maps each served name to the second since when it is served."""
    permission = {
        "id": "modelperm-0000000000000000",
        "object": "model_permission",
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    cards = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": root,
            "parent": None,
            "max_model_len": max_model_len,
            "permission": [{**permission, "created": created}],
        }
        for name, created in models.items()
    ]
    return dump({"object": "list", "data": cards})

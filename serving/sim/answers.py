"""The answers of vLLM 0.32 to chat completions and completions, field by field as a real engine sends them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from serving.sim.errors import Body, dump
from serving.sim.logprobs import chat_logprobs, completion_logprobs
from serving.sim.sequence import Finish, Sequence
from serving.sim.text import Words


@dataclass(slots=True)
class Choice:
    """One of the texts of an answer, as far as it has been told to the client."""

    sequence: Sequence
    words: Words
    told_tokens: int = 0

    @property
    def finish(self) -> Finish:
        return self.sequence.finish

    @property
    def text(self) -> str:
        return self.words.text(0, self.sequence.generated_tokens)


def sse(value: Any) -> bytes:
    return b"data: " + dump(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"


class Answer:
    """One request's answer in both forms: `whole`, or events at its opening, with its tokens and at its close."""

    def __init__(
        self,
        body: Mapping[str, Any],
        choices: list[Choice],
        *,
        is_chat: bool,
        model: str,
        request_id: str | None,
        fingerprint: str,
        with_details: bool,
    ) -> None:
        self.body = body
        self.choices = choices
        self.is_chat = is_chat
        self.base: Body = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{request_id or uuid.uuid4().hex[:16]}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self.fingerprint = fingerprint
        self.with_details = with_details
        options = body.get("stream_options") or {}
        self._include_usage = bool(options.get("include_usage"))
        self._continuous_usage = self._include_usage and bool(options.get("continuous_usage_stats"))

    # What has been counted

    @property
    def prompt_tokens(self) -> int:
        """`n` choices of one prompt count it once."""
        prompts = {id(choice.sequence.prompt): choice.sequence.prompt_tokens for choice in self.choices}
        return sum(prompts.values())

    @property
    def completion_tokens(self) -> int:
        return sum(choice.sequence.generated_tokens for choice in self.choices)

    @property
    def told_tokens(self) -> int:
        return sum(choice.told_tokens for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        return self._over_prompts("cached_tokens")

    @property
    def created_cache_tokens(self) -> int:
        return self._over_prompts("created_cache_tokens")

    def _over_prompts(self, name: str) -> int:
        first = {id(choice.sequence.prompt): choice.sequence for choice in reversed(self.choices)}
        return sum(getattr(sequence, name) or 0 for sequence in first.values())

    # Not a stream

    def whole(self) -> bytes:
        """The body of an answer that is not a stream."""
        details = {**self._details(whole=True), "multimodal_tokens": None} if self.with_details else None
        usage = {**self._counts(self.completion_tokens), "prompt_tokens_details": details, "completion_tokens_details": None}
        answer: Body = {
            **self.base,
            "choices": [self._whole_choice(index, choice) for index, choice in enumerate(self.choices)],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": usage,
        }
        if self.is_chat:
            answer |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        return dump(answer | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None})

    # A stream

    def early(self) -> Iterable[bytes]:
        """Events that do not wait for the model."""
        return ()

    def opening(self) -> Iterator[bytes]:
        """Events right before the first token."""
        if self.is_chat:
            for index in range(len(self.choices)):
                delta = {"role": "assistant", "content": ""}
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                yield sse(self._chunk(choice, is_last=False) | _NO_PROMPT)

    def tokens(self, index: int, count: int) -> bytes:
        """The event with the next `count` tokens of a choice."""
        choice = self.choices[index]
        start = choice.told_tokens
        text = choice.words.text(start, start + count)
        choice.told_tokens += count
        is_last = choice.told_tokens >= choice.sequence.answer_tokens
        all_told = all(other.told_tokens >= other.sequence.answer_tokens for other in self.choices)
        told = self._token_choice(index, text, choice.finish if is_last else None)
        told["logprobs"] = self._logprobs(choice, start, start + count)
        chunk = self._chunk(told, is_last=all_told)
        if is_last and not self._include_usage:
            chunk["system_fingerprint"] = self.fingerprint
        return sse(chunk)

    def closing(self) -> Iterator[bytes]:
        """Events behind the last token."""
        if self._include_usage:
            usage = self._counts(self.completion_tokens)
            if self.with_details:
                usage["prompt_tokens_details"] = self._details(whole=False)
            yield sse({**self._head(), "choices": [], "usage": usage, "system_fingerprint": self.fingerprint})
        yield DONE

    def failure(self, error: Body) -> Iterator[bytes]:
        """What a stream says of a fault of the engine; vLLM writes it with spaces, unlike all else."""
        yield b"data: " + json.dumps(error).encode() + b"\n\n"
        yield DONE

    def _head(self) -> Body:
        return {**self.base, "object": "chat.completion.chunk"} if self.is_chat else dict(self.base)

    def _counts(self, completion_tokens: int) -> Body:
        total_tokens = self.prompt_tokens + completion_tokens
        return {"prompt_tokens": self.prompt_tokens, "total_tokens": total_tokens, "completion_tokens": completion_tokens}

    def _details(self, *, whole: bool) -> Body:
        details: Body = {"cached_tokens": self.cached_tokens}
        if self.is_chat:
            details["created_cache_tokens"] = self.created_cache_tokens
        elif whole:
            details["created_cache_tokens"] = None
        return details

    def _chunk(self, choice: Body, *, is_last: bool) -> Body:
        chunk: Body = {**self._head(), "choices": [choice]}
        if self._continuous_usage:
            chunk["usage"] = self._counts(self.completion_tokens if is_last else self.told_tokens)
            if self.is_chat:
                chunk["usage"]["completion_tokens_details"] = None
        return chunk

    def _token_choice(self, index: int, text: str, finish: Finish | None) -> Body:
        if not self.is_chat:
            choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
            return choice | {"prompt_token_ids": None, "token_ids": None}
        choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
        return choice | ({"stop_reason": None} if finish else {}) | {"token_ids": None}

    def _whole_choice(self, index: int, choice: Choice) -> Body:
        logprobs = self._logprobs(choice, 0, choice.sequence.generated_tokens)
        finish = {"logprobs": logprobs, "finish_reason": choice.finish, "stop_reason": None, "token_ids": None}
        if not self.is_chat:
            rest = {"prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
            return {"index": index, "text": choice.text} | finish | rest
        message = {"role": "assistant", "content": choice.text, **_EMPTY_MESSAGE}
        return {"index": index, "message": message} | finish | {"routed_experts": None}

    def _logprobs(self, choice: Choice, start: int, end: int) -> Body | None:
        asked = self.body.get("logprobs")
        if asked is None or asked is False:
            return None
        tokens = [choice.words.text(number, number + 1) for number in range(start, end)]
        if self.is_chat:
            return chat_logprobs(tokens, int(self.body.get("top_logprobs") or 0))
        return completion_logprobs(tokens, int(asked), len(choice.words.text(0, start)))


_NO_PROMPT: Body = {"prompt_token_ids": None, "prompt_text": None}
_EMPTY_MESSAGE: Body = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))


def model_list(models: Iterable[tuple[str, str, str | None]], created: int, max_model_len: int) -> bytes:
    """`/v1/models`; each model is its name, its root and its parent."""
    permission = {
        "id": f"modelperm-{uuid.uuid4().hex[:16]}",
        "object": "model_permission",
        "created": created,
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
            "parent": parent,
            "max_model_len": max_model_len if parent is None else None,
            "permission": [permission],
        }
        for name, root, parent in models
    ]
    return dump({"object": "list", "data": cards})

"""What vLLM 0.32 says no to, and in which words (recorded from a real engine)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "Service Unavailable",
}


class VllmError(Exception):
    """An answer that is an error object; `code` repeats the status as an integer."""

    def __init__(self, status: int, message: str, *, type_: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_ or error_type(status)
        self.body = dump({"error": {"message": message, "type": self.type, "param": param, "code": status}})

    def body_on(self, path: str) -> bytes:
        """The routes of Anthropic's API have its envelope, but not for what is found wrong before they are reached."""
        if not path.startswith("/v1/messages") or self.type == "Bad Request":
            return self.body
        return dump({"type": "error", "error": {"type": self.type, "message": str(self)}})


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"


def error_type(status: int) -> str:
    return _TYPES.get(status) or phrase(status)


def invalid(kind: str, where: str, message: str, given: str) -> VllmError:
    problem = {"type": kind, "loc": where, "msg": message, "input": given}
    return VllmError(400, f"1 validation error:\n  {problem}", type_="Bad Request", param=where)


def read_body(content_type: str | None, body: bytes) -> dict[str, Any]:
    """The JSON object of a request."""
    if (content_type or "").partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise VllmError(400, message, type_="Bad Request")
    if not body:
        raise invalid("missing", "body", "Field required", "None")
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        raise invalid("json_invalid", f"body.{error.pos}", "JSON decode error", "<dict of 0 items>") from None
    except (UnicodeDecodeError, RecursionError):
        raise VllmError(400, "There was an error parsing the body", type_="Bad Request") from None
    if not isinstance(value, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise invalid("model_attributes_type", "body", message, shown(value))
    return value


def shown(value: Any) -> str:
    return f"<{type(value).__name__} of {len(value)} items>" if isinstance(value, list | dict) else str(value)


def _check_types(body: Mapping[str, Any], is_chat: bool) -> None:
    if "model" in body and not isinstance(body["model"], str | None):
        raise invalid("string_type", "body.model", "Input should be a valid string", shown(body["model"]))
    if is_chat and "messages" not in body:
        raise invalid("missing", "body.messages", "Field required", shown(body))
    if is_chat and not isinstance(body["messages"], list):
        raise invalid("list_type", "body.messages", "Input should be a valid list", shown(body["messages"]))
    for index, turn in enumerate(body["messages"] if is_chat else ()):
        if not isinstance(turn, dict):
            raise invalid("dict_type", f"body.messages.{index}", "Input should be a valid dictionary", shown(turn))
        content = turn.get("content")
        if not _is_content(content):
            raise invalid("string_type", f"body.messages.{index}.content", "Input should be a valid string", shown(content))
    if not is_chat and not isinstance(body.get("prompt"), str | list | None):
        raise invalid("list_type", "body.prompt", "Input should be a valid list", shown(body["prompt"]))
    if not is_chat and isinstance(body.get("prompt"), list) and not _is_prompts(body["prompt"]):
        raise invalid("int_type", "body.prompt.list[int].0", "Input should be a valid integer", shown(body["prompt"][0]))
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        if not isinstance(value, int | None) and not (isinstance(value, float) and value.is_integer()):
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise invalid("int_parsing", f"body.{name}", message, shown(value))


def _is_content(content: Any) -> bool:
    """Text, or parts of it."""
    return isinstance(content, str | None) or (isinstance(content, list) and all(isinstance(part, dict) for part in content))


def _is_prompts(prompt: list[Any]) -> bool:
    """Texts, tokens, or lists of tokens."""
    return any(
        all(map(is_one, prompt))
        for is_one in (lambda item: isinstance(item, str), lambda item: isinstance(item, int), _is_tokens)
    )


def _is_tokens(item: Any) -> bool:
    return isinstance(item, list) and all(isinstance(token, int) for token in item)


def check(
    body: Mapping[str, Any], *, is_chat: bool, models: Sequence[str], max_model_len: int, limit_name: str = "max_tokens"
) -> None:
    """Refuse what vLLM refuses before it looks at the prompt's length. `limit_name`: how it calls the limit of an answer."""
    _check_types(body, is_chat)
    if body.get("stream_options") is not None and not body.get("stream"):
        message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        raise VllmError(400, message, param="stream_options")
    if body.get("cache_salt") == "":
        message = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)"
        raise VllmError(400, message, param="cache_salt")
    if not is_chat and not body.get("prompt"):
        message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
        raise VllmError(400, message, param="prompt")
    model = body.get("model")
    if model is not None and model not in models:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(models)}."
        raise VllmError(404, message, param="model")
    if is_chat and not body["messages"]:
        raise VllmError(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
    limit = asked_tokens(body)
    if limit is not None:
        _check_at_least_one(limit)
    if limit is not None and limit > max_model_len:
        message = (
            f"{limit_name}={limit} cannot be greater than max_model_len={max_model_len}. "
            f"Please request fewer output tokens. (parameter={limit_name}, value={limit})"
        )
        raise VllmError(400, message, param=limit_name)


def _check_at_least_one(limit: int) -> None:
    if limit < 1:
        message = f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})"
        raise VllmError(400, message, param="max_tokens")


def room_tokens(prompt_tokens: int, max_model_len: int) -> int:
    """How many tokens the context has left for an answer, which vLLM cuts to that silently."""
    if prompt_tokens > max_model_len:
        at_least = max_model_len + 1  # vLLM stops counting there
        raise VllmError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least "
            f"{at_least} input tokens, which exceeds this limit even without any output tokens. Please reduce the length "
            f"of the input prompt. (parameter=input_tokens, value={at_least})",
            param="input_tokens",
        )
    room = max_model_len - prompt_tokens
    _check_at_least_one(room)
    return room


def asked_tokens(body: Mapping[str, Any]) -> int | None:
    limit = body.get("max_completion_tokens")
    if limit is None:
        limit = body.get("max_tokens")
    return None if limit is None else int(limit)

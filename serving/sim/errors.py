"""What vLLM 0.32 says no to, and in which words; the contract suite compares them with a real engine's."""

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
_SALT_CHARACTERS = 128

Body = dict[str, Any]

QUEUE_FULL = {
    "max_num_queued_reqs": (
        "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
    ),
    "max_num_queued_tokens": (
        "The engine has reached its prefill token backlog limit. Please try again later or on a different instance."
    ),
}
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class EngineError(Exception):
    """An answer that is an error object; `code` repeats the status as an integer."""

    def __init__(self, status: int, message: str, *, type_: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_ or _TYPES.get(status) or phrase(status)
        self.content: Body = {"error": {"message": message, "type": self.type, "param": param, "code": status}}

    def body_on(self, path: str) -> bytes:
        """The routes of Anthropic's API have its envelope, but not for what is found wrong before they are reached."""
        if not path.startswith("/v1/messages") or self.type == "Bad Request":
            return dump(self.content)
        return dump({"type": "error", "error": {"type": self.type, "message": str(self)}})


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"


def invalid(kind: str, where: str, message: str, given: str) -> EngineError:
    problem = {"type": kind, "loc": where, "msg": message, "input": given}
    return EngineError(400, f"1 validation error:\n  {problem}", type_="Bad Request", param=where)


def shown(value: Any) -> str:
    return f"<{type(value).__name__} of {len(value)} items>" if isinstance(value, list | dict) else str(value)


def read_body(content_type: str | None, body: bytes) -> Body:
    """The JSON object of a request."""
    if (content_type or "").partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise EngineError(400, message, type_="Bad Request")
    if not body:
        raise invalid("missing", "body", "Field required", "None")
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        raise invalid("json_invalid", f"body.{error.pos}", "JSON decode error", "<dict of 0 items>") from None
    except (UnicodeDecodeError, RecursionError):
        raise EngineError(400, "There was an error parsing the body", type_="Bad Request") from None
    if not isinstance(value, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise invalid("model_attributes_type", "body", message, shown(value))
    return value


def check_model(body: Mapping[str, Any], models: Sequence[str]) -> None:
    model = body.get("model")
    if model is not None and model not in models:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(models)}."
        raise EngineError(404, message, param="model")


def check(body: Body, *, is_chat: bool, models: Sequence[str], max_model_len: int, limit_name: str = "max_tokens") -> None:
    """Refuse what vLLM refuses before it looks at the prompt's length. `limit_name`: how it calls the limit of an answer."""
    _check_types(body, is_chat)
    if body.get("stream_options") is not None and not body.get("stream"):
        message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        raise EngineError(400, message, param="stream_options")
    _check_salt(body.get("cache_salt"))
    if not is_chat and not body.get("prompt"):
        message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
        raise EngineError(400, message, param="prompt")
    check_model(body, models)
    _check_temperature(body.get("temperature"))
    if is_chat and not body["messages"]:
        raise EngineError(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
    limit = asked_tokens(body)
    if limit is not None:
        _check_at_least_one(limit)
    if limit is not None and limit > max_model_len:
        message = (
            f"{limit_name}={limit} cannot be greater than max_model_len={max_model_len}. "
            f"Please request fewer output tokens. (parameter={limit_name}, value={limit})"
        )
        raise EngineError(400, message, param=limit_name)


def room_tokens(prompt_tokens: int, max_model_len: int) -> int:
    """How many tokens the context has left for an answer, which vLLM cuts to that silently."""
    if prompt_tokens > max_model_len:
        at_least = max_model_len + 1  # vLLM stops counting there
        raise EngineError(
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
    return limit if limit is not None else body.get("max_tokens")


def _check_types(body: Body, is_chat: bool) -> None:
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
        parts = content if isinstance(content, list) else []
        if not isinstance(content, str | list | None) or not all(isinstance(part, dict | str) for part in parts):
            raise invalid("string_type", f"body.messages.{index}.content", "Input should be a valid string", shown(content))
    if not is_chat and not _is_prompt(body.get("prompt")):
        raise invalid("list_type", "body.prompt", "Input should be a valid list", shown(body["prompt"]))
    fields = [*_FIELDS, ("logprobs", bool, *_BOOLEAN) if is_chat else ("logprobs", int, *_INTEGER)]
    for name, kind, problem, message in fields:
        value = body.get(name)
        if kind is int and isinstance(value, float) and value.is_integer():
            # As pydantic reads 2.0 where it wants an integer.
            value = body[name] = int(value)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise invalid(problem, f"body.{name}", message, shown(value))


_INTEGER = ("int_parsing", "Input should be a valid integer, unable to parse string as an integer")
_BOOLEAN = ("bool_parsing", "Input should be a valid boolean, unable to interpret input")
_FIELDS: tuple[tuple[str, Any, str, str], ...] = (
    *((name, int, *_INTEGER) for name in ("max_tokens", "max_completion_tokens", "n", "priority", "min_tokens", "seed")),
    ("top_logprobs", int, *_INTEGER),
    ("temperature", int | float, "float_parsing", "Input should be a valid number, unable to parse string as a number"),
    ("stream_options", dict, "model_type", "Input should be a valid dictionary or instance of StreamOptions"),
    ("cache_salt", str, "string_type", "Input should be a valid string"),
    ("request_id", str, "string_type", "Input should be a valid string"),
)


def _is_prompt(prompt: Any) -> bool:
    """A text, tokens, or a list of either; None is refused later, in other words."""
    if not isinstance(prompt, list):
        return isinstance(prompt, str | None)
    kinds = {type(item) for item in prompt}
    if kinds == {list}:
        return all(item and all(type(token) is int for token in item) for item in prompt)
    return kinds in (set(), {str}, {int})


def _check_salt(salt: str | None) -> None:
    if salt == "":
        message = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)"
        raise EngineError(400, message, param="cache_salt")
    if salt is not None and (len(salt) > _SALT_CHARACTERS or set(salt) & set("@/\\\0")):
        message = (
            f"Parameter 'cache_salt' must be at most {_SALT_CHARACTERS} characters and must not contain '@', '/', '\\\\', "
            "or NUL. (parameter=cache_salt)"
        )
        raise EngineError(400, message, param="cache_salt")


def _check_temperature(temperature: float | None) -> None:
    if temperature is not None and temperature < 0:
        shown_value = float(temperature)
        message = f"temperature must be non-negative, got {shown_value}. (parameter=temperature, value={shown_value})"
        raise EngineError(400, message, param="temperature")


def _check_at_least_one(limit: int) -> None:
    if limit < 1:
        message = f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})"
        raise EngineError(400, message, param="max_tokens")

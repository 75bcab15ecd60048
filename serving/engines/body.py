"""What a request's body asks for, and what of it an engine may see.

The body is parsed once, here. The engine gets the client's own bytes, but for members that only the gateway may set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from serving.core.context import RequestContext
from serving.core.errors import InvalidRequest
from serving.core.routes import Counted, Field
from serving.engines.edit import edited
from serving.settings import ParameterLimits

GATEWAY_ONLY = frozenset(
    (
        "kv_transfer_params",
        "ec_transfer_params",
        "request_id",
        "session_id",
        "priority",
        "vllm_xargs",
        "mm_payload",
        "return_mm_kwargs",
        "watermarking",
        "previous_input_messages",
        "enable_response_messages",
        "return_prompt_text",
        "truncate_prompt_tokens",
        "stream_interval",
    )
)
"""Privileges of whoever operates the engines: they name hosts, jump queues, pick ids, cut prompts without a word, or say how many
tokens an event holds, by which answers that their clients left are charged."""
GATEWAY_ONLY_PREFIX = "routed_experts"
GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
"""Older names of structured output; vLLM ignores them, so they are said again in the words it knows."""


STREAM_SWITCHES = ("include_usage", "continuous_usage_stats")
"""Members of `stream_options` that an engine reads more freely than JSON means them: the text "false" is false to vLLM."""
_COSTLY = (b",", b"[", b"{", b"\\")
"""What makes a body of a given size slow to read and large in memory; counting them costs next to nothing."""
GUIDED_NAMES = frozenset(GUIDED)
_CALLERS_TOOLS = (None, "function", "custom")
"""Types of tools that the caller runs; every other type is taken for one that the engine runs (mcp, web_search, container, …)."""
_ONCE_ONLY = frozenset(
    ("tools", "store", "previous_response_id", "conversation", "background", "container", "mcp_servers", "web_search_options")
)
"""Fields by which an engine may be asked to keep state or to run tools."""


@dataclass(slots=True)
class Edit:
    """What changes in a body: members that go, and members that are set last."""

    drop: set[str] = field(default_factory=set)
    put: dict[str, bytes] = field(default_factory=dict)


_NOTABLE = GATEWAY_ONLY | GUIDED_NAMES | _ONCE_ONLY | frozenset(ParameterLimits().bounds)
_SHAPES_KEPT = 1024
_SHAPE_MEMBERS = 40
_NAME_CHARACTERS = 64
_shapes: dict[tuple[str, ...], frozenset[str]] = {}


def _notable(document: dict[str, Any]) -> frozenset[str]:
    """The members that have to be looked at more closely. Bodies come with the same names again and again."""
    shape = tuple(document)
    found = _shapes.get(shape)
    if found is None:
        found = frozenset(name for name in document if name in _NOTABLE or name.startswith(GATEWAY_ONLY_PREFIX))
        if len(shape) <= _SHAPE_MEMBERS and max(map(len, shape), default=0) <= _NAME_CHARACTERS:
            if len(_shapes) >= _SHAPES_KEPT:
                _shapes.clear()
            _shapes[shape] = found
    return found


def understand(ctx: RequestContext, limits: ParameterLimits) -> str:
    """Read the fields that the gateway acts on into `ctx` and return the model that is asked for.

    What only the engine acts on is passed through unjudged. Raises: InvalidRequest, naming the field.
    """
    document = _parse(ctx.body, limits.json_values)
    ctx.document = document
    notable = ctx.notable = _notable(document)
    model = document.get("model")
    if model is None:
        raise InvalidRequest("The field 'model' is missing: name one of GET /v1/models.", param="model")
    if not isinstance(model, str):
        raise InvalidRequest("The field 'model' must be a string.", param="model")
    route = ctx.route
    stream = document.get("stream")
    if stream is not None:
        if not isinstance(stream, bool):
            raise InvalidRequest("The field 'stream' must be true or false.", param="stream")
        ctx.stream = stream and route.streams
    for required in route.required:
        if not isinstance(document.get(required.name), required.kinds):
            _require(document, required)
    for name in route.refused:
        value = document.get(name)
        if value is not None and value is not False:  # 0 is equal to false and is not the same
            raise InvalidRequest(f"The field '{name}' cannot be used: {ctx.route.refused_words}.", param=name)
    if notable or route.counted:
        _check_limits(document, notable, route.counted, limits)
    return model


def prepare(ctx: RequestContext, cache_salt: str | None) -> None:
    """Make `ctx.body` what the engine gets: the client's bytes with the smallest edit that is needed.

    `cache_salt` keeps the prefix cache of a tenant apart; the client's own value never passes as it is.
    """
    document, notable, route = ctx.document, ctx.notable, ctx.route
    edit = Edit()
    if notable:
        edit.drop = {name for name in notable if name in GATEWAY_ONLY or name.startswith(GATEWAY_ONLY_PREFIX)}
        if edit.drop:
            ctx.dropped_fields = tuple(sorted({name if name in GATEWAY_ONLY else GATEWAY_ONLY_PREFIX for name in edit.drop}))
    if ctx.stream and route.usage_option:
        _ask_for_usage(ctx, document, edit)
    if ctx.model != ctx.asked_model:
        edit.put["model"] = orjson.dumps(ctx.model)
    if route.forced:
        edit.put.update(route.forced)
    if route.usage_header is not None and document.get("encoding_format") == "bytes_only":
        # The same body as `bytes`, which tells its usage in a header.
        edit.put["encoding_format"] = b'"bytes"'
        ctx.hides_usage = True
    if not route.runs_model:
        edit.drop.add("cache_salt")
    elif cache_salt is not None:
        edit.put["cache_salt"] = orjson.dumps(cache_salt)
    if notable and not GUIDED_NAMES.isdisjoint(notable) and "structured_outputs" not in document:
        guided = {kind: document[name] for name, kind in GUIDED.items() if document.get(name)}
        edit.put["structured_outputs"] = _written(guided, "guided_…")
    if edit.drop or edit.put:
        ctx.body = edited(ctx.body, document, drop=edit.drop, put=edit.put)


def is_repeatable(ctx: RequestContext) -> bool:
    """Whether another engine may get the request after a first one took it.

    Not where an engine keeps or continues something, and not where it runs tools itself: whatever they did would be done twice.
    """
    document = ctx.document
    if _ONCE_ONLY.isdisjoint(document):
        return True
    tools = document.get("tools")
    if isinstance(tools, list) and not all(isinstance(tool, dict) and tool.get("type") in _CALLERS_TOOLS for tool in tools):
        return False
    forced = ["tools", *(name for name, _ in ctx.route.forced)]
    return not any(document.get(name) for name in _ONCE_ONLY if name not in forced)


def _ask_for_usage(ctx: RequestContext, document: dict[str, Any], edit: Edit) -> None:
    """A stream tells its usage only when it is asked; the event that it adds is for us when the client did not ask."""
    options = document.get("stream_options")
    if options is None:
        options = {}
    if not isinstance(options, dict):
        raise InvalidRequest("The field 'stream_options' must be an object.", param="stream_options")
    for name in STREAM_SWITCHES:
        value = options.get(name)
        if value is not None and not isinstance(value, bool):
            raise InvalidRequest(f"The field 'stream_options.{name}' must be true or false.", param=f"stream_options.{name}")
    if options.get("include_usage"):
        return
    edit.put["stream_options"] = _written({**options, "include_usage": True}, "stream_options")
    ctx.hides_usage = not options.get("continuous_usage_stats")


def _written(value: dict[str, Any], name: str) -> bytes:
    """JSON of a value that was read from JSON. Raises: InvalidRequest, since more depth can be read than written."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise InvalidRequest(f"The field '{name}' is nested too deeply.", param=name, code="invalid_json") from None


def _parse(body: bytes, limit: int) -> dict[str, Any]:
    if len(body) > limit and sum(map(body.count, _COSTLY)) > limit:
        raise InvalidRequest(
            f"The body holds more than {limit} values and escapes; texts and token lists of a model's size hold far fewer.",
            code="request_too_complex",
        )
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error.msg} (byte {error.pos}).", code="invalid_json") from None
    if not isinstance(document, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    return document


def _require(document: dict[str, Any], required: Field) -> None:
    name, words = required.name, required.words
    value = document.get(name)
    if value is None:
        if any(document.get(other) is not None for other in required.instead):
            return
        others = f" Or give {_either(required.instead)}." if required.instead else ""
        raise InvalidRequest(f"The field '{name}' is missing: it must be {words}.{others}", param=name)
    if not isinstance(value, required.kinds) and not (int in required.kinds and _is_integer(value)):
        raise InvalidRequest(f"The field '{name}' must be {words}.", param=name)


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(f"'{name}'" for name in names)


def _check_limits(
    document: dict[str, Any], notable: frozenset[str], counted: tuple[Counted, ...], limits: ParameterLimits
) -> None:
    """Parameters that multiply an engine's memory or work are bounded before it sees them."""
    bounds = limits.bounds
    for name in notable:
        if name in bounds:
            _check_bounds(document, name, *bounds[name])
    for item in counted:
        most: int = getattr(limits, item.limit)
        if _items(document.get(item.name), item) > most:
            raise InvalidRequest(f"The field '{item.name}' holds more than {most} {item.limit}.", param=item.name)


def _check_bounds(document: dict[str, Any], name: str, least: int, most: int | None) -> None:
    value = document[name]
    if value is None or (name == "logprobs" and isinstance(value, bool)):
        # In chat `logprobs` is a switch; its number is `top_logprobs`.
        return
    if not _is_integer(value):
        raise InvalidRequest(f"The field '{name}' must be an integer.", param=name)
    if value < least or (most is not None and value > most):
        right = f"at least {least}" if most is None else f"from {least} to {most}" if most >= least else "left out"
        raise InvalidRequest(f"The field '{name}' must be {right} here.", param=name)


def _is_integer(value: object) -> bool:
    """What JSON Schema and engines call an integer: 8.0 is one, and true is none."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def _items(value: Any, counted: Counted) -> int:
    """How many pieces of work a field is: a list of token ids is one, and so is a conversation."""
    if isinstance(value, dict):
        return _parts(value)
    if not isinstance(value, list):
        return 1
    if counted.limit == "documents":
        return sum(_parts(item) if isinstance(item, dict) else 1 for item in value)
    if all(isinstance(item, int) for item in value) or all(_is_turn(item) for item in value):
        return 1
    return len(value)


def _parts(document: dict[str, Any]) -> int:
    content = document.get("content")
    return max(1, len(content)) if isinstance(content, list) else 1


def _is_turn(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role"), str)

"""What a request's body asks for. The body is parsed once, here; the engine gets the client's own bytes."""

from __future__ import annotations

from typing import Any

import orjson

from serving.core.context import CHAT_COMPLETIONS, RequestContext
from serving.core.errors import InvalidRequest


def understand(ctx: RequestContext) -> str:
    """Read the fields that the gateway acts on into `ctx` and return the model that is asked for.

    What only the engine acts on is passed through unjudged. Raises: InvalidRequest, naming the field.
    """
    try:
        document = orjson.loads(ctx.body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error.msg} (byte {error.pos}).", code="invalid_json") from None
    if not isinstance(document, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    ctx.document = document
    model = document.get("model")
    if model is None:
        raise InvalidRequest("The field 'model' is missing: name one of GET /v1/models.", param="model")
    if not isinstance(model, str):
        raise InvalidRequest("The field 'model' must be a string.", param="model")
    stream = document.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequest("The field 'stream' must be true or false.", param="stream")
    ctx.stream = bool(stream)
    if ctx.route is CHAT_COMPLETIONS:
        _require(document, "messages", list, "an array of messages")
    else:
        _require(document, "prompt", (str, list), "a string or an array")
    return model


def _require(document: dict[str, Any], name: str, kind: type | tuple[type, ...], words: str) -> None:
    value = document.get(name)
    if value is None:
        raise InvalidRequest(f"The field '{name}' is missing: it must be {words}.", param=name)
    if not isinstance(value, kind):
        raise InvalidRequest(f"The field '{name}' must be {words}.", param=name)

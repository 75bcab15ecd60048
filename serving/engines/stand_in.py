"""Whether another model may answer a request, and the body that it then gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from serving.core.context import RequestContext
from serving.engines.edit import edited

STATE = ("previous_response_id", "conversation", "background", "store", "container", "mcp_servers")
"""They name something that is kept, or run, elsewhere: with another model it would not be what the client means."""
TOKEN_IDS = ("logit_bias", "stop_token_ids", "allowed_token_ids", "prompt_embeds")
"""They are written in the vocabulary of one model, and mean something else in another's."""
CLIENT_RUN_TOOLS = (None, "function", "custom")


def bound_to_model(document: Mapping[str, Any]) -> bool:
    """Whether a body makes sense to the model that it names, and to no other."""
    return (
        any(document.get(name) for name in (*STATE, *TOKEN_IDS))
        or _holds_token_ids(document.get("prompt"))
        or any(_is_kept_elsewhere(item) for item in _items(document, "input"))
        or any(isinstance(tool, dict) and tool.get("type") not in CLIENT_RUN_TOOLS for tool in _items(document, "tools"))
    )


def address_to(ctx: RequestContext, model: str) -> None:
    """Make the body of `ctx` one for that model. Raises: InvalidRequest when it is nested too deeply for the edit."""
    ctx.body = edited(ctx.body, orjson.loads(ctx.body), drop=(), put={"model": orjson.dumps(model)})
    ctx.model = model


def _items(document: Mapping[str, Any], name: str) -> list[Any]:
    found = document.get(name)
    return found if isinstance(found, list) else []


def _holds_token_ids(prompt: object) -> bool:
    return isinstance(prompt, list) and any(not isinstance(item, str) for item in prompt)


def _is_kept_elsewhere(item: object) -> bool:
    return isinstance(item, dict) and (item.get("type") == "item_reference" or bool(item.get("encrypted_content")))

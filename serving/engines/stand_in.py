"""Whether another model may answer a request, and the body that it then gets."""

from __future__ import annotations

import orjson

from serving.core.context import RequestContext
from serving.engines.body import is_repeatable
from serving.engines.edit import edited

TOKEN_IDS = ("logit_bias", "stop_token_ids", "allowed_token_ids", "prompt_embeds")
"""They are written in the vocabulary of one model, and mean something else in another's."""


def bound_to_model(ctx: RequestContext) -> bool:
    """Whether a request makes sense to the model that it names, and to no other.

    So it is with everything that goes on from something kept, or that an engine does by itself: what may not be repeated. Also
    with counts of tokens and with embeddings, which mean something beside others of the same model only.
    """
    route = ctx.route
    if route.form or not route.runs_model or route.task == "embed":
        return True
    document = ctx.document
    items = document.get("input")
    return (
        not is_repeatable(ctx)
        or any(document.get(name) for name in TOKEN_IDS)
        or _holds_token_ids(document.get("prompt"))
        or (isinstance(items, list) and any(map(_is_kept_elsewhere, items)))
    )


def address_to(ctx: RequestContext, model: str) -> None:
    """Make the body of `ctx` one for that model. Raises: InvalidRequest when it is nested too deeply for the edit."""
    ctx.body = edited(ctx.body, orjson.loads(ctx.body), drop=(), put={"model": orjson.dumps(model)})
    ctx.model = model


def _holds_token_ids(prompt: object) -> bool:
    return isinstance(prompt, list) and any(not isinstance(item, str) for item in prompt)


def _is_kept_elsewhere(item: object) -> bool:
    return isinstance(item, dict) and (item.get("type") == "item_reference" or bool(item.get("encrypted_content")))

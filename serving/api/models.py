"""The list of models, as OpenAI's clients and as Anthropic's read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, time
from typing import Any

from fastapi import FastAPI, Request

from serving.api.family import dialect_of
from serving.core.clock import wall_seconds
from serving.core.errors import InvalidRequest, ModelNotFound
from serving.core.routes import ANTHROPIC
from serving.fleet.store import Fleet
from serving.routing.models import PublicModel
from serving.tenancy.tenants import Tenant

Card = dict[str, Any]
DEFAULT_PAGE = 20
LARGEST_PAGE = 1000
"""Models in one page of Anthropic's list."""
LIFECYCLE = "active"
"""Of every model here, in Anthropic's words."""


def add_models(api: FastAPI, *, models: Mapping[str, PublicModel], fleet: Fleet, identify: Callable[[Request], Tenant]) -> None:
    """Add `GET /v1/models` and `GET /v1/models/{id}`; a request with `anthropic-version` is answered in Anthropic's shape."""
    started_seconds = int(wall_seconds())

    def created_seconds(model: PublicModel) -> int:
        released = model.listing.released if model.listing is not None else None
        return int(datetime.combine(released, time(), UTC).timestamp()) if released is not None else started_seconds

    def openai_card(model: PublicModel) -> Card:
        return {
            "id": model.name,
            "object": "model",
            "created": created_seconds(model),
            "owned_by": "serving",
            "root": model.served,
            "parent": model.parent,
            "ready": fleet.snapshot.ready(model.served),
            "tasks": list(fleet.snapshot.tasks(model.served)),
        }

    def anthropic_card(model: PublicModel) -> Card:
        listing = model.listing
        return {
            "type": "model",
            "id": model.name,
            "display_name": listing.name if listing is not None else model.name,
            "created_at": datetime.fromtimestamp(created_seconds(model), UTC).isoformat().replace("+00:00", "Z"),
            "lifecycle": LIFECYCLE,
            "max_input_tokens": (listing.prompt_tokens or listing.context_tokens) if listing is not None else None,
            "max_tokens": listing.output_tokens if listing is not None else None,
        }

    def is_anthropic(request: Request) -> bool:
        return dialect_of(request.url.path, (name for name, _ in request.headers.raw)) is ANTHROPIC

    @api.api_route("/v1/models", methods=["GET", "HEAD"])
    async def list_models(request: Request) -> Card:
        tenant = identify(request)
        allowed = [model for model in models.values() if tenant.may_use(model.name)]
        if is_anthropic(request):
            return _page([anthropic_card(model) for model in allowed], request)
        return {"object": "list", "data": [openai_card(model) for model in allowed]}

    @api.api_route("/v1/models/{model:path}", methods=["GET", "HEAD"])
    async def retrieve_model(request: Request, model: str) -> Card:
        tenant = identify(request)
        found = models.get(model)
        if found is None or not tenant.may_use(found.name):
            raise ModelNotFound("The model does not exist here. GET /v1/models lists those that do.", param="model")
        return anthropic_card(found) if is_anthropic(request) else openai_card(found)


def _page(cards: list[Card], request: Request) -> Card:
    """The part of the list that the query asks for. Raises: InvalidRequest, naming the parameter."""
    query = request.query_params
    wanted = query.getlist("lifecycle") + query.getlist("lifecycle[]")
    if wanted and LIFECYCLE not in wanted:
        cards = []
    size = query.get("limit", str(DEFAULT_PAGE))
    if not (size.isdecimal() and size.isascii() and len(size) <= 4 and 1 <= int(size) <= LARGEST_PAGE):
        raise InvalidRequest(f"The parameter 'limit' must be an integer from 1 to {LARGEST_PAGE}.", param="limit")
    limit = int(size)
    after, before = query.get("after_id"), query.get("before_id")
    if after is not None and before is not None:
        raise InvalidRequest("The parameters 'after_id' and 'before_id' exclude each other.", param="before_id")
    if after is not None:
        cards = cards[_place(cards, after, "after_id") + 1 :]
    if before is not None:
        cards = cards[: _place(cards, before, "before_id")]
        page = cards[-limit:]
    else:
        page = cards[:limit]
    return {
        "data": page,
        "has_more": len(page) < len(cards),
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _place(cards: list[Card], model: str, parameter: str) -> int:
    for place, card in enumerate(cards):
        if card["id"] == model:
            return place
    raise InvalidRequest(f"The parameter '{parameter}' names no model of this list.", param=parameter)

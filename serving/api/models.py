"""The list of models and its cards, in the words of the API whose client asks: OpenAI's and Anthropic's have the same paths."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from fastapi import FastAPI, Request

from serving.api.edge import credential
from serving.core.clock import wall_seconds
from serving.core.errors import ModelNotFound
from serving.core.routes import ANTHROPIC, OPENAI, Dialect
from serving.fleet.store import Fleet
from serving.tenancy.identities import Identities


def dialect_of(request: Request) -> Dialect:
    """Anthropic's clients name the version of its API in each request; no other client does."""
    return ANTHROPIC if "anthropic-version" in request.headers else OPENAI


def add_models(api: FastAPI, fleet: Fleet, identities: Identities) -> None:
    created_seconds = int(wall_seconds())

    def openai_card(model: str) -> dict[str, object]:
        about = {"object": "model", "created": created_seconds, "owned_by": "serving"}
        return {"id": model, **about, "ready": fleet.snapshot.ready(model)}

    def anthropic_card(model: str) -> dict[str, object]:
        created_at = datetime.fromtimestamp(created_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        about = {"display_name": model, "created_at": created_at, "lifecycle": "active"}
        return {"type": "model", "id": model, **about, "ready": fleet.snapshot.ready(model)}

    def identified(request: Request) -> bool:
        """Whether it is a client of Anthropic's API. Raises: Unauthorized."""
        dialect = dialect_of(request)
        identities.identify(credential(dialect, dict(request.scope["headers"])))
        return dialect is ANTHROPIC

    @api.api_route("/v1/models", methods=["GET", "HEAD"])
    async def list_models(request: Request) -> Mapping[str, object]:
        models = list(fleet.snapshot.by_model)
        if identified(request):
            ends = {"first_id": models[0] if models else None, "last_id": models[-1] if models else None}
            return {"data": [anthropic_card(model) for model in models], "has_more": False, **ends}
        return {"object": "list", "data": [openai_card(model) for model in models]}

    @api.api_route("/v1/models/{model:path}", methods=["GET", "HEAD"])
    async def retrieve_model(request: Request, model: str) -> Mapping[str, object]:
        card = anthropic_card if identified(request) else openai_card
        if model not in fleet.snapshot.by_model:
            raise ModelNotFound("The model does not exist here. GET /v1/models lists those that do.", param="model")
        return card(model)

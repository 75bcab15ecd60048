"""The provider listing: what a marketplace reads to know models, prices and readiness (OpenRouter's schema 2.4).

Everything but readiness comes from the settings. What is not set is left out: in this schema absent means "not declared" for
limits and "not supported" for parameters, and a price of zero would be a promise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, time
from typing import Any

from fastapi import FastAPI, Request

from serving.fleet.store import Fleet, Snapshot
from serving.model_settings import CapacitySettings, ListingSettings, ProviderListingSettings
from serving.routing.models import PublicModel
from serving.tenancy.tenants import Tenant

PATH = "/v1/providers/models"
SCHEMA_VERSION = "2.4"
Document = dict[str, Any]


def add_provider_listing(
    api: FastAPI,
    *,
    settings: ProviderListingSettings,
    models: Mapping[str, PublicModel],
    fleet: Fleet,
    identify: Callable[[Request], Tenant],
) -> None:
    """Add the route, where it is enabled. A model without a `listing` in the settings is not in it."""
    if not settings.enabled:
        return

    @api.api_route(PATH, methods=["GET", "HEAD"])
    async def list_for_providers(request: Request) -> Document:
        tenant = identify(request)
        snapshot = fleet.snapshot
        return {
            "data": [
                model_document(model.name, model.listing, settings, is_ready=_readiness(snapshot, model.served))
                for model in models.values()
                if model.listing is not None and tenant.may_use(model.name)
            ]
        }


def _readiness(snapshot: Snapshot, model: str) -> bool | None:
    """Whether an endpoint serves the model; None while nothing is known, since False would take it off the market."""
    if snapshot.ready(model):
        return True
    return None if snapshot.candidates(model) else False


def model_document(model: str, listing: ListingSettings, common: ProviderListingSettings, *, is_ready: bool | None) -> Document:
    """One model; `model` is exactly what requests name."""
    prices = {name: price for name, price in listing.prices or () if price is not None}
    capacity = listing.capacity or CapacitySettings()
    released = listing.released
    root = {
        "hugging_face_id": listing.hugging_face_id,
        "created": int(datetime.combine(released, time(), UTC).timestamp()) if released is not None else None,
        "tokenizer": listing.tokenizer,
        "description": listing.description,
        "pricing": _prices(prices, "request", unit="request"),
        "capacity": [
            *_limit("request", "request", capacity.requests_per_minute),
            *_limit("concurrency", "request", capacity.concurrent_requests, per=None),
        ],
        "is_ready": is_ready,
        "deprecation_date": listing.deprecation_date,
        "is_free": listing.is_free or None,
        "discount_to_user": listing.discount_to_user,
        "openrouter": {"slug": listing.slug} if listing.slug is not None else None,
        "datacenters": [place.model_dump(exclude_none=True) for place in common.datacenters],
        "compliance": dict(common.compliance),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "id": model,
        "name": listing.name,
        "quantization": listing.quantization,
        "input_modalities": [_text_input(listing, prices, capacity)],
        "output_modalities": [_text_output(listing, prices, capacity)],
        **_declared(root),
    }


def _text_input(listing: ListingSettings, prices: Mapping[str, str], capacity: CapacitySettings) -> Document:
    lengths = {
        "max_context_length": _tokens(listing.context_tokens),
        "max_prompt_length": _tokens(listing.prompt_tokens),
    }
    return {
        "type": "text",
        "supported_inputs": _declared(lengths),
        **_declared(
            {
                "pricing": _prices(prices, "prompt", "cached_prompt", "cache_write"),
                "capacity": _limit("prompt", "token", capacity.prompt_tokens_per_minute),
            }
        ),
    }


def _text_output(listing: ListingSettings, prices: Mapping[str, str], capacity: CapacitySettings) -> Document:
    parameters = {name: parameter.model_dump(mode="json", exclude_none=True) for name, parameter in listing.parameters.items()}
    return {
        "type": "text",
        "streaming": True,
        "supported_parameters": parameters,
        **_declared(
            {
                "max_length": _tokens(listing.output_tokens),
                "pricing": _prices(prices, "completion", "internal_reasoning"),
                "capacity": _limit("completion", "token", capacity.output_tokens_per_minute),
            }
        ),
    }


def _prices(prices: Mapping[str, str], *types: str, unit: str = "token") -> list[Document]:
    return [{"type": name, "unit": unit, "cost_usd": prices[name]} for name in types if name in prices]


def _limit(kind: str, unit: str, value: int | None, *, per: str | None = "minute") -> list[Document]:
    return [] if value is None else [_declared({"type": kind, "unit": unit, "per": per, "value": value})]


def _tokens(value: int | None) -> Document | None:
    return None if value is None else {"value": value, "unit": "token"}


def _declared(fields: Mapping[str, Any]) -> Document:
    """What was set: no field that is None or empty."""
    return {name: value for name, value in fields.items() if value not in (None, [], {})}

"""The routes that the gateway answers by itself: models, health, metrics, and the shape of every other error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from serving.api.edge import credential
from serving.api.errors import internal_fault, whole_error
from serving.api.family import dialect_of
from serving.api.listing import add_provider_listing
from serving.api.models import add_models
from serving.api.openapi import document
from serving.core.errors import InvalidRequest, MethodNotAllowed, NotFound, RequestError
from serving.fleet.report import FleetReport
from serving.fleet.store import Fleet
from serving.model_settings import ProviderListingSettings
from serving.observability.metrics import Metrics
from serving.routing.models import PublicModel
from serving.settings import Settings
from serving.tenancy.identities import Identities
from serving.tenancy.tenants import Tenant

METRICS = "/metrics"
FLEET = "/fleet"


def create_api(
    *,
    models: Mapping[str, PublicModel],
    provider_listing: ProviderListingSettings,
    fleet: Fleet,
    identities: Identities,
    metrics: Metrics | None,
    report: Callable[[], FleetReport] | None,
    draining: Callable[[], bool],
    published: Settings | None,
) -> FastAPI:
    """The FastAPI application behind the hot path; without `metrics` and `report`, they are served elsewhere.

    With `published`, it tells the OpenAPI document of a gateway with these settings.
    """
    api = _bare_api()
    _add_probes(api, models, fleet, draining, identities)
    if metrics is not None:
        _add_metrics(api, metrics)
    if report is not None:
        _add_fleet(api, report)

    def identify(request: Request) -> Tenant:
        authorization, key = request.headers.get("authorization"), request.headers.get("x-api-key")
        return identities.identify(credential(_bytes(authorization), _bytes(key))).tenant

    add_models(api, models=models, fleet=fleet, identify=identify)
    add_provider_listing(api, settings=provider_listing, models=models, fleet=fleet, identify=identify)
    if published is not None:
        _add_document(api, published)
    return api


def create_operator_api(
    *,
    models: Mapping[str, PublicModel],
    fleet: Fleet,
    identities: Identities,
    metrics: Metrics,
    report: Callable[[], FleetReport],
    draining: Callable[[], bool],
) -> FastAPI:
    """What operators see at an address of their own."""
    api = _bare_api()
    _add_probes(api, models, fleet, draining, identities)
    _add_metrics(api, metrics)
    _add_fleet(api, report)
    return api


def _add_probes(
    api: FastAPI, models: Mapping[str, PublicModel], fleet: Fleet, draining: Callable[[], bool], identities: Identities
) -> None:
    served = tuple(dict.fromkeys(model.served for model in models.values()))

    @api.api_route("/livez", methods=["GET", "HEAD"])
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @api.api_route("/readyz", methods=["GET", "HEAD"])
    @api.api_route("/health", methods=["GET", "HEAD"])
    async def readyz(response: Response) -> dict[str, object]:
        snapshot = fleet.snapshot
        ready = fleet.takes_requests and identities.is_ready and not draining()
        response.status_code = 200 if ready else 503
        return {
            "status": "draining" if draining() else "ready" if ready else "not ready",
            "models": {model: snapshot.ready(model) for model in served},
        }


def _add_metrics(api: FastAPI, metrics: Metrics) -> None:
    @api.api_route(METRICS, methods=["GET", "HEAD"])
    async def scrape() -> Response:
        text, content_type = metrics.exposition()
        return Response(text, media_type=content_type)


def _add_fleet(api: FastAPI, report: Callable[[], FleetReport]) -> None:
    """What `serving fleet` shows; like the metrics, for whoever reaches the address."""

    @api.api_route(FLEET, methods=["GET", "HEAD"])
    async def fleet_report() -> Response:
        return Response(orjson.dumps(asdict(report())), media_type="application/json")


def _add_document(api: FastAPI, settings: Settings) -> None:
    """Publish all routes that are there by now, and the document itself."""

    @api.api_route("/openapi.json", methods=["GET", "HEAD"])
    async def openapi() -> Response:
        return Response(text, media_type="application/json")

    own = [(route.path, route.methods) for route in api.routes if isinstance(route, APIRoute)]
    text = orjson.dumps(document(settings, own))


def _bare_api() -> FastAPI:
    """An application without routes, whose every error is the error object."""
    api = FastAPI(title="serving", redirect_slashes=False, openapi_url=None, docs_url=None, redoc_url=None)

    @api.exception_handler(RequestError)
    async def request_error(request: Request, error: RequestError) -> Response:
        return _response(request, error)

    @api.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return _response(request, NotFound("There is no such route here."))
        if error.status_code == 405:
            return _response(request, MethodNotAllowed("The route does not take this method.", headers=error.headers))
        return _response(request, InvalidRequest("The request cannot be read."))

    @api.exception_handler(Exception)
    async def fault(request: Request, _: Exception) -> Response:
        return _response(request, internal_fault())

    return api


def _response(request: Request, error: RequestError) -> Response:
    dialect = dialect_of(request.url.path, (name for name, _ in request.headers.raw))
    body, headers = whole_error(error, dialect, request.scope["request_id"])
    response = Response(body, status_code=error.status)
    response.raw_headers = headers
    return response


def _bytes(header: str | None) -> bytes | None:
    return None if header is None else header.encode("latin-1")

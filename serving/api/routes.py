"""The routes that the gateway answers by itself: models, health, metrics, and the shape of every other error."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from serving.api.edge import bearer
from serving.api.errors import error_body, error_headers, internal_fault
from serving.api.openapi import document
from serving.core.clock import wall_seconds
from serving.core.errors import InvalidRequest, MethodNotAllowed, ModelNotFound, NotFound, RequestError
from serving.fleet.store import Fleet
from serving.observability.metrics import Metrics
from serving.settings import Settings
from serving.tenancy.identities import Identities


def create_api(
    *,
    fleet: Fleet,
    identities: Identities,
    metrics: Metrics | None,
    draining: Callable[[], bool],
    published: Settings | None,
) -> FastAPI:
    """The FastAPI application behind the hot path; without `metrics`, they are served elsewhere.

    With `published`, it tells the OpenAPI document of a gateway with these settings.
    """
    api = _bare_api()
    _add_probes(api, fleet, draining)
    if metrics is not None:
        _add_metrics(api, metrics)
    created_seconds = int(wall_seconds())

    def card(model: str) -> dict[str, object]:
        return {
            "id": model,
            "object": "model",
            "created": created_seconds,
            "owned_by": "serving",
            "ready": fleet.snapshot.ready(model),
            "tasks": list(fleet.snapshot.tasks(model)),
        }

    def identify(request: Request) -> None:
        authorization = request.headers.get("authorization")
        identities.identify(bearer(authorization.encode("latin-1") if authorization is not None else None))

    @api.api_route("/v1/models", methods=["GET", "HEAD"])
    async def list_models(request: Request) -> dict[str, object]:
        identify(request)
        return {"object": "list", "data": [card(model) for model in fleet.snapshot.by_model]}

    @api.api_route("/v1/models/{model:path}", methods=["GET", "HEAD"])
    async def retrieve_model(request: Request, model: str) -> dict[str, object]:
        identify(request)
        if model not in fleet.snapshot.by_model:
            raise ModelNotFound("The model does not exist here. GET /v1/models lists those that do.", param="model")
        return card(model)

    if published is not None:
        _add_document(api, published)
    return api


def create_operator_api(*, fleet: Fleet, metrics: Metrics, draining: Callable[[], bool]) -> FastAPI:
    """What operators see at an address of their own."""
    api = _bare_api()
    _add_probes(api, fleet, draining)
    _add_metrics(api, metrics)
    return api


def _add_probes(api: FastAPI, fleet: Fleet, draining: Callable[[], bool]) -> None:
    @api.api_route("/livez", methods=["GET", "HEAD"])
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @api.api_route("/readyz", methods=["GET", "HEAD"])
    @api.api_route("/health", methods=["GET", "HEAD"])
    async def readyz(response: Response) -> dict[str, object]:
        snapshot = fleet.snapshot
        ready = snapshot.any_ready and not draining()
        response.status_code = 200 if ready else 503
        return {
            "status": "draining" if draining() else "ready" if ready else "not ready",
            "models": {model: snapshot.ready(model) for model in snapshot.by_model},
        }


def _add_metrics(api: FastAPI, metrics: Metrics) -> None:
    @api.api_route("/metrics", methods=["GET", "HEAD"])
    async def scrape() -> Response:
        text, content_type = metrics.exposition()
        return Response(text, media_type=content_type)


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
    async def request_error(_: Request, error: RequestError) -> Response:
        return _response(error)

    @api.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return _response(NotFound("There is no such route here."))
        if error.status_code == 405:
            return _response(MethodNotAllowed("The route does not take this method.", headers=error.headers))
        return _response(InvalidRequest("The request cannot be read."))

    @api.exception_handler(Exception)
    async def fault(_: Request, __: Exception) -> Response:
        return _response(internal_fault())

    return api


def _response(error: RequestError) -> Response:
    body = error_body(error)
    response = Response(body, status_code=error.status)
    response.raw_headers = error_headers(error, len(body))
    return response

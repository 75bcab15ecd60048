"""The routes that the gateway answers by itself: models, health, metrics, and the shape of every other error."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from serving.api.errors import error_body, error_headers, internal_fault
from serving.api.models import add_models, dialect_of
from serving.core.errors import InvalidRequest, MethodNotAllowed, NotFound, RequestError
from serving.fleet.store import Fleet
from serving.observability.metrics import Metrics
from serving.tenancy.identities import Identities


def create_api(*, fleet: Fleet, identities: Identities, metrics: Metrics | None, draining: Callable[[], bool]) -> FastAPI:
    """The FastAPI application behind the hot path; without `metrics`, they are served elsewhere."""
    api = _bare_api()
    _add_probes(api, fleet, draining)
    if metrics is not None:
        _add_metrics(api, metrics)
    add_models(api, fleet, identities)
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


def _bare_api() -> FastAPI:
    """An application without routes, whose every error is the error object of the API whose client asks."""
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
    body = error_body(error, dialect_of(request))
    response = Response(body, status_code=error.status)
    response.raw_headers = error_headers(error, len(body))
    return response

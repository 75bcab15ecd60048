"""The routes that the gateway answers by itself, on a real socket."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from serving.settings import EndpointSettings, Settings
from tests.doubles.raw_client import RawResponse, ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled

MODEL = "org/model-7b:q4"
OWN_ROUTES = ("/v1/models", f"/v1/models/{MODEL}", "/livez", "/readyz", "/health", "/metrics", "/openapi.json")

Serve = Callable[..., AbstractAsyncContextManager[RunningGateway]]


@pytest.fixture
async def models_engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(MODEL) as started:
        yield started


async def _is_ready(gateway: RunningGateway) -> list[str]:
    response = await ask(gateway.url, "/readyz")
    return [] if response.status == 200 else [response.body.decode()]


@pytest.fixture
def serve(models_engine: ScriptedEngine) -> Serve:
    """A gateway over one engine; it is ready and asks its engine no more."""

    @asynccontextmanager
    async def start(*, ready: bool = True, **sections: Any) -> AsyncIterator[RunningGateway]:
        endpoint = EndpointSettings(name="e1", url=models_engine.url, model=MODEL)
        settings = Settings.model_validate({"endpoints": (endpoint,), "probe": {"period_seconds": 3600}, **sections})
        async with RunningGateway(settings) as gateway:
            if ready:
                await settled(lambda: _is_ready(gateway))
            yield gateway

    return start


def check_error(response: RawResponse, status: int, code: str) -> None:
    assert response.status == status
    assert response.header("content-type") == "application/json"
    assert set(response.json) == {"error"}
    error = response.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", code)


# Models


async def test_models_are_listed(serve: Serve) -> None:
    async with serve() as gateway:
        response = await ask(gateway.url, "/v1/models")
    assert (response.status, response.header("content-type")) == (200, "application/json")
    (card,) = response.json["data"]
    assert response.json["object"] == "list"
    assert isinstance(card.pop("created"), int)
    assert card == {
        "id": MODEL,
        "object": "model",
        "owned_by": "serving",
        "root": MODEL,
        "parent": None,
        "ready": True,
        "tasks": ["generate"],
    }


async def test_a_model_without_a_ready_engine_is_listed_as_such(serve: Serve, models_engine: ScriptedEngine) -> None:
    models_engine.routes["/health"] = Script(status=503)
    async with serve(ready=False) as gateway:
        await _probed(models_engine)
        (card,) = (await ask(gateway.url, "/v1/models")).json["data"]
    assert (card["id"], card["ready"]) == (MODEL, False)


async def _probed(engine: ScriptedEngine) -> None:
    async def problems() -> list[str]:
        return [] if engine.log.control_requests else ["not probed yet"]

    await settled(problems)


async def test_a_model_is_retrieved_by_its_name_with_slashes(serve: Serve) -> None:
    async with serve() as gateway:
        (card,) = (await ask(gateway.url, "/v1/models")).json["data"]
        for name in (MODEL, MODEL.replace("/", "%2F"), MODEL.replace(":", "%3A")):
            assert (await ask(gateway.url, f"/v1/models/{name}")).json == card


async def test_an_unknown_model_is_a_404_that_names_the_field(serve: Serve) -> None:
    async with serve() as gateway:
        for name in ("nope", "org", "org/model-7b", MODEL + "/", "", "%FF", MODEL.upper()):
            response = await ask(gateway.url, f"/v1/models/{name}")
            check_error(response, 404, "model_not_found")
            assert response.json["error"]["param"] == "model"


KEYS = {"keys": [{"tenant": "red", "sha256": hashlib.sha256(b"red-key").hexdigest()}]}


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}", "/v1/models/nope"])
async def test_models_want_a_key_where_keys_are_set(serve: Serve, path: str) -> None:
    async with serve(auth=KEYS) as gateway:
        refused = await ask(gateway.url, path)
        assert (refused.status, refused.header("www-authenticate")) == (401, "Bearer")
        assert refused.json["error"]["code"] == "missing_api_key"
        wrong = await ask(gateway.url, path, headers={"Authorization": "Bearer wrong"})
        assert wrong.json["error"]["code"] == "invalid_api_key"
        assert (await ask(gateway.url, path, headers={"Authorization": "Bearer red-key"})).status in (200, 404)


async def test_probes_and_scrapers_need_no_key(serve: Serve) -> None:
    async with serve(auth=KEYS) as gateway:
        for path in ("/livez", "/readyz", "/health", "/metrics"):
            assert (await ask(gateway.url, path)).status == 200


# Health


async def test_a_gateway_with_a_ready_engine_is_ready(serve: Serve) -> None:
    async with serve() as gateway:
        for path in ("/readyz", "/health"):
            response = await ask(gateway.url, path)
            assert (response.status, response.header("content-type")) == (200, "application/json")
            assert response.json == {"status": "ready", "models": {MODEL: True}}


async def test_a_gateway_without_a_ready_engine_is_alive_but_not_ready(serve: Serve, models_engine: ScriptedEngine) -> None:
    models_engine.routes["/health"] = Script(status=503)
    async with serve(ready=False) as gateway:
        await _probed(models_engine)
        response = await ask(gateway.url, "/readyz")
        assert (response.status, response.json) == (503, {"status": "not ready", "models": {MODEL: False}})
        assert (await ask(gateway.url, "/livez")).status == 200


async def test_a_gateway_that_drains_is_alive_but_not_ready(serve: Serve) -> None:
    async with serve() as gateway:
        gateway.app.draining = True
        response = await ask(gateway.url, "/readyz")
        assert (response.status, response.json["status"]) == (503, "draining")
        assert (await ask(gateway.url, "/livez")).json == {"status": "alive"}


async def test_metrics_are_in_the_text_format(serve: Serve) -> None:
    async with serve() as gateway:
        response = await ask(gateway.url, "/metrics")
    assert response.all("content-type") == [CONTENT_TYPE_PLAIN_0_0_4], "what Prometheus 2.53 and 3.x read alike"
    assert b"serving_endpoint_ready{" in response.body


async def test_no_route_of_the_gateway_asks_an_engine(serve: Serve, models_engine: ScriptedEngine) -> None:
    async with serve() as gateway:
        before = len(models_engine.log.control_requests)
        for path in OWN_ROUTES:
            assert (await ask(gateway.url, path)).status == 200
        assert len(models_engine.log.control_requests) == before
        assert not models_engine.log.requests


# Methods and unknown routes


async def test_head_answers_as_get_without_its_body(serve: Serve) -> None:
    async with serve() as gateway:
        for path in OWN_ROUTES:
            get = await ask(gateway.url, path)
            head = await ask(gateway.url, path, method="HEAD")
            assert (head.status, head.body, head.header("content-type")) == (200, b"", get.header("content-type"))
            if path != "/metrics":  # its numbers move
                assert head.header("content-length") == get.header("content-length")


async def test_another_method_is_a_405_that_lists_the_right_ones(serve: Serve) -> None:
    async with serve() as gateway:
        for path in OWN_ROUTES:
            for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
                response = await ask(gateway.url, path, method=method)
                check_error(response, 405, "method_not_allowed")
                assert set((response.header("allow") or "").split(", ")) == {"GET", "HEAD"}


async def test_what_does_not_exist_is_a_404(serve: Serve) -> None:
    async with serve() as gateway:
        for path in ("/", "/v1", "/v2/models", "/v1/models2", "/docs", "/redoc", "//livez", "/%00"):
            for method in ("GET", "POST"):
                check_error(await ask(gateway.url, path, method=method), 404, "not_found")


async def test_a_slash_too_many_does_not_lead_to_where_the_client_says(serve: Serve) -> None:
    async with serve() as gateway:
        for path in ("/livez/", "/metrics/"):
            check_error(await ask(gateway.url, path, headers={"Host": "elsewhere"}), 404, "not_found")


async def test_a_query_changes_nothing(serve: Serve) -> None:
    async with serve() as gateway:
        assert (await ask(gateway.url, "/v1/models?limit=1")).status == 200


async def test_a_fault_of_the_gateway_is_a_500_without_its_cause(serve: Serve) -> None:
    async with serve() as gateway:
        gateway.app.metrics.exposition = None  # type: ignore[assignment, method-assign]
        response = await ask(gateway.url, "/metrics")
    assert (response.status, response.header("content-type")) == (500, "application/json")
    assert response.json["error"]["code"] == "server_error"
    assert b"NoneType" not in response.body

"""Default deny: what is not published answers 404 or 405 and reaches no engine; what is for operators has its own address."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from serving.core.routes import ROUTES
from serving.settings import Settings
from tests.doubles.raw_client import RawClient, ask
from tests.doubles.real_engine import RealEngine
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, chat, settings_over

_TABLE = """
/v1/models /v1/chat/completions /v1/chat/completions/batch /v1/completions /v1/responses /v1/responses/x /v1/responses/x/cancel
/v1/messages /v1/messages/count_tokens /cohere/v2/chat /cohere/v2/chat/render /v1/embeddings /v2/embed /pooling /classify
/score /v1/score /rerank /v1/rerank /v2/rerank /generative_scoring /v1/systemone /v1/audio/transcriptions
/v1/audio/translations /v1/realtime /tokenize /detokenize /tokenizer_info /health /ping /version /load /metrics
/kv_event_sources /docs /redoc /openapi.json /static /docs/oauth2-redirect /invocations /scale_elastic_ep
/is_scaling_elastic_ep /v1/load_lora_adapter /v1/unload_lora_adapter /adapters /adapters/x /start_profile /stop_profile
/fault_tolerance/apply /fault_tolerance/status /v1/chat/completions/render /v1/messages/render /v1/completions/render
/v1/responses/render /v1/chat/completions/derender /v1/completions/derender /inference/v1/generate
/inference/v1/abort_requests /abort_requests /sleep /wake_up /is_sleeping /release_kv_cache_memory /reset_prefix_cache
/reset_mm_cache /reset_encoder_cache /collective_rpc /server_info /pause /resume /is_paused /init_weight_transfer_engine
/shutdown_weight_transfer_engine /start_weight_update /start_draft_weight_update /update_weights /finish_weight_update
/update_weight_version /weight_info /weight_checker /get_world_size /ready /readyz
"""
VLLM_ROUTES = _TABLE.split()
"""Every route of vLLM 0.32, whatever switches it on."""
METHODS = ("GET", "POST", "PUT", "DELETE")
POSTED = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/score",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/tokenize",
    "/detokenize",
}
"""Said here once more, so that a route that is added by mistake is noticed."""
PUBLISHED = {("POST", path) for path in POSTED} | {("GET", "/v1/models")}
OPEN = {("GET", "/health"), ("GET", "/readyz"), ("GET", "/openapi.json")}
"""The gateway's own probes and document, for which nobody has a key."""


@asynccontextmanager
async def gateway_with_operators(engine: ScriptedEngine, **server: Any) -> AsyncIterator[RunningGateway]:
    settings = settings_over({"e1": engine}, auth={"api_key": "good"}, server={"operator_port": 0} | server)
    async with RunningGateway(settings) as gateway:
        yield gateway


def test_o_sec_1_the_published_routes_are_these() -> None:
    assert set(ROUTES) == POSTED


@pytest.mark.parametrize("key", [None, "good"])
async def test_o_sec_1_only_what_is_published_reaches_an_engine(engine: ScriptedEngine, key: str | None) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with gateway_with_operators(engine) as gateway, RawClient(gateway.url) as client:
        for path in VLLM_ROUTES:
            for method in METHODS:
                if (method, path) in OPEN or (key and (method, path) in PUBLISHED):
                    continue
                response = await client.ask(path, chat() if method in ("POST", "PUT") else None, method=method, headers=headers)
                where = f"{method} {path}: {response.status}"
                assert response.header("content-type") == "application/json", where
                assert "error" in response.json, where
                if (method, path) in PUBLISHED:
                    assert response.status == 401, where
                    assert (response.header("www-authenticate") or "").startswith("Bearer"), where
                else:
                    assert response.status in (404, 405), where
        assert not engine.log.requests
        others = {record.path for record in engine.log.control_requests if not record.header("x-serving-probe")}
        assert others <= {"/health", "/v1/models", "/metrics"}, "probes"


@pytest.mark.engine
async def test_o_sec_1_a_real_engines_other_routes_are_closed(real_engine: RealEngine) -> None:
    """The list is the engine's own: what its document publishes, and what it said at its start."""
    document = (await ask(real_engine.url, "/openapi.json")).json
    said = set(re.findall(r"Route: (/\S*),", real_engine.log.read_text(errors="replace")))
    paths = {re.sub(r"\{[^}]*\}", "x", path) for path in {*document["paths"], *said}}
    assert len(paths) > 15 and "/invocations" in paths
    endpoint = {"name": "e1", "url": real_engine.url, "model": real_engine.model}
    settings = Settings.model_validate(
        {"endpoints": [endpoint], "auth": {"api_key": "good"}, "server": {"operator_port": 0}, "probe": {"period_seconds": 60.0}}
    )
    async with RunningGateway(settings) as gateway, RawClient(gateway.url) as client:
        for path in sorted(paths):
            for method in METHODS:
                for headers in ({}, {"Authorization": "Bearer good"}):
                    if (method, path) in OPEN or (headers and (method, path) in PUBLISHED):
                        continue
                    body = chat() if method in ("POST", "PUT") else None
                    response = await client.ask(path, body, method=method, headers=headers)
                    allowed = (401,) if (method, path) in PUBLISHED else (401, 404, 405) if path == "/v1/models/x" else (404, 405)
                    assert response.status in allowed, f"{method} {path}: {response.status}"
        scrape = MetricValues((await ask(gateway.operator_url, "/metrics")).body.decode())
        assert scrape.sum("serving_engine_attempts_total") == 0, "the engine heard of none of them"


async def test_o_sec_1_what_is_published_reaches_an_engine_with_a_key(engine: ScriptedEngine) -> None:
    """The counterpart: the same requests do get through when they may."""
    async with gateway_with_operators(engine) as gateway:
        headers = {"Authorization": "Bearer good"}
        assert (await ask(gateway.url, "/v1/models", headers=headers)).status == 200
        assert (await ask(gateway.url, "/v1/chat/completions", chat(), headers=headers)).status == 200
        assert len(engine.log.requests) == 1


async def test_metrics_are_at_the_operators_address_only(engine: ScriptedEngine) -> None:
    async with gateway_with_operators(engine) as gateway:
        response = await ask(gateway.operator_url, "/metrics")
        assert response.status == 200
        assert b"serving_requests_total" in response.body
        for headers in ({}, {"Authorization": "Bearer good"}):
            assert (await ask(gateway.url, "/metrics", headers=headers)).status == 404


async def test_probes_are_at_both_addresses_and_nothing_of_tenants_at_the_operators(engine: ScriptedEngine) -> None:
    async with gateway_with_operators(engine) as gateway:
        for path in ("/livez", "/readyz", "/health"):
            for url in (gateway.url, gateway.operator_url):
                assert (await ask(url, path)).status == 200
        headers = {"Authorization": "Bearer good"}
        for path in ("/v1/models", *ROUTES):
            response = await ask(gateway.operator_url, path, chat(), headers=headers)
            # In the words of the API to which such a path belongs.
            said = response.json["error"]["type" if path.startswith("/v1/messages") else "code"]
            assert (response.status, said.removesuffix("_error")) == (404, "not_found")
        assert not engine.log.requests


async def test_a_full_public_address_leaves_the_operators_alone(engine: ScriptedEngine) -> None:
    settings = settings_over({"e1": engine}, limits={"connections": 1}, server={"operator_port": 0})
    async with RunningGateway(settings) as gateway, RawClient(gateway.url) as client:
        assert (await client.ask("/v1/models")).status == 200
        assert (await ask(gateway.url, "/v1/models")).status == 503
        assert (await ask(gateway.operator_url, "/metrics")).status == 200


async def test_a_taken_operator_port_ends_the_start(engine: ScriptedEngine) -> None:
    async with gateway_with_operators(engine) as gateway:
        taken = int(gateway.operator_url.rpartition(":")[2])
        with pytest.raises(RuntimeError, match="did not start"):
            async with gateway_with_operators(engine, operator_port=taken):
                pass


async def test_without_an_operator_port_metrics_are_at_the_one_address(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, "/metrics")).status == 200

"""What all routes that take JSON and make no tokens owe: who may ask, which model can, and every way to end."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from serving.core.routes import ROUTES
from tests.doubles.raw_client import RawClient, RawResponse, ask, request_bytes
from tests.doubles.script import Gate, Script, Usage
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS
from tests.flow.conftest import GatewayOver, chat

BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "tiny", "input": "hi"},
    "/v1/rerank": {"model": "tiny", "query": "hi", "documents": ["a", "b"]},
    "/v2/rerank": {"model": "tiny", "query": "hi", "documents": ["a", "b"]},
    "/v1/score": {"model": "tiny", "text_1": "hi", "text_2": "a"},
    "/tokenize": {"model": "tiny", "prompt": "hi"},
    "/detokenize": {"model": "tiny", "tokens": [74, 75]},
}
METERED = tuple(path for path in BODIES if ROUTES[path].runs_model)
OF_A_TASK = METERED
PATHS = pytest.mark.parametrize("path", BODIES)
METERED_PATHS = pytest.mark.parametrize("path", METERED)


def error_of(response: RawResponse) -> dict[str, Any]:
    """The error object, checked for OpenAI's schema."""
    assert response.header("content-type") == "application/json"
    (error,) = response.json.values()
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def key_of(tenant: str) -> dict[str, str]:
    return {"tenant": tenant, "sha256": hashlib.sha256(tenant.encode()).hexdigest()}


@PATHS
async def test_bytes_pass_unchanged_both_ways(pooling_engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    body = request_bytes(path, BODIES[path]).partition(b"\r\n\r\n")[2].replace(b'": ', b'" :\t')
    async with gateway_over({"e1": pooling_engine}) as gateway:
        response = await ask(gateway.url, path, body)
        assert response.status == 200
        (record,) = pooling_engine.log.requests
        assert record.body == body
        assert record.written.endswith(response.body)


@PATHS
async def test_a_key_is_wanted(pooling_engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    async with gateway_over({"e1": pooling_engine}, auth={"api_key": "sk-right"}) as gateway:
        refused = await ask(gateway.url, path, BODIES[path])
        assert (refused.status, error_of(refused)["code"]) == (401, "missing_api_key")
        assert not pooling_engine.log.requests
        taken = await ask(gateway.url, path, BODIES[path], headers={"Authorization": "Bearer sk-right"})
        assert taken.status == 200
        (record,) = pooling_engine.log.requests
        assert record.header("authorization") is None


@METERED_PATHS
async def test_what_is_used_is_metered_and_is_no_output(
    pooling_engine: ScriptedEngine, gateway_over: GatewayOver, path: str
) -> None:
    pooling_engine.script(Script(usage=Usage(prompt_tokens=123, completion_tokens=0)))
    async with gateway_over({"e1": pooling_engine}) as gateway:
        assert (await ask(gateway.url, path, BODIES[path])).status == 200
        metrics = await gateway.metrics()
        counted = {kind: metrics.sum("serving_tokens_total", kind=kind) for kind in ("prompt", "output")}
        assert counted == {"prompt": 123, "output": 0}
        assert metrics.sum("serving_usage_unknown_total") == 0
        assert metrics.sum("serving_tokens_estimated_total") == 0
        assert metrics.sum("serving_requests_total", route=ROUTES[path].name, outcome="ok") == 1


@pytest.mark.parametrize("path", OF_A_TASK)
async def test_a_model_of_another_task_answers_404_before_any_engine(
    engine: ScriptedEngine, gateway_over: GatewayOver, path: str
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, path, BODIES[path])
        error = error_of(response)
        assert (response.status, error["code"], error["param"]) == (404, "route_not_supported", "model")
        assert error["message"].startswith(f"The model 'tiny' does not support {path}. It answers /v1/chat/completions, ")
        assert "/tokenize" in error["message"] and "/v1/embeddings," not in error["message"]
        assert not engine.log.requests
        assert (await gateway.metrics()).sum("serving_rejections_total", reason="route_not_supported") == 1


async def test_an_embedding_model_does_not_chat(pooling_engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": pooling_engine}) as gateway:
        response = await ask(gateway.url, "/v1/chat/completions", chat())
        assert response.status == 404
        assert error_of(response)["message"].endswith(
            "It answers /v1/embeddings, /v1/rerank, /v2/rerank, /v1/score, /tokenize, /detokenize."
        )
        assert not pooling_engine.log.requests


@PATHS
@pytest.mark.parametrize("script", [Script(status=501), Script(status=404, body=b'{"detail":"Not Found"}')])
async def test_an_engine_that_cannot_after_all_is_believed(gateway_over: GatewayOver, path: str, script: Script) -> None:
    """vLLM's 501 would be tried again by clients, and is no fault of this one engine."""
    both = [ScriptedEngine(tasks=("embed", "score"), default=script) for _ in range(2)]
    async with both[0] as first, both[1] as second, gateway_over({"e1": first, "e2": second}) as gateway:
        response = await ask(gateway.url, path, BODIES[path])
        error = error_of(response)
        assert (response.status, error["code"]) == (404, "route_not_supported")
        assert error["message"] == f"The model 'tiny' does not support {path}."
        assert len(first.log.requests) + len(second.log.requests) == 1


@PATHS
async def test_privileges_of_operators_are_dropped_and_named(
    pooling_engine: ScriptedEngine, gateway_over: GatewayOver, path: str
) -> None:
    privileges = {"priority": -5, "request_id": "mine", "truncate_prompt_tokens": 3, "vllm_xargs": {"a": 1}}
    async with gateway_over({"e1": pooling_engine}) as gateway:
        response = await ask(gateway.url, path, BODIES[path] | privileges)
        assert response.header("x-serving-dropped-fields") == ", ".join(sorted(privileges))
        assert pooling_engine.log.requests[0].json == BODIES[path]


@PATHS
async def test_prefixes_of_tenants_are_kept_apart_where_there_are_any(
    pooling_engine: ScriptedEngine, gateway_over: GatewayOver, path: str
) -> None:
    keys = [key_of("alice"), key_of("bob")]
    async with gateway_over({"e1": pooling_engine}, auth={"keys": keys}) as gateway:
        for key in ("alice", "bob", "alice"):
            body = BODIES[path] | {"cache_salt": "chosen"}
            assert (await ask(gateway.url, path, body, headers={"Authorization": f"Bearer {key}"})).status == 200
        salts = [record.json.get("cache_salt") for record in pooling_engine.log.requests]
    if path in METERED:
        assert salts[0] == salts[2] != salts[1] and "chosen" not in salts
    else:
        assert salts == [None, None, None]


@pytest.mark.parametrize(
    ("path", "gone", "words"),
    [
        ("/v1/embeddings", "input", "it must be a string or an array. Or give 'messages'."),
        ("/v1/rerank", "query", "it must be a string or an object with 'content'."),
        ("/v2/rerank", "documents", "it must be an array of documents."),
        ("/v1/score", "text_1", "Or give 'queries' or 'data_1'."),
        ("/v1/score", "text_2", "Or give 'documents' or 'items' or 'data_2'."),
        ("/tokenize", "prompt", "Or give 'messages'."),
        ("/detokenize", "tokens", "it must be an array of token ids."),
        ("/v1/embeddings", "model", "name one of GET /v1/models."),
    ],
)
async def test_a_field_that_is_missing_is_named(
    pooling_engine: ScriptedEngine, gateway_over: GatewayOver, path: str, gone: str, words: str
) -> None:
    async with gateway_over({"e1": pooling_engine}) as gateway:
        body = {name: value for name, value in BODIES[path].items() if name != gone}
        response = await ask(gateway.url, path, body)
        error = error_of(response)
        assert (response.status, error["param"]) == (400, gone)
        assert error["message"].endswith(words)
        assert not pooling_engine.log.requests


@PATHS
async def test_a_client_that_leaves_ends_its_request_at_the_engine(
    pooling_engine: ScriptedEngine, gateway_over: GatewayOver, path: str
) -> None:
    pooling_engine.script(Script(gate=Gate()))
    async with gateway_over({"e1": pooling_engine}) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(path, BODIES[path]))
            record = await pooling_engine.reached("held")
        await asyncio.wait_for(record.peer_closed.wait(), HANG_SECONDS)


@PATHS
async def test_full_engines_are_a_429_and_broken_ones_are_tried_elsewhere(
    pooling_engine: ScriptedEngine, gateway_over: GatewayOver, path: str
) -> None:
    async with gateway_over({"e1": pooling_engine}) as gateway:
        pooling_engine.script(Script(status=503))
        response = await ask(gateway.url, path, BODIES[path])
        assert (response.status, error_of(response)["code"]) == (429, "overloaded")
        assert 1 <= int(response.header("retry-after") or 0) <= 30
    async with ScriptedEngine(tasks=("embed", "score")) as other:
        broken = Script(status=500)
        pooling_engine.default = broken
        async with gateway_over({"e1": pooling_engine, "e2": other}) as gateway:
            for _ in range(4):
                assert (await ask(gateway.url, path, BODIES[path])).status == 200


@PATHS
async def test_an_answer_that_breaks_off_does_not_look_whole(
    pooling_engine: ScriptedEngine, gateway_over: GatewayOver, path: str
) -> None:
    pooling_engine.script(Script(truncate_body_bytes=9))
    async with gateway_over({"e1": pooling_engine}) as gateway:
        response = await ask(gateway.url, path, BODIES[path])
        assert response.end in ("truncated", "rst", "fin")
        assert (await gateway.metrics()).sum("serving_requests_total", outcome="truncated") == 1


@PATHS
async def test_engines_words_about_a_wrong_request_are_passed_on(
    pooling_engine: ScriptedEngine, gateway_over: GatewayOver, path: str
) -> None:
    words = b'{"error":{"message":"This model\'s maximum context length is 9 tokens.","type":"x","param":"input","code":400}}'
    pooling_engine.script(Script(status=400, body=words))
    async with gateway_over({"e1": pooling_engine}) as gateway:
        response = await ask(gateway.url, path, BODIES[path])
        error = error_of(response)
        assert (response.status, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
        assert error["message"] == "This model's maximum context length is 9 tokens."


@pytest.mark.parametrize(
    ("path", "field", "fits", "too_many"),
    [
        ("/v1/embeddings", "input", ["a"] * 4, ["a"] * 5),
        ("/v1/embeddings", "input", [[1, 2]] * 4, [[1, 2]] * 5),
        ("/v1/embeddings", "input", [1] * 100, [[1]] * 5),
        ("/v1/embeddings", "messages", [{"role": "user", "content": "a"}] * 9, [[{"role": "user", "content": "a"}]] * 5),
        ("/v1/rerank", "documents", ["a"] * 3, ["a"] * 4),
        ("/v2/rerank", "documents", {"content": [{"type": "text"}] * 3}, {"content": [{"type": "text"}] * 4}),
        ("/v2/rerank", "documents", ["a", {"content": [1, 2]}], [{"role": "user", "content": [1, 2]}] * 2),
        ("/v1/score", "text_2", ["a"] * 3, ["a"] * 4),
        ("/v1/score", "data_2", ["a"] * 3, ["a"] * 4),
        ("/v1/score", "queries", ["a"] * 3, ["a"] * 4),
    ],
)
async def test_items_have_a_ceiling(
    pooling_engine: ScriptedEngine, gateway_over: GatewayOver, path: str, field: str, fits: Any, too_many: Any
) -> None:
    pooling_engine.default = Script(body=b"{}")
    limits = {"parameters": {"inputs": 4, "documents": 3}}
    async with gateway_over({"e1": pooling_engine}, limits=limits) as gateway:
        assert (await ask(gateway.url, path, BODIES[path] | {field: fits})).status == 200
        response = await ask(gateway.url, path, BODIES[path] | {field: too_many})
        error = error_of(response)
        assert (response.status, error["param"]) == (400, field)
        kind, most = ("inputs", 4) if path == "/v1/embeddings" else ("documents", 3)
        assert error["message"] == f"The field '{field}' holds more than {most} {kind}."
        assert len(pooling_engine.log.requests) == 1


async def test_ceilings_are_on_by_default(pooling_engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": pooling_engine}) as gateway:
        for count, status in ((256, 200), (257, 400)):
            body = {"model": "tiny", "input": ["a"] * count}
            assert (await ask(gateway.url, "/v1/embeddings", body)).status == status
        for count, status in ((1000, 200), (1001, 400)):
            body = {"model": "tiny", "query": "a", "documents": ["a"] * count}
            assert (await ask(gateway.url, "/v1/rerank", body)).status == status


async def test_the_gateways_own_ceiling_is_a_429(pooling_engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    gate = Gate()
    pooling_engine.script(Script(gate=gate))
    async with gateway_over({"e1": pooling_engine}, limits={"in_flight": 1}) as gateway:
        first = asyncio.create_task(ask(gateway.url, "/tokenize", BODIES["/tokenize"]))
        await pooling_engine.reached("held")
        assert (await ask(gateway.url, "/detokenize", BODIES["/detokenize"])).status == 429
        gate.open_all()
        assert (await first).status == 200


async def test_get_is_not_allowed_and_the_list_of_models_tells_tasks(
    pooling_engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    async with gateway_over({"e1": pooling_engine}) as gateway:
        for path in ROUTES:
            response = await ask(gateway.url, path, method="GET")
            assert (response.status, response.header("allow")) == (405, "POST")
        (card,) = (await ask(gateway.url, "/v1/models")).json["data"]
        assert card["tasks"] == ["embed", "score"]

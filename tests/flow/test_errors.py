"""Every error is OpenAI's error object, with the status that tells the caller what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.doubles.conservation import Expectation
from tests.doubles.raw_client import RawClient, RawResponse, ask, request_bytes
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, chat

CHAT = "/v1/chat/completions"


def error_of(response: RawResponse) -> dict[str, Any]:
    """The error object, checked for OpenAI's schema."""
    assert response.header("content-type") == "application/json"
    error = response.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert isinstance(error["code"], str | None)
    assert isinstance(error["param"], str | None)
    assert response.header("x-request-id")
    return dict(error)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"", None, "invalid_json"),
        (b"{", None, "invalid_json"),
        (b"[]", None, "invalid_json"),
        (b'"x"', None, "invalid_json"),
        (b"null", None, "invalid_json"),
        (b"[" * 100_000, None, "invalid_json"),
        ("{}".encode("utf-16"), None, "invalid_json"),
        (b'{"model": "tiny", "messages": [], "temperature": NaN}', None, "invalid_json"),
        (b'{"messages": []}', "model", None),
        (b'{"model": 1, "messages": []}', "model", None),
        (b'{"model": "tiny"}', "messages", None),
        (b'{"model": "tiny", "messages": "hi"}', "messages", None),
        (b'{"model": "tiny", "messages": [], "stream": "yes"}', "stream", None),
    ],
)
async def test_a_wrong_body_is_a_400_that_names_the_field(
    engine: ScriptedEngine, gateway_over: GatewayOver, body: bytes, param: str | None, code: str | None
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, body)
        error = error_of(response)
        assert (response.status, error["type"]) == (400, "invalid_request_error")
        assert (error["param"], error["code"]) == (param, code)
        assert not engine.log.requests


async def test_an_unknown_model_is_a_404(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, chat(model="no\n" + "x" * 5000))
        error = error_of(response)
        assert (response.status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert len(error["message"]) < 300
        assert not engine.log.requests


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", CHAT, 405), ("PUT", CHAT, 405), ("GET", "/nope", 404), ("DELETE", "/v1/models", 405)]
)
async def test_what_is_not_published_reaches_no_engine(
    engine: ScriptedEngine, gateway_over: GatewayOver, method: str, path: str, status: int
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, path, method=method)
        assert response.status == status
        assert response.json["error"]["code"] in ("not_found", "method_not_allowed")
        if status == 405:
            assert response.header("allow")


@pytest.mark.parametrize(
    "path",
    [
        "/invocations",
        "/pooling",
        "/score",
        "/rerank",
        "/v2/embed",
        "/tokenizer_info",
        "/v1/load_lora_adapter",
        "/v1/chat/completions/",
        "/V1/chat/completions",
    ],
)
async def test_the_engines_other_routes_are_closed(engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    async with gateway_over({"e1": engine}, expected=Expectation(client_requests=0)) as gateway:
        assert (await ask(gateway.url, path, chat())).status in (404, 405)
        assert not engine.log.requests


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (Script(status=400), 400, None),
        (Script(status=422), 400, None),
        (Script(status=404), 503, "model_unavailable"),
        (Script(status=501), 404, "route_not_supported"),
        (Script(status=401), 502, "engine_failed"),
        (Script(status=302), 502, "engine_failed"),
        (Script(status=500), 502, "engine_failed"),
        (Script(status=503), 429, "overloaded"),
        (Script(status=429), 429, "overloaded"),
        (Script(status=500, body=b"<html>no</html>"), 502, "engine_failed"),
        (Script(status=400, body=b'{"error": "Unauthorized"}'), 400, None),
        (Script(status=400, body=b'{"error": {"message": 7}}'), 400, None),
        (Script(raw_is="response", raw=[(0.0, b"nonsense\r\n\r\n")], ending="fin"), 502, "engine_failed"),
        (Script(rst_after=0, head_at_arrival=False), 502, "engine_failed"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engines_error_is_translated(
    engine: ScriptedEngine, gateway_over: GatewayOver, script: Script, status: int, code: str | None, stream: bool
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        engine.script(script)
        response = await ask(gateway.url, CHAT, chat(stream=stream))
        assert (response.status, error_of(response)["code"]) == (status, code)
        if status in (429, 503):
            assert 1 <= int(response.header("retry-after") or 0) <= 30


async def test_an_engines_other_names_stay_its_own(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        words = b'{"error":{"message":"Valid aliases: secret-name","type":"NotFoundError","code":404}}'
        engine.script(Script(status=404, body=words))
        response = await ask(gateway.url, CHAT, chat())
        assert (response.status, error_of(response)["code"]) == (503, "model_unavailable")
        assert b"secret-name" not in response.body


async def test_what_else_a_request_names_and_is_not_there_says_nothing_of_the_engine(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        error = {
            "message": "Response with id 'x' not found.",
            "type": "invalid_request_error",
            "param": "response_id",
            "code": 404,
        }
        engine.script(Script(status=404, body=json.dumps({"error": error}).encode()))
        response = await ask(gateway.url, CHAT, chat())
        error = error_of(response)
        assert (response.status, error["code"], error["param"]) == (404, "not_found", "response_id")
        assert error["message"] == "Response with id 'x' not found."
        assert (await ask(gateway.url, CHAT, chat())).status == 200


async def test_a_prompt_that_is_too_long_keeps_the_engines_words(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.max_model_len = 64
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, chat(messages=[{"role": "user", "content": "word " * 500}]))
        error = error_of(response)
        assert (response.status, error["code"]) == (400, "context_length_exceeded")
        assert "64" in error["message"]


async def test_without_an_engine_a_known_model_is_a_503_with_retry_after(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    engine.refuse()
    async with gateway_over({"e1": engine}) as gateway:
        for _ in range(3):
            response = await ask(gateway.url, CHAT, chat())
            assert (response.status, error_of(response)["code"]) == (503, "model_unavailable")
            assert 1 <= int(response.header("retry-after") or 0) <= 60
        assert (await ask(gateway.url, "/readyz")).status == 503
        assert (await ask(gateway.url, "/livez")).status == 200


async def test_another_endpoint_is_tried_before_the_first_byte(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with ScriptedEngine() as other:
        engine.default = Script(status=500)
        async with gateway_over({"e1": engine, "e2": other}) as gateway:
            for _ in range(6):
                assert (await ask(gateway.url, CHAT, chat())).status == 200
            assert len(other.log.requests) == 6


async def test_an_engine_that_never_answers_is_a_504(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(blackhole=True))
    async with gateway_over({"e1": engine}, relay={"first_byte_timeout_seconds": 0.3}) as gateway:
        response = await ask(gateway.url, CHAT, chat())
        assert (response.status, error_of(response)["code"]) == (504, "engine_timeout")
        assert len(engine.log.requests) == 1


async def test_a_stream_that_falls_silent_is_ended(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.script(Script(stall_after=2))
    async with gateway_over({"e1": engine}, relay={"idle_timeout_seconds": 0.3}) as gateway:
        response = await ask(gateway.url, CHAT, chat(stream=True))
        assert not response.is_done
        assert b'"engine_timeout"' in response.events[-1]


async def test_a_full_gateway_says_when_to_come_back(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.default = Script(blackhole=True)
    async with gateway_over({"e1": engine}, limits={"in_flight": 1}) as gateway, RawClient(gateway.url) as first:
        await first.send(request_bytes(CHAT, chat()))
        await engine.request_arrived(1)
        response = await ask(gateway.url, CHAT, chat())
        assert (response.status, error_of(response)["code"]) == (429, "overloaded")
        assert response.header("retry-after") == "1"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Length": "40000000"}, 413),
        ({"Content-Encoding": "zstd", "Content-Length": "2"}, 415),
        ({"Content-Type": "text/plain", "Content-Length": "2"}, 415),
    ],
)
async def test_a_head_that_cannot_be_served_is_refused_before_its_body(
    engine: ScriptedEngine, gateway_over: GatewayOver, headers: dict[str, str], status: int
) -> None:
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        await client.send(request_bytes(CHAT, method="POST", headers=headers))
        response = await client.read()
        assert response.status == status
        error_of(response)


async def test_a_chunked_body_meets_the_same_limit(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, limits={"body_bytes": 1000}) as gateway, RawClient(gateway.url) as client:
        await client.send(
            request_bytes(CHAT, method="POST", headers={"Transfer-Encoding": "chunked", "Content-Type": "application/json"})
        )
        for _ in range(3):
            await client.send(b"1f4\r\n" + b" " * 500 + b"\r\n")
        response = await client.read()
        assert (response.status, error_of(response)["code"]) == (413, "request_too_large")
        assert await client.closed_by_peer()


async def test_a_body_that_does_not_come_is_a_408(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, limits={"body_timeout_seconds": 0.2}) as gateway, RawClient(gateway.url) as client:
        await client.send(
            request_bytes(CHAT, method="POST", headers={"Content-Type": "application/json", "Content-Length": "100"})
        )
        response = await client.read()
        assert (response.status, error_of(response)["code"]) == (408, "request_timeout")


async def test_keys_are_wanted_where_keys_are_set(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, auth={"api_key": "sk-right"}) as gateway:
        for path, body in ((CHAT, chat()), ("/v1/models", None), ("/v1/models/tiny", None)):
            for headers, code in (
                ({}, "missing_api_key"),
                ({"Authorization": "Bearer sk-wrong"}, "invalid_api_key"),
                ({"Authorization": "Basic eA=="}, "missing_api_key"),
            ):
                response = await ask(gateway.url, path, body, headers=headers)
                assert (response.status, response.json["error"]["code"]) == (401, code)
                assert response.header("www-authenticate") == "Bearer"
            assert (await ask(gateway.url, path, body, headers={"Authorization": "Bearer sk-right"})).status == 200
        for path in ("/livez", "/readyz", "/health", "/metrics"):
            assert (await ask(gateway.url, path)).status == 200
        assert len(engine.log.requests) == 1

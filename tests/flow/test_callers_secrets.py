"""O-SEC-2: what a caller shows of itself stays here; an engine gets the release's own secret or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.core.errors import ConfigurationError
from serving.settings import load_settings
from tests.doubles.raw_client import RawClient
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.flow.conftest import GatewayOver, settings_over
from tests.flow.surfaces import GENERATING, MESSAGES, asking
from tests.flow.test_fields import ALICE

CANARIES = {
    "Authorization": "Bearer alice",
    "X-Api-Key": "CANARY2",
    "Cookie": "session=CANARY3",
    "Proxy-Authorization": "Basic CANARY4",
    "X-Goog-Api-Key": "CANARY5",
    "Api-Key": "CANARY6",
    "X-Serving-Engine-Secret": "CANARY7",
    "Openai-Organization": "CANARY8",
    "X-Forwarded-For": "CANARY9",
    "Forwarded": "for=CANARY10",
    "X-Real-Ip": "CANARY11",
    "Referer": "http://CANARY12",
}
ALLOWED = {"host", "content-type", "content-length", "x-request-id", "traceparent", "tracestate"}
SECRET = "the-release's-own-secret-of-32-characters"
PATHS = (*GENERATING, f"{MESSAGES}/count_tokens")


def assert_clean(engine: ScriptedEngine, secret: str | None) -> None:
    for record in [*engine.log.requests, *engine.log.control_requests]:
        assert b"CANARY" not in record.raw
        assert b"alice" not in record.raw
        assert record.request.all("x-serving-engine-secret") == ([secret] if secret else [])
        extra = (
            {name.lower() for name, _ in record.headers} - ALLOWED - {"connection", "x-serving-engine-secret", "x-serving-probe"}
        )
        assert not extra, extra


@pytest.mark.parametrize("secret", [None, SECRET], ids=["without an engine's secret", "with one"])
async def test_o_sec_2_an_engine_sees_no_callers_secret(
    engine: ScriptedEngine, gateway_over: GatewayOver, secret: str | None
) -> None:
    relay = {} if secret is None else {"engine_secret": secret}
    auth = {"keys": [ALICE.model_dump()]}
    async with gateway_over({"e1": engine}, auth=auth, relay=relay) as gateway, RawClient(gateway.url) as client:
        for path in PATHS:
            for stream in (False, True):
                body = asking(path if path in GENERATING else MESSAGES, stream=stream)
                response = await client.ask(path, body, headers=CANARIES)
                assert response.status == 200, response.body
        for path in ("/v1/models", "/v1/models/tiny"):
            assert (await client.ask(path, headers=CANARIES)).status == 200
        assert (await client.ask("/v1/responses/resp_1", headers=CANARIES)).status == 404
        for _ in range(2):
            await engine.stop()
            await engine.start()  # kept connections are stale: the request is said again
            await client.ask(GENERATING[0], asking(GENERATING[0]), headers=CANARIES)
    assert len(engine.log.requests) >= 2 * len(PATHS)
    assert engine.log.control_requests
    assert_clean(engine, secret)


async def test_o_sec_2_nor_does_the_next_one_on_a_second_try(gateway_over: GatewayOver) -> None:
    auth = {"keys": [ALICE.model_dump()]}
    async with ScriptedEngine(default=Script(status=500)) as first, ScriptedEngine() as second:
        async with gateway_over({"e1": first, "e2": second}, auth=auth) as gateway, RawClient(gateway.url) as client:
            for _ in range(4):
                assert (await client.ask(GENERATING[0], asking(GENERATING[0]), headers=CANARIES)).status == 200
        assert first.log.requests and second.log.requests
        for engine in (first, second):
            assert_clean(engine, None)


async def test_o_sec_2_a_key_in_a_query_stays_here_too(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        for path in GENERATING:
            assert (await client.ask(f"{path}?api_key=CANARY&key=CANARY", asking(path))).status == 200
        assert {record.request.target for record in engine.log.requests} == set(GENERATING)
    assert_clean(engine, None)


@pytest.mark.parametrize("content", [None, "", "   \n"], ids=["missing", "empty", "blank"])
def test_o_sec_2_a_missing_secret_ends_the_start(tmp_path: Path, content: str | None) -> None:
    """It is never replaced by the caller's, nor by none."""
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_text(content)
    config = tmp_path / "gateway.yaml"
    config.write_text(
        f"relay: {{engine_secret_file: {secret}}}\nendpoints: [{{name: e1, url: 'http://127.0.0.1:1', model: tiny}}]\n"
    )
    with pytest.raises(ConfigurationError, match="engine_secret_file"):
        load_settings(config)


async def test_o_sec_2_an_engine_that_wants_another_secret_makes_the_gateway_unready(engine: ScriptedEngine) -> None:
    """The guard's answer to a probe; no request goes there in hope."""
    body = b'{"error":{"message":"no","type":"invalid_request_error","param":null,"code":"engine_secret"}}'
    engine.routes["/v1/models"] = Script(status=401, body=body)
    async with RunningGateway(settings_over({"e1": engine}, probe={"period_seconds": 0.05})) as gateway:
        async with RawClient(gateway.url) as client:

            async def not_probed() -> list[str]:
                asked = [record.path for record in engine.log.control_requests if record.outcome == "completed"]
                return [] if asked.count("/v1/models") >= 2 else [f"probes: {asked}"]

            await settled(not_probed)
            response = await client.ask(GENERATING[0], asking(GENERATING[0]), headers=CANARIES)
            assert response.status == 503
            assert (await client.ask("/readyz")).status == 503
    assert not engine.log.requests

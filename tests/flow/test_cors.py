"""O-HTTP-4: OPTIONS, HEAD, and calls from pages of other origins, which are off until an origin is named."""

from __future__ import annotations

import pytest

from serving.api.ui import CHAT as UI_CHAT
from serving.api.ui import FILES, STATE
from tests.doubles.raw_client import RawClient, RawResponse, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, all_ready, chat, settings_over

CHAT = "/v1/chat/completions"
ORIGIN = "https://chat.example"
ON = {"cors_origins": [ORIGIN, "http://localhost:3000"]}
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}


def cors_headers(response: RawResponse) -> list[str]:
    return [name for name, _ in response.headers if name.lower().startswith("access-control-")]


def assert_may_be_read(response: RawResponse) -> None:
    assert response.all("access-control-allow-origin") == [ORIGIN]
    assert response.all("vary") == ["Origin"]
    assert "retry-after" in (response.header("access-control-expose-headers") or "").lower()
    assert response.header("access-control-allow-credentials") is None


async def test_o_http_4_a_preflight_needs_no_key_and_reaches_no_engine(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, server=ON, auth={"api_key": "good"}) as gateway, RawClient(gateway.url) as client:
        before = len(engine.log.control_requests)
        for path in (CHAT, "/v1/models"):
            response = await client.ask(path, method="OPTIONS", headers=PREFLIGHT)
            assert (response.status, response.body) == (204, b"")
            assert_may_be_read(response)
            allowed = (response.header("access-control-allow-headers") or "").lower()
            assert "authorization" in allowed
            assert "x-stainless-lang" in allowed
            assert "POST" in (response.header("access-control-allow-methods") or "")
        assert not engine.log.requests
        assert len(engine.log.control_requests) <= before + 1, "probes only"


async def test_o_http_4_every_answer_may_be_read_by_its_page(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    origin = {"Origin": ORIGIN}
    good = origin | {"Authorization": "Bearer good"}
    engine.script(Script(), Script(), Script(status=503), Script(status=500))
    limits = {"body_bytes": 2000}
    relay = {"max_attempts": 1}
    async with gateway_over({"e1": engine}, server=ON, auth={"api_key": "good"}, limits=limits, relay=relay) as gateway:
        answers = [
            (await ask(gateway.url, CHAT, chat(), headers=origin), 401),
            (await ask(gateway.url, CHAT, chat(), headers=good), 200),
            (await ask(gateway.url, CHAT, chat(stream=True), headers=good), 200),
            (await ask(gateway.url, CHAT, chat(), headers=good), 429),
            (await ask(gateway.url, CHAT, chat(), headers=good), 502),
            (await ask(gateway.url, CHAT, b"{", headers=good), 400),
            (await ask(gateway.url, CHAT, b" " * 3000, headers=good), 413),
            (await ask(gateway.url, "/v1/models", headers=origin), 401),
            (await ask(gateway.url, "/v1/models", headers=good), 200),
            (await ask(gateway.url, "/nope", headers=good), 404),
            (await ask(gateway.url, CHAT, method="GET", headers=good), 405),
        ]
        for response, status in answers:
            assert response.status == status
            assert_may_be_read(response)
        assert answers[2][0].is_done


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://chat.example.evil", "http://chat.example", "x\xff"])
async def test_o_http_4_a_foreign_origin_gets_nothing(engine: ScriptedEngine, gateway_over: GatewayOver, origin: str) -> None:
    async with gateway_over({"e1": engine}, server=ON) as gateway:
        for response in (
            await ask(gateway.url, "/v1/models", headers={"Origin": origin}),
            await ask(gateway.url, "/v1/models", method="OPTIONS", headers=PREFLIGHT | {"Origin": origin}),
        ):
            assert cors_headers(response) == []
            assert response.all("vary") == ["Origin"]


async def test_o_http_4_any_origin_is_never_together_with_credentials(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, server={"cors_origins": ["*"]}) as gateway:
        for response in (
            await ask(gateway.url, CHAT, chat(), headers={"Origin": "https://any.example"}),
            await ask(gateway.url, CHAT, method="OPTIONS", headers=PREFLIGHT),
        ):
            assert response.all("access-control-allow-origin") == ["*"]
            assert response.header("access-control-allow-credentials") is None


async def test_o_http_4_cors_is_off_by_default(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        assert gateway.app.application is gateway.app.edge
        preflight = await ask(gateway.url, "/v1/models", method="OPTIONS", headers=PREFLIGHT)
        assert preflight.status == 405
        for response in (preflight, await ask(gateway.url, CHAT, chat(), headers={"Origin": ORIGIN})):
            assert cors_headers(response) == []
            assert response.header("vary") is None


async def test_o_http_4_options_without_a_preflight_is_a_405(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, server=ON) as gateway:
        response = await ask(gateway.url, "/v1/models", method="OPTIONS", headers={"Origin": ORIGIN})
        assert response.status == 405
        assert_may_be_read(response)


@pytest.mark.parametrize("origins", [[ORIGIN], ["*"]])
@pytest.mark.parametrize("own_address", [False, True])
async def test_o_http_4_what_is_for_operators_is_closed_to_every_other_origin(
    engine: ScriptedEngine, origins: list[str], own_address: bool
) -> None:
    server = {"cors_origins": origins} | ({"operator_port": 0} if own_address else {})
    async with RunningGateway(settings_over({"e1": engine}, server=server)) as gateway:
        await all_ready(gateway)
        for url in {gateway.url, gateway.operator_url if own_address else gateway.url}:
            for path in ("/metrics", "/fleet", *FILES, "/ui/", STATE, UI_CHAT):
                for method, headers in (("GET", {"Origin": ORIGIN}), ("POST", {"Origin": ORIGIN}), ("OPTIONS", PREFLIGHT)):
                    response = await ask(url, path, method=method, headers=headers)
                    assert (path, method, cors_headers(response)) == (path, method, [])
                    assert method == "GET" or response.status in (403, 404, 405)
        assert cors_headers(await ask(gateway.url, CHAT, chat(), headers={"Origin": ORIGIN}))


@pytest.mark.parametrize("bad", ["a;b", "a b", "a,,b", "a" * 3000, ""])
async def test_o_http_4_what_a_preflight_asks_for_is_echoed_only_when_it_is_a_list_of_names(
    engine: ScriptedEngine, gateway_over: GatewayOver, bad: str
) -> None:
    async with gateway_over({"e1": engine}, server=ON) as gateway:
        headers = PREFLIGHT | {"Access-Control-Request-Headers": bad}
        response = await ask(gateway.url, CHAT, method="OPTIONS", headers=headers)
        assert response.header("access-control-allow-headers") == "Authorization, Content-Type"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/livez", "/readyz", "/health", "/metrics", "/nope", CHAT])
async def test_o_http_4_head_is_get_without_a_body(engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    async with gateway_over({"e1": engine}) as gateway, RawClient(gateway.url) as client:
        await all_ready(gateway)
        get = await client.ask(path)
        await client.send(request_bytes(path, method="HEAD"))
        head = await client.read(method="HEAD")
        assert (head.status, head.header("content-type")) == (get.status, get.header("content-type"))
        if path != "/metrics":
            assert head.header("content-length") == get.header("content-length")
        assert (await client.ask("/livez")).status == 200, "nothing of a body came in between"

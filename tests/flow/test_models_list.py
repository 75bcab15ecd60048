"""Which models there are, as OpenAI's and Anthropic's clients hear it; and what is said of one that is not there (O-DSC-3)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from tests.doubles.raw_client import RawClient, RawResponse, ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.flow.conftest import GatewayOver, chat, settings_over

CHAT = "/v1/chat/completions"
VERSION = {"anthropic-version": "2023-06-01"}
MODELS = {
    "small": {"alias_of": "tiny"},
    "zai/glm": {"listing": {"name": "GLM", "context_tokens": 9000, "output_tokens": 100, "parameters": {}, "is_free": True}},
    "old": {"listing": {"name": "Old", "context_tokens": 1, "parameters": {}, "is_free": True, "released": "2026-05-01"}},
}
NAMES = ["small", "zai/glm", "old", "tiny"]
"""Those of the settings, then those that only endpoints serve."""


@pytest.fixture
async def gateway(engine: ScriptedEngine) -> AsyncIterator[RunningGateway]:
    settings = settings_over({"e1": engine}, models=MODELS, auth={"api_key": "sk-test"})
    async with RunningGateway(settings) as started:

        async def problems() -> list[str]:
            return [] if started.app.fleet.snapshot.any_ready else ["the engine was not asked yet"]

        await settled(problems)
        yield started


def assert_anthropic_error(response: RawResponse, status: int, kind: str) -> None:
    assert response.status == status
    document = response.json
    assert (set(document), document["type"]) == ({"type", "error", "request_id"}, "error")
    assert (set(document["error"]), document["error"]["type"]) == ({"type", "message"}, kind)
    assert document["error"]["message"]
    assert [document["request_id"]] == response.all("request-id") == response.all("x-request-id")


# OpenAI's clients


async def test_the_openai_client_lists_and_retrieves_every_name(gateway: RunningGateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-test", max_retries=0) as client:
        listed = {model.id: model async for model in client.models.list()}
        assert list(listed) == NAMES
        for name in NAMES:
            assert (await client.models.retrieve(name)) == listed[name]
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("nope")
    assert caught.value.code == "model_not_found"
    extra = {name: model.model_extra for name, model in listed.items()}
    assert [(extra[name] or {})["root"] for name in NAMES] == ["tiny", "zai/glm", "old", "tiny"]
    assert [(extra[name] or {})["ready"] for name in NAMES] == [True, False, False, True]
    assert listed["old"].created == 1777593600


async def test_a_key_may_stand_in_either_header(gateway: RunningGateway) -> None:
    for headers in ({"Authorization": "Bearer sk-test"}, {"x-api-key": "sk-test"}):
        for path in ("/v1/models", "/v1/models/small"):
            assert (await ask(gateway.url, path, headers=headers)).status == 200
    for headers in (
        {},
        {"x-api-key": "sk-wrong"},
        {"Authorization": "Bearer sk-wrong", "x-api-key": "sk-test"},
        {"x-api-key": " "},
    ):
        response = await ask(gateway.url, "/v1/models", headers=headers)
        assert response.status == 401
        assert set(response.json["error"]) == {"message", "type", "param", "code"}


async def test_readiness_names_models_without_engines(gateway: RunningGateway) -> None:
    response = await ask(gateway.url, "/readyz")
    assert response.json["models"] == {"tiny": True, "zai/glm": False, "old": False}


# Anthropic's clients


async def test_the_anthropic_client_lists_and_retrieves_every_name(gateway: RunningGateway) -> None:
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="sk-test", max_retries=0) as client:
        for limit in (1, 2, 3, 4, 20):
            assert [model.id async for model in client.models.list(limit=limit)] == NAMES
        page = await client.models.list()
        assert (page.has_more, page.first_id, page.last_id) == (False, NAMES[0], NAMES[-1])
        before = await client.models.list(before_id="tiny", limit=2)
        assert ([model.id for model in before.data], before.has_more) == (["zai/glm", "old"], True)
        assert (await client.models.list(lifecycle=["deprecated"])).data == []
        assert len((await client.models.list(lifecycle=["active", "retired"])).data) == 4
        glm = await client.models.retrieve("zai/glm")
        assert (glm.type, glm.id, glm.display_name, glm.lifecycle) == ("model", "zai/glm", "GLM", "active")
        assert (glm.max_input_tokens, glm.max_tokens) == (9000, 100)
        assert (await client.models.retrieve("old")).created_at.isoformat() == "2026-05-01T00:00:00+00:00"
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.models.retrieve("nope")
        assert caught.value.request_id
        assert caught.value.type == "not_found_error"
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="sk-wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.models.list()


async def test_the_list_has_anthropics_fields(gateway: RunningGateway) -> None:
    response = await ask(gateway.url, "/v1/models", headers=VERSION | {"x-api-key": "sk-test", "x-request-id": "mine"})
    document = response.json
    assert set(document) == {"data", "has_more", "first_id", "last_id"}
    for card in document["data"]:
        assert {"type", "id", "display_name", "created_at"} <= set(card)
    assert response.all("x-request-id") == ["mine"]


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "limit=-1",
        "limit=",
        "limit=%D9%A3",
        "after_id=nope",
        "before_id=nope",
        "after_id=tiny&before_id=tiny",
    ],
)
async def test_a_wrong_page_is_refused(gateway: RunningGateway, query: str) -> None:
    response = await ask(gateway.url, f"/v1/models?{query}", headers=VERSION | {"x-api-key": "sk-test"})
    assert_anthropic_error(response, 400, "invalid_request_error")


# Errors that no route makes


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/messages/batches?limit=1", 404, "not_found_error"),
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("DELETE", "/v1/messages/count_tokens", 405, "invalid_request_error"),
    ],
)
@pytest.mark.parametrize("headers", [{}, VERSION])
async def test_paths_below_messages_answer_in_anthropics_shape(
    gateway: RunningGateway, method: str, path: str, status: int, kind: str, headers: dict[str, str]
) -> None:
    assert_anthropic_error(await ask(gateway.url, path, method=method, headers=headers), status, kind)


async def test_elsewhere_the_version_header_tells(gateway: RunningGateway) -> None:
    assert_anthropic_error(await ask(gateway.url, "/v1/files", headers=VERSION), 404, "not_found_error")
    assert_anthropic_error(await ask(gateway.url, "/v1/models", method="PUT", headers=VERSION), 405, "invalid_request_error")
    assert_anthropic_error(await ask(gateway.url, "/v1/models", headers=VERSION), 401, "authentication_error")
    for path in ("/v1/files", "/v1/messagesx"):
        assert set((await ask(gateway.url, path)).json["error"]) == {"message", "type", "param", "code"}
    response = await ask(gateway.url, CHAT, {}, headers=VERSION)
    assert set(response.json["error"]) == {"message", "type", "param", "code"}


MESSAGES_HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: gateway\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "kind"),
    [
        (MESSAGES_HEAD + b"Host: twice\r\n\r\n", 400, "invalid_request_error"),
        (MESSAGES_HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "invalid_request_error"),
        (MESSAGES_HEAD + b"a: " + b"x" * 5000 + b"\r\n\r\n", 431, "invalid_request_error"),
        (b"POST /v1/messages?" + b"x" * 5000 + b" HTTP/1.1\r\n", 414, "invalid_request_error"),
        (MESSAGES_HEAD + b"Content-Length: 5000\r\n\r\n", 413, "request_too_large"),
        (MESSAGES_HEAD, 408, "invalid_request_error"),
        (MESSAGES_HEAD + b"Content-Length: 5\r\n\r\nabc", 408, "invalid_request_error"),
        (MESSAGES_HEAD + b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415, "invalid_request_error"),
        (b"GET /v1/models HTTP/1.1\r\nanthropic-version: x\r\nHost: a\r\nHost: b\r\n\r\n", 400, "invalid_request_error"),
    ],
    ids=["400", "400-smuggling", "431", "414", "413", "408-head", "408-body", "415", "400-models"],
)
async def test_a_request_refused_at_the_edge_is_told_in_anthropics_shape(
    engine: ScriptedEngine, sent: bytes, status: int, kind: str
) -> None:
    limits = {
        "header_bytes": 4096,
        "url_bytes": 4096,
        "body_bytes": 4096,
        "header_timeout_seconds": 2.0,
        "body_timeout_seconds": 2.0,
    }
    async with RunningGateway(settings_over({"e1": engine}, limits=limits)) as gateway, RawClient(gateway.url) as client:
        await client.send(sent)
        assert_anthropic_error(await client.read(method="POST"), status, kind)


async def test_what_cannot_be_read_at_all_is_openais(gateway: RunningGateway) -> None:
    async with RawClient(gateway.url) as client:
        await client.send(b"\x16\x03\x01 nothing\r\n\r\n")
        response = await client.read()
        assert (response.status, response.json["error"]["code"]) == (400, "malformed_request")


async def test_one_connection_too_many_is_told_in_anthropics_shape(engine: ScriptedEngine) -> None:
    settings = settings_over({"e1": engine}, limits={"connections": 1})
    async with RunningGateway(settings) as gateway, RawClient(gateway.url) as first:
        assert (await first.ask("/livez")).status == 200
        response = await ask(gateway.url, "/v1/messages", {})
        assert_anthropic_error(response, 503, "overloaded_error")
        assert response.header("retry-after") == "1"


# O-DSC-3


async def test_o_dsc_3_a_known_model_without_an_engine_is_503_and_an_unknown_one_404(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    """From settings alone, so that each fresh replica says the same."""
    for _ in range(2):
        async with gateway_over({"e1": engine}, models={"a": {}, "alias-of-a": {"alias_of": "a"}}) as gateway:
            for model in ("a", "alias-of-a"):
                for path, body in ((CHAT, chat()), ("/v1/completions", {"prompt": "hi"}), ("/v1/responses", {"input": "hi"})):
                    response = await ask(gateway.url, path, body | {"model": model})
                    assert (response.status, response.json["error"]["code"]) == (503, "model_unavailable")
                    assert 1 <= int(response.header("retry-after") or 0) <= 60
                assert (await ask(gateway.url, f"/v1/models/{model}")).json["ready"] is False
            response = await ask(gateway.url, CHAT, chat(model="nope"))
            assert (response.status, response.json["error"]["code"]) == (404, "model_not_found")
            assert response.header("retry-after") is None
            assert engine.log.requests == []


async def test_o_dsc_3_a_model_works_a_period_after_its_engine_is_there(gateway_over: GatewayOver) -> None:
    async with ScriptedEngine() as engine:
        engine.refuse()
        async with gateway_over({"e1": engine}, probe={"period_seconds": 0.05}) as gateway:
            response = await ask(gateway.url, CHAT, chat())
            assert (response.status, response.json["error"]["code"]) == (503, "model_unavailable")
            await engine.start()

            async def problems() -> list[str]:
                answer = await ask(gateway.url, CHAT, chat())
                return [] if answer.status == 200 else [answer.body.decode()]

            await settled(problems)


async def test_o_dsc_3_anthropics_clients_are_told_to_come_back(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, models={"a": {}}) as gateway:
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="any", max_retries=0) as client:
            with pytest.raises(anthropic.APIStatusError) as caught:
                await client.messages.create(model="a", messages=[{"role": "user", "content": "hi"}], max_tokens=2)
        assert caught.value.status_code == 503
        assert int(caught.value.response.headers["retry-after"]) == 5

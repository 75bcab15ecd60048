"""O-API-5: responses are not kept here, so whoever builds on a kept one is told so, and never gets a new conversation instead."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.doubles.raw_client import RawClient, ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, settings_over
from tests.flow.surfaces import RESPONSES, asking, assert_error
from tests.flow.test_fields import ALICE, BOB

AUTH = {"keys": [ALICE.model_dump(), BOB.model_dump()], "cache_secret": "a-secret-of-the-release"}


def key(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {tenant}"}


async def responses_of(client: RawClient, tenant: str, count: int) -> list[str]:
    """Ask for that many responses to be kept. Returns their ids."""
    ids = []
    for number in range(count):
        body = asking(RESPONSES, input=f"{tenant} {number}", store=True)
        response = await client.ask(RESPONSES, body, headers=key(tenant))
        assert response.status == 200
        assert response.json.get("store") is not True, "the answer does not claim that it is kept"
        ids.append(response.json["id"])
    return ids


@pytest.mark.parametrize("stream", [False, True])
async def test_o_api_5_a_follow_up_is_refused_and_begins_nothing(gateway_over: GatewayOver, stream: bool) -> None:
    """Two engines, two tenants: no engine keeps anything, and no follow-up reaches one, whoever's response it names."""
    async with ScriptedEngine() as first, ScriptedEngine() as second:
        engines = (first, second)
        async with gateway_over({"e1": first, "e2": second}, auth=AUTH) as gateway, RawClient(gateway.url) as client:
            ids = await responses_of(client, "alice", 20)
            assert all(len(engine.log.requests) == 10 for engine in engines)
            assert all(record.json["store"] is False for engine in engines for record in engine.log.requests)
            for tenant in ("alice", "bob"):
                for response_id in ids:
                    body = asking(RESPONSES, previous_response_id=response_id, stream=stream)
                    response = await client.ask(RESPONSES, body, headers=key(tenant))
                    assert response.status == 400
                    error = assert_error(response)
                    assert error["param"] == "previous_response_id"
                    assert "not kept" in error["message"]
                    assert response_id not in error["message"], "nobody learns whether it exists"
            assert sum(len(engine.log.requests) for engine in engines) == 20


@pytest.mark.parametrize("tenant", ["alice", "bob", None])
async def test_o_api_5_nothing_can_be_read_deleted_or_cancelled(gateway_over: GatewayOver, tenant: str | None) -> None:
    async with ScriptedEngine() as first, ScriptedEngine() as second:
        engines = {"e1": first, "e2": second}
        async with gateway_over(engines, auth=AUTH) as gateway, RawClient(gateway.url) as client:
            (response_id,) = await responses_of(client, "alice", 1)
            headers = key(tenant) if tenant else {}
            for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items"), ("POST", "")):
                path = f"{RESPONSES}/{response_id}{rest}"
                response = await client.ask(path, {} if method == "POST" else None, method=method, headers=headers)
                assert response.status == 404
                assert assert_error(response)["code"] == "not_found"
            assert sum(len(engine.log.requests) for engine in engines.values()) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"previous_response_id": ""},
        {"previous_response_id": 7},
        {"previous_response_id": 0},
        {"conversation": 0.0},
        {"background": 0},
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}},
        {"background": True},
        {"background": True, "store": True},
    ],
    ids=str,
)
async def test_o_api_5_whatever_needs_state_is_refused_by_name(
    engine: ScriptedEngine, gateway_over: GatewayOver, fields: dict[str, Any]
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, RESPONSES, asking(RESPONSES, **fields))
        assert response.status == 400
        assert assert_error(response)["param"] == next(iter(fields))
        assert not engine.log.requests


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"tiny","input":"hi","previous_response_id":null,"\\u0070revious_response_id":"resp_1"}',
        b'{"model":"tiny","input":"hi","store":false,"\\u0073tore":true,"store":true}',
    ],
    ids=["a second, escaped one", "store, three times"],
)
async def test_o_api_5_another_spelling_keeps_nothing_either(
    engine: ScriptedEngine, gateway_over: GatewayOver, body: bytes
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, RESPONSES, body)
        if b"previous" in body:
            assert response.status == 400
            assert not engine.log.requests
        else:
            assert response.status == 200
            assert engine.log.requests[0].body.count(b"tore") == 1
            assert engine.log.requests[0].json["store"] is False


async def test_o_api_5_it_is_the_same_after_a_restart_and_without_the_engine(engine: ScriptedEngine) -> None:
    ids: list[str] = []
    for _ in range(2):
        async with RunningGateway(settings_over({"e1": engine}, auth=AUTH)) as gateway, RawClient(gateway.url) as client:
            for response_id in ids:
                body = asking(RESPONSES, previous_response_id=response_id)
                assert (await client.ask(RESPONSES, body, headers=key("alice"))).status == 400
            ids += await responses_of(client, "alice", 1)
            if len(ids) == 2:
                await engine.stop()
                response = await client.ask(RESPONSES, asking(RESPONSES, previous_response_id=ids[0]), headers=key("alice"))
                assert (response.status, response.json["error"]["param"]) == (400, "previous_response_id")


async def test_o_api_5_the_openai_client_gets_its_own_classes(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
            made = await client.responses.create(model="tiny", input="hi", store=True)
            with pytest.raises(openai.BadRequestError):
                await client.responses.create(model="tiny", input="and?", previous_response_id=made.id)
            for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
                with pytest.raises(openai.NotFoundError):
                    await call(made.id)
            assert len(engine.log.requests) == 1

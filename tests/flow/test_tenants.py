"""What a tenant may ask for, with what caps, and who shares its caches; and how its keys come and go."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from pydantic import SecretStr

from serving.ledger_settings import DatabaseSettings
from serving.tenancy.database.open import open_database
from serving.tenancy.keys import KeyHashes, KeyTable, key_line, new_key
from tests.doubles.raw_client import RawResponse, ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.flow.conftest import GatewayOver, chat
from tests.flow.surfaces import CHAT, GENERATING, asking, assert_error

SECRET = "the secret of all gateways"
MODELS = {
    "small": {"alias_of": "tiny"},
    "hidden": {"listing": {"name": "Hidden", "context_tokens": 9000, "parameters": {}, "is_free": True}},
}


def auth(*tenants: str) -> dict[str, Any]:
    """The key of each tenant is its name."""
    return {"keys": [{"tenant": tenant, "sha256": hashlib.sha256(tenant.encode()).hexdigest()} for tenant in tenants]}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# Models


@pytest.mark.parametrize("path", GENERATING)
async def test_a_model_that_is_not_the_tenants_does_not_exist_for_it(
    engine: ScriptedEngine, gateway_over: GatewayOver, path: str
) -> None:
    async with gateway_over(
        {"e1": engine}, models=MODELS, auth=auth("red", "blue"), tenants={"red": {"models": ["small"]}, "blue": {}}
    ) as gateway:
        own = await ask(gateway.url, path, asking(path, model="small"), headers=bearer("red"))
        others = await ask(gateway.url, path, asking(path, model="tiny"), headers=bearer("red"))
        nobodys = await ask(gateway.url, path, asking(path, model="none"), headers=bearer("red"))
        assert (own.status, others.status, nobodys.status) == (200, 404, 404)
        error, unknown = assert_error(others, path), assert_error(nobodys, path)
        assert {**error, "message": ""} == {**unknown, "message": ""}
        assert error["message"] == unknown["message"].replace("'none'", "'tiny'")
        assert (await ask(gateway.url, path, asking(path, model="tiny"), headers=bearer("blue"))).status == 200
        assert len(engine.log.requests) == 2


async def test_a_tenants_lists_hold_its_models_only(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over(
        {"e1": engine},
        models=MODELS,
        auth=auth("red", "blue"),
        tenants={"red": {"models": ["small", "tiny"]}, "blue": {}},
        provider_listing={"enabled": True},
    ) as gateway:
        for key, names in (("red", ["small", "tiny"]), ("blue", ["small", "hidden", "tiny"])):
            async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as client:
                assert [model.id async for model in client.models.list()] == names
            async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=key, max_retries=0) as client:
                assert [model.id async for model in client.models.list()] == names
            listed = (await ask(gateway.url, "/v1/providers/models", headers=bearer(key))).json["data"]
            assert [model["id"] for model in listed] == [name for name in names if name == "hidden"]
            found = await ask(gateway.url, "/v1/models/hidden", headers=bearer(key))
            assert found.status == (200 if "hidden" in names else 404)


# Caps


async def test_caps_are_the_tenants_own(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    tenants = {"red": {"parameters": {"max_tokens": 10, "n": 1}}, "blue": {"parameters": {"max_tokens": None}}}
    async with gateway_over(
        {"e1": engine}, auth=auth("red", "blue"), tenants=tenants, limits={"parameters": {"max_tokens": 100}}
    ) as gateway:

        async def asked(key: str, **fields: Any) -> RawResponse:
            return await ask(gateway.url, CHAT, chat(**fields), headers=bearer(key))

        assert (await asked("red", max_tokens=10)).status == 200
        refused = await asked("red", max_tokens=11)
        assert (refused.status, assert_error(refused)["param"]) == (400, "max_tokens")
        assert (await asked("red", n=2)).status == 400
        assert (await asked("blue", n=2, max_tokens=200)).status == 200


# Isolation


async def test_o_sec_3_salts_are_those_of_the_group(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    group = {"isolation": "shared", "isolation_group": "team"}
    tenants = {"alice": group, "bob": group, "carol": {}, "dave": {"isolation": "off"}, "team": {}}
    async with gateway_over({"e1": engine}, auth=auth(*tenants), tenants=tenants) as gateway:
        salts = []
        for key in tenants:
            assert (await ask(gateway.url, CHAT, chat(), headers=bearer(key))).status == 200
            salts.append(engine.log.requests[-1].json.get("cache_salt"))
        alice, bob, carol, dave, team = salts
        assert alice == bob
        assert len({alice, carol, team}) == 3, "a group is not the tenant of its name"
        assert dave is None
        for key in tenants:
            assert (await ask(gateway.url, CHAT, chat(cache_salt=alice), headers=bearer(key))).status == 200
            assert engine.log.requests[-1].json["cache_salt"] not in salts, "nobody can name another's, nor its own"


# Keys that come and go


def opened(url: str) -> KeyTable:
    return KeyTable(open_database(DatabaseSettings(url=SecretStr(url))))


async def status(gateway: RunningGateway, key: str) -> int:
    return (await ask(gateway.url, CHAT, chat(), headers=bearer(key))).status


async def test_a_key_made_while_the_gateway_runs_works_and_a_revoked_one_stops_within_5_s(
    engine: ScriptedEngine, gateway_over: GatewayOver, tmp_path: Path
) -> None:
    url = f"sqlite:{tmp_path}/serving.db"
    record, key = new_key("red", KeyHashes(SECRET), note="", now=time.time())
    async with gateway_over({"e1": engine}, database={"url": url}, auth={"key_secret": SECRET}) as gateway:
        assert await status(gateway, key) == 401
        table = opened(url)
        table.add(record)

        async def unlike(wanted: int) -> list[str]:
            found = await status(gateway, key)
            return [] if found == wanted else [str(found)]

        await settled(lambda: unlike(200))
        table.revoke(record.id, time.time())
        await settled(lambda: unlike(401))
        table._database.close()
        assert engine.log.requests
        assert not [record for record in engine.log.requests if key.encode() in record.raw], "O-SEC-2"


async def test_a_key_that_is_taken_out_of_its_file_stops(
    engine: ScriptedEngine, gateway_over: GatewayOver, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    (red, red_key), (blue, blue_key) = (new_key(name, KeyHashes(SECRET), note="", now=0.0) for name in ("red", "blue"))
    path.write_text(f"{key_line(red)}\n{key_line(blue)}\n")
    keys = {"key_secret": SECRET, "key_file": str(path), "key_file_poll_seconds": 0.05}
    async with gateway_over({"e1": engine}, auth=keys) as gateway:
        assert [await status(gateway, key) for key in (red_key, blue_key)] == [200, 200]
        path.write_text(f"{key_line(blue)}\n")

        async def still_served() -> list[str]:
            return [] if await status(gateway, red_key) == 401 else ["still served"]

        await settled(still_served)
        assert await status(gateway, blue_key) == 200
        names = (await gateway.metrics()).names()
        assert "serving_keys_ignored" in names
        assert not [name for name in names if "ledger" in name or "database" in name or "age" in name], "there is no database"


@pytest.mark.parametrize("place", ["file", "database"])
async def test_a_key_of_a_tenant_that_is_not_listed_opens_nothing_and_is_counted(
    engine: ScriptedEngine, gateway_over: GatewayOver, tmp_path: Path, place: str
) -> None:
    record, key = new_key("stray", KeyHashes(SECRET), note="", now=0.0)
    sections: dict[str, Any] = {"auth": {"key_secret": SECRET}}
    if place == "file":
        (tmp_path / "keys").write_text(key_line(record))
        sections["auth"]["key_file"] = str(tmp_path / "keys")
    else:
        sections["database"] = {"url": f"sqlite:{tmp_path}/serving.db"}
        table = opened(sections["database"]["url"])
        table.add(record)
        table._database.close()
    async with gateway_over({"e1": engine}, tenants={"red": {}}, **sections) as gateway:
        assert await status(gateway, key) == 401
        metrics = await gateway.metrics()
        assert metrics.sum("serving_keys_ignored", reason="unknown_tenant") == 1


async def test_without_a_database_there_are_no_series_of_one(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        names = (await gateway.metrics()).names()
        assert not [name for name in names if "ledger" in name or "keys" in name or "database" in name]

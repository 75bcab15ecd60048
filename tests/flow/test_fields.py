"""Fields of a request that only the gateway may set, and those that could hurt an engine."""

from __future__ import annotations

import hashlib
from typing import Any

import openai
import pytest

from serving.settings import KeySettings, Settings
from tests.doubles.raw_client import ask
from tests.doubles.real_engine import RealEngine
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, chat
from tests.flow.surfaces import COMPLETIONS, MESSAGES, RESPONSES, asking, assert_error

CHAT = "/v1/chat/completions"
ALICE = KeySettings(tenant="alice", sha256="2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90")
BOB = KeySettings(tenant="bob", sha256="81b637d8fcd2c6da6359e6963113a1170de795e4b725b84d1e0b4cfd9ec58ce9")
"""The keys are the tenants' names."""


async def test_o_api_2_what_we_do_not_know_passes_untouched(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    body = b"""{"model":"tiny","messages":[{"role":"developer","content":"x","name":"n"},{"role":"user","content":"hi"},
        {"role":"assistant","content":null,"tool_calls":[]}],"tools":[{"type":"function","function":{"name":"f"}}],
        "chat_template_kwargs":{"a":1},"min_p":0.0,"reasoning_effort":"low","seed":9007199254740993,"temperature":1,
        "top_p":1.0,"logit_bias":{"1":-1},"metadata":{"k":"v"},"x_future":{"a":[1,2]},"max_tokens":3}"""
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, CHAT, body)).status == 200
        assert engine.log.requests[0].body == body


async def test_older_names_of_structured_output_are_said_again(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    schema = {"type": "object"}
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, CHAT, chat(guided_json=schema))).status == 200
        sent = engine.log.requests[0].json
        assert sent["guided_json"] == schema
        assert sent["structured_outputs"] == {"json": schema}


@pytest.mark.parametrize(
    "text",
    [
        b'{"priority":-5,"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":3}',
        b'{"\\u0070riority":-5,"model":"tiny","priority":1,"messages":[{"role":"user","content":"hi"}],"max_tokens":3}',
        b'{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":3,"kv_transfer_params":{"do_remote_decode":true},'
        b'"request_id":"x","routed_experts_\\r\\nprefix":1}',
    ],
)
async def test_a_privilege_never_reaches_an_engine_however_it_is_spelt(
    engine: ScriptedEngine, gateway_over: GatewayOver, text: bytes
) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        response = await ask(gateway.url, CHAT, text)
        assert response.status == 200
        assert set(engine.log.requests[0].json) == {"model", "messages", "max_tokens"}
        assert response.header("x-serving-dropped-fields")


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("n", [1, 8, 8.0, None], [9, 9.0, 0, -1, 10**9, "8", True, 1.5]),
        ("best_of", [8], [9, -1, "8"]),
        ("top_logprobs", [0, 20], [21, -1, "8", True]),
        ("prompt_logprobs", [None], [0, 1, "1"]),
        ("max_tokens", [1, 4096, 5.0], [4097, 4097.0, 1e300, 5.5, 0, -1, "8", True]),
        ("max_completion_tokens", [4096], [4097, "8"]),
        ("logprobs", [True, False, None], [21, "x"]),
    ],
)
async def test_o_api_3_parameters_that_can_kill_an_engine_are_capped(
    engine: ScriptedEngine, gateway_over: GatewayOver, field: str, good: list[Any], bad: list[Any]
) -> None:
    engine.max_model_len = 100_000
    async with gateway_over({"e1": engine}, limits={"parameters": {"max_tokens": 4096}}) as gateway:
        for value in good:
            body = chat() | {field: value}
            if field == "best_of":
                body = {"model": "tiny", "prompt": "hi", "max_tokens": 2, field: value}
            assert (await ask(gateway.url, CHAT if "messages" in body else "/v1/completions", body)).status == 200
        seen = len(engine.log.requests)
        for value in bad:
            response = await ask(gateway.url, CHAT, chat() | {field: value})
            assert (response.status, response.json["error"]["param"]) == (400, field)
        assert len(engine.log.requests) == seen


@pytest.mark.parametrize(("path", "limit_name"), [("/v1/responses", "max_output_tokens"), ("/v1/messages", "max_tokens")])
async def test_o_api_3_the_other_routes_have_the_same_caps(
    engine: ScriptedEngine, gateway_over: GatewayOver, path: str, limit_name: str
) -> None:
    async with gateway_over({"e1": engine}, limits={"parameters": {"max_tokens": 4096}}) as gateway:
        for field, value in ((limit_name, 4097), (limit_name, "8"), (limit_name, True), ("n", 9), ("top_logprobs", 21)):
            response = await ask(gateway.url, path, asking(path) | {field: value})
            assert response.status == 400
            assert field in assert_error(response, path)["message"]
        assert not engine.log.requests


async def test_o_api_3_caps_are_on_by_default(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        for field, value in (("n", 9), ("best_of", 9), ("top_logprobs", 21), ("prompt_logprobs", 1), ("logprobs", 21)):
            assert (await ask(gateway.url, CHAT, chat() | {field: value})).status == 400
        many = {"model": "tiny", "prompt": ["a"] * 257, "max_tokens": 1}
        assert (await ask(gateway.url, "/v1/completions", many)).status == 400
        assert not engine.log.requests


async def test_o_api_3_an_sdks_extra_body_is_the_body(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """The client puts its members at the top, where they are capped; one of that very name means nothing to an engine."""
    async with gateway_over({"e1": engine}) as gateway:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "hi"}], extra_body={"prompt_logprobs": 5}
                )
            assert refused.value.param == "prompt_logprobs"
        assert not engine.log.requests
        response = await ask(gateway.url, CHAT, chat(extra_body={"n": 100}))
        assert (response.status, len(response.json["choices"])) == (200, 1)


async def test_o_api_3_too_many_prompts_are_refused(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, limits={"parameters": {"prompts": 2}}) as gateway:
        for prompt, status in ((["a", "b"], 200), (["a", "b", "c"], 400), ([1, 2, 3], 200), ([[1], [2], [3]], 400)):
            response = await ask(gateway.url, "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 1})
            assert response.status == status


async def test_o_sec_3_tenants_do_not_share_a_prefix_cache(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    auth = {"keys": [ALICE.model_dump(), BOB.model_dump()], "cache_secret": "a-secret-of-the-release"}
    salts = []
    async with gateway_over({"e1": engine}, auth=auth) as gateway:
        for key, own in (("alice", None), ("alice", None), ("bob", None), ("bob", "$alice"), ("alice", "mine")):
            body = chat() if own is None else chat(cache_salt=salts[0] if own == "$alice" else own)
            assert (await ask(gateway.url, CHAT, body, headers={"Authorization": f"Bearer {key}"})).status == 200
            salts.append(engine.log.requests[-1].json["cache_salt"])
    alice, again, bob, stolen, own_salt = salts
    assert alice == again
    assert len({alice, bob, stolen, own_salt}) == 4
    assert "alice" not in alice
    async with gateway_over({"e1": engine}, auth=auth) as replica:
        assert (await ask(replica.url, CHAT, chat(), headers={"Authorization": "Bearer alice"})).status == 200
        assert engine.log.requests[-1].json["cache_salt"] == alice


@pytest.mark.parametrize("path", [COMPLETIONS, RESPONSES, MESSAGES])
async def test_o_sec_3_on_every_route_that_generates(engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    auth = {"keys": [ALICE.model_dump(), BOB.model_dump()], "cache_secret": "a-secret-of-the-release"}
    async with gateway_over({"e1": engine}, auth=auth) as gateway:
        salts = []
        for key, fields in (("alice", {}), ("bob", {}), ("bob", {"cache_salt": "$alice"}), ("alice", {})):
            given = {"cache_salt": salts[0]} if fields else {}
            headers = {"Authorization": f"Bearer {key}"}
            assert (await ask(gateway.url, path, asking(path, **given), headers=headers)).status == 200
            salts.append(engine.log.requests[-1].json["cache_salt"])
        assert salts[0] == salts[3]
        assert len(set(salts)) == 3


@pytest.mark.parametrize("auth", [{}, {"keys": [ALICE.model_dump()]}], ids=["no keys", "one tenant"])
async def test_o_sec_3_a_single_tenant_shares_with_itself(
    engine: ScriptedEngine, gateway_over: GatewayOver, auth: dict[str, Any]
) -> None:
    """Nobody to keep apart: the body passes as it is, and so it does where isolation is switched off."""
    both = {"keys": [ALICE.model_dump(), BOB.model_dump()], "isolate_caches": False}
    for policy in (auth, both):
        async with gateway_over({"e1": engine}, auth=policy) as gateway:
            assert (await ask(gateway.url, CHAT, chat(), headers={"Authorization": "Bearer alice"})).status == 200
            assert "cache_salt" not in engine.log.requests[-1].json


@pytest.mark.engine
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_o_sec_3_a_real_engine_shares_nothing_between_tenants(real_engine: RealEngine, path: str) -> None:
    """The paired check: a tenant's own repetition is found in the cache, another's is not, whatever salt it names."""
    auth = {"keys": [ALICE.model_dump(), BOB.model_dump()]}
    settings = Settings.model_validate({"endpoints": [{"name": "e1", "url": real_engine.url, "model": "tiny"}], "auth": auth})
    prompt = f"the very same prompt on {path} " * 40

    async with RunningGateway(settings) as gateway:

        async def hits(tenant: str, **fields: Any) -> float:
            before = await cache_hits(real_engine.url)
            named = {"input": prompt} if path == RESPONSES else {"prompt": prompt} if path == COMPLETIONS else {}
            body = asking(path, **(named or {"messages": [{"role": "user", "content": prompt}]}), **fields)
            headers = {"Authorization": f"Bearer {tenant}"}
            assert (await ask(gateway.url, path, body, headers=headers)).status == 200
            return await cache_hits(real_engine.url) - before

        assert await hits("alice") == 0
        assert await hits("bob") == 0
        assert await hits("bob", cache_salt="alice") == 0
        assert await hits("alice") > 400
        assert await hits("bob") > 400


@pytest.mark.engine
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_o_sec_3_a_real_engine_shares_within_a_group_and_with_nobody_else(real_engine: RealEngine, path: str) -> None:
    """Alice and Bob share by their group, Carol and Dave by having none; nobody shares across."""
    shared, off = {"isolation": "shared", "isolation_group": "team"}, {"isolation": "off"}
    tenants = {"alice": shared, "bob": shared, "carol": off, "dave": off, "erin": {}}
    keys = [{"tenant": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in tenants]
    endpoints = [{"name": "e1", "url": real_engine.url, "model": "tiny"}]
    settings = Settings.model_validate({"endpoints": endpoints, "auth": {"keys": keys}, "tenants": tenants})
    prompt = f"the very same prompt of groups on {path} " * 40

    async with RunningGateway(settings) as gateway:

        async def hits(tenant: str, **fields: Any) -> float:
            before = await cache_hits(real_engine.url)
            named = {"input": prompt} if path == RESPONSES else {"prompt": prompt} if path == COMPLETIONS else {}
            body = asking(path, **(named or {"messages": [{"role": "user", "content": prompt}]}), **fields)
            assert (await ask(gateway.url, path, body, headers={"Authorization": f"Bearer {tenant}"})).status == 200
            return await cache_hits(real_engine.url) - before

        assert await hits("alice") == 0
        assert await hits("bob") > 400
        assert await hits("carol") == 0
        assert await hits("dave") > 400
        assert await hits("erin") == 0
        assert await hits("erin", cache_salt="team") == 0


async def cache_hits(url: str) -> float:
    return MetricValues((await ask(url, "/metrics")).body.decode()).sum("vllm:prefix_cache_hits_total")


async def test_o_sec_3_a_callers_own_cache_salt_never_passes_as_it_is(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, CHAT, chat(cache_salt="known"))).status == 200
        assert engine.log.requests[0].json["cache_salt"] != "known"
        assert (await ask(gateway.url, CHAT, chat(cache_salt=5))).status == 400

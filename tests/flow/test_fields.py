"""Fields of a request that only the gateway may set, and those that could hurt an engine."""

from __future__ import annotations

from typing import Any

import pytest

from serving.settings import KeySettings
from tests.doubles.raw_client import ask
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, chat

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


async def test_too_many_prompts_are_refused(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
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


async def test_a_callers_own_cache_salt_never_passes_as_it_is(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        assert (await ask(gateway.url, CHAT, chat(cache_salt="known"))).status == 200
        assert engine.log.requests[0].json["cache_salt"] != "known"
        assert (await ask(gateway.url, CHAT, chat(cache_salt=5))).status == 400

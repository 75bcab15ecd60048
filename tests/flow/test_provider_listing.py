"""What a marketplace reads: OpenRouter's schema 2.4, prices to the digit, readiness from the endpoints."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from serving.fleet.store import EndpointState
from serving.settings import Settings
from tests.doubles.provider_schema import Listing
from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.flow.conftest import chat, settings_over

PATH = "/v1/providers/models"
PARAMETERS = {
    "temperature": {"type": "range", "min": 0, "max": 2, "default": 1},
    "max_tokens": {"type": "integer", "min": 1, "max": 16000, "unit": "token"},
    "tools": {"type": "boolean"},
    "reasoning_effort": {"type": "enum", "values": ["low", "high"]},
    "stop": {"type": "array", "max_items": 4, "items": {"type": "unknown"}},
    "response_format": {"type": "object", "properties": {"type": {"type": "enum", "values": ["json_schema"]}}},
    "logit_bias": {"type": "unknown"},
}
GLM = {
    "name": "Z.AI: GLM 5.2",
    "context_tokens": 200_000,
    "prompt_tokens": 184_000,
    "output_tokens": 16_000,
    "parameters": PARAMETERS,
    "prices": {
        "prompt": "0.0000006",
        "cached_prompt": "0.00000011",
        "completion": "0.0000022",
        "internal_reasoning": "0.0000022",
        "request": "0.001",
    },
    "hugging_face_id": "zai-org/GLM-5.2",
    "quantization": "fp8",
    "tokenizer": "GLM",
    "description": "Answers.",
    "released": "2026-05-01",
    "capacity": {
        "prompt_tokens_per_minute": 1_000_000,
        "output_tokens_per_minute": 50_000,
        "requests_per_minute": 1000,
        "concurrent_requests": 64,
    },
    "slug": "z-ai/glm-5.2",
    "deprecation_date": "2027-06-01T15:00:00Z",
    "discount_to_user": 0.2,
}
FREE = {"name": "Free", "context_tokens": 4096, "parameters": {}, "is_free": True}
MODELS = {
    "tiny": {},
    "zai/glm-5.2": {"alias_of": "tiny", "listing": GLM},
    "away": {"listing": FREE},
    "not-listed": {"alias_of": "tiny"},
}
ON = {
    "enabled": True,
    "datacenters": [{"country_code": "DE", "region": "fra-1"}, {"country_code": "US"}],
    "compliance": {"zdr": True},
}


def listed(engine: ScriptedEngine, **sections: Any) -> Settings:
    return settings_over({"e1": engine}, **({"models": MODELS, "provider_listing": ON} | sections))


async def test_a_listing_is_off_until_it_is_switched_on(engine: ScriptedEngine) -> None:
    async with RunningGateway(listed(engine, provider_listing={})) as gateway:
        assert (await ask(gateway.url, PATH)).status == 404
        assert PATH not in (await ask(gateway.url, "/openapi.json")).json["paths"]
    async with RunningGateway(listed(engine)) as gateway:
        assert PATH in (await ask(gateway.url, "/openapi.json")).json["paths"]


async def probed(gateway: RunningGateway) -> None:
    """Wait until all endpoints were asked once."""

    async def problems() -> list[str]:
        states = [status.state for status in gateway.app.fleet.snapshot.statuses.values()]
        return [] if EndpointState.UNKNOWN not in states else [f"{states}"]

    await settled(problems)


async def test_every_field_is_where_the_schema_wants_it(engine: ScriptedEngine) -> None:
    async with RunningGateway(listed(engine)) as gateway:
        await probed(gateway)
        response = await ask(gateway.url, PATH)
        assert (response.status, response.header("content-type")) == (200, "application/json")
        Listing.model_validate_json(response.body)
        glm, away = response.json["data"]
    assert glm == {
        "schema_version": "2.4",
        "id": "zai/glm-5.2",
        "name": "Z.AI: GLM 5.2",
        "hugging_face_id": "zai-org/GLM-5.2",
        "created": 1777593600,
        "quantization": "fp8",
        "tokenizer": "GLM",
        "description": "Answers.",
        "input_modalities": [
            {
                "type": "text",
                "supported_inputs": {
                    "max_context_length": {"value": 200_000, "unit": "token"},
                    "max_prompt_length": {"value": 184_000, "unit": "token"},
                },
                "pricing": [
                    {"type": "prompt", "unit": "token", "cost_usd": "0.0000006"},
                    {"type": "cached_prompt", "unit": "token", "cost_usd": "0.00000011"},
                ],
                "capacity": [{"type": "prompt", "unit": "token", "per": "minute", "value": 1_000_000}],
            }
        ],
        "output_modalities": [
            {
                "type": "text",
                "streaming": True,
                "max_length": {"value": 16_000, "unit": "token"},
                "supported_parameters": PARAMETERS,
                "pricing": [
                    {"type": "completion", "unit": "token", "cost_usd": "0.0000022"},
                    {"type": "internal_reasoning", "unit": "token", "cost_usd": "0.0000022"},
                ],
                "capacity": [{"type": "completion", "unit": "token", "per": "minute", "value": 50_000}],
            }
        ],
        "pricing": [{"type": "request", "unit": "request", "cost_usd": "0.001"}],
        "capacity": [
            {"type": "request", "unit": "request", "per": "minute", "value": 1000},
            {"type": "concurrency", "unit": "request", "value": 64},
        ],
        "deprecation_date": "2027-06-01T15:00:00Z",
        "is_ready": True,
        "discount_to_user": 0.2,
        "openrouter": {"slug": "z-ai/glm-5.2"},
        "datacenters": [{"country_code": "DE", "region": "fra-1"}, {"country_code": "US"}],
        "compliance": {"zdr": True},
    }
    assert away == {
        "schema_version": "2.4",
        "id": "away",
        "name": "Free",
        "quantization": None,
        "input_modalities": [{"type": "text", "supported_inputs": {"max_context_length": {"value": 4096, "unit": "token"}}}],
        "output_modalities": [{"type": "text", "streaming": True, "supported_parameters": {}}],
        "is_ready": False,
        "is_free": True,
        "datacenters": [{"country_code": "DE", "region": "fra-1"}, {"country_code": "US"}],
        "compliance": {"zdr": True},
    }


async def test_the_id_is_what_requests_name(engine: ScriptedEngine) -> None:
    async with RunningGateway(listed(engine)) as gateway:
        await probed(gateway)
        for model in (await ask(gateway.url, PATH)).json["data"]:
            status = (await ask(gateway.url, "/v1/chat/completions", chat(model=model["id"]))).status
            assert status == (200 if model["is_ready"] else 503)


async def test_a_stand_in_makes_no_model_ready(engine: ScriptedEngine) -> None:
    models = {"tiny": {}, "away": {"listing": FREE, "fallbacks": ["tiny"]}}
    async with RunningGateway(listed(engine, models=models)) as gateway:
        assert [model["is_ready"] for model in (await ask(gateway.url, PATH)).json["data"]] == [False]


async def test_readiness_follows_the_endpoints() -> None:
    async with ScriptedEngine() as engine:
        async with RunningGateway(listed(engine, probe={"period_seconds": 0.05})) as gateway:

            async def is_ready() -> bool:
                return bool((await ask(gateway.url, PATH)).json["data"][0].get("is_ready"))

            async def still(wanted: bool) -> list[str]:
                return [] if await is_ready() is wanted else [f"is_ready is not {wanted}"]

            await settled(lambda: still(True))
            engine.refuse()
            await settled(lambda: still(False))
            await engine.start()
            await settled(lambda: still(True))


async def test_what_is_not_known_yet_takes_no_model_off_the_market(engine: ScriptedEngine) -> None:
    engine.blackhole = True
    async with RunningGateway(listed(engine)) as gateway:
        glm, away = (await ask(gateway.url, PATH)).json["data"]
        assert "is_ready" not in glm
        assert away["is_ready"] is False


async def test_a_key_is_wanted_where_keys_are_set(engine: ScriptedEngine) -> None:
    async with RunningGateway(listed(engine, auth={"api_key": "sk-test"})) as gateway:
        assert (await ask(gateway.url, PATH)).status == 401
        assert (await ask(gateway.url, PATH, headers={"Authorization": "Bearer sk-test"})).status == 200


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prices": {"prompt": 0.0000006}}, "prices.prompt: must be a decimal number in quotes"),
        ({"prices": {"prompt": "6e-7"}}, "prices.prompt: must be a decimal number without sign and exponent"),
        ({"prices": {"prompt": "-0.1"}}, "prices.prompt: must be a decimal number without"),
        ({"prices": {"prompt": "0.000"}}, "prices.prompt: is zero; leave out what is not billed"),
        ({"prices": {"completion": "0.60"}}, "prices.completion: is 0.60 dollars a token; give the price of one token"),
        ({"prices": {}}, "prices: is empty"),
        ({"prices": None}, "must have either prices or is_free: true"),
        ({"is_free": True}, "must have either prices or is_free: true"),
        ({"quantization": "q4"}, "quantization: Input should be 'int4'"),
        ({"output_tokens": 300_000}, "cannot be more than context_tokens"),
        ({"parameters": {"top_p": {"type": "range", "values": [1]}}}, "parameters.top_p.range.values: "),
        ({"parameters": {"top_p": {"type": "enum"}}}, "parameters.top_p.enum.values: Field required"),
        ({"deprecation_date": "soon"}, "deprecation_date: must be a day"),
        ({"deprecation_date": "2027-06-01T25:00:00Z"}, "deprecation_date: its hour"),
        ({"discount_to_user": 1}, "discount_to_user: Input should be less than 1"),
        ({"context_length": 5}, "context_length: Extra inputs are not permitted"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"models": {"m": {"listing": GLM | change}}})
    (problem,) = caught.value.errors()
    place = ".".join(map(str, problem["loc"]))
    assert f"{place}: {problem['msg'].removeprefix('Value error, ')}".startswith("models.m.listing")
    assert words in f"{place}: {problem['msg'].removeprefix('Value error, ')}"


def test_a_listing_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"provider_listing.enabled: there is nothing to list"):
        Settings.model_validate({"provider_listing": {"enabled": True}, "models": {"m": {}}})

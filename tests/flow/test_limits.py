"""O-QOS-1, 2 and 4: limits are exact, reserved first and settled later, and what is refused or free costs nothing."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from serving.tenancy.quotas import Limits, Standing
from tests.doubles.conservation import Expectation
from tests.doubles.raw_client import RawClient, RawResponse, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Gate, Script, Usage
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS, settled
from tests.doubles.tenants import bearer, crowd, tenants
from tests.flow.conftest import GatewayOver, chat
from tests.flow.surfaces import MESSAGES, assert_error

CHAT = "/v1/chat/completions"
LIMIT_AND_LEFT = ("x-ratelimit-limit-{}", "x-ratelimit-remaining-{}")


def limits(**most: float) -> dict[str, Any]:
    return {"limits": most}


def error_of(response: RawResponse) -> dict[str, Any]:
    return dict(json.loads(response.body)["error"])


def left(gateway: RunningGateway, tenant: str, most: Limits) -> Standing:
    return gateway.app.quotas.standing(tenant, most)


async def test_o_qos_1_a_burst_gets_exactly_the_limit(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    names = [f"t{number}" for number in range(10)]
    async with gateway_over({"e1": engine}, **tenants({name: limits(requests_per_minute=10) for name in names})) as gateway:
        async with crowd([gateway.url], 200) as clients:
            for name in names:
                answers = await clients.ask(CHAT, chat(), bearer(name))
                admitted = [answer for answer in answers if answer.status == 200]
                assert len(admitted) == 10, name
                told = sorted(int(answer.header("x-ratelimit-remaining-requests") or -1) for answer in admitted)
                assert told == list(range(10)), "each one is told what was left after it"
                for answer in answers:
                    if answer.status != 200:
                        assert_limited(answer, "10")


def assert_limited(answer: RawResponse, limit: str) -> None:
    assert answer.status == 429
    assert error_of(answer)["code"] == "rate_limit_exceeded"
    assert re.fullmatch(r"[1-9]|[1-5][0-9]|60", answer.header("retry-after") or ""), answer.headers
    assert answer.header("x-ratelimit-limit-requests") == limit
    assert answer.header("x-ratelimit-remaining-requests") == "0"
    assert re.fullmatch(r"(1m)?[0-9.]+m?s", answer.header("x-ratelimit-reset-requests") or "")


async def test_o_qos_2_tokens_are_reserved_first_and_settled_later(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """20 at once, each of about 50 prompt tokens and at most 100 of output; the engine makes 40."""
    gate = Gate()
    engine.default = Script(usage=Usage(prompt_tokens=50, completion_tokens=40), gate=gate)
    most = Limits(tokens=1000)
    asked = chat(max_tokens=100, messages=[{"role": "user", "content": "x" * 100}])
    async with gateway_over({"e1": engine}, **tenants({"a": limits(tokens_per_minute=1000)})) as gateway:
        async with crowd([gateway.url], 20) as clients:
            asking = asyncio.create_task(clients.ask(CHAT, asked, bearer("a")))

            async def all_decided() -> list[str]:
                decided = gateway.app.admission.open_leases + (await gateway.metrics()).sum("serving_rejections_total")
                return [] if decided == 20 else [f"{decided} of 20"]

            await settled(all_decided)
            running = gateway.app.admission.open_leases
            reserved = 1000 - left(gateway, "a", most).tokens
            size = reserved // running
            assert 0 <= reserved <= 1000 and 1000 - reserved < size, "as many as fit, and not one more"
            gate.open_all()
            answers = await asking
        assert [answer.status for answer in answers].count(200) == running
        assert left(gateway, "a", most).tokens == 1000 - running * 90, "settled to what the engine said"
        again = await ask(gateway.url, CHAT, asked, headers=bearer("a"))
        assert again.status == 200, "what was not used can be used"


async def test_o_qos_2_a_request_that_can_never_fit_is_told_so(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": engine}, **tenants({"a": limits(tokens_per_minute=1000)})) as gateway:
        answer = await ask(gateway.url, CHAT, chat(max_tokens=5000), headers=bearer("a"))
        assert (answer.status, error_of(answer)["code"], error_of(answer)["param"]) == (
            400,
            "request_exceeds_limit",
            "max_tokens",
        )
        assert answer.header("retry-after") is None
        assert "1000 a minute" in error_of(answer)["message"]
        assert left(gateway, "a", Limits(tokens=1000)).tokens == 1000
        unbounded = chat()
        del unbounded["max_tokens"]
        assert (await ask(gateway.url, CHAT, unbounded, headers=bearer("a"))).status == 200, "without max_tokens it may fit"


async def test_o_qos_2_what_an_engine_broke_off_costs_nothing(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    most = Limits(requests=10, tokens=1000)
    sections = tenants({"a": limits(requests_per_minute=10, tokens_per_minute=1000)})
    async with gateway_over({"e1": engine}, relay={"max_attempts": 1}, **sections) as gateway:
        for script in (Script(close_after=2), Script(rst_after=3), Script(error_after=2), Script(status=500), Script(status=503)):
            engine.script(script)
            async with RawClient(gateway.url) as client:
                await client.send(request_bytes(CHAT, chat(stream=True), headers=bearer("a")))
                await client.read()
            await settled(lambda: _is_whole(gateway, most))


async def _is_whole(gateway: RunningGateway, most: Limits) -> list[str]:
    standing = left(gateway, "a", most)
    return [] if (standing.requests, standing.tokens) == (most.requests, most.tokens) else [str(standing)]


async def test_a_client_that_leaves_pays_for_its_prompt_and_what_it_got(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    most = Limits(requests=10, tokens=1000)
    gate = Gate(events=4)
    engine.default = Script(usage=Usage(prompt_tokens=50, completion_tokens=40), gate=gate)
    sections = tenants({"a": limits(requests_per_minute=10, tokens_per_minute=1000)})
    async with gateway_over({"e1": engine}, **sections) as gateway:
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(CHAT, chat(stream=True, max_tokens=100), headers=bearer("a")))
            await engine.reached("held:5")
            before = left(gateway, "a", most)

        async def has_settled() -> list[str]:
            standing = left(gateway, "a", most)
            return [] if standing.tokens > before.tokens else [str(standing)]

        await settled(has_settled)
        standing = left(gateway, "a", most)
        assert standing.requests == 9
        assert 1000 - 50 < standing.tokens < 1000 - 3, "an estimate of the prompt, and three tokens"


async def test_o_qos_4_what_is_refused_or_free_costs_nothing(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    most = Limits(requests=2, tokens=10_000, concurrency=1)
    gate = Gate()
    engine.script(Script(gate=gate))
    terms = limits(requests_per_minute=2, tokens_per_minute=10_000, concurrency=1)
    async with gateway_over({"e1": engine}, relay={"max_attempts": 1}, **tenants({"a": terms})) as gateway:
        first = asyncio.create_task(ask(gateway.url, CHAT, chat(), headers=bearer("a")))
        await engine.reached("held")
        second = await ask(gateway.url, CHAT, chat(), headers=bearer("a"))
        assert (second.status, error_of(second)["code"]) == (429, "rate_limit_exceeded")
        assert second.header("x-ratelimit-remaining-requests") == "1"
        gate.open_all()
        assert (await first).status == 200
        tokens = left(gateway, "a", most).tokens
        async with RawClient(gateway.url) as client:
            for number in range(100):
                engine.script(Script(status=503), Script(status=429), Script(status=400))
                for path, body, status in (
                    ("/v1/models", None, 200),
                    (CHAT, b"{", 400),
                    (CHAT, chat(model="nope"), 404),
                    (CHAT, chat(), 429),
                    (CHAT, chat(), 429),
                    (CHAT, chat(), 400),
                ):
                    answer = await client.ask(path, body, headers=bearer("a"))
                    assert answer.status == status, (number, path, answer.body)
        standing = left(gateway, "a", most)
        assert (standing.requests, standing.tokens, standing.concurrency) == (1, tokens, 1)
        third = await ask(gateway.url, CHAT, chat(), headers=bearer("a"))
        assert (third.status, third.header("x-ratelimit-remaining-requests")) == (200, "0")
        assert (await ask(gateway.url, CHAT, chat(), headers=bearer("a"))).status == 429


async def test_the_next_request_of_a_client_with_one_place_is_never_refused(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    async with gateway_over({"e1": engine}, **tenants({"a": limits(concurrency=1)})) as gateway:
        async with RawClient(gateway.url) as client:
            for number in range(100):
                answer = await client.ask(CHAT, chat(stream=number % 2 == 0), headers=bearer("a"))
                assert answer.status == 200, number


PRICES = {"models": {"tiny": {"prompt": 1000, "output": 2000}}}
"""Dollars for a million tokens."""


async def test_o_qos_5_a_day_of_dollars_that_is_spent_is_no_rate_limit(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.default = Script(usage=Usage(prompt_tokens=100, completion_tokens=50))
    sections = tenants({"a": limits(dollars_per_day=0.25)})
    async with gateway_over({"e1": engine}, prices=PRICES, **sections) as gateway:
        assert (await ask(gateway.url, CHAT, chat(), headers=bearer("a"))).status == 200
        assert left(gateway, "a", Limits(nano_dollars=250_000_000)).nano_dollars == 50_000_000, "20 cents are spent"
        answer = await ask(gateway.url, CHAT, chat(max_tokens=30), headers=bearer("a"))
        assert (answer.status, error_of(answer)["code"], error_of(answer)["type"]) == (
            429,
            "insufficient_quota",
            "insufficient_quota",
        )
        assert answer.header("x-should-retry") == "false" and answer.header("retry-after") is None
        left_dollars = (await gateway.metrics()).sum("serving_limit_left", tenant="a", limit="dollars")
        assert left_dollars == pytest.approx(0.05)


async def test_anthropics_clients_are_told_in_their_words(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    sections = tenants({"a": limits(requests_per_minute=1, tokens_per_minute=1000)})
    body = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi."}]}
    async with gateway_over({"e1": engine}, **sections) as gateway:
        first = await ask(gateway.url, MESSAGES, body, headers=bearer("a"))
        second = await ask(gateway.url, MESSAGES, body, headers=bearer("a"))
    assert (first.status, second.status) == (200, 429)
    assert_error(second, MESSAGES)
    for answer in (first, second):
        assert answer.header("anthropic-ratelimit-requests-limit") == "1"
        assert answer.header("anthropic-ratelimit-requests-remaining") == "0"
        reset = answer.header("anthropic-ratelimit-requests-reset") or ""
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", reset)
        assert answer.header("x-ratelimit-limit-requests") is None
    assert second.header("retry-after") is not None


async def test_refusals_are_counted_by_tenant_and_limit(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    expected = Expectation()
    async with gateway_over({"e1": engine}, expected=expected, **tenants({"a": limits(requests_per_minute=1)})) as gateway:
        for status in (200, 429, 429):
            assert (await ask(gateway.url, CHAT, chat(), headers=bearer("a"))).status == status
        values = await gateway.metrics()
        assert values.sum("serving_limit_refusals_total", tenant="a", limit="requests") == 2
        assert values.sum("serving_limit_left", tenant="a", limit="requests") == 0
        assert values.sum("serving_requests_total", outcome="rate_limited") == 2


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_errors_say_how_the_limits_stand_too(engine: ScriptedEngine, gateway_over: GatewayOver, path: str) -> None:
    """They have cost nothing, and that is what is told."""
    engine.default = Script(status=400)
    names = ("anthropic-ratelimit-{}-limit", "anthropic-ratelimit-{}-remaining") if path == MESSAGES else LIMIT_AND_LEFT
    most = limits(requests_per_minute=10, tokens_per_minute=1000)
    async with gateway_over({"e1": engine}, **tenants({"a": most}), relay={"max_attempts": 1}) as gateway:
        for script, status in ((Script(status=400), 400), (Script(status=500), 502), (Script(status=429), 429)):
            engine.default = script
            answer = await ask(gateway.url, path, chat(), headers=bearer("a"))
            assert answer.status == status
            told = [answer.header(name.format(kind)) for kind in ("requests", "tokens") for name in names]
            assert told == ["10", "10", "1000", "1000"]
        engine.default = Script(ttft_seconds=HANG_SECONDS)
        late = await ask(gateway.url, path, chat(), headers=bearer("a", **{"x-request-timeout": "0.2"}))
        assert late.status == 504
        assert late.header(names[1].format("requests")) == "9", "an engine had it"


async def test_dollars_that_are_left_and_too_few_are_not_called_used_up(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    engine.default = Script(usage=Usage(prompt_tokens=10, completion_tokens=5))
    prices = {"models": {"tiny": {"prompt": 0, "output": 100}}}
    async with gateway_over({"e1": engine}, **tenants({"a": limits(dollars_per_day=0.001)}), prices=prices) as gateway:
        assert (await ask(gateway.url, CHAT, chat(), headers=bearer("a"))).status == 200
        refused = await ask(gateway.url, CHAT, chat(max_tokens=8), headers=bearer("a"))
        assert (refused.status, refused.header("x-should-retry"), refused.header("retry-after")) == (429, "false", None)
        assert error_of(refused)["message"] == (
            "Of the dollars of this day 0.0005 are left, and this request may cost 0.0008. Send a shorter prompt or a smaller "
            "max_tokens, or wait until midnight UTC."
        )
        assert (await ask(gateway.url, CHAT, chat(), headers=bearer("a"))).status == 200
        refused = await ask(gateway.url, CHAT, chat(max_tokens=1), headers=bearer("a"))
        assert error_of(refused)["message"] == "The dollars of this day are used up. They are there again at midnight UTC."

"""The page's files, its figures and the way of its playground, as any program sees them; what a browser sees is in tests/flow."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from serving.api.ui import CHAT, FILES, FOLDER, PAGE, STATE, is_same_origin, own_names, why_no_playground
from serving.observability.busiest import MOST_SHOWN
from serving.settings import Settings
from tests.doubles.raw_client import RawResponse, ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.doubles.tenants import bearer, tenants
from tests.flow.conftest import all_ready, chat, settings_over

SAME = {"Sec-Fetch-Site": "same-origin"}
KEY = {"Authorization": "Bearer sk-test"}


@asynccontextmanager
async def page_over(engine: ScriptedEngine, **sections: Any) -> AsyncIterator[RunningGateway]:
    given: dict[str, Any] = {"server": {"operator_port": 0}} | sections
    async with RunningGateway(settings_over({"e1": engine}, **given)) as gateway:
        await all_ready(gateway)
        yield gateway


async def state_of(gateway: RunningGateway) -> dict[str, Any]:
    answer = await ask(gateway.operator_url, STATE)
    assert answer.status == 200
    return dict(answer.json)


async def play(gateway: RunningGateway, headers: Mapping[str, str] = SAME, **fields: Any) -> RawResponse:
    return await ask(gateway.operator_url, CHAT, chat(**fields), headers={"Host": "127.0.0.1:9000"} | dict(headers))


# Files


async def test_the_page_and_its_files_need_nothing_from_outside(engine: ScriptedEngine) -> None:
    async with page_over(engine) as gateway:
        for path, (name, kind) in FILES.items():
            answer = await ask(gateway.operator_url, path)
            assert (answer.status, answer.header("content-type")) == (200, kind.decode())
            assert answer.body == (FOLDER / name).read_bytes()
            assert answer.header("x-request-id")
            policy = str(answer.header("content-security-policy"))
            assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy and "*" not in policy and "http" not in policy
            assert answer.header("x-content-type-options") == "nosniff"
            fresh = await ask(gateway.operator_url, path, headers={"If-None-Match": str(answer.header("etag"))})
            assert (fresh.status, fresh.body) == (304, b"")
            head = await ask(gateway.operator_url, path, method="HEAD")
            assert (head.status, head.header("content-length")) == (200, str(len(answer.body)))
            assert (await ask(gateway.operator_url, path, {}, method="POST")).status == 405
        assert (await ask(gateway.operator_url, "/ui/page.html")).status == 404
        moved = await ask(gateway.operator_url, f"{PAGE}/")
        assert (moved.status, moved.header("location")) == (308, "../ui")


def test_no_file_names_another_host_or_makes_markup_of_text() -> None:
    for name, _ in FILES.values():
        text = (FOLDER / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), name
        assert not re.search(r"localStorage|sessionStorage|indexedDB|cookie", text), f"{name}: the key is kept nowhere"
        assert not re.search(r"\son\w+=|style=\"|<style|<script>", text), f"{name}: nothing inline"
    assert sum((FOLDER / name).stat().st_size for name, _ in FILES.values()) < 60_000, "it is a light page"
    assert {name for name, _ in FILES.values()} == {path.name for path in FOLDER.iterdir()}, "and all of it is served"


async def test_the_page_is_at_the_operators_address_only(engine: ScriptedEngine) -> None:
    async with page_over(engine) as gateway:
        for path in (*FILES, STATE):
            assert (await ask(gateway.url, path)).status == 404
        assert (await ask(gateway.url, CHAT, chat(), headers=SAME)).status == 404
    async with page_over(engine, server={}) as gateway:
        for path in (*FILES, STATE):
            assert (await ask(gateway.url, path)).status == 200
        assert (await ask(gateway.url, CHAT, chat(), headers=SAME | {"Host": "localhost"})).status == 200


# Figures


async def test_what_is_shown_is_what_happened(engine: ScriptedEngine) -> None:
    async with page_over(engine, engine_load={"enabled": False}) as gateway:
        before = await state_of(gateway)
        assert (before["state"], before["in_flight"], before["failed"], before["errors"]) == ("ready", 0, 0, [])
        assert before["money"]["per_hour"] is None and before["unpriced"] == ["default"]
        assert before["figures"]["ttft_p50_seconds"] is None
        assert (await play(gateway, stream=True)).is_done
        engine.default = Script(status=500)
        assert (await play(gateway, headers=SAME | {"x-request-id": "the-one"})).status == 502
        assert (await play(gateway, model="<b>nobody's</b>")).status == 404

        async def shown() -> list[str]:
            found = await state_of(gateway)
            return [] if found["failed"] == 1 and found["figures"]["ttft_p50_seconds"] else [str(found["figures"])]

        await settled(shown)
        state = await state_of(gateway)
        unknown, ours = state["errors"]
        assert (ours["status"], ours["outcome"], ours["code"]) == (502, "engine_error", "engine_failed")
        assert (ours["model"], ours["endpoint"], ours["request_id"]) == ("tiny", "e1", "the-one")
        assert (unknown["status"], unknown["code"], unknown["model"]) == (404, "model_not_found", "")
        assert "nobody" not in str(state), "what a client calls a model is not shown"
        (pool,) = state["pools"]
        assert (pool["name"], pool["ready"], pool["endpoints"][0]["name"]) == ("default", 1, "e1")
        assert pool["throughput"]["of_engines"] is False and pool["figures"]["output_tokens_per_second"] > 0


async def test_dollars_are_those_of_the_series_and_their_parts_sum_up(engine: ScriptedEngine) -> None:
    engine.default = Script(itl_seconds=0.005)
    async with page_over(engine, routing={"pools": {"default": {"dollars_per_hour": 36.0}}}) as gateway:
        assert (await play(gateway, stream=True, max_tokens=20)).is_done

        async def priced() -> list[str]:
            money = (await state_of(gateway))["money"]
            return [] if money["per_million_output_tokens"] else [str(money)]

        await settled(priced)
        state = await state_of(gateway)
        money = state["money"]
        assert money["per_hour"] == pytest.approx(36.0, rel=0.01), "also over a window of a second"
        assert money["used_per_hour"] + money["idle_per_hour"] == pytest.approx(money["per_hour"], rel=0.01)
        assert 0 < money["used_per_hour"] < 36.0
        assert state["unpriced"] == [] and state["pools"][0]["money"] == money


async def test_what_machines_cost_is_right_from_the_first_moment_on(engine: ScriptedEngine) -> None:
    pools = {"routing": {"pools": {"default": {"dollars_per_hour": 36.0}}}}
    async with RunningGateway(settings_over({"e1": engine}, server={"operator_port": 0}, **pools)) as gateway:
        for _ in range(5):
            assert (await state_of(gateway))["money"]["per_hour"] == pytest.approx(36.0, rel=0.01)


async def test_tenants_are_shown_by_what_they_used(engine: ScriptedEngine) -> None:
    names = [f"t{number:02}" for number in range(MOST_SHOWN + 3)]
    sections = tenants({name: {} for name in names}) | {"prices": {"models": {"tiny": {"prompt": 1.0, "output": 2.0}}}}
    async with page_over(engine, **sections) as gateway:
        assert (await state_of(gateway))["tenants"] == []
        for number, name in enumerate(names):
            body = chat(max_tokens=1 + number)
            assert (await ask(gateway.url, "/v1/chat/completions", body, headers=bearer(name))).status == 200

        async def all_seen() -> list[str]:
            state = await state_of(gateway)
            return [] if state["more_tenants"] == 3 else [str(state["tenants"])]

        await settled(all_seen)
        state = await state_of(gateway)
        assert [each["name"] for each in state["tenants"]] == names[:2:-1]
        first = state["tenants"][0]
        assert first["requests"] == 1 and first["output_tokens"] == len(names)
        assert first["used_dollars"] is None, "the machine has no price"
        assert first["charged_dollars"] == pytest.approx((first["prompt_tokens"] + 2 * first["output_tokens"]) / 1e6)
        assert (await ask(gateway.url, STATE)).status == 404, "only operators see who the others are"


async def test_throughput_is_the_engines_own_where_all_of_them_tell(engine: ScriptedEngine) -> None:
    fast = {"period_seconds": 0.02, "timeout_seconds": 1.0, "stale_seconds": 5.0}
    async with page_over(engine, engine_load=fast) as gateway:

        async def told() -> list[str]:
            return [] if (await state_of(gateway))["throughput"]["of_engines"] else ["not yet"]

        await settled(told)


async def test_models_that_can_chat_are_offered(engine: ScriptedEngine) -> None:
    prices = {"models": {"tiny": {"prompt": 1.0, "output": 4.0}}}
    async with ScriptedEngine("vectors", tasks=("embed",)) as embedding:
        settings = settings_over(
            {"e1": engine, "e2": embedding}, server={"operator_port": 0}, prices=prices, models={"alias": {"alias_of": "tiny"}}
        )
        async with RunningGateway(settings) as gateway:
            await all_ready(gateway)
            offered = (await state_of(gateway))["playground"]
    assert {model["name"]: model["is_ready"] for model in offered["models"]} == {"alias": True, "tiny": True}
    assert offered["models"][0]["charged"] == {"prompt": 1.0, "cached": 1.0, "output": 4.0}
    assert (offered["key"], offered["why_closed"]) == ("none", "")


# The playground's way


async def test_the_playground_streams_through_the_gateways_own_way(engine: ScriptedEngine) -> None:
    async with page_over(engine) as gateway:
        answer = await play(gateway, stream=True)
        assert answer.status == 200 and answer.is_done and answer.header("x-request-id")
        assert len(answer.all("x-request-id")) == 1
        (record,) = engine.log.requests
        assert record.path == "/v1/chat/completions"
        metrics = await ask(gateway.operator_url, "/metrics")
        assert b'serving_requests_total{model="tiny",outcome="ok",route="chat_completions"} 1.0' in metrics.body


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"x-api-key": "sk-test"}])
async def test_without_the_key_no_engine_is_reached(engine: ScriptedEngine, headers: dict[str, str]) -> None:
    async with page_over(engine, auth={"api_key": "sk-test"}) as gateway:
        for path in (CHAT, f"{CHAT}/", "/ui/chat/completions", "/ui/../v1/chat/completions", "/v1/chat/completions"):
            answer = await ask(gateway.operator_url, path, chat(), headers=SAME | headers)
            assert answer.status == (401 if path == CHAT else 404), path
        assert not engine.log.requests
        assert (await play(gateway, SAME | KEY)).status == 200
        assert (await state_of(gateway))["playground"]["key"] == "wanted"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:9000"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:9001"},
        {"Origin": "null"},
        {"Origin": ""},
    ],
)
async def test_other_sites_pages_are_refused_even_with_the_key(engine: ScriptedEngine, headers: dict[str, str]) -> None:
    async with page_over(engine, auth={"api_key": "sk-test"}) as gateway:
        answer = await play(gateway, headers | KEY)
        assert (answer.status, answer.json["error"]["code"]) == (403, "forbidden")
        assert answer.header("access-control-allow-origin") is None
        assert answer.header("x-request-id")
        assert not engine.log.requests


async def test_no_other_origin_is_let_in_by_cors(engine: ScriptedEngine) -> None:
    preflight = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with page_over(engine, server={"operator_port": 0, "cors_origins": ["*"]}) as gateway:
        answer = await ask(gateway.operator_url, CHAT, method="OPTIONS", headers=preflight)
        assert answer.status == 405 and answer.header("access-control-allow-origin") is None
    async with page_over(engine, server={"cors_origins": ["*"]}) as gateway:
        # Here pages of other sites may call the API, but not by this way.
        assert (await ask(gateway.url, CHAT, chat(), headers={"Origin": "https://app.example"})).status == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9000", 200),
        ("127.0.0.1:9000", 200),
        ("[::1]:9000", 200),
        ("LOCALHOST", 200),
        ("evil.example:9000", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ],
)
async def test_where_no_key_is_wanted_a_foreign_name_does_not_make_a_page_our_own(
    engine: ScriptedEngine, host: str, status: int
) -> None:
    """A name of somebody else's that was pointed at this address is of the same origin, and has no key to show."""
    async with page_over(engine) as gateway:
        answer = await play(gateway, {"Host": host, "Origin": f"http://{host}"} | (SAME if host else {}))
        assert answer.status == status
    async with page_over(engine, auth={"api_key": "sk-test"}) as gateway:
        answer = await play(gateway, {"Host": host or "x", **SAME, **KEY})
        assert answer.status == 200, "with a key, whoever has it may come by any name"


async def test_an_address_that_others_reach_and_that_wants_no_key_has_no_playground(engine: ScriptedEngine) -> None:
    async with page_over(engine, server={"operator_port": 0, "operator_host": "0.0.0.0"}) as gateway:
        assert (await play(gateway)).status == 404
        assert not engine.log.requests
        closed = (await state_of(gateway))["playground"]["why_closed"]
        assert "auth.api_key" in closed


@pytest.mark.parametrize(
    ("sections", "is_open", "names"),
    [
        ({}, True, {"localhost", "127.0.0.1"}),
        ({"server": {"operator_port": 1, "operator_host": "0.0.0.0"}}, False, {"localhost", "127.0.0.1", "0.0.0.0"}),
        ({"server": {"host": "0.0.0.0", "operator_port": 1}}, True, {"localhost", "127.0.0.1", "0.0.0.0"}),
        ({"server": {"host": "0.0.0.0"}}, False, {"localhost", "127.0.0.1", "0.0.0.0"}),
        ({"server": {"operator_port": 1, "operator_host": "0.0.0.0"}, "auth": {"allow_anonymous": True}}, True, None),
        ({"server": {"operator_port": 1, "operator_host": "0.0.0.0"}, "auth": {"api_key": "k"}}, True, None),
    ],
)
def test_where_the_playground_is_open(sections: dict[str, Any], is_open: bool, names: set[str] | None) -> None:
    settings = Settings.model_validate(sections)
    assert (why_no_playground(settings) == "") is is_open
    assert own_names(settings) == names


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
async def test_the_playground_takes_post_only(engine: ScriptedEngine, method: str) -> None:
    async with page_over(engine) as gateway:
        answer = await ask(gateway.operator_url, CHAT, method=method, headers=SAME)
        assert (answer.status, answer.header("allow")) == (405, "POST")


def test_a_proxy_that_writes_the_host_anew_does_not_make_the_page_foreign() -> None:
    assert is_same_origin({b"sec-fetch-site": b"same-origin", b"origin": b"https://ops.example", b"host": b"10.0.0.1:9000"})
    assert is_same_origin({b"origin": b"https://ops.example", b"host": b"OPS.example"})
    assert not is_same_origin({b"origin": b"https://ops.example", b"host": b"10.0.0.1:9000"})

"""Routing as clients and operators see it: classes of requests, and why an engine was chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import orjson
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from serving.cli import app
from serving.settings import Settings
from tests.doubles.raw_client import RawResponse, ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.flow.conftest import GatewayOver, chat, settings_over
from tests.flow.test_retries import all_ready

StartEngine = Callable[..., Awaitable[ScriptedEngine]]
CHAT = "/v1/chat/completions"
KEY = "who-may-know-how-the-fleet-is"
DECISION = "x-serving-decision"


def long_chat(**fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": "Say something about the sea. " * 100}], **fields)


async def asked(gateway: RunningGateway, **headers: str) -> RawResponse:
    return await ask(gateway.url, CHAT, long_chat(), headers={name.replace("_", "-"): value for name, value in headers.items()})


async def test_operators_are_told_why_and_nobody_else(start_engine: StartEngine, gateway_over: GatewayOver) -> None:
    engines = {"e1": await start_engine(), "e2": await start_engine()}
    async with gateway_over(engines, routing={"explain_key": KEY}) as gateway:
        await all_ready(gateway)
        told = await asked(gateway, x_serving_explain=KEY)
        decision = orjson.loads(told.header(DECISION) or "")
        assert decision["chosen"] in engines
        assert {row["endpoint"] for row in decision["candidates"]} == set(engines)
        assert decision["candidates"][0]["cached_tokens"] == 0
        again = orjson.loads((await asked(gateway, x_serving_explain=KEY)).header(DECISION) or "")
        assert again["chosen"] == decision["chosen"]
        assert again["candidates"][0]["cached_tokens"] > 300
        for headers in ({}, {"x_serving_explain": "another key of some length"}):
            assert (await asked(gateway, **headers)).header(DECISION) is None
        metrics = await gateway.metrics()
        assert metrics.sum("serving_routing_decisions_total") == 4
        assert 0 < metrics.sum("serving_prefix_index_bytes") < 1_000_000


async def test_a_decision_comes_with_a_record_where_that_is_asked_for(
    start_engine: StartEngine, gateway_over: GatewayOver, tmp_path: Path
) -> None:
    engines = {"e1": await start_engine(), "e2": await start_engine()}
    async with gateway_over(engines, routing={"explain_key": KEY}) as gateway:
        await all_ready(gateway)
        plain = orjson.loads((await asked(gateway, x_serving_explain=KEY)).header(DECISION) or "")
        assert "record" not in plain
        told = (await asked(gateway, x_serving_explain=f"{KEY}; record")).header(DECISION) or ""
        assert len(told) < 3000, "proxies take no longer heads than some kilobytes"
        (tmp_path / "decision").write_text(told)
        shown = CliRunner().invoke(app, ["explain", str(tmp_path / "decision"), "--json", "--without", "e1"])
        assert shown.exit_code == 0, shown.output
        assert orjson.loads(shown.output)["would_be_chosen"] == "e2"
        assert (await asked(gateway, x_serving_explain="no; record")).header(DECISION) is None


async def test_without_a_key_of_the_operators_nobody_is_told(start_engine: StartEngine, gateway_over: GatewayOver) -> None:
    async with gateway_over({"e1": await start_engine(), "e2": await start_engine()}) as gateway:
        await all_ready(gateway)
        assert (await asked(gateway, x_serving_explain="")).header(DECISION) is None


async def test_only_who_may_choose_a_class_is_heard(start_engine: StartEngine, gateway_over: GatewayOver) -> None:
    keys = [{"tenant": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("alice", "bob")]
    tenants = {"alice": {"may_use_class_header": True}, "bob": {"priority": "batch"}}
    async with gateway_over({"e1": await start_engine()}, auth={"keys": keys}, tenants=tenants) as gateway:
        wrong = {"x_request_class": "urgent"}
        refused = await asked(gateway, authorization="Bearer alice", **wrong)
        assert refused.status == 400
        assert b"interactive, standard, batch" in refused.body
        assert (await asked(gateway, authorization="Bearer bob", **wrong)).status == 200
        assert (await asked(gateway, authorization="Bearer alice", x_request_class="batch")).status == 200


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "session", "random"])
async def test_the_other_policies_serve_too(start_engine: StartEngine, gateway_over: GatewayOver, policy: str) -> None:
    engines = {"e1": await start_engine(), "e2": await start_engine()}
    async with gateway_over(engines, routing={"policy": policy}) as gateway:
        await all_ready(gateway)
        for _ in range(4):
            assert (await ask(gateway.url, CHAT, chat(user="one"))).status == 200
        counts = sorted(len(engine.log.requests) for engine in engines.values())
        expected = {"session": [0, 4], "round_robin": [2, 2], "least_loaded": [2, 2]}
        assert policy == "random" or counts == expected[policy]


ENDPOINTS = [{"name": "e1", "url": "http://engine:8000", "model": "m", "pool": "b200"}]


@pytest.mark.parametrize(
    ("routing", "words"),
    [
        ({"pools": {"b20": {}}}, "there is no pool 'b20'; did you mean b200?"),
        ({"pools": {"b200": {"accelerators": 0}}}, "greater than or equal to 1"),
        ({"explain_key": "short"}, "at least 16"),
        ({"objective": "urgent"}, "'interactive', 'standard' or 'batch'"),
        ({"policy": "cheapest"}, "'cost'"),
    ],
)
def test_wrong_settings_are_refused_by_name(routing: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match="routing") as error:
        Settings.model_validate({"endpoints": ENDPOINTS, "routing": routing})
    assert words in str(error.value)


async def test_an_answer_that_could_not_be_passed_on_or_read_leaves_nothing_pinned(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong with an answer, what its engine has cached may be evicted by the index afterwards."""

    def broken(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("nobody can read this")

    engines = {"e1": await start_engine(), "e2": await start_engine()}
    async with RunningGateway(settings_over(engines)) as gateway:
        await all_ready(gateway)
        works = gateway.app.chooser._works.values()
        for place in ("serving.pipeline.view_of_whole", "serving.engines.view.WholeView.usage"):
            with monkeypatch.context() as patch:
                patch.setattr(place, broken)
                await asked(gateway)
                assert sum(len(work.cache.pinned) for work in works) == 1, "until its end is published"
                gateway.app.pipeline.publish()
            assert [work.name for work in works if work.cache.pinned] == []
            assert gateway.app.pipeline.in_flight == 0


@pytest.mark.parametrize("system", ["", "You are of help. " * 120], ids=["short", "shared"])
async def test_conversations_stay_at_their_revision_and_these_have_their_weights(system: str) -> None:
    """However short their first turns are, and however much they have in common before."""
    conversations, turns = 100, 3
    routing = {"pools": {"stable": {"revision": "a", "weight": 70}, "canary": {"revision": "b", "weight": 30}}}
    async with ScriptedEngine() as stable, ScriptedEngine() as canary:
        engines = {"stable": stable, "canary": canary}
        endpoints = [{"name": name, "url": each.url, "model": "tiny", "pool": name} for name, each in engines.items()]
        async with RunningGateway(Settings.model_validate({"endpoints": endpoints, "routing": routing})) as gateway:
            await all_ready(gateway)
            at_canary = 0
            for number in range(conversations):
                messages = [{"role": "system", "content": system}] if system else []
                before = len(canary.log.requests)
                for turn in range(turns):
                    messages.append({"role": "user", "content": f"And {number} times {turn}?"})
                    assert (await ask(gateway.url, CHAT, chat(messages=messages))).status == 200
                    messages.append({"role": "assistant", "content": "That is a number, as any other. " * 20})
                there = len(canary.log.requests) - before
                assert there in (0, turns)
                at_canary += there == turns
            assert 0.15 * conversations <= at_canary <= 0.45 * conversations

"""LoRA adapters over simulated engines: models that only some engines have, known from what these list."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from serving.settings import Settings
from serving.sim.engine import SimulatedEngine
from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.settling import settled
from tests.doubles.simulated_engine import TINY, simulated_engine
from tests.flow.conftest import all_ready, chat

CHAT = "/v1/chat/completions"
MODELS = {"sql": {"adapter_of": "tiny"}, "poet": {"adapter_of": "tiny", "fallbacks": ["tiny"]}, "poems": {"alias_of": "poet"}}
RATES = replace(TINY.rates, adapter_seconds=0.05)


@contextlib.asynccontextmanager
async def engines_with(**adapters: tuple[str, ...]) -> AsyncIterator[dict[str, SimulatedEngine]]:
    """By name, with the adapters that each of them has."""
    limits = replace(TINY.limits, max_loras=1)
    async with contextlib.AsyncExitStack() as stack:
        made = {}
        for name, those in adapters.items():
            plan = {"adapters": those, "limits": limits, "rates": RATES, "adapters_may_change": True}
            made[name] = await stack.enter_async_context(simulated_engine(**plan, options=frozenset({"enable-lora"})))
        yield made


@contextlib.asynccontextmanager
async def gateway_over(engines: Mapping[str, SimulatedEngine], **sections: Any) -> AsyncIterator[RunningGateway]:
    slots = sections.pop("slots", None)
    endpoints = [{"name": name, "url": engine.url, "model": "tiny", "slots": slots} for name, engine in engines.items()]
    probe = {"period_seconds": 0.05}
    settings = {"endpoints": endpoints, "models": MODELS, "probe": probe, "engine_load": {"period_seconds": 0.1}, **sections}
    async with RunningGateway(Settings.model_validate(settings)) as gateway:
        await all_ready(gateway)
        yield gateway


def served_by(engines: Mapping[str, SimulatedEngine], before: Mapping[str, int]) -> set[str]:
    return {name for name, count in finished(engines).items() if count > before[name]}


def finished(engines: Mapping[str, SimulatedEngine]) -> dict[str, int]:
    """Requests that each engine has answered, those of the probe included."""
    return {name: sum(engine.models[0].facts.finished.values()) for name, engine in engines.items()}


async def test_an_adapter_is_served_by_the_engines_that_list_it() -> None:
    async with engines_with(e1=("sql",), e2=("poet",), e3=()) as engines, gateway_over(engines) as gateway:
        before = finished(engines)
        for _ in range(4):
            answer = await ask(gateway.url, CHAT, chat(model="sql"))
            assert (answer.status, answer.json["model"]) == (200, "sql")
        assert served_by(engines, before) == {"e1"}
        answer = await ask(gateway.url, CHAT, chat(model="poems"))
        assert (answer.json["model"], answer.header("x-served-model")) == ("poet", "poet")
        assert served_by(engines, before) == {"e1", "e2"}
        cards = {card["id"]: card for card in (await ask(gateway.url, "/v1/models", method="GET")).json["data"]}
        assert {name: (card["parent"], card["ready"]) for name, card in cards.items()} == {
            "sql": ("tiny", True),
            "poet": ("tiny", True),
            "poems": ("tiny", True),
            "tiny": (None, True),
        }


async def test_small_requests_stay_where_their_adapter_is_loaded() -> None:
    """Each engine has one slot for both adapters: changing from one to the other at each request would load 40 times."""
    both = ("sql", "poet")
    async with engines_with(e1=both, e2=both) as engines, gateway_over(engines) as gateway:
        places: dict[str, set[str]] = {"sql": set(), "poet": set()}
        for _ in range(20):
            for model, seen in places.items():
                before = finished(engines)
                assert (await ask(gateway.url, CHAT, chat(model=model))).status == 200
                seen |= served_by(engines, before)
        assert [len(each) for each in places.values()] == [1, 1]


async def test_a_known_adapter_without_an_engine_is_503_and_an_unknown_one_404() -> None:
    async with engines_with(e1=("other",)) as engines, gateway_over(engines) as gateway:
        away = await ask(gateway.url, CHAT, chat(model="sql"))
        assert away.status == 503 and int(away.header("retry-after") or 0) > 0
        assert (await ask(gateway.url, CHAT, chat(model="other"))).status == 404
        stood_in = await ask(gateway.url, CHAT, chat(model="poet"))
        assert (stood_in.status, stood_in.header("x-served-model")) == (200, "tiny")


async def test_an_adapter_that_has_left_one_engine_is_asked_for_at_another() -> None:
    """Between two looks of the probe nobody knows but the engine, which says 404."""
    both = ("sql",)
    slow = {"period_seconds": 600.0}
    async with engines_with(e1=both, e2=both) as engines, gateway_over(engines, probe=slow) as gateway:
        before = finished(engines)
        assert (await ask(gateway.url, CHAT, chat(model="sql"))).status == 200
        (home,) = served_by(engines, before)
        assert (await ask(engines[home].url, "/v1/unload_lora_adapter", {"lora_name": "sql"})).status == 200
        assert (await ask(gateway.url, CHAT, chat(model="sql"))).status == 200
        assert [e.name for e in gateway.app.fleet.snapshot.candidates("sql")] == [name for name in engines if name != home]
        assert len(gateway.app.fleet.snapshot.candidates("tiny")) == 2, "the engine is as good as before"


async def test_an_adapter_that_is_loaded_while_the_gateway_runs_is_found() -> None:
    async with engines_with(e1=()) as engines, gateway_over(engines) as gateway:
        assert (await ask(gateway.url, CHAT, chat(model="sql"))).status == 503
        assert (await ask(engines["e1"].url, "/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "/sql"})).status == 200

        async def problems() -> list[str]:
            return [] if gateway.app.fleet.snapshot.ready("sql") else ["it is not known yet"]

        await settled(problems)
        assert (await ask(gateway.url, CHAT, chat(model="sql"))).status == 200


async def test_adapters_share_the_slots_of_their_model() -> None:
    async with engines_with(e1=("sql",)) as engines, gateway_over(engines, slots=1) as gateway:
        slots = gateway.app.slots["tiny"]
        most = 0

        async def one(model: str) -> int:
            nonlocal most
            answer = asyncio.create_task(ask(gateway.url, CHAT, chat(model=model, max_tokens=20)))
            while not answer.done():
                most = max(most, gateway.app.chooser.in_flight("e1"))
                await asyncio.sleep(0)
            return answer.result().status

        assert await asyncio.gather(one("tiny"), one("sql"), one("sql")) == [200, 200, 200]
        assert most == 1 and slots.in_use == 0

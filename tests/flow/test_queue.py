"""O-QOS-5: requests wait for a slot, fairly and not in vain; refusals are quick and say when to come back."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest

from tests.doubles.raw_client import RawClient, RawResponse, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Gate, Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.doubles.tenants import bearer, tenants
from tests.flow.conftest import GatewayOver, chat
from tests.flow.surfaces import MESSAGES, asking, assert_error
from tests.flow.test_limits import CHAT, error_of

Queue = dict[str, Any]
LONG_SECONDS = 25.0
"""Less than a request waits that gives itself no time, and more than a busy machine adds."""


def over(engine: ScriptedEngine, slots: int, *, name: str = "e1", **more: Any) -> dict[str, Any]:
    """The settings' entry of an engine with slots."""
    return {"name": name, "url": engine.url, "model": engine.model, "slots": slots, **more}


def queued(gateway: RunningGateway) -> int:
    return gateway.app.slots["tiny"].queue.requests


async def waits(gateway: RunningGateway, requests: int) -> None:
    async def problems() -> list[str]:
        return [] if queued(gateway) == requests else [f"{queued(gateway)} wait"]

    await settled(problems)


class Asked:
    """Requests under way, each on a connection of its own."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._gateway = gateway
        self._tasks: list[asyncio.Task[tuple[RawResponse, float]]] = []

    def __call__(self, requests: int, headers: dict[str, str] | None = None, **fields: Any) -> None:
        for _ in range(requests):
            self._tasks.append(asyncio.create_task(self._one(chat(**fields), headers)))

    async def _one(self, body: Any, headers: dict[str, str] | None) -> tuple[RawResponse, float]:
        began = time.monotonic()
        answer = await ask(self._gateway.url, CHAT, body, headers=headers)
        return answer, time.monotonic() - began

    async def answers(self) -> list[tuple[RawResponse, float]]:
        return await asyncio.gather(*self._tasks)


async def test_o_qos_5_a_full_queue_says_so_at_once(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """Fifty wait, five hundred more come."""
    gate = Gate()
    engine.default = Script(gate=gate)
    queue = {"requests": 50, "wait_seconds": 60}
    async with gateway_over({"e1": engine}, endpoints=[over(engine, 1)], limits={"queue": queue}) as gateway:
        first, more = Asked(gateway), Asked(gateway)
        first(51)
        await waits(gateway, 50)
        values = await gateway.metrics()
        assert values.sum("serving_queued_requests", model="tiny", pool="default") == 50
        assert (values.sum("serving_slots"), values.sum("serving_slots_in_use")) == (1, 1)
        more(500)
        refused = await more.answers()
        assert Counter(answer.status for answer, _ in refused) == {429: 500}
        for answer, _ in refused:
            told = error_of(answer)
            assert (told["code"], told["type"]) == ("queue_full", "rate_limit_error")
            assert 1 <= int(answer.header("retry-after") or 0) <= 60
        values = await gateway.metrics()
        assert values.sum("serving_rejections_total", reason="queue_full") == 500
        gate.open_all()
        assert Counter(answer.status for answer, _ in await first.answers()) == {200: 51}
        assert len([r for r in engine.log.requests if r.path == CHAT]) == 51
        assert (await gateway.metrics()).sum("serving_queue_seconds_count", model="tiny") == 50


async def test_o_qos_5_one_that_waited_in_vain_is_told_so_in_time(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.default = Script(gate=Gate())
    async with gateway_over({"e1": engine}, endpoints=[over(engine, 1)], limits={"queue": {"wait_seconds": 0.3}}) as gateway:
        async with RawClient(gateway.url) as holder:
            await holder.send(request_bytes(CHAT, chat()))
            await engine.reached("held")
            began = time.monotonic()
            answer = await ask(gateway.url, CHAT, chat())
            assert (answer.status, error_of(answer)["code"]) == (429, "queue_timeout")
            assert 0.3 <= time.monotonic() - began < LONG_SECONDS
            assert 1 <= int(answer.header("retry-after") or 0) <= 60
            message = await ask(gateway.url, MESSAGES, asking(MESSAGES))
            assert message.status == 429
            assert_error(message, MESSAGES)
        assert queued(gateway) == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_slot_is_handed_on_before_the_last_byte(engine: ScriptedEngine, gateway_over: GatewayOver, stream: bool) -> None:
    """A client that asks again as soon as it has its answer never waits for itself."""
    queue = {"requests": 0}
    async with gateway_over({"e1": engine}, endpoints=[over(engine, 1)], limits={"queue": queue}) as gateway:
        async with RawClient(gateway.url) as client:
            for number in range(100):
                assert (await client.ask(CHAT, chat(stream=stream))).status == 200, number


async def test_a_client_that_leaves_the_queue_frees_its_place_at_once(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    gate = Gate()
    engine.default = Script(gate=gate)
    async with gateway_over({"e1": engine}, endpoints=[over(engine, 1)], limits={"queue": {"requests": 1}}) as gateway:
        first = asyncio.create_task(ask(gateway.url, CHAT, chat()))
        await engine.reached("held")
        for _ in range(20):
            async with RawClient(gateway.url) as leaver:
                await leaver.send(request_bytes(CHAT, chat()))
                await waits(gateway, 1)
            await waits(gateway, 0)
        last = asyncio.create_task(ask(gateway.url, CHAT, chat()))
        await waits(gateway, 1)
        gate.open_all()
        assert (await first).status == (await last).status == 200
        assert len([r for r in engine.log.requests if r.path == CHAT]) == 2, "no engine saw those that left"


async def test_two_tenants_take_turns(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    gate = Gate()
    engine.default = Script(gate=gate)
    sections = tenants({"flood": {}, "quiet": {}})
    async with gateway_over(
        {"e1": engine}, endpoints=[over(engine, 1)], limits={"queue": {"requests": 30}}, **sections
    ) as gateway:
        asked = Asked(gateway)
        asked(31, bearer("flood"), user="flood")
        await waits(gateway, 30)
        asked(5, bearer("quiet"), user="quiet")

        async def quiet_are_in() -> list[str]:
            queue = [each.tenant for each in gateway.app.slots["tiny"].queue]
            return [] if queue.count("quiet") == 5 else [str(Counter(queue))]

        await settled(quiet_are_in)
        gate.open_all()
        answers = await asked.answers()
        order = [json.loads(record.request.body)["user"] for record in engine.log.requests if record.path == CHAT]
        assert order[:11].count("quiet") == 5, "one after the other"
        refused = [answer for answer, _ in answers if answer.status != 200]
        assert len(refused) == 5 and all(answer.status == 200 for answer, _ in answers[31:]), "the flood made room"


async def test_the_class_decides_who_is_first_and_the_header_only_where_it_may(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    gate = Gate()
    engine.default = Script(gate=gate)
    sections = tenants({"batch": {"priority": "batch"}, "plain": {}, "free": {"may_use_class_header": True}})
    async with gateway_over({"e1": engine}, endpoints=[over(engine, 1)], **sections) as gateway:
        asked = Asked(gateway)
        asked(1, bearer("plain"), user="first")
        await engine.reached("held")
        for number, (name, asked_class) in enumerate(
            (("batch", None), ("plain", None), ("batch", "interactive"), ("free", "interactive")), 1
        ):
            headers = bearer(name, **({"x-request-class": asked_class} if asked_class else {}))
            asked(1, headers, user=f"{name} {asked_class}")
            await waits(gateway, number)
        wrong = await ask(gateway.url, CHAT, chat(), headers=bearer("free", **{"x-request-class": "vip"}))
        assert (wrong.status, error_of(wrong)["code"]) == (400, "invalid_request_class")
        gate.open_all()
        await asked.answers()
        order = [json.loads(record.request.body)["user"] for record in engine.log.requests if record.path == CHAT]
        assert order == ["first", "free interactive", "plain None", "batch None", "batch interactive"]


@pytest.mark.parametrize("asked", ["soon", "0", "-1", "1e3", "", "1,5", "5s"])
async def test_a_time_that_is_none_is_refused(engine: ScriptedEngine, gateway_over: GatewayOver, asked: str) -> None:
    async with gateway_over({"e1": engine}) as gateway:
        answer = await ask(gateway.url, CHAT, chat(), headers={"x-request-timeout": asked})
        assert (answer.status, error_of(answer)["code"]) == (400, "invalid_request_timeout")
        assert "x-request-timeout" in error_of(answer)["message"]


async def test_a_request_ends_with_the_time_it_gave_itself(
    engine: ScriptedEngine, gateway_over: GatewayOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first byte to the moment, and not when the relay happens to look."""
    monkeypatch.setattr("serving.engines.relay.SWEEP_SECONDS", 60.0)
    engine.script(Script(blackhole=True))
    async with gateway_over({"e1": engine}) as gateway:
        began = time.monotonic()
        answer = await ask(gateway.url, CHAT, chat(), headers={"x-request-timeout": "0.3"})
        assert (answer.status, error_of(answer)["code"]) == (504, "deadline_exceeded")
        assert "0.3 s" in error_of(answer)["message"]
        assert 0.3 <= time.monotonic() - began < LONG_SECONDS


async def test_a_stream_ends_with_the_time_it_gave_itself(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    """And it may not give itself more than the gateway does."""
    engine.script(Script(gate=Gate(events=3)), Script(blackhole=True))
    relay = {"request_timeout_seconds": 4.0}
    async with gateway_over({"e1": engine}, relay=relay) as gateway:
        stream = await ask(gateway.url, CHAT, chat(stream=True), headers={"x-request-timeout": "2"})
        assert stream.status == 200 and b'"code":"deadline_exceeded"' in stream.body and not stream.is_done
        began = time.monotonic()
        answer = await ask(gateway.url, CHAT, chat(), headers={"x-request-timeout": "900"})
        assert answer.status == 504 and time.monotonic() - began < LONG_SECONDS


async def test_the_time_it_gave_itself_holds_in_the_queue(engine: ScriptedEngine, gateway_over: GatewayOver) -> None:
    engine.default = Script(gate=Gate())
    async with gateway_over({"e1": engine}, endpoints=[over(engine, 1)]) as gateway:
        async with RawClient(gateway.url) as holder:
            await holder.send(request_bytes(CHAT, chat()))
            await engine.reached("held")
            began = time.monotonic()
            answer = await ask(gateway.url, CHAT, chat(), headers={"x-request-timeout": "2"})
            assert (answer.status, error_of(answer)["code"]) == (429, "queue_timeout")
            assert time.monotonic() - began < LONG_SECONDS


async def test_what_waits_is_exported_from_the_start_and_by_pool(
    engine: ScriptedEngine, start_engine: Any, gateway_over: GatewayOver
) -> None:
    other = await start_engine()
    engine.default = other.default = Script(gate=Gate())
    endpoints = [over(engine, 1, pool="small"), over(other, 3, name="e2", pool="large")]
    async with gateway_over({"e1": engine, "e2": other}, endpoints=endpoints) as gateway:
        values = await gateway.metrics()
        assert {s.labels["pool"]: s.value for s in values.select("serving_queued_requests")} == {"small": 0, "large": 0}
        clients = [await RawClient(gateway.url).connect() for _ in range(12)]
        for client in clients:
            await client.send(request_bytes(CHAT, chat()))
        await waits(gateway, 8)
        values = await gateway.metrics()
        assert {s.labels["pool"]: s.value for s in values.select("serving_queued_requests")} == {"small": 2, "large": 6}
        assert (engine.metrics.running, other.metrics.running) == (1, 3), "no endpoint has more than its slots"
        for client in clients:
            client.hang_up()
        await waits(gateway, 0)
    async with gateway_over({"e1": engine}) as gateway:
        assert [s.value for s in (await gateway.metrics()).select("serving_queued_requests")] == [0], "without slots, too"


async def test_a_model_without_an_engine_is_said_at_once_and_not_waited_for(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    await engine.stop()
    probe = {"period_seconds": 0.02}
    async with gateway_over({"e1": engine}, endpoints=[over(engine, 1)], probe=probe) as gateway:

        async def is_known() -> list[str]:
            return [] if not gateway.app.fleet.snapshot.candidates("tiny") else ["still a candidate"]

        await settled(is_known)
        answers = await asyncio.gather(*(ask(gateway.url, CHAT, chat()) for _ in range(5)))
        assert [answer.status for answer in answers] == [503] * 5
        await engine.start()


async def test_a_reservation_of_one_that_the_queue_refused_is_given_back(
    engine: ScriptedEngine, gateway_over: GatewayOver
) -> None:
    gate = Gate()
    engine.default = Script(gate=gate)
    sections = tenants({"a": {"limits": {"requests_per_minute": 2, "concurrency": 2}}})
    async with gateway_over(
        {"e1": engine}, endpoints=[over(engine, 1)], limits={"queue": {"requests": 0}}, **sections
    ) as gateway:
        first = asyncio.create_task(ask(gateway.url, CHAT, chat(), headers=bearer("a")))
        await engine.reached("held")
        for _ in range(10):
            answer = await ask(gateway.url, CHAT, chat(), headers=bearer("a"))
            assert error_of(answer)["code"] == "queue_full"
        gate.open_all()
        assert (await first).status == 200
        assert (await ask(gateway.url, CHAT, chat(), headers=bearer("a"))).status == 200

"""Slots and the wait for them, in a time that only the test moves."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from serving.core.errors import Overloaded
from serving.limit_settings import QueueSettings
from serving.tenancy.slots import MOST_OPTIMISM, Slots
from tests.doubles.virtual_time import in_virtual_time
from tests.tenancy.test_fair_queue import jain

STANDARD = 1


class Engine:
    """Holds a slot for a request's tokens times a pace."""

    def __init__(self, capacity: int, *, seconds_per_token: float = 0.01, **settings: Any) -> None:
        self.capacity = capacity
        loop = asyncio.get_running_loop()
        self.slots = Slots(QueueSettings(**settings), lambda: self.capacity, clock=loop.time)
        self._pace = seconds_per_token
        self.served: Counter[str] = Counter()
        self.busy_seconds = 0.0
        self.waits: dict[str, list[float]] = {}
        self.refusals: list[tuple[str, Overloaded, float]] = []

    async def ask(
        self, tenant: str, tokens: int, *, urgency: int = STANDARD, within: float = 1e9, truth: int | None = None
    ) -> bool:
        """Returns whether it was served."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            if not self.slots.take(tenant, tokens):
                await self.slots.wait(tenant, tokens, 10, urgency, began + within)
        except Overloaded as error:
            self.refusals.append((tenant, error, loop.time() - began))
            return False
        self.waits.setdefault(tenant, []).append(loop.time() - began)
        used = tokens if truth is None else truth
        held = loop.time()
        try:
            await asyncio.sleep(used * self._pace)
            self.served[tenant] += used
        finally:
            self.busy_seconds += loop.time() - held
            self.slots.give_back(tenant, tokens, used, loop.time() - held)
        return True

    def is_empty(self) -> bool:
        return self.slots.in_use == 0 and not self.slots.queue.requests


async def _until(seconds: float, *works: Any) -> None:
    tasks = [asyncio.create_task(work) for work in works]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@in_virtual_time
async def test_a_slot_goes_to_the_next_one_at_once() -> None:
    engine = Engine(1)
    assert await asyncio.gather(engine.ask("a", 10), engine.ask("b", 10), engine.ask("c", 10)) == [True] * 3
    assert engine.waits == {"a": [0.0], "b": [pytest.approx(0.1)], "c": [pytest.approx(0.2)]}
    assert engine.is_empty()


@in_virtual_time
async def test_who_leaves_the_queue_frees_its_place_at_once() -> None:
    engine = Engine(1, requests=1)
    running = asyncio.create_task(engine.ask("a", 100))
    await asyncio.sleep(0)
    leaving = asyncio.create_task(engine.ask("b", 10))
    await asyncio.sleep(0.1)
    assert not await engine.ask("b", 10), "full"
    leaving.cancel()
    await asyncio.wait([leaving])
    assert not engine.slots.queue.requests
    assert await engine.ask("b", 10)
    assert await running and engine.is_empty()


@in_virtual_time
async def test_who_leaves_just_as_it_gets_a_slot_hands_it_on() -> None:
    engine = Engine(1)
    running = asyncio.create_task(engine.ask("a", 10))
    await asyncio.sleep(0)
    leaving, next_one = asyncio.create_task(engine.ask("b", 10)), asyncio.create_task(engine.ask("c", 10))
    await asyncio.sleep(0)
    await running  # b has been granted the slot, and has not run yet
    leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    assert await next_one
    assert engine.is_empty()


@in_virtual_time
async def test_nobody_waits_longer_than_it_may() -> None:
    engine = Engine(1, wait_seconds=5)
    hog = asyncio.create_task(engine.ask("a", 2000))
    await asyncio.sleep(0)
    await asyncio.gather(engine.ask("b", 10), engine.ask("c", 10, within=2.0))
    assert [(tenant, error.error_code, waited) for tenant, error, waited in engine.refusals] == [
        ("c", "queue_timeout", pytest.approx(2.0)),
        ("b", "queue_timeout", pytest.approx(5.0)),
    ]
    assert await hog and engine.is_empty()


@in_virtual_time
async def test_what_cannot_be_served_in_time_is_refused_at_once() -> None:
    engine = Engine(2, wait_seconds=5)
    assert await engine.ask("a", 100), "a request takes a second: that much is known now"
    waiting = [asyncio.create_task(engine.ask("a", 100)) for _ in range(8)]
    await asyncio.sleep(0)
    assert not await engine.ask("a", 100, within=1.0)
    (_, error, waited) = engine.refusals[0]
    assert (error.error_code, waited, error.retry_after_seconds) == ("wait_too_long", 0.0, 4)
    assert not await engine.ask("a", 100, within=4.2), "it would have to wait three and a half, and takes one"
    assert await engine.ask("a", 100, within=5.1)
    assert all(await asyncio.gather(*waiting)) and len(engine.refusals) == 2


@in_virtual_time
async def test_a_full_queue_says_so_at_once_with_a_time_to_come_back() -> None:
    engine = Engine(1, requests=50, wait_seconds=3600)
    assert await engine.ask("a", 100)
    running = [asyncio.create_task(engine.ask("a", 100)) for _ in range(51)]
    await asyncio.sleep(0)
    refused = [asyncio.create_task(engine.ask("a", 100)) for _ in range(500)]
    await asyncio.sleep(0)
    await asyncio.gather(*refused)
    assert len(engine.refusals) == 500
    told = {(error.error_code, waited, error.retry_after_seconds) for _, error, waited in engine.refusals}
    assert told == {("queue_full", 0.0, 51)}
    assert all(await asyncio.gather(*running)) and engine.is_empty()


@in_virtual_time
async def test_slots_that_come_with_an_engine_are_used_and_those_that_go_are_not() -> None:
    engine = Engine(1, wait_seconds=100)
    asked = [asyncio.create_task(engine.ask("a", 100)) for _ in range(10)]
    await asyncio.sleep(0.5)
    engine.capacity = 4
    await asyncio.sleep(0.2)
    assert engine.slots.in_use == 4
    engine.capacity = 2
    await asyncio.sleep(1.5)
    assert engine.slots.in_use == 2
    await asyncio.gather(*asked)
    assert engine.is_empty()


@in_virtual_time
async def test_fifty_equal_tenants_share_equally_and_the_slots_stay_busy() -> None:
    """Each asks four at a time for requests of any size, which turn out shorter or longer than they were guessed."""
    engine = Engine(8, requests=2000, wait_seconds=3600)
    chance = random.Random(3)

    async def tenant(name: str) -> None:
        while True:
            tokens = chance.choice((20, 100, 500))
            await engine.ask(name, tokens, truth=max(1, round(tokens * chance.uniform(0.5, 1.5))))

    names = [f"t{number}" for number in range(50)]
    await _until(1000, *(tenant(name) for name in names for _ in range(4)))
    assert jain([engine.served[name] for name in names]) >= 0.99
    assert engine.busy_seconds >= 0.95 * 8 * 1000


@in_virtual_time
async def test_a_tenant_that_floods_does_not_hurt_the_others() -> None:
    """By count and by size; each of the others asks once in a while and has its answer about when it would without the flood."""

    async def quiet(engine: Engine, name: str, chance: random.Random) -> None:
        while True:
            await asyncio.sleep(chance.expovariate(1 / 20))
            await engine.ask(name, 100)

    async def flood(engine: Engine, tokens: int) -> None:
        while True:
            await asyncio.gather(*(engine.ask("flood", tokens) for _ in range(200)))
            await asyncio.sleep(0.1)

    async def p99_seconds(*floods: int) -> float:
        engine = Engine(10, requests=100, wait_seconds=30)
        chance = random.Random(5)
        await _until(
            600, *(flood(engine, tokens) for tokens in floods), *(quiet(engine, f"q{number}", chance) for number in range(20))
        )
        assert {tenant for tenant, _, _ in engine.refusals} <= {"flood"}
        assert not floods or engine.busy_seconds >= 0.9 * 10 * 600
        waits = sorted(wait for tenant, all_ in engine.waits.items() if tenant != "flood" for wait in all_)
        return waits[int(len(waits) * 0.99)] + 1.0

    alone = await p99_seconds()
    for tokens in (50, 400):
        assert await p99_seconds(tokens) <= 1.5 * alone + max(tokens, 100) * 0.01


@pytest.mark.parametrize("tenants", [7, 50])
@in_virtual_time
async def test_ten_times_the_capacity_costs_no_goodput(tenants: int) -> None:
    """Requests that give themselves five seconds: what is let in is answered in time, and the rest is told so at once."""
    engine = Engine(10, requests=50, wait_seconds=30)
    chance = random.Random(11)
    loop = asyncio.get_running_loop()
    in_time = 0

    async def one(number: int) -> None:
        nonlocal in_time
        began = loop.time()
        if await engine.ask(f"t{number % tenants}", 100, within=5.0) and loop.time() - began <= 5.0:
            in_time += 1

    async def arrivals() -> None:
        number = 0
        while True:
            await asyncio.sleep(chance.expovariate(100))  # ten requests a second can be served
            number += 1
            tasks.add(asyncio.create_task(one(number)))

    tasks: set[asyncio.Task[None]] = set()
    await _until(200, arrivals())
    await asyncio.wait(tasks)
    assert in_time >= 0.9 * 10 * 200
    assert all(error.retry_after_seconds and 1 <= error.retry_after_seconds <= 60 for _, error, _ in engine.refusals)
    at_once = [waited for _, _, waited in engine.refusals if waited <= 0.1]
    assert len(at_once) > 13_000 and len(at_once) >= 0.99 * len(engine.refusals)
    assert engine.is_empty()


@in_virtual_time
async def test_after_an_overload_a_burst_that_fits_is_let_in_again() -> None:
    engine = Engine(1, requests=50, wait_seconds=30)
    await engine.ask("a", 100)
    engine.slots._optimism = MOST_OPTIMISM

    async def burst() -> list[bool]:
        return await asyncio.gather(*(engine.ask("a", 100, within=11.5) for _ in range(10)))

    doubted = await burst()
    assert 2 <= sum(doubted) < 10, "some wait although all expectations have failed of late"
    await asyncio.sleep(600)
    assert all(await burst())


@in_virtual_time
async def test_the_least_urgent_are_served_although_there_is_always_something_more_urgent() -> None:
    engine = Engine(2, requests=200, wait_seconds=300, turn=10)

    async def always(tenant: str, urgency: int) -> None:
        while True:
            await engine.ask(tenant, 100, urgency=urgency)

    await _until(600, *(always("i", 0) for _ in range(20)), *(always("b", 2) for _ in range(3)))
    assert engine.served["b"] / engine.served["i"] == pytest.approx(0.1, abs=0.02)
    assert max(engine.waits["b"]) < 20

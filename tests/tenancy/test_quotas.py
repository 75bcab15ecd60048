"""Limits are taken together or not at all, and settled to the truth; by the same rules in memory and in Redis."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from serving.tenancy.quotas import NOTHING, Claim, Limit, Limits, LocalQuotas, Reservation
from serving.tenancy.shared_quotas import SCRIPT
from tests.doubles.redis_server import RedisServer

LIMITS = Limits(requests=6, tokens=100, concurrency=3, nano_dollars=500)


class Time:
    """A clock that a test moves; the wall's and the monotonic one at once."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def quotas() -> tuple[LocalQuotas, Time]:
    time = Time()
    return LocalQuotas(time, time), time


def test_one_limit_that_refuses_costs_nothing_of_the_others() -> None:
    book, _ = quotas()
    running = book.reserve("a", Limits(requests=2, concurrency=1), Claim(1, 10)).reservation
    assert running is not None
    refused = book.reserve("a", Limits(requests=2, concurrency=1), Claim(1, 10))
    assert refused.refused_by is Limit.CONCURRENCY and refused.standing.requests == 1
    book.settle(running, Claim(1, 10))
    assert book.reserve("a", Limits(requests=2, concurrency=1), Claim(1, 10)).reservation is not None


def test_tenants_do_not_share_limits() -> None:
    book, _ = quotas()
    assert book.reserve("a", Limits(requests=1), Claim(1, 0)).reservation is not None
    assert book.reserve("a", Limits(requests=1), Claim(1, 0)).reservation is None
    assert book.reserve("b", Limits(requests=1), Claim(1, 0)).reservation is not None


def test_a_day_of_dollars_ends_at_midnight_utc() -> None:
    book, time = quotas()
    time.now = 86_400 * 20_000 + 86_000.0
    limits = Limits(nano_dollars=10)
    assert book.reserve("a", limits, Claim(1, 0, 10)).reservation is not None
    refused = book.reserve("a", limits, Claim(1, 0, 1))
    assert (refused.refused_by, refused.wait_seconds) == (Limit.DOLLARS, 400.0)
    time.now += 400
    assert book.reserve("a", limits, Claim(1, 0, 10)).reservation is not None


def test_a_clock_that_is_set_right_gives_no_day_twice() -> None:
    """Back over midnight by a blink, and ahead by a year and back: what a day has taken it has taken."""
    time, wall = Time(), Time(86_400 * 20_000 + 86_399.9)
    book, limits = LocalQuotas(time, wall), Limits(nano_dollars=10)
    running = book.reserve("a", limits, Claim(1, 0, 8)).reservation
    assert running is not None
    wall.now += 0.2
    assert book.reserve("a", limits, Claim(1, 0, 7)).reservation is not None, "another day"
    wall.now -= 0.2
    assert book.reserve("a", limits, Claim(1, 0, 3)).refused_by is Limit.DOLLARS
    wall.now += 0.2
    assert book.reserve("a", limits, Claim(1, 0, 4)).refused_by is Limit.DOLLARS
    book.settle(running, Claim(1, 0, 1))
    wall.now -= 0.2
    assert book.standing("a", limits).nano_dollars == 9, "settled on its own day"
    wall.now += 365 * 86_400
    assert book.standing("a", limits).nano_dollars == 10
    wall.now -= 365 * 86_400
    assert book.standing("a", limits).nano_dollars == 9


def test_what_was_used_beyond_the_reservation_counts_from_when_it_is_known() -> None:
    book, time = quotas()
    held = book.reserve("a", LIMITS, Claim(1, 10)).reservation
    assert held is not None
    time.now += 90
    book.settle(held, Claim(1, 60))
    assert book.standing("a", LIMITS).tokens == 50
    time.now += 61
    assert book.standing("a", LIMITS).tokens == 100


operations = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(0, 40)),
        st.tuples(st.just("reserve"), st.integers(0, 60), st.integers(0, 200)),
        st.tuples(st.just("settle"), st.integers(0, 5), st.integers(0, 90), st.integers(0, 200)),
    ),
    max_size=50,
)


@given(operations)
def test_nothing_is_lost_or_made(steps: list[tuple[Any, ...]]) -> None:
    """At each moment the window holds no more than the limit plus what requests used beyond their reservation."""
    book, time = quotas()
    open_: list[Reservation] = []
    for step in steps:
        if step[0] == "pass":
            time.now += step[1]
        elif step[0] == "reserve":
            before = book.standing("a", LIMITS)
            verdict = book.reserve("a", LIMITS, Claim(1, step[1], step[2]))
            if verdict.reservation is None:
                assert book.standing("a", LIMITS) == before
            else:
                open_.append(verdict.reservation)
        elif open_:
            book.settle(open_.pop(step[1] % len(open_)), Claim(1, step[2], step[3]))
        assert book.standing("a", LIMITS).concurrency == LIMITS.concurrency - len(open_)  # type: ignore[operator]
        assert len(open_) <= 3
    for held in open_:
        book.settle(held, NOTHING)
    time.now += 86_400 * 2
    left = book.standing("a", LIMITS)
    assert (left.requests, left.tokens, left.concurrency, left.nano_dollars) == (6, 100, 3, 500)


class ScriptUnderTest:
    """The script with a clock that the test moves."""

    def __init__(self, client: Redis, time: Time) -> None:
        text = SCRIPT
        clock = "local clock = {table.remove(ARGV, #ARGV - 1), table.remove(ARGV)}"
        text = SCRIPT.replace("local clock = redis.call('TIME')", clock)
        assert clock in text
        self._script = client.register_script(text)
        self._time = time
        self._number = 0

    async def call(self, *arguments: Any) -> list[str]:
        now = self._time.now
        clock = (int(now), int(now % 1 * 1_000_000))
        keys = [f"x:{{a}}:{name}" for name in ("window", "open", "claims", "dollars", "marks")]
        return (await self._script(keys=keys, args=[*arguments, *clock])).decode().split(" ")

    async def reserve(self, claim: Claim) -> tuple[str | None, list[str]]:
        self._number += 1
        most = (LIMITS.requests, LIMITS.tokens, LIMITS.concurrency, LIMITS.nano_dollars)
        reply = await self.call("reserve", f"i{self._number}", 10_000_000_000, *most, *claim)
        return (f"i{self._number}" if reply[0] == "-" else None), reply


@pytest.fixture
async def script(redis: RedisServer) -> AsyncIterator[tuple[ScriptUnderTest, Time]]:
    time = Time(1_800_000_000.25)
    async with redis.client() as client:
        yield ScriptUnderTest(client, time), time


async def test_redis_counts_by_the_rules_of_the_memory(script: tuple[ScriptUnderTest, Time]) -> None:
    """The same walk through both: the same verdicts, the same standing."""

    shared, time = script
    book = LocalQuotas(time, time)
    chance = random.Random(7)
    open_: list[tuple[Reservation, str]] = []
    for number in range(1500):
        kind = chance.choice(("pass", "reserve", "reserve", "settle"))
        if kind == "pass":
            time.now += chance.choice((0.25, 1, 7, 40)) if chance.random() < 0.9 else 90_000
            continue
        if kind == "settle" and open_:
            held, name = open_.pop(chance.randrange(len(open_)))
            used = Claim(chance.randrange(2), chance.randrange(90), chance.randrange(200))
            book.settle(held, used)
            await shared.call("settle", name, *used)
            assert await shared.call("settle", name, *used) == ["0"], "said twice, counted once"
            continue
        claim = Claim(1, chance.randrange(60), chance.randrange(200))
        verdict = book.reserve("a", LIMITS, claim)
        name_or_none, reply = await shared.reserve(claim)
        refused_by, wait_ms, requests, reset_requests, tokens, reset_tokens, concurrency, spent = reply
        assert refused_by == (verdict.refused_by or "-"), f"step {number}: {verdict} {reply}"
        if verdict.refused_by is not None:
            assert int(wait_ms) / 1000 == pytest.approx(verdict.wait_seconds, abs=0.002)
        standing = verdict.standing
        assert LIMITS.requests and LIMITS.tokens and LIMITS.concurrency and LIMITS.nano_dollars
        left = (6 - int(requests), max(0, 100 - int(tokens)), 3 - int(concurrency), max(0, 500 - int(spent)))
        assert left == (standing.requests, standing.tokens, standing.concurrency, standing.nano_dollars), f"step {number}"
        assert int(reset_requests) / 1000 == pytest.approx(standing.requests_reset_seconds, abs=0.002), f"step {number}"
        assert int(reset_tokens) / 1000 == pytest.approx(standing.tokens_reset_seconds, abs=0.002), f"step {number}"
        if verdict.reservation is not None and name_or_none is not None:
            open_.append((verdict.reservation, name_or_none))


async def test_leases_that_nobody_renews_end(script: tuple[ScriptUnderTest, Time]) -> None:
    shared, time = script
    for name in ("i1", "i2", "i3"):
        await shared.call("reserve", name, 15_000, -1, -1, 3, -1, 1, 5, 0)
    time.now += 10
    await shared.call("renew", 15_000, "i3")
    assert (await shared.call("reserve", "i4", 15_000, -1, -1, 3, -1, 1, 5, 0))[0] == "concurrency"
    time.now += 6
    reply = await shared.call("reserve", "i5", 15_000, -1, -1, 3, -1, 1, 5, 0)
    assert (reply[0], reply[6]) == ("-", "2"), "i3 and i5 run"
    assert await shared.call("settle", "i1", 1, 1, 0) == ["0"], "a lease that was given up gives nothing back"


async def test_what_is_told_twice_after_an_outage_counts_once(script: tuple[ScriptUnderTest, Time]) -> None:
    shared, _ = script
    for _again in range(2):
        await shared.call("adopt", "i1", 15_000, 5, 1, 20, 30)
        await shared.call("settle", "i1", 1, 25, 35)
        await shared.call("pay", "p1", 1_800_000_000 // 86_400, 100, 3, 1, 40)
    reply = await shared.call("reserve", "i2", 15_000, 10, 1000, -1, -1, 1, 0, 0)
    assert reply[2] == "3" and reply[4] == "65" and reply[7] == "135", reply

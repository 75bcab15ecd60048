"""O-QOS-1 and 3: limits that several gateways share in a real Redis, and what happens when that is away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from serving.tenancy.shared_quotas import SharedQuotas
from tests.doubles.gateway_process import gateway_process
from tests.doubles.raw_client import RawClient, RawResponse, ask, request_bytes
from tests.doubles.redis_server import RedisServer
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Gate, Script, Usage
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS, settled
from tests.doubles.tenants import bearer, crowd, tenants
from tests.flow.conftest import chat, settings_over
from tests.flow.test_limits import CHAT, assert_limited, limits

ROUNDS = 10
LEASE_SECONDS = 10
SHARE = {"when_down": "local_share", "replicas": 2, "retry_seconds": 0.2}
CLOSED = {"when_down": "closed", "retry_seconds": 0.2}


@contextlib.asynccontextmanager
async def two_gateways(engine: ScriptedEngine | None, url: str, **sections: Any) -> AsyncIterator[list[RunningGateway]]:
    store = {"url": url} | sections.pop("store", SHARE)
    settings = settings_over({} if engine is None else {"e1": engine}, limits={"store": store}, **sections)
    async with RunningGateway(settings) as first, RunningGateway(settings) as second:
        yield [first, second]


def be_patient(gateways: list[RunningGateway], seconds: float = HANG_SECONDS) -> None:
    """Where the store is well: that a busy test machine keeps it from running must not count."""
    for gateway in gateways:
        store = store_of(gateway)
        store._settings = store._settings.model_copy(update={"timeout_seconds": seconds})


def urls(gateways: list[RunningGateway]) -> list[str]:
    return [gateway.url for gateway in gateways]


def store_of(gateway: RunningGateway) -> SharedQuotas:
    assert isinstance(gateway.app.quotas, SharedQuotas)
    return gateway.app.quotas


async def counted(redis: RedisServer, tenant: str) -> Counter[str]:
    """What the store holds: requests and tokens in the window, running requests, nano-dollars."""
    found: Counter[str] = Counter()
    async with redis.client() as client:
        for field, amount in (await client.hgetall(f"serving:{{{tenant}}}:window")).items():
            assert int(amount) >= 0, "no negative counts"
            found[field[:1].decode()] += int(amount)
        found["open"] = await client.zcard(f"serving:{{{tenant}}}:open")
        found["claims"] = await client.hlen(f"serving:{{{tenant}}}:claims")
        found["dollars"] = sum(map(int, (await client.hgetall(f"serving:{{{tenant}}}:dollars")).values()))
    return found


async def all_up(gateways: list[RunningGateway]) -> None:
    async def problems() -> list[str]:
        return [gateway.url for gateway in gateways if not store_of(gateway).is_up]

    await settled(problems)


async def all_down(gateways: list[RunningGateway]) -> None:
    async def problems() -> list[str]:
        return [gateway.url for gateway in gateways if store_of(gateway).is_up]

    await settled(problems)


async def settles(redis: RedisServer, tenant: str, **expected: int) -> None:
    async def problems() -> list[str]:
        found = await counted(redis, tenant)
        return [f"{name}: {found[name]} ≠ {value}" for name, value in expected.items() if found[name] != value]

    await settled(problems)


async def test_o_qos_1_a_burst_over_two_gateways_gets_exactly_the_limit(engine: ScriptedEngine, redis: RedisServer) -> None:
    engine.default = Script(usage=Usage(prompt_tokens=7, completion_tokens=3))
    names = [f"t{number}" for number in range(ROUNDS)]
    async with two_gateways(engine, redis.url, **tenants({name: limits(requests_per_minute=10) for name in names})) as gateways:
        be_patient(gateways)
        async with crowd(urls(gateways), 200) as clients:
            for name in names:
                answers = await clients.ask(CHAT, chat(), bearer(name))
                admitted = [answer for answer in answers if answer.status == 200]
                assert len(admitted) == 10, name
                told = sorted(int(answer.header("x-ratelimit-remaining-requests") or -1) for answer in admitted)
                assert told == list(range(10)), "one count for both gateways"
                for answer in answers:
                    if answer.status != 200:
                        assert_limited(answer, "10")
                await settles(redis, name, r=10, t=100, open=0, claims=0)


async def test_tokens_and_concurrency_are_shared_and_settled(engine: ScriptedEngine, redis: RedisServer) -> None:
    gate = Gate()
    engine.default = Script(usage=Usage(prompt_tokens=50, completion_tokens=40), gate=gate)
    terms = limits(tokens_per_minute=1000, concurrency=5)
    async with two_gateways(engine, redis.url, **tenants({"a": terms})) as gateways:
        be_patient(gateways)
        async with crowd(urls(gateways), 20) as clients:
            asking = asyncio.create_task(clients.ask(CHAT, chat(max_tokens=100), bearer("a")))
            await settles(redis, "a", open=5, claims=5, r=5)
            assert (await counted(redis, "a"))["t"] <= 1000
            gate.open_all()
            answers = await asking
        assert Counter(answer.status for answer in answers) == {200: 5, 429: 15}
        await settles(redis, "a", open=0, claims=0, r=5, t=450)


async def test_a_client_that_leaves_while_the_store_is_asked_leaves_nothing(engine: ScriptedEngine, redis: RedisServer) -> None:
    async with two_gateways(engine, redis.url, **tenants({"a": limits(requests_per_minute=10)})) as gateways:
        for _ in range(20):
            async with RawClient(gateways[0].url) as client:
                await client.send(request_bytes(CHAT, chat(), headers=bearer("a")))
                client.hang_up("rst")
            await asyncio.sleep(0.002)
        await settles(redis, "a", open=0, claims=0)
        assert all(gateway.app.admission.open_leases == 0 for gateway in gateways)


async def test_the_leases_of_a_killed_gateway_end(engine: ScriptedEngine, redis: RedisServer, tmp_path: Path) -> None:
    engine.default = Script(gate=Gate())
    sections = tenants({"a": limits(concurrency=2)})
    store = {"url": redis.url, "lease_seconds": LEASE_SECONDS, **SHARE}
    async with (
        two_gateways(
            None, redis.url, store=store, endpoints=[{"name": "e1", "url": engine.url, "model": "tiny"}], **sections
        ) as others,
        gateway_process({"e1": engine.url}, tmp_path, limits={"store": store}, **sections) as killed,
    ):
        be_patient(others)
        clients = [await RawClient(killed.url).connect() for _ in range(2)]
        for number, client in enumerate(clients, 1):
            await client.send(request_bytes(CHAT, chat(), headers=bearer("a")))
            await engine.reached("held", number)
        held = await leases(redis, "a")
        assert len(held) == 2
        await become_renewed(redis, "a", held)
        killed.process.kill()
        await killed.process.wait()
        for client in clients:
            client.hang_up()
        engine.default = Script()
        url = others[0].url
        assert (await ask(url, CHAT, chat(), headers=bearer("a"))).status == 429
        began = time.monotonic()
        while (await ask(url, CHAT, chat(), headers=bearer("a"))).status == 429:
            assert time.monotonic() - began < 3 * LEASE_SECONDS
            await asyncio.sleep(0.1)
        await settles(redis, "a", open=0, claims=0)


async def leases(redis: RedisServer, tenant: str) -> dict[bytes, float]:
    """When each ends unless it is renewed."""
    async with redis.client() as client:
        return dict(await client.zrange(f"serving:{{{tenant}}}:open", 0, -1, withscores=True))


async def become_renewed(redis: RedisServer, tenant: str, held: dict[bytes, float]) -> None:
    async def problems() -> list[str]:
        now = await leases(redis, tenant)
        return [str(name) for name, end in held.items() if now.get(name, 0.0) <= end]

    await settled(problems)


async def kill(redis: RedisServer) -> Callable[[], Awaitable[None]]:
    await redis.kill()
    return redis.start


async def hang(redis: RedisServer) -> Callable[[], Awaitable[None]]:
    redis.hang()

    async def wake() -> None:
        redis.wake()

    return wake


async def garbage(redis: RedisServer) -> Callable[[], Awaitable[None]]:
    """Something else listens at the store's address."""
    await redis.kill()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(65_536):
                writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n+what\r\n:7\r\n$-1\r\n" * 20)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", redis.port)

    async def restore() -> None:
        server.close()
        await redis.start()

    return restore


async def read_only(redis: RedisServer) -> Callable[[], Awaitable[None]]:
    """Another one has become the primary."""
    async with redis.client() as client:
        await client.replicaof("127.0.0.1", "1")

    async def restore() -> None:
        async with redis.client() as client:
            await client.replicaof("NO", "ONE")

    return restore


FAULTS = {"killed": kill, "hung": hang, "garbage": garbage, "read only": read_only}
KEPT = ("hung", "read only")
"""The store has its counts afterwards."""


class Traffic:
    """One tenant that asks both gateways at a pace beyond its limit, all the time."""

    def __init__(self, gateways: list[RunningGateway], tenant: str) -> None:
        self._gateways = gateways
        self._tenant = tenant
        self.answers: list[tuple[float, float, RawResponse]] = []
        """When it was asked, how long it took, the answer."""

    async def begin(self, count: int) -> None:
        """So many, one after another, which the store lets through."""
        for number in range(count):
            await self._one(self._gateways[number % 2].url)

    async def run(self) -> None:
        tasks = set()
        try:
            for number in range(10**6):
                tasks.add(asyncio.create_task(self._one(self._gateways[number % 2].url)))
                await asyncio.sleep(0.02)
        finally:
            await asyncio.wait(tasks)

    async def _one(self, url: str) -> None:
        began = time.monotonic()
        answer = await ask(url, CHAT, chat(), headers=bearer(self._tenant))
        self.answers.append((began, time.monotonic() - began, answer))

    def statuses(self, since: float, until: float) -> Counter[int]:
        return Counter(answer.status for began, _, answer in self.answers if since <= began < until)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", ["local_share", "closed"])
async def test_o_qos_3_a_store_that_is_away_lets_nobody_use_more(
    engine: ScriptedEngine, redis: RedisServer, fault: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Fifty requests a second against a limit of forty a minute, which is used before, during and after the fault."""
    caplog.set_level(logging.INFO, "serving.limits")
    store = SHARE if mode == "local_share" else CLOSED
    sections = tenants({"a": limits(requests_per_minute=40), "b": {}})
    async with two_gateways(engine, redis.url, store=store, **sections) as gateways:
        be_patient(gateways, 1.0)
        traffic = Traffic(gateways, "a")
        await traffic.begin(10)
        failures = (await gateways[0].metrics()).sum("serving_limit_store_failures_total")
        caplog.clear()
        broken = time.monotonic()
        under_way = asyncio.create_task(traffic.begin(10))
        restore = await FAULTS[fault](redis)
        running = asyncio.create_task(traffic.run())
        await all_down(gateways)
        down = time.monotonic()
        await asyncio.sleep(1.0)
        await under_way
        for gateway in gateways:
            await ask(gateway.url, CHAT, chat(), headers=bearer("a"))  # is answered: nobody waits for the store to come back
        assert not any(store_of(gateway).is_up for gateway in gateways)
        assert (await ask(gateways[0].url, CHAT, chat(), headers=bearer("b"))).status == 200, "no limits, no store"
        lost = [record for record in caplog.records if "is lost" in record.message]
        assert len(lost) == 2, "one line of each gateway"
        values = await gateways[0].metrics()
        assert values.sum("serving_limit_store_up") == 0 and values.sum("serving_limit_store_failures_total") == failures + 1
        restored = time.monotonic()
        await restore()
        await all_up(gateways)
        await asyncio.sleep(0.5)
        running.cancel()
        await asyncio.wait({running})
        during = traffic.statuses(down, restored)
        if mode == "closed":
            assert set(during) == {503}
            refused = next(answer for began, _, answer in traffic.answers if answer.status == 503)
            assert json.loads(refused.body)["error"]["code"] == "limit_store_unavailable"
            assert refused.header("retry-after") == "1"
        else:
            assert set(during) <= {200, 429} and traffic.statuses(broken, restored)[200] > 0
        assert set(traffic.statuses(0, 1e12)) <= {200, 429, 503}
        admitted = traffic.statuses(0, 1e12)[200]
        if fault in KEPT:
            # And was told what it had missed. Each gateway had its part of what was left when the store was lost, as far as it
            # knew: the other may have let something through after this one had heard of the store last.
            assert admitted <= 40 + 6
            await settles(redis, "a", r=admitted, open=0, claims=0)
        else:
            assert admitted <= 40 + 40, "a store that forgets allows its limit once more"


async def test_what_is_left_when_the_store_is_lost_is_all_that_is_shared(engine: ScriptedEngine, redis: RedisServer) -> None:
    """One gateway has let nearly all of a limit through; the other has seen the tenant once, and none of the rest at all."""
    terms = limits(requests_per_minute=20, dollars_per_day=1.0)
    prices = {"models": {"tiny": {"prompt": 1000.0, "output": 1000.0}}}
    engine.default = Script(usage=Usage(prompt_tokens=10, completion_tokens=10))
    sections = tenants({"a": terms, "unseen": limits(requests_per_minute=20)})
    async with two_gateways(engine, redis.url, prices=prices, **sections) as gateways:
        be_patient(gateways, 1.0)
        first, second = urls(gateways)

        async def admitted(url: str, count: int, tenant: str = "a") -> int:
            answers = [await ask(url, CHAT, chat(max_tokens=10), headers=bearer(tenant)) for _ in range(count)]
            assert {answer.status for answer in answers} <= {200, 429}
            return sum(answer.status == 200 for answer in answers)

        assert await admitted(second, 1) + await admitted(first, 15) == 16
        assert await admitted(first, 18, "unseen") == 18

        async def problems() -> list[str]:
            others = store_of(gateways[1])._others.get("a")
            return [] if others is not None and others.requests.total == 15 else [f"{others} is old"]

        await settled(problems)
        await redis.kill()
        await all_down_by(gateways, first, second)
        assert [await admitted(url, 6) for url in (first, second)] == [2, 2], "20 less 16, divided by two"
        assert await admitted(second, 3, "unseen") == 0, "what was used elsewhere is not known here"
        refused = await ask(second, CHAT, chat(max_tokens=10), headers=bearer("a"))
        assert 1 <= int(refused.header("retry-after") or 0) <= 60


async def all_down_by(gateways: list[RunningGateway], *asked: str) -> None:
    """A gateway notices that its store is gone when it asks it; the tenant that asks here has no part in the test."""
    for url in asked:
        await ask(url, CHAT, chat(), headers=bearer("unseen-by-the-store"))
    await all_down(gateways)


async def test_what_was_used_while_the_store_was_away_is_told_it(engine: ScriptedEngine, redis: RedisServer) -> None:
    """Requests that began before, during and after the outage and ended in any of them: each counts once."""
    gates = [Gate() for _ in range(4)]
    terms = limits(requests_per_minute=100, tokens_per_minute=100_000, concurrency=50)
    usage = Usage(prompt_tokens=30, completion_tokens=12)
    async with two_gateways(engine, redis.url, **tenants({"a": terms})) as gateways:

        async def begun(gate: Gate, number: int) -> asyncio.Task[RawResponse]:
            engine.script(Script(usage=usage, gate=gate))
            task = asyncio.create_task(ask(gateways[0].url, CHAT, chat(), headers=bearer("a")))
            await engine.reached("held", number)
            return task

        first, second = await begun(gates[0], 1), await begun(gates[1], 2)
        redis.hang()
        third = await begun(gates[2], 3)  # asked the store in vain
        assert not store_of(gateways[0]).is_up
        fourth = await begun(gates[3], 4)
        gates[0].open_all()
        gates[3].open_all()
        assert (await first).status == (await fourth).status == 200
        redis.wake()
        await all_up(gateways[:1])
        await settles(redis, "a", r=4, open=2, claims=2)
        gates[1].open_all()
        gates[2].open_all()
        assert (await second).status == (await third).status == 200
        await settles(redis, "a", r=4, t=4 * 42, open=0, claims=0)


async def test_a_store_that_was_emptied_is_no_fault(engine: ScriptedEngine, redis: RedisServer) -> None:
    async with two_gateways(engine, redis.url, **tenants({"a": limits(requests_per_minute=2)})) as gateways:
        be_patient(gateways)
        assert (await ask(gateways[0].url, CHAT, chat(), headers=bearer("a"))).status == 200
        async with redis.client() as client:
            await client.flushall()
            await client.script_flush()
        for status in (200, 200, 429):
            assert (await ask(gateways[1].url, CHAT, chat(), headers=bearer("a"))).status == status
        assert store_of(gateways[1]).is_up


async def test_a_gateway_starts_without_its_store(engine: ScriptedEngine, redis: RedisServer) -> None:
    await redis.kill()
    async with two_gateways(engine, redis.url, **tenants({"a": limits(requests_per_minute=4)})) as gateways:
        be_patient(gateways)
        statuses = [(await ask(gateways[0].url, CHAT, chat(), headers=bearer("a"))).status for _ in range(3)]
        assert statuses == [200, 200, 429], "half of the limit"
        await redis.start()
        await all_up(gateways)
        await settles(redis, "a", r=2)
        statuses = [(await ask(gateways[1].url, CHAT, chat(), headers=bearer("a"))).status for _ in range(3)]
        assert statuses == [200, 200, 429], "the other half"


async def test_why_the_store_cannot_be_used_at_the_start_is_said(
    redis: RedisServer, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong password, most of all; the right one is not said."""
    async with redis.client() as client:
        await client.config_set("requirepass", "right")
    url = redis.url.replace("redis://", "redis://:wr0ng@")
    async with two_gateways(engine, url, **tenants({"a": limits(requests_per_minute=5)})) as (gateway, _):
        assert not store_of(gateway).is_up
    lost = [line for line in caplog.messages if "the limit store is lost: it cannot be used at the start (" in line]
    assert len(lost) == 2 and all("invalid username-password pair" in line for line in lost), caplog.messages
    assert "wr0ng" not in caplog.text

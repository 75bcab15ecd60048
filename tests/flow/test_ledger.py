"""The ledger is the truth: what engines did is in it once, whatever fails; and what can be lost is as little as is promised."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from serving.ledger_settings import DatabaseSettings
from serving.tenancy.database.base import Database
from serving.tenancy.database.open import open_database
from serving.tenancy.database.schema import COLUMN_NAMES
from serving.tenancy.keys import KeyHashes, KeyRecord, KeyTable, new_key
from tests.doubles.conservation import TOKENS
from tests.doubles.engine_log import Record
from tests.doubles.gateway_process import gateway_process
from tests.doubles.postgres import RealPostgres, real_postgres
from tests.doubles.raw_client import HangUp, RawClient, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import HANG_SECONDS, settled
from tests.flow.conftest import GatewayOver, chat, settings_over
from tests.flow.test_storm import FAST, KILLED, SCRIPTS

CHAT = "/v1/chat/completions"
SECRET = "the secret of all gateways"
PRICES = {"models": {"tiny": {"prompt": 0.25, "cached": 0.025, "output": 2.0}}}
FRESH_DATABASE = {"refresh_seconds": 0.1, "timeout_seconds": 0.5}
PROMISED_SECONDS = 1.0
"""At most so much of the end is lost when the process is killed (docs/tenants.md)."""


def opened(url: str) -> Database:
    return open_database(DatabaseSettings(url=SecretStr(url)))


def ledger_rows(url: str) -> list[dict[str, Any]]:
    database = opened(url)
    rows = database.execute(f"SELECT {COLUMN_NAMES} FROM serving_ledger")
    database.close()
    return [dict(zip(COLUMN_NAMES.split(", "), row, strict=True)) for row in rows]


def add_key(url: str, tenant: str) -> tuple[KeyRecord, str]:
    record, text = new_key(tenant, KeyHashes(SECRET), note="", now=time.time())
    database = opened(url)
    KeyTable(database).add(record)
    database.close()
    return record, text


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# The truth


class Mix:
    """Requests of two tenants, each with an id of its own, over engines that do all that a storm's do."""

    def __init__(self, keys: Mapping[str, str], chance: random.Random) -> None:
        self.keys = keys
        self.chance = chance
        self.tenants: dict[str, str] = {}
        """By request id: all that were sent."""

    async def go(self, url: str, requests: int) -> None:
        places = asyncio.Semaphore(20)

        async def one(number: int) -> None:
            async with places:
                await self._one(url, number)

        await asyncio.gather(*(one(number) for number in range(requests)))

    async def _one(self, url: str, number: int) -> None:
        chance = self.chance
        tenant, name = chance.choice(sorted(self.keys)), f"mix-{number}"
        self.tenants[name] = tenant
        leaves = chance.random() < 0.2
        body = chat(stream=chance.random() < 0.6) if chance.random() < 0.9 else {"model": "tiny"}
        try:
            async with RawClient(url) as client:
                await client.send(request_bytes(CHAT, body, headers={"X-Request-Id": name, **bearer(self.keys[tenant])}))
                response = await client.read_head()
                async for _ in client.read_body(response):
                    if leaves:
                        return
        except HangUp:
            pass


def by_request(engines: list[ScriptedEngine]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for engine in engines:
        for record in engine.log.requests:
            found.setdefault(record.header("x-request-id") or "", []).append(record)
    return found


def wrong_about(row: Mapping[str, Any], seen: list[Record]) -> list[str]:
    """What a row says that the engines' logs do not."""
    found = []
    if not row["attempts"] - 1 <= len(seen) <= row["attempts"]:  # one that was cancelled at once may not have been read
        found.append(f"{row['attempts']} attempts, engines saw {len(seen)}")
    if row["outcome"] == "ok":
        usage = max(seen, key=lambda record: record.arrived_seconds).usage
        truth = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, 0)
        if (row["prompt_tokens"], row["cached_tokens"], row["output_tokens"], row["estimated"]) != truth:
            found.append(f"engine said {truth}")
    elif row["first_token_seconds"] is None and row["prompt_tokens"] is not None:
        found.append("tokens of no answer")
    elif row["output_tokens"] is not None:
        most = max((record.usage.completion_tokens for record in seen if record.usage), default=0)
        if row["output_tokens"] > most:
            found.append(f"more output than the {most} that were written")
    computed = None if row["prompt_tokens"] is None else row["prompt_tokens"] - (row["cached_tokens"] or 0)
    kinds = (("prompt", computed, 250), ("cached", row["cached_tokens"], 25), ("output", row["output_tokens"], 2000))
    for kind, tokens, price in kinds:
        cost = row[f"{kind}_nanodollars"]
        if cost != (None if tokens is None else round(tokens * price)):
            found.append(f"{kind}: {tokens} tokens for {cost} nanodollars")
    return [f"{row['request_id']} ({row['outcome']}): {problem}" for problem in found]


@pytest.mark.parametrize("seed", range(3))
async def test_after_a_mix_of_faults_the_ledger_is_what_the_engines_logs_say(
    gateway_over: GatewayOver, tmp_path: Path, seed: int
) -> None:
    url = f"sqlite:{tmp_path}/serving.db"
    keys = {tenant: add_key(url, tenant) for tenant in ("red", "blue")}
    chance = random.Random(seed)
    mix = Mix({tenant: text for tenant, (_, text) in keys.items()}, chance)
    async with ScriptedEngine() as first, ScriptedEngine() as second:
        engines = [first, second]
        for engine in engines:
            engine.choose = lambda _: chance.choice(SCRIPTS)
        async with gateway_over(
            {"e1": first, "e2": second},
            expected=KILLED,
            relay=FAST,
            database={"url": url},
            auth={"key_secret": SECRET},
            prices=PRICES,
        ) as gateway:
            await mix.go(gateway.url, 300)
            await settled(lambda: unended(gateway, 300))
            metrics = await gateway.metrics()
        seen = by_request(engines)
    rows = ledger_rows(url)
    assert Counter(row["request_id"] for row in rows) == Counter(mix.tenants.keys()), "each request once"
    assert {row["request_id"]: row["tenant"] for row in rows} == mix.tenants
    assert {(row["tenant"], row["key_id"]) for row in rows} == {(tenant, record.id) for tenant, (record, _) in keys.items()}
    assert [problem for row in rows for problem in wrong_about(row, seen.get(row["request_id"], []))] == []
    assert len({row["outcome"] for row in rows}) >= 5, "a mix is a mix"
    for kind in ("prompt", "cached", "output"):
        assert sum(row[f"{kind}_tokens"] or 0 for row in rows) == metrics.sum(TOKENS, kind=kind)
    for outcome, count in Counter(row["outcome"] for row in rows).items():
        assert metrics.sum("serving_requests_total", outcome=outcome) == count


async def unended(gateway: RunningGateway, requests: int) -> list[str]:
    metrics = await gateway.metrics()
    ended = metrics.sum("serving_requests_total")
    return [] if ended == requests and not metrics.sum("serving_in_flight_requests") else [f"{ended:g} of {requests} have ended"]


async def test_a_request_of_nobody_is_not_in_the_ledger(
    gateway_over: GatewayOver, engine: ScriptedEngine, tmp_path: Path
) -> None:
    url = f"sqlite:{tmp_path}/serving.db"
    async with gateway_over({"e1": engine}, database={"url": url}) as gateway:
        assert (await ask(gateway.url, CHAT, chat())).status == 401
        assert (await ask(gateway.url, CHAT, chat(), headers=bearer("sk-wrong"))).status == 401
    assert ledger_rows(url) == []


# Killed


async def keep_asking(url: str, headers: Mapping[str, str], answered: dict[str, float], clients: int = 8) -> None:
    """Ask until the gateway is gone; when each answer was whole goes to `answered`, in monotonic seconds."""

    async def one(place: int) -> None:
        number = 0
        async with RawClient(url) as client:
            while True:
                name = f"kill-{place}-{number}"
                await client.send(request_bytes(CHAT, chat(stream=number % 2 == 0), headers={"X-Request-Id": name, **headers}))
                await client.read()
                answered[name] = time.monotonic()
                number += 1

    await asyncio.gather(*(one(place) for place in range(clients)), return_exceptions=True)


def lost_too_early(answered: Mapping[str, float], kept: list[dict[str, Any]], killed: float) -> list[str]:
    """Answers that are not in the ledger though they were whole long before the end."""
    names = Counter(row["request_id"] for row in kept)
    assert max(names.values()) == 1, "none is there twice"
    margin = 1.5  # a busy machine may let the writer wait
    return [name for name, ended in answered.items() if not names[name] and ended < killed - PROMISED_SECONDS - margin]


async def test_at_kill_9_no_more_is_lost_than_the_last_second(engine: ScriptedEngine, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/serving.db"
    _, key = add_key(url, "red")
    engine.default = Script(log_bytes=False)
    answered: dict[str, float] = {}
    async with gateway_process({"e1": engine.url}, tmp_path, database={"url": url}, auth={"key_secret": SECRET}) as gateway:
        asking = asyncio.create_task(keep_asking(gateway.url, bearer(key), answered))
        began = time.monotonic()
        await settled(lambda: still_waiting(answered, began + 4 * PROMISED_SECONDS))
        killed = time.monotonic()
        gateway.process.kill()
        await asking
    rows = ledger_rows(url)
    assert lost_too_early(answered, rows, killed) == []
    assert len(rows) > len(answered) / 3


async def still_waiting(answered: Mapping[str, float], until: float) -> list[str]:
    return [] if max(answered.values(), default=0.0) >= until else ["not long enough yet"]


async def test_sigterm_loses_nothing(engine: ScriptedEngine, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/serving.db"
    _, key = add_key(url, "red")
    answered: dict[str, float] = {}
    async with gateway_process({"e1": engine.url}, tmp_path, database={"url": url}, auth={"key_secret": SECRET}) as gateway:
        asking = asyncio.create_task(keep_asking(gateway.url, bearer(key), answered))
        await settled(lambda: enough(answered, 200))
        gateway.terminate()
        assert await gateway.ended() == 0
        await asking
    assert answered.keys() <= {row["request_id"] for row in ledger_rows(url)}


async def enough(answered: Mapping[str, float], count: int) -> list[str]:
    return [] if len(answered) >= count else [f"{len(answered)} of {count}"]


# PostgreSQL away


@pytest.fixture
def own_postgres() -> Iterator[RealPostgres]:
    """One that may be killed."""
    with real_postgres() as server:
        yield server


@asynccontextmanager
async def over_postgres(server: RealPostgres, engine: ScriptedEngine, **ledger: Any) -> AsyncIterator[RunningGateway]:
    settings = settings_over(
        {"e1": engine}, database={"url": server.url, **FRESH_DATABASE}, auth={"key_secret": SECRET}, ledger=ledger
    )
    async with RunningGateway(settings) as gateway:
        yield gateway


async def ask_often(gateway: RunningGateway, key: str, count: int = 50) -> None:
    """All are answered, and soon: the database is not on their way."""
    async with RawClient(gateway.url) as client:
        for _ in range(count):
            async with asyncio.timeout(HANG_SECONDS):
                assert (await client.ask(CHAT, chat(), headers=bearer(key))).status == 200


async def database_is(gateway: RunningGateway, up: int) -> list[str]:
    """A problem while it is not so, or while records wait for one that is there."""
    metrics = await gateway.metrics()
    found, waiting = metrics.sum("serving_database_up"), metrics.sum("serving_ledger_waiting_records")
    return [f"up {found:g}"] if found != up else [f"{waiting:g} records wait"] if up and waiting else []


@pytest.mark.parametrize("spills", [False, True])
async def test_postgresql_killed_hung_and_restored(
    engine: ScriptedEngine, own_postgres: RealPostgres, tmp_path: Path, spills: bool
) -> None:
    red, red_key = add_key(own_postgres.url, "red")
    _, blue_key = add_key(own_postgres.url, "blue")
    folder = {"spill_dir": str(tmp_path / "spill")} if spills else {}
    async with over_postgres(own_postgres, engine, flush_seconds=0.1, **folder) as gateway:
        await ask_often(gateway, red_key)
        own_postgres.kill()
        await ask_often(gateway, red_key)
        await settled(lambda: database_is(gateway, 0))
        await ask_often(gateway, blue_key)
        own_postgres.start()
        await settled(lambda: database_is(gateway, 1))

        own_postgres.hang()
        await ask_often(gateway, red_key)
        await settled(lambda: database_is(gateway, 0))
        await ask_often(gateway, blue_key)
        own_postgres.go_on()
        await settled(lambda: database_is(gateway, 1))

        await ask_often(gateway, red_key)
        database = opened(own_postgres.url)
        KeyTable(database).revoke(red.id, time.time())
        database.close()

        async def still_served() -> list[str]:
            return [] if (await ask(gateway.url, CHAT, chat(), headers=bearer(red_key))).status == 401 else ["still served"]

        await settled(still_served)
        await ask_often(gateway, blue_key)
        metrics = await gateway.metrics()
        assert metrics.sum("serving_ledger_records_total", result="dropped") == 0
        assert metrics.sum("serving_ledger_records_total", result="spilled") > 0 if spills else True
        answered = metrics.sum("serving_requests_total", outcome="ok")
    rows = ledger_rows(own_postgres.url)
    assert len([row for row in rows if row["outcome"] == "ok"]) == answered >= 300
    assert len({row["id"] for row in rows}) == len(rows)


async def test_without_its_database_at_the_start_a_gateway_waits_for_the_keys(
    engine: ScriptedEngine, own_postgres: RealPostgres
) -> None:
    _, key = add_key(own_postgres.url, "red")
    own_postgres.kill()
    async with over_postgres(own_postgres, engine) as gateway:
        response = await ask(gateway.url, CHAT, chat(), headers=bearer(key))
        assert (response.status, response.json["error"]["code"]) == (503, "keys_unavailable")
        assert response.header("retry-after") == "5"
        assert (await ask(gateway.url, "/readyz")).status == 503
        own_postgres.start()

        async def not_ready() -> list[str]:
            response = await ask(gateway.url, "/readyz")
            return [] if response.status == 200 else [response.body.decode()]

        await settled(not_ready)
        await ask_often(gateway, key, count=3)


async def test_killed_while_postgresql_is_away_the_next_gateway_brings_in_what_was_spilled(
    engine: ScriptedEngine, own_postgres: RealPostgres, tmp_path: Path
) -> None:
    _, key = add_key(own_postgres.url, "red")
    sections = {
        "database": {"url": own_postgres.url, **FRESH_DATABASE},
        "auth": {"key_secret": SECRET},
        "ledger": {"spill_dir": str(tmp_path / "spill")},
    }
    engine.default = Script(log_bytes=False)
    answered: dict[str, float] = {}
    async with gateway_process({"e1": engine.url}, tmp_path, **sections) as gateway:
        own_postgres.kill()
        asking = asyncio.create_task(keep_asking(gateway.url, bearer(key), answered))
        began = time.monotonic()
        await settled(lambda: still_waiting(answered, began + 5 * PROMISED_SECONDS))
        killed = time.monotonic()
        gateway.process.kill()
        await asking
    own_postgres.start()
    async with gateway_process({"e1": engine.url}, tmp_path, **sections):

        async def nothing_spilled() -> list[str]:
            return [entry.name for entry in os.scandir(tmp_path / "spill")]

        await settled(nothing_spilled)
    assert lost_too_early(answered, ledger_rows(own_postgres.url), killed) == []

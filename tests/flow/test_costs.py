"""The money is right: every dollar of the bill is in exactly one place, and what a price changes is what it should change."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from serving.ledger_settings import DatabaseSettings
from serving.settings import Settings
from serving.sim.rates import Rates
from serving.tenancy.database.open import open_database
from serving.tenancy.usage import read_usage
from tests.doubles.raw_client import HangUp, RawClient, ask, request_bytes
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.script import Script
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.doubles.simulated_engine import simulated_engine
from tests.doubles.tenants import bearer, tenants
from tests.flow.conftest import all_ready, chat

CHAT = "/v1/chat/completions"
TARGETS = {"mi355x": 3600.0, "b200": 7200.0, "epyc": 1800.0, "spare": 36_000.0}
"""Dollars of an accelerator for an hour, so that seconds cost whole dollars; on `spare` nothing ever runs."""
ACCELERATORS = {"mi355x": 2, "b200": 4, "epyc": 1, "spare": 1}
RATES = {target: price * ACCELERATORS[target] / 3600 for target, price in TARGETS.items()}
"""Dollars of an endpoint for a second."""
PRICES = {"models": {"tiny": {"prompt": 1.0, "output": 2.0}}}
PATIENCE_SECONDS = 2.0
"""How long the gateway waits for an answer to begin."""
PARTS = ("prompt", "cached", "output")


def settings_over(engines: Mapping[str, ScriptedEngine], folder: Path, prices: Mapping[str, float] = TARGETS) -> Settings:
    """Each engine in a pool and a target of the same name; `b200` and `mi355x` share a model."""
    return Settings.model_validate(
        {
            "endpoints": [
                {"name": f"{name}-1", "url": engine.url, "model": engine.model, "pool": name, "target": name}
                for name, engine in engines.items()
            ],
            "routing": {"pools": {name: {"accelerators": ACCELERATORS[name]} for name in engines}, "policy": "round_robin"},
            "targets": {name: {"dollars_per_accelerator_hour": prices[name], "power_watts": 1000} for name in engines},
            "prices": PRICES,
            "database": {"url": f"sqlite:{folder}/serving.db"},
            "relay": {"first_byte_timeout_seconds": PATIENCE_SECONDS},
            "engine_load": {"period_seconds": 0.1, "stale_seconds": 1.0},
            **tenants({"red": {}, "blue": {}}),
            "auth": {**tenants({"red": {}, "blue": {}})["auth"], "key_secret": "the secret of all gateways"},
        }
    )


@contextlib.asynccontextmanager
async def started() -> AsyncIterator[dict[str, ScriptedEngine]]:
    async with contextlib.AsyncExitStack() as stack:
        models = {"mi355x": "tiny", "b200": "tiny", "epyc": "small", "spare": "none"}
        engines = {name: await stack.enter_async_context(ScriptedEngine(model)) for name, model in models.items()}
        for engine in engines.values():
            engine.default = Script(ttft_seconds=0.1, itl_seconds=0.02)
        yield engines


class Scrape:
    """The metrics, and the seconds between which they were read."""

    def __init__(self, values: MetricValues, began: float, ended: float) -> None:
        self.values, self.began, self.ended = values, began, ended

    def sum(self, name: str, **labels: str) -> float:
        return self.values.sum(name, **labels)

    def of_pool(self, pool: str) -> dict[str, float]:
        """Dollars of a pool by what became of them."""
        used = {kind: self.sum("serving_used_dollars_total", pool=pool, kind=kind) for kind in PARTS}
        return used | {"failed": self.sum("serving_failed_dollars_total", pool=pool)}


async def scraped(gateway: RunningGateway) -> Scrape:
    began = time.monotonic()
    values = await gateway.metrics()
    return Scrape(values, began, time.monotonic())


async def quiet(gateway: RunningGateway) -> None:
    async def problems() -> list[str]:
        return [f"{gateway.app.pipeline.in_flight} under way"] if gateway.app.pipeline.in_flight else []

    await settled(problems)


async def mixed(gateway: RunningGateway, requests: int) -> None:
    """Requests of two tenants for two models, streams and whole answers, some of which are left by their clients."""

    async def one(number: int) -> None:
        model = "small" if number % 3 == 0 else "tiny"
        body = chat(model=model, stream=number % 2 == 0, max_tokens=5 + number % 7)
        headers = bearer(("red", "blue")[number % 2])
        if number % 5:
            await ask(gateway.url, CHAT, body, headers=headers)
            return
        with contextlib.suppress(HangUp):
            async with RawClient(gateway.url) as client:
                await client.send(request_bytes(CHAT, body, headers=headers))
                await asyncio.sleep(0.05 * (number % 4))

    await asyncio.gather(*(one(number) for number in range(requests)))


def busy_seconds(engine: ScriptedEngine) -> float:
    """For how long requests were under way at an engine, as its own log says."""
    total = until = 0.0
    for record in engine.log.requests:
        began = record.arrived_seconds
        ended = max([began, record.peer_closed_seconds or 0.0, *(write.at_seconds for write in record.writes)])
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


async def test_the_parts_of_the_bill_are_price_times_time(tmp_path: Path) -> None:
    async with started() as engines, RunningGateway(settings_over(engines, tmp_path)) as gateway:
        await all_ready(gateway)
        engines["epyc"].script(Script(), *(Script(blackhole=True) for _ in range(3)))
        scrapes = [await scraped(gateway)]
        for _ in range(2):
            await mixed(gateway, 20)
            await quiet(gateway)
            scrapes.append(await scraped(gateway))
            await asyncio.sleep(0.2)
        last = await scraped(gateway)
        for pool, rate in RATES.items():
            for before, after in (*zip(scrapes, [*scrapes[1:], last], strict=True), (scrapes[0], last)):
                bill = after.sum("serving_bill_dollars_total", pool=pool) - before.sum("serving_bill_dollars_total", pool=pool)
                least, most = rate * (after.began - before.ended), rate * (after.ended - before.began)
                assert 0.99 * least <= bill <= 1.01 * most, f"{pool}: price x time"
                taken = sum(after.of_pool(pool).values()) - sum(before.of_pool(pool).values())
                assert 0.0 <= taken <= bill * 1.01, f"{pool}: more was used than there was"
        for pool in ("mi355x", "b200", "spare"):  # the other engine does not see when the gateway gives up on it
            taken = sum(last.of_pool(pool).values()) / RATES[pool]
            assert taken == pytest.approx(busy_seconds(engines[pool]), rel=0.1, abs=0.15), f"{pool}: the rest was idle"
        assert sum(last.of_pool("spare").values()) == 0.0
        assert last.sum("serving_bill_dollars_total", pool="spare") > 0.0
        assert last.of_pool("epyc")["failed"] > 0.1 * RATES["epyc"], "what was never answered"
        for pool in ("mi355x", "b200", "epyc"):
            assert min(last.of_pool(pool)[kind] for kind in ("prompt", "output")) > 0.0


async def test_metrics_ledger_and_tenants_say_the_same(tmp_path: Path) -> None:
    async with started() as engines, RunningGateway(settings_over(engines, tmp_path)) as gateway:
        await all_ready(gateway)
        engines["mi355x"].choose = lambda _: Script(rst_after=0, head_at_arrival=False, ttft_seconds=0.05)
        await mixed(gateway, 30)
        await quiet(gateway)
        scrape = await scraped(gateway)
    database = open_database(DatabaseSettings(url=SecretStr(f"sqlite:{tmp_path}/serving.db")))
    for kind in PARTS:
        used = scrape.sum("serving_used_dollars_total", kind=kind)
        assert scrape.sum("serving_tenant_dollars_total", kind=kind) == pytest.approx(used, rel=1e-6), kind
        ((told,),) = database.execute(f"SELECT sum(machine_{kind}_nanodollars) FROM serving_ledger")
        assert told / 1e9 == pytest.approx(used, rel=1e-3), kind
        for tenant in ("red", "blue"):
            ((told,),) = database.execute(
                f"SELECT sum(machine_{kind}_nanodollars) FROM serving_ledger WHERE tenant = ?", (tenant,)
            )
            assert told / 1e9 == pytest.approx(scrape.sum("serving_tenant_dollars_total", kind=kind, tenant=tenant), rel=1e-3)
    ((failed,),) = database.execute("SELECT sum(machine_failed_nanodollars) FROM serving_ledger")
    assert failed / 1e9 == pytest.approx(scrape.sum("serving_failed_dollars_total"), rel=1e-3)
    assert failed > 0
    everything = {"since": datetime.fromtimestamp(0, UTC), "until": datetime.now(UTC)}
    by_pool = {row.group[0]: row.machine_failed_dollars or 0.0 for row in read_usage(database, by=("pool",), **everything)}
    several = by_pool.get("(several)", 0.0)
    for pool in TARGETS:
        failed_there = scrape.sum("serving_failed_dollars_total", pool=pool)
        assert failed_there - several - 1e-6 <= by_pool.get(pool, 0.0) <= failed_there + 1e-6, pool
    charges = "coalesce(prompt_nanodollars, 0) + coalesce(cached_nanodollars, 0) + coalesce(output_nanodollars, 0)"
    ((charged,),) = database.execute(f"SELECT sum({charges}) FROM serving_ledger")
    assert charged / 1e9 == pytest.approx(scrape.sum("serving_tenant_charged_dollars_total"), rel=1e-3)
    database.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_kind_of_token_costs_what_the_machine_takes_for_it(stream: bool) -> None:
    """The simulated engine takes 50 us for a prompt token and 10 ms for a step, which eight requests share. Whole answers are
    divided by what the gateway believes, which is twice as fast as the truth for both."""
    rates = Rates(prefill_tokens_per_second=20_000, step_seconds=0.01)
    believed = {"prefill_tokens_per_second": 40_000, "step_seconds": 0.005, "step_seconds_per_sequence": 1e-5}
    async with simulated_engine(rates=rates) as engine:
        endpoint = {"name": "e1", "url": engine.url, "model": "tiny", "pool": "p", "target": "own"}
        targets = {"own": {"dollars_per_accelerator_hour": 3600.0}}
        pools = {"routing": {"pools": {"p": believed}}}
        async with RunningGateway(Settings.model_validate({"endpoints": [endpoint], "targets": targets, **pools})) as gateway:

            async def one(number: int) -> None:
                words = [{"role": "user", "content": f"{number} " * 1000}]
                answer = await ask(gateway.url, CHAT, chat(messages=words, stream=stream, max_tokens=30, ignore_eos=True))
                assert answer.status == 200

            for batch in range(2):
                await asyncio.gather(*(one(10 + 8 * batch + number) for number in range(8)))
            scrape = await scraped(gateway)
    tokens = {kind: scrape.sum("serving_tokens_total", kind=kind) for kind in PARTS}
    dollars = {kind: scrape.sum("serving_used_dollars_total", kind=kind) for kind in PARTS}
    assert 0.5 < dollars["prompt"] / (tokens["prompt"] - tokens["cached"]) / 50e-6 < 2.0
    assert 0.5 < dollars["output"] / tokens["output"] / (0.01 / 8) < 2.5


async def test_gateways_in_front_of_one_engine_share_its_time(engine: ScriptedEngine) -> None:
    """Each sees its own requests and what the engine says of all: together they account for its time once, not twice."""
    engine.default = Script(itl_seconds=0.02, chunks=4000)
    endpoint = {"name": "e1", "url": engine.url, "model": "tiny", "target": "own"}
    settings = Settings.model_validate(
        {
            "endpoints": [endpoint],
            "targets": {"own": {"dollars_per_accelerator_hour": 3600.0}},
            "engine_load": {"period_seconds": 0.05, "stale_seconds": 5.0},
        }
    )
    async with RunningGateway(settings) as one, RunningGateway(settings) as other, contextlib.AsyncExitStack() as stack:
        gateways = (one, other, other)
        clients = [await stack.enter_async_context(RawClient(gateway.url)) for gateway in gateways]
        for client in clients:
            await client.send(request_bytes(CHAT, chat(stream=True, max_tokens=4000)))

        async def heard() -> list[str]:
            accounts = [gateway.app.costs._accounts.get("e1") for gateway in (one, other)]
            foreign = [0.0 if account is None else account.foreign for account in accounts]
            return [] if foreign == pytest.approx([2.0, 1.0], abs=0.1) else [f"others: {foreign}"]

        await settled(heard)
        before = [await scraped(gateway) for gateway in (one, other)]
        await asyncio.sleep(3.0)
        after = [await scraped(gateway) for gateway in (one, other)]
        for early, late, share in zip(before, after, (1 / 3, 2 / 3), strict=True):
            used = late.sum("serving_used_dollars_total") - early.sum("serving_used_dollars_total")
            assert 0.8 * share * (late.began - early.ended) <= used <= 1.2 * share * (late.ended - early.began)


async def test_a_price_changes_its_own_targets_dollars_and_nothing_else(tmp_path: Path) -> None:
    """The same work twice, the second time with one target at ten times its price."""
    seen: dict[str, Scrape] = {}
    seconds: dict[str, dict[str, float]] = {}
    for name, prices in (("before", TARGETS), ("after", {**TARGETS, "b200": 10 * TARGETS["b200"]})):
        async with started() as engines:
            folder = tmp_path / name
            folder.mkdir()
            async with RunningGateway(settings_over(engines, folder, prices)) as gateway:
                await all_ready(gateway)
                for number in range(6):
                    body = chat(model="tiny" if number % 3 else "small", stream=number % 2 == 0)
                    assert (await ask(gateway.url, CHAT, body, headers=bearer("red"))).status == 200
                await quiet(gateway)
                seen[name] = await scraped(gateway)
                seconds[name] = {
                    pool: each.prompt_seconds + each.cached_seconds + each.output_seconds + each.failed_seconds
                    for (_, pool, _), each in gateway.app.costs.totals.items()
                }
    before, after = seen["before"], seen["after"]
    for pool in ("mi355x", "epyc", "b200"):
        for scrape, name, factor in ((before, "before", 1), (after, "after", 10 if pool == "b200" else 1)):
            assert sum(scrape.of_pool(pool).values()) == pytest.approx(factor * RATES[pool] * seconds[name][pool])
        price = after.sum("serving_accelerator_price_dollars_per_hour", pool=pool)
        assert price == TARGETS[pool] * (10 if pool == "b200" else 1)
    for same in ("serving_tokens_total", "serving_tenant_charged_dollars_total", "serving_engine_attempts_total"):
        assert after.sum(same) == pytest.approx(before.sum(same)), same
    for pool in TARGETS:
        assert after.sum("serving_tokens_total", pool=pool) == before.sum("serving_tokens_total", pool=pool)
        assert after.sum("serving_accelerators", pool=pool) == before.sum("serving_accelerators", pool=pool) == ACCELERATORS[pool]
        assert after.sum("serving_power_watts", pool=pool, source="estimated") == 1000 * ACCELERATORS[pool]


async def test_without_a_price_there_are_no_dollars(engine: ScriptedEngine) -> None:
    endpoint = {"name": "e1", "url": engine.url, "model": "tiny", "target": "own"}
    async with RunningGateway(Settings.model_validate({"endpoints": [endpoint]})) as gateway:
        assert (await ask(gateway.url, CHAT, chat())).status == 200
        metrics = await gateway.metrics()
    assert not {sample.name for sample in metrics.samples if "dollars" in sample.name and "limit" not in sample.name}
    assert metrics.sum("serving_accelerators", pool="default", target="own") == 1
    assert metrics.sum("serving_pool_info", model="tiny", pool="default", target="own") == 1


async def test_an_answer_without_a_price_after_a_failure_that_has_one_costs_an_unknown_amount(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with ScriptedEngine(engine.model) as priced:
        priced.default = Script(status=500, ttft_seconds=0.1)
        settings = settings_over({"mi355x": priced, "epyc": engine}, tmp_path)
        settings = settings.model_copy(update={"targets": {"mi355x": settings.targets["mi355x"]}})
        async with RunningGateway(settings) as gateway:
            await all_ready(gateway)
            while not priced.log.requests:
                assert (await ask(gateway.url, CHAT, chat(), headers=bearer("red"))).status == 200
            metrics = await gateway.metrics()
    columns = ", ".join(f"machine_{part}_nanodollars" for part in (*PARTS, "failed"))
    database = open_database(settings.database)
    (row,) = database.execute(f"SELECT {columns} FROM serving_ledger WHERE attempts = 2")
    database.close()
    assert list(row[:3]) == [None] * 3
    assert row[3] > 0
    assert row[3] / 1e9 == pytest.approx(metrics.sum("serving_failed_dollars_total", pool="mi355x"), rel=1e-3)
    assert "serving_tenant_dollars_total" not in {sample.name for sample in metrics.samples}


async def test_a_stream_costs_while_it_runs(tmp_path: Path) -> None:
    """A scrape in the middle of a long stream sees what it has cost by then, so that no window shows hours at once."""
    async with started() as engines, RunningGateway(settings_over(engines, tmp_path)) as gateway:
        await all_ready(gateway)
        body = chat(model="small", stream=True, max_tokens=100)
        async with RawClient(gateway.url) as client:
            await client.send(request_bytes(CHAT, body, headers=bearer("red")))
            record = await engines["epyc"].request_arrived()
            await record.reached("token:20")
            metrics = await gateway.metrics()
            assert metrics.sum("serving_used_dollars_total", pool="epyc", kind="output") > 0.1 * RATES["epyc"]
            assert metrics.sum("serving_tenant_dollars_total") == 0.0

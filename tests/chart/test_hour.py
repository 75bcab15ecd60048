"""The ledger, /metrics and Grafana's own queries give the same dollars for the same hour, and the bill is the sum of its parts.

SERVING_TEST_SOAK_SECONDS is how long it takes, an hour unless it says something else.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from serving.ledger_settings import DatabaseSettings
from serving.tenancy.database.open import open_database
from serving.tenancy.usage import UsageRow, read_usage
from tests.chart.dashboards import RULES
from tests.chart.hour import CLIENTS, POOLS, SCRAPE_SECONDS, priced_fleet, traffic
from tests.chart.hour_sums import (
    Compared,
    Sums,
    in_rules,
    increases,
    ledger_sums,
    metric_sums,
    over_window,
    panel_values,
    panels_by_ledger,
)
from tests.doubles.prometheus import Prometheus, running_prometheus
from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import MetricValues, RunningGateway
from tests.doubles.tenants import bearer
from tests.doubles.tools import PROMETHEUSES
from tests.flow.conftest import all_ready

SECONDS = float(os.environ.get("SERVING_TEST_SOAK_SECONDS", "3600"))
RULE_SECONDS = 300.0
"""The window of the recording rules: so long nothing happens at the end, and all that did is in what they recorded."""
BEGIN_SECONDS = 3.0 * SCRAPE_SECONDS
"""So long nothing happens at the begin: an increase is counted from the first scrape in the window on."""
QUIET_SECONDS = RULE_SECONDS + BEGIN_SECONDS
LEAST_SECONDS = 200.0 * SCRAPE_SECONDS
"""An increase is drawn out to both ends of its window, by a part of a scrape each: half a percent of one that is as short."""
CUT_SECONDS = 1800.0
"""A window as long can be cut through requests under way: one that is booked at its end is far below 1 % of it."""

pytestmark = [pytest.mark.soak, pytest.mark.chart, pytest.mark.timeout(SECONDS + 600)]


class Reading:
    """What /metrics said at a moment of the wall clock."""

    def __init__(self, at: float, values: MetricValues) -> None:
        self.at = at
        self.values = values


async def reading(gateway: RunningGateway) -> Reading:
    answer = await ask(gateway.operator_url, "/metrics")
    return Reading(time.time(), MetricValues(answer.body.decode()))


def ledger(database_file: Path, begin: float, end: float) -> list[UsageRow]:
    database = open_database(DatabaseSettings(url=SecretStr(f"sqlite:{database_file}")))
    try:
        since, until = (datetime.fromtimestamp(moment, UTC) for moment in (begin, end))
        return read_usage(database, by=("tenant", "model", "pool", "outcome"), since=since, until=until)
    finally:
        database.close()


async def warm(gateway: RunningGateway) -> None:
    """Every series is there before the hour begins: what comes up with a value has no increase."""
    await all_ready(gateway)
    asked = [
        ask(gateway.url, "/v1/chat/completions", body, headers=bearer(tenant))
        for tenant, model in CLIENTS * 3
        for body in ({"model": model, "messages": [{"role": "user", "content": "Hello?"}] * 2, "max_tokens": 8},)
    ]
    await asyncio.gather(*asked)


async def test_the_same_hour_has_the_same_dollars_everywhere(tmp_path: Path) -> None:
    assert SECONDS >= LEAST_SECONDS, f"SERVING_TEST_SOAK_SECONDS: it needs {LEAST_SECONDS:g} at least"
    database = tmp_path / "serving.db"
    async with priced_fleet(database) as (gateway, scrape):
        with ExitStack() as stack:
            servers = []
            for version in PROMETHEUSES:
                folder = tmp_path / version
                folder.mkdir()
                rules = [*RULES, over_window(folder, SECONDS)]
                interval = f"{SCRAPE_SECONDS}s"
                servers.append(
                    stack.enter_context(running_prometheus(version, folder, [scrape], rules, evaluation_interval=interval))
                )
            await warm(gateway)
            await asyncio.sleep(3 * SCRAPE_SECONDS)
            readings = await an_hour(gateway)
            compared = Compared()
            check(compared, readings, database, servers)
    print(*(f"{each.at:.3f}" for each in readings), compared.table())
    assert compared.wrong() == []


async def an_hour(gateway: RunningGateway) -> list[Reading]:
    """Readings at its begin, at two moments in the middle of the traffic, and at its end."""
    first = await reading(gateway)
    busy = SECONDS - QUIET_SECONDS
    await asyncio.sleep(BEGIN_SECONDS)
    enough = asyncio.Event()
    tasks = list(traffic(gateway, enough))
    middle = []
    for share in (1 / 8, 7 / 8):
        await asyncio.sleep(first.at + share * busy - time.time())
        middle.append(await reading(gateway))
    await asyncio.sleep(first.at + busy - time.time())
    enough.set()
    await asyncio.gather(*tasks)
    await asyncio.sleep(first.at + SECONDS - time.time())
    return [first, *middle, await reading(gateway)]


def check(compared: Compared, readings: list[Reading], database: Path, servers: list[Prometheus]) -> None:
    first, cut, uncut, last = readings
    in_ledger = ledger_sums(ledger(database, first.at, last.at))
    in_metrics = difference(first, last)
    compared.add("/metrics", in_ledger, without_bill(in_metrics))
    whole_bill(compared, "/metrics", in_metrics, last.at - first.at)
    for server in servers:
        name = f"Prometheus {server.get('status/buildinfo')['version']}"
        in_series = increases(server, first.at, last.at)
        compared.add(f"{name}: increase", in_ledger, without_bill(in_series))
        whole_bill(compared, f"{name}: increase", in_series, last.at - first.at)
        recorded = in_rules(server, first.at, last.at)
        compared.add(f"{name}: rules", {key: in_ledger[key] for key in in_ledger if key[0] == "used"}, of_kind(recorded, "used"))
        idle = {("idle", pool): bill_of(pool, last.at - first.at) - spent(in_metrics, pool) for pool in POOLS}
        compared.add(f"{name}: rules", idle, of_kind(recorded, "idle"))
        whole_bill(compared, f"{name}: rules", recorded, last.at - first.at)
        hours = (last.at - first.at) / 3600
        for (board, title, legend), wanted in panels_by_ledger(in_ledger, hours).items():
            found = panel_values(server, board, title, legend, at=last.at, seconds=SECONDS)
            compared.add(f"{name}: {board}, {title}, {legend}", wanted, found)
    if uncut.at - cut.at >= CUT_SECONDS:
        between = totals(ledger_sums(ledger(database, cut.at, uncut.at)))
        compared.add("/metrics, between requests under way", between, totals(difference(cut, uncut)))
        for server in servers:
            found = totals(increases(server, cut.at, uncut.at))
            compared.add("increase, between requests under way", between, found)


def difference(first: Reading, last: Reading) -> Sums:
    before, after = metric_sums(first.values), metric_sums(last.values)
    return {key: value - before.get(key, 0.0) for key, value in after.items()}


def of_kind(sums: Sums, what: str) -> Sums:
    return {key: value for key, value in sums.items() if key[0] == what}


def without_bill(sums: Sums) -> Sums:
    """The bill is of no request, and so it is not in the ledger."""
    return {key: value for key, value in sums.items() if key[0] not in ("bill", "failed of")}


def totals(sums: Sums) -> Sums:
    """Of what is counted in thousands, so that one at the edge of a window is little of it."""
    return {(what,): sum(of_kind(sums, what).values()) for what in ("used", "tenant", "charged", "tokens")}


def bill_of(pool: str, seconds: float) -> float:
    return POOLS[pool].dollars_per_hour * seconds / 3600


def spent(sums: Sums, pool: str) -> float:
    return sum(value for key, value in sums.items() if key[0] in ("used", "failed of") and key[1] == pool)


def whole_bill(compared: Compared, name: str, sums: Sums, seconds: float) -> None:
    """Price x time, and no more is spent of it than there is; where idle dollars are told, the parts are the whole."""
    for pool in POOLS:
        bill = bill_of(pool, seconds)
        compared.add(f"{name}: price x time", {("bill", pool): bill}, {("bill", pool): sums["bill", pool]})
        assert 0.0 <= spent(sums, pool) <= bill
        if ("idle", pool) in sums:
            parts = spent(sums, pool) + sums["idle", pool]
            compared.add(f"{name}: the parts", {("parts", pool): bill}, {("parts", pool): parts})
    assert spent(sums, "spare") == 0.0 < min(spent(sums, pool) for pool in POOLS if pool != "spare")
    assert sum(value for key, value in sums.items() if key[0] == "failed of") > 0.0

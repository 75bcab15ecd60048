"""Every query in real Prometheus servers that scrape a real gateway over simulated targets and a real vLLM, as the chart says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chart.dashboards import (
    ALERTS,
    RECORDING,
    RULES,
    alerts,
    panel_queries,
    recorded,
    rules,
    series_named,
    substituted,
    variable_queries,
)
from tests.chart.observed_fleet import WATTS, Fleet, observed_fleet
from tests.chart.promql import operands
from tests.doubles.prometheus import NoPoints, Prometheus, running_prometheus
from tests.doubles.real_engine import RealEngine
from tests.doubles.tools import PROMETHEUSES

pytestmark = pytest.mark.chart
WINDOW = "10s"
WITHIN_SECONDS = 180.0
BASELINE = "cuda-b200"
RENAMED = {"serving_tokens_total": "serving_token_total", "vllm:num_preemptions_total": "vllm:preemptions_total"}


def queries() -> dict[str, str]:
    """All that is asked of Prometheus, by what it is for."""
    found = {
        f"{asked.board}: {asked.title} ({asked.expression})": substituted(asked.expression, window=WINDOW, baseline=BASELINE)
        for asked in panel_queries()
    }
    found |= {f"rule: {name}": name for name in recorded()}
    for name, rule in alerts().items():
        found |= {f"alert: {name} ({operand})": operand for operand in operands(rule["expr"])}
    found |= {f"choice: {matcher}": substituted(matcher, window=WINDOW) for matcher, _ in variable_queries()}
    return found


async def empty(server: Prometheus, asked: Mapping[str, str], within_seconds: float = WITHIN_SECONDS) -> dict[str, str]:
    """What still gives no points when the time is over."""
    deadline = time.monotonic() + within_seconds
    left = dict(asked)
    while left:
        failed = {}
        for name, query in left.items():
            try:
                await asyncio.to_thread(server.points, query)
            except NoPoints as error:
                failed[name] = str(error)
        left = {name: asked[name] for name in failed}
        if time.monotonic() > deadline:
            return failed
        await asyncio.sleep(0.5)
    return {}


def servers(folder: Path, fleet: Fleet, stack: ExitStack) -> Iterator[Prometheus]:
    """One of each version."""
    for version in PROMETHEUSES:
        place = folder / version
        place.mkdir()
        yield stack.enter_context(running_prometheus(version, place, fleet.scrape, RULES))


async def check(fleet: Fleet, folder: Path) -> None:
    with ExitStack() as stack:
        for server in list(servers(folder, fleet, stack)):
            assert await empty(server, queries()) == {}
            for matcher, label in variable_queries():
                found = await asyncio.to_thread(server.label_values, substituted(matcher, window=WINDOW), label)
                assert found, f"{matcher}: {label}"
            await in_detail(server)


async def test_every_query_has_points_over_simulated_targets(tmp_path: Path) -> None:
    async with observed_fleet() as fleet:
        await check(fleet, tmp_path)


@pytest.mark.engine
async def test_every_query_has_points_with_a_real_engine(real_engine: RealEngine, tmp_path: Path) -> None:
    async with observed_fleet(real_engine) as fleet:
        await check(fleet, tmp_path)


async def test_a_series_that_is_renamed_is_found(tmp_path: Path) -> None:
    """The same check over a scrape in which a series of the gateway and one of vLLM have other names."""
    renamings = [
        {"source_labels": ["__name__"], "regex": old, "target_label": "__name__", "replacement": new}
        for old, new in RENAMED.items()
    ]
    async with observed_fleet() as fleet:
        scrape = [{**job, "metric_relabel_configs": renamings} for job in fleet.scrape]
        asked = {
            name: query for name, query in queries().items() if name.startswith(("overview", "alert: ServingKvCacheFull", "rule"))
        }
        with running_prometheus("prometheus-2", tmp_path, scrape, RULES) as server:
            whole = {name: query for name, query in asked.items() if not mentions(query, RENAMED)}
            assert await empty(server, whole) == {}
            failed = await empty(server, asked, within_seconds=0)
            assert set(failed) == asked.keys() - whole.keys()
            assert any("Output tokens" in name for name in failed) and any("KvCacheFull" in name for name in failed)


def mentions(query: str, names: Iterable[str]) -> bool:
    """Whether a query needs one of the series, itself or through a rule."""
    needed = series_named(query)
    expressions: dict[str, list[str]] = {}
    for rule in rules(RECORDING):
        expressions.setdefault(rule["record"], []).append(rule["expr"])
    return bool(needed & set(names)) or any(
        mentions(expression, names) for name in needed for expression in expressions.get(name, [])
    )


async def in_detail(server: Prometheus) -> None:
    """Values that can be checked by another way."""

    async def values(query: str, label: str) -> dict[str, float]:
        points = await asyncio.to_thread(server.points, query)
        return {labels.get(label, ""): value for labels, value in points}

    sources = {
        labels["target"]: (labels["source"], value)
        for labels, value in await asyncio.to_thread(server.points, "serving:power_watts:now")
    }
    for target, watts in WATTS.items():
        assert sources[target] == ("measured", 8 * watts)
    assert sources.get("cpu-epyc", ("estimated", 0))[0] == "estimated"
    hits = await values("serving:cache_hit_ratio:rate30m", "pool")
    assert all(0 <= value <= 1 for value in hits.values()) and max(hits.values()) > 0
    used, idle, failed, bill = (
        f"sum by (pool) (serving:{part}_dollars_per_hour:rate5m)" for part in ("used", "idle", "failed", "bill")
    )
    parts = f"({used} + on (pool) {idle} + on (pool) ({failed} or {bill} * 0)) / on (pool) {bill}"
    # A request's share is counted at its end, which is much in a window of seconds; an hour has it to 1 % (test_hour).
    assert await values(parts, "pool") == {pool: pytest.approx(1, rel=0.15) for pool in await values(bill, "pool")}
    # What one scrape says holds without a window: no more was spent than there was to pay.
    taken = "sum by (pool) (serving_used_dollars_total) + on (pool) sum by (pool) (serving_failed_dollars_total)"
    shares = await values(f"({taken}) / on (pool) sum by (pool) (serving_bill_dollars_total)", "pool")
    assert all(0 < share <= 1 for share in shares.values()) and shares.keys() == (await values(bill, "pool")).keys(), shares
    outcomes = await values("sum by (outcome) (serving_requests_total)", "outcome")
    assert {"ok", "not_found", "rate_limited"} <= set(outcomes)
    ratio = await values("serving:dollars_per_million_tokens:times_cheapest{kind='total'}", "target")
    assert min(ratio.values()) == 1
    groups = (await asyncio.to_thread(server.get, "rules"))["groups"]
    unwell = {rule["name"]: rule.get("lastError", "") for group in groups for rule in group["rules"] if rule["health"] != "ok"}
    assert unwell == {} and sum(len(group["rules"]) for group in groups) == sum(1 for path in RULES for _ in rules(path))


def test_an_alert_is_asked_for_part_by_part() -> None:
    assert operands("a > 1 and on (x) sum by (x) (b) > 0") == ["a", "sum by (x) (b)"]
    assert operands('max(a{b="c and d > 1"}) == 0') == ['max(a{b="c and d > 1"})']
    assert operands("absent(a)") == ["a"]
    assert operands("a / (b > 0) < 0.5 * c unless on (y) d") == ["a / (b > 0)", "0.5 * c", "d"]
    assert all(operands(rule["expr"]) for rule in rules(ALERTS))

"""Prometheus 2.53 and 3.x, as they come, read the gateway's series under the names that are defined."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from serving.observability.series import GROUPS
from serving.settings import Settings
from tests.doubles.prometheus import NoPoints, running_prometheus
from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.scripted_engine import ScriptedEngine
from tests.doubles.settling import settled
from tests.doubles.tools import PROMETHEUSES
from tests.flow.conftest import chat

DEFINED = {series.exposed: series.kind for group in GROUPS.values() for series in group}


@pytest.mark.chart
@pytest.mark.parametrize("version", PROMETHEUSES)
async def test_a_server_reads_names_and_kinds(engine: ScriptedEngine, tmp_path: Path, version: str) -> None:
    endpoint = {"name": "e1", "url": engine.url, "model": "tiny", "target": "own"}
    targets = {"own": {"dollars_per_accelerator_hour": 3600.0, "power_watts": 500}}
    async with RunningGateway(Settings.model_validate({"endpoints": [endpoint], "targets": targets})) as gateway:
        for stream in (False, True):
            assert (await ask(gateway.url, "/v1/chat/completions", chat(stream=stream))).status == 200
        scrape = {"job_name": "gateway", "scrape_interval": "1s", "static_configs": [{"targets": [gateway.url.split("//")[1]]}]}
        starting = running_prometheus(version, tmp_path, [scrape])
        server = await asyncio.to_thread(starting.__enter__)
        try:

            async def scraped() -> list[str]:
                try:
                    await asyncio.to_thread(server.points, "serving_bill_dollars_total > 0")
                except NoPoints as error:
                    return [str(error)]
                return []

            await settled(scraped)
            kinds: dict[str, Any] = await asyncio.to_thread(server.get, "metadata")
            names = set(await asyncio.to_thread(server.label_values, '{__name__=~"serving_.+"}', "__name__"))
            used = await asyncio.to_thread(server.points, 'sum by (kind) (serving_used_dollars_total{target="own"})')
        finally:
            await asyncio.to_thread(starting.__exit__, None, None, None)
    exported = {name for name in DEFINED if name in kinds}
    assert {name: kinds[name][0]["type"] for name in exported} == {name: DEFINED[name] for name in exported}
    assert {
        "serving_requests_total",
        "serving_tokens_total",
        "serving_time_to_first_token_seconds",
        "serving_power_watts",
    } <= exported
    assert {"serving_time_to_first_token_seconds_bucket", "serving_tenant_dollars_total", "serving_build_info"} <= names
    assert {labels["kind"] for labels, _ in used} == {"prompt", "cached", "output"}

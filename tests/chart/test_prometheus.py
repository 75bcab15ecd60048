"""Dashboard and alert in real Prometheus servers that scrape a real gateway over a real vLLM, as the PodMonitors say."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from serving.settings import Settings
from tests.chart.dashboards import RULES, alerts, panel_queries, substituted, variable_queries
from tests.doubles.prometheus import NoPoints, Prometheus, running_prometheus, scrape_config
from tests.doubles.raw_client import ask
from tests.doubles.real_engine import RealEngine
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.tools import PROMETHEUSES, Helm, only, tool

pytestmark = pytest.mark.chart
WINDOW = "30s"
WITHIN_SECONDS = 60.0
TESTS = Path(__file__).parent / "rules"


@pytest.mark.parametrize("version", PROMETHEUSES)
def test_promtool_takes_the_rules(version: str, tmp_path: Path) -> None:
    promtool = str(tool(version, "promtool"))
    subprocess.run([promtool, "check", "rules", str(RULES)], check=True, capture_output=True)
    for path in TESTS.glob("*.yaml"):
        test = tmp_path / path.name
        test.write_text(path.read_text().replace("RULES", str(RULES)))
        done = subprocess.run([promtool, "test", "rules", str(test)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def settings_over(engine: RealEngine) -> Settings:
    return Settings.model_validate(
        {
            "endpoints": [{"name": "e1", "url": engine.url, "model": engine.model, "pool": "cpu", "target": "cpu-epyc"}],
            "pools": [{"name": "away", "model": "away", "host": "engines.invalid", "port": 8000}],
            "server": {"operator_port": 0},
        }
    )


def servers(folder: Path, gateway: RunningGateway, engine: RealEngine, stack: ExitStack) -> Iterator[Prometheus]:
    """One of each version; what they scrape is taken from the chart."""
    objects = Helm("helm-4").template({"monitoring": {"podMonitor": {"enabled": True}}}, namespace="serving")
    meta = {"namespace": "serving", "pod_name": "pod-1", "pod_container_name": "c"}
    pool = {"pod_label_serving_pool": "cpu", "pod_label_serving_target": "cpu-epyc"}
    scrape = [
        scrape_config(only(objects, "PodMonitor", "-gateway"), gateway.operator_url.removeprefix("http://"), meta),
        scrape_config(only(objects, "PodMonitor", "-engines"), engine.url.removeprefix("http://"), meta | pool),
    ]
    for version in PROMETHEUSES:
        place = folder / version
        place.mkdir()
        yield stack.enter_context(running_prometheus(version, place, scrape, [RULES]))


async def traffic(gateway: RunningGateway, model: str) -> None:
    """Requests without end: long prompts that repeat, streamed and not, and some that are wrong."""
    prompt = "The same words again and again. " * 40
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 16}
    while True:
        await ask(gateway.url, "/v1/chat/completions", {**body, "stream": True})
        await ask(gateway.url, "/v1/chat/completions", body)
        await ask(gateway.url, "/v1/chat/completions", {**body, "model": "nobody's"})
        await asyncio.sleep(0.2)


async def with_points(server: Prometheus, query: str) -> list[tuple[dict[str, str], float]]:
    deadline = time.monotonic() + WITHIN_SECONDS
    while True:
        try:
            return await asyncio.to_thread(server.points, query)
        except NoPoints:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.5)


@pytest.mark.engine
async def test_every_panel_and_the_alert_have_data(real_engine: RealEngine, tmp_path: Path) -> None:
    with ExitStack() as stack:
        async with RunningGateway(settings_over(real_engine)) as gateway:
            asked = asyncio.create_task(traffic(gateway, real_engine.model))
            for server in servers(tmp_path, gateway, real_engine, stack):
                for title, expression in panel_queries():
                    query = substituted(expression, window=WINDOW)
                    points = await with_points(server, query)
                    assert points, title
                await in_detail(server)
            asked.cancel()
            await asyncio.wait({asked})


async def in_detail(server: Prometheus) -> None:
    """What is asked for by eye: labels of the right kind, values that can be, an alert for the model that is away."""
    for _, matcher, label in variable_queries():
        query = substituted(matcher, window=WINDOW)
        assert await asyncio.to_thread(server.label_values, query, label), matcher
    by_pool = await with_points(server, substituted(dict(panel_queries())["Cache hit rate"], window=WINDOW))
    assert [labels for labels, _ in by_pool] == [{"pool": "cpu"}]
    assert 0 < by_pool[0][1] <= 1
    outcomes = {labels["outcome"] for labels, _ in await with_points(server, "sum by (outcome) (serving_requests_total)")}
    assert {"ok", "not_found"} <= outcomes
    ready = await with_points(server, 'serving_endpoint_ready{endpoint="e1", pool="cpu", namespace="serving"}')
    assert [value for _, value in ready] == [1.0]
    (alert,) = alerts()
    fired = await with_points(server, alert["expr"])
    assert [labels for labels, _ in fired] == [{"namespace": "serving", "model": "away"}]
    with pytest.raises(NoPoints):
        server.points("serving_no_such_series")
    groups = (await asyncio.to_thread(server.get, "rules"))["groups"]
    assert {rule["name"]: rule["health"] for group in groups for rule in group["rules"]} == {alert["alert"]: "ok"}

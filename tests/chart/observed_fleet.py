"""A gateway over two simulated targets, and over a real engine where there is one, under load, and what Prometheus scrapes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from serving.settings import Settings
from tests.doubles.power_exporters import ACCELERATORS, AMD, NVIDIA, power_exporter
from tests.doubles.prometheus import SCRAPE_INTERVAL, scrape_config
from tests.doubles.raw_client import ask
from tests.doubles.real_engine import RealEngine
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.simulated_process import SimulatedProcess
from tests.doubles.tenants import bearer, tenants
from tests.doubles.tools import Helm, only

MODEL = "glm-5.2"
SLOTS = 4
CLIENTS = 12
"""More than slots, so that some wait."""
PROBE_SECONDS = 2.0
"""Between two probes of an engine's answers."""
LAST_SECONDS = 10.0
"""That requests have which are under way at the end."""
WATTS = {"rocm-mi355x": 1100.0, "cuda-b200": 900.0}
PROFILES = {"mi355x": ("glm-5.2-mxfp4-mi355x", "rocm-mi355x"), "b200": ("glm-5.2-nvfp4-b200", "cuda-b200")}
TERMS: dict[str, dict[str, Any]] = {
    "red": {"limits": {"dollars_per_day": 100.0, "tokens_per_minute": 10_000_000}},
    "blue": {"priority": "interactive"},
    "green": {"limits": {"requests_per_minute": 3}},
}


@dataclass(frozen=True)
class Fleet:
    gateway: RunningGateway
    scrape: list[dict[str, Any]]
    """What a Prometheus is to scrape, as the chart's PodMonitors say."""


def settings(simulated: Mapping[str, str], real: RealEngine | None) -> Settings:
    """`simulated` is pool → URL."""
    endpoints: list[dict[str, Any]] = [
        {"name": f"{pool}-0", "url": url, "model": MODEL, "pool": pool, "target": PROFILES[pool][1], "slots": SLOTS}
        for pool, url in simulated.items()
    ]
    priced = {MODEL: {"prompt": 0.5, "cached": 0.1, "output": 2.0}}
    routed: dict[str, Any] = {pool: {"accelerators": ACCELERATORS} for pool in simulated}
    if real is not None:
        endpoints.append({"name": "cpu-0", "url": real.url, "model": real.model, "pool": "cpu", "target": "cpu-epyc"})
        priced[real.model] = {"prompt": 0.01, "output": 0.02}
    return Settings.model_validate(
        {
            "endpoints": endpoints,
            "server": {"operator_port": 0},
            "prices": {"models": priced},
            "routing": {"pools": routed},
            "quality": {"enabled": True, "period_seconds": PROBE_SECONDS},
            **tenants(TERMS),
        }
    )


@contextlib.asynccontextmanager
async def observed_fleet(real: RealEngine | None = None, *, measures_power: bool = True) -> AsyncIterator[Fleet]:
    """Started, with traffic on it; with stand-ins for the vendors' exporters of power where it `measures_power`."""
    async with contextlib.AsyncExitStack() as stack:
        engines = {
            pool: await stack.enter_async_context(SimulatedProcess(profile=profile)) for pool, (profile, _) in PROFILES.items()
        }
        gateway = await stack.enter_async_context(
            RunningGateway(settings({pool: engine.url for pool, engine in engines.items()}, real))
        )
        addresses = {pool: engine.url for pool, engine in engines.items()} | ({"cpu": real.url} if real is not None else {})
        scrape = list(scraped(gateway, addresses))
        scrape += power_jobs(stack) if measures_power else ()
        enough = asyncio.Event()
        tasks = [asyncio.create_task(each) for each in traffic(gateway, real, enough)]
        try:
            yield Fleet(gateway, scrape)
        finally:
            enough.set()  # not in the middle of a request, which would leave a socket open
            _, left = await asyncio.wait(tasks, timeout=LAST_SECONDS)
            for task in left:
                task.cancel()


def scraped(gateway: RunningGateway, engines: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    objects = Helm("helm-4").template({"monitoring": {"podMonitor": {"enabled": True}}}, namespace="serving")
    meta = {"namespace": "serving", "pod_name": "gateway-0", "pod_container_name": "gateway"}
    yield scrape_config(only(objects, "PodMonitor", "-gateway"), gateway.operator_url.removeprefix("http://"), meta)
    for pool, url in engines.items():
        target = PROFILES[pool][1] if pool in PROFILES else "cpu-epyc"
        about = meta | {"pod_name": f"{pool}-0", "pod_label_serving_pool": pool, "pod_label_serving_target": target}
        monitored = scrape_config(only(objects, "PodMonitor", "-engines"), url.removeprefix("http://"), about)
        yield monitored | {"job_name": f"{monitored['job_name']}/{pool}"}


def power_jobs(stack: contextlib.AsyncExitStack) -> Iterator[dict[str, Any]]:
    """One as it is set up by the GPU operator, the other without honorLabels: the pod then has another label."""
    for form, pool, honor in ((NVIDIA, "b200", True), (AMD, "mi355x", False)):
        address = stack.enter_context(power_exporter(form, f"{pool}-0", WATTS[PROFILES[pool][1]]))
        labels = {"namespace": "monitoring", "pod": "exporter-0"}
        job = {"job_name": f"power-{pool}", "honor_labels": honor, "scrape_interval": SCRAPE_INTERVAL}
        yield job | {"scrape_timeout": SCRAPE_INTERVAL, "static_configs": [{"targets": [address], "labels": labels}]}


def traffic(gateway: RunningGateway, real: RealEngine | None, enough: asyncio.Event) -> Iterator[Any]:
    """Requests until there are enough: prompts that repeat, streamed and not, some wrong or refused."""
    for number in range(CLIENTS):
        yield conversation(gateway, MODEL, number, ("red", "blue")[number % 2], stream=number % 4 > 0, enough=enough)
    yield conversation(gateway, MODEL, CLIENTS, "green", stream=True, enough=enough)
    yield conversation(gateway, "nobody's", 0, "red", stream=False, enough=enough)
    if real is not None:
        for number in range(2):
            yield conversation(gateway, real.model, number, "blue", stream=number == 0, enough=enough)


async def conversation(
    gateway: RunningGateway, model: str, number: int, tenant: str, *, stream: bool, enough: asyncio.Event
) -> None:
    prompt = f"You are number {number}. " + "The same words again and again. " * (40 + 10 * (number % 3))
    turn = 0
    while not enough.is_set():
        turn += 1
        messages = [{"role": "user", "content": prompt}, {"role": "user", "content": f"Question {turn}?"}]
        body = {"model": model, "messages": messages, "max_tokens": 24 + 8 * (number % 4), "stream": stream}
        answer = await ask(gateway.url, "/v1/chat/completions", body, headers=bearer(tenant))
        if answer.status != 200:
            await asyncio.sleep(0.5)

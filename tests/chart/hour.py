"""A gateway over four pools on as many targets, of which one is idle and one fails now and then, and tenants that pay."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.settings import Settings
from tests.chart.observed_fleet import scraped
from tests.doubles.raw_client import HangUp, RawClient, ask, request_bytes
from tests.doubles.running_gateway import RunningGateway
from tests.doubles.simulated_process import SimulatedProcess
from tests.doubles.tenants import bearer, tenants

CHAT = "/v1/chat/completions"
SCRAPE_SECONDS = 5
REFUSED = "nobody's"
"""A model that nobody serves."""


@dataclass(frozen=True)
class Pool:
    profile: str
    model: str
    target: str
    accelerators: int
    dollars_per_hour: float
    """Of one engine."""
    faults: Sequence[str] = ()


POOLS = {
    "mi355x": Pool("glm-5.2-mxfp4-mi355x", "glm-5.2", "rocm-mi355x", 8, 20.0, ("reset_after_events=4", "share=0.05")),
    "b200": Pool("glm-5.2-nvfp4-b200", "glm-5.2", "cuda-b200", 8, 36.0),
    "h100": Pool("deepseek-r1-fp8-h100", "deepseek-r1-0528", "cuda-h100", 16, 32.0),
    "spare": Pool("gpt-oss-120b-mi300x", "gpt-oss-120b", "rocm-mi300x", 1, 2.0),
}
PRICES = {
    "glm-5.2": {"prompt": 0.5, "cached": 0.1, "output": 2.0},
    "deepseek-r1-0528": {"prompt": 0.8, "output": 3.0},
}
TENANTS: dict[str, dict[str, Any]] = {"red": {}, "blue": {}, "green": {"limits": {"requests_per_minute": 10}}}
CLIENTS = (("red", "glm-5.2"), ("blue", "glm-5.2"), ("blue", "deepseek-r1-0528"), ("red", "glm-5.2"), ("green", "glm-5.2"))


def settings(urls: dict[str, str], database: Path) -> Settings:
    """`urls` are by pool."""
    told = tenants(TENANTS)
    return Settings.model_validate(
        {
            "endpoints": [
                {"name": f"{name}-0", "url": urls[name], "model": pool.model, "pool": name, "target": pool.target}
                for name, pool in POOLS.items()
            ],
            "server": {"operator_port": 0},
            "routing": {
                "pools": {
                    name: {"accelerators": pool.accelerators, "dollars_per_hour": pool.dollars_per_hour}
                    for name, pool in POOLS.items()
                }
            },
            "prices": {"models": PRICES},
            "database": {"url": f"sqlite:{database}"},
            **told,
            "auth": {**told["auth"], "key_secret": "the secret of all gateways"},
        }
    )


@contextlib.asynccontextmanager
async def priced_fleet(database: Path) -> AsyncIterator[tuple[RunningGateway, dict[str, Any]]]:
    """The gateway and what Prometheus is to scrape, without traffic."""
    async with contextlib.AsyncExitStack() as stack:
        urls = {}
        for name, pool in POOLS.items():
            engine = await stack.enter_async_context(SimulatedProcess(profile=pool.profile, faults=pool.faults))
            urls[name] = engine.url
        gateway = await stack.enter_async_context(RunningGateway(settings(urls, database)))
        interval = f"{SCRAPE_SECONDS}s"
        (job,) = scraped(gateway, {})
        yield gateway, job | {"scrape_interval": interval, "scrape_timeout": interval}


def traffic(gateway: RunningGateway, enough: asyncio.Event) -> Iterator[asyncio.Task[None]]:
    """Two or three requests a second until there are enough."""
    for number, (tenant, model) in enumerate(CLIENTS):
        yield asyncio.create_task(client(gateway, tenant, model, random.Random(number), enough))


async def client(gateway: RunningGateway, tenant: str, model: str, chance: random.Random, enough: asyncio.Event) -> None:
    """One that asks, thinks, and asks again: streams and not, some that it leaves, some for what there is not."""
    words = "The same words again and again. " * chance.randint(20, 200)
    turn = 0
    while not enough.is_set():
        turn += 1
        messages = [{"role": "system", "content": words}, {"role": "user", "content": f"{tenant} asks {turn}. " * 20}]
        asked = REFUSED if chance.random() < 0.02 else model
        body = {"model": asked, "messages": messages, "max_tokens": chance.randint(8, 64), "stream": chance.random() < 0.7}
        if chance.random() < 0.1:
            await leave(gateway, body, tenant, chance.choice((0.02, 0.2)))
        else:
            with contextlib.suppress(HangUp):
                await ask(gateway.url, CHAT, body, headers=bearer(tenant))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), chance.uniform(0.5, 2.0))


async def leave(gateway: RunningGateway, body: dict[str, Any], tenant: str, after_seconds: float) -> None:
    """Ask and hang up: before the first byte, or in the middle of the answer."""
    async with RawClient(gateway.url) as connection:
        await connection.send(request_bytes(CHAT, body, headers=bearer(tenant)))
        await asyncio.sleep(after_seconds)

"""`serving gateway` as it is run: a process of its own, that can be asked for what it holds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.doubles.raw_client import ask
from tests.doubles.running_gateway import MetricValues
from tests.doubles.settling import HANG_SECONDS

START_SECONDS = 180.0


class GatewayProcess:
    """A gateway over engines by endpoint name."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, holdings: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self._holdings = holdings

    @property
    def resident_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    async def ready(self) -> None:
        async with asyncio.timeout(START_SECONDS):
            while True:
                assert self.process.returncode is None, "the gateway did not start"
                try:
                    if (await ask(self.url, "/readyz")).status == 200:
                        return
                except OSError:
                    pass
                await asyncio.sleep(0.05)

    async def metrics(self) -> MetricValues:
        return MetricValues((await ask(self.url, "/metrics")).body.decode())

    async def holdings(self) -> list[str]:
        """The containers that hold an id of ours (see `held_ids`), as the process itself finds them."""
        self._holdings.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        async with asyncio.timeout(START_SECONDS):
            while not self._holdings.exists():
                await asyncio.sleep(0.02)
        found: list[str] = json.loads(self._holdings.read_text())
        return found

    def terminate(self) -> float:
        self.process.send_signal(signal.SIGTERM)
        return time.monotonic()

    async def ended(self) -> int:
        async with asyncio.timeout(HANG_SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def gateway_process(engines: Mapping[str, str], folder: Path, **sections: Any) -> AsyncIterator[GatewayProcess]:
    """Run a gateway for the model `tiny` over engines: endpoint name → URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config, holdings = folder / "gateway.yaml", folder / "holdings.json"
    endpoints = [{"name": name, "url": url, "model": "tiny"} for name, url in engines.items()]
    server = {"port": port} | sections.pop("server", {})
    config.write_text(yaml.safe_dump({"server": server, "endpoints": endpoints, **sections}))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SERVING_")}
    arguments = ("-m", "tests.doubles.inspectable_gateway", str(holdings), str(config))
    with (folder / "gateway.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=log, stderr=log, env=environment)
    gateway = GatewayProcess(process, port, holdings)
    try:
        await gateway.ready()
        yield gateway
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()

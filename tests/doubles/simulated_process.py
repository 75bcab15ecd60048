"""`serving sim` as it is run, with one engine: a process of its own, that can be killed, stopped, and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.doubles.raw_client import ask

PROFILE, MODEL = "smollm2-135m-cpu", "smollm2-135m-instruct"
START_SECONDS = 180.0
"""Far more than it takes: machines that run tests are busy."""


class SimulatedProcess:
    """`async with SimulatedProcess() as engine: … engine.url`."""

    def __init__(self, *, profile: str = PROFILE, speed: float = 1.0, faults: Sequence[str] = ()) -> None:
        self._profile = profile
        self._speed = speed
        self._faults = [word for fault in faults for word in ("--fault", fault)]
        self._process: asyncio.subprocess.Process | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SERVING_")}
        arguments = ("-m", "serving", "sim", "--profile", self._profile, "--port", str(self.port), "--speed", str(self._speed))
        arguments += tuple(self._faults)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, env=environment
        )
        async with asyncio.timeout(START_SECONDS):
            while True:
                assert self._process.returncode is None, "the simulated engine did not start"
                try:
                    if (await ask(self.url, "/health")).status == 200:
                        return
                except OSError:
                    await asyncio.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.kill()

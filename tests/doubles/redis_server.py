"""A real Redis on loopback, that can be killed, hung and started again on its port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.doubles.tools import tool

START_SECONDS = 180.0


def redis_program() -> Path:
    """Or the test is skipped."""
    return tool("redis", "redis-server")


class RedisServer:
    """One server, with nothing on disk: what is killed has lost its data."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        words = [str(self._program), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        self._process = await asyncio.create_subprocess_exec(
            *words,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "LD_LIBRARY_PATH": str(self._program.parent)},
        )
        async with asyncio.timeout(START_SECONDS), self.client() as client:
            while True:
                try:
                    await client.ping()
                except (RedisError, OSError):
                    assert self._process.returncode is None, "Redis did not start"
                    await asyncio.sleep(0.01)
                else:
                    return

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Redis]:
        client = Redis.from_url(self.url, protocol=2)
        try:
            yield client
        finally:
            await client.aclose()

    async def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    def hang(self) -> None:
        """It takes connections and bytes, and says nothing, until `wake`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def redis_server(folder: Path) -> AsyncIterator[RedisServer]:
    server = RedisServer(redis_program(), folder)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()

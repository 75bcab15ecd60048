"""A way to an engine that can be lost: nothing is refused and nothing is closed, the bytes just do not arrive any more."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class LossyNetwork:
    """`async with LossyNetwork(engine_url) as network: … network.url`; `lose()` and `restore()`.

    Connections from the time before a loss are dead for good, as after a switch has forgotten them: they are cut at `restore`.
    """

    def __init__(self, engine_url: str) -> None:
        self._engine = urlsplit(engine_url)
        self._way = asyncio.Event()
        self._way.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._transports: set[asyncio.BaseTransport] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def lose(self) -> None:
        self._way.clear()

    def restore(self) -> None:
        for transport in list(self._transports):
            transport.abort()  # type: ignore[attr-defined]
        self._way.set()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._transports.add(writer.transport)
        try:
            with contextlib.suppress(OSError):
                await self._carry(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            writer.transport.abort()
            self._transports.discard(writer.transport)
            self._connections.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._way.wait()
        there, back = await asyncio.open_connection(self._engine.hostname, self._engine.port)
        self._transports.add(back.transport)
        ways = [asyncio.create_task(self._pass(*pair)) for pair in ((reader, back), (there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            back.transport.abort()
            self._transports.discard(back.transport)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._way.wait()
                writer.write(data)
                await writer.drain()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        tasks = set(self._connections)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

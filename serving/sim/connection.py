"""The server in front of a simulated engine: uvicorn's protocol, which vLLM has too, so that all of HTTP is the same."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from email.utils import formatdate
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState


class SharedState(ServerState):
    """uvicorn's own server refreshes the date ten times a second for each port; here it is made when it is needed."""

    def __init__(self) -> None:
        super().__init__()
        self._second = -1
        self._headers: list[tuple[bytes, bytes]] = []

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._headers = [(b"date", formatdate(second, usegmt=True).encode()), (b"server", b"uvicorn")]
        return self._headers

    @default_headers.setter
    def default_headers(self, _: list[tuple[bytes, bytes]]) -> None:
        """uvicorn's dataclass sets it once to nothing."""


class Connection(HttpToolsProtocol):
    """One client's; a request finds it in its scope, to break it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["connection"] = self

    def reset(self) -> None:
        """End as a process does that dies: with a reset."""
        self._give_up()
        found = self.transport.get_extra_info("socket")
        if found is not None and not self.transport.is_closing():
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def cut(self) -> None:
        """Close, whatever was still to be said."""
        self._give_up()
        self.transport.close()

    def _give_up(self) -> None:
        """The request on it is over, so that uvicorn neither answers for it nor logs that it has no answer."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()


def configure(app: Any, keep_alive_seconds: float) -> uvicorn.Config:
    """What the protocol wants to know; no logging is touched."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=keep_alive_seconds,  # type: ignore[arg-type]
    )
    config.load()
    return config


async def listen(listener: socket.socket, config: uvicorn.Config, state: ServerState) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(
        lambda: Connection(config=config, server_state=state, app_state={}), sock=listener, backlog=2048
    )


def bind(host: str, port: int) -> socket.socket:
    """A socket that has the port and refuses all, until it listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound

"""Tests in which no time passes: sleeping is jumping to the next timer."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest


class VirtualTime(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer as soon as nothing else is left to do.

    What one end of a socket in this process writes is there for the other end at once, so servers and clients may talk meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now_seconds = 0.0

    def time(self) -> float:
        return self._now_seconds

    def advance(self, seconds: float) -> None:
        """Something took so long and let nothing else happen."""
        self._now_seconds += seconds

    def _make_socket_transport(self, sock: socket.socket, *arguments: Any, **options: Any) -> asyncio.Transport:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else the kernel holds back, by its own clock
        return super()._make_socket_transport(sock, *arguments, **options)

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._process_events(self._selector.select(0))
        if not self._ready and self._scheduled:
            then = self._scheduled[0].when()
            # One that was set for less than can be told from now would else be set again without end.
            self._now_seconds = then if then > self._now_seconds else self._now_seconds + self._clock_resolution
        super()._run_once()


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualTime) as runner:
            runner.run(test(**fixtures))

    return run


def tell_its_time(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Let modules, by their names, that read the process's clock read the running loop's."""
    for module in modules:
        monkeypatch.setattr(f"{module}.monotonic", asyncio.get_running_loop().time)

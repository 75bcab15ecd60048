"""A gateway on a real loopback socket: its own server inside the test's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator, MutableMapping
from types import TracebackType
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from serving.api.edge import Asgi
from serving.app import Gateway, Server, create_app
from serving.settings import Settings
from tests.doubles.raw_client import ask
from tests.doubles.settling import HANG_SECONDS

PATIENCE = {
    "probe": {"timeout_seconds": HANG_SECONDS},
    "relay": {"connect_timeout_seconds": HANG_SECONDS},
    "limits": {"header_timeout_seconds": HANG_SECONDS},
}
"""Settings where a test says nothing of its own: gateways, engines and clients share one process, which a busy machine may let
wait for seconds. An engine is not down for that, and a client whose turn comes late has its connection."""


def patient(settings: Settings) -> Settings:
    """With `PATIENCE` in place of what was left at its default."""
    sections = {}
    for name, waits in PATIENCE.items():
        section = getattr(settings, name)
        sections[name] = section.model_copy(update={key: waits[key] for key in waits.keys() - section.model_fields_set})
    return settings.model_copy(update=sections)


class MetricValues:
    """One scrape, by sample name (counters end in `_total`)."""

    def __init__(self, exposition: str) -> None:
        families = text_string_to_metric_families(exposition)
        self.samples: list[Sample] = [sample for family in families for sample in family.samples]

    def select(self, name: str, **labels: str) -> list[Sample]:
        """Samples of that name that carry at least those labels."""
        return [s for s in self.samples if s.name == name and labels.items() <= s.labels.items()]

    def sum(self, name: str, **labels: str) -> float:
        return sum(sample.value for sample in self.select(name, **labels))

    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}


class _Server(Server):
    """The gateway's server that says when it listens and leaves the test runner's signals alone."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets=sockets)
        except SystemExit:  # would end the test runner
            raise RuntimeError("the gateway did not start; its log says why") from None
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _CountingDoor:
    """ASGI in front of the gateway's: notes each request."""

    def __init__(self, application: Asgi, arrived: list[tuple[str, str]]) -> None:
        self._application = application
        self._arrived = arrived

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self._arrived.append((scope["method"], scope["path"]))
        await self._application(scope, receive, send)


class RunningGateway:
    """`async with RunningGateway(settings) as gateway: … gateway.url`; `gateway.app` has the wired objects.

    It counts what reached the application (`arrived`: method and path), independently of the gateway's own metrics.
    """

    def __init__(self, settings: Settings) -> None:
        self.app = create_app(patient(settings))
        self.arrived: list[tuple[str, str]] = []
        self.port = 0
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def operator_url(self) -> str:
        assert self._server is not None and self._server.operator_server is not None
        return f"http://127.0.0.1:{self._server.operator_server.sockets[0].getsockname()[1]}"

    @property
    def open_connections(self) -> int:
        """Client connections, as the server counts them."""
        assert self._server is not None
        return self._server.door.open_connections

    async def start(self) -> Self:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self._server = _Server(self.app)
        self._server.config.app = _CountingDoor(self.app.application, self.arrived)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="gateway under test")
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait({self._serving, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not self._server.started:
            listening.cancel()
            await asyncio.wait({listening})
            listener.close()
            await self._serving  # raises what ended it
        return self

    def terminate(self) -> asyncio.Task[None]:
        """What SIGTERM does. The task ends when the server has."""
        assert self._server is not None and self._serving is not None
        self._server.handle_exit(signal.SIGTERM, None)
        return self._serving

    async def stop(self, *, grace_seconds: int | None = None) -> None:
        """Finish what runs within the grace (None: as set), then the lifespan's end; without the drain delay."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        if grace_seconds is not None:
            self._server.config.timeout_graceful_shutdown = grace_seconds
        await self._serving
        self._server = self._serving = None

    async def metrics(self) -> MetricValues:
        response = await ask(self.url, "/metrics")
        assert response.status == 200, f"/metrics answers {response.status}: {response.body[:200]!r}"
        return MetricValues(response.body.decode())

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop(grace_seconds=None if error is None else 0)  # a failed test may have left requests behind

"""`serving gate controller` as a process: its Lease, its work, and an address for scrapers and the kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
from collections.abc import Iterator, MutableMapping
from typing import Any

import uvicorn

from serving.engines.api_server import ApiServer
from serving.engines.machine import require_free_port
from serving.gatekeeper.cluster import Cluster
from serving.gatekeeper.controller import Controller, Judge
from serving.gatekeeper.judge import ProcessJudge
from serving.gatekeeper.lease import Leadership
from serving.gatekeeper.metrics import GateMetrics
from serving.gatekeeper.settings import GatekeeperSettings
from serving.observability.logs import LineWriter, set_up_logging
from serving.settings import kubernetes_access

log = logging.getLogger("serving.gate")


class Gatekeeper:
    """The controller's objects."""

    def __init__(self, settings: GatekeeperSettings, judge: Judge | None = None) -> None:
        """Raises: ConfigurationError, without a cluster."""
        self.settings = settings.model_copy(update={"kubernetes": kubernetes_access(settings.kubernetes)})
        self._server = ApiServer(self.settings.kubernetes)
        cluster = Cluster(self._server, settings.namespace, settings.kubernetes.timeout_seconds)
        self.metrics = GateMetrics()
        self.controller = Controller(cluster, judge or ProcessJudge(self.settings), self.settings, ran=self.metrics.ran)
        identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self.leadership = Leadership(cluster, settings.name, identity, settings.lease)
        self.metrics.watch(self.controller, lambda: self.leadership.leads)

    async def work(self) -> None:
        """Until cancelled."""
        try:
            await self.leadership.run(self.controller.lead)
        finally:
            self._server.close()

    async def application(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """ASGI: /metrics, and /livez as long as the loop turns."""
        assert scope["type"] == "http"
        body, status, kind = b"there are /metrics and /livez\n", 404, b"text/plain"
        if scope["path"] == "/metrics":
            body, status, kind = self.metrics.exposition(), 200, b"text/plain; version=0.0.4; charset=utf-8"
        elif scope["path"] == "/livez":
            body, status = b"ok\n", 200
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def run_controller(settings: GatekeeperSettings, log_level: str = "info") -> int:
    """Run until told to stop. Returns the process's exit status.

    Raises:
        ConfigurationError: there is no cluster, or the address cannot be listened on.
    """
    require_free_port(settings.host, settings.port, "port")
    writer = LineWriter(os.dup(1))
    set_up_logging(log_level, writer)
    try:
        return asyncio.run(_serve(Gatekeeper(settings)))
    finally:
        writer.close()


class _Server(uvicorn.Server):
    """It leaves signals to us: uvicorn sends them on at its end, which would kill the process before its runs are ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(keeper: Gatekeeper) -> int:
    settings = keeper.settings
    server = _Server(
        uvicorn.Config(
            keeper.application,
            interface="asgi3",
            host=settings.host,
            port=settings.port,
            lifespan="off",
            access_log=False,
            log_config=None,
        )
    )
    work = asyncio.create_task(keeper.work(), name="gatekeeper")
    serving = asyncio.create_task(server.serve(), name="gatekeeper-metrics")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, server.handle_exit, number, None)
    log.info("starting", extra={"pools": len(settings.pools)})
    await asyncio.wait({work, serving}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    work.cancel()
    done = await asyncio.gather(work, serving, return_exceptions=True)
    failed = [each for each in done if isinstance(each, Exception)]
    for each in failed:
        log.error("the controller ends: %s", each, exc_info=each)
    return 1 if failed else 0

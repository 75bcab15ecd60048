"""The one place where the gateway's objects are wired."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from serving.api.edge import Edge
from serving.api.routes import create_api
from serving.core.outcomes import AttemptResult
from serving.engines.relay import Relay
from serving.engines.wire import WireError
from serving.fleet.probe import Probe, ProbeFailed
from serving.fleet.store import Endpoint, EndpointState, Fleet
from serving.observability.logs import LineWriter, RequestLog, set_up_logging
from serving.observability.metrics import Metrics
from serving.pipeline import Pipeline
from serving.routing.choose import Chooser
from serving.settings import Settings
from serving.tenancy.estimates import TokenEstimates
from serving.tenancy.identities import Identities
from serving.tenancy.limits import Admission

log = logging.getLogger("serving.gateway")


class Gateway:
    """A gateway's objects, opened and closed by the application's lifespan."""

    def __init__(self, settings: Settings, writer: LineWriter | None = None) -> None:
        self.settings = settings
        self.draining = False
        self.metrics = Metrics()
        self.fleet = Fleet(Endpoint(e.name, e.url, e.model, e.pool, e.target) for e in settings.endpoints)
        self.relay = Relay(settings.relay)
        self.probe = Probe(self.fleet, self._get, settings.probe)
        self.admission = Admission(settings.limits)
        identities = Identities(settings.auth)
        self.pipeline = Pipeline(
            identities=identities,
            admission=self.admission,
            fleet=self.fleet,
            probe=self.probe,
            chooser=Chooser(),
            relay=self.relay,
            metrics=self.metrics,
            request_log=RequestLog(writer) if writer is not None and settings.logging.access else None,
            estimates=TokenEstimates(),
            parameters=settings.limits.parameters,
            max_attempts=settings.relay.max_attempts,
        )
        api = create_api(fleet=self.fleet, identities=identities, metrics=self.metrics, draining=lambda: self.draining)
        api.router.lifespan_context = self._lifespan
        self.edge = Edge(api, self.pipeline, settings.limits, settings.relay)
        self._gauges()

    async def _get(self, url: str, path: str, *, timeout_seconds: float) -> tuple[int, bytes]:
        try:
            return await self.relay.get(url, path, timeout_seconds=timeout_seconds)
        except WireError as error:
            raise ProbeFailed(str(error)) from None

    def _gauges(self) -> None:
        metrics = self.metrics
        metrics.on_scrape(metrics.in_flight, lambda: self.pipeline.in_flight)
        metrics.on_scrape(metrics.open_leases, lambda: self.admission.open_leases)
        metrics.on_scrape(metrics.engine_connections, lambda: self.relay.open_connections)
        metrics.on_scrape(metrics.draining, lambda: float(self.draining))
        metrics.watch_endpoints(
            lambda: (
                ((e.model, e.pool, e.target, e.name), float(status.state is EndpointState.READY))
                for status in self.fleet.snapshot.statuses.values()
                if status.state is not EndpointState.UNKNOWN and (e := status.endpoint)
            )
        )
        for endpoint in self.settings.endpoints:
            for result in AttemptResult:
                metrics.attempts.labels(endpoint.pool, endpoint.name, result)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        async with self.relay, self.probe:
            sweep = asyncio.create_task(self.edge.sweep(), name="edge-sweep")
            try:
                yield
            finally:
                # Requests that the server cancelled at the end of its grace time still write their last event.
                await self.edge.idle(timeout_seconds=1.0)
                sweep.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sweep


def create_app(settings: Settings, writer: LineWriter | None = None) -> Gateway:
    """Wire a gateway; `.edge` is its ASGI application."""
    return Gateway(settings, writer)


class Server(uvicorn.Server):
    """uvicorn's server with our way of stopping: say so first, go on serving for the drain delay, then finish what runs."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings.server
        super().__init__(
            uvicorn.Config(
                gateway.edge,
                host=settings.host,
                port=settings.port,
                loop="uvloop",
                http="httptools",
                ws="none",
                lifespan="on",
                backlog=settings.backlog,
                timeout_keep_alive=int(settings.keep_alive_seconds),
                timeout_graceful_shutdown=max(1, round(settings.shutdown_grace_seconds)),
                access_log=False,
                server_header=False,
                proxy_headers=False,
                log_config=None,
            )
        )
        self._gateway = gateway

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain, then exit with status 0. Second Ctrl-C: stop at once."""
        if self._gateway.draining:
            if sig == signal.SIGINT:
                self.should_exit = self.force_exit = True
            return
        self._gateway.draining = True
        log.info("draining", extra={"signal": signal.Signals(sig).name})
        delay_seconds = self._gateway.settings.server.drain_delay_seconds
        if delay_seconds:
            asyncio.get_running_loop().call_later(delay_seconds, self._stop)
        else:
            self._stop()

    def _stop(self) -> None:
        self.should_exit = True


def run_gateway(settings: Settings) -> int:
    """Run a gateway until it is told to stop. Returns the process's exit status."""
    writer = LineWriter(sys.stdout.fileno())
    set_up_logging(settings.logging.level, writer)
    gateway = create_app(settings, writer)
    writer.on_drop = gateway.metrics.log_lines_dropped.inc
    server = Server(gateway)
    log.info(
        "starting",
        extra={"host": settings.server.host, "port": settings.server.port, "endpoints": len(settings.endpoints)},
    )
    try:
        server.run()
    finally:
        writer.close()
    return 0 if server.started else 1

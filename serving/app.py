"""The one place where the gateway's objects are wired."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE

from serving.api.cors import Cors
from serving.api.door import SURPLUS_CONNECTIONS, Door, DoorConfig
from serving.api.edge import Asgi, Edge
from serving.api.named import Named
from serving.api.protocol import Connection
from serving.api.routes import create_api, create_operator_api
from serving.api.tls import ReloadedCertificate
from serving.core.outcomes import AttemptResult, Outcome
from serving.core.routes import ROUTES
from serving.engines.api_server import ApiServer
from serving.engines.exchange import AnswerTimedOut, ConnectTimedOut, WireError
from serving.engines.machine import require_free_port
from serving.engines.relay import Relay
from serving.fleet.breaker import BreakerState, Fault
from serving.fleet.dns import Discovery
from serving.fleet.health import Health
from serving.fleet.kubernetes import Follower, KubernetesDiscovery
from serving.fleet.load import LoadReader
from serving.fleet.peers import Peers, require_free_peer_port
from serving.fleet.probe import Probe, ProbeFailed
from serving.fleet.report import FleetReport, fleet_report
from serving.fleet.store import Endpoint, EndpointState, EndpointStatus, Fleet
from serving.fleet.token_request import TOKEN_HEADER, TokenRequest
from serving.observability.logs import LineWriter, RequestLog, set_up_logging
from serving.observability.metrics import Metrics
from serving.pipeline import Pipeline
from serving.routing.explain import Explain
from serving.routing.models import public_models
from serving.routing.news import peer_reports
from serving.routing.objectives import Objectives
from serving.routing.retries import RetryBudget
from serving.routing.setup import chooser_of
from serving.settings import LimitSettings, Settings, TracingSettings, kubernetes_access, own_namespace
from serving.tenancy.accounts import Accounts, check_accounts
from serving.tenancy.capacity import Capacity
from serving.tenancy.claims import Claims
from serving.tenancy.estimates import TokenEstimates
from serving.tenancy.limits import Admission
from serving.tenancy.prices import Prices
from serving.tenancy.quotas import LocalQuotas
from serving.tenancy.readings import QueueReadings, limits_left
from serving.tenancy.slots import Slots

if TYPE_CHECKING:
    from serving.observability.tracing import Tracing
    from serving.tenancy.shared_quotas import SharedQuotas

log = logging.getLogger("serving.gateway")


class Gateway:
    """A gateway's objects, opened and closed by the application's lifespan."""

    def __init__(self, settings: Settings, writer: LineWriter | None = None) -> None:
        self.settings = settings
        self.draining = False
        self.metrics = Metrics()
        fixed = [Endpoint(e.name, e.url, e.model, e.pool, e.target, e.tasks, slots=e.slots) for e in settings.endpoints]
        self.fleet = Fleet(fixed, models={pool.model: pool.tasks for pool in settings.pools}, settings=settings.health)
        self.relay = Relay(settings.relay)
        self.health = Health(self.fleet, settings.health, ejected=self._ejected)
        self.probe = Probe(
            self.fleet,
            self._get,
            settings.probe,
            post=self._post,
            health=self.health,
            token_timeout_seconds=settings.health.token_timeout_seconds,
        )
        self.discovery = Discovery(
            settings.pools,
            self.fleet,
            self.probe,
            settings.discovery,
            changed=self._forget_departed,
            failed=lambda pool: self.metrics.discovery_failures.add((pool,)),
        )
        self.kubernetes = self._kubernetes_discovery()
        self.load_reader = LoadReader(
            self.fleet, self._get, settings.engine_load, failed=lambda pool: self.metrics.load_failures.add((pool,))
        )
        estimates = TokenEstimates()
        self.quotas = _quotas(settings, self.metrics)
        self.slots = _slots(settings, self.fleet, self.metrics)
        self.admission = Admission(
            settings.limits,
            quotas=self.quotas,
            claims=_claims(settings, estimates),
            slots=self.slots,
            refused=lambda tenant, limit: self.metrics.limit_refusals.add((tenant, limit)),
        )
        self.chooser = chooser_of(settings.routing, lambda: self.fleet.snapshot.ramping)
        self.desk = self.chooser.join(silence_seconds=settings.peers.silence_seconds) if settings.peers.on else None
        self.chooser.know(fixed)
        self.peers = None if self.desk is None else Peers(settings.peers, self.desk)
        self.retry_budget = RetryBudget(settings.relay.retry_budget)
        self.tracing = _tracing(settings.tracing, self.metrics)
        self.accounts = Accounts(settings, self.metrics)
        identities = self.accounts.identities
        models = public_models(settings.models, [*(e.model for e in settings.endpoints), *(p.model for p in settings.pools)])
        self.pipeline = Pipeline(
            identities=identities,
            admission=self.admission,
            models=models,
            fleet=self.fleet,
            probe=self.probe,
            health=self.health,
            chooser=self.chooser,
            relay=self.relay,
            metrics=self.metrics,
            request_log=RequestLog(writer) if writer is not None and settings.logging.access else None,
            estimates=estimates,
            retry_budget=self.retry_budget,
            settings=settings.relay,
            objectives=Objectives(settings.routing),
            explain=Explain(settings.routing.explain_key),
            tracing=self.tracing,
            ledger=self.accounts.ledger,
        )
        own_address = settings.server.operator_port is not None
        api = create_api(
            models=models,
            provider_listing=settings.provider_listing,
            fleet=self.fleet,
            identities=identities,
            metrics=None if own_address else self.metrics,
            report=None if own_address else self._report,
            draining=lambda: self.draining,
            published=settings if settings.server.openapi else None,
        )
        api.router.lifespan_context = self._lifespan
        self.operator_api = Named(
            create_operator_api(
                models=models,
                fleet=self.fleet,
                identities=identities,
                metrics=self.metrics,
                report=self._report,
                draining=lambda: self.draining,
            )
        )
        self.edge = Edge(Named(api), self.pipeline, settings.limits, settings.relay)
        origins = settings.server.cors_origins
        self.application: Asgi = Cors(self.edge, origins) if origins else self.edge
        """What the server runs."""
        self._gauges()

    async def _get(self, url: str, path: str, *, timeout_seconds: float) -> tuple[int, bytes]:
        try:
            return await self.relay.get(url, path, timeout_seconds=timeout_seconds)
        except WireError as error:
            raise _probe_failure(error) from None

    async def _post(self, url: str, request: TokenRequest, *, timeout_seconds: float) -> tuple[int, bytes]:
        try:
            return await self.relay.post(
                url,
                request.path,
                request.body,
                content_type=request.content_type,
                header=TOKEN_HEADER,
                timeout_seconds=timeout_seconds,
            )
        except WireError as error:
            raise _probe_failure(error) from None

    def _kubernetes_discovery(self) -> KubernetesDiscovery | None:
        pools = [(pool, pool.kubernetes) for pool in self.settings.pools if pool.kubernetes is not None]
        if not pools:
            return None
        settings = kubernetes_access(self.settings.kubernetes)
        server = ApiServer(settings)
        return KubernetesDiscovery(
            [Follower(pool, source.namespace or own_namespace(pool), server, settings) for pool, source in pools],
            self.fleet,
            self.probe,
            settings,
            changed=self._forget_departed,
            failed=lambda pool: self.metrics.discovery_failures.add((pool,)),
        )

    def _report(self) -> FleetReport:
        pools = {(e.pool, e.model, e.target): None for e in self.settings.endpoints}
        pools |= {(pool.name, pool.model, pool.target): None for pool in self.settings.pools}
        peers = None if self.peers is None or self.desk is None else peer_reports(self.peers.heard, self.desk)
        return fleet_report(self.fleet, list(pools), self.chooser.in_flight, peers=peers)

    def _gauges(self) -> None:
        metrics = self.metrics
        metrics.before_scrape = self.pipeline.publish
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
        metrics.watch_breakers(
            lambda: (
                ((e.model, e.pool, e.target, e.name, state), float(status.breaker is state))
                for status in self.fleet.snapshot.statuses.values()
                for state in BreakerState
                if (e := status.endpoint)
            )
        )
        metrics.watch_pools(self._ready_by_pool)
        metrics.watch_running(self._running_by_pool)
        metrics.watch_loads(self._loads)
        queues = QueueReadings(self.settings, self.fleet, self.slots)
        metrics.watch_queues(queues.waiting, queues.capacity, queues.in_use)
        tenants, quotas = self.accounts.identities.tenants, self.quotas
        metrics.watch_limits(lambda: limits_left(self.settings.tenants, tenants, self.admission, quotas))
        if not isinstance(quotas, LocalQuotas):
            metrics.watch_limit_store(lambda: quotas.is_up)
        metrics.watch_routing(lambda: self.chooser.decisions.items(), lambda: self.chooser.index.used_bytes)
        if (peers := self.peers) is not None and (desk := self.desk) is not None:
            tally = peers.tally
            metrics.watch_peers(lambda: len(peers.heard), tally.by_result, lambda: tally.refused.items(), desk.counts.by_result)
        for pool in self.settings.pools:
            metrics.discovery_failures.add((pool.name,), 0)
            # From zero, so that the first request that finds no engine shows as an increase: it asks for one to be started.
            for route in ROUTES.values():
                if route.task in pool.tasks:
                    metrics.requests.add((pool.model, route.name, Outcome.UNAVAILABLE), 0)
        for name in {*(e.pool for e in self.settings.endpoints), *(p.name for p in self.settings.pools)}:
            metrics.load_failures.add((name,), 0)
        for endpoint in self.settings.endpoints:
            self._count_from_zero(endpoint.pool, endpoint.name)

    def _loads(self, figure: str) -> Iterable[tuple[tuple[str, ...], float]]:
        """A figure of each endpoint whose engine told it lately."""
        for status in self.fleet.snapshot.statuses.values():
            e, load = status.endpoint, self.fleet.load(status.endpoint.name)
            value = getattr(load, figure) if load is not None else None
            if value is not None:
                yield (e.model, e.pool, e.target, e.name), value

    def _ready_by_pool(self) -> Iterable[tuple[tuple[str, str], float]]:
        return self._by_pool(lambda status: status.state is EndpointState.READY)

    def _running_by_pool(self) -> Iterable[tuple[tuple[str, str], float]]:
        return self._by_pool(lambda status: self.chooser.in_flight(status.endpoint.name))

    def _by_pool(self, count: Callable[[EndpointStatus], int]) -> Iterable[tuple[tuple[str, str], float]]:
        """What is counted at endpoints, summed for each model and pool; 0 where there is no endpoint."""
        counts = {(e.model, e.pool): 0 for e in self.settings.endpoints} | {(p.model, p.name): 0 for p in self.settings.pools}
        for status in self.fleet.snapshot.statuses.values():
            counts[status.endpoint.model, status.endpoint.pool] += count(status)
        return counts.items()

    def _forget_departed(self) -> None:
        """Let go of what is kept for endpoints that are no more; the last that left are still counted for a while."""
        endpoints = {status.endpoint.name: status.endpoint for status in self.fleet.snapshot.statuses.values()}
        self.chooser.retain(endpoints)
        self.chooser.know(endpoints.values())
        self.health.retain(endpoints.values())
        self.relay.retain({endpoint.url for endpoint in endpoints.values()})
        counted = endpoints.keys() | set(self.fleet.departed)
        for counter in (self.metrics.attempts, self.metrics.ejections):
            counter.retain(lambda labels: labels[1] in counted)
        for endpoint in endpoints.values():
            self._count_from_zero(endpoint.pool, endpoint.name)

    def _count_from_zero(self, pool: str, endpoint: str) -> None:
        for result in AttemptResult:
            self.metrics.attempts.add((pool, endpoint, result), 0)
        for fault in Fault:
            self.metrics.ejections.add((pool, endpoint, fault), 0)

    def _ejected(self, endpoint: Endpoint, fault: Fault) -> None:
        self.probe.look_soon(endpoint)  # most often its process is gone, and what comes next need not wait
        self.metrics.ejections.add((endpoint.pool, endpoint.name, fault))

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        if self.tracing is not None:
            self.tracing.start()
        kubernetes, peers = self.kubernetes or contextlib.nullcontext(), self.peers or contextlib.nullcontext()
        await self.accounts.start()
        async with self.quotas, self.relay, self.probe, self.discovery, kubernetes, self.load_reader, peers:
            sweep = asyncio.create_task(self.edge.sweep(), name="edge-sweep")
            try:
                yield
            finally:
                # Requests that the server cancelled at the end of its grace time still write their last event.
                await self.edge.idle(timeout_seconds=1.0)
                self.pipeline.publish()
                sweep.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sweep
        await self.accounts.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)


def _probe_failure(error: WireError) -> ProbeFailed:
    return ProbeFailed(str(error), timed_out=isinstance(error, AnswerTimedOut | ConnectTimedOut))


def _quotas(settings: Settings, metrics: Metrics) -> LocalQuotas | SharedQuotas:
    """Loads the client of Redis only where it is used."""
    store = settings.limits.store
    if store.url is None:
        return LocalQuotas()
    from serving.tenancy.shared_quotas import SharedQuotas

    return SharedQuotas(store, failed=lambda reason: metrics.limit_store_failures.add((reason,)))


def _claims(settings: Settings, estimates: TokenEstimates) -> Claims:
    """Counts dollars only where there are prices."""
    prices = settings.prices if settings.prices.models or settings.prices.pools else None
    pools: dict[str, set[str]] = {}
    for model, pool in (*((e.model, e.pool) for e in settings.endpoints), *((p.model, p.name) for p in settings.pools)):
        pools.setdefault(model, set()).add(pool)
    return Claims(estimates, None if prices is None else Prices(prices), pools)


def _slots(settings: Settings, fleet: Fleet, metrics: Metrics) -> dict[str, Slots]:
    """Those of the models whose endpoints have any."""

    def waited(model: str) -> Callable[[float], None]:
        return lambda seconds: metrics.queue_seconds.observe((model,), seconds)

    models = [e.model for e in settings.endpoints if e.slots is not None] + [
        p.model for p in settings.pools if p.slots is not None
    ]
    return {model: Slots(settings.limits.queue, Capacity(fleet, model), waited=waited(model)) for model in models}


def _tracing(settings: TracingSettings, metrics: Metrics) -> Tracing | None:
    """Loads OpenTelemetry only where it is used."""
    if settings.endpoint is None:
        return None
    from serving.observability.otlp import OtlpHttp
    from serving.observability.tracing import Tracing

    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    return Tracing(
        OtlpHttp(settings.endpoint, headers=headers, ca=settings.ca, timeout_seconds=settings.timeout_seconds),
        metrics,
        service_name=settings.service_name,
        sample_ratio=settings.sample_ratio,
        queue_requests=settings.queue_requests,
        interval_seconds=settings.interval_seconds,
    )


def create_app(settings: Settings, writer: LineWriter | None = None) -> Gateway:
    """Wire a gateway; `.application` is its ASGI application."""
    return Gateway(settings, writer)


class Server(uvicorn.Server):
    """uvicorn's server with our way of stopping: say so first, go on serving for the drain delay, then finish what runs."""

    def __init__(self, gateway: Gateway) -> None:
        settings = self._settings = gateway.settings.server
        self._gateway = gateway
        self._certificate: ReloadedCertificate | None = None
        if settings.tls_certificate is not None and settings.tls_key is not None:
            self._certificate = ReloadedCertificate(settings.tls_certificate, settings.tls_key, settings.tls_poll_seconds)
        self._certificate_watch: asyncio.Task[None] | None = None
        config = self._config(gateway.application, lifespan="on", ssl_context_factory=self._ssl_context_factory())
        super().__init__(config)
        self.door = config.door
        self.operator_server: asyncio.Server | None = None

    def _config(self, app: Asgi, **options: Any) -> DoorConfig:
        """uvicorn's configuration of one listener, each with a count of connections of its own."""
        settings = self._settings
        rejections = self._gateway.metrics.rejections
        return DoorConfig(
            app,
            Door(
                self._gateway.settings.limits,
                lambda reason: rejections.add((reason,)),
                self._gateway.settings.relay.client_write_timeout_seconds,
                self._gateway.edge.gone,
            ),
            host=settings.host,
            port=settings.port,
            loop="uvloop",
            http=Connection,
            ws="none",
            backlog=settings.backlog,
            timeout_keep_alive=settings.keep_alive_seconds,
            timeout_graceful_shutdown=max(1, round(settings.shutdown_grace_seconds)),
            access_log=False,
            server_header=False,
            proxy_headers=False,
            log_config=None,
            **options,
        )

    def _ssl_context_factory(self) -> Callable[..., ssl.SSLContext] | None:
        certificate = self._certificate
        return None if certificate is None else lambda *_: certificate.context

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A closed terminal drains, too; uvicorn itself would be killed by it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGHUP, self.handle_exit)
        try:
            with super().capture_signals():
                yield
        finally:
            signal.signal(signal.SIGHUP, before)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        operators = await self._operator_listener()
        await super().startup(sockets=sockets)
        if operators is not None:
            await operators.start_serving()
            self.servers.append(operators)
            self.operator_server = operators
        if self._certificate is not None:
            self._certificate_watch = asyncio.create_task(self._certificate.watch(), name="certificate-watch")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        watch = self._certificate_watch
        if watch is not None:
            watch.cancel()
            await asyncio.wait({watch})
        await super().shutdown(sockets=sockets)

    async def _operator_listener(self) -> asyncio.Server | None:
        """The second address, bound but not yet served, so that a taken port ends the start before anything is open."""
        settings = self._settings
        if settings.operator_port is None:
            return None
        config = self._config(self._gateway.operator_api, lifespan="off")
        config.load()
        try:
            return await asyncio.get_running_loop().create_server(
                lambda: Connection(config, self.server_state, {}),
                settings.operator_host,
                settings.operator_port,
                start_serving=False,
            )
        except OSError as error:
            log.error("the operators' address cannot be bound: %s", error)
            sys.exit(STARTUP_FAILURE)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain, then exit with status 0. Second Ctrl-C: stop at once."""
        if self._gateway.draining:
            if sig == signal.SIGINT:
                self.should_exit = self.force_exit = True
            return
        self._gateway.draining = True
        log.info("draining", extra={"signal": signal.Signals(sig).name})
        delay_seconds = self._settings.drain_delay_seconds
        if delay_seconds:
            asyncio.get_running_loop().call_later(delay_seconds, self._stop)
        else:
            self._stop()

    def _stop(self) -> None:
        self.should_exit = True


def run_gateway(settings: Settings) -> int:
    """Run a gateway until it is told to stop. Returns the process's exit status.

    Raises:
        ConfigurationError: an address cannot be listened on; nothing was started.
    """
    require_free_port(settings.server.host, settings.server.port, "server.port")
    if settings.server.operator_port is not None:
        require_free_port(settings.server.operator_host, settings.server.operator_port, "server.operator_port")
    require_free_peer_port(settings.peers)
    _fill_standard_descriptors()
    writer = LineWriter(_log_descriptor())
    set_up_logging(settings.logging.level, writer)
    check_accounts(settings)
    gateway = create_app(settings, writer)
    if not settings.endpoints and not settings.pools:
        log.warning("no endpoints are set, so no request can be served; list them under `endpoints` or `pools`")
    writer.on_drop = gateway.metrics.log_lines_dropped.inc
    server = Server(gateway)
    _open_file_limit(settings.limits)
    log.info(
        "starting",
        extra={"host": settings.server.host, "port": settings.server.port, "endpoints": len(settings.endpoints)},
    )
    # What exists now lives as long as the process; a request's own objects are freed by their count, so that looking for cycles
    # at the library's default pace is CPU for nothing and stops all streams meanwhile.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        server.run()
    finally:
        writer.close()
    return 0 if server.started else 1


def _fill_standard_descriptors() -> None:
    """Open the null device where 0, 1 or 2 is closed: a socket with such a number would get what others print, and the event
    loop's library aborts the process when it closes one."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _log_descriptor() -> int:
    """Standard output, or what there is in its place."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None: it was closed when the process began
            return stream.fileno()
    return os.open(os.devnull, os.O_WRONLY)


def _open_file_limit(limits: LimitSettings) -> None:
    """Each connection is an open file: `limits` are the ceilings, not what a shell happens to allow a process at first."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    wanted = limits.connections + SURPLUS_CONNECTIONS + limits.in_flight
    if most != resource.RLIM_INFINITY and most < wanted:
        log.warning("the system allows %d open files, the limits may need %d: raise `ulimit -n` or lower them", most, wanted)

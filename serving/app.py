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
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
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
from serving.api.ui import Files, Playground, own_names, why_no_playground
from serving.api.ui_board import Board
from serving.api.ui_state import throughput_said
from serving.core.outcomes import AttemptResult, Outcome
from serving.core.routes import ROUTES
from serving.cost.bill import Bill, PoolKey
from serving.cost.costs import Costs
from serving.cost.hardware import Machines, catalog_targets, targets_of
from serving.engines.api_server import ApiServer
from serving.engines.exchange import AnswerTimedOut, ConnectTimedOut, WireError
from serving.engines.machine import require_free_port
from serving.engines.relay import Relay
from serving.fleet.breaker import BreakerState, Fault
from serving.fleet.dns import Discovery
from serving.fleet.engine_load import EngineLoad
from serving.fleet.health import Health
from serving.fleet.known_answers import QUALITY_HEADER, read_reference
from serving.fleet.kubernetes import Follower, KubernetesDiscovery
from serving.fleet.load import LoadReader
from serving.fleet.peers import Peers, require_free_peer_port
from serving.fleet.probe import Probe, ProbeFailed
from serving.fleet.quality import QualityWatch
from serving.fleet.report import DollarReport, FleetReport, fleet_report
from serving.fleet.store import Endpoint, EndpointState, EndpointStatus, Fleet
from serving.fleet.token_request import TOKEN_HEADER, TokenRequest
from serving.model_settings import adapters_of
from serving.observability.logs import LineWriter, RequestLog, set_up_logging
from serving.observability.metrics import Metrics
from serving.observability.series import fleet as series
from serving.observability.series import money, requests
from serving.observability.series.quality import STATE as QUALITY_STATE
from serving.observability.series.tenants import LIMIT, LIMIT_LEFT
from serving.observability.window import Ledgers, Said, Window
from serving.pipeline import Pipeline
from serving.routing.choose import Chooser
from serving.routing.explain import Explain
from serving.routing.models import PublicModel, public_models
from serving.routing.news import peer_reports
from serving.routing.objectives import Objectives
from serving.routing.retries import RetryBudget
from serving.routing.setup import chooser_of
from serving.settings import LimitSettings, Settings, TracingSettings, catalog_dir, kubernetes_access, own_namespace
from serving.tenancy.accounts import Accounts, check_accounts
from serving.tenancy.capacity import Capacity
from serving.tenancy.claims import Claims
from serving.tenancy.estimates import TokenEstimates
from serving.tenancy.limits import Admission
from serving.tenancy.prices import Prices
from serving.tenancy.probe_costs import ProbeCosts
from serving.tenancy.quotas import LocalQuotas
from serving.tenancy.readings import QueueReadings, limits_left, limits_set
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
        adapters = adapters_of(settings.models)
        fixed = [Endpoint(e.name, e.url, e.model, e.pool, e.target, e.tasks, slots=e.slots) for e in settings.endpoints]
        pool_models = {pool.model: pool.tasks for pool in settings.pools}
        self.fleet = Fleet(
            fixed,
            models=pool_models,
            settings=settings.health,
            adapters=adapters,
            may_be_empty=[pool.name for pool in settings.pools if pool.may_be_empty],
        )
        self.machines = Machines(settings, catalog_targets(catalog_dir(), targets_of(settings)))
        self.costs = Costs(self.machines)
        self.bill = Bill(self._endpoints_by_pool, self.machines)
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
        estimates = TokenEstimates()
        self.quotas = _quotas(settings, self.metrics)
        self.chooser = chooser_of(
            settings.routing,
            lambda: self.fleet.snapshot.ramping,
            lambda pool, target: self.machines.of(pool, target).dollars_per_second,
        )
        self.slots = _slots(settings, self.fleet, self.chooser, self.metrics)
        self.admission = Admission(
            settings.limits,
            quotas=self.quotas,
            claims=_claims(settings, estimates),
            slots=self.slots | {adapter: self.slots[model] for adapter, model in adapters.items() if model in self.slots},
            refused=lambda tenant, limit: self.metrics.limit_refusals.add((tenant, limit)),
        )
        self.desk = self.chooser.join(silence_seconds=settings.peers.silence_seconds) if settings.peers.on else None
        self.chooser.know(fixed)
        self.peers = None if self.desk is None else Peers(settings.peers, self.desk)
        self.load_reader = LoadReader(
            self.fleet,
            self._get,
            settings.engine_load,
            failed=lambda pool: self.metrics.load_failures.add((pool,)),
            in_flight=self.chooser.in_flight,
            heard=self._engine_said,
            missed=lambda endpoint: self.chooser.miss(endpoint, settings.engine_load.stale_seconds),
        )
        self.quality = QualityWatch(
            self.fleet,
            self._post_quality,
            settings.quality,
            {pool: read_reference(path) for pool, path in settings.quality.references.items()},
            probed=ProbeCosts(self.metrics, settings.prices).probed,
        )
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
            costs=self.costs,
            prices=_prices(settings),
            tracing=self.tracing,
            ledger=self.accounts.ledger,
        )
        ledgers = Ledgers(self.bill.dollars, self.costs.used, self.costs.failed)
        self.window = Window(self.metrics, ledgers=ledgers, said=self._said)
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
        operator_api = create_operator_api(
            models=models,
            fleet=self.fleet,
            identities=identities,
            metrics=self.metrics,
            report=self._report,
            draining=lambda: self.draining,
        )
        self.operator_api = self._with_page(operator_api, models) if own_address else Named(operator_api)
        own_api = Named(api) if own_address else self._with_page(api, models)
        self.edge = Edge(own_api, self.pipeline, settings.limits, settings.relay)
        origins = settings.server.cors_origins
        self.application: Asgi = Cors(self.edge, origins) if origins else self.edge
        """What the server runs."""
        self._gauges()

    def _with_page(self, api: Asgi, models: Mapping[str, PublicModel]) -> Asgi:
        """An application and, beside its routes, the page `/ui`."""
        why_closed = why_no_playground(self.settings)
        board = Board(
            self.settings,
            fleet=self.fleet,
            models=models,
            report=self._report,
            window=self.window,
            errors=self.pipeline.last_errors,
            condition=self._condition,
            in_flight=lambda: self.pipeline.in_flight,
            waiting=lambda: sum(slots.queue.requests for slots in self.slots.values()),
            why_closed=why_closed,
        )
        files = Named(Files(api, board.state))
        return Playground(files, lambda: self.edge, why_closed=why_closed, own_names=own_names(self.settings))

    def _condition(self) -> str:
        """What `/readyz` says."""
        if self.draining:
            return "draining"
        return "ready" if self.fleet.takes_requests and self.accounts.identities.is_ready else "not ready"

    def _engine_said(self, endpoint: Endpoint, load: EngineLoad, in_flight: int) -> None:
        self.chooser.hear(endpoint, load, in_flight)
        self.costs.hear(endpoint, load)

    async def _get(self, url: str, path: str, *, timeout_seconds: float) -> tuple[int, bytes]:
        try:
            return await self.relay.get(url, path, timeout_seconds=timeout_seconds)
        except WireError as error:
            raise _probe_failure(error) from None

    async def _post(self, url: str, request: TokenRequest, *, timeout_seconds: float) -> tuple[int, bytes]:
        return await self._post_marked(url, request, TOKEN_HEADER, timeout_seconds)

    async def _post_quality(self, url: str, request: TokenRequest, *, timeout_seconds: float) -> tuple[int, bytes]:
        return await self._post_marked(url, request, QUALITY_HEADER, timeout_seconds)

    async def _post_marked(
        self, url: str, request: TokenRequest, header: tuple[bytes, bytes], timeout_seconds: float
    ) -> tuple[int, bytes]:
        try:
            return await self.relay.post(
                url,
                request.path,
                request.body,
                content_type=request.content_type,
                header=header,
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
        view = self.window.look()

        def dollars(e: Endpoint) -> DollarReport:
            money = view.money([(e.model, e.pool, e.target)])
            return DollarReport(self.machines.of(e.pool, e.target).dollars_per_hour, money.per_million_output_tokens)

        peers = None if self.peers is None or self.desk is None else peer_reports(self.peers.heard, self.desk)
        return fleet_report(self.fleet, self._pools(), self.chooser.in_flight, self.chooser.speed, dollars, peers)

    def _said(self) -> Said | None:
        return throughput_said(fleet_report(self.fleet, self._pools(), self.chooser.in_flight))

    def _pools(self) -> list[tuple[str, str, str]]:
        """Names, models and targets of those that are set."""
        pools = {(e.pool, e.model, e.target): None for e in self.settings.endpoints}
        pools |= {(pool.name, pool.model, pool.target): None for pool in self.settings.pools}
        return list(pools)

    def _gauges(self) -> None:
        metrics = self.metrics
        metrics.before_scrape = self._bring_up_to_now
        metrics.on_scrape(metrics.in_flight, lambda: self.pipeline.in_flight)
        metrics.on_scrape(metrics.open_leases, lambda: self.admission.open_leases)
        metrics.on_scrape(metrics.engine_connections, lambda: self.relay.open_connections)
        metrics.on_scrape(metrics.draining, lambda: float(self.draining))
        metrics.watch(
            series.ENDPOINT_READY,
            lambda: (
                ((e.model, e.pool, e.target, e.name), float(status.state is EndpointState.READY))
                for status in self.fleet.snapshot.statuses.values()
                if status.state is not EndpointState.UNKNOWN and (e := status.endpoint)
            ),
        )
        metrics.watch(
            series.ENDPOINT_BREAKER,
            lambda: (
                ((e.model, e.pool, e.target, e.name, state), float(status.breaker is state))
                for status in self.fleet.snapshot.statuses.values()
                for state in BreakerState
                if (e := status.endpoint)
            ),
        )
        metrics.watch(series.ENDPOINT_IN_FLIGHT, self._in_flight)
        metrics.watch(series.READY_ENDPOINTS, self._ready_by_pool)
        metrics.watch(series.RUNNING_REQUESTS, self._running_by_pool)
        metrics.watch(
            QUALITY_STATE,
            lambda: (
                ((e.model, e.pool, e.target, e.name), float(status.answers_rightly))
                for status in self.fleet.snapshot.statuses.values()
                if status.answers_rightly is not None and (e := status.endpoint)
            ),
        )
        metrics.watch_loads(self._loads)
        metrics.watch(series.POOL_INFO, lambda: ((key, 1.0) for key in self.bill.endpoints))
        metrics.watch(money.ACCELERATORS, self.bill.accelerators)
        metrics.watch(money.ACCELERATORS_PER_NODE, self.bill.accelerators_per_node)
        metrics.watch(money.ACCELERATOR_PRICE, self.bill.prices)
        metrics.watch(money.BILL_DOLLARS, self.bill.dollars)
        metrics.watch(money.POWER, self.bill.watts)
        metrics.watch(money.USED_DOLLARS, self.costs.used)
        metrics.watch(money.FAILED_DOLLARS, self.costs.failed)
        queues = QueueReadings(self.settings, self.fleet, self.slots)
        metrics.watch(requests.QUEUED, queues.waiting)
        metrics.watch(requests.SLOTS, queues.capacity)
        metrics.watch(requests.SLOTS_IN_USE, queues.in_use)
        metrics.watch(requests.OBJECTIVE_SECONDS, self.pipeline.objectives.rows)
        tenants, quotas = self.accounts.identities.tenants, self.quotas
        metrics.watch(LIMIT, lambda: limits_set(self.settings.tenants, tenants, self.admission))
        metrics.watch(LIMIT_LEFT, lambda: limits_left(self.settings.tenants, tenants, self.admission, quotas))
        if not isinstance(quotas, LocalQuotas):
            metrics.watch_limit_store(lambda: quotas.is_up)
        metrics.watch_routing(lambda: self.chooser.decisions.items(), lambda: self.chooser.index.used_bytes)
        if (peers := self.peers) is not None and (desk := self.desk) is not None:
            tally = peers.tally
            metrics.watch_peers(lambda: len(peers.heard), tally.by_result, lambda: tally.refused.items(), desk.counts.by_result)
        for key in self.bill.endpoints:
            metrics.tokens.row(key)
            self.costs.open(key)
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

    def _bring_up_to_now(self) -> None:
        """Before a scrape."""
        self.pipeline.publish()
        self.costs.look()
        self.bill.look()

    def _endpoints_by_pool(self) -> dict[PoolKey, int]:
        """How many endpoints there are by model, pool and target, those that get no requests included: they are paid as well."""
        counts = {(e.model, e.pool, e.target): 0 for e in self.settings.endpoints}
        targets = {pool.name: pool.target for pool in self.settings.pools}
        counts |= {(pool.model, pool.name, pool.target): 0 for pool in self.settings.pools}
        for status in self.fleet.snapshot.statuses.values():
            e = status.endpoint
            counts[e.model, e.pool, e.target] += 1
        for withheld in self.fleet.withheld.values():
            for each in withheld:
                counts[each.model, each.pool, targets[each.pool]] += 1
        return counts

    def _in_flight(self) -> Iterable[tuple[tuple[str, ...], float]]:
        for status in self.fleet.snapshot.statuses.values():
            e = status.endpoint
            yield (e.model, e.pool, e.target, e.name), self.chooser.in_flight(e.name)

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
        self.costs.retain(endpoints)
        self.bill.look()
        counted = endpoints.keys() | set(self.fleet.departed)
        for counter in (self.metrics.attempts, self.metrics.ejections, self.metrics.endpoint_output_tokens):
            counter.retain(lambda labels: labels[1] in counted)
        for endpoint in endpoints.values():
            self._count_from_zero(endpoint.pool, endpoint.name)

    def _count_from_zero(self, pool: str, endpoint: str) -> None:
        for result in AttemptResult:
            self.metrics.attempts.add((pool, endpoint, result), 0)
        for fault in Fault:
            self.metrics.ejections.add((pool, endpoint, fault), 0)
        self.metrics.endpoint_output_tokens.add((pool, endpoint), 0)

    def _ejected(self, endpoint: Endpoint, fault: Fault) -> None:
        self.probe.look_soon(endpoint)  # most often its process is gone, and what comes next need not wait
        self.metrics.ejections.add((endpoint.pool, endpoint.name, fault))

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        if self.tracing is not None:
            self.tracing.start()
        kubernetes, peers = self.kubernetes or contextlib.nullcontext(), self.peers or contextlib.nullcontext()
        await self.accounts.start()
        async with (
            self.quotas,
            self.relay,
            self.probe,
            self.discovery,
            kubernetes,
            self.load_reader,
            self.window,
            self.quality,
            peers,
        ):
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
    pools: dict[str, set[str]] = {}
    for model, pool in (*((e.model, e.pool) for e in settings.endpoints), *((p.model, p.name) for p in settings.pools)):
        pools.setdefault(model, set()).add(pool)
    for adapter, model in adapters_of(settings.models).items():
        pools[adapter] = pools.get(model, set())
    return Claims(estimates, _prices(settings), pools)


def _prices(settings: Settings) -> Prices | None:
    """What tenants are charged, where that is set."""
    return Prices(settings.prices) if settings.prices.models or settings.prices.pools else None


def _slots(settings: Settings, fleet: Fleet, chooser: Chooser, metrics: Metrics) -> dict[str, Slots]:
    """Those of the models whose endpoints have any."""

    def capacity(model: str) -> Capacity:
        return Capacity(fleet, model, chooser.slots_at, lambda: chooser.slots_changed)

    def waited(model: str) -> Callable[[float], None]:
        return lambda seconds: metrics.queue_seconds.observe((model,), seconds)

    models = [e.model for e in settings.endpoints if e.slots is not None] + [
        p.model for p in settings.pools if p.slots is not None
    ]
    return {model: Slots(settings.limits.queue, capacity(model), waited=waited(model)) for model in models}


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

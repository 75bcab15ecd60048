"""Publishing: the facts of requests that have ended become the series that `series` defines.

Label values come from closed sets, and all of them are bounded, so that nothing a client writes adds a series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from serving import __version__
from serving.core.context import RequestContext
from serving.core.outcomes import AttemptResult, Outcome, RetryDenied
from serving.observability.collectors import (
    BucketHistogram,
    BulkCounter,
    KindCounter,
    ReadRows,
    counter_of,
    gauge_of,
    histogram_of,
    read_at_scrape,
)
from serving.observability.series import fleet, money, peers, process, quality, requests, routing, tenants
from serving.observability.series.definition import Series

ENGINE_LOADS = (
    (fleet.ENGINE_RUNNING, "running"),
    (fleet.ENGINE_WAITING, "waiting"),
    (fleet.ENGINE_KV_CACHE, "kv_cache_usage"),
)
"""Each series, and the figure of `EngineLoad` that it shows."""
KINDS = ("prompt", "cached", "output")
MOST_TENANTS = 500
OTHER = "other"
"""Stands for all tenants beyond these."""


class AccountMetrics:
    """The series of keys and the ledger; there only where a database or a key file is."""

    def __init__(self, gateway: CollectorRegistry, *, has_database: bool = True) -> None:
        registry = gateway if has_database else None
        self.database_up = gauge_of(tenants.DATABASE_UP, registry)
        self.keys_age = gauge_of(tenants.KEYS_AGE, registry)
        self.keys_ignored = gauge_of(tenants.KEYS_IGNORED, gateway)
        self.records_waiting = gauge_of(tenants.LEDGER_WAITING, registry)
        self.records = counter_of(tenants.LEDGER_RECORDS)
        for result in ("written", "spilled", "dropped", "refused", "lost_at_stop"):
            self.records.add((result,), 0)
        if registry is not None:
            registry.register(self.records)


class Routed(Protocol):
    """What routing predicted for an attempt; None where it had nothing to predict."""

    @property
    def began(self) -> float:
        """When the engine was asked; what came before it was not predicted."""

    @property
    def ttft_seconds(self) -> float | None: ...

    @property
    def cached_tokens(self) -> float: ...


class Wanted(Protocol):
    """The objective of a class of requests."""

    @property
    def name(self) -> str: ...

    @property
    def ttft_seconds(self) -> float: ...

    @property
    def inter_chunk_seconds(self) -> float: ...


class TenantCounts:
    """What is known of one tenant's requests."""

    __slots__ = ("charged_dollars", "dollars", "outcomes", "tokens")

    def __init__(self) -> None:
        self.outcomes: dict[Outcome, int] = {}
        self.tokens = [0.0] * len(KINDS)
        self.dollars: list[float] | None = None
        """By kind; None until an answer came from a machine that has a price."""
        self.charged_dollars: float | None = None


class Metrics:
    """The series of one gateway process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.before_scrape: Callable[[], None] = lambda: None
        """Brings in what is not counted yet."""
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self.requests = self._counter(requests.REQUESTS)
        self.rejections = self._counter(requests.REJECTIONS)
        self.attempts = self._counter(fleet.ATTEMPTS)
        self.ejections = self._counter(fleet.EJECTIONS)
        self.other_models = self._counter(requests.OTHER_MODELS)
        self.retries = self._counter(routing.RETRIES)
        self.retries_denied = self._counter(routing.RETRIES_DENIED)
        self.retries.add((), 0)
        for reason in RetryDenied:
            self.retries_denied.add((reason,), 0)
        self.traces = self._counter(process.TRACES)
        self.tokens = KindCounter(requests.TOKENS, KINDS)
        registry.register(self.tokens)
        self.tokens_estimated = self._counter(requests.TOKENS_ESTIMATED)
        self.usage_unknown = self._counter(requests.USAGE_UNKNOWN)
        self.discovery_failures = self._counter(fleet.DISCOVERY_FAILURES)
        self.load_failures = self._counter(fleet.LOAD_FAILURES)
        self.quality_probes = self._counter(quality.PROBES)
        self.quality_tokens = self._counter(quality.TOKENS)
        self.quality_dollars = self._counter(quality.DOLLARS)
        self.audio_seconds = self._counter(requests.AUDIO_SECONDS)
        self.endpoint_output_tokens = self._counter(fleet.ENDPOINT_OUTPUT_TOKENS)
        self.objective_requests = self._counter(requests.OBJECTIVE_REQUESTS)
        self.in_flight = gauge_of(process.IN_FLIGHT, registry)
        self.open_leases = gauge_of(process.OPEN_LEASES, registry)
        self.engine_connections = gauge_of(process.ENGINE_CONNECTIONS, registry)
        self.draining = gauge_of(process.DRAINING, registry)
        # Lines are dropped by any thread, so that this one takes a lock.
        self.log_lines_dropped = Counter(
            process.LOG_LINES_DROPPED.name, process.LOG_LINES_DROPPED.documentation, registry=registry
        )
        gauge_of(process.BUILD_INFO, registry).labels(__version__).set(1)
        self.ttft = self._histogram(requests.TTFT)
        self.inter_chunk = self._histogram(requests.INTER_CHUNK)
        self.tpot = self._histogram(requests.TPOT)
        self.duration = self._histogram(requests.DURATION)
        self.limit_refusals = self._counter(tenants.LIMIT_REFUSALS)
        self.limit_store_failures = self._counter(tenants.LIMIT_STORE_FAILURES)
        self.queue_seconds = self._histogram(requests.QUEUE_SECONDS)
        self.predicted_ttft = self._histogram(routing.PREDICTED_TTFT)
        self.ttft_error = self._histogram(routing.TTFT_ERROR)
        self.cached_predicted = self._counter(routing.CACHED_PREDICTED)
        self.cached_observed = self._counter(routing.CACHED_OBSERVED)
        self.prefix_index_bytes = gauge_of(routing.PREFIX_INDEX_BYTES, registry)
        self.tenants: dict[str, TenantCounts] = {}
        self.watch(tenants.TENANT_REQUESTS, self._tenant_requests)
        self.watch(tenants.TENANT_TOKENS, self._tenant_tokens)
        self.watch(money.TENANT_DOLLARS, self._tenant_dollars)
        self.watch(money.TENANT_CHARGED, self._tenant_charged)

    def _counter(self, series: Series) -> BulkCounter:
        made = counter_of(series)
        self.registry.register(made)
        return made

    def _histogram(self, series: Series) -> BucketHistogram:
        made = histogram_of(series)
        self.registry.register(made)
        return made

    def watch(self, series: Series, read: ReadRows) -> None:
        """Export what is kept elsewhere; what `read` no longer names is gone from the next scrape on."""
        self.registry.register(read_at_scrape(series, read))

    def attempt(self, pool: str, endpoint: str, result: AttemptResult) -> None:
        self.attempts.add((pool, endpoint, result))

    def settle(self, ctx: RequestContext, ended: float, wanted: Wanted | None = None) -> None:
        """Publish what is known about a request that has ended at `ended` monotonic seconds.

        `wanted` is the objective of its class, where it has one.
        """
        assert ctx.outcome is not None
        self.requests.add((ctx.model, ctx.route.name, ctx.outcome))
        tenant: TenantCounts | None = None
        if ctx.tenant:
            tenant = self.tenants.get(ctx.tenant) or self.tenant(ctx.tenant)
            outcomes = tenant.outcomes
            outcomes[ctx.outcome] = outcomes.get(ctx.outcome, 0) + 1
            prompt_dollars, cached_dollars, output_dollars, _ = ctx.machine
            if prompt_dollars is not None:
                dollars = tenant.dollars
                if dollars is None:
                    dollars = tenant.dollars = [0.0] * len(KINDS)
                dollars[0] += prompt_dollars or 0.0
                dollars[1] += cached_dollars or 0.0
                dollars[2] += output_dollars or 0.0
        if ctx.model != ctx.asked_model and ctx.first_byte:
            self.other_models.add((ctx.asked_model, ctx.model, "fallback" if ctx.fell_back else "alias"))
        if not ctx.first_byte or not ctx.route.runs_model:
            if wanted is not None and ctx.stream and ctx.attempts and ended - ctx.arrived > wanted.ttft_seconds:
                self._objective(ctx, wanted, "ttft", met=False)
            return
        model, pool = labels = (ctx.model, ctx.pool)
        usage = ctx.usage
        if usage.audio_seconds is not None:
            self.audio_seconds.add(labels, usage.audio_seconds)
        elif usage.prompt_tokens is None or usage.output_tokens is None:
            self.usage_unknown.add(labels)
        prompt, cached, output = usage.prompt_tokens or 0, usage.cached_tokens or 0, usage.output_tokens or 0
        row = self.tokens.rows.get((model, pool, ctx.target)) or self.tokens.row((model, pool, ctx.target))
        row[0] += prompt
        row[1] += cached
        row[2] += output
        if tenant is not None:
            row = tenant.tokens
            row[0] += prompt
            row[1] += cached
            row[2] += output
        if output:
            self.endpoint_output_tokens.add((pool, ctx.endpoint), output)
        if ctx.usage_estimated:
            for kind, count in zip(KINDS, (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens), strict=True):
                if count is not None:
                    self.tokens_estimated.add((model, pool, ctx.target, kind), count)
        if ctx.chunk_intervals is not None:
            began = ctx.first_token or ctx.first_byte
            self.ttft.observe(labels, began - ctx.arrived)
            self.inter_chunk.add(labels, ctx.chunk_intervals, ctx.last_byte - began)
            if usage.output_tokens is not None and usage.output_tokens > 1:
                self.tpot.observe(labels, (ctx.last_byte - began) / (usage.output_tokens - 1))
            if wanted is not None:
                self._objective(ctx, wanted, "ttft", met=began - ctx.arrived <= wanted.ttft_seconds)
                intervals = sum(ctx.chunk_intervals)
                if intervals:
                    mean_seconds = (ctx.last_byte - began) / intervals
                    self._objective(ctx, wanted, "inter_chunk", met=mean_seconds <= wanted.inter_chunk_seconds)
        if ctx.outcome is Outcome.OK:
            self.duration.observe(labels, ended - ctx.arrived)

    def _objective(self, ctx: RequestContext, wanted: Wanted, objective: str, *, met: bool) -> None:
        of = (ctx.model, ctx.pool, wanted.name, objective)
        self.objective_requests.add((*of, "true"), int(met))
        self.objective_requests.add((*of, "false"), int(not met))

    def charge(self, name: str, dollars: float) -> None:
        """A tenant is charged for an answer."""
        counts = self.tenant(name)
        counts.charged_dollars = (counts.charged_dollars or 0.0) + dollars

    def tenant(self, name: str) -> TenantCounts:
        """The counts of a tenant; those of all others once there are too many to have series of their own."""
        counts = self.tenants.get(name)
        if counts is None:
            if len(self.tenants) >= MOST_TENANTS:
                name = OTHER
            counts = self.tenants.setdefault(name, TenantCounts())
        return counts

    def _tenant_requests(self) -> Iterator[tuple[tuple[str, str], float]]:
        for name, counts in self.tenants.items():
            for outcome, count in counts.outcomes.items():
                yield (name, outcome), count

    def _tenant_tokens(self) -> Iterator[tuple[tuple[str, str], float]]:
        for name, counts in self.tenants.items():
            for kind, count in zip(KINDS, counts.tokens, strict=True):
                yield (name, kind), count

    def _tenant_dollars(self) -> Iterator[tuple[tuple[str, str], float]]:
        for name, counts in self.tenants.items():
            for kind, dollars in zip(KINDS, counts.dollars or (), strict=False):
                yield (name, kind), dollars

    def _tenant_charged(self) -> Iterator[tuple[tuple[str], float]]:
        for name, counts in self.tenants.items():
            if counts.charged_dollars is not None:
                yield (name,), counts.charged_dollars

    def on_scrape(self, gauge: Gauge, read: Callable[[], float]) -> None:
        """Read a gauge's value at each scrape instead of keeping it in step."""
        gauge.set_function(read)

    def watch_loads(self, read: Callable[[str], Iterable[tuple[Sequence[str], float]]]) -> None:
        """Export what engines say of themselves; `read` takes the name of a figure. What is unknown has no series."""
        for series, figure in ENGINE_LOADS:
            self.watch(series, partial(read, figure))

    def watch_limit_store(self, is_up: Callable[[], bool]) -> None:
        """Export whether the store that gateways share answers."""
        for reason in ("timeout", "error"):
            self.limit_store_failures.add((reason,), 0)
        self.watch(tenants.LIMIT_STORE_UP, lambda: [((), float(is_up()))])

    def watch_routing(self, decisions: Callable[[], Iterable[tuple[str, int]]], index_bytes: Callable[[], float]) -> None:
        """Export by what endpoints were chosen, and how large the index of prefixes is."""
        self.watch(routing.DECISIONS, lambda: (((reason,), float(count)) for reason, count in decisions()))
        self.on_scrape(self.prefix_index_bytes, index_bytes)

    def watch_peers(
        self,
        heard: Callable[[], float],
        news_bytes: Callable[[], Iterable[tuple[str, int]]],
        refused_bytes: Callable[[], Iterable[tuple[str, int]]],
        prefixes: Callable[[], Iterable[tuple[str, int]]],
    ) -> None:
        """Export what this gateway hears from others, and says to them."""
        self.watch(peers.PEERS, lambda: [((), float(heard()))])
        for series, read in (
            (peers.NEWS_BYTES, news_bytes),
            (peers.NEWS_REFUSED_BYTES, refused_bytes),
            (peers.PREFIXES, prefixes),
        ):
            self.watch(series, partial(_by_word, read))

    def routed(self, ctx: RequestContext, ticket: Routed) -> None:
        """What was predicted for a request, beside what came of it."""
        predicted = ticket.ttft_seconds
        if predicted is None or not ctx.first_byte:
            return
        labels = (ctx.model, ctx.pool)
        if ctx.stream:
            self.predicted_ttft.observe(labels, predicted)
            self.ttft_error.observe(labels, abs((ctx.first_token or ctx.first_byte) - ticket.began - predicted))
        if ctx.usage.cached_tokens is not None:
            self.cached_predicted.add(labels, ticket.cached_tokens)
            self.cached_observed.add(labels, ctx.usage.cached_tokens)

    def exposition(self) -> tuple[bytes, str]:
        """The text for a scraper and its content type.

        The oldest format, whatever is asked for: all servers read the same names from it.
        """
        self.before_scrape()
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4


def _by_word(read: Callable[[], Iterable[tuple[str, int]]]) -> Iterator[tuple[tuple[str], float]]:
    """The rows of a series with one label."""
    for word, count in read():
        yield (word,), float(count)

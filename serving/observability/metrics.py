"""Every Prometheus series of the gateway is defined here.

Labels come from closed sets: models and pools of the fleet, routes, outcomes, reasons. Histograms carry model and pool only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from serving.core.context import RequestContext
from serving.core.outcomes import AttemptResult, Outcome, RetryDenied

TTFT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
INTER_CHUNK_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)
REQUEST_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


ENGINE_LOADS = (
    ("serving_engine_running_requests", "Requests that an engine says it runs, over all of its ranks.", "running"),
    ("serving_engine_waiting_requests", "Requests that an engine says wait in it, over all of its ranks.", "waiting"),
    ("serving_engine_kv_cache_usage_ratio", "Used share of an engine's KV cache, the mean of its ranks.", "kv_cache_usage"),
)
"""Name and documentation of each series, and the figure of `EngineLoad` that it shows."""


class BucketHistogram(Collector):
    """A histogram that takes whole rows of bucket counts, so that a stream's intervals cost one addition at its end."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], bounds_seconds: Sequence[float]) -> None:
        self.bounds_seconds = tuple(bounds_seconds)
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._rows: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def new_row(self) -> list[int]:
        """An empty row: one count for each bound and one beyond the last."""
        return [0] * (len(self.bounds_seconds) + 1)

    def observe(self, labels: tuple[str, ...], seconds: float) -> None:
        row = self._row(labels)
        row[bisect_left(self.bounds_seconds, seconds)] += 1
        self._sums[labels] += seconds

    def add(self, labels: tuple[str, ...], row: Sequence[int], sum_seconds: float) -> None:
        """Add a row made by `new_row`."""
        mine = self._row(labels)
        for index, count in enumerate(row):
            mine[index] += count
        self._sums[labels] += sum_seconds

    def _row(self, labels: tuple[str, ...]) -> list[int]:
        row = self._rows.get(labels)
        if row is None:
            row = self._rows[labels] = self.new_row()
            self._sums[labels] = 0.0
        return row

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, row in self._rows.items():
            total = 0
            buckets = []
            for bound, count in zip((*map(str, self.bounds_seconds), "+Inf"), row, strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric(labels, buckets, self._sums[labels])
        yield family


ReadRows = Callable[[], Iterable[tuple[Sequence[str], float]]]
"""Yields label values and the value of each series."""


class GaugeOnScrape(Collector):
    """A gauge whose series are read anew at each scrape, so that none outlives what it describes."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], read: ReadRows) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, value in self._read():
            family.add_metric(labels, value)
        yield family


class BulkCounter(Collector):
    """A counter by label values that costs one addition in a dictionary; the library's takes a lock and checks for each."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._values: dict[tuple[str, ...], float] = {}

    def add(self, labels: tuple[str, ...], amount: float = 1) -> None:
        self._values[labels] = self._values.get(labels, 0) + amount

    def retain(self, keep: Callable[[tuple[str, ...]], bool]) -> None:
        """Drop the series whose label values are not to be kept."""
        for labels in [labels for labels in self._values if not keep(labels)]:
            del self._values[labels]

    def describe(self) -> Iterable[Metric]:
        return [CounterMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, value in list(self._values.items()):
            family.add_metric(labels, value)
        yield family


class AccountMetrics:
    """The series of keys and the ledger; there only where a database or a key file is."""

    def __init__(self, gateway: CollectorRegistry, *, has_database: bool = True) -> None:
        registry = gateway if has_database else None
        self.database_up = Gauge(
            "serving_database_up", "1 while the database of keys and ledger answers, 0 while it is away.", registry=registry
        )
        self.keys_age = Gauge(
            "serving_keys_age_seconds",
            "How long ago the keys were last known to be those of the database; the age of the last known ones while it is away.",
            registry=registry,
        )
        self.keys_ignored = Gauge(
            "serving_keys_ignored",
            "Keys that open nothing: of a tenant that the settings do not list, or hashed with another secret.",
            ("reason",),
            registry=gateway,
        )
        self.records_waiting = Gauge(
            "serving_ledger_waiting_records", "Records of ended requests that are only in memory.", registry=registry
        )
        self.records = BulkCounter(
            "serving_ledger_records",
            "Records of ended requests: written to the database, or spilled to a file until it takes them; and never written: "
            "dropped since too many waited, refused by the database, lost_at_stop.",
            ("result",),
        )
        for result in ("written", "spilled", "dropped", "refused", "lost_at_stop"):
            self.records.add((result,), 0)
        if registry is not None:
            registry.register(self.records)


class _CounterOnScrape(Collector):
    """A counter with one label that is kept elsewhere."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], read: Callable[[], Iterable[tuple[str, int]]]
    ) -> None:
        self._name, self._documentation, self._labels, self._read = name, documentation, tuple(labels), read

    def describe(self) -> Iterable[Metric]:
        return [CounterMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for label, value in self._read():
            family.add_metric((label,), value)
        yield family


class Routed(Protocol):
    """What routing predicted for an attempt; None where it had nothing to predict."""

    @property
    def ttft_seconds(self) -> float | None: ...

    @property
    def cached_tokens(self) -> float: ...


class Metrics:
    """The series of one gateway process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.before_scrape: Callable[[], None] = lambda: None
        """Brings in what is not counted yet."""
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self.requests = BulkCounter("serving_requests", "Requests that have ended, by outcome.", ("model", "route", "outcome"))
        self.rejections = BulkCounter(
            "serving_rejections", "Requests refused before any engine saw them, by the error's code.", ("reason",)
        )
        self.attempts = BulkCounter(
            "serving_engine_attempts",
            "Attempts at engines, by result; `unreachable` ones never became a request.",
            ("pool", "endpoint", "result"),
        )
        self.ejections = BulkCounter(
            "serving_endpoint_ejections",
            "Times that an endpoint was left out for what requests or a trial said about it, by what happened last.",
            ("pool", "endpoint", "reason"),
        )
        self.other_models = BulkCounter(
            "serving_other_model_answers",
            "Answers of another model than the one that was named: by an alias, or as a fallback.",
            ("asked", "served", "reason"),
        )
        self.retries = BulkCounter("serving_retries", "Attempts that followed a failed one of the same request.", ())
        self.retries_denied = BulkCounter(
            "serving_retries_denied", "Failed attempts that another engine might have mended and that were final.", ("reason",)
        )
        self.retries.add((), 0)
        for reason in RetryDenied:
            self.retries_denied.add((reason,), 0)
        self.traces = BulkCounter(
            "serving_traces",
            "Traced requests: `sent`, `dropped` since too many waited, or `refused` by the receiver.",
            ("result",),
        )
        self.tokens = BulkCounter(
            "serving_tokens", "Tokens as the engines counted them; `prompt` includes `cached`.", ("model", "pool", "kind")
        )
        self.tokens_estimated = BulkCounter(
            "serving_tokens_estimated",
            "The part of serving_tokens that is an estimate, since the answer ended before the engine said its usage.",
            ("model", "pool", "kind"),
        )
        self.usage_unknown = BulkCounter(
            "serving_usage_unknown", "Answers whose token counts the engine did not say.", ("model", "pool")
        )
        self.discovery_failures = BulkCounter(
            "serving_discovery_failures", "Look-ups of a pool's addresses that failed; the last known ones are kept.", ("pool",)
        )
        self.load_failures = BulkCounter(
            "serving_engine_load_failures",
            "Reads of an engine's own metrics that failed; what it said last grows stale and is then unknown.",
            ("pool",),
        )
        self.audio_seconds = BulkCounter(
            "serving_audio_seconds", "Seconds of sound in transcriptions whose engines tell no tokens.", ("model", "pool")
        )
        self.in_flight = Gauge("serving_in_flight_requests", "Requests between arrival and their last byte.", registry=registry)
        self.open_leases = Gauge("serving_open_leases", "Leases taken and not yet given back.", registry=registry)
        self.engine_connections = Gauge(
            "serving_engine_connections", "Open connections to engines, idle ones included.", registry=registry
        )
        self.draining = Gauge("serving_draining", "1 from SIGTERM on.", registry=registry)
        self.log_lines_dropped = Counter(
            "serving_log_lines_dropped", "Log lines given up because their reader was too slow.", registry=registry
        )
        self.ttft = BucketHistogram(
            "serving_time_to_first_token_seconds",
            "Arrival to the first chunk of a stream.",
            ("model", "pool"),
            TTFT_SECONDS,
        )
        self.inter_chunk = BucketHistogram(
            "serving_inter_chunk_seconds",
            "Time between chunks of a stream as the gateway sees them.",
            ("model", "pool"),
            INTER_CHUNK_SECONDS,
        )
        self.tpot = BucketHistogram(
            "serving_time_per_output_token_seconds",
            "(last chunk - first chunk) / (output tokens - 1) of a stream.",
            ("model", "pool"),
            INTER_CHUNK_SECONDS,
        )
        self.duration = BucketHistogram(
            "serving_request_duration_seconds",
            "Arrival to the last byte of whole answers.",
            ("model", "pool"),
            REQUEST_SECONDS,
        )
        self.limit_refusals = BulkCounter(
            "serving_limit_refusals",
            "Requests refused since their tenant had used up a limit: `requests`, `tokens`, `concurrency` or `dollars`.",
            ("tenant", "limit"),
        )
        self.limit_store_failures = BulkCounter(
            "serving_limit_store_failures",
            "How often the store of the limits was lost: by a `timeout` or an `error`.",
            ("reason",),
        )
        self.queue_seconds = BucketHistogram(
            "serving_queue_seconds",
            "How long requests that had to wait for a slot waited until they had one.",
            ("model",),
            TTFT_SECONDS,
        )
        self.predicted_ttft = BucketHistogram(
            "serving_predicted_time_to_first_token_seconds",
            "What routing expected of streams that it had a choice for.",
            ("model", "pool"),
            TTFT_SECONDS,
        )
        self.ttft_error = BucketHistogram(
            "serving_time_to_first_token_error_seconds",
            "By how much that was wrong, up or down.",
            ("model", "pool"),
            TTFT_SECONDS,
        )
        self.cached_predicted = BulkCounter(
            "serving_predicted_cached_tokens", "Prompt tokens that routing expected to be cached.", ("model", "pool")
        )
        self.cached_observed = BulkCounter(
            "serving_predicted_cached_tokens_observed", "Those that were, of the same requests.", ("model", "pool")
        )
        self.prefix_index_bytes = Gauge(
            "serving_prefix_index_bytes", "Memory of what is known about cached prompts.", registry=registry
        )
        for collector in (self.predicted_ttft, self.ttft_error, self.cached_predicted, self.cached_observed):
            registry.register(collector)
        registry.register(self.discovery_failures)
        registry.register(self.load_failures)
        registry.register(self.ejections)
        counters = (self.requests, self.rejections, self.attempts, self.retries, self.retries_denied, self.traces)
        tokens = (self.other_models, self.tokens, self.tokens_estimated, self.usage_unknown, self.audio_seconds)
        limits = (self.limit_refusals, self.limit_store_failures, self.queue_seconds)
        for collector in (*counters, *tokens, *limits, self.ttft, self.inter_chunk, self.tpot, self.duration):
            registry.register(collector)

    def attempt(self, pool: str, endpoint: str, result: AttemptResult) -> None:
        self.attempts.add((pool, endpoint, result))

    def settle(self, ctx: RequestContext, ended: float) -> None:
        """Publish what is known about a request that has ended at `ended` monotonic seconds."""
        assert ctx.outcome is not None
        self.requests.add((ctx.model, ctx.route.name, ctx.outcome))
        if ctx.model != ctx.asked_model and ctx.first_byte:
            self.other_models.add((ctx.asked_model, ctx.model, "fallback" if ctx.fell_back else "alias"))
        if not ctx.first_byte or not ctx.route.runs_model:
            return
        model, pool = labels = (ctx.model, ctx.pool)
        usage = ctx.usage
        if usage.audio_seconds is not None:
            self.audio_seconds.add(labels, usage.audio_seconds)
        elif usage.prompt_tokens is None or usage.output_tokens is None:
            self.usage_unknown.add(labels)
        for kind, tokens in (("prompt", usage.prompt_tokens), ("cached", usage.cached_tokens), ("output", usage.output_tokens)):
            if tokens is not None:
                self.tokens.add((model, pool, kind), tokens)
                if ctx.usage_estimated:
                    self.tokens_estimated.add((model, pool, kind), tokens)
        if ctx.chunk_intervals is not None:
            began = ctx.first_token or ctx.first_byte
            self.ttft.observe(labels, began - ctx.arrived)
            self.inter_chunk.add(labels, ctx.chunk_intervals, ctx.last_byte - began)
            if usage.output_tokens is not None and usage.output_tokens > 1:
                self.tpot.observe(labels, (ctx.last_byte - began) / (usage.output_tokens - 1))
        if ctx.outcome is Outcome.OK:
            self.duration.observe(labels, ended - ctx.arrived)

    def on_scrape(self, gauge: Gauge, read: Callable[[], float]) -> None:
        """Read a gauge's value at each scrape instead of keeping it in step."""
        gauge.set_function(read)

    def watch_endpoints(self, read: ReadRows) -> None:
        """Export how endpoints are; what `read` no longer names is gone from the next scrape on."""
        self.registry.register(
            GaugeOnScrape(
                "serving_endpoint_ready",
                "1 ready, 0 not ready; absent while nothing is known.",
                ("model", "pool", "target", "endpoint"),
                read,
            )
        )

    def watch_loads(self, read: Callable[[str], Iterable[tuple[Sequence[str], float]]]) -> None:
        """Export what engines say of themselves; `read` takes the name of a figure. What is unknown has no series."""
        for name, documentation, figure in ENGINE_LOADS:
            labels = ("model", "pool", "target", "endpoint")
            self.registry.register(GaugeOnScrape(name, documentation, labels, partial(read, figure)))

    def watch_breakers(self, read: ReadRows) -> None:
        """Export what requests say about endpoints: a series for each state, 1 for the one that holds."""
        self.registry.register(
            GaugeOnScrape(
                "serving_endpoint_breaker",
                "1 for the state of the endpoint's breaker: closed, open (left out for failing), half_open (on trial).",
                ("model", "pool", "target", "endpoint", "state"),
                read,
            )
        )

    def watch_pools(self, read: ReadRows) -> None:
        """Export how many endpoints of each model and pool are ready."""
        self.registry.register(
            GaugeOnScrape(
                "serving_ready_endpoints", "Endpoints of a pool that are ready; 0 when it has none.", ("model", "pool"), read
            )
        )

    def watch_running(self, read: ReadRows) -> None:
        """Export how many requests this gateway has under way at the engines of each model and pool."""
        self.registry.register(
            GaugeOnScrape(
                "serving_running_requests", "Requests under way at a pool's engines; 0 when it has none.", ("model", "pool"), read
            )
        )

    def watch_queues(self, waiting: ReadRows, slots: ReadRows, in_use: ReadRows) -> None:
        """Export what waits for slots, and the slots."""
        rows = (
            (
                "serving_queued_requests",
                "Requests that wait in this gateway for a slot; a model's are divided among its pools by their slots.",
                ("model", "pool"),
                waiting,
            ),
            ("serving_slots", "Slots of a model's endpoints, for this gateway.", ("model",), slots),
            ("serving_slots_in_use", "Slots that have a request.", ("model",), in_use),
        )
        for name, documentation, labels, read in rows:
            self.registry.register(GaugeOnScrape(name, documentation, labels, read))

    def watch_limits(self, left: ReadRows) -> None:
        """Export what tenants have left of their limits."""
        self.registry.register(
            GaugeOnScrape(
                "serving_limit_left",
                "What a tenant has left of a limit, as far as this gateway knows: it counts what itself let through.",
                ("tenant", "limit"),
                left,
            )
        )

    def watch_limit_store(self, is_up: Callable[[], bool]) -> None:
        """Export whether the store that gateways share answers."""
        for reason in ("timeout", "error"):
            self.limit_store_failures.add((reason,), 0)
        self.registry.register(
            GaugeOnScrape(
                "serving_limit_store_up", "1 while the store of the limits answers.", (), lambda: [((), float(is_up()))]
            )
        )

    def watch_routing(self, decisions: Callable[[], Iterable[tuple[str, int]]], index_bytes: Callable[[], float]) -> None:
        """Export by what endpoints were chosen, and how large the index of prefixes is."""
        self.registry.register(_CounterOnScrape("serving_routing_decisions", "Endpoints chosen by cost.", ("reason",), decisions))
        self.on_scrape(self.prefix_index_bytes, index_bytes)

    def watch_peers(
        self,
        heard: Callable[[], float],
        news_bytes: Callable[[], Iterable[tuple[str, int]]],
        refused_bytes: Callable[[], Iterable[tuple[str, int]]],
        prefixes: Callable[[], Iterable[tuple[str, int]]],
    ) -> None:
        """Export what this gateway hears from others, and says to them."""
        rows = (
            (
                "serving_peer_news_bytes",
                "Of news between gateways: `sent`, `received`, `dropped` for want of room in their period, or `refused`.",
                "result",
                news_bytes,
            ),
            (
                "serving_peer_news_refused_bytes",
                "News that were not believed, by what was wrong with them.",
                "reason",
                refused_bytes,
            ),
            (
                "serving_peer_prefixes",
                "News of cached prompts: `told`, `dropped`, `taken`, or of an `unknown_beginning` and so of no use.",
                "result",
                prefixes,
            ),
        )
        for name, documentation, label, read in rows:
            self.registry.register(_CounterOnScrape(name, documentation, (label,), read))
        self.registry.register(
            GaugeOnScrape("serving_peers", "Other gateways that were heard lately.", (), lambda: [((), float(heard()))])
        )

    def routed(self, ctx: RequestContext, ticket: Routed) -> None:
        """What was predicted for a request, beside what came of it."""
        predicted = ticket.ttft_seconds
        if predicted is None or not ctx.first_byte:
            return
        labels = (ctx.model, ctx.pool)
        if ctx.stream:
            self.predicted_ttft.observe(labels, predicted)
            self.ttft_error.observe(labels, abs((ctx.first_token or ctx.first_byte) - ctx.arrived - predicted))
        if ctx.usage.cached_tokens is not None:
            self.cached_predicted.add(labels, ticket.cached_tokens)
            self.cached_observed.add(labels, ctx.usage.cached_tokens)

    def exposition(self) -> tuple[bytes, str]:
        """The text for a scraper and its content type."""
        self.before_scrape()
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

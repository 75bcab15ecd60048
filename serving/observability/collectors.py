"""How series are kept and shown to a scraper: the cheap ones for the way of requests, and those that are read at a scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from serving.observability.series.definition import Series


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

    def rows(self) -> Mapping[tuple[str, ...], Sequence[int]]:
        """The counts of each series by bucket; not to be changed, or kept."""
        return self._rows

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

    def values(self) -> Mapping[tuple[str, ...], float]:
        """The value of each series; not to be changed, or kept."""
        return self._values

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


class CounterOnScrape(Collector):
    """A counter that is kept elsewhere and read at each scrape."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], read: ReadRows) -> None:
        self._name, self._documentation, self._labels, self._read = name, documentation, tuple(labels), read

    def describe(self) -> Iterable[Metric]:
        return [CounterMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, value in self._read():
            family.add_metric(labels, value)
        yield family


class KindCounter(Collector):
    """A counter whose last label has few values that are known: whoever counts adds to a row of numbers, one for each of them."""

    def __init__(self, series: Series, kinds: Sequence[str]) -> None:
        self._series = series
        self._kinds = tuple(kinds)
        self.rows: dict[tuple[str, ...], list[float]] = {}
        """By the values of all labels but the last."""

    def row(self, labels: tuple[str, ...]) -> list[float]:
        """The row to add to, in the order of the kinds."""
        row = self.rows.get(labels)
        if row is None:
            row = self.rows[labels] = [0.0] * len(self._kinds)
        return row

    def describe(self) -> Iterable[Metric]:
        return [CounterMetricFamily(self._series.name, self._series.documentation, labels=self._series.labels)]

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._series.name, self._series.documentation, labels=self._series.labels)
        for labels, row in list(self.rows.items()):
            for kind, value in zip(self._kinds, row, strict=True):
                family.add_metric((*labels, kind), value)
        yield family


def counter_of(series: Series) -> BulkCounter:
    return BulkCounter(series.name, series.documentation, series.labels)


def histogram_of(series: Series) -> BucketHistogram:
    return BucketHistogram(series.name, series.documentation, series.labels, series.bounds_seconds)


def gauge_of(series: Series, registry: CollectorRegistry | None) -> Gauge:
    return Gauge(series.name, series.documentation, series.labels, registry=registry)


def read_at_scrape(series: Series, read: ReadRows) -> Collector:
    """A counter or a gauge that is kept elsewhere."""
    kept = CounterOnScrape if series.kind == "counter" else GaugeOnScrape
    return kept(series.name, series.documentation, series.labels, read)


class SeriesRegistry:
    """The series of a process that is no gateway."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

    def counter(self, series: Series) -> BulkCounter:
        made = counter_of(series)
        self._registry.register(made)
        return made

    def watch(self, series: Series, read: ReadRows) -> None:
        """Export what is kept elsewhere."""
        self._registry.register(read_at_scrape(series, read))

    def exposition(self) -> bytes:
        """In the text format 0.0.4."""
        return generate_latest(self._registry)

"""What the counters did lately: rates, percentiles and shares over the last minute, and how they went over the last five.

Read off the series that are there anyway, every two seconds and whenever somebody looks; requests pay nothing for it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from serving.core.clock import Clock, monotonic
from serving.core.outcomes import OURS
from serving.observability.busiest import Seen, TenantUse, busiest, seen_of
from serving.observability.metrics import KINDS, Metrics

PERIOD_SECONDS = 2.0
WINDOW_SECONDS = 60.0
HISTORY_SECONDS = 300.0

PoolKey = tuple[str, str, str]
"""Model, pool and target."""
Said = tuple[float, float]
"""Tokens of prompts and of output per second, as the engines themselves say."""
PoolDollars = Callable[[], Iterable[tuple[PoolKey, float]]]
KindDollars = Callable[[], Iterable[tuple[tuple[str, ...], float]]]
"""By model, pool, target and kind of token."""
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Ledgers:
    """Where dollars are added up since the process began; a pool whose machines have no price is in none of them."""

    bill: PoolDollars = tuple
    """What the machines cost, used or not."""
    used: KindDollars = tuple
    """What answers took of that."""
    failed: PoolDollars = tuple
    """What attempts took that gave no answer."""


@dataclass(slots=True)
class Counts:
    """What was counted of one pool, or of several, since the process began."""

    tokens: list[float] = field(default_factory=lambda: [0.0] * len(KINDS))
    used: list[float] = field(default_factory=lambda: [0.0] * len(KINDS))
    failed: float = 0.0
    bill: float | None = None
    """None where no machine has a price."""

    def add(self, other: Counts) -> None:
        self.tokens = [a + b for a, b in zip(self.tokens, other.tokens, strict=True)]
        self.used = [a + b for a, b in zip(self.used, other.used, strict=True)]
        self.failed += other.failed
        if other.bill is not None:
            self.bill = (self.bill or 0.0) + other.bill


@dataclass(frozen=True, slots=True)
class Sample:
    """All counts at one moment, in monotonic seconds."""

    at: float
    pools: Mapping[PoolKey, Counts]
    tenants: Mapping[str, Seen]
    first_tokens: Mapping[tuple[str, ...], Sequence[int]]
    """Streams by their time to first token in the buckets of the histogram, by model and pool."""
    requests: float
    failed: float
    """Requests that failed by this side's fault; what callers did wrong and clients that left are not among them."""
    said: Said | None


@dataclass(frozen=True, slots=True)
class Figures:
    """One pool's last minute, or that of several. None is unknown, which is not 0."""

    prompt_tokens_per_second: float | None = None
    output_tokens_per_second: float | None = None
    cache_hit_rate: float | None = None
    """Of the prompt tokens; None where there were none, and until an engine has told of any cached ones."""
    ttft_p50_seconds: float | None = None
    ttft_p95_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Money:
    """Machine dollars of the last minute. None is unknown, which is not 0."""

    per_hour: float | None = None
    """What the machines cost, used or not."""
    used_per_hour: float | None = None
    """What answers of this gateway took of that."""
    idle_per_hour: float | None = None
    """What neither those took nor attempts that gave no answer; with several gateways, others may have."""
    per_million_prompt_tokens: float | None = None
    """Of those that had to be computed: what they took, by their number. So with the others."""
    per_million_cached_tokens: float | None = None
    per_million_output_tokens: float | None = None


UNKNOWN_MONEY = Money()


class Window:
    """Takes samples while it is entered.

    `said`: what all engines together say of the moment; None where one of them does not. Tokens are counted when a request ends,
    so that this is the better history of long answers.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        ledgers: Ledgers = Ledgers(),
        said: Callable[[], Said | None] = lambda: None,
        clock: Clock = monotonic,
    ) -> None:
        self._metrics = metrics
        self._ledgers = ledgers
        self._said = said
        self._clock = clock
        self._samples: deque[Sample] = deque([self._read()])
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Window:
        # What was noted when this was made is from before anybody could bring the sums up to then.
        self._samples.clear()
        self._samples.append(self._read())
        self._task = asyncio.create_task(self._run(), name="window")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            self.sample()

    def sample(self) -> None:
        """Note the counts of now; what is older than anybody looks at goes."""
        now = self._read()
        self._samples.append(now)
        while self._samples[0].at < now.at - HISTORY_SECONDS - PERIOD_SECONDS:
            self._samples.popleft()

    def look(self) -> View:
        """The last minute, up to this moment."""
        now = self._read()
        begin = next((sample for sample in self._samples if sample.at >= now.at - WINDOW_SECONDS), self._samples[-1])
        return View(begin, now, self._metrics.ttft.bounds_seconds, _history(self._samples))

    def _read(self) -> Sample:
        metrics, ledgers = self._metrics, self._ledgers
        metrics.before_scrape()
        at = self._clock()  # as the bill: what is read meanwhile would be missing in its time
        pools: dict[PoolKey, Counts] = {}
        for (model, pool, target), row in metrics.tokens.rows.items():
            pools.setdefault((model, pool, target), Counts()).tokens = list(row)
        for key, dollars in ledgers.bill():
            pools.setdefault(key, Counts()).bill = dollars
        for key, dollars in ledgers.failed():
            pools.setdefault(key, Counts()).failed = dollars
        for (model, pool, target, kind), dollars in ledgers.used():
            pools.setdefault((model, pool, target), Counts()).used[KINDS.index(kind)] = dollars
        outcomes = metrics.requests.values()
        return Sample(
            at,
            pools,
            seen_of(metrics),
            {labels: tuple(row) for labels, row in metrics.ttft.rows().items()},
            sum(outcomes.values()),
            sum(value for labels, value in outcomes.items() if labels[-1] in OURS),
            self._said(),
        )


class View:
    """The last minute as it was at one moment."""

    def __init__(self, begin: Sample, end: Sample, bounds_seconds: Sequence[float], history: Sequence[History]) -> None:
        self._begin = begin
        self._end = end
        self._bounds_seconds = bounds_seconds
        self.history = history
        self.seconds = end.at - begin.at

    @property
    def requests_per_second(self) -> float | None:
        return self._rate(self._end.requests - self._begin.requests)

    @property
    def failed(self) -> float:
        """Requests of the window that failed by this side's fault."""
        return self._end.failed - self._begin.failed

    @property
    def tenants(self) -> list[TenantUse]:
        """Those with requests that ended in the window, the one with the most tokens first."""
        return busiest(self._begin.tenants, self._end.tenants)

    def figures(self, pools: Iterable[PoolKey]) -> Figures:
        """Those of some pools together."""
        keys = list(pools)
        before, now = self._counts(keys)
        prompt, cached, output = (b - a for a, b in zip(before.tokens, now.tokens, strict=True))
        row = self._first_tokens({key[:2] for key in keys})
        return Figures(
            prompt_tokens_per_second=self._rate(prompt),
            output_tokens_per_second=self._rate(output),
            cache_hit_rate=cached / prompt if prompt and now.tokens[_CACHED] else None,
            ttft_p50_seconds=percentile(self._bounds_seconds, row, 0.5),
            ttft_p95_seconds=percentile(self._bounds_seconds, row, 0.95),
        )

    def money(self, pools: Iterable[PoolKey]) -> Money:
        """That of some pools together; those without a price are left out of it."""
        priced = [key for key in pools if (counts := self._end.pools.get(key)) is not None and counts.bill is not None]
        before, now = self._counts(priced)
        if now.bill is None or not self.seconds:
            return UNKNOWN_MONEY
        bill = now.bill - (before.bill or 0.0)
        prompt, cached, output = (b - a for a, b in zip(before.tokens, now.tokens, strict=True))
        used = [b - a for a, b in zip(before.used, now.used, strict=True)]
        hourly = SECONDS_PER_HOUR / self.seconds
        return Money(
            per_hour=bill * hourly,
            used_per_hour=sum(used) * hourly,
            idle_per_hour=max(bill - sum(used) - (now.failed - before.failed), 0.0) * hourly,
            per_million_prompt_tokens=_per_million(used[0], prompt - cached),
            per_million_cached_tokens=_per_million(used[1], cached),
            per_million_output_tokens=_per_million(used[2], output),
        )

    def _counts(self, pools: Iterable[PoolKey]) -> tuple[Counts, Counts]:
        """All of some pools together, at the window's begin and at its end."""
        before, now = Counts(), Counts()
        for pool in pools:
            before.add(self._begin.pools.get(pool, _NOTHING))
            now.add(self._end.pools.get(pool, _NOTHING))
        return before, now

    def _first_tokens(self, pools: Collection[tuple[str, ...]]) -> list[int]:
        """The streams of the window by bucket."""
        total = [0] * (len(self._bounds_seconds) + 1)
        for sign, sample in ((1, self._end), (-1, self._begin)):
            for labels, row in sample.first_tokens.items():
                if labels in pools:
                    total = [sum_ + sign * count for sum_, count in zip(total, row, strict=True)]
        return total

    def _rate(self, amount: float) -> float | None:
        return amount / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class History:
    """One step of the last five minutes."""

    ago_seconds: float
    prompt_tokens_per_second: float
    output_tokens_per_second: float


def percentile(bounds_seconds: Sequence[float], row: Sequence[int], share: float) -> float | None:
    """The value below which that share of a row's observations lies, on a line within its bucket as Prometheus draws it.

    None where there are none. Beyond the last bound it is the last bound.
    """
    rank = share * sum(row)
    if not rank:
        return None
    below = 0
    lower = 0.0
    for bound, count in zip(bounds_seconds, row, strict=False):
        if count and below + count >= rank:
            return lower + (bound - lower) * (rank - below) / count
        below += count
        lower = bound
    return lower


def _history(samples: Sequence[Sample]) -> list[History]:
    steps = []
    for before, after in itertools.pairwise(samples):
        seconds = after.at - before.at
        if seconds > 0:
            counted = [(_total(after, kind) - _total(before, kind)) / seconds for kind in (_PROMPT, _OUTPUT)]
            prompt, output = after.said or counted
            steps.append(History(samples[-1].at - after.at, prompt, output))
    return steps


def _total(sample: Sample, kind: int) -> float:
    return sum(counts.tokens[kind] for counts in sample.pools.values())


def _per_million(dollars: float, tokens: float) -> float | None:
    return dollars / tokens * 1e6 if tokens > 0 else None


_NOTHING = Counts()
_PROMPT, _CACHED, _OUTPUT = range(len(KINDS))

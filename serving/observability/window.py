"""What the counters did lately: rates, percentiles and shares over the last minute, and how they went over the last five.

Read off the series that are there anyway, every two seconds and whenever somebody looks; requests pay nothing for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from serving.core.clock import Clock, monotonic
from serving.observability.metrics import Metrics

PERIOD_SECONDS = 2.0
WINDOW_SECONDS = 60.0
HISTORY_SECONDS = 300.0

PoolKey = tuple[str, str]
"""Model and pool."""
Said = tuple[float, float]
"""Tokens of prompts and of output per second, as the engines themselves say."""


@dataclass(slots=True)
class Counts:
    """What was counted of one pool, or of all, since the process began."""

    tokens: dict[str, float] = field(default_factory=dict)
    """By kind; one that no engine has ever told is not there."""
    first_tokens: list[int] = field(default_factory=list)
    """Streams by their time to first token, in the buckets of the histogram."""

    def add(self, other: Counts) -> None:
        for kind, tokens in other.tokens.items():
            self.tokens[kind] = self.tokens.get(kind, 0.0) + tokens
        if other.first_tokens:
            mine = self.first_tokens or [0] * len(other.first_tokens)
            self.first_tokens = [a + b for a, b in zip(mine, other.first_tokens, strict=True)]


@dataclass(frozen=True, slots=True)
class Sample:
    """All counts at one moment, in monotonic seconds."""

    at: float
    pools: Mapping[PoolKey, Counts]
    requests: float
    failed: float
    """Requests whose outcome was not `ok`, whoever's fault it was; clients that left are not among them."""
    said: Said | None


@dataclass(frozen=True, slots=True)
class Figures:
    """One pool's last minute, or that of all. None is unknown, which is not 0."""

    prompt_tokens_per_second: float | None = None
    output_tokens_per_second: float | None = None
    cache_hit_rate: float | None = None
    """Of the prompt tokens; None where no engine told how many were cached, and where there were none."""
    ttft_p50_seconds: float | None = None
    ttft_p95_seconds: float | None = None


class Window:
    """Takes samples while it is entered.

    `said`: what all engines together say of the moment; None where one of them does not. Tokens are counted when a request ends,
    so that this is the better history of long answers.
    """

    def __init__(self, metrics: Metrics, *, said: Callable[[], Said | None] = lambda: None, clock: Clock = monotonic) -> None:
        self._metrics = metrics
        self._said = said
        self._clock = clock
        self._samples: deque[Sample] = deque([self._read()])
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Window:
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
        metrics = self._metrics
        metrics.before_scrape()
        pools: dict[PoolKey, Counts] = {}
        for labels, tokens in metrics.tokens.values().items():
            counts = pools.setdefault(labels[:2], Counts())  # type: ignore[arg-type]
            counts.tokens[labels[-1]] = counts.tokens.get(labels[-1], 0.0) + tokens
        for labels, row in metrics.ttft.rows().items():
            pools.setdefault(labels[:2], Counts()).first_tokens = list(row)  # type: ignore[arg-type]
        outcomes = metrics.requests.values()
        failed = sum(value for labels, value in outcomes.items() if labels[-1] not in _NOT_FAILED)
        return Sample(self._clock(), pools, sum(outcomes.values()), failed, self._said())


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
        """Requests of the window that ended in an error."""
        return self._end.failed - self._begin.failed

    def figures(self, pools: Iterable[PoolKey]) -> Figures:
        """Those of some pools together."""
        before, now = Counts(), Counts()
        for pool in pools:
            before.add(self._begin.pools.get(pool, _NOTHING))
            now.add(self._end.pools.get(pool, _NOTHING))
        tokens = {kind: count - before.tokens.get(kind, 0.0) for kind, count in now.tokens.items()}
        prompt, cached = tokens.get("prompt", 0.0), tokens.get("cached")
        row = difference(now.first_tokens, before.first_tokens)
        return Figures(
            prompt_tokens_per_second=self._rate(prompt),
            output_tokens_per_second=self._rate(tokens.get("output", 0.0)),
            cache_hit_rate=cached / prompt if cached is not None and prompt else None,
            ttft_p50_seconds=percentile(self._bounds_seconds, row, 0.5),
            ttft_p95_seconds=percentile(self._bounds_seconds, row, 0.95),
        )

    def _rate(self, amount: float) -> float | None:
        return amount / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class History:
    """One step of the last five minutes."""

    ago_seconds: float
    prompt_tokens_per_second: float
    output_tokens_per_second: float


def difference(now: Sequence[int], before: Sequence[int]) -> list[int]:
    """What a histogram's row gained; a row that was not there before began at nothing."""
    return [a - b for a, b in zip(now, before, strict=True)] if before else list(now)


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
    for before, after in zip(samples, list(samples)[1:], strict=False):
        seconds = after.at - before.at
        if seconds > 0:
            counted = [(_total(after, kind) - _total(before, kind)) / seconds for kind in ("prompt", "output")]
            prompt, output = after.said or counted
            steps.append(History(samples[-1].at - after.at, prompt, output))
    return steps


def _total(sample: Sample, kind: str) -> float:
    return sum(counts.tokens.get(kind, 0.0) for counts in sample.pools.values())


_NOTHING = Counts()
_NOT_FAILED = ("ok", "client_cancelled")

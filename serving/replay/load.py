"""One stage of a replay: the load settles, is measured, and drains while it goes on, so that the last requests fare as the first.

Latencies count from when a request was to be sent. A client that cannot send in time shows up in them, and in `lags`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from serving.core.clock import monotonic
from serving.replay.arrivals import ClosedLoop, OpenLoop, Pattern, Recorded, offsets
from serving.replay.stream import Client, Sample
from serving.replay.traffic import Planned, Source

_TICK_SECONDS = 0.005
_HOPELESS_SECONDS = 1.0
"""So far behind its own plan a client ends the stage."""
_FAILURES_IN_A_ROW = 20
_PAUSE_SECONDS = 0.1
"""What a closed loop waits before it begins anew when so many requests have failed one after another: else it would only fail,
thousands of times a second, against an engine that is gone. A run with so many failures is invalid already."""
_SHORTEST_SLEEP_SECONDS = 0.001
"""The loop's timers count in milliseconds: a shorter sleep would be a busy one."""

Bodies = Callable[[Planned], bytes]
"""The JSON of a request."""


@dataclass(frozen=True)
class Phases:
    """How long each lasts, in seconds; draining ends when all measured requests have ended, at the latest after `drain`."""

    settle_seconds: float
    measure_seconds: float
    drain_seconds: float


@dataclass
class StageData:
    """What was seen. Moments are monotonic seconds; the window is [begin, end)."""

    pattern: Pattern
    samples: list[Sample] = field(default_factory=list)
    """All requests of the stage, in the order of sending, whether measured or not."""
    ended: int = 0
    failed: int = 0
    """Of those that ended."""
    begin: float = 0.0
    end: float = 0.0
    gave_up: bool = False
    """The client could not send in time, by far; the stage ended early."""
    closed: float = 0.0
    """When draining ended."""
    cpu_seconds: float = 0.0
    """Of this process in the window."""
    lags: list[float] = field(default_factory=list)
    """By how much a timer of the loop was late, looked at every few milliseconds of the window."""

    @property
    def measured(self) -> list[Sample]:
        return [sample for sample in self.samples if self.begin <= sample.intended < self.end]

    @property
    def window_seconds(self) -> float:
        return self.end - self.begin


class Load:
    """Runs one stage. `first_number` keeps the requests of several stages apart."""

    def __init__(
        self,
        client: Client,
        source: Source,
        bodies: Bodies,
        pattern: Pattern,
        phases: Phases,
        *,
        seed: int,
        first_number: int = 0,
    ) -> None:
        self._client = client
        self._source = source
        self._bodies = bodies
        self._pattern = pattern
        self._phases = phases
        self._seed = seed
        self._number = first_number
        self._first_number = first_number
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self._over = asyncio.Event()
        """The stage ends before its time."""
        self._calm = asyncio.Event()
        """Nothing has to be waited for any more."""
        self._later: set[asyncio.TimerHandle] = set()
        self._measured_open = 0
        self._failures_in_a_row = 0
        self._ready: tuple[int, list[Planned], bytes] | None = None
        self.data = StageData(pattern)

    async def run(self) -> StageData:
        """Returns when the measured requests have ended or the time to drain is over; nothing runs on then."""
        phases, data = self._phases, self.data
        gc.collect()
        gc.freeze()
        gc.disable()
        began = monotonic()
        data.begin = began + phases.settle_seconds
        data.end = data.begin + phases.measure_seconds
        feeding = self._loop.create_task(self._feed(began))
        feeding.add_done_callback(self._note_failed)
        try:
            await self._wait_until(data.begin)
            cpu = time.process_time()
            ticking = self._loop.create_task(self._tick())
            await self._wait_until(data.end)
            data.cpu_seconds = time.process_time() - cpu
            ticking.cancel()
            if not data.gave_up:
                await self._drained()
        finally:
            self._is_over = True
            gc.enable()
            gc.unfreeze()
            feeding.cancel()
            await asyncio.wait({feeding})
            for timer in self._later:
                timer.cancel()
            self._client.give_up_all("left")
        if not feeding.cancelled() and (error := feeding.exception()) is not None:
            raise error
        data.closed = monotonic()
        return data

    async def _wait_until(self, moment: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, moment - monotonic())):
                await self._over.wait()
        if not self._over.is_set():
            await _until(moment)

    async def _drained(self) -> None:
        """Until all measured requests have ended, the time for it is over, or sending has failed."""
        timer = self._loop.call_at(self._loop.time() + self._phases.drain_seconds, self._calm.set)
        self._note_calm()
        await self._calm.wait()
        timer.cancel()

    def _note_failed(self, feeding: asyncio.Task[None]) -> None:
        if not feeding.cancelled() and feeding.exception() is not None:
            self._over.set()
            self._calm.set()

    def _note_calm(self) -> None:
        if not self._measured_open and monotonic() >= self.data.end:
            self._calm.set()

    # Sending

    async def _feed(self, began: float) -> None:
        pattern = self._pattern
        if isinstance(pattern, ClosedLoop):
            # One after another over half of the settling, so that they are not in step.
            gap = self._phases.settle_seconds / 2 / pattern.concurrency
            for place in range(pattern.concurrency):
                self._prepare(in_the_middle=True)
                await _until(began + place * gap)
                self._begin_conversation(monotonic())
            await asyncio.Event().wait()
            return
        for moment in self._moments(pattern):
            self._prepare(in_the_middle=moment < self._phases.settle_seconds / 2)
            await _until(began + moment)
            if monotonic() - began - moment > _HOPELESS_SECONDS:
                # What follows would only pile up here, and say nothing of the engine.
                self.data.gave_up = True
                self._over.set()
                return
            self._begin_conversation(began + moment)

    def _moments(self, pattern: OpenLoop | Recorded) -> Iterator[float]:
        if isinstance(pattern, Recorded):
            number = self._first_number
            while (moment := self._source.at_seconds(number)) is not None:
                yield moment / pattern.speed
                number += 1
            return
        rate = pattern.requests_per_second / self._source.turns
        yield from offsets(OpenLoop(rate, pattern.pace), self._seed)

    def _prepare(self, *, in_the_middle: bool = False) -> None:
        """Make the next conversation's first request while there is time; a long prompt takes a millisecond or two."""
        if self._ready is None:
            requests = self._source.conversation(self._number, in_the_middle=in_the_middle)
            self._ready = self._number, requests, self._bodies(requests[0])
            self._number += 1

    def _begin_conversation(self, intended: float) -> None:
        self._prepare()
        assert self._ready is not None
        (number, requests, body), self._ready = self._ready, None
        self._send(requests, 0, number, intended, body)

    def _send(self, requests: list[Planned], turn: int, number: int, intended: float, body: bytes) -> None:
        planned = requests[turn]
        sample = Sample(number, intended, planned.prompt_tokens, planned.cached_tokens, planned.output_tokens)
        self.data.samples.append(sample)
        is_measured = self.data.begin <= intended < self.data.end
        self._measured_open += is_measured

        def ended(sample: Sample) -> None:
            self.data.ended += 1
            self.data.failed += sample.error is not None
            self._failures_in_a_row = 0 if sample.error is None else self._failures_in_a_row + 1
            self._measured_open -= is_measured
            self._note_calm()
            if not self._is_over:
                self._go_on(requests, turn, number, sample)

        self._client.send(body, sample, ended)

    def _go_on(self, requests: list[Planned], turn: int, number: int, sample: Sample) -> None:
        """The conversation's next turn, or in a closed loop the next conversation."""
        now = monotonic()
        if turn + 1 < len(requests) and sample.error is None:
            self._at(now + requests[turn + 1].think_seconds, requests, turn + 1, number)
        elif not isinstance(self._pattern, ClosedLoop):
            return
        elif self._failures_in_a_row >= _FAILURES_IN_A_ROW:
            self._call_later(_PAUSE_SECONDS, lambda: self._next_of_closed(monotonic()))
        else:
            # Not at once: an engine that refuses everything would keep this in one endless callback.
            self._loop.call_soon(self._next_of_closed, now)

    def _next_of_closed(self, now: float) -> None:
        if not self._is_over:
            self._begin_conversation(now)
            self._prepare()

    def _at(self, moment: float, requests: list[Planned], turn: int, number: int) -> None:
        """Send a conversation's next turn then; a timer that comes early is set again."""

        def send() -> None:
            if monotonic() < moment:
                self._at(moment, requests, turn, number)
            else:
                self._send(requests, turn, number, moment, self._bodies(requests[turn]))

        self._call_later(max(_SHORTEST_SLEEP_SECONDS, moment - monotonic()), send)

    def _call_later(self, seconds: float, act: Callable[[], None]) -> None:
        """Unless the stage is over by then."""

        def call() -> None:
            self._later.discard(timer)
            if not self._is_over:
                act()

        timer = self._loop.call_later(seconds, call)
        self._later.add(timer)

    # How the client itself does

    async def _tick(self) -> None:
        lags = self.data.lags
        while True:
            due = monotonic() + _TICK_SECONDS
            await asyncio.sleep(_TICK_SECONDS)
            lags.append(max(0.0, monotonic() - due))


async def _until(moment: float) -> None:
    """Timers may come early by the loop's own clock, so it looks again."""
    while (left := moment - monotonic()) > 0:  # noqa: ASYNC110
        await asyncio.sleep(max(left, _SHORTEST_SLEEP_SECONDS))

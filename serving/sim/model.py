"""The engine's model: time is a number that the caller passes in, so that a test or a replay needs no clock.

model = EngineModel(limits, rates, block_tokens=16, capacity_blocks=1000, histograms=...)
model.add(sequence, now)              # its callbacks say what becomes of it
while (then := model.next_seconds) is not None:
    model.advance(then)
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from serving.sim.blocks import BlockPool
from serving.sim.facts import Facts, Histogram
from serving.sim.rates import Batch, Rates
from serving.sim.scheduler import Limits, Scheduler, Share
from serving.sim.sequence import Finish, Sequence


class QueueFull(Exception):
    """Refused as vLLM refuses what its queue has no room for; `reason` is the label of its metric."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EngineModel:
    """Requests in, tokens out, one step after another. Everything happens inside the calls; callbacks may call `abort`."""

    def __init__(
        self,
        limits: Limits,
        rates: Rates,
        *,
        block_tokens: int,
        capacity_blocks: int,
        histograms: dict[str, Histogram],
        keeps_prefixes: bool = True,
        seed: int = 0,
    ) -> None:
        self.limits = limits
        self.rates = rates
        self.facts = Facts(histograms)
        self.slow_factor = 1.0
        self.is_hung = False
        self.pool = BlockPool(capacity_blocks, keeps_prefixes=keeps_prefixes)
        self.scheduler = Scheduler(limits, self.pool, block_tokens)
        self._random = random.Random(seed)
        self._number = 0
        self._arriving: list[tuple[float, int, Sequence]] = []
        self._leaving: list[tuple[float, int, Callable[[], None]]] = []
        self._shares: list[Share] = []
        self._step_ends: float | None = None
        self._step_began = 0.0
        self._free_at = 0.0
        """When the last step ended."""
        self._open: dict[int, Sequence] = {}
        self.prefill_backlog_tokens = 0
        """Prompt tokens of all requests that have no token yet."""

    @property
    def next_seconds(self) -> float | None:
        """When something happens next; None while there is nothing to do."""
        if self.is_hung:
            return None
        then = self._step_ends
        if then is None and self._arriving:
            then = self._arriving[0][0]
        if self._leaving and (then is None or self._leaving[0][0] < then):
            then = self._leaving[0][0]
        return then

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def unfinished(self) -> int:
        """All that were taken and have not ended."""
        return len(self._open)

    @property
    def waiting(self) -> int:
        return len(self.scheduler.waiting)

    def admit(self, sequences: int) -> None:
        """Raises: QueueFull, for a request of so many sequences that the limits of the queue leave no room for."""
        limits = self.limits
        if limits.max_num_queued_reqs is not None and self.unfinished + sequences > limits.max_num_queued_reqs:
            self._reject("max_num_queued_reqs")
        if limits.max_num_queued_tokens is not None and self.prefill_backlog_tokens >= limits.max_num_queued_tokens:
            self._reject("max_num_queued_tokens")

    def _reject(self, reason: str) -> None:
        self.facts.rejections[reason] += 1
        raise QueueFull(reason)

    def add(self, sequence: Sequence, now: float) -> None:
        """Take a sequence; the scheduler sees it half of `request_seconds` later, and each token leaves the other half later."""
        self._number += 1
        sequence.number = self._number
        sequence.arrived_seconds = now
        self._open[sequence.number] = sequence
        self.prefill_backlog_tokens += sequence.prompt_tokens
        heapq.heappush(self._arriving, (now + self.rates.request_seconds / 2, sequence.number, sequence))

    def abort(self, sequence: Sequence, now: float, reason: Finish = "abort") -> None:
        """End a sequence whatever state it is in; one that has ended stays as it is."""
        if not sequence.is_done:
            self._finish(sequence, now, reason)

    def fail(self, now: float) -> None:
        """End everything with an error: the engine is dead."""
        for sequence in list(self._open.values()):
            self._finish(sequence, now, "error")

    def advance(self, now: float) -> None:
        """Let everything happen that is due until `now`, in order."""
        while (then := self.next_seconds) is not None and then <= now:
            if self._leaving and self._leaving[0][0] <= then:
                heapq.heappop(self._leaving)[2]()
                continue
            seen_until = then
            if self._step_ends is not None:
                self._end_step(then)
                if self.limits.schedules_ahead:
                    seen_until = self._step_began
            self._take_arrived(seen_until)
            self._start_step(max(then, self._free_at))

    def resume(self, now: float) -> None:
        """Go on after having hung: what was due meanwhile is due now."""
        self.is_hung = False
        if self._step_ends is not None:
            self._step_ends = max(self._step_ends, now)

    def _take_arrived(self, now: float) -> None:
        while self._arriving and self._arriving[0][0] <= now:
            queued_seconds, _, sequence = heapq.heappop(self._arriving)
            if not sequence.is_done:
                sequence.queued_seconds = queued_seconds
                self.scheduler.add(sequence)

    def _start_step(self, now: float) -> None:
        shares, started, preempted = self.scheduler.schedule(self._yields())
        for sequence in started:
            if sequence.scheduled_seconds is None:
                sequence.scheduled_seconds = now
                self.facts.looked_up(sequence)
        self.facts.preemptions += len(preempted)
        self._shares = shares
        if not shares:
            self._step_ends = None
            return
        adapters = self.scheduler.load_adapters(shares) if self.limits.max_loras else 0
        seconds = self.rates.seconds(_batch(shares, adapters)) * self.slow_factor
        if self.rates.jitter:
            seconds *= max(0.1, self._random.gauss(1.0, self.rates.jitter))
        self._step_began, self._step_ends = now, now + seconds

    def _yields(self) -> int:
        whole, part = divmod(self.rates.tokens_per_step, 1.0)
        return int(whole) + (self._random.random() < part if part else 0)

    def _end_step(self, now: float) -> None:
        shares, self._shares, self._step_ends = self._shares, [], None
        self._free_at = now
        prefilled = generated = 0
        for share in shares:
            sequence = share.sequence
            if sequence.is_done or not sequence.is_running:
                continue  # its client left while the step ran
            if not sequence.is_decoding:
                prefilled += share.tokens
            sequence.computed_tokens += share.tokens
            if share.yields:
                generated += share.yields
                self._yielded(sequence, share.yields, now)
        self.facts.step(prefilled, generated)

    def _yielded(self, sequence: Sequence, count: int, now: float) -> None:
        if self.rates.tokens_per_step > 1 and sequence.generated_tokens:
            self.facts.drafted(count - 1)
        sequence.generated_tokens += count
        sequence.computed_tokens += count - 1
        if sequence.first_token_seconds is None:
            sequence.first_token_seconds = now
            self.prefill_backlog_tokens -= sequence.prompt_tokens
            self.facts.first_token(sequence, now)
        else:
            self.facts.next_tokens(sequence, now)
        sequence.last_token_seconds = now
        self._leave(now, lambda: sequence.on_tokens(count))
        if sequence.generated_tokens >= sequence.answer_tokens:
            self._finish(sequence, now, sequence.finish)

    def _finish(self, sequence: Sequence, now: float, reason: Finish) -> None:
        sequence.is_done = True
        del self._open[sequence.number]
        if sequence.first_token_seconds is None:
            self.prefill_backlog_tokens -= sequence.prompt_tokens
        self.scheduler.remove(sequence)
        self.facts.done(sequence, reason, now)
        if reason in ("abort", "error"):
            sequence.on_finish(reason)  # what ends it is not the model, so that nothing has to come back from there
        else:
            self._leave(now, lambda: sequence.on_finish(reason))

    def _leave(self, now: float, call: Callable[[], None]) -> None:
        """The way back of a token to its client takes half of `request_seconds`."""
        delay = self.rates.request_seconds / 2
        if not delay:
            call()
            return
        self._number += 1
        heapq.heappush(self._leaving, (now + delay, self._number, call))


def _batch(shares: list[Share], adapters: int) -> Batch:
    prefill_tokens = sequences = context_tokens = 0
    pairs = 0.0
    for share in shares:
        sequence, tokens = share.sequence, share.tokens
        if sequence.is_decoding:
            sequences += 1
            context_tokens += sequence.computed_tokens
        else:
            prefill_tokens += tokens
            pairs += tokens * (sequence.computed_tokens + tokens / 2)
    return Batch(prefill_tokens, pairs, sequences, context_tokens, adapters)

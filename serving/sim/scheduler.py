"""Continuous batching as vLLM does it: running requests first, then waiting ones, within a budget of tokens a step."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from dataclasses import dataclass

from serving.sim.blocks import BlockPool
from serving.sim.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """vLLM's own limits, by its names."""

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_loras: int = 0
    by_priority: bool = False
    schedules_ahead: bool = False
    """vLLM's asynchronous scheduling: what a step computes is decided when the step before begins."""


@dataclass(slots=True)
class Share:
    """What a step does for one sequence."""

    sequence: Sequence
    tokens: int
    yields: int
    """Tokens that it will have got at the step's end."""


class Scheduler:
    """Decides what each step computes and holds the blocks for it."""

    def __init__(self, limits: Limits, pool: BlockPool, block_tokens: int) -> None:
        self.limits = limits
        self.pool = pool
        self.block_tokens = block_tokens
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.deferred = 0
        """Waiting requests that only lack a slot for their adapter."""
        self._scheduled: set[Sequence] = set()
        self._adapters: OrderedDict[str, None] = OrderedDict()
        """Those that are loaded, the one that was used longest ago first."""

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=self._rank)

    def remove(self, sequence: Sequence) -> None:
        """It has ended, one way or the other."""
        if sequence.is_running:
            self.running.remove(sequence)
            sequence.is_running = False
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.pool.give_back(sequence.blocks)
        sequence.blocks = []

    def schedule(self, yields: int = 1) -> tuple[list[Share], list[Sequence], list[Sequence]]:
        """The next step's shares, the sequences that start with it, and those that had to give their blocks up for it.

        `yields`: tokens that a sequence gets from this step once its prompt is computed.
        """
        self._scheduled = set()
        shares, preempted = self._continue_running(yields)
        started: list[Sequence] = []
        if not preempted:
            budget = self.limits.max_num_batched_tokens - sum(share.tokens for share in shares)
            started = self._start_waiting(budget, yields, shares)
        return shares, started, preempted

    def _continue_running(self, yields: int) -> tuple[list[Share], list[Sequence]]:
        budget = self.limits.max_num_batched_tokens
        shares: list[Share] = []
        preempted: list[Sequence] = []
        for sequence in list(self.running):
            if not sequence.is_running or not budget:
                continue
            share = self._share(sequence, budget, yields)
            while not self._hold(sequence, share):
                victim = max(self.running, key=self._rank)
                if victim in self._scheduled:
                    self._scheduled.discard(victim)
                    budget += next(s.tokens for s in shares if s.sequence is victim)
                    shares = [s for s in shares if s.sequence is not victim]
                self._preempt(victim)
                preempted.append(victim)
                if victim is sequence:
                    break
            if sequence.is_running:
                budget -= share.tokens
                shares.append(share)
                self._scheduled.add(sequence)
        return shares, preempted

    def load_adapters(self, shares: list[Share]) -> int:
        """Have the adapters of a step in their slots. Returns how many had to be brought in, each in the place of the one that
        was used longest ago."""
        loaded = self._adapters
        asked = dict.fromkeys(share.sequence.adapter for share in shares if share.sequence.adapter)
        missing = sum(adapter not in loaded for adapter in asked)
        for adapter in asked:
            if adapter is not None:
                loaded[adapter] = None
                loaded.move_to_end(adapter)
        while len(loaded) > self.limits.max_loras:
            loaded.popitem(last=False)
        return missing

    def _start_waiting(self, budget: int, yields: int, shares: list[Share]) -> list[Sequence]:
        started: list[Sequence] = []
        skipped: list[Sequence] = []
        adapters = {sequence.adapter for sequence in self.running if sequence.adapter}
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting.pop(0)
            if sequence.adapter and sequence.adapter not in adapters and len(adapters) >= self.limits.max_loras:
                skipped.append(sequence)
                continue
            found = self._cached_blocks(sequence)
            if not self._fits_whole(sequence, found):
                self.waiting.insert(0, sequence)
                break
            created_tokens = self._created_tokens(sequence)
            sequence.blocks = self.pool.share(found)
            sequence.named_blocks = len(found)
            cached_tokens = sequence.computed_tokens = len(found) * self.block_tokens
            share = self._share(sequence, budget, yields)
            if not self._hold(sequence, share):  # has room for its prompt and not for all that speculation yields
                self.pool.give_back(sequence.blocks)
                sequence.blocks, sequence.computed_tokens, sequence.named_blocks = [], 0, 0
                self.waiting.insert(0, sequence)
                break
            if sequence.adapter:
                adapters.add(sequence.adapter)
            if sequence.cached_tokens is None:
                sequence.cached_tokens, sequence.created_cache_tokens = cached_tokens, created_tokens
            sequence.is_running = True
            self.running.append(sequence)
            budget -= share.tokens
            shares.append(share)
            started.append(sequence)
        self.deferred = len(skipped)
        for sequence in skipped:
            self.add(sequence)
        return started

    def _cached_blocks(self, sequence: Sequence) -> list[int]:
        """The leading blocks that are held already; the last token is always computed."""
        usable = sequence.hash_blocks(sequence.total_tokens - 1, self.block_tokens)
        return usable[: self.pool.find(usable)]

    def _created_tokens(self, sequence: Sequence) -> int:
        """Tokens of the prompt's full blocks that are not held."""
        full = sequence.hash_blocks(sequence.prompt_tokens, self.block_tokens)
        return (len(full) - self.pool.find(full)) * self.block_tokens

    def _fits_whole(self, sequence: Sequence, found: list[int]) -> bool:
        """A request starts only when there is room for all it has, not for its first chunk only. Blocks that were found and
        that nobody uses count among the free ones until they are shared."""
        new = -(-sequence.total_tokens // self.block_tokens) - len(found)
        return new + self.pool.idle_among(found) <= self.pool.free_blocks

    def _share(self, sequence: Sequence, budget: int, yields: int) -> Share:
        rest = sequence.prompt_tokens + sequence.generated_tokens - sequence.computed_tokens
        if rest > budget:
            return Share(sequence, budget, 0)
        left = sequence.answer_tokens - sequence.generated_tokens
        return Share(sequence, rest, yields if yields < left else left)

    def _hold(self, sequence: Sequence, share: Share) -> bool:
        """Have the blocks for what the step computes; a full block can be found by others from now on, as in vLLM."""
        end = sequence.computed_tokens + share.tokens
        held = end + share.yields - 1 if share.yields else end
        missing = -(-held // self.block_tokens) - len(sequence.blocks)
        if missing > 0:
            taken = self.pool.take(missing)
            if taken is None:
                return False
            sequence.blocks += taken
        full = end // self.block_tokens
        if full > sequence.named_blocks:
            hashes = sequence.hash_blocks(end, self.block_tokens)
            for place in range(sequence.named_blocks, full):
                sequence.blocks[place] = self.pool.name(sequence.blocks[place], hashes[place])
            sequence.named_blocks = full
        return True

    def _preempt(self, victim: Sequence) -> None:
        """All is computed again later; what nobody else needs meanwhile is still found in the cache then."""
        self.running.remove(victim)
        victim.is_running = False
        self.pool.give_back(victim.blocks)
        victim.blocks, victim.computed_tokens, victim.named_blocks = [], 0, 0
        victim.preemptions += 1
        self.add(victim)

    def _rank(self, sequence: Sequence) -> tuple[int, int]:
        return (sequence.priority if self.limits.by_priority else 0, sequence.number)

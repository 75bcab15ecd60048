"""The harness's model of an engine, in virtual time: a paged prefix cache, FIFO admission, chunked prefill.

It shares no code with the gateway, so that a gateway that predicts well does so because it learned.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass, field

BLOCK_BYTES = 64
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine's size and speed; the defaults are those of the harness's routing runs."""

    blocks: int = 40_000
    prefill_tokens_per_second: float = 16_000.0
    step_seconds: float = 0.008
    step_seconds_per_sequence: float = 0.00012
    sequences: int = 64
    batched_tokens: int = 4096


@dataclass(slots=True, eq=False)
class Job:
    """One request at one engine."""

    blocks: list[int]
    """Chained hashes of the prompt's whole blocks."""
    prompt_tokens: int
    output_tokens: int
    reply_blocks: list[int]
    """Hashes of the blocks that prompt and answer fill together, beyond those of the prompt."""
    tag: object = None
    cached_tokens: int = 0
    to_prefill: int = 0
    ends_at_step: int = 0
    arrived: float = 0.0
    first: float = 0.0
    held: list[int] = field(default_factory=list)
    anonymous: int = 0
    left: bool = False


class Engine:
    """Advances by whole steps; steps without prefill that are all alike are one event."""

    def __init__(self, number: int, spec: EngineSpec) -> None:
        self.number = number
        self.spec = spec
        self.waiting: list[Job] = []
        self.running = 0
        self.prefilling: list[Job] = []
        self.decoding: list[tuple[int, int, Job]] = []
        """A heap by the step at which each job ends."""
        self.steps = 0
        self.began = 0.0
        self.step_length = 0.0
        self.step_count = 0
        self.ends = math.inf
        self.version = 0
        self.chunk: list[tuple[Job, int]] = []
        self.refs: dict[int, int] = {}
        self.order: OrderedDict[int, int] = OrderedDict()
        """Free blocks by hash, or by a number of their own where nothing can be found in them; values are counts."""
        self.order[-1] = spec.blocks
        self.free = spec.blocks
        self._anonymous = -2
        self._serial = 0
        self.busy_seconds = 0.0
        self.query_tokens = 0
        self.hit_tokens = 0
        self.prompt_tokens = 0

    # What a router that may look inside sees

    def cached(self, blocks: list[int], prompt_tokens: int) -> int:
        """Tokens of a prompt that are in the cache now."""
        limit = min(len(blocks), (prompt_tokens - 1) // BLOCK_TOKENS)
        known = (self.refs, self.order)
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if any(blocks[middle - 1] in where for where in known):
                low = middle
            else:
                high = middle - 1
        return low * BLOCK_TOKENS

    def work_ahead(self, now: float) -> float:
        """Seconds until what is there has been prefilled, if nothing else happened."""
        spec = self.spec
        tokens = sum(job.to_prefill for job in self.prefilling)
        tokens += sum(job.prompt_tokens - self.cached(job.blocks, job.prompt_tokens) for job in self.waiting)
        left = max(0.0, self.ends - now) if self.chunk else 0.0
        tokens -= sum(part for _, part in self.chunk)
        steps = math.ceil(tokens / spec.batched_tokens)
        return left + tokens / spec.prefill_tokens_per_second + steps * self.step_seconds

    @property
    def step_seconds(self) -> float:
        return self.spec.step_seconds + self.spec.step_seconds_per_sequence * len(self.decoding)

    # What happens

    def submit(self, job: Job, now: float) -> None:
        job.arrived = now
        self.prompt_tokens += job.prompt_tokens
        self.waiting.append(job)
        if self.ends == math.inf:
            self._begin(now)
        elif self.step_count > 1:
            # Identical steps end early, at the end of the one that is under way.
            done = max(1, math.ceil((now - self.began) / self.step_length - 1e-9))
            if done < self.step_count:
                self.step_count = done
                self.ends = self.began + done * self.step_length
                self.version += 1

    def advance(self, now: float) -> tuple[list[Job], list[Job]]:
        """The steps that end now. Returns the jobs with their first token and those that are done."""
        self.busy_seconds += self.step_count * self.step_length
        self.steps += self.step_count
        ended: list[Job] = []
        decoding = self.decoding
        while decoding and decoding[0][0] <= self.steps:
            job = heapq.heappop(decoding)[2]
            if not job.left:
                ended.append(job)
        first: list[Job] = []
        for job, tokens in self.chunk:
            job.to_prefill -= tokens
            if not job.to_prefill:
                self.prefilling.remove(job)
                job.first = now
                first.append(job)
                if job.output_tokens <= 1:
                    ended.append(job)
                else:
                    self._serial += 1
                    heapq.heappush(decoding, (self.steps + job.output_tokens - 1, self._serial, job))
        for job in ended:
            self._release(job)
        self._begin(now)
        return first, ended

    def _begin(self, now: float) -> None:
        spec = self.spec
        while self.waiting and self.running < spec.sequences and self._admit(self.waiting[0]):
            job = self.waiting.pop(0)
            self.prefilling.append(job)
            self.running += 1
        self.version += 1
        self.chunk = []
        if not self.running:
            self.ends = math.inf
            return
        left = spec.batched_tokens - len(self.decoding)
        tokens = 0
        for job in self.prefilling:
            if left <= 0:
                break
            part = min(job.to_prefill, left)
            self.chunk.append((job, part))
            left -= part
            tokens += part
        self.began = now
        self.step_length = self.step_seconds + tokens / spec.prefill_tokens_per_second
        self.step_count = 1 if self.chunk else max(1, self.decoding[0][0] - self.steps)
        self.ends = now + self.step_count * self.step_length

    def _admit(self, job: Job) -> bool:
        refs, order = self.refs, self.order
        total = (job.prompt_tokens + job.output_tokens + BLOCK_TOKENS - 1) // BLOCK_TOKENS
        hits = self.cached(job.blocks, job.prompt_tokens) // BLOCK_TOKENS
        hit = job.blocks[:hits]
        free_hits = sum(1 for block in hit if block in order)
        if self.free - free_hits < total - hits:
            return False
        for block in hit:
            if block in order:
                del order[block]
                self.free -= 1
            refs[block] = refs.get(block, 0) + 1
        self._take(total - hits)
        fresh = job.blocks[hits:]
        held = hit
        for block in fresh:
            if block in refs:
                continue  # a duplicate stays without a name
            if block in order:
                # Its older copy becomes a free block without a name, in its place of the order.
                continue
            refs[block] = 1
            held.append(block)
        job.held = held
        job.anonymous = total - len(held)
        job.cached_tokens = hits * BLOCK_TOKENS
        job.to_prefill = job.prompt_tokens - job.cached_tokens
        self.query_tokens += job.prompt_tokens
        self.hit_tokens += job.cached_tokens
        return True

    def _take(self, count: int) -> None:
        order = self.order
        self.free -= count
        while count:
            key = next(iter(order))
            have = order[key]
            if have <= count:
                del order[key]
                count -= have
            else:
                order[key] = have - count
                count = 0

    def _release(self, job: Job) -> None:
        """Blocks become free, the end of the sequence first."""
        self.running -= 1
        refs, order = self.refs, self.order
        named = [block for block in job.reply_blocks if block not in refs and block not in order][: job.anonymous]
        anonymous = job.anonymous - len(named)
        if anonymous:
            self._anonymous -= 1
            order[self._anonymous] = anonymous
        for block in reversed(named):
            order[block] = 1
        freed = anonymous + len(named)
        for block in reversed(job.held):
            count = refs[block] - 1
            if count:
                refs[block] = count
            else:
                del refs[block]
                order[block] = 1
                freed += 1
        self.free += freed
        job.held = []

    def forget(self) -> None:
        """A restart: nothing is cached any more. Only for an engine that has nothing to do."""
        self.refs.clear()
        self.order.clear()
        self.order[-1] = self.free = self.spec.blocks

"""What a simulated engine has counted and timed, as vLLM counts and times it. Plain numbers; `exposition` spells them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence as Row
from dataclasses import dataclass, field

from serving.sim.sequence import Finish, Sequence


class Histogram:
    """Observations by bucket; `counts` has one more entry than `bounds`, for what lies above all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Row[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass(slots=True)
class Facts:
    """Of one engine since its start; `histograms` are the families of vLLM's snapshot by name."""

    histograms: dict[str, Histogram]
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    finished: Counter[Finish] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    drafts: int = 0
    accepted_tokens: int = 0
    accepted_at: Counter[int] = field(default_factory=Counter)
    """Accepted tokens by their place in the draft, from 0 on."""

    def observe(self, name: str, value: float) -> None:
        self.histograms[f"vllm:{name}"].observe(value)

    def looked_up(self, sequence: Sequence) -> None:
        """A sequence was scheduled for the first time."""
        self.prefix_queries += sequence.prompt_tokens
        self.prefix_hits += sequence.cached_tokens or 0

    def drafted(self, accepted: int) -> None:
        """A step of a request that guessed, and of whose guesses the first so many were right."""
        self.drafts += 1
        self.accepted_tokens += accepted
        self.accepted_at.update(range(accepted))

    def first_token(self, sequence: Sequence, seconds: float) -> None:
        self.prompt_tokens += sequence.prompt_tokens
        self.cached_prompt_tokens += sequence.cached_tokens or 0
        self.observe("time_to_first_token_seconds", seconds - sequence.arrived_seconds)

    def next_tokens(self, sequence: Sequence, seconds: float) -> None:
        self.observe("inter_token_latency_seconds", seconds - sequence.last_token_seconds)

    def step(self, prefill_tokens: int, generated_tokens: int) -> None:
        self.generation_tokens += generated_tokens
        self.observe("iteration_tokens_total", prefill_tokens + generated_tokens)

    def done(self, sequence: Sequence, reason: Finish, seconds: float) -> None:
        self.finished[reason] += 1
        scheduled = seconds if sequence.scheduled_seconds is None else sequence.scheduled_seconds
        first = sequence.first_token_seconds
        last = sequence.last_token_seconds if first is not None else scheduled
        decode = last - first if first is not None else 0.0
        generated = sequence.generated_tokens
        for name, value in (
            ("e2e_request_latency_seconds", seconds - sequence.arrived_seconds),
            ("request_queue_time_seconds", scheduled - sequence.queued_seconds),
            ("request_prefill_time_seconds", (first if first is not None else scheduled) - scheduled),
            ("request_inference_time_seconds", last - scheduled),
            ("request_decode_time_seconds", decode),
            ("request_num_preemptions", sequence.preemptions),
            ("request_prefill_kv_computed_tokens", sequence.prompt_tokens - (sequence.cached_tokens or 0)),
            ("request_prompt_tokens", sequence.prompt_tokens),
            ("request_generation_tokens", generated),
            ("request_time_per_output_token_seconds", decode / (generated - 1) if generated > 1 else 0.0),
            ("request_max_num_generation_tokens", generated),
            ("request_params_n", sequence.choices),
        ):
            self.observe(name, max(0.0, value))
        if sequence.limit_tokens:
            self.observe("request_params_max_tokens", sequence.limit_tokens)

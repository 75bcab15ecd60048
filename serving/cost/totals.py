"""What the requests of one pool and target used, and how a request's machine seconds are divided by kind of token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serving.core.context import Usage
from serving.core.money import MachineDollars

if TYPE_CHECKING:
    from serving.cost.machine_time import Stay

CACHED_WEIGHT = 0.02
"""What a cached token of a prompt takes beside one that is computed: it is looked up and read. An assumption; docs/cost.md."""
MOST_TOKENS = 1e6
"""Then what was learned of tokens counts half, so that the newer counts more."""


class PoolTotals:
    """Machine seconds that are accounted for. `output_seconds` of streams grow while these run, all else when a request ends."""

    __slots__ = (
        "_prompt_learned",
        "_prompt_tokens",
        "_steps",
        "_steps_learned",
        "cached_seconds",
        "dollars_per_second",
        "failed_seconds",
        "output_seconds",
        "prompt_seconds",
    )

    def __init__(self, dollars_per_second: float) -> None:
        self.dollars_per_second = dollars_per_second
        """Of one endpoint."""
        self.prompt_seconds = self.cached_seconds = self.output_seconds = self.failed_seconds = 0.0
        self._prompt_learned = self._prompt_tokens = self._steps_learned = self._steps = 0.0

    def settle(self, stay: Stay, usage: Usage, failed_dollars: float) -> MachineDollars:
        """Account for an answer, and return what it cost, with what the request's failed attempts did."""
        prompt_tokens, cached_tokens, output_tokens, _ = usage
        prompt, cached, output = stay.prompt_seconds, 0.0, stay.output_seconds
        if prompt_tokens is not None:
            weighed: float = prompt_tokens
            if cached_tokens:
                cached_tokens = min(cached_tokens, prompt_tokens)
                weighed = prompt_tokens - cached_tokens + CACHED_WEIGHT * cached_tokens
            if not stay.seen:
                prompt, output = self._divided(stay, weighed, output_tokens or 0)
            elif output_tokens and weighed:
                self._learn(stay, weighed, output_tokens)
            if cached_tokens:
                each = prompt / weighed
                prompt, cached = each * (prompt_tokens - cached_tokens), each * CACHED_WEIGHT * cached_tokens
        if not stay.seen:
            self.output_seconds += output
        self.prompt_seconds += prompt
        self.cached_seconds += cached
        rate = self.dollars_per_second
        return MachineDollars(prompt * rate, cached * rate, output * rate, failed_dollars)

    def _learn(self, stay: Stay, prompt_tokens: float, output_tokens: int) -> None:
        self._prompt_learned += stay.prompt_seconds
        self._prompt_tokens += prompt_tokens
        self._steps_learned += stay.written_seconds
        self._steps += output_tokens / stay.sequences
        if self._prompt_tokens > MOST_TOKENS:
            self._prompt_learned /= 2
            self._prompt_tokens /= 2
        if self._steps > MOST_TOKENS:
            self._steps_learned /= 2
            self._steps /= 2

    def _divided(self, stay: Stay, prompt_tokens: float, output_tokens: int) -> tuple[float, float]:
        """The seconds of an answer that came whole, in the proportion of what its tokens should have taken.

        That is learned from streams, and believed as routing does where there were none. A prompt is computed for its request
        alone, and a step is shared by all that are written in it.
        """
        total, stayed = stay.prompt_seconds + stay.output_seconds, stay.ended - stay.began
        share = total / stayed if stayed > total else 1.0
        if self._prompt_learned and self._steps_learned:
            prompt_each, step = self._prompt_learned / self._prompt_tokens, self._steps_learned / self._steps
        else:
            rates = stay.account.rates
            prompt_each, step = rates.prefill_seconds, rates.step + (rates.step_slope / share if share else 0.0)
        prompt, output = prompt_tokens * prompt_each, output_tokens / stay.sequences * step * share
        both = prompt + output
        if both <= 0.0:
            return total, 0.0
        scale = total / both
        return prompt * scale, output * scale

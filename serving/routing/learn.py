"""What an ended request teaches: the rates of its engine, how long answers are, and what the engine had still cached."""

from __future__ import annotations

from serving.core.context import Usage
from serving.routing.chain import START, covered_pieces
from serving.routing.predict import TOKENS_PER_BYTE, Mean, OutputLengths
from serving.routing.prefix import PrefixIndex
from serving.routing.work import Choice

LEAST_TEXT_BYTES = 512
LEAST_OUTPUT_TOKENS = 8
LEAST_EXPECTED_TOKENS = 512
SHORTFALL = 0.1
"""Of the tokens that should have been cached, so many may be missing before something is taken to be evicted."""
MOST_MODELS = 4096


class Lessons:
    """What is learned across endpoints."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._tokens_per_byte: dict[str, Mean] = {}
        self.outputs = OutputLengths()

    def tokens_per_byte(self, model: str) -> float:
        known = self._tokens_per_byte.get(model)
        return TOKENS_PER_BYTE if known is None else known.value

    def learn(self, choice: Choice, usage: Usage, ended: float) -> int:
        """Take an attempt that ended at `ended`; all that was not said stays as it was.

        Returns how many bytes its engine computed that no prompt can be matched with.
        """
        question, hold = choice.question, choice.hold
        prompt, cached, output = usage.prompt_tokens, usage.cached_tokens, usage.output_tokens
        per_byte = self._learn_size(question.model, question.text_bytes, prompt)
        if output is not None and question.output_limit != 0:
            self.outputs.learn(question.tenant, question.model, question.output_limit, output)
        work = choice.work
        rates = work.rates
        if choice.first and not question.silent:
            work.learned(ended)
            writing = ended - choice.first
            if output is not None and output > LEAST_OUTPUT_TOKENS and writing > 0:
                # `area` and `prefill_area` were made differences when the attempt ended.
                rates.learn_step(choice.area / writing, (writing - choice.prefill_area) / (output - 1))
            if choice.alone and prompt is not None and cached is not None:
                rates.learn_prefill(prompt - cached, choice.first - choice.began)
        if hold is None:
            return 0
        if cached is not None and prompt is not None:
            self._correct(choice, cached, per_byte)
        rest = question.text_bytes - START[len(question.chain)] + int((output or 0) / per_byte)
        self._index.release(hold, rest)
        return rest

    def _learn_size(self, model: str, text_bytes: int, prompt: int | None) -> float:
        known = self._tokens_per_byte.get(model)
        if known is None:
            if len(self._tokens_per_byte) >= MOST_MODELS:
                self._tokens_per_byte.clear()
            known = self._tokens_per_byte[model] = Mean(TOKENS_PER_BYTE)
        if prompt is not None and text_bytes >= LEAST_TEXT_BYTES:
            known.learn(prompt / text_bytes)
        return known.value

    def _correct(self, choice: Choice, cached: int, per_byte: float) -> None:
        """Compare what the engine had with what it should have had."""
        expected = choice.cached_bytes * per_byte
        if cached > expected + LEAST_EXPECTED_TOKENS + SHORTFALL * cached:
            choice.work.cache.grow()
        if expected < LEAST_EXPECTED_TOKENS:
            return
        work, hold = choice.work, choice.hold
        assert hold is not None
        work.rates.cache_trust.learn(min(1.0, cached / expected))
        if cached >= (1.0 - SHORTFALL) * expected:
            work.cache.confirm(hold.oldest)
            return
        stamp = hold.stamp_at(covered_pieces(int(cached / per_byte)))
        if stamp is not None:
            work.cache.forget_older(stamp)

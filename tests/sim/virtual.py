"""An engine model in virtual time: no clock, no loop; requests at set moments, and what each of them saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from serving.sim.exposition import histograms
from serving.sim.model import EngineModel
from serving.sim.rates import Rates
from serving.sim.scheduler import Limits
from serving.sim.sequence import Finish, Prompt, Sequence
from serving.sim.text import Words

RATES = Rates(prefill_tokens_per_second=1000.0, step_seconds=0.01)
BLOCK = 16


def engine_model(
    rates: Rates = RATES, *, capacity_tokens: int = 16_000, seed: int = 0, block_tokens: int = BLOCK, **limits: Any
) -> EngineModel:
    given = Limits(**{"max_num_seqs": 64, "max_num_batched_tokens": 512, "max_model_len": 8192, **limits})
    return EngineModel(
        given,
        rates,
        block_tokens=block_tokens,
        capacity_blocks=capacity_tokens // block_tokens,
        histograms=histograms("0.32.0", given.max_model_len),
        seed=seed,
    )


@dataclass(eq=False)
class Seen:
    """What a client saw of one sequence; moments in seconds."""

    sequence: Sequence
    sent: float
    tokens: list[float] = field(default_factory=list)
    ended: Finish | None = None
    ended_at: float | None = None

    @property
    def ttft(self) -> float:
        return self.tokens[0] - self.sent

    @property
    def total(self) -> float:
        assert self.ended_at is not None
        return self.ended_at - self.sent


class Run:
    """Sends requests and moves time on."""

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.now = 0.0
        self.seen: list[Seen] = []

    def send(self, prompt: bytes | str | int, answer_tokens: int = 4, **more: Any) -> Seen:
        """A prompt of one byte a token; a number stands for a text of that length that no other prompt begins with."""
        if isinstance(prompt, int):
            prompt = (f"<{len(self.seen)}>" + "x" * prompt)[:prompt]
        data = prompt.encode() if isinstance(prompt, str) else prompt
        made = Prompt(data)
        seen = Seen(Sequence(made, answer_tokens, Words(made, 1).data, **more), self.now)
        seen.sequence.on_tokens = lambda count: seen.tokens.extend([self.now] * count)

        def ended(reason: Finish) -> None:
            seen.ended, seen.ended_at = reason, self.now

        seen.sequence.on_finish = ended
        self.model.admit(1)
        self.model.add(seen.sequence, self.now)
        self.seen.append(seen)
        return seen

    def until(self, moment: float) -> None:
        while (then := self.model.next_seconds) is not None and then <= moment:
            self.now = then
            self.model.advance(then)
        self.now = moment

    def out(self) -> None:
        """Until nothing is left to do."""
        while (then := self.model.next_seconds) is not None:
            self.now = then
            self.model.advance(then)

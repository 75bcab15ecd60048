"""How long an engine takes: one step over a batch, from the rates of its profile."""

from __future__ import annotations

from dataclasses import dataclass

from serving.catalog.model import Simulation


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes."""

    prefill_tokens: int = 0
    prefill_token_pairs: float = 0.0
    """Over all prompts: new tokens × the tokens that they look back on."""
    sequences: int = 0
    """That get their next token."""
    context_tokens: int = 0
    """That these look back on, in all."""
    adapters: int = 0
    """That are loaded before it."""


@dataclass(frozen=True, slots=True)
class Rates:
    """A step's time is a sum; each term is linear in what the batch holds. Seconds are the engine's own."""

    prefill_tokens_per_second: float
    step_seconds: float
    step_seconds_per_sequence: float = 0.0
    step_seconds_per_context_token: float = 0.0
    prefill_seconds_per_token_pair: float = 0.0
    request_seconds: float = 0.0
    adapter_seconds: float = 0.0
    """Of bringing a LoRA adapter into a slot."""
    tokens_per_step: float = 1.0
    jitter: float = 0.0

    @classmethod
    def of(cls, simulation: Simulation) -> Rates:
        return cls(**{name: getattr(simulation, name) for name in cls.__slots__})

    def seconds(self, batch: Batch) -> float:
        return (
            self.step_seconds
            + batch.prefill_tokens / self.prefill_tokens_per_second
            + batch.prefill_token_pairs * self.prefill_seconds_per_token_pair
            + batch.sequences * self.step_seconds_per_sequence
            + batch.context_tokens * self.step_seconds_per_context_token
            + batch.adapters * self.adapter_seconds
        )

"""What a replay profile is: the lengths, shared prefixes and pace of traffic, as data. Lengths are in the engine's tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from serving.catalog.records import Count, Name, NotNegative, Positive, Record, Text

Share = Annotated[float, Field(ge=0, le=0.99, allow_inf_nan=False)]


class Spread(Record):
    """Lengths of many sizes: log-normal around the median, drawn again outside of least … most."""

    median: Count
    sigma: NotNegative
    """Standard deviation of the natural logarithm: with 0.7, one in six is more than twice the median."""
    least: Count
    most: Count

    @model_validator(mode="after")
    def _ordered(self) -> Spread:
        if not self.least <= self.median <= self.most:
            raise ValueError(f"least ({self.least}), median ({self.median}) and most ({self.most}) must not fall")
        return self


Length = Count | Spread
"""Tokens: always the same number, or a spread."""


class SharedPrefix(Record):
    """The beginning that requests of one group have in common."""

    share: Share
    """Of the prompt; the mean over all requests, since a cache keeps whole blocks only."""
    groups: Count
    """How many such prefixes there are; each request belongs to one of them, all alike often."""


class Prompts(Record):
    """Requests that know nothing of each other, but for a shared prefix."""

    kind: Literal["prompts"]
    prompt_tokens: Length
    """Of the whole prompt, with the chat template's own tokens."""
    output_tokens: Length
    shared_prefix: SharedPrefix | None = None


class Sessions(Record):
    """Conversations that grow: each turn brings the whole history; all but the last answer and question was sent before."""

    kind: Literal["sessions"]
    system_tokens: Count
    """Of a shared beginning: system prompt and tools."""
    system_prompts: Count
    """How many of them there are."""
    turns: Length
    first_user_tokens: Length
    next_user_tokens: Length
    """Of what comes with each further turn: a question, or the results of tools."""
    output_tokens: Length
    think_seconds: NotNegative
    """Mean pause (exponential) between an answer's end and the next turn."""


class TracedRequest(Record):
    """One request of a trace, without its text."""

    at_seconds: NotNegative | None = None
    prompt_tokens: Count
    output_tokens: Count
    prefix_group: Text | None = None
    prefix_tokens: Annotated[int, Field(ge=0)] = 0
    """How much of the prompt it has in common with the others of its group."""
    block_ids: tuple[int, ...] = ()
    """In place of a group: equal ids from the beginning on are equal blocks of text."""

    @model_validator(mode="after")
    def _one_prefix(self) -> TracedRequest:
        if (self.prefix_group is None) != (self.prefix_tokens == 0):
            raise ValueError("prefix_group and prefix_tokens belong together")
        if self.prefix_group is not None and self.block_ids:
            raise ValueError("has both prefix_group and block_ids; give one of them")
        if self.prefix_tokens >= self.prompt_tokens:
            raise ValueError("prefix_tokens must be less than prompt_tokens")
        return self


class Trace(Record):
    """Requests one by one, as they were recorded."""

    kind: Literal["trace"]
    block_tokens: Count = 512
    """Of each of `block_ids`."""
    requests: Annotated[tuple[TracedRequest, ...], Field(min_length=1)]


Traffic = Annotated[Prompts | Sessions | Trace, Field(discriminator="kind")]


class Objectives(Record):
    """What a request must meet to count as good; at least one bound."""

    ttft_seconds: Positive | None = None
    tpot_seconds: Positive | None = None
    e2e_seconds: Positive | None = None
    share: Annotated[float, Field(gt=0, le=1)] = 0.95
    """How many of all requests must be good for a rate to count as carried."""

    @model_validator(mode="after")
    def _some(self) -> Objectives:
        if self.ttft_seconds is None and self.tpot_seconds is None and self.e2e_seconds is None:
            raise ValueError("has no bound; give ttft_seconds, tpot_seconds or e2e_seconds")
        return self


class ReplayProfile(Record):
    """Traffic, and how it is replayed where the command line says nothing else."""

    name: Name
    description: Text
    traffic: Traffic
    concurrency: Count
    """Requests (or sessions) at the same time, where neither --rate nor --concurrency is given."""
    settle_seconds: NotNegative
    measure_seconds: Positive
    objectives: Objectives | None = None


def scaled(length: Length, scale: float) -> Length:
    """The length at another scale; at least one token."""
    if isinstance(length, int):
        return max(1, round(length * scale))
    return Spread(
        median=max(1, round(length.median * scale)),
        sigma=length.sigma,
        least=max(1, round(length.least * scale)),
        most=max(1, round(length.most * scale)),
    )


def most_of(length: Length) -> int:
    return length if isinstance(length, int) else length.most

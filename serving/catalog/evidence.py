"""What was published about speed, how it was published, and what is made of it. Figures of others are never given as ours."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from serving.catalog.records import Count, Date, Name, NotNegative, Positive, Record, Share, Text

ThroughputUnit = Literal["output tokens/s", "total tokens/s"]
"""total counts prompt tokens too, cached or not."""


class Workload(Record):
    """Requests of one kind."""

    prompt_tokens: Count
    output_tokens: Count
    cached_share: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    """Of the prompt, found in the prefix cache."""

    @property
    def new_tokens(self) -> float:
        """Prompt tokens of a request that are computed."""
        return self.prompt_tokens * (1 - self.cached_share)

    @property
    def request_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def prefill_context_tokens(self) -> float:
        """Mean number of tokens before a prompt token that is computed."""
        return self.prompt_tokens * self.cached_share + self.new_tokens / 2

    @property
    def decode_context_tokens(self) -> int:
        """Mean number of tokens before an output token."""
        return self.prompt_tokens + self.output_tokens // 2


PRODUCTION = Workload(prompt_tokens=20_000, output_tokens=1_000, cached_share=0.6)
"""The production profile, by which everything here is compared."""


class Anchor(Record):
    """A throughput that somebody published."""

    name: Name
    value: Positive
    unit: ThroughputUnit
    accelerators: Count
    """`value` is that of so many together."""
    workload: Workload
    concurrency: Count | None = None
    """Requests at once on one engine; None: not published."""
    acceptance_tokens: Annotated[float, Field(ge=1, le=16)] | None = None
    """Tokens a step with speculative decoding, for the bound; None: as the profile says."""
    requests_per_second: Positive | None = None
    engine: Text
    publisher: Text
    date: Date
    source: Text
    differs: Text | None = None
    """What was run where it was not this profile: another model, format, engine or number of nodes."""
    reproduced: bool = False

    def output_tokens_per_second(self, accelerators: int) -> float:
        """Of so many accelerators, if throughput grows with their number."""
        workload = self.workload
        share = workload.output_tokens / workload.request_tokens if self.unit == "total tokens/s" else 1.0
        return self.value * share * accelerators / self.accelerators


class Claim(Record):
    """What was said in public of two profiles."""

    text: Text
    price_ratio: Positive
    """Price of the baseline's accelerator over this one's, as the claim has it."""
    date: Date
    source: Text
    meaning: Text
    """What the words leave out."""


class Comparison(Record):
    """Another profile that this one is compared with."""

    baseline: Name
    anchor: Name | None = None
    """Of this profile; together with `baseline_anchor` it gives the ratio of throughputs."""
    baseline_anchor: Name | None = None
    claim: Claim | None = None
    note: Text | None = None


class Speculation(Record):
    """Speculative decoding as the arguments switch it on, and what it brings."""

    draft_tokens: Count
    acceptance_tokens: Annotated[float, Field(ge=1, le=16, allow_inf_nan=False)]
    """Mean tokens a step and request, the sure one included."""
    source: Text


class Assumed(Record):
    """The share of the roofline that an engine is taken to reach, until somebody measures it: from an anchor, or said."""

    anchor: Name | None = None
    share: Share | None = None
    step_overhead_seconds: NotNegative = 0.0
    """Of a step beside what the roofline counts: scheduling, launching. It rules with models that are small for the machine."""
    source: Text | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Assumed:
        if (self.anchor is None) == (self.share is None):
            raise ValueError("give either anchor or share")
        if self.share is not None and self.source is None:
            raise ValueError("source: is missing; say why the share is what it is")
        return self

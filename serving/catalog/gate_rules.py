"""What the gate holds a model's engines to: limits with their reason, and the floors that were measured, by target.

Files are `gate/NAME.yaml`. The rules of a profile are those that name it; a profile that none names has the rules `default`,
which know no floor, so that its engines are never passed without a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from serving.catalog.records import Count, Date, Name, NotNegative, Positive, Record, Share, Text

DEFAULT_RULES = "default"
Question = Literal["engine", "model"]
"""engine: does it compute what its checkpoint says; model: is the checkpoint good enough for what it is used for."""

ReferenceRole = Literal["matched", "honest", "reference"]


class Band(Record):
    """A figure of which less is better: `passes` at most, `fails` above, and between them nothing is decided."""

    passes: NotNegative
    fails: NotNegative

    @model_validator(mode="after")
    def _ordered(self) -> Band:
        if self.fails < self.passes:
            raise ValueError(f"fails: must be at least passes, {self.passes:g}, not {self.fails:g}")
        return self


class MatchedRules(Record):
    """Against the candidate's own weights, dequantized and served in bf16: all that is left is noise of arithmetic."""

    kl: Band
    """Mean over all positions, nats: the least that is asked for, where the floor is lower."""
    kl_floors: Band
    """The same as multiples of the measured floor; of the two the larger holds."""
    worst_passage_kl: Band
    log_perplexity: Band
    """Distance of the perplexity ratio's logarithm from 0, beyond three standard errors."""
    lost_top1: Band
    """Share of the positions where the reference is sure and the candidate's most likely token is another one."""
    uncalibrated_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    """Where no floor is known: so many times farther away may be noise, and only what is beyond fails."""


class StoredRunRules(Record):
    """Against a common reference, beside a stored run of an honest engine with the same checkpoint."""

    kl_ratio: Band
    """The candidate's mean KL to the reference over the honest run's."""
    kl_difference: NotNegative
    """Nats by which the candidate must be farther away for the paired test to fail it."""
    t: Positive
    """Of the paired test over passages."""


class ModelRules(Record):
    """Against the original: how much a format may lose. From an honest run on the same corpus, or from what the use bears."""

    kl: Band
    perplexity_ratio: Band
    lost_points: Band
    """Share of the tasks' items that are lost on balance."""
    reason: Text


class TaskRules(Record):
    """Paired with the reference's answers to the same items."""

    lost_points: Share
    p: Share
    """Of McNemar's exact test, below which a loss of more than `lost_points` fails."""
    p_review: Share
    lost_format: Share
    """Share of the items that must have a form, by which fewer may have it."""


class SpeculationRules(Record):
    """Speculative decoding must change nothing but speed."""

    lost_acceptance: Band
    """Of the expected tokens a step beyond the sure one, the share that is missing: a draft that agrees less with the model."""


class DecodeRules(Record):
    """The same tokens by the decode path and by the prefill path of one engine."""

    difference: Band
    """Mean distance of log probabilities, nats: the least that is asked for."""
    difference_floors: Band


class FormatRules(Record):
    """Of one weight format."""

    quantizes_activations: bool
    """Rounding activations is chaotic over many layers: then there is no matched reference, only a stored run."""
    model: ModelRules | None = None
    """None: nothing was laid down, and the question stays open."""


class Floor(Record):
    """How far honest engines are apart on one target. Measured, never assumed."""

    engine_version: Text
    matched_kl: NotNegative
    """Of an honest candidate and its matched reference."""
    repeat_kl: NotNegative
    """Of one engine with itself, with other batches."""
    decode_difference: NotNegative
    tokens: Count
    date: Date
    source: Text


class GateRules(Record):
    """Everything that decides about one model."""

    name: Name
    description: Text
    profiles: tuple[Name, ...] = ()
    questions: Annotated[tuple[Question, ...], Field(min_length=1)]
    """All must be answered for a pass."""
    references: dict[ReferenceRole, Text] = Field(default_factory=dict)
    """What to compare with, in words: which checkpoint, on what, kept where."""
    reference_format: Name = "bf16"
    """Of the original. A candidate in this format is not quantized: it must be equal to the original but for noise."""
    least_tokens: Count
    least_passages: Count
    matched: MatchedRules
    stored_run: StoredRunRules
    tasks: TaskRules
    decode: DecodeRules
    speculation: SpeculationRules
    formats: Annotated[dict[Name, FormatRules], Field(min_length=1)]
    floors: dict[Name, Floor] = Field(default_factory=dict)
    """By target. One that is not among them is uncalibrated."""
    reasons: dict[Text, Text]
    """Why the limits are what they are, by the name of the field."""

    @model_validator(mode="after")
    def _original(self) -> GateRules:
        if self.reference_format not in self.formats:
            known = ", ".join(sorted(self.formats))
            raise ValueError(f"reference_format: {self.reference_format!r} is not among the formats; there are: {known}")
        return self

    @model_validator(mode="after")
    def _reasons(self) -> GateRules:
        for field in ("least_tokens", "matched", "stored_run", "tasks", "decode", "speculation"):
            if field not in self.reasons:
                raise ValueError(f"reasons.{field}: is missing; say why the limits are what they are")
        for field in self.reasons.keys() - type(self).model_fields.keys():
            raise ValueError(f"reasons.{field}: is the reason of no field")
        return self


def rules_of(gates: Mapping[str, GateRules], profile: str) -> GateRules | None:
    """The rules that name a profile, else the default ones; None in a catalog without any."""
    return next((rules for rules in gates.values() if profile in rules.profiles), gates.get(DEFAULT_RULES))

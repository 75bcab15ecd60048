"""The settings of routing: what waiting is worth, what machines cost, and what is known of their speed beforehand."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator

from serving.setting_types import Name, RequestClass, Section

Policy = Literal["cost", "round_robin", "least_loaded", "session", "random"]
Rate = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class ObjectiveSettings(Section):
    """What waiting is worth to one class of requests."""

    dollars_per_hour: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    """What it is worth that a request waits an hour less; counts against the prices of elastic pools."""
    ttft_seconds: Annotated[float, Field(gt=0, le=86_400)]
    """The time to the first token that is to be kept; from half of it on each second counts more and more."""
    inter_chunk_seconds: Annotated[float, Field(gt=0, le=3600)] = 0.2
    """The mean time between two chunks of a stream that is to be kept. It is watched only: routing does not look at it."""


class ObjectivesSettings(Section):
    interactive: ObjectiveSettings = ObjectiveSettings(dollars_per_hour=7.2, ttft_seconds=2.0, inter_chunk_seconds=0.1)
    standard: ObjectiveSettings = ObjectiveSettings(dollars_per_hour=1.8, ttft_seconds=10.0)
    batch: ObjectiveSettings = ObjectiveSettings(dollars_per_hour=0.072, ttft_seconds=600.0, inter_chunk_seconds=2.0)


class PoolRoutingSettings(Section):
    """One pool's machines. Rates are where learning begins; being wrong by two times does no harm."""

    elastic: bool = False
    """Its nodes go away when they are idle, so that using them costs something. Needs a price, of its own or its target's."""
    dollars_per_hour: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    """Of what one endpoint runs on, all of its accelerators; None: its target's price for each of them."""
    accelerators: Annotated[int, Field(ge=1, le=65_536)] = 1
    """That one endpoint runs on; for a CPU its sockets."""
    prefill_tokens_per_second: Rate | None = None
    step_seconds: Rate | None = None
    """Of a decoding step with one request in it."""
    step_seconds_per_sequence: Rate | None = None
    """What each further request adds to a step."""
    sequences: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests that an engine runs at once (--max-num-seqs)."""
    cache_tokens: Annotated[int, Field(ge=1, le=2**40)] | None = None
    """Tokens that an engine's cache holds."""
    revision: Annotated[str, Field(max_length=63)] = ""
    """What runs there, where two versions of a model share its traffic."""
    weight: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] = 1.0
    """Of the revision, beside the others of the model: 5 and 95 send a twentieth of the conversations to the first."""


class RoutingSettings(Section):
    policy: Policy = "cost"
    """`cost` weighs seconds and dollars; the others are there to compare with."""
    index_bytes: Annotated[int, Field(ge=1024 * 1024, le=2**40)] = 64 * 1024 * 1024
    """The most memory that is kept to know which engine has which prompts cached."""
    objective: RequestClass = "standard"
    """The class of requests for which nothing else is said."""
    objectives: ObjectivesSettings = ObjectivesSettings()
    pools: dict[Name, PoolRoutingSettings] = Field(default_factory=dict)
    explain_key: SecretStr | None = None
    """Who sends it as `x-serving-explain` is told in `x-serving-decision` why the engine was chosen. Give it by environment."""

    @field_validator("explain_key", mode="after")
    @classmethod
    def _filled(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is None:
            return None
        text = secret.get_secret_value().strip()
        if len(text) < 16 or not text.isascii() or not text.isprintable():
            raise ValueError("must be at least 16 printable ASCII characters, since whoever knows it sees how the fleet is")
        return SecretStr(text)

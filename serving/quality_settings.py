"""The settings of the known-answer probes: how often each endpoint is asked, and what a wrong answer does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from serving.setting_types import Name, Seconds, Section


class QualitySettings(Section):
    """A probe is a few fixed prompts with eight tokens each. An endpoint that is outside its band in two of three is reported."""

    enabled: bool = False
    period_seconds: Annotated[float, Field(ge=0.05, le=86_400)] = 60.0
    """Between two probes of one endpoint by this gateway; a wrong one is reported within three of them."""
    timeout_seconds: Seconds = 30.0
    references: dict[Name, Path] = Field(default_factory=dict)
    """By pool: a file of `serving gate probes`, made on the same target. Without one an endpoint is compared with its own first
    answers since it came in, and never ejected."""
    band_nats: Annotated[float, Field(gt=0, le=20)] = 0.5
    """How far log-probabilities may be from an endpoint's own first answers, on the average of a probe. Files bring bands of
    their own, from a measured floor."""
    eject: bool = False
    """Whether an endpoint that is outside the band of a file gets no more requests, even if it is the last one of its model."""

    @model_validator(mode="after")
    def _ejects_by_file(self) -> QualitySettings:
        if self.eject and not self.references:
            raise ValueError("eject: needs references; without a floor that was measured on the target nobody is ejected")
        if (self.eject or self.references) and not self.enabled:
            raise ValueError("enabled: is false, so that references and eject do nothing; set it, or leave them out")
        return self

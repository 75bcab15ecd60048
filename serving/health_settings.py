"""The settings of passive health: when an endpoint that fails requests is left out, for how long, and how it comes back."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from serving.setting_types import Seconds, Section


class HealthSettings(Section):
    """What requests tell about endpoints. Faults are time-outs, refused and reset connections, answers that break off or make no
    sense, and 5xx; never 4xx, 429, 503 and what clients cancel."""

    faults: Annotated[int, Field(ge=1, le=1000)] = 3
    """Faults of different requests, without a whole answer in between, after which an endpoint is out. A fault that another
    endpoint had with the same request as well counts half: it may be the request."""
    open_seconds: Seconds = 5.0
    """How long an endpoint is out before one token is asked for as a trial. Twice as long each time it fails again."""
    most_open_seconds: Seconds = 120.0
    recovery_seconds: Seconds = 60.0
    """Each time that an endpoint has done well for so long, one doubling is forgotten."""
    most_ejected_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Of the ready endpoints of a model, at most so many are out at once for what requests say, rounded down; of two or more one
    may always be out, and never all. With more of them failing the least bad stay in rotation."""
    token_timeout_seconds: Seconds = 10.0
    """How long the token may take that an endpoint is asked for before its first traffic, when it comes back, and as a trial."""
    slow_start_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """A new or returned endpoint takes a growing share of the requests for so long, unless none of its model has been ready
    for longer. 0: its whole share at once."""

    @model_validator(mode="after")
    def _grows(self) -> HealthSettings:
        if self.most_open_seconds < self.open_seconds:
            raise ValueError("most_open_seconds is below open_seconds; it is what the time grows to")
        return self

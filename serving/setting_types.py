"""What all settings are made of: sections that are frozen and closed, and the types of fields that several of them have."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""Of a pool, an endpoint, a target, a tenant."""
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=2**53)]
"""The ceiling is far above any use, and below what C code can no longer take."""
RequestClass = Literal["interactive", "standard", "batch"]
"""How urgent a request is, the most urgent first: the queue and routing go by it."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

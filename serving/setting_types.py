"""What all settings are made of: sections that are frozen and closed, and the types of fields that several of them have."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""Of a pool, an endpoint, a target, a tenant."""
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=2**53)]
"""The ceiling is far above any use, and below what C code can no longer take."""
RequestClass = Literal["interactive", "standard", "batch"]
"""How urgent a request is, the most urgent first: the queue and routing go by it."""


class Variant(BaseModel):
    """Base of sections that a field tells apart; pydantic wants no validator before that field's."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Section(Variant):
    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: object, info: ValidationInfo) -> object:
        """YAML's true, yes and on are no 1."""
        if isinstance(value, bool) and _is_number(cls.model_fields[info.field_name or ""].annotation):
            raise ValueError("must be a number, not true or false")
        return value


def _is_number(annotation: Any) -> bool:
    """Whether a field takes numbers and no bool."""
    kinds = {get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in (annotation, *get_args(annotation))}
    return not kinds.isdisjoint((int, float)) and bool not in kinds
